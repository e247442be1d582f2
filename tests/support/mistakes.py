"""What users get wrong: files and calls that provoke messages, in the working directory."""

import io
import os
import tarfile
from pathlib import Path

import pytest

import mmapds


def file(name, content):
    Path(name).write_bytes(content)
    return name


def jsonl(content=b'{"n": 1, "s": "one"}\n{"n": 2, "s": "two"}\n{"n": 3, "s": "three"}\n', **options):
    name = file("train.jsonl", content)
    mmapds.build(name, **options)
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


def with_a_shard_missing():
    paths = [file(f"{number}.jsonl", b"1\n") for number in range(2)]
    mmapds.build(paths, out="all.mmx")
    os.remove(paths[0])
    return "all.mmx"


def message(provoke):
    with pytest.raises((mmapds.Error, ValueError, IndexError, TypeError, AttributeError)) as error:
        provoke()
    return str(error.value)
