"""Files of other libraries' formats, as these or their documents have them."""

import io
import struct
from pathlib import Path

import numpy as np
import tfrecord
from google.protobuf.internal.encoder import _VarintBytes as varint_bytes

from mmapds import _native


def npy(array, **options):
    """The bytes of an .npy file."""
    out = io.BytesIO()
    np.save(out, array, **options)
    return out.getvalue()


def npz(**arrays):
    """The bytes of an .npz file."""
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def write_tfrecords(path, examples):
    """Write a TFRecord file of dicts: name to (value or list of values, "int", "float" or "byte")."""
    writer = tfrecord.TFRecordWriter(str(path))
    for example in examples:
        writer.write(example)
    writer.close()


PREFIXES = {
    "u32le": struct.Struct("<I").pack,
    "u32be": struct.Struct(">I").pack,
    "u64le": struct.Struct("<Q").pack,
    "u64be": struct.Struct(">Q").pack,
    "varint": varint_bytes,
}


def masked(data):
    """The checksum of some bytes as TFRecord has it."""
    crc = _native.crc32c(None, 0, data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def framing(size, name):
    """What lies before a payload: its size, and in a TFRecord the checksum of that."""
    length = struct.pack("<Q", size)
    return length + masked(length) if name == "tfrecord" else PREFIXES[name](size)


def framed(payload, name):
    """A record of a prefix or of TFRecord."""
    return framing(len(payload), name) + payload + (masked(payload) if name == "tfrecord" else b"")


CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}
"""What Megatron's .idx calls the types of tokens."""


def write_documents(path, documents, dtype="uint16"):
    """Write a file of datatrove's and its index; return the path of the .ds."""
    path.write_bytes(b"".join(np.asarray(each, dtype).tobytes() for each in documents))
    Path(f"{path}.index").write_bytes(np.cumsum([len(each) for each in documents]).astype("<u8").tobytes())
    return str(path)


def write_pair(path, sequences, dtype="uint16", kind="megatron"):
    """Write a pair of Megatron's as its layout is documented; return the path of the .bin."""
    sizes = [len(sequence) for sequence in sequences]
    before = np.cumsum([0, *sizes], dtype=np.int64)
    itemsize = np.dtype(dtype).itemsize
    documents = np.arange(len(sizes) + 1, dtype=np.int64)
    path.with_suffix(".bin").write_bytes(b"".join(np.asarray(s, dtype).tobytes() for s in sequences))
    if kind in ("megatron", "fairseq"):
        head = b"MMIDIDX\0\0" + struct.pack("<QBQ", 1, CODES[dtype], len(sizes))
        head += struct.pack("<Q", len(documents)) if kind == "megatron" else b""
        body = np.array(sizes, "<i4").tobytes() + (before[:-1] * itemsize).tobytes()
    else:
        head = b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, CODES[dtype], itemsize, len(sizes), len(sizes))
        head += struct.pack("<Q", len(documents)) if kind == "legacy" else b""
        body = np.arange(len(sizes) + 1).tobytes() + before.tobytes() + np.array(sizes, np.int64).tobytes()
    tail = documents.tobytes() if kind in ("megatron", "legacy") else b""
    path.with_suffix(".idx").write_bytes(head + body + tail)
    return str(path.with_suffix(".bin"))
