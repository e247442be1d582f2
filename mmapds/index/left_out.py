"""What an index leaves out: refused where that is everything, and named where it is bad lines, tars or their ends."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice

from .. import _native
from ..compression.plain import opened
from ..errors import ColumnError, DecodeError, SourceError, counted, either
from ..formats.compressed_tars import StoppedError, Walk
from ..formats.format import Format
from ..formats.jsonl import JsonLines
from ..formats.measuring import Measuring
from ..storage.index_file import Index
from ..storage.sections import IndexedSource
from ..storage.sources import Source

_SHOWN = 5  # bad lines that are named
_LONGEST = 64 << 20  # bytes of a line that are read to say what is wrong
_PIECE = 1 << 20  # bytes behind the end of a tar that are looked at at a time
_LOOKED_AT = 1000  # lines of a source among which one is sought that explains an error


def check_something_is_left(
    chosen: Format, sources: Sequence[Source], measuring: Measuring, done: Sequence[IndexedSource], filled: list[int]
) -> None:
    """Raise an error where the options leave out all records, or none has a column.

    Args:
      done: the sources as the index will have them.
      filled: for each column, how many records have the number that stands for missing ones.
    """
    records, skipped = sum(source.records for source in done), sum(source.skipped for source in done)
    bad = sum(source.bad.lines for source in done)
    columns = list(measuring.columns.values())
    empty = [column for column, count in zip(columns, filled, strict=False) if count == records > 0]
    if not chosen.is_text or not (empty or (skipped and not records)):
        return
    from ..formats.unmeasured import error_of_all, lacks, not_json  # start-up time: only an error needs it

    lines = ((source.path, line) for source in sources for line in _lines(source.path))
    path, first = next(lines, (sources[0].path, b""))
    if skipped and bad == skipped and not records:
        raise DecodeError(
            f"{path}: expected JSON in one line or more, found it in 0 of {bad:,}: the first one is {not_json(first)}; "
            f"give {either('--format F', 'format=...')} if it is not JSON Lines"
        )
    for source in sources:
        for line in islice(_lines(source.path), _LOOKED_AT):
            for column in (empty or columns) if _native.json_error(None, line) is None else ():
                if lacks(line, column):
                    count, of = records or skipped - bad, "it" if empty or len(columns) == 1 else "all columns"
                    raise error_of_all(source.path, line, f"0 of {count:,} with {of}", column)
    raise ColumnError(f"{path}: expected one record or more with all columns, found 0 of {skipped:,}")


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a source that are not blank; at its begin alone, a byte order mark is."""
    with opened(path) as file:
        mark = b"\xef\xbb\xbf"
        while line := file.readline(_LONGEST):
            if stripped := line.removeprefix(mark).strip(b" \t\r\n"):
                yield stripped
            mark = b""


def bad_lines(index: Index) -> list[str]:
    """Return a message for each of the first bad lines that an index leaves out, and one for the others."""
    from ..formats.unmeasured import not_json  # start-up time: few indexes leave lines out

    found: list[str] = []
    total = sum(source.bad.lines for source in index.sources)
    for number, source in enumerate(index.sources):
        path = index.source_path(number)
        for line, byte in source.bad.first[: _SHOWN - len(found)]:
            what = "not JSON"
            with suppress(SourceError), opened(index.absolute(path)) as file:
                file.seek(byte)
                what = not_json(file.readline(_LONGEST).rstrip())
            found.append(f"{path}:{line} (byte {byte}): {what}; left out")
    left = total - len(found)
    are = "is" if left == 1 else "are"
    more = [f"{index.path}: {counted(left, 'more line')} {are} not JSON; left out"] if left > 0 else []
    return found + more


def lacking_lines(index: Index) -> list[str]:
    """Return a message for each of the first records that an index leaves out for want of a column, and for the others.

    An index only counts them. So the begin of each source is read again, and if none lies there, none is named.
    """
    total = sum(source.skipped - source.bad.lines for source in index.sources)
    if not total or index.measuring["missing"] != "skip" or index.format != JsonLines.name:
        return []
    from ..formats.unmeasured import what_lacks  # start-up time: few indexes leave records out

    columns = list(Measuring.of(index.measuring).columns.values())
    found: list[str] = []
    for number, source in enumerate(index.sources):
        if source.skipped == source.bad.lines:
            continue
        path = index.source_path(number)
        with suppress(SourceError), opened(index.absolute(path)) as file:
            byte = 0
            for line in range(1, _LOOKED_AT + 1):
                record = file.readline(_LONGEST)
                if what := what_lacks(record.removeprefix(b"\xef\xbb\xbf").strip(), columns):
                    found.append(f"{path}:{line} (byte {byte}): {what}; left out")
                byte += len(record)
                if not record or len(found) == _SHOWN:
                    break
        if len(found) == _SHOWN:
            break
    left = total - len(found)
    lack = "lacks" if left == 1 else "lack"
    more = f"{index.path}: {counted(left, 'more record')} {lack} a value; left out"
    return [*found, more] if found and left > 0 else found


def without_samples(index: Index) -> list[str]:
    """Return the tars of an index that have members, but no sample."""
    return [
        index.source_path(number)
        for number, source in enumerate(index.sources if index.format == "tar" else ())
        if not source.records and not source.skipped and _has_members(index.absolute(index.source_path(number)))
    ]


def behind_ends(index: Index, numbers: Iterable[int]) -> list[str]:
    """Return a message for each tar that has more than zeros behind its end, which no reader of tars looks at.

    Args:
      numbers: of the sources to look at; those that are compressed are passed over.
    """
    found = []
    for number in numbers if index.format == "tar" else ():
        source = index.sources[number]
        if source.compression is not None or source.skipped or not source.records:
            continue
        path = index.source_path(number)
        at = _first_byte(index.absolute(path), index.end(number))
        if at is not None:
            found.append(
                f"{path}: passed over {counted(source.size - at, 'byte')} behind the end of the archive, from byte "
                f"{at} on, as tar and webdataset do; give archives that cat joined as files of their own"
            )
    return found


def _first_byte(path: str, begin: int) -> int | None:
    """Return where the first byte lies behind the end of a tar that is not zero; None if all are.

    Args:
      begin: where its last sample ends, behind which there may be members without a key.
    """
    walk = Walk()
    with opened(path, "") as file, suppress(StoppedError):
        file.seek(begin)
        while walk.end is None:
            piece = file.read(_PIECE)
            walk.add(piece, is_last=len(piece) < _PIECE)
        begin += walk.end.at
        file.seek(begin)
        while piece := file.read(_PIECE):
            if rest := piece.lstrip(b"\0"):
                return begin + len(piece) - len(rest)
            begin += len(piece)
    return None


def _has_members(path: str) -> bool:
    """Whether the content of a tar begins with a member, and not with the zeros at its end."""
    with opened(path) as file:
        return file.read(1) not in (b"", b"\0")
