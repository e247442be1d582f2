"""Indexes and array files as an earlier version wrote them. Freeze them anew with
`python -c "from tests.support.golden import freeze; freeze()"`.

They lie in one archive with their sources, as compressors differ between machines. Indexes hold the times of sources,
so those are set.
"""

import gzip
import json
import os
import re
import tempfile
import zipfile
from contextlib import chdir
from pathlib import Path

import numpy as np
from xxhash import xxh3_64_hexdigest

import mmapds
from tests.support import mistakes
from tests.support.array_files import store, utterances
from tests.support.commands import run
from tests.support.compressed import one_frame
from tests.support.files import DATA
from tests.support.formats import write_all

FILES, ANSWERS = DATA / "files-v1.zip", DATA / "files-v1.json"
TIME = 1_700_000_000  # of all sources
COUNT = 24


def write_sources():
    """Write sources in the working directory."""
    write_all(Path("."), COUNT, longest=40)
    for path in Path(".").glob("*.mmx"):
        path.unlink()
    rng = np.random.default_rng(1)
    records = [{"id": k, "n": int(rng.integers(90)), "t": "sät" * (k % 5), "list": [0] * (k % 3)} for k in range(COUNT)]
    for record in records[::2]:
        record["x"] = record["n"]
    lines = [json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records]
    text, half = b"".join(lines), b"".join(lines[:9])
    for name, data in {
        "part-0.jsonl": half,
        "part-1.jsonl": text.removeprefix(half),
        "open.jsonl": text.removesuffix(b"\n"),
        "bad.jsonl": half + b'{"oh\n{"id": 4}\n',
        "empty.jsonl": b"",
        "one.jsonl.gz": gzip.compress(text, mtime=0),
        "members.jsonl.gz": gzip.compress(half, mtime=0) + gzip.compress(text.removeprefix(half), mtime=0),
        "one.jsonl.zst": one_frame(text),
        "frames.jsonl.zst": one_frame(half) + one_frame(text.removeprefix(half)),
    }.items():
        Path(name).write_bytes(data)
    mmapds.seekable("part-1.jsonl", "seekable.jsonl.zst")
    os.remove("seekable.jsonl.zst.mmx")
    for name in ("a.tar", "a.tfrecord"):
        Path(f"{name}.gz").write_bytes(gzip.compress(Path(name).read_bytes(), mtime=0))


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
ERRORS = {
    "missing file": lambda: mmapds.open("absent.jsonl"),
    "no index": lambda: mmapds.open(mistakes.file("a.jsonl", b"1\n")),
    "missing index": lambda: mmapds.open("absent.mmx"),
    "grown": lambda: mmapds.open(mistakes.grown()),
    "written again": lambda: mmapds.open(mistakes.written_again()),
    "source that is gone": lambda: mmapds.open(mistakes.with_a_shard_missing())[0],
    "source outside": lambda: mmapds.open(mistakes.outside()),
    "damaged index": lambda: mmapds.open(mistakes.index_of(mistakes.jsonl(), -2, b"!")),
    "version of an index": lambda: mmapds.open(mistakes.index_of(mistakes.jsonl(), 8, b"\7")),
    "index that is text": lambda: mmapds.open(mistakes.file("a.mmx", b"hello" * 20)),
    "index out of range": lambda: mistakes.dataset()[3],
    "line that is not JSON": lambda: mmapds.open(mistakes.jsonl(b'{"n": 1}\n{"n": \n'))[1],
    "length that is missing": lambda: mmapds.build(mistakes.file("a.jsonl", b'{"n": 1}\n{}\n'), length="n"),
    "length that is text": lambda: mmapds.build(mistakes.file("a.jsonl", b'{"n": "x"}\n'), length="n"),
    "no such column": lambda: mistakes.dataset().column("lenght"),
    "JSON array": lambda: mmapds.build(mistakes.file("a.json", b'[\n{"n": 1},\n{"n": 2}\n]\n')),
    "table": lambda: mmapds.build(mistakes.file("a.csv", b"a,b\n1,2\n")),
    "unknown bytes": lambda: mmapds.build(mistakes.file("a.bin", bytes(9))),
    "truncated tar": lambda: mmapds.build(mistakes.cut(mistakes.archive(), 1300)),
    "no such key": lambda: mmapds.open(mmapds.build(mistakes.archive())).find("x"),
    "unfinished array file": lambda: mmapds.build(mistakes.file("a.mma", bytes(200))),
    "unknown argument": lambda: mmapds.build(mistakes.jsonl(), lenght="n"),
}


def write_arrays(name):
    store(Path("."), utterances(COUNT), name=name, index=False)


def built(name):
    return f"{name}.mmx"


def content(path):
    """What an index or a view reads: how many records, a hash of their bytes, and of its columns."""
    ds = mmapds.open(path, decode="bytes")
    records = ds.take(range(len(ds)))
    return [
        len(ds),
        xxh3_64_hexdigest(b"".join(b"%d %b" % (len(record), record) for record in map(bytes, records))),
        {name: xxh3_64_hexdigest(np.ascontiguousarray(ds.column(name)).tobytes()) for name in sorted(ds.columns)},
    ]


def info(path):
    return json.loads(run("-m", "mmapds.index", "--info", "--json", path).stdout)


def error(name):
    """The text of an error, provoked in a directory of its own."""
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        text = mistakes.message(ERRORS[name]).replace(directory, "DIRECTORY")
    return re.sub(r"\b[0-9a-f]{16}\b", "HASH", text)


def unpack(directory, files=FILES):
    """Put the frozen files of an archive into a directory."""
    with zipfile.ZipFile(files) as archive:
        archive.extractall(directory)
    for path in Path(directory).iterdir():
        os.utime(path, (TIME, TIME))


def freeze():
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        write_sources()
        sources = sorted(os.listdir())
        for name in sources:
            os.utime(name, (TIME, TIME))
        for name, build in BUILDS.items():
            build(built(name))
        write_arrays("written.mma")
        found = {
            "content": {name: content(built(name)) for name in BUILDS},
            "info": {name: info(built(name)) for name in BUILDS},
        }
        with zipfile.ZipFile(FILES, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in [*sources, *map(built, BUILDS), "written.mma"]:
                archive.writestr(zipfile.ZipInfo(name), Path(name).read_bytes(), zipfile.ZIP_DEFLATED)
    found["errors"] = {name: error(name) for name in ERRORS}
    ANSWERS.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
