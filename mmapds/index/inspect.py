"""What an index covers, and whether its sources are what they were."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ..errors import Error, SourceError, StaleIndexError, counted
from ..storage import current
from ..storage.index_file import Index, SavedView
from ..storage.sections import SavedViewFoundError
from ..storage.sources import Roots, index_path

LISTED = 20
"""Bad lines that are listed."""
_OUTSIDE = "OUTSIDE, not looked at; give its directory with --root if you trust who made the index"


class Summary(NamedTuple):
    """What an index covers."""

    path: str
    sources: int
    records: int
    size: int
    """Bytes in the sources, as they lie on the disk."""
    content: int
    """Bytes of their content: as many, but for compressed sources."""
    extent: int
    """Bytes that the records take there, without headers and whatever else a format has before and behind them."""
    smallest: int
    largest: int
    """Sizes of records in bytes, line ends, following blank lines and records left out included; 0 without records."""
    columns: tuple[str, ...]
    """Names, each with its expression if it has one."""
    skipped: int
    """Records that were left out."""
    bad: int
    """How many of them are lines that are not JSON."""
    first_bad: str
    """The place of the first one."""
    cut: int
    """Bytes of a truncated last record that was left out."""
    empty: tuple[str, ...]
    """The sources that have no record."""

    @property
    def sizes_have_left_out(self) -> bool:
        """Whether records that were left out lie behind others, and count in the sizes of these."""
        return self.skipped > bool(self.cut)

    def __str__(self) -> str:
        mean = self.extent / self.records if self.records else 0.0
        decoded = f", {self.content:,} decoded" if self.content != self.size else ""
        sources = f" in {self.sources:,} sources" if self.sources > 1 else ""
        columns = f"; {', '.join(self.columns)}" if self.columns else ""
        bad = f" ({self.bad:,} not JSON)" if self.bad else ""
        skipped = f"; {counted(self.skipped, 'record')} left out{bad}" if self.skipped else ""
        between = ", records left out included" if self.sizes_have_left_out else ""
        cut = f", the last {counted(self.cut, 'byte')}" if self.cut else ""
        return (
            f"{self.path}: {counted(self.records, 'record')}{sources}, {counted(self.size, 'byte')}{decoded}, "
            f"{mean:.1f} bytes a record ({self.smallest:,} to {self.largest:,}{between}){columns}{skipped}{cut}"
        )


def summarise(index: Index) -> Summary:
    """Return what an index covers, from its metadata and the bounds at both ends of each source."""
    expressions = index.measuring["expressions"]
    return Summary(
        index.path,
        len(index.sources),
        index.records,
        sum(source.size for source in index.sources),
        sum(source.content_size for source in index.sources),
        sum(index.extent(number) for number in range(len(index.sources))),
        min((source.smallest for source in index.sources if source.records), default=0),
        max((source.largest for source in index.sources), default=0),
        tuple(f"{name} = {expressions[name]}" if name in expressions else name for name in index.columns),
        sum(source.skipped for source in index.sources),
        sum(source.bad.lines for source in index.sources),
        next(bad_lines(index), ""),
        sum(_cut(index, number) for number in range(len(index.sources))),
        tuple(index.source_path(number) for number, source in enumerate(index.sources) if not source.records),
    )


def _cut(index: Index, number: int) -> int:
    source = index.sources[number]
    if index.parameters.get("truncated") != "drop" or not source.skipped:
        return 0
    return source.content_size - index.end(number)


class State(NamedTuple):
    """Whether a source of an index, or an index of a saved view, is as it was."""

    word: str
    text: str
    """What people read in a list."""
    error: Error | None = None
    """What opening raises."""


def opened(path: str, roots: Roots) -> Index | SavedView:
    """Open the index of a source, or a saved view; raises as they do."""
    try:
        index = Index(index_path(path), roots)
    except SavedViewFoundError:
        return SavedView(index_path(path), roots)
    index.check_covers(path)
    return index


def states_of(index: Index | SavedView) -> list[State]:
    """Return the state of each source of an index, or of each index of a saved view."""
    if isinstance(index, SavedView):
        return [_state_of_base(index, number) for number in range(len(index.bases))]
    return [state_of(index, number) for number in range(len(index.sources))]


def state_of(index: Index, number: int) -> State:
    """Return whether a source is as it was when it was indexed."""
    try:
        index.readable_path(number)
    except SourceError:  # not a problem: people look at an index of others before they trust it
        return State("outside", _OUTSIDE)
    try:
        found = current.check_now(index, number)
    except StaleIndexError as error:
        return State("stale", str(error).removeprefix(f"{index.path}: "), error)
    except SourceError as error:
        what = str(error).removeprefix(f"{index.source_path(number)}: ").removesuffix(f" (a source of {index.path})")
        return State("missing", f"MISSING: {what.partition('; run: ')[0]}", error)
    if found.st_mtime_ns == index.sources[number].mtime_ns:
        return State("unchanged", "unchanged")
    return State("touched", "another time, the same fingerprint")


def _state_of_base(view: SavedView, number: int) -> State:
    """Return whether an index and its sources are as a saved view needs them."""
    path = view.base_path(number)
    try:
        base = view.open_base(number)
        for source in range(len(base.sources)):
            current.check_now(base, source)
    except StaleIndexError as error:
        return State("stale", str(error).removeprefix(f"{view.path}: ").removeprefix(f"{path}: "), error)
    except Error as error:
        return State("unusable", str(error), error)
    return State("unchanged", "unchanged")


def bad_lines(index: Index) -> Iterator[str]:
    """Yield the places of the first lines that are not JSON and were left out, up to 20 of each source."""
    for number, source in enumerate(index.sources):
        for line, byte in source.bad.first:
            yield f"{index.source_path(number)}:{line} (byte {byte})"


def describe(index: Index | SavedView, states: Sequence[State]) -> dict[str, Any]:
    """Return what an index covers, as JSON; docs/checks.md lists the keys.

    Args:
      states: of each source, or of each index of a saved view.
    """
    if isinstance(index, SavedView):
        bases = [
            {"path": index.base_path(number), "records": base.records, "state": state.word, "message": state.text}
            for number, (base, state) in enumerate(zip(index.bases, states, strict=True))
        ]
        columns = dict.fromkeys(index.columns)
        return {"format": "view", "records": index.records, "columns": columns, "indexes": bases}
    summary, expressions = summarise(index), index.measuring["expressions"]
    sources: list[dict[str, Any]] = []
    for number, (source, state) in enumerate(zip(index.sources, states, strict=True)):
        sources.append({"path": index.source_path(number), "records": source.records, "bytes": source.size})
        if source.bad.lines:
            sources[-1]["bad"] = [{"line": line, "byte": byte} for line, byte in source.bad.first]
        sources[-1] |= {"state": state.word, "message": state.text}
    return {
        "format": index.format,
        "parameters": _parameters(index),
        "records": index.records,
        "bytes": summary.size,
        "smallest": summary.smallest,
        "largest": summary.largest,
        "left_out": summary.skipped,
        "bad": summary.bad,
        "columns": {name: expressions.get(name) for name in index.columns},
        "hashed": all(source.xxh3_128 for source in index.sources),
        "sources": sources,
    }


def format_of(index: Index) -> str:
    """Return the format of an index and its parameters, in a line."""
    return ", ".join([index.format, *(f"{name} {value}" for name, value in _parameters(index).items())])


def _parameters(index: Index) -> dict[str, Any]:
    return {name: value for name, value in index.parameters.items() if name not in ("columns", "idx")}
