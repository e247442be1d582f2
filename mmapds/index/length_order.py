"""Records in order of length, which is all that a plan of batches needs; sorted once, in the core."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _native
from ..errors import ColumnError, FormatError
from ..storage.index_file import LENGTH_SECTIONS
from ..storage.numbers import AT_ONCE, BY_DTYPE, U32, U64, order_bytes, order_type, sort
from ..storage.sections import COLUMN
from ..storage.spool import scratch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..storage.index_file import Index
    from ..storage.writer import SectionWriter
    from .findings import Findings
    from .stored import Stored

_PIECE = 1 << 20  # records checked at a time
_WORTH_MERGING = 2  # record numbers that are read for each record; sorting takes as long


class OrderedPart(NamedTuple):
    """Consecutive records of an index that is being written."""

    records: int
    stored: "Stored | None" = None
    """Where they come from; the index there has their order, too."""


def write_length_order(writer: "SectionWriter", parts: Sequence[OrderedPart] = ()) -> None:
    """Append to an index that has a column 'length' the sections that samplers read instead of sorting:

      length_order    u32 or u64: record numbers, the longest first, equally long ones in ascending order
      length_values   u64: the distinct lengths, falling
      length_counts   u64: how many records have each

    Args:
      parts: all records, where other indexes have the order of some: these orders are merged, not sorted again, unless
        they would be read too often, each whole for every part of it.
    Raises:
      ColumnError: the column has negative or fractional numbers.
      FormatError: the order of one of these indexes is damaged.
    """
    dtype, data = writer.column("length")
    number_type = BY_DTYPE[dtype]
    if number_type not in (U32, U64):
        raise _not_lengths(data.cast(number_type.code))
    count = len(data) // number_type.width
    order_dtype, order_width, *_ = order_type(count)
    if count:
        order = writer.scratch(count * order_width)
        found = _merged(writer, data, number_type.width, parts, order) if _is_worth_merging(parts) else None
        if found is None:
            found = sort(data, number_type.width, order, order_width, writer.scratch(count * order_width))
        values, counts = found
        writer.write_array("length_order", order_dtype, order)
    else:
        values, counts = b"", b""
        writer.write_array("length_order", order_dtype, b"")
    writer.write_array("length_values", U64.dtype, values)
    writer.write_array("length_counts", U64.dtype, counts)


def _not_lengths(numbers: Iterable[float]) -> ColumnError:
    """Return the error to raise for a column of signed integers or floats."""
    for record, number in enumerate(numbers):
        if not number >= 0 or number % 1:
            return ColumnError(
                f"column 'length': expected integers of 0 or more, found {number}; give a field of integers, compute "
                "them with mmapds.add_column, as milliseconds, or give the column another name "
                f"(record {record} of the index)"
            )
    return ColumnError(
        "column 'length': expected integers, found whole numbers with a fraction or an exponent, as 5.0 for 5; write "
        "them as integers, or add the column with mmapds.add_column, which takes whole floats"
    )


def _is_worth_merging(parts: Sequence[OrderedPart]) -> bool:
    """Whether orders of other indexes are merged faster than all records are sorted."""
    read = sum(part.stored.base.records for part in parts if part.stored)
    return 0 < read <= _WORTH_MERGING * sum(part.records for part in parts)


def _merged(
    writer: "SectionWriter", data: memoryview, width: int, parts: Sequence[OrderedPart], out: Any
) -> tuple[bytes, bytes] | None:
    """Fill `out` with the order of all records, from the orders of the parts; return what `sort` does.

    One stable scatter: the counts of the parts add up, which says where the run of each length begins, and each part in
    turn appends its own run to it. None where there are lengths of more than 20 bits: runs are short then.
    """
    import numpy as np  # start-up time: most indexes are not made from others

    lengths = np.frombuffer(data, f"<u{width}")
    firsts = list(accumulate((part.records for part in parts), initial=0))
    counts = _added(lengths, parts, firsts)
    if counts is None:
        return None
    ends = np.cumsum(counts[::-1])[::-1].astype(np.uint64)
    places = ends - counts.astype(np.uint64)
    stored = next(part.stored.base for part in parts if part.stored)
    for part, first in zip(parts, firsts, strict=False):
        if part.stored is not None:
            taken = (part.stored.records.start, part.stored.records.stop, first)
            with _reporting_damage(part.stored.base) as base:
                pieces = base.checked_pieces("length_order")
                order_width = BY_DTYPE[base.sections["length_order"].dtype].width
                _scatter(_distinct(base), pieces, order_width, taken, places, out, order_bytes(len(lengths)))
        elif part.records:
            own = order_bytes(part.records)
            order, spare = (writer.scratch(part.records * own) for _ in range(2))
            found = sort(lengths[first : first + part.records], width, order, own, spare)
            values, each = (np.frombuffer(numbers, np.uint64) for numbers in found)
            with _reporting_damage(stored):  # whose records may have taken the places of these
                _scatter((values, each), [order], own, (0, part.records, first), places, out, order_bytes(len(lengths)))
    if not np.array_equal(places, ends):
        raise stored.damaged(
            "length_order, of this part or of another: expected the records of each length, found others"
        )
    return _native.lengths_runs_of(ends.data)


def _added(lengths: "NDArray[Any]", parts: Sequence[OrderedPart], firsts: Sequence[int]) -> "NDArray[np.int64] | None":
    """Return how many records have each length, shape (largest + 1,); None if one has more than 20 bits."""
    import numpy as np  # start-up time: most builds do without

    counts = np.zeros(1 << AT_ONCE, np.int64)
    for part, first in zip(parts, firsts, strict=False):
        if part.stored is None:
            fits = _count(lengths[first : first + part.records], counts, 1)
        else:
            with _reporting_damage(part.stored.base) as base:
                values, each = _distinct(base)
                fits = not len(values) or int(values[0]) < len(counts)
                if fits:
                    counts[values] += each.astype(np.int64)
                    dtype, data = base.column("length")
                    own, records = np.frombuffer(data, dtype), part.stored.records
                    fits = _count(own[: records.start], counts, -1) and _count(own[records.stop :], counts, -1)
        if not fits:
            return None
    (used,) = np.nonzero(counts)
    if counts.min() < 0 or int(counts.sum()) != len(lengths):
        base = next(part.stored for part in parts if part.stored).base
        raise base.damaged(f"length_counts, of this part or of another: expected {len(lengths)} records in all")
    return counts[: int(used[-1]) + 1]


def _count(lengths: "NDArray[Any]", counts: "NDArray[np.int64]", sign: int) -> bool:
    """Add to the counts how many lengths there are of each, or subtract that; return False if one has no count."""
    import numpy as np  # start-up time: most builds do without

    for begin in range(0, len(lengths), _PIECE):
        piece = lengths[begin : begin + _PIECE]
        if int(piece.max()) >= len(counts):
            return False
        found = np.bincount(piece.astype(np.int64))
        counts[: len(found)] += sign * found
    return True


def _distinct(index: "Index") -> "tuple[NDArray[np.uint64], NDArray[np.uint64]]":
    """Return the distinct lengths of an index, falling, and how many records have each.

    Raises:
      KeyError, ValueError: it does not say so.
    """
    import numpy as np  # start-up time: most builds do without

    read = [b"".join(index.checked_pieces(name)) for name in ("length_values", "length_counts")]
    values, counts = (np.frombuffer(numbers, np.uint64) for numbers in read)
    if len(values) != len(counts) or (values[1:] >= values[:-1]).any():
        found = f"{values[:8].tolist()} and {counts[:8].tolist()}"
        raise ValueError(f"expected falling lengths, each with a count, found {found}")
    return values, counts


@contextmanager
def _reporting_damage(index: "Index") -> "Iterator[Index]":
    """Report sections that do not fit one another as FormatError; yield the index."""
    try:
        yield index
    except KeyError as error:
        raise index.damaged(f"expected section {error} beside column 'length', found none") from None
    except (ValueError, IndexError) as error:
        if isinstance(error, FormatError):
            raise
        raise index.damaged(f"length_order, length_values and length_counts do not agree: {error}") from None


def _scatter(
    distinct: "tuple[NDArray[np.uint64], NDArray[np.uint64]]",
    pieces: Iterable[Any],
    width: int,
    taken: tuple[int, int, int],
    places: "NDArray[np.uint64]",
    out: Any,
    out_width: int,
) -> None:
    """Scatter the order of a part over that of all records.

    Args:
      distinct: the lengths in it, and how many records have each.
      pieces: the order, record numbers of `width` bytes.
      taken: the first and the end of the record numbers that are taken, and what the first of them becomes.
      places: for each length, where its next record goes in `out`; advanced.
    """
    import numpy as np  # start-up time: most builds do without

    values, counts = distinct
    known = values < len(places)  # a record that is not taken may be longer than all that are
    left, own = counts.copy(), np.full(len(values), 2**64 - 1, np.uint64)
    own[known] = places[values[known]]
    for piece in pieces:
        _native.runs_scatter(order=piece, width=width, left=left, places=own, taken=taken, out=out, out_width=out_width)
    places[values[known]] = own[known]


def check_length_order(findings: "Findings") -> None:
    """Compare the sections above with the order of the column of lengths, which is sorted again for this.

    Raises:
      FormatError: the lengths are not integers of 0 or more.
    """
    index = findings.index
    if "length_order" not in index.sections:
        return
    number_type = BY_DTYPE[index.sections[COLUMN + "length"].dtype]
    if number_type not in (U32, U64):
        raise index.damaged(f"column 'length': expected integers of 0 or more, found type {number_type.dtype}")
    order_dtype, width, *_ = order_type(index.records)
    order, spare = (scratch(max(index.records, 1) * width) for _ in range(2))
    values = counts = b""
    if index.records:
        values, counts = sort(index.section(COLUMN + "length"), number_type.width, order, width, spare)
    numbers = memoryview(order)[: index.records * width], memoryview(values), memoryview(counts)
    for name, dtype, found in zip(LENGTH_SECTIONS, (order_dtype, U64.dtype, U64.dtype), numbers, strict=True):
        pieces = (found[begin : begin + _PIECE] for begin in range(0, len(found), _PIECE))
        findings.compare("length_order", name, dtype, len(found) // BY_DTYPE[dtype].width, pieces)
