"""Sources of every format and compression, whose answers are frozen: those of `golden`, and others.

They lie in an archive, as libraries may write them in another way tomorrow; `write_sources`, at commit d35b408f, wrote
them.
"""

import json
from contextlib import chdir
from pathlib import Path

import mmapds
from tests.support import golden
from tests.support.answers import hashed, text
from tests.support.compressed import WRITERS
from tests.support.files import DATA

FILES = DATA / "readings-v1.zip"


def prepare(directory):
    """Put all sources into a directory, and index those that cases share."""
    golden.unpack(directory)
    golden.unpack(directory, FILES)
    with chdir(directory):
        write_compressed()
        for name in ("typed.mma", "json.mma", "tokens.jsonl", "tokens.mma"):
            mmapds.build(name)
        mmapds.build("typed.jsonl", length="items(tokens)", columns={"id": "id", "x": "x", "size": "bytes()"})


def write_lines(name, records):
    Path(name).write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return name


def write_compressed():
    """Write a text by all compressors, whose files differ between versions of them."""
    for name, (suffix, write) in WRITERS.items():
        Path(f"by-{name}.jsonl{suffix}").write_bytes(
            write(LONG if name in ("gzip", "one") else LONG[: LONG.index(b"\n", 1 << 18) + 1])
        )


LONG = b"".join(b'{"n":%d,"text":"%x"}\n' % (n, n * n * 2654435761 % 2**61) for n in range(50_000))
"""A text that is larger than the blocks in which compressed files are read."""
PREFIXES = ("u32le", "u32be", "u64le", "u64be", "varint")
NPY = ["scalars", "bools", "halves", "big", "complex", "text", "unicode", "structs", "fortran", "objects", "none"]
SCHEMAS = {
    "numbers": {"id": "int64", "x": "float32", "ok": "bool"},
    "small": {"text": "str", "id": "uint8", "x": "bfloat16"},
    "lists": {"tokens": "int32", "pair": "float64", "grid": "int16"},
    "shapes": {
        "tokens": ("int64", (None,)),
        "grid": ("int8", (None, 2)),
        "pair": ("float16", (2,)),
        "id": ("int32", ()),
    },
    "ragged": {"rows": ("int32", "ragged"), "id": "int32"},
    "paths": {"meta.n": "uint16", r"meta.s\.t": "float64"},
    "more": {"id": "int64", "ok": "bool", "text": "str", "x": "float64"},
}
TOKENS = {"input_ids": "int32", "labels": "int64", "id": "int64", "text": "str"}


def built(path, **options):
    """Index a source in an index that other cases do not have, and open it."""
    out = f"{path}-{hashed(text(sorted(options.items())).encode())}.mmx"
    return mmapds.open(mmapds.build(path, out=out, force=True, **options) and out)
