"""Index files that are forged: the header as docs/format.md has it, with fields changed by name."""

import json
import struct
from pathlib import Path

import numpy as np
import xxhash

from mmapds.index.verify import examine

HEADER = struct.Struct("<8sIIQQQQQQ")
FIELDS = ("magic", "version", "header_size", "records", "offset", "length", "file_size", "reserved", "checksum")


def rewrite(path, *, header=None, metadata=None, seal=True):
    """Change fields of an index by name, and make its checksum right again if `seal`.

    `metadata` are the bytes to write instead of its metadata, or what makes new metadata of those that are there.
    """
    data = bytearray(Path(path).read_bytes())
    fields = dict(zip(FIELDS, HEADER.unpack_from(data), strict=True))
    text = bytes(data[fields["offset"] : fields["offset"] + fields["length"]])
    if metadata is not None:
        text = metadata if isinstance(metadata, bytes) else json.dumps(metadata(json.loads(text))).encode()
        data[fields["offset"] :] = text
        fields |= {"length": len(text), "file_size": len(data)}
    fields |= header or {}
    packed = HEADER.pack(*fields.values())
    if seal and "checksum" not in (header or {}):
        digest = xxhash.xxh3_64(packed[:-8] + text).intdigest()
        packed = packed[:-8] + struct.pack("<Q", digest)
    data[: len(packed)] = packed
    Path(path).write_bytes(data)


def forge_section(path, name, numbers):
    """Write other numbers over a section of a file: as many, of the same type; its checksum stays what it was."""
    data = bytearray(Path(path).read_bytes())
    offset, length = HEADER.unpack_from(data)[4:6]
    section = json.loads(data[offset : offset + length])["sections"][name]
    assert (section["dtype"], section["shape"]) == (numbers.dtype.str, [len(numbers)])
    data[section["offset"] : section["offset"] + numbers.nbytes] = numbers.tobytes()
    Path(path).write_bytes(data)


def arrays(by_length):
    """A length order as arrays: the records, the distinct lengths, how many records have each."""
    return by_length.at(np.arange(len(by_length))), by_length.values, by_length.counts


def verify(index):
    """Raise the first problem of an index."""
    for problem in examine(index).problems:
        raise problem.error
