"""What was measured, as a table for people."""

from collections.abc import Iterator
from typing import Any

from ..errors import counted
from .choose import name_of

_HEAD = ("", "", "records/s", "MB/s", "wait p50", "wait p99", "own memory", "from disk")


def lines_of(facts: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a whole result."""
    yield f"{facts['title']}: {counted(facts['records'], 'record')}, {facts['bytes'] / 1e6:,.1f} MB, {facts['plan']}"
    rows = [_HEAD, *(row for trial in facts["trials"] for row in rows_of(trial))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    for row in rows:
        pairs = enumerate(zip(row, widths, strict=True))
        cells = [f"{cell:<{width}}" if at < 2 else f"{cell:>{width}}" for at, (cell, width) in pairs]
        yield "  ".join(cells).rstrip()
    fits = "fit into the memory that is available" if facts["fits"] else "do not fit into the memory that is available"
    yield f"The data {fits}, so {facts['recommendation']['pass']} passes count."
    yield facts["recommendation"]["text"]


def rows_of(trial: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each pass of a trial."""
    for name in ("cold", "warm"):
        found = trial[name]
        if found is not None:
            yield (
                name_of(trial) if name == "cold" or trial["cold"] is None else "",
                name,
                f"{found['records_per_second']:,.0f}",
                f"{found['bytes_per_second'] / 1e6:,.1f}",
                _time(found["wait_p50"]),
                _time(found["wait_p99"]),
                _megabytes(found["memory"]),
                _megabytes(found["from_disk"]),
            )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:,.1f} us"


def _megabytes(size: int | None) -> str:
    return "-" if size is None else f"{size / 1e6:,.1f} MB"
