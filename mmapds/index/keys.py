"""Finding records by key: the index holds hashes, the sources hold the keys.

  key_records   u32 or u64: record numbers, sorted by the hash of their key, falling; equal hashes by record number
  key_hashes    u32: those hashes, in the same order

A lookup is a binary search in the file, followed by a read of the one or two records that have the hash. It takes no
memory, whatever the number of records.
"""

import mmap
import sys
from collections.abc import Callable, Iterator

from .. import _native
from ..errors import FormatError
from ..storage.index_file import Index
from ..storage.numbers import BY_DTYPE, U32, U64, Spool, order_type, sort_digits
from ..storage.writer import IndexWriter

_PIECE = 1 << 20  # hashes written at a time


def write_keys(writer: IndexWriter, spool: Spool) -> None:
    """Append the sections above to an index.

    Radix passes of the core sort them in scratch memory, which is a file above 16 MB.

    Args:
      spool: the hash of every record's key, 32 bits.
    """
    import numpy as np  # start-up time: most formats have no keys

    count = spool.count
    order_dtype, width, *_ = order_type(count)
    if not count:
        writer.write_array("key_records", order_dtype, b"")
        writer.write_array("key_hashes", U32.dtype, b"")
        return
    hashes = writer.scratch(U32.width * count)
    with writer.writing():
        for chunk in spool.chunks():
            hashes.write(chunk)
    order, spare = (writer.scratch(count * width) for _ in range(2))
    sort_digits(hashes, U32.width, 32, order, width, spare)
    writer.write_array("key_records", order_dtype, order)
    writer.begin_section("key_hashes", U32.dtype)
    by_record, ordered = np.frombuffer(hashes, U32.dtype), np.frombuffer(order, order_dtype)
    for begin in range(0, count, _PIECE):
        writer.write(by_record[ordered[begin : begin + _PIECE]].data)


def candidates(index: Index, key: str) -> Iterator[int]:
    """Yield the records whose keys have the same hash as `key`, in ascending order.

    Raises:
      FormatError: the index has no keys, or they are damaged.
    """
    if not has_keys(index):
        raise FormatError(
            f"{index.path}: expected records with keys (format 'tar'), found format {index.format!r}; use ds[i] with a "
            "number"
        )
    hashes, records = index.sections["key_hashes"], index.sections["key_records"]
    width = BY_DTYPE[records.dtype].width
    try:
        wanted = _native.tar_hash(key.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # a lone surrogate that no bytes decode to
        return
    for at in range(index.count_above("key_hashes", wanted), index.records):
        if index.read(hashes.offset + at * U32.width, U32.width) != wanted.to_bytes(U32.width, sys.byteorder):
            return
        record = int.from_bytes(index.read(records.offset + at * width, width), sys.byteorder)
        if record >= index.records:
            raise index.damaged(f"key_records[{at}] = {record} is out of range for {index.records} records")
        yield record


def has_keys(index: Index) -> bool:
    """Whether records can be found by key."""
    return "key_hashes" in index.sections


def copy_hashes(by_record: mmap.mmap, records: range, spool: Spool) -> None:
    """Append the hash of each record's key, of some records of an index, to those of another one.

    Args:
      by_record: what `hashes_by_record` returns for the index that has them.
    """
    for begin in range(records.start, records.stop, _PIECE):
        piece = memoryview(by_record)[begin * U32.width : min(begin + _PIECE, records.stop) * U32.width]
        cells = memoryview(bytearray(len(piece) // U32.width * U64.width)).cast("Q")
        _native.cells_widen(piece, cells)
        spool.append(U64.cell, cells)


def hashes_by_record(index: Index, scratch: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """Return the hash of every record's key, u32.

    Args:
      scratch: returns memory for them.
    Raises:
      FormatError: the keys are damaged.
    """
    import numpy as np  # start-up time: most formats have no keys

    hashes, records = index.sections["key_hashes"], index.sections["key_records"]
    number_type = BY_DTYPE[records.dtype]
    for name in ("key_hashes", "key_records"):
        index.verify_sections(name)
    memory = scratch(index.records * U32.width)
    by_record = np.frombuffer(memory, U32.dtype)
    for begin in range(0, index.records, _PIECE):
        count = min(_PIECE, index.records - begin)
        found = index.read(records.offset + begin * number_type.width, count * number_type.width)
        numbers = np.frombuffer(found, number_type.dtype)
        if (largest := int(numbers.max())) >= index.records:
            raise index.damaged(f"key_records: {largest} is out of range for {index.records} records")
        by_record[numbers] = np.frombuffer(index.read(hashes.offset + begin * U32.width, count * U32.width), U32.dtype)
    return memory
