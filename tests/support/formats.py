"""A source of every format, which the contract in tests/test_formats.py is held against.

A new format needs a function here that writes some records and returns what they are as samples, and a line in `KINDS`.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tfrecord

import mmapds
from mmapds import formats
from mmapds.formats import row_groups
from mmapds.formats.frames import Prefixed
from mmapds.formats.jsonl import JsonLines
from mmapds.formats.megatron import Megatron
from tests.support import mds as shards
from tests.support.array_files import store
from tests.support.samples import framed, npy, write_documents, write_pair, write_tfrecords
from tests.support.tars import archive, by_tarfile, members_of

COUNT = 300


def jsonl(path, texts, _):
    samples = [{"id": number, "text": text.hex()} for number, text in enumerate(texts)]
    path.write_bytes(b"".join(json.dumps(sample).encode() + b"\n" for sample in samples))
    return samples


def fixed(path, _, tokens):
    tokens.tofile(path)
    return list(tokens)


def npy_file(path, _, tokens):
    path.write_bytes(npy(tokens))
    return list(tokens)


def prefixed(path, texts, _):
    path.write_bytes(b"".join(framed(text, "u32le") for text in texts))
    return texts


def tfrecords(path, texts, _):
    write_tfrecords(path, ({"text": (text, "byte")} for text in texts))
    return [bytes(record) for record in tfrecord.reader.tfrecord_iterator(str(path))]


def tar(path, texts, _):
    path.write_bytes(archive(members_of(len(texts), f"{path.stem}/")))
    return by_tarfile(path)


def megatron(path, _, tokens):
    sequences = [row[: 1 + number % 50] for number, row in enumerate(tokens)]
    write_pair(path, sequences, "int32")
    return sequences


def datatrove(path, _, tokens):
    sequences = [row[: 1 + number % 50] for number, row in enumerate(tokens)]
    write_documents(path, sequences, "uint32")
    return [row.astype(np.uint32) for row in sequences]


def mds(path, texts, tokens):
    encodings = {"id": "int64", "text": "bytes", "tokens": "ndarray:int32"}
    samples = [
        {"id": np.int64(number), "text": text, "tokens": row[: 1 + number % 50]}
        for number, (text, row) in enumerate(zip(texts, tokens, strict=True))
    ]
    path.write_bytes(shards.shard(encodings, samples))
    return samples


def array_file(path, _, tokens):
    samples = [{"tokens": row[: 1 + number % 50], "name": f"n{number}"} for number, row in enumerate(tokens)]
    schema = {"tokens": ("int32", (None,)), "name": "str"}
    store(path.parent, samples, schema, path.name, length="tokens", index=False)
    return samples


def parquet(path, _, tokens):
    names = [f"n{number}" for number in range(len(tokens))]
    rows = [row[: 1 + number % 50] for number, row in enumerate(tokens)]
    table = pa.table({"tokens": pa.array(rows, pa.list_(pa.int32())), "name": pa.array(names, pa.string())})
    pq.write_table(table, path, row_group_size=40, write_page_checksum=True)
    return [{"tokens": row, "name": name} for row, name in zip(rows, names, strict=True)]


class Kind(NamedTuple):
    """A format."""

    write: Callable[..., list[Any]]
    name: str  # of its file
    place: Any  # what has the attribute `room`
    room: str  # how many records, or bytes, are in a piece of a scan
    options: dict[str, Any] = {}  # of `mmapds.build`
    drops: bool = True  # `truncated="drop"` leaves out an incomplete last record
    grows: bool = False  # a scan goes on where another one ended
    behind: int = 0  # bytes of a record behind its payload
    is_decoded: bool = False  # records lie in decoded blocks, not in the file


ONE_SIZE = {"format": "fixed", "dtype": "int32", "shape": "50", "length": "bytes()"}
KINDS = {
    "jsonl": Kind(jsonl, "a.jsonl", JsonLines, "part_size", {"length": "chars(text)"}, drops=False, grows=True),
    "fixed": Kind(fixed, "a.fixed", formats.fixed, "_STEP", ONE_SIZE),
    "npy": Kind(npy_file, "a.npy", formats.fixed, "_STEP"),
    "prefixed": Kind(prefixed, "a.prefixed", Prefixed, "room", {"format": "prefixed", "prefix": "u32le"}, grows=True),
    "tfrecord": Kind(tfrecords, "a.tfrecord", Prefixed, "room", grows=True, behind=4),
    "tar": Kind(tar, "a.tar", formats.tar, "_AT_ONCE"),
    "mds": Kind(mds, "a.mds", formats.mds, "_ROOM"),
    "megatron": Kind(megatron, "b.bin", Megatron, "step"),
    "datatrove": Kind(datatrove, "c.ds", Megatron, "step", {"dtype": "uint32"}, drops=False),
    "parquet": Kind(parquet, "a.parquet", row_groups, "_ROWS", drops=False, is_decoded=True),
    "arrays": Kind(array_file, "a.mma", formats.mma, "_AT_ONCE", drops=False),
}


def write_source(directory, kind, count=COUNT, longest=900, number=0):
    """Write a source of a format, with no zero byte at its end but in a tar; return its path and its samples."""
    rng = np.random.default_rng(number)
    texts = [bytes(rng.integers(1, 255, rng.integers(1, longest), dtype=np.uint8)) for _ in range(count)]
    tokens = np.random.default_rng(number + 1).integers(2**30, 2**31, (count, 50), dtype=np.int32)
    path = directory / f"{number or ''}{KINDS[kind].name}"
    return str(path), KINDS[kind].write(path, texts, tokens)


def built(sources, out, **options):
    """The bytes of the index of some sources that is built from them alone."""
    out.unlink(missing_ok=True)
    mmapds.build(sources, out=out, **{**options, "force": True})
    data = out.read_bytes()
    out.unlink()
    return data


def write_all(directory, count=COUNT, longest=900):
    """Write and index a source of each format; return format name to path."""
    paths = {kind: write_source(directory, kind, count, longest)[0] for kind in KINDS}
    for kind, path in paths.items():
        mmapds.build(path, **KINDS[kind].options)
    return paths
