"""Sources of every format and compression, whose answers are frozen: those of `golden`, and others.

They lie in an archive, as libraries may write them in another way tomorrow. Write it anew with
`python -c "from tests.support.frozen_sources import freeze; freeze()"`, and freeze all answers after that.
"""

import gzip
import io
import json
import os
import pickle
import struct
import tempfile
import zipfile
from contextlib import chdir
from pathlib import Path

import numpy as np
from PIL import Image

import mmapds
from mmapds.convert import convert
from tests.support import golden
from tests.support.answers import hashed, text
from tests.support.compressed import WRITERS, one_frame
from tests.support.files import DATA
from tests.support.samples import npy, npz, write_pair, write_tfrecords
from tests.support.tars import archive, special

FILES = DATA / "readings-v1.zip"
TYPED = [
    {"id": 0, "tokens": [1, 2, 3], "x": 0.5, "grid": [[1, 2], [3, 4]], "rows": [[1], [2, 3]], "ok": True, "text": "ä"},
    {"id": 1, "tokens": [], "x": -1.25, "grid": [[5, 6]], "rows": [], "ok": False, "text": ""},
    {"id": 2, "tokens": [4], "x": 3e-5, "grid": [], "rows": [[], [7]], "ok": True, "text": 'q"\\\n'},
    {"id": 3, "tokens": [5, 6, 7, 8, 9], "x": 7.0, "grid": [[7, 8]], "rows": [[1, 2, 3]], "ok": False, "text": "漢字"},
]
"""Records with fields of every kind; `write_typed` adds some."""
ODD = (
    b'\xef\xbb\xbf{"a": 1}\r\n\n  \n{"a": 18446744073709551615, "b": -9223372036854775808}\n'
    b'{"a": 1.5e3, "a": [null, true, {"k": "\\u00e9\\ud83d\\ude00"}]}\n"text"\n[]\n123456789012345678901234567890\n'
    b'{"a": -0.0, "deep": [[[[1]]]]}\r\n{"a": "end"}'
)
"""Lines that JSON Lines may have."""


def prepare(directory):
    """Put all sources into a directory, and index those that cases share."""
    golden.unpack(directory)
    golden.unpack(directory, FILES)
    with chdir(directory):
        write_compressed()
        for name in ("typed.mma", "json.mma", "tokens.jsonl", "tokens.mma"):
            mmapds.build(name)
        mmapds.build("typed.jsonl", length="items(tokens)", columns={"id": "id", "x": "x", "size": "bytes()"})


def write_sources():
    """Write sources in the working directory, into which the frozen ones of `golden` are unpacked."""
    write_typed()
    write_formats()
    for name in ("a.prefixed", "a.tfrecord", "a.tar", "part-1.jsonl"):
        data = Path(name).read_bytes()
        Path(f"{name}.zst").write_bytes(one_frame(data))
        Path(f"whole-{name}.gz").write_bytes(gzip.compress(data, mtime=0))


def write_typed():
    for number, record in enumerate(TYPED):
        record |= {"meta": {"n": number + 1, "s.t": number / 8}, "pair": [number / 4, number]}
        record |= {"some": number} if number % 2 else {"some": None} if number else {}
    write_lines("typed.jsonl", TYPED)
    mmapds.build("typed.jsonl")
    convert("typed.jsonl", "typed.mma", decode=mmapds.Fields(SCHEMAS["lists"] | SCHEMAS["more"]), length="tokens")
    convert("typed.jsonl", "json.mma")
    write_lines("tokens.jsonl", map(tokens_and_labels, TYPED))
    mmapds.build("tokens.jsonl")
    convert("tokens.jsonl", "tokens.mma", decode=mmapds.Fields(TOKENS))


def write_lines(name, records):
    Path(name).write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8")
    return name


def write_formats():
    Path("odd.jsonl").write_bytes(ODD)
    Path("bytes.fixed").write_bytes(bytes(range(60)))
    for name, array in NPY.items():
        Path(f"{name}.npy").write_bytes(npy(array))
    for prefix, head in PREFIXES.items():
        Path(prefix).write_bytes(b"".join(head(len(record)) + record for record in RECORDS))
    for kind in ("megatron", "fairseq", "legacy"):
        write_pair(Path(f"{kind}.bin"), [[1, 2, 3], [], [4], [5, 6]], "uint16", kind)
    Path("real.tar").write_bytes(archive([(f"{key}.{name}", data) for key in ("a/0", "b/1") for name, data in MEMBERS]))
    Path("odd.tar").write_bytes(
        archive([special("d", b"5"), ("__meta__", b"m"), ("x.TXT", b"1"), ("x.a.b", b"2"), ("y", b"")])
    )
    write_tfrecords("features.tfrecord", EXAMPLES)


def write_compressed():
    """Write a text by all compressors, whose files differ between versions of them."""
    for name, (suffix, write) in WRITERS.items():
        Path(f"by-{name}.jsonl{suffix}").write_bytes(
            write(LONG if name in ("gzip", "one") else LONG[: LONG.index(b"\n", 1 << 18) + 1])
        )


LONG = b"".join(b'{"n":%d,"text":"%x"}\n' % (n, n * n * 2654435761 % 2**61) for n in range(50_000))
"""A text that is larger than the blocks in which compressed files are read."""
RECORDS = [b"one", b"", b"\0\xff" * 70, b"last"]
PREFIXES = {
    "u32le": lambda n: struct.pack("<I", n),
    "u32be": lambda n: struct.pack(">I", n),
    "u64le": lambda n: struct.pack("<Q", n),
    "u64be": lambda n: struct.pack(">Q", n),
    "varint": lambda n: bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]),
}
NPY = {
    "scalars": np.arange(4, dtype=np.int16),
    "bools": np.array([[True, False], [False, True]]),
    "halves": np.array([[1.5], [-2.0]], np.float16),
    "big": np.array([[1.5, 2.0]], ">f4"),
    "complex": np.array([[1 + 2j]], np.complex64),
    "text": np.array([b"ab", b"c"]),
    "unicode": np.array(["ä", "bcd"]),
    "structs": np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")]),
    "fortran": np.asfortranarray(np.ones((2, 3))),
    "objects": np.array([[1], None], object),
    "none": np.empty((0, 2), np.int32),
}
EXAMPLES = [
    {"a": ([b"a", b"bc\xc3"], "byte")},
    {"b": ([1.5, -2.0], "float")},
    {"c": ([1, -1, 300], "int")},
    {"c": (7, "int")},
    {},
]


def image(mode, kind="png"):
    out = io.BytesIO()
    Image.frombytes(mode, (2, 1), bytes(range(2 * len(mode)))).save(out, kind)
    return out.getvalue()


MEMBERS = [
    ("json", b'{"label": 3, "nan": NaN}'),
    ("txt", "sä".encode()),
    ("cls", b"7"),
    ("cls2", b"8"),
    ("index", b" 9 "),
    ("npy", npy(np.arange(3, dtype=np.float32))),
    ("npz", npz(x=np.arange(2), y=np.ones((1, 1), np.uint8))),
    ("gray.png", image("L")),
    ("png", image("RGB")),
    ("alpha.png", image("RGBA")),
    ("bmp", image("RGB", "bmp")),
    ("ppm", image("RGB", "ppm")),
    ("pyd", pickle.dumps(1, 2)),
    ("seg.txt", b"s"),
]
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


def tokens_and_labels(sample):
    return {"input_ids": sample["tokens"], "labels": sample["tokens"], "id": sample["id"], "text": sample["text"]}


def built(path, **options):
    """Index a source in an index that other cases do not have, and open it."""
    out = f"{path}-{hashed(text(sorted(options.items())).encode())}.mmx"
    return mmapds.open(mmapds.build(path, out=out, force=True, **options) and out)


def freeze():
    """Write the archive anew."""
    with tempfile.TemporaryDirectory() as directory, chdir(directory):
        golden.unpack(directory)
        before = set(os.listdir())
        write_sources()
        with zipfile.ZipFile(FILES, "w", zipfile.ZIP_DEFLATED) as files:
            for name in sorted(set(os.listdir()) - before):
                if not name.endswith(".mmx"):
                    files.writestr(zipfile.ZipInfo(name), Path(name).read_bytes(), zipfile.ZIP_DEFLATED)
