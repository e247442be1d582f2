"""Compare saved views with the indexes that they were saved of."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import ColumnError, StaleIndexError
from ..storage.current import check_source, stat_source
from ..storage.index_file import Index
from ..storage.sections import COLUMN
from ..storage.view_file import SavedView, stale_base
from .findings import Findings
from .verify import check_length_order

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_PIECE = 1 << 20  # records checked at a time


def examine_view(view: SavedView) -> Findings:
    """Compare a saved view with the indexes that it was saved of; their own `--verify` compares records with sources.

    That is every row, every number of its columns, and the order of lengths; and their sources, as opening does.
    """
    findings = Findings(view)
    for name in view.sections:
        with findings.catching("sections"):
            view.verify_section(name)
    bases: list[Index] = []
    for number in range(len(view.bases)):
        with findings.catching("indexes", view.base_path(number)):
            bases.append(view.open_base(number))
            for source in range(len(bases[-1].sources)):
                with findings.catching("sources", bases[-1].source_path(source)):
                    check_source_of_view(view, bases[-1], source)
    usable = False
    with findings.catching("rows"):
        _check_rows(view)
        usable = True
    if len(bases) < len(view.bases) or not usable:
        findings.not_checked.append("columns, as the rows or the indexes are not what they were")
    else:
        for name in view.columns:
            _check_column(findings, bases, name)
    with findings.catching("length_order"):
        check_length_order(findings)
    findings.not_checked.append("whether the records lie where the indexes say; their own verify compares them")
    return findings


def check_source_of_view(view: SavedView, base: Index, number: int) -> None:
    """Raise StaleIndexError or SourceError where opening the view would, for a source of one of its indexes."""
    base.readable_path(number)
    found = stat_source(base, number)
    try:
        check_source(base, number, found.st_size, found.st_mtime_ns)
    except StaleIndexError as error:
        raise stale_base(error, view.path) from None


def _check_rows(view: SavedView) -> None:
    """Raise FormatError unless every row is the number of a record."""
    import numpy as np  # start-up time: building an index does without

    if view.is_bits:
        words, before = (np.frombuffer(view.section(name), np.uint64) for name in ("row_bits", "row_ranks"))
        counted = np.empty_like(before)
        _native.bits_count(words, counted)
        if not np.array_equal(counted, before):
            at = int(np.argmax(counted != before))
            raise view.damaged(f"row_ranks[{at}]: expected {counted[at]}, the records before it, found {before[at]}")
    for begin, rows in _rows(view):
        if len(rows) and int(rows.view(np.uint64).max()) >= view.total:
            at = int(np.argmax(rows.view(np.uint64)))
            raise view.damaged(f"rows[{begin + at}] = {rows[at]} is out of range for {view.total} records")


def _rows(view: SavedView) -> "Iterator[tuple[int, NDArray[np.int64]]]":
    """Yield the rows, some at a time, each with its first position."""
    import numpy as np  # start-up time

    if view.is_bits:
        words, before = (np.frombuffer(view.section(name), np.uint64) for name in ("row_bits", "row_ranks"))
        bits = _native.Bits(words, before, view.total, view.map if view.map.is_mapped else None)
    for begin in range(0, view.records, _PIECE):
        end = min(begin + _PIECE, view.records)
        rows = np.arange(begin, end, dtype=np.int64)
        if view.is_bits:
            try:
                bits.select(rows, rows)
            except ValueError:
                raise view.damaged(f"row_bits: expected records below {view.total}, found others") from None
            except EOFError:
                raise view.cut_short() from None
        else:
            section = view.sections["rows"]
            width = np.dtype(section.dtype).itemsize
            data = view.read(section.offset + begin * width, (end - begin) * width)
            rows = np.frombuffer(data, section.dtype).astype(np.int64)
        yield begin, rows


def _check_column(findings: Findings, bases: list[Index], name: str) -> None:
    """Compare a column with those of the bases."""
    import numpy as np  # start-up time

    from ..storage.runs import Numbers

    view = findings.index
    assert isinstance(view, SavedView)
    try:
        column = Numbers([np.frombuffer(data, dtype) for dtype, data in (base.column(name) for base in bases)], name)
    except ColumnError as error:
        findings.add("columns", error)
        return
    stored = np.frombuffer(view.section(COLUMN + name), view.sections[COLUMN + name].dtype)
    for begin, rows in _rows(view):
        expected, found = column.at(rows), stored[begin : begin + len(rows)]

        def describe(at: int, begin: int = begin, expected: Any = expected, found: Any = found) -> tuple[str, int]:
            what = f"column {name!r}: expected {expected[at - begin]} for record {at}, found {found[at - begin]}"
            return what, at

        wrong = np.flatnonzero((expected != found) & ((expected == expected) | (found == found)))
        findings.add_each("columns", (begin + wrong).tolist(), describe)
