"""What datasets give: samples by every format and decoder, columns, views, streams and errors, to be frozen.

Freeze the answers anew with `python -c "from tests.support.readings import freeze; freeze()"`.
"""

import io
import json
import pickle
import shutil
import tempfile
import warnings
from contextlib import chdir, redirect_stdout, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch

import mmapds
from mmapds.cli.commands import main
from tests.support import golden, mistakes
from tests.support.answers import Cases, digest, hashed
from tests.support.compressed import WRITERS
from tests.support.frozen_sources import LONG, NPY, PREFIXES, built, prepare
from tests.support.samples import npy
from tests.support.tars import archive

CASES = Cases("readings")


# ---- formats and compression ----------------------------------------------------------------------------------------


def kind_of(function):
    """Return what a function returns, or the type of its error, whose text other rooms decide."""
    try:
        return function()
    except mmapds.Error as error:
        return type(error).__name__


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
        "a file that is there": lambda: mmapds.seekable("part-1.jsonl", "frames.jsonl.zst"),
        "another suffix": lambda: mmapds.seekable("part-1.jsonl", "lines.jsonl.gz"),
        "frame": lambda: mmapds.seekable("part-1.jsonl", "x.jsonl.zst", frame=1),
        "level": lambda: mmapds.seekable("part-1.jsonl", "x.jsonl.zst", level=0),
        "no source": lambda: mmapds.seekable("none.jsonl"),
        "an array of JSON": lambda: mmapds.seekable(mistakes.file("rows.json", b'[{"a": 1}]'), "rows.json.zst"),
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

    found = {}
    for source in ("jsonl", "gzip", "combined-compressed", "fixed", "tar-gzip", "arrays"):
        found[source] = [same(golden.built(source), options) for options in ways]
    wrong = [{"check": "full"}, {"check": "all"}, {"access": "fast"}, {"io": "read"}, {"on_error": "drop"}]
    return found | {str(options): partial(kind_of, partial(same, "jsonl.mmx", options)) for options in wrong}


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


@CASES.case("columns that functions compute")
def _():
    shutil.copy(golden.built("jsonl"), "added.mmx")
    mmapds.add_column("added.mmx", "size", size_of_text)
    mmapds.add_column("added.mmx", "half", size_of_text, decode=half_of)
    found = everything(mmapds.open("added.mmx"))
    return {name: found[name] for name in ("columns", "fingerprint")}


def size_of_text(sample):
    return len(sample["text"]) if isinstance(sample, dict) else sample


def half_of(record):
    return len(record) / 2


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


@mmapds.takes_view
def kind_and_size(record):
    return [type(record).__name__, len(record)]


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


def failing(record):
    raise KeyError(f"no {len(record)}")


def stopping(_):
    raise StopIteration


def odd_one_out(record):
    if json.loads(record)["id"] % 3 == 1:
        raise ValueError("an id that does not suit")
    return json.loads(record)["id"]


FUNCTIONS = {
    "function": len,
    "takes_view": kind_and_size,
    "takes_location": record_and_place,
    "partial": partial(record_and_place, more=1),
    "both": view_and_place,
    "object": Decoder(),
    "failing": failing,
    "stopping": stopping,
}


@CASES.case("decoders: unknown")
def _():
    return {str(decode): partial(mmapds.open, "jsonl.mmx", decode=decode) for decode in ("jason", {"x": "int8"}, 3)}


@CASES.case("decoders: functions")
def _():
    return {
        f"{name} of {source}": partial(decoded, golden.built(source), decode)
        for name, decode in FUNCTIONS.items()
        for source in ("jsonl-hash", "combined-compressed", "arrays")
    }


def left_out(decode, rows=range(11), change=None):
    """What a dataset gives that leaves some of 11 records out."""
    ds = mmapds.open("lines.mmx", decode=decode, on_error="skip")
    ds = change(ds) if change else ds
    return {
        "take_kept": lambda: [digest(ds.take_kept(rows)[0]), ds.take_kept(rows)[1]],
        "take": lambda: len(ds.take(rows)),
        "take of some": lambda: ds.take([1, 9]),
        "take of none": lambda: ds.take([9]),
        "ds[9]": lambda: ds[9],
        "iterated": lambda: len(list(ds)),
        "skipped": lambda: ds.skipped,
        "streamed": lambda: len(list(ds.stream(batch_size=4))),
    }


@CASES.case("on_error")
def _():
    mmapds.build("bad.jsonl", out="lines.mmx", force=True)
    fields = mmapds.Fields({"id": "int64", "n": "int32"})
    wrong = mmapds.Fields({"id": "float32", "none": "int32"})
    return {
        "json": partial(left_out, "json"),
        "function": partial(left_out, odd_one_out, range(9)),
        "Fields": partial(left_out, fields),
        "Fields that fit nothing": partial(left_out, wrong),
        "view": partial(left_out, "json", range(4), lambda ds: ds[::-1][:4]),
        "mask": partial(left_out, "json", range(5), lambda ds: ds[np.arange(11) % 2 == 1]),
        "map": partial(left_out, "json", change=lambda ds: ds.map(len)),
        "map batched": partial(
            left_out, "json", change=lambda ds: ds.map(lambda batch: [1] * len(batch), batched=True)
        ),
        "zip": partial(
            left_out, "json", change=lambda ds: mmapds.zip(a=ds, b=mmapds.open("lines.mmx", decode="bytes"))
        ),
        "raise": lambda: mmapds.open("lines.mmx").take_kept([0, 1]),
        "arrays": lambda: mmapds.open("arrays.mmx", on_error="skip").take_kept([0, -1])[1],
    }


# ---- views ----------------------------------------------------------------------------------------------------------


def third(ds):
    return np.arange(len(ds)) % 3 == 0


def doubled(samples):
    return [(sample, sample) for sample in samples]


VIEWS = {
    "slice": lambda ds: ds[5:15],
    "reversed": lambda ds: ds[::-1],
    "strided": lambda ds: ds[20:2:-3],
    "empty": lambda ds: ds[3:3],
    "list": lambda ds: ds[[5, -1, 5, 0]],
    "ascending list": lambda ds: ds[[*range(2, 12, 2), *range(13, 22)]],
    "array": lambda ds: ds[np.arange(3, dtype=np.uint8)],
    "tensor": lambda ds: ds[torch.tensor([4, 1])],
    "mask": lambda ds: ds[third(ds)],
    "mask of one": lambda ds: ds[np.arange(len(ds)) == 7],
    "list of bools": lambda ds: ds[[True, *[False] * (len(ds) - 1)]],
    "slice of a mask": lambda ds: ds[~third(ds)][-3::-2],
    "mask of a slice": lambda ds: ds[::-2][third(ds[::-2])],
    "mask of a mask": lambda ds: ds[~third(ds)][third(ds[~third(ds)])],
    "list of a list": lambda ds: ds[[9, 3, 3, 1]][[2, 0]],
    "split": lambda ds: ds.split([0.5, 0.3, 0.2], seed=5)[1],
    "split in order": lambda ds: ds.split([0.5, 0.3, 0.2], seed=None)[2],
    "split of a split": lambda ds: ds.split([0.7, 0.3])[0].split([0.4, 0.6], seed=1)[1],
    "slice of a split": lambda ds: ds.split([1.0], seed=3)[0][2:9:2],
    "concat": lambda ds: mmapds.concat([ds[:4], ds[third(ds)], ds[[1, 0]]]),
    "sum": lambda ds: ds[4:8] + ds[8:12],
    "whole twice": lambda ds: ds + ds,
    "slice of a concat": lambda ds: (ds + ds)[len(ds) - 2 : len(ds) + 3],
    "map": lambda ds: ds.map(repr),
    "map of a view": lambda ds: ds[third(ds)].map(repr)[::-1],
    "map of a map, batched": lambda ds: ds.map(repr).map(doubled, batched=True)[3:6],
    "concat of maps": lambda ds: ds[:3].map(repr) + ds[1:2].map(repr),
    "zip": lambda ds: mmapds.zip(a=ds, b=ds[::-1]),
    "view of a zip": lambda ds: mmapds.zip(a=ds, b=ds[::-1])[third(ds)],
    "map of a zip": lambda ds: mmapds.zip(a=ds[:5], b=ds[1:6])[1:3].map(repr),
    "zip of a zip": lambda ds: mmapds.zip(x=mmapds.zip(a=ds[:5]), y=ds[1:6].map(repr)),
    "concat of zips": lambda ds: mmapds.zip(a=ds[:2]) + mmapds.zip(a=ds[5:6]),
    "saved bits": lambda ds: saved(ds[third(ds)], "bits"),
    "saved array": lambda ds: saved(ds[[7, 3, 3]], "array"),
    "saved slice": lambda ds: saved(ds[3:17], "slice"),
    "view of a saved view": lambda ds: saved(ds[3:17], "slice")[third(range(14))],
    "saved view of a saved view": lambda ds: saved(saved(ds[3:17], "slice")[::-1], "again"),
    "pickled": lambda ds: pickle.loads(pickle.dumps(ds[third(ds)][::-1])),
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


@CASES.case("keys in views")
def _():
    def found(view, key):
        return view(mmapds.open("tar.mmx")).find(key)

    return {
        name: [partial(kind_of, partial(found, view, key)) for key in ("s0003", "s0007")]
        for name, view in VIEWS.items()
    }


@CASES.case("sequences")
def _():
    ds, pairs = mmapds.open("jsonl-columns.mmx"), mmapds.zip(a=mmapds.open("tar.mmx"), b=mmapds.open("arrays.mmx"))
    return {
        "repr": [*map(repr, (ds, ds[::-1], ds.map(len), mmapds.zip(a=ds), mmapds.open("fixed.mmx")))],
        "in": [ds[3] in ds, 3 in ds],
        "index and count": [ds.index(ds[5]), ds.count(ds[5])],
        "reversed": next(iter(reversed(ds))),
        "iterated": next(iter(ds)),
        "take of nothing": ds.take([]),
        "take of a tensor": [each["id"] for each in ds.take(torch.tensor([3, -1]))],
        "take of an array": [each["id"] for each in ds.take(np.array([3, 4], np.uint16))],
        "__getitems__": [each["id"] for each in ds.__getitems__([2, 1])],
        "numpy's position": ds[np.int64(2)] == ds[torch.tensor(2)] == ds[2],
        "lengths": ds.lengths,
        "find": [pairs.find("s0007"), mmapds.open("tar-gzip.mmx")[::-1].find("s0000"), built("real.tar").find("b/1")],
        "find twice": mmapds.open("tar.mmx")[[3, 3, 1]].find("s0003"),
        "find none": lambda: mmapds.open("tar.mmx")[:3].find("s0003"),
        "find no text": lambda: mmapds.open("tar.mmx").find(3),
        "find without keys": lambda: ds.find("a"),
        "zip's where": lambda: pairs.where(2),
        "zip's raw": lambda: digest(pairs.raw(2)),
        "zip's place": lambda: pairs.place(2),
        "zip's columns": lambda: [
            pairs.columns,
            pairs.column("tokens_length"),
            pairs.column("b.length"),
            pairs.lengths,
        ],
        "zip's block_starts": lambda: pairs.block_starts,
        "columns of one name": lambda: mmapds.zip(a=ds, b=ds).column("n"),
    }


@CASES.case("opening")
def _():
    Path("folder/deep").mkdir(parents=True, exist_ok=True)
    for name in ("a.jsonl", "b.jsonl", "c.tar", "d.json", "e.txt", "_SUCCESS", "deep/f.jsonl"):
        Path("folder", name).write_bytes(archive([("1.txt", b"1")]) if name == "c.tar" else b'{"id": 1}\n')
    mmapds.build("folder/*.jsonl")
    Path("two").mkdir(exist_ok=True)
    for name in ("a", "b"):
        mmapds.build("part-0.jsonl", out=f"two/{name}.mmx", force=True, columns={"c": "n" if name == "a" else "id"})

    def opened(what, **options):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ds = mmapds.open(what, **options)
        return [len(ds), ds.sources, "warned" if caught else "not warned"]

    given = {
        "a source": "typed.jsonl",
        "a path": Path("typed.jsonl"),
        "an index": "typed.jsonl.mmx",
        "a glob": "folder/*.jsonl",
        "braces": "folder/{b,a}.jsonl",
        "a directory": "folder",
        "a directory of indexes": "two",
        "a list": ["folder/b.jsonl", "zstd.mmx"],
        "a source and its index": ["typed.jsonl", "typed.jsonl.mmx"],
        "a source twice": ["typed.jsonl", "./typed.jsonl"],
        "a view and its source": ["view-bits.mmx", "typed.jsonl"],
        "formats that differ": ["typed.jsonl", "typed.mma"],
        "nothing": "none-*.jsonl",
        "an empty list": [],
        "what must be converted": "a.parquet",
    }
    found = {name: partial(kind_of, partial(opened, what)) for name, what in given.items()}
    found["build=True"] = partial(opened, "folder/{a,b}.jsonl", build=True)
    found["schemas that differ"] = partial(opened, ["typed.mma", "json.mma"])
    found["one decoder for formats that differ"] = partial(opened, ["typed.jsonl", "typed.mma"], decode="bytes")
    return found


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
        "in order": lambda: list(ds.stream()),
        "batches": lambda: list(ds.stream(batch_size=10)),
        "rank": lambda: list(ds.stream(num_replicas=5, rank=4)),
        "rank, drop_last": lambda: list(ds.stream(num_replicas=5, rank=4, drop_last=True)),
        "rank of batches": lambda: list(ds.stream(batch_size=3, num_replicas=3, rank=2)),
        "shuffled": lambda: epochs(shuffle=True, seed=3),
        "order": lambda: list(ds.stream(order=mmapds.orders.Chunked(24, 5, seed=1))),
        "resumed": lambda: resumed(7, shuffle=True),
        "batches resumed": lambda: resumed(2, batch_size=5, num_replicas=2, rank=1),
        "sampler": lambda: list(ds.stream(sampler)),
        "view": lambda: list(ds[::-5].stream()),
        "repr": lambda: repr(ds.stream(batch_size=3)),
        "sampler of others": lambda: ds[:3].stream(sampler),
        "sampler beside batch_size": lambda: ds.stream(sampler, batch_size=3),
        "no sampler of mmapds": lambda: ds.stream(range(24)),
        "step of samples": lambda: ds.stream().state_dict(step=3),
        "exclude": lambda: list(ds.stream(exclude=[3])),
    }


def number_of(sample):
    return sample["id"]


# ---- errors ---------------------------------------------------------------------------------------------------------

BAD_FILES = {
    "JSON over lines": ("a.json", b'{\n "a": 1\n}\n'),
    "old line ends": ("a.jsonl", b'{"a": 1}\r{"a": 2}\r'),
    "UTF-16": ("a.jsonl", '{"a": 1}\n'.encode("utf-16")),
    "image": ("a.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(40)),
    "NUL": ("a.jsonl", b"a\0b\n"),
    "table of tabs": ("a.tsv", b"a\tb\n1\t2\n"),
    "Parquet": ("a.parquet", b"PAR1" + bytes(40)),
    "HDF5": ("a.bin", b"\x89HDF\r\n\x1a\n" + bytes(40)),
    "LFS": ("a.tar", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
    "no gzip": ("a.jsonl.gz", b'{"a": 1}\n'),
    "empty tar": ("a.tar", b""),
    "tar that is none": ("a.tar", b"x" * 1024),
    "member twice": ("a.tar", archive([("a.txt", b"1"), ("a.TXT", b"2")])),
    "npy that is none": ("a.npy", b"x" * 200),
    "truncated npy": ("a.npy", npy(np.arange(9))[:-3]),
    "truncated TFRecord": ("a.tfrecord", bytes(8)),
    "damaged TFRecord": ("a.tfrecord", bytes(30)),
    "array file that is none": ("a.mma", b"x" * 300),
    "bin without idx": ("a.bin", bytes(8)),
}
BAD_OPTIONS = {
    "fixed without a size": {"format": "fixed"},
    "fixed of a bad dtype": {"format": "fixed", "dtype": "object"},
    "fixed that does not divide": {"format": "fixed", "record_bytes": 7},
    "prefix": {"format": "prefixed", "prefix": "u16"},
    "prefixed that is truncated": {"format": "prefixed"},
    "unknown format": {"format": "csv"},
    "format that is converted": {"format": "parquet"},
    "option of another format": {"format": "jsonl", "prefix": "varint"},
    "truncated": {"format": "fixed", "record_bytes": 6, "truncated": "keep"},
    "bad": {"format": "fixed", "record_bytes": 6, "bad": "skip"},
    "length of bytes": {"format": "fixed", "record_bytes": 6, "length": "n"},
}
INDEXED = {
    "float": 1.5,
    "bool": True,
    "name": "n",
    "dict": {"a": 1},
    "tuple of an array": (np.array([1]),),
    "axes": np.zeros((2, 2), int),
    "mask of another length": np.array([True]),
    "mask of numbers": np.arange(24) % 2,
    "out of range": [3, 24],
    "beyond int64": [2**63],
    "ragged": [[1], [2, 3]],
    "behind a mask": np.ma.array([1, 2], mask=[0, 1]),
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
    found |= {name: partial(built, "bytes.fixed", **options) for name, options in BAD_OPTIONS.items()}
    return found


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

    return {
        f"{name}, {damage.__name__}": partial(opened, name, damage)
        for name in (
            "one.jsonl.gz",
            "frames.jsonl.zst",
            "a.tar.zst",
            "whole-a.tfrecord.gz",
            "a.tar",
            "a.tfrecord",
            "typed.mma",
        )
        for damage in (cut, flip)
    }


@CASES.case("errors: positions")
def _():
    ds = mmapds.open("jsonl-columns.mmx")
    found = {f"ds[{name}]": partial(ds.__getitem__, key) for name, key in INDEXED.items()}
    found |= {f"take({name})": partial(ds.take, key) for name, key in INDEXED.items()}
    found |= {f"take({key!r})": partial(ds.take, key) for key in (3, slice(3), "ab", [[1]], [True], None)}
    return found


def damaged_member():
    return mistakes.file("member.tar", archive([("a.npy", npy(np.arange(3))[:-2])]))


@CASES.case("errors: datasets")
def _():
    ds, short, tar = mmapds.open("jsonl-columns.mmx"), mmapds.open("typed.jsonl"), mmapds.open("tar.mmx")
    nothing, fails = ds.map(lambda _: None), ds.map(failing)
    return {
        "map to None": lambda: nothing[3],
        "map that fails": lambda: fails[3],
        "map that fails in a batch": lambda: fails.take([2, 3]),
        "map that stops": lambda: ds.map(stopping)[3],
        "map of no function": lambda: ds.map(3),
        "map of a batch to too few": lambda: ds.map(lambda batch: batch[1:], batched=True).take([1, 2]),
        "map of a batch to a dict": lambda: ds.map(lambda batch: {"n": batch}, batched=True).take([1, 2]),
        "map of a batch that fails": lambda: ds.map(failing, batched=True).take([1, 2]),
        "zip of lengths": lambda: mmapds.zip(a=ds, b=short),
        "zip without names": lambda: mmapds.zip(ds),
        "zip of nothing": lambda: mmapds.zip(),
        "zip of a list": lambda: mmapds.zip(a=[1]),
        "concat of nothing": lambda: mmapds.concat([]),
        "concat of a dataset": lambda: mmapds.concat(ds),
        "concat of a list": lambda: mmapds.concat([ds, [1]]),
        "concat of kinds": lambda: ds + ds.map(len),
        "concat of decoders": lambda: ds + tar,
        "concat of functions": lambda: ds.map(len) + ds.map(repr),
        "concat of zips": lambda: mmapds.zip(a=ds) + mmapds.zip(b=ds),
        "concat of ways to read": lambda: ds + mmapds.open("jsonl-columns.mmx", io="pread"),
        "split": lambda: ds.split([0.5, 0.6]),
        "split of no list": lambda: ds.split(0.5),
        "split by a seed": lambda: ds.split([1.0], seed="a"),
        "save of a map": lambda: ds.map(len).save("x.mmx"),
        "save under another suffix": lambda: ds[:3].save("x.bin"),
        "save over an index": lambda: kind_of(lambda: ds[:3].save("typed.jsonl.mmx")),
        "no column": lambda: kind_of(lambda: ds.column("m")),
        "no lengths": lambda: kind_of(lambda: tar.lengths),
        "no column of a zip": lambda: kind_of(lambda: mmapds.zip(a=ds, b=tar).column("m")),
        "raw out of range": lambda: ds.raw(24),
        "where out of range": lambda: ds.where(-25),
        "no such key": lambda: tar.find("s1"),
        "decoder that refuses all": lambda: mmapds.open("prefixed.mmx", decode="tf_example")[0],
        "decoder in a batch": lambda: mmapds.open("prefixed.mmx", decode="text").take([1, 2]),
        "members that are damaged": lambda: mmapds.open(built(damaged_member()).indexes[0], decode="wds")[0],
        "blocks of plain text": lambda: ds.block_starts,
        "blocks of a view": lambda: mmapds.open("zstd.mmx")[::2].block_starts,
    }


@CASES.case("mmapds show")
def _():
    def shown(*arguments):
        out = io.StringIO()
        with redirect_stdout(out):
            status = main(["show", *arguments])
        return [status, *out.getvalue().splitlines()]

    return {
        "JSON": lambda: shown("typed.jsonl", "2", "-1"),
        "array file": lambda: shown("typed.mma", "0"),
        "bytes": lambda: shown("prefixed.mmx", "0"),
        "numbers": lambda: shown("fixed.mmx", "0"),
        "text": lambda: shown("typed.jsonl", "2", "--decode", "text"),
    }


def freeze():
    CASES.freeze(prepare)
