"""Sources of every format, and what an index of several must be: byte for byte what a build of them writes."""

import struct
from pathlib import Path

import numpy as np

import mmapds
from tests.support.array_files import store
from tests.support.samples import npy, write_pair, write_tfrecords
from tests.support.tars import archive, members_of

OPTIONS = {
    "jsonl": {"length": "chars(text)", "columns": {"n": "n"}},
    "fixed": {"format": "fixed", "dtype": "int32", "shape": "5", "length": "bytes()"},
    "npy": {},
    "prefixed": {"format": "prefixed", "prefix": "varint", "columns": {"size": "bytes()"}},
    "tfrecord": {"length": "bytes()"},
    "tar": {"length": "bytes()"},
    "megatron": {"length": "bytes()"},
    "arrays": {},
}
"""How a source of each format is indexed."""


def write_source(directory, name, number, records):
    """Write a source of a format with some records, others for each number; return its path."""
    path = directory / f"{name}-{number}"
    rng = np.random.default_rng(number)
    sizes = rng.integers(1, 40, records)
    if name == "jsonl":
        lines = [b'{"n": %d, "text": "%s"}' % (number - k, b"x" * size) for k, size in enumerate(sizes)]
        path = path.with_suffix(".jsonl")
        path.write_bytes(b"\n \n".join(lines))
    elif name == "fixed":
        rng.integers(0, 2**31, (records, 5), np.int32).tofile(path)
    elif name == "npy":
        path = path.with_suffix(".npy")
        path.write_bytes(npy(rng.integers(0, 2**31, (records, 5), np.int32)))
    elif name == "prefixed":
        path.write_bytes(b"".join(bytes([size]) + b"x" * int(size) for size in sizes))
    elif name == "tfrecord":
        path = path.with_suffix(".tfrecord")
        write_tfrecords(str(path), ({"text": (b"x" * int(size), "byte")} for size in sizes))
    elif name == "tar":
        path = path.with_suffix(".tar")
        path.write_bytes(archive(members_of(records, f"{number}/")) if records else struct.pack("10240x"))
    elif name == "megatron":
        path = Path(write_pair(path.with_suffix(".bin"), [np.arange(size) for size in sizes]))
    elif name == "arrays":
        samples = ({"tokens": np.arange(size, dtype=np.uint16)} for size in sizes)
        schema = {"tokens": ("uint16", (None,))}
        path = Path(store(directory, samples, schema, name=f"{path.name}.mma", length="tokens"))
        Path(f"{path}.mmx").unlink(missing_ok=True)
    return str(path)


def built(sources, out, **options):
    """The bytes of the index of some sources that is built from them alone."""
    out.unlink(missing_ok=True)
    mmapds.build(sources, out=out, **{**options, "force": True})
    data = out.read_bytes()
    out.unlink()
    return data
