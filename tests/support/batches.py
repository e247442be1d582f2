"""What batches and array files give: `Fields`, `pad_collate`, `pack_collate` and `Writer`, to be frozen.

Freeze the answers anew with `python -c "from tests.support.batches import freeze; freeze()"`.
"""

import pickle
from functools import partial
from pathlib import Path

import numpy as np
import torch

import mmapds
from tests.support.answers import Cases, digest
from tests.support.array_files import store
from tests.support.frozen_sources import SCHEMAS, TOKENS, prepare

CASES = Cases("batches")


# ---- Fields ---------------------------------------------------------------------------------------------------------

DEFAULTED = (
    {
        "id": "int64",
        "some": "int16",
        "tags": ("int32", (None,)),
        "name": "str",
        "more": ("int8", "ragged"),
        "w": "float32",
    },
    {"some": -7, "tags": [1, 2], "name": "ä", "more": [[1], []], "w": 0.5},
)
REFUSED = {
    "missing": {"nothing": "int32"},
    "null": {"some": "int32"},
    "misspelt": {"token": "int32"},
    "below a number": {"id.n": "int32"},
    "fraction": {"x": "int32"},
    "text": {"text": "int32"},
    "number": {"id": "str"},
    "list of numbers": {"tokens": "str"},
    "boolean": {"ok": "int8"},
    "lists of different lengths": {"rows": "int32"},
    "shape": {"grid": ("int32", (None, 3))},
    "axes": {"tokens": ("int32", (None, None))},
    "scalar": {"tokens": ("int32", ())},
    "no ragged": {"tokens": ("int32", "ragged")},
    "beyond": {"pair": "int8"},
    "object": {"meta": "int8"},
}


def typed(schema, defaults, source):
    ds = mmapds.open(source, decode=mmapds.Fields(schema, defaults=defaults))
    batch = ds.take([3, 0, 1, 2])
    return {
        "samples": list(ds) if source == "typed.jsonl" else digest(ds),
        "take": digest(batch) == digest([ds[k] for k in (3, 0, 1, 2)]),
        "slice of a batch": digest(batch[1:3]) == digest([ds[0], ds[1]]),
        "padded": lambda: digest(mmapds.pad_collate(batch)),
        "packed": lambda: digest(mmapds.pack_collate(batch)),
        "view": digest(ds[::-2]),
    }


def by_each_source(schema, defaults=None):
    return {name: partial(typed, schema, defaults, name) for name in ("typed.jsonl", "typed.mma", "json.mma")}


for _name, _schema in SCHEMAS.items():
    CASES[f"Fields: {_name}"] = partial(by_each_source, _schema)
CASES["Fields: defaults"] = partial(by_each_source, *DEFAULTED)


@CASES.case("Fields: refused")
def _():
    def refused(schema, source):
        return list(mmapds.open(source, decode=mmapds.Fields(schema)).take([3, 0]))

    found = {
        f"{name} of {source}": partial(refused, schema, source)
        for name, schema in REFUSED.items()
        for source in ("typed.jsonl", "json.mma")
    }
    found["schema: shape"] = partial(mmapds.Fields, {"id": ("int32", "raged")})
    found["default: not JSON"] = partial(mmapds.Fields, {"id": ("int8", ())}, defaults={"id": {1}})
    for text_of in ("{}", '{"id": 1e400}', '{"id": 256}', '{"id": [1,]}', "[]", '{"id": 1, "id": 2}', '{"id": "1"}'):
        found[f"record {text_of}"] = partial(mmapds.Fields({"id": "uint8"}), text_of.encode())
    return found


# ---- pad_collate ----------------------------------------------------------------------------------------------------

PAD = {
    "default": {},
    "pad_value": {"pad_value": -1},
    "pad_value of a field": {"pad_value": {"tokens": 9}},
    "pad_to_multiple_of": {"pad_to_multiple_of": 4},
    "max_length": {"max_length": 2},
    "truncate": {"max_length": 2, "truncate": "left"},
    "no lengths": {"lengths": False},
    "mask of a field": {"mask": {"tokens": "attention_mask"}},
    "lists": {"lists": ["tokens", "id"]},
    "all of them": {
        "pad_value": {"tokens": 7},
        "pad_to_multiple_of": 4,
        "max_length": 3,
        "truncate": "left",
        "lengths": False,
    },
}
KINDS = {
    "arrays": [np.arange(3, dtype=np.int16), np.arange(1, dtype=np.int16)],
    "arrays of two axes": [np.ones((2, 2), np.float32), np.zeros((1, 2), np.float32)],
    "no entries": [np.zeros((0, 0)), np.ones((1, 3))],
    "tensors": [torch.tensor([1.5]), torch.tensor([2.0, 3.0])],
    "bfloat16": [torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([2, 3], dtype=torch.bfloat16)],
    "promoted": [np.arange(2, dtype=np.int8), np.arange(1, dtype=np.uint8), torch.tensor([0.5])],
    "lists": [[1, 2], [], [3.5]],
    "big numbers": [[2**63, 1], [3]],
    "bools": [[True], [True, False]],
    "nested lists": [[[1, 2]], [[3, 4], [5, 6]]],
    "numbers": [1, 2.5, 3],
    "numbers of NumPy": [np.float32(1), np.float32(2)],
    "bool numbers": [True, False],
    "axes without": [np.array(1), np.array(2)],
    "big-endian": [np.array([1, 2], ">i4"), np.array([3], ">i4")],
    "text": ["a", "b"],
    "bytes": [b"a", None],
    "tuples": [([1, 2], "a", 3), ([4], "b", 5)],
    "lists of arrays": [[np.arange(2), 1], [np.arange(1), 2]],
    "nested fields": [{"a": {"b": [1], "c": "x"}}, {"a": {"b": [2, 3], "c": "y"}}],
    "None in a field": [{"a": None}, {"a": None}],
    "text in lists": [{"a": ["x"]}, {"a": []}],
    "empty lists": [{"a": []}, {"a": []}],
    "dates": [np.array(["2020-01-01"], "M8[D]"), np.array(["2020-01-02"], "M8[D]")],
    "objects": [{"a": np.array([[1], None], object)}, {"a": np.array([1], object)}],
}
MIXED = {
    "no samples": [],
    "no list": iter([1]),
    "positions": [(1, 2), (1,)],
    "clash": [{"a": [1], "a_lengths": 1}],
}
BATCHED = {
    "JSON": lambda: mmapds.open("typed.jsonl").map(without_some),
    "Fields": lambda: mmapds.open("typed.jsonl", decode=mmapds.Fields(SCHEMAS["more"] | SCHEMAS["shapes"])),
    "arrays": lambda: mmapds.open("typed.mma"),
    "Fields of arrays": lambda: mmapds.open("json.mma", decode=mmapds.Fields(SCHEMAS["shapes"])),
    "zip": lambda: mmapds.zip(a=mmapds.open("typed.mma"), b=mmapds.open("json.mma").map(without_some)),
    "arrays of one size": lambda: mmapds.open("fixed.mmx"),
    "tokens": lambda: mmapds.open("megatron.mmx"),
    "tensors": lambda: mmapds.open("typed.mma", decode="torch"),
}


def without_some(sample):
    return {name: value for name, value in sample.items() if name != "some"}


def of_each_source(collate, options, rows=(0, 3, 2)):
    """The batch that samples make, alike whether they are taken at once or one by one."""

    def batch(name):
        ds = BATCHED[name]()
        found = collate(ds.take(rows), **options)
        single = digest(collate([ds[k] for k in rows], **options))
        shown = found if name == "arrays" else digest(found)
        return shown if single == digest(found) else [shown, single]

    return {name: partial(batch, name) for name in BATCHED}


for _name, _options in PAD.items():
    CASES[f"pad_collate: {_name}"] = partial(of_each_source, mmapds.pad_collate, _options)


@CASES.case("pad_collate: kinds of samples")
def _():
    found = {name: partial(mmapds.pad_collate, samples) for name, samples in (KINDS | MIXED).items()}
    batch = mmapds.open("typed.jsonl").take([1, 3])
    found["refused: mask that clashes"] = partial(mmapds.pad_collate, batch, mask={"tokens": "id"})
    found["refused: truncate"] = partial(mmapds.pad_collate, batch, truncate="both")
    some = [{"a": {"b": [1], "c": [[1.5]]}}, {"a": {"b": [2, 3], "c": [[2.5], [1.0]]}}]
    found["pad values of nested fields"] = partial(mmapds.pad_collate, some, pad_value={"a": {"b": 5, "c": -1}})
    found["lists of nested fields"] = partial(mmapds.pad_collate, some, lists=["a.b"])
    found["pad values of positions"] = partial(mmapds.pad_collate, KINDS["tuples"], pad_value={0: 8}, lists=[2])
    found["mask"] = partial(mmapds.pad_collate, [{"a": [1], "b": [2]}, {"a": [3, 4], "b": [5, 6]}], mask="m")
    return found


# ---- pack_collate ---------------------------------------------------------------------------------------------------

PACK = {
    "flash": {},
    "flash of one size": {"pad_to": 12, "max_sequences": 5},
    "flash, cut": {"max_length": 2, "pad_value": -1, "pad_to": 9},
    "flash, cut off the start": {"max_length": 2, "truncate": "left"},
    "flash with labels": {"labels": "labels"},
    "hf": {"layout": "hf"},
    "hf of one size": {"layout": "hf", "pad_to": 12, "flash_attn_kwargs": True, "seq_idx": True},
    "hf in rows": {"layout": "hf", "pad_to": 6, "packs": 3, "max_sequences": 2, "seq_idx": True},
    "megatron": {"layout": "megatron", "round_to": 4},
    "megatron of one size": {"layout": "megatron", "round_to": 2, "pad_to": 16, "max_sequences": 4},
    "segments": {"layout": "segments"},
    "segments in rows": {"layout": "segments", "pad_to": 6, "packs": 3, "pad_value": {"input_ids": 3}},
}
PACK_REFUSED = {
    "layout": {"layout": "thd"},
    "packs": {"layout": "hf", "pad_to": 6, "packs": 1},
    "packs of flash": {"packs": 2, "pad_to": 9},
    "seq_idx": {"seq_idx": True},
    "labels of no field": {"labels": "label"},
}


def packed(options):
    def batch(source, decode):
        ds = mmapds.open(source, decode=decode)
        found = mmapds.pack_collate(ds.take([0, 3, 1, 2]), **options)
        single = mmapds.pack_collate([ds[k] for k in (0, 3, 1, 2)], **options)
        return found if digest(found) == digest(single) else [found, single]

    return {
        "JSON": partial(batch, "tokens.jsonl", "json"),
        "Fields": lambda: digest(batch("tokens.jsonl", mmapds.Fields(TOKENS))),
        "arrays": lambda: digest(batch("tokens.mma", None)),
    }


for _name, _options in PACK.items():
    CASES[f"pack_collate: {_name}"] = partial(packed, _options)


@CASES.case("pack_collate: kinds of samples")
def _():
    batch = mmapds.open("tokens.jsonl").take([0, 3, 1])
    found = {f"refused: {name}": partial(mmapds.pack_collate, batch, **each) for name, each in PACK_REFUSED.items()}
    some = [
        {"x": np.ones((2, 2), np.float32), "d": {"y": [1, 2]}, "e": [1, 2, 3]},
        {"x": np.zeros((1, 2)), "d": {"y": [3]}, "e": []},
    ]
    found["nested fields"] = partial(mmapds.pack_collate, some, lists=["e"], pad_to=5)
    found["arrays alone"] = partial(mmapds.pack_collate, KINDS["arrays"])
    found["lists alone"] = partial(mmapds.pack_collate, [[1, 2], [3]], layout="segments", pad_to=4)
    found["numbers"] = partial(mmapds.pack_collate, [1, 2])
    return found


# ---- array files, and their writer ----------------------------------------------------------------------------------

EVERY_TYPE = {
    "bool": [True, False, np.True_],
    "int8": [-128, 127, np.int64(3)],
    "uint64": [2**64 - 1, 0, True],
    "float16": [0.1, -2, np.float32(1.5)],
    "float64": [0.1, 2**53, float("nan")],
    "bytes": [b"\0a", b"", bytearray(b"x")],
    "str": ["ä\0", "", "x" * 300],
    "json": [{"a": [1, None]}, None, np.arange(2)],
    ("int32", (None,)): [[1, 2], [], np.arange(3, dtype=np.int32)],
    ("uint8", (2, 2)): [[[1, 2], [3, 4]], np.zeros((2, 2), np.uint8), torch.ones((2, 2), dtype=torch.uint8)],
    ("float32", (None, 3)): [np.ones((1, 3), np.float32), [], [[1, 2, 3], [4, 5, 6]]],
    ("float16", (2, None)): [[[1.5], [2]], np.zeros((2, 3), np.float16), np.zeros((2, 0), np.float16)],
    ("bool", (None,)): [[True], [], np.array([False])],
    ("complex64", ()): [np.complex64(1j), np.array(2, np.complex64), np.complex64(0)],
    ("bfloat16", (None,)): [torch.tensor([1.5], dtype=torch.bfloat16), torch.zeros(0, dtype=torch.bfloat16)],
    ("float8_e5m2", (2,)): [torch.tensor([1.5, 2]).to(torch.float8_e5m2)],
    ("float64", ()): [np.array(1.5), np.array(2.0), np.array(0.0)],
    ("int16", (0, None)): [np.zeros((0, 4), np.int16)],
}
MISFITS = {
    "bool": [2, "x"],
    "int8": [128, 1.0, "1", None, [1]],
    "float32": [1e39, "1", 2**24 + 1],
    "str": [b"a", 1, "\ud800"],
    "bytes": ["a", [1]],
    "json": [float("nan"), {1}, {"a": b"x"}],
    ("int8", (None,)): [[128], [1.5], np.arange(2), [[1]], 1, "ab"],
    ("float32", (None, 2)): [[[1, 2, 3]], np.ones((1, 2)), [1, 2]],
}


@CASES.case("Writer: every type")
def _():
    def written(what, values):
        path = store(Path("."), [{"x": value} for value in values], {"x": what}, name="every.mma")
        ds, tensors = mmapds.open(path), mmapds.open(path, decode="torch")
        return [[ds[k]["x"], tensors[k]["x"]] for k in range(len(ds))] + [
            {name: ds.column(name) for name in ds.columns}
        ]

    def refused(what, value):
        with mmapds.Writer("refused.mma", {"x": what}) as writer:
            writer.write({"x": value})

    found = {str(what): partial(written, what, values) for what, values in EVERY_TYPE.items()}
    found |= {
        f"{what} {value!r}": partial(refused, what, value) for what, values in MISFITS.items() for value in values
    }
    return found


@CASES.case("Writer")
def _():
    def wrote(records, schema=None, **options):
        ds = mmapds.open(store(Path("."), records, schema, name="w.mma", **options), build=True)
        return [list(ds), ds.columns, ds.lengths if "length" in ds.columns else None]

    def joined(*names):
        with mmapds.Writer("joined.mma", length="tokens") as writer:
            counts = [writer.append_file(name) for name in names]
            writer.write(dict(mmapds.open(names[0])[0]))
        return [counts, digest(mmapds.open("joined.mma")), mmapds.open("joined.mma").columns]

    def closed():
        writer = mmapds.Writer("closed.mma", {"x": "int8"})
        writer.close()
        writer.write({"x": 1})

    record = {"a": [1, 2], "b": "x", "c": {"d": 1}, "e": 0.5, "f": np.ones((1, 2), np.float32), "g": b"", "h": True}
    return {
        "inferred": lambda: wrote([record, record | {"a": [3]}]),
        "length": lambda: wrote([record], length="f"),
        "length of a number": lambda: wrote([{"n": 3}, {"n": 5}], {"n": "int32"}, length="n"),
        "no schema, no fields": lambda: wrote([{}]),
        "bad name": lambda: wrote([], {"a(b)": "int8"}),
        "append_file": lambda: joined("typed.mma", "typed.mma"),
        "append_file of another schema": lambda: joined("typed.mma", "json.mma"),
        "closed": closed,
    }


@CASES.case("arrays: batches")
def _():
    def batch(**options):
        ds = mmapds.open("typed.mma", **options)
        found = ds.take([3, 0, -1])
        return {
            "length": len(found),
            "item": found[-1],
            "slice": digest(found[::-1]),
            "pickled": digest(pickle.loads(pickle.dumps(found))) == digest(list(found)),
            "out of range": lambda: found[3],
        }

    return {
        "arrays": batch,
        "torch": lambda: batch(decode="torch"),
        "pread": lambda: digest(batch(io="pread")) == digest(batch()),
        "sequential": lambda: digest(batch(access="sequential")) == digest(batch()),
        "bytes": lambda: digest(batch(decode="bytes")),
        "Fields": lambda: digest(batch(decode=mmapds.Fields({"tokens": "int32", "x": "float32"}))),
        "several files": lambda: digest(mmapds.open(["typed.mma", "typed.mma.mmx"])),
    }


def freeze():
    CASES.freeze(prepare)
