"""Looking records up by key: the index holds hashes, the sources hold the keys.

  key_records   u32 or u64: record numbers, in falling order of the hash of their key, equal hashes in ascending order
  key_hashes    u32: those hashes

A lookup is a binary search in a map, and then reads the record or two that have the hash: no memory, whatever the
number of records.
"""

from bisect import bisect_left
from collections.abc import Iterator
from operator import neg
from typing import TYPE_CHECKING

from .. import _native
from ..errors import FormatError
from ..storage.sort import order_bytes, sort_digits

if TYPE_CHECKING:
    from ..storage.index_file import Index, IndexWriter
    from ..storage.spool import Spool

_PIECE = 1 << 20  # hashes put in order at a time


def write_keys(writer: "IndexWriter", spool: "Spool") -> None:
    """Append to an index the sections above, made of the hash of every record's key.

    Sorted by radix passes of the core in scratch memory, which is a file's where it is much.
    """
    import numpy as np

    count = spool.count
    width = order_bytes(count)
    if not count:
        writer.write_array("key_records", f"<u{width}", b"")
        writer.write_array("key_hashes", "<u4", b"")
        return
    hashes = writer.scratch(4 * count)
    with writer.writing():
        for chunk in spool.chunks():
            hashes.write(chunk)
    order, spare = (writer.scratch(count * width) for _ in range(2))
    sort_digits(hashes, 4, 32, order, width, spare)
    writer.write_array("key_records", f"<u{width}", order)
    writer.begin_section("key_hashes", "<u4")
    by_record, numbers = np.frombuffer(hashes, "<u4"), np.frombuffer(order, f"<u{width}")
    for begin in range(0, count, _PIECE):
        writer.write(by_record[numbers[begin : begin + _PIECE]].data)


def candidates(index: "Index", key: str) -> Iterator[int]:
    """Yield the records of an index whose keys have the hash of `key`, in ascending order.

    Raises:
      FormatError: the index has no keys, or they are damaged.
    """
    if "key_hashes" not in index.sections or "key_records" not in index.sections:
        raise FormatError(f"{index.path}: its records have no keys; only those of tars do, expected a number")
    hashes, records = (index.section(name) for name in ("key_hashes", "key_records"))
    hashes, records = hashes.cast("I"), records.cast("I" if index.sections["key_records"].dtype == "<u4" else "Q")
    if len(hashes) != index.records or len(records) != index.records:
        raise index.damaged(f"expected {index.records} keys, found {len(hashes)} hashes and {len(records)} records")
    try:
        wanted = _native.tar_hash(key.encode(errors="surrogateescape"))
    except UnicodeEncodeError:  # no bytes are read as such text
        return
    for at in range(bisect_left(hashes, -wanted, key=neg), len(hashes)):
        if hashes[at] != wanted:
            return
        if records[at] >= index.records:
            raise index.damaged(f"a key is of record {records[at]}, expected less than {index.records}")
        yield records[at]
