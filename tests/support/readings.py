"""What datasets give: samples by every format and decoder, columns, views, streams and errors, to be frozen.

Freeze the answers anew with `python -c "from tests.support.readings import freeze; freeze()"`.
"""

import itertools
import pickle
import tempfile
from contextlib import chdir, suppress
from functools import partial
from pathlib import Path

import numpy as np

import mmapds
from tests.support import golden, mistakes
from tests.support.answers import Cases, digest, hashed
from tests.support.compressed import WRITERS
from tests.support.frozen_sources import LONG, NPY, PREFIXES, built, prepare

CASES = Cases("readings")


# ---- formats and compression ----------------------------------------------------------------------------------------


def everything(ds):
    """What a dataset gives: samples, columns and places."""
    some = [0, len(ds) - 1, len(ds) // 2, 0] if len(ds) else []
    found = {
        "length": len(ds),
        "fingerprint": ds.fingerprint,
        "ds[-1]": lambda: ds[-1],
        "all": lambda: digest(ds),
        "take": lambda: digest(ds.take(some)) == digest([ds[k] for k in some]),
        "raw": lambda: digest([ds.raw(k) for k in range(len(ds))]),
        "where": lambda: digest([ds.where(k) for k in range(len(ds))]),
        "place(-1)": lambda: ds.place(-1),
    }
    with suppress(mmapds.Error):
        found["block_starts"] = ds.block_starts
    if len(ds.sources) > 1:
        found["source_starts"] = [*zip(ds.sources, ds.source_starts.tolist(), strict=False)]
    if ds.columns:
        found["columns"] = {name: ds.column(name) for name in ds.columns}
    if ds.length_order is not None:
        found["length_order"] = order(ds.length_order)
    return found


def order(found):
    places = np.arange(int(found.counts.sum()))
    at = found.at(places)
    return digest([found.values, found.counts, at, found.lengths.at(at)])


for _name in golden.BUILDS:
    CASES[f"format: {_name}"] = lambda name=_name: everything(mmapds.open(golden.built(name)))


OTHER_SOURCES = {
    "odd lines": ("odd.jsonl", {}),
    "lines with a hash": ("open.jsonl", {"hash": True, "validate": True}),
    "bytes of one size": ("bytes.fixed", {"format": "fixed", "record_bytes": 6}),
    "numbers of one size": ("bytes.fixed", {"format": "fixed", "dtype": ">u2"}),
    "shape of two axes": ("bytes.fixed", {"format": "fixed", "dtype": "uint8", "shape": "2,3"}),
    "text of one size": ("bytes.fixed", {"format": "fixed", "dtype": "S7", "truncated": "drop"}),
    **{f"npy of {name}": (f"{name}.npy", {}) for name in NPY},
    **{f"prefixed by {name}": (name, {"format": "prefixed", "prefix": name}) for name in PREFIXES},
    **{f"tokens of {name}": (f"{name}.bin", {}) for name in ("megatron", "fairseq", "legacy")},
    "members that are decoded": ("real.tar", {}),
    "odd members": ("odd.tar", {}),
    "examples": ("features.tfrecord", {}),
    "array file": ("typed.mma", {}),
    "array file of JSON": ("json.mma", {}),
    "array file without columns": ("written.mma", {"length": "bytes()"}),
    **{
        f"compressed {name}": (name, {"format": "prefixed"} if "prefixed" in name else {})
        for each in ("a.prefixed", "a.tfrecord", "a.tar", "part-1.jsonl")
        for name in (f"{each}.zst", f"whole-{each}.gz")
    },
}
for _name, (_path, _options) in OTHER_SOURCES.items():
    CASES[f"format: {_name}"] = lambda path=_path, options=_options: everything(built(path, **options))


def by_writer(name):
    """What a text gives that a compressor wrote; where its blocks begin depends on the compressor."""
    ds = mmapds.open(mmapds.build(f"by-{name}.jsonl{WRITERS[name][0]}", length="n", force=True), decode="bytes")
    places = np.random.default_rng(0).permutation(len(ds))[:200]
    samples, lines = ds.take(places), LONG.splitlines()
    return {
        "length": len(ds),
        "all": hashed(b"".join(ds)),
        "take": b"".join(samples) == b"".join(lines[k] for k in places),
        "ds[i]": all(ds[k] == sample for k, sample in zip(places, samples, strict=True)),
        "lengths": digest(ds.lengths),
        "place(-1)": ds.place(-1),
        "block_starts": [int(ds.block_starts[0]), int(ds.block_starts[-1])],
    }


for _name in WRITERS:
    CASES[f"compressed by: {_name}"] = partial(by_writer, _name)


@CASES.case("seekable")
def _():
    """What a text gives that was recompressed; how large the file is depends on the compressor."""

    def made(source, out=None, **options):
        done = mmapds.seekable(source, out, force=out is not None, **options)
        ds = mmapds.open(done.path, build=True, decode="bytes")
        return [done.path, done.frames, done.text, done.is_new, len(ds), digest(ds), ds.block_starts]

    return {
        "lines": lambda: made("part-1.jsonl", "lines.jsonl.zst"),
        "gzip": lambda: made("by-gzip.jsonl.gz", "again.jsonl.zst", frame=1 << 18),
        "zstd": lambda: made("by-streamed.jsonl.zst", "small.jsonl.zst", frame=1 << 14, level=1, workers=1),
        "seekable already": lambda: made("seekable.jsonl.zst"),
        "another suffix": lambda: mmapds.seekable("part-1.jsonl", "lines.jsonl.gz"),
        "frame": lambda: mmapds.seekable("part-1.jsonl", "x.jsonl.zst", frame=1),
        "level": lambda: mmapds.seekable("part-1.jsonl", "x.jsonl.zst", level=0),
    }


@CASES.case("ways to read")
def _():
    """Access, io, block_cache and check change nothing."""
    ways = [
        *({"access": each} for each in ("auto", "random", "sequential")),
        {"io": "pread"},
        {"io": {"*.gz": "pread"}},
        {"block_cache": 0},
        *({"check": each} for each in ("stat", "sample", "none")),
    ]

    def same(path, options):
        return digest(mmapds.open(path, **options)) == digest(mmapds.open(path))

    sources = ("jsonl", "gzip", "combined-compressed", "fixed", "tar-gzip", "arrays")
    return {source: [same(golden.built(source), options) for options in ways] for source in sources}


COLUMNS = {
    "number": "id",
    "path": "meta.n",
    "escaped": r"meta.s\.t",
    "chars": "chars(text)",
    "bytes": "bytes(text)",
    "items": "items(tokens)",
    "record": "bytes()",
    "missing": "some",
    "string": "text",
    "boolean": "ok",
    "list": "tokens",
    "items of a number": "items(id)",
    "path into a list": "tokens.n",
    "misspelt": "token",
    "malformed": "items(tokens",
    "unknown": "words(text)",
}


@CASES.case("columns of JSON")
def _():
    def column(expression, **options):
        ds = built("typed.jsonl", columns={"c": expression}, **options)
        return [len(ds), ds.column("c")]

    found = {name: partial(column, expression) for name, expression in COLUMNS.items()}
    found |= {f"missing={value!r}": partial(column, "some", missing=value) for value in ("skip", 0, -1, 0.5, "drop")}
    found["half"] = partial(column, "half", missing=7)
    return found


# ---- decoders -------------------------------------------------------------------------------------------------------

READ_AS = {
    "jsonl": "open.jsonl",
    "fixed": "a.fixed",
    "npy": "a.npy",
    "prefixed": "a.prefixed",
    "tfrecord": "features.tfrecord",
    "tar": "real.tar",
    "megatron": "b.bin",
    "arrays": "typed.mma",
}
OPTIONS = {"fixed": {"format": "fixed", "dtype": "int32", "shape": "50"}, "prefixed": {"format": "prefixed"}}
NAMES = ["json", "text", "bytes", "files", "wds", "pil", "tf_example", "torch"]


def decoded(path, decode):
    ds = mmapds.open(path, decode=decode)
    return [ds[-1], digest(ds.take([0, 1])) == digest([ds[0], ds[1]])]


def by_each_decoder(name):
    path = built(READ_AS[name], **OPTIONS.get(name, {})).indexes[0]
    found = {"Fields": partial(decoded, path, mmapds.Fields({"x": "float32"}))}
    for decode in NAMES:
        try:
            mmapds.open(path, decode=decode)
        except mmapds.FormatError as error:
            found["refused"] = error  # the last one
        else:
            found[decode] = partial(decoded, path, decode)
    return found


for _name in READ_AS:
    CASES[f"decoders: {_name}"] = partial(by_each_decoder, _name)


@mmapds.takes_location
def record_and_place(record, location, more=None):
    return [record[:4], location, more]


@mmapds.takes_location
@mmapds.takes_view
def view_and_place(record, location):
    return [type(record).__name__, location]


class Decoder:
    takes_view = True

    def __call__(self, record):
        return bytes(record[:3])


FUNCTIONS = {
    "partial": partial(record_and_place, more=1),
    "both": view_and_place,
    "object": Decoder(),
}


@CASES.case("decoders: functions")
def _():
    return {
        f"{name} of {source}": partial(decoded, golden.built(source), decode)
        for name, decode in FUNCTIONS.items()
        for source in ("jsonl-hash", "combined-compressed", "arrays")
    }


# ---- views ----------------------------------------------------------------------------------------------------------


def third(ds):
    return np.arange(len(ds)) % 3 == 0


def doubled(samples):
    return [(sample, sample) for sample in samples]


VIEWS = {
    "strided": lambda ds: ds[20:2:-3],
    "empty": lambda ds: ds[3:3],
    "list": lambda ds: ds[[5, -1, 5, 0]],
    "ascending list": lambda ds: ds[[*range(2, 12, 2), *range(13, 22)]],
    "mask": lambda ds: ds[third(ds)],
    "slice of a mask": lambda ds: ds[~third(ds)][-3::-2],
    "mask of a mask": lambda ds: ds[~third(ds)][third(ds[~third(ds)])],
    "list of a list": lambda ds: ds[[9, 3, 3, 1]][[2, 0]],
    "split": lambda ds: ds.split([0.5, 0.3, 0.2], seed=5)[1],
    "split in order": lambda ds: ds.split([0.5, 0.3, 0.2], seed=None)[2],
    "split of a split": lambda ds: ds.split([0.7, 0.3])[0].split([0.4, 0.6], seed=1)[1],
    "slice of a split": lambda ds: ds.split([1.0], seed=3)[0][2:9:2],
    "concat": lambda ds: mmapds.concat([ds[:4], ds[third(ds)], ds[[1, 0]]]),
    "whole twice": lambda ds: ds + ds,
    "slice of a concat": lambda ds: (ds + ds)[len(ds) - 2 : len(ds) + 3],
    "map of a view": lambda ds: ds[third(ds)].map(repr)[::-1],
    "map of a map, batched": lambda ds: ds.map(repr).map(doubled, batched=True)[3:6],
    "view of a zip": lambda ds: mmapds.zip(a=ds, b=ds[::-1])[third(ds)],
    "zip of a zip": lambda ds: mmapds.zip(x=mmapds.zip(a=ds[:5]), y=ds[1:6].map(repr)),
    "saved bits": lambda ds: saved(ds[third(ds)], "bits"),
    "saved array": lambda ds: saved(ds[[7, 3, 3]], "array"),
    "view of a saved view": lambda ds: saved(ds[3:17], "slice")[third(range(14))],
    "saved view of a saved view": lambda ds: saved(saved(ds[3:17], "slice")[::-1], "again"),
    "pickled map of a zip": lambda ds: pickle.loads(pickle.dumps(mmapds.zip(a=ds[:3]).map(repr))),
}
VIEWED = ["jsonl-columns", "combined-compressed", "arrays", "view-of-several"]


def saved(ds, name):
    ds.save(f"saved-{name}.mmx")
    return mmapds.open(f"saved-{name}.mmx")


def viewed(view):
    found = {}
    for name in VIEWED:
        found[name] = lambda name=name: everything_of_view(view(mmapds.open(golden.built(name))))
    return found


def everything_of_view(ds):
    """What a view gives, in few words."""
    found = everything(ds)
    samples, places = digest(found.pop("all")), digest([found.pop("raw"), found.pop("where")])
    columns = digest([found.pop("columns", None), found.pop("length_order", None)])
    return f"{len(ds)}: samples {samples}, places {places}, columns {columns}, rest {digest(found)}"


for _name, _view in VIEWS.items():
    CASES[f"view: {_name}"] = partial(viewed, _view)


CASES["opening"] = lambda: {"schemas that differ": partial(mmapds.open, ["typed.mma", "json.mma"])}


# ---- streams --------------------------------------------------------------------------------------------------------


@CASES.case("streams")
def _():
    ds = mmapds.open("jsonl-columns.mmx").map(number_of)

    def resumed(stop, **options):
        stream = ds.stream(**options)
        steps = iter(stream)
        given = [next(steps) for _ in range(stop)]
        state = stream.state_dict()
        other = ds.stream(**options)
        other.load_state_dict(state)
        return [len(stream), given, list(other), other.epoch, digest(state)]

    def epochs(**options):
        stream = ds.stream(**options)
        found = []
        for epoch in range(3):
            stream.set_epoch(epoch)
            found.append(list(stream))
        return found

    sampler = mmapds.TokenBudgetBatchSampler(ds, 30, num_replicas=1, rank=0, min_length=1)
    return {
        "shuffled": lambda: epochs(shuffle=True, seed=3),
        "order": lambda: list(ds.stream(order=mmapds.orders.Chunked(24, 5, seed=1))),
        "resumed": lambda: resumed(7, shuffle=True),
        "batches resumed": lambda: resumed(2, batch_size=5, num_replicas=2, rank=1),
        "sampler beside batch_size": lambda: ds.stream(sampler, batch_size=3),
        "step of samples": lambda: ds.stream().state_dict(step=3),
    }


def number_of(sample):
    return sample["id"]


# ---- errors ---------------------------------------------------------------------------------------------------------

BAD_FILES = {
    "LFS": ("a.tar", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "no gzip": ("a.jsonl.gz", b'{"a": 1}\n'),
    "npy that is none": ("a.npy", b"x" * 200),
    "bin without idx": ("a.bin", bytes(8)),
}
BAD_OPTIONS = {
    "fixed of a bad dtype": {"format": "fixed", "dtype": "object"},
    "truncated": {"format": "fixed", "record_bytes": 6, "truncated": "keep"},
}


@CASES.case("errors: sources")
def _():
    def refused(name, data):
        with tempfile.TemporaryDirectory() as directory, chdir(directory):
            try:
                return mmapds.build(mistakes.file(name, data))
            except mmapds.Error as error:
                return error

    found = {name: partial(refused, *each) for name, each in BAD_FILES.items()}
    return found | {name: partial(built, "bytes.fixed", **options) for name, options in BAD_OPTIONS.items()}


@CASES.case("errors: damage")
def _():
    def opened(name, damage):
        data = bytearray(Path(name).read_bytes())
        damage(data)
        return digest(built(mistakes.file(f"damaged-{name}", data)))

    def cut(data):
        del data[-len(data) // 3 :]

    def flip(data):
        data[len(data) // 2] ^= 1

    names = ("one.jsonl.gz", "frames.jsonl.zst", "a.tar.zst", "whole-a.tfrecord.gz", "a.tar", "a.tfrecord", "typed.mma")
    return {
        f"{name}, {damage.__name__}": partial(opened, name, damage)
        for name, damage in itertools.product(names, (cut, flip))
    }


def freeze():
    CASES.freeze(prepare)
