"""What datasets give, frozen: samples, columns, fingerprints and views of every format, and splits.

Fingerprints and splits are in states, saved views and merged indexes that users keep, so versions agree on them.
Freeze the answers anew with `python -c "from tests.support.readings import CASES; CASES.freeze()"`.
"""

from contextlib import suppress
from functools import partial

import numpy as np

import mmapds
from tests.support import golden
from tests.support.answers import Cases, digest, hashed, text
from tests.support.samples import PREFIXES

CASES = Cases("readings")


# ---- formats and compression ----------------------------------------------------------------------------------------


def everything(ds, info=None):
    """What a dataset gives: samples, columns and places."""
    found = {"info": info} if info else {}
    found |= {
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
        found["length_order"] = digest(ds.length_order.at(np.arange(len(ds))))
    return found


for _name, _index in zip(golden.BUILDS, map(golden.built, golden.BUILDS), strict=True):
    CASES[f"format: {_name}"] = lambda index=_index: everything(mmapds.open(index), golden.info(index))

NPY = ["scalars", "bools", "halves", "big", "complex", "text", "unicode", "structs", "fortran", "objects", "none"]
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


def indexed(path, options):
    """Index a source in an index that other cases do not have, and open it."""
    out = f"{path}-{hashed(text(sorted(options.items())).encode())}.mmx"
    return mmapds.open(mmapds.build(path, out=out, force=True, **options) and out)


for _name, (_path, _options) in OTHER_SOURCES.items():
    CASES[f"format: {_name}"] = lambda path=_path, options=_options: everything(indexed(path, options))


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


def of_view(view, name):
    """What a view gives, in few words."""
    ds = view(mmapds.open(golden.built(name)))
    places = digest([[ds.raw(k), ds.where(k)] for k in range(len(ds))])
    columns = digest({name: ds.column(name) for name in ds.columns})
    return f"{len(ds)}: {ds.fingerprint}, samples {digest(ds)}, places {places}, columns {columns}"


for _name, _view in VIEWS.items():
    CASES[f"view: {_name}"] = lambda view=_view: {name: partial(of_view, view, name) for name in VIEWED}
