"""Shards of MosaicML's streaming, as its documents have them: a writer that is independent of ours and of theirs."""

import json
import struct
from decimal import Decimal

import numpy as np

SIZES = {"int": 8} | {f"{kind}{8 * size}": size for kind in ("int", "uint", "float") for size in (1, 2, 4, 8)}
CODES = {8: "u1", 9: "i1", 16: "<u2", 17: "<i2", 18: "<f2", 32: "<u4", 33: "<i4", 34: "<f4"}
CODES |= {64: "<u8", 65: "<i8", 66: "<f8"}


def packed_list(values, before=b""):
    """Values of various sizes, behind their number and sizes."""
    return before + struct.pack(f"<{len(values) + 1}I", len(values), *map(len, values)) + b"".join(values)


def packed_array(array, encoding):
    """An array as an encoding `ndarray[:DTYPE[:SHAPE]]` has it."""
    head, given = b"", encoding.count(":")
    if given < 1:
        head += bytes([next(code for code, dtype in CODES.items() if np.dtype(dtype) == array.dtype)])
    if given < 2:
        width = next(k for k in range(4) if max(array.shape, default=0) < 256 ** (1 << k))
        head += bytes([array.ndim << 2 | width]) + np.array(array.shape, f"<u{1 << width}").tobytes()
    return head + array.tobytes()


def packed(value, encoding):
    """A value as its encoding has it. Images are given as bytes."""
    if encoding in SIZES:
        return np.array([value], "int64" if encoding == "int" else encoding).tobytes()
    if encoding.startswith("ndarray"):
        return packed_array(value, encoding)
    if encoding.startswith("list["):
        return packed_list(value, bytes(4))
    if encoding in ("jpegarray", "jpeg_array"):
        return packed_list(value)
    if encoding == "json":
        return json.dumps(value).encode()
    return value if isinstance(value, bytes) else str(value).encode()


def size_of(encoding):
    """The bytes of each value; None if they vary."""
    if encoding.count(":") == 2:
        _, dtype, shape = encoding.split(":")
        return np.dtype(dtype).itemsize * int(np.prod([int(each) for each in shape.split(",")]))
    return SIZES.get(encoding)


def shard(encodings, samples, **config):
    """The bytes of a shard."""
    rows = []
    for sample in samples:
        values = [(packed(sample[name], encoding), size_of(encoding)) for name, encoding in encodings.items()]
        varying = [len(value) for value, size in values if size is None]
        rows.append(struct.pack(f"<{len(varying)}I", *varying) + b"".join(value for value, _ in values))
    return framed(rows, columns(encodings) | config)


def columns(encodings):
    """What the header of a shard says in JSON."""
    names = {"column_names": [*encodings], "column_encodings": [*encodings.values()]}
    return names | {"column_sizes": [*map(size_of, encodings.values())], "format": "mds", "version": 2}


def framed(rows, config):
    """A shard of these samples."""
    text = config if isinstance(config, bytes) else json.dumps(config, sort_keys=True).encode()
    begin = 4 + 4 * (len(rows) + 1) + len(text)
    offsets = np.cumsum([begin, *map(len, rows)])
    return struct.pack("<I", len(rows)) + offsets.astype("<u4").tobytes() + text + b"".join(rows)


EVERY = {
    "bytes": b"\0\xff",
    "str": "é",
    "int": -(2**63),
    **{name: np.dtype(name).type(3) for name in SIZES if name not in ("int", "float8")},
    "json": {"a": [1, None, float("inf")]},
    "str_int": 10**40,
    "str_float": 0.1,
    "str_decimal": Decimal("1.10"),
    "ndarray": np.arange(6, dtype=np.float16).reshape(2, 3),
    "ndarray:uint16": np.arange(300, dtype=np.uint16),
    "ndarray:int64:2,1": np.array([[-1], [2**62]]),
    "pil": b"raw",
    "jpeg": b"jpeg",
    "png": b"png",
    "jpegarray": [b"one", b""],
    "jpeg_array": [],
    "list[pil]": [b"raw"],
    "list[jpeg]": [],
    "list[png]": [b"", b"png"],
}
"""A value of each encoding."""
