"""What datasets give, frozen: samples, columns, fingerprints and views of every format, splits and shuffled streams.

Fingerprints and orders are in states, saved views and merged indexes that users keep, so versions agree on them.
Freeze the answers anew with `python -c "from tests.support.readings import freeze; freeze()"`.
"""

from contextlib import suppress
from functools import partial

import numpy as np

import mmapds
from tests.support import golden
from tests.support.answers import Cases, digest
from tests.support.frozen_sources import NPY, PREFIXES, built, prepare

CASES = Cases("readings")


# ---- formats and compression ----------------------------------------------------------------------------------------


def everything(ds):
    """What a dataset gives: samples, columns and places."""
    found = {
        "length": len(ds),
        "fingerprint": ds.fingerprint,
        "ds[-1]": lambda: ds[-1],
        "all": lambda: digest(ds),
        "raw": lambda: digest([ds.raw(k) for k in range(len(ds))]),
        "where": lambda: digest([ds.where(k) for k in range(len(ds))]),
    }
    with suppress(mmapds.Error):
        found["block_starts"] = ds.block_starts
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
    "bytes of one size": ("bytes.fixed", {"format": "fixed", "record_bytes": 6}),
    "shape of two axes": ("bytes.fixed", {"format": "fixed", "dtype": "uint8", "shape": "2,3"}),
    "text of one size": ("bytes.fixed", {"format": "fixed", "dtype": "S7", "truncated": "drop"}),
    **{f"npy of {name}": (f"{name}.npy", {}) for name in NPY},
    **{f"prefixed by {name}": (name, {"format": "prefixed", "prefix": name}) for name in PREFIXES},
    **{f"tokens of {name}": (f"{name}.bin", {}) for name in ("megatron", "fairseq", "legacy")},
    "odd members": ("odd.tar", {}),
    "examples": ("features.tfrecord", {}),
    "array file": ("typed.mma", {}),
    "array file of JSON": ("json.mma", {}),
    "array file without columns": ("written.mma", {"length": "bytes()"}),
}
for _name, (_path, _options) in OTHER_SOURCES.items():
    CASES[f"format: {_name}"] = lambda path=_path, options=_options: everything(built(path, **options))


# ---- views ----------------------------------------------------------------------------------------------------------


def third(ds):
    return np.arange(len(ds)) % 3 == 0


VIEWS = {
    "strided": lambda ds: ds[20:2:-3],
    "list": lambda ds: ds[[5, -1, 5, 0]],
    "mask": lambda ds: ds[third(ds)],
    "mask of a mask": lambda ds: ds[~third(ds)][third(ds[~third(ds)])],
    "split": lambda ds: ds.split([0.5, 0.3, 0.2], seed=5)[1],
    "split in order": lambda ds: ds.split([0.5, 0.3, 0.2], seed=None)[2],
    "split of a split": lambda ds: ds.split([0.7, 0.3])[0].split([0.4, 0.6], seed=1)[1],
    "concat": lambda ds: mmapds.concat([ds[:4], ds[third(ds)], ds[[1, 0]]]),
    "view of a zip": lambda ds: mmapds.zip(a=ds, b=ds[::-1])[third(ds)],
}
VIEWED = ["jsonl-columns", "combined-compressed", "arrays", "view-of-several"]


def viewed(view):
    return {name: lambda name=name: everything_of_view(view(mmapds.open(golden.built(name)))) for name in VIEWED}


def everything_of_view(ds):
    """What a view gives, in few words."""
    found = everything(ds)
    samples, places = digest(found.pop("all")), digest([found.pop("raw"), found.pop("where")])
    columns = digest([found.pop("columns", None), found.pop("length_order", None)])
    return f"{len(ds)}: {found['fingerprint']}, samples {samples}, places {places}, columns {columns}"


for _name, _view in VIEWS.items():
    CASES[f"view: {_name}"] = partial(viewed, _view)


# ---- streams --------------------------------------------------------------------------------------------------------


@CASES.case("streams")
def _():
    stream = mmapds.open("jsonl-columns.mmx").map(number_of).stream(shuffle=True, seed=3)
    found = {}
    for epoch in range(3):
        stream.set_epoch(epoch)
        found[f"epoch {epoch}"] = list(stream)
    return found


def number_of(sample):
    return sample["id"]


def freeze():
    CASES.freeze(prepare)
