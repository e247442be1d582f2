"""What users get wrong: files and calls that provoke messages, in the working directory."""

import io
import os
import struct
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmapds
from mmapds import orders


def file(name, content):
    Path(name).write_bytes(content)
    return name


def jsonl(content=b'{"n": 1, "s": "one"}\n{"n": 2, "s": "two"}\n{"n": 3, "s": "three"}\n', **options):
    name = file("train.jsonl", content)
    mmapds.build(name, **options)
    return name


def indexed(name):
    mmapds.build(file(name, b"1\n"))
    return name


def dataset(**options):
    return mmapds.open(jsonl(length="n"), **options)


def archive(*members, name="a.tar"):
    with tarfile.open(name, "w") as out:
        for member in members or ("0.txt", "1.txt"):
            entry = tarfile.TarInfo(member)
            entry.size = 1
            out.addfile(entry, io.BytesIO(b"x"))
    return name


def arrays(name="a.mma", schema=None, **options):
    schema = schema or {"x": ("float32", (None, 2)), "id": "int64"}
    with mmapds.Writer(name, schema, **options) as writer:
        for number in range(20):
            writer.write({"x": np.zeros((number, 2), np.float32), "id": number})
    return name


def megatron(code=8, begin=4, version=1, magic=b"MMIDIDX\0\0"):
    file("corpus.bin", bytes(8))
    body = struct.pack("<QBQQ", version, code, 2, 2) + struct.pack("<2i2q2q", 2, 2, 0, begin, 0, 2)
    file("corpus.idx", magic + body)
    return "corpus.bin"


def overwrite(name, at, data):
    found = os.stat(name)
    with open(name, "r+b") as out:
        out.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        out.write(data)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
    return name


def cut(name, size):
    os.truncate(name, size if size >= 0 else os.path.getsize(name) + size)
    return name


def grown():
    jsonl()
    with open("train.jsonl", "ab") as out:
        out.write(b'{"n": 4}\n')
    return "train.jsonl"


def written_again():
    path = jsonl()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.write(b" " * size)
    os.utime(path, ns=(5, 5))
    return "train.jsonl"


def outside():
    os.mkdir("elsewhere")
    return mmapds.build(jsonl(), out="elsewhere/all.mmx")


def index_of(name, at, data):
    return overwrite(f"{name}.mmx", at, data)


def opened():
    return mmapds.open("train.jsonl")


def with_a_shard_missing():
    paths = [file(f"{number}.jsonl", b"1\n") for number in range(2)]
    mmapds.build(paths, out="all.mmx")
    os.remove(paths[0])
    return "all.mmx"


def writer(schema=None, **options):
    return mmapds.Writer("out.mma", schema or {"id": "int64", "name": "str"}, **options)


def written(record, schema=None):
    with writer(schema) as out:
        out.write(record)


def inferred(record):
    with mmapds.Writer("out.mma") as out:
        out.write(record)


def closed():
    out = writer()
    out.close()
    out.write({"id": 1, "name": "a"})


def command(*arguments):
    """What a command says on stderr, as an error."""
    ran = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode in (1, 2), ran
    raise mmapds.Error(ran.stderr.removesuffix("\n"))


def collate(*samples, **options):
    return mmapds.pad_collate(list(samples), **options)


def table(name="t.parquet", **columns):
    pq.write_table(pa.table(columns), name)
    return name


def groups():
    with h5py.File("g.h5", "w") as out:
        out["a"], out["b"] = np.ones(3), np.ones(4)
    return "g.h5"


def linked():
    with h5py.File("l.h5", "w") as out:
        out["a"] = h5py.ExternalLink("g.h5", "/a")
    return "l.h5"


def state(**changes):
    sampler = mmapds.DistributedSampler(range(10), 1, 0)
    found = sampler.state_dict() | changes
    mmapds.DistributedSampler(range(10), 1, 0).load_state_dict(found)


def tokens(lengths=(3, 4, 5, 6), max_tokens=10, **options):
    sampler = mmapds.TokenBudgetBatchSampler(list(lengths), max_tokens, **({"num_replicas": 1, "rank": 0} | options))
    return list(sampler)


def pack(*samples, **options):
    return mmapds.pack_collate(list(samples), **options)


def packs(lengths=(3, 4, 5, 6), pack_length=10, **options):
    return list(mmapds.PackingBatchSampler(lengths, pack_length, **({"num_replicas": 1, "rank": 0} | options)))


class Twice(orders.Sequential):
    """A broken order: every position has record 0."""

    def at(self, _, positions):
        return np.zeros_like(positions)


distributed = partial(mmapds.DistributedSampler, range(10))
floats = partial(torch.zeros, dtype=torch.float32)


def zipped(ds=None):
    ds = ds or dataset()
    return mmapds.zip(a=ds, b=ds[::-1])


def saved(array, name="a.npy"):
    np.save(name, array)
    return name


def build_as(name, chosen):
    return mmapds.build(name, format=chosen)


def grown_again():
    with open("train.jsonl", "ab") as out:
        out.write(b'{"n": 4}\n')
    return "train.jsonl"


def message(provoke):
    with pytest.raises((mmapds.Error, ValueError, IndexError, TypeError, AttributeError)) as error:
        provoke()
    return str(error.value)
