"""What an index covers, in a line."""

from typing import NamedTuple

from ..errors import counted
from ..storage.index_file import Index


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
        sum(_cut(index, number) for number in range(len(index.sources))),
        tuple(index.source_path(number) for number, source in enumerate(index.sources) if not source.records),
    )


def _cut(index: Index, number: int) -> int:
    source = index.sources[number]
    if index.parameters.get("truncated") != "drop" or not source.skipped:
        return 0
    return source.content_size - index.end(number)
