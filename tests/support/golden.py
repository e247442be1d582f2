"""Indexes and array files as an earlier version wrote them, and sources of every format; `readings` has what they give.

They lie in archives, as libraries and compressors may write them in another way tomorrow; `write_sources`, at commit
d35b408f, wrote them. Indexes hold the times of sources, so those are set.
"""

import io
import json
import os
import zipfile
from contextlib import chdir, redirect_stdout
from pathlib import Path

import mmapds
from mmapds.cli.commands import index_main
from tests.support.array_files import store, utterances
from tests.support.files import DATA

TIME = 1_700_000_000  # of all sources
COUNT = 24


def numbers(sample):
    return sample["n"] / 4


BUILDS = {
    "jsonl": lambda out: mmapds.build("a.jsonl", out=out),
    "jsonl-columns": lambda out: mmapds.build(
        "open.jsonl", out=out, length="chars(t)", columns={"n": "n", "size": "bytes()", "items": "items(list)"}
    ),
    "jsonl-hash": lambda out: mmapds.build("a.jsonl", out=out, hash=True, length="bytes()"),
    "jsonl-bad": lambda out: mmapds.build("bad.jsonl", out=out, bad="skip", length="id"),
    "jsonl-missing": lambda out: mmapds.build("open.jsonl", out=out, length="n", columns={"x": "x"}, missing=7),
    "jsonl-empty": lambda out: mmapds.build("empty.jsonl", out=out),
    "jsonl-computed": lambda out: mmapds.build("open.jsonl", out=out, columns={"quarter": numbers}),
    "gzip": lambda out: mmapds.build("one.jsonl.gz", out=out, length="n"),
    "gzip-members": lambda out: mmapds.build("members.jsonl.gz", out=out, length="n", hash=True),
    "zstd": lambda out: mmapds.build("one.jsonl.zst", out=out, length="n"),
    "zstd-frames": lambda out: mmapds.build("frames.jsonl.zst", out=out, hash=True),
    "zstd-seekable": lambda out: mmapds.build("seekable.jsonl.zst", out=out, length="chars(t)"),
    "combined": lambda out: mmapds.build(["part-0.jsonl", "part-1.jsonl"], out=out, length="n"),
    "combined-compressed": lambda out: mmapds.build(
        ["part-0.jsonl", "frames.jsonl.zst", "one.jsonl.gz"], out=out, length="n"
    ),
    "fixed": lambda out: mmapds.build("a.fixed", out=out, format="fixed", dtype="int32", shape="50", length="bytes()"),
    "npy": lambda out: mmapds.build("a.npy", out=out, hash=True),
    "prefixed": lambda out: mmapds.build("a.prefixed", out=out, format="prefixed", prefix="u32le"),
    "tfrecord": lambda out: mmapds.build("a.tfrecord", out=out),
    "tfrecord-gzip": lambda out: mmapds.build("a.tfrecord.gz", out=out, length="bytes()"),
    "tar": lambda out: mmapds.build("a.tar", out=out, hash=True),
    "tar-gzip": lambda out: mmapds.build("a.tar.gz", out=out),
    "megatron": lambda out: mmapds.build("b.bin", out=out),
    "arrays": lambda out: mmapds.build("a.mma", out=out),
    "merged": lambda out: mmapds.merge([built("zstd"), built("combined")], out=out),
    "view-bits": lambda out: mmapds.open(built("jsonl"))[::3].save(out),
    "view-array": lambda out: mmapds.open(built("zstd-frames"))[[5, 3, 3, 20]].save(out),
    "view-of-several": lambda out: mmapds.open([built("combined"), built("zstd")])[20:30].save(out),
}


def write_arrays(name):
    store(Path("."), utterances(COUNT), name=name, index=False)


def built(name):
    return f"{name}.mmx"


def info(path):
    out = io.StringIO()
    with redirect_stdout(out):
        index_main(["--info", "--json", path])
    return json.loads(out.getvalue())


def prepare(directory):
    """Put the files of both archives into a directory, and index those that cases share."""
    for files in ("files-v1.zip", "readings-v1.zip"):
        with zipfile.ZipFile(DATA / files) as archive:
            archive.extractall(directory)
    for path in Path(directory).iterdir():
        os.utime(path, (TIME, TIME))
    with chdir(directory):
        for name in ("typed.mma", "json.mma", "typed.jsonl"):
            mmapds.build(name)
