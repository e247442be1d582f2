"""The sections on waits: what a loader delivers here without a trainer, and what a training run waited for."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ..errors import FormatError, either, shortened
from ..storage.sources import StrPath, reason

Facts = dict[str, Any]
_NUMBERS = ("batches", "records", "seconds", "wait", "wait_p50", "wait_p99", "wait_max", "stalls")
"""What each record of a run must have, as `DataLoader.stats()` returns it."""

_LARGEST = 1 << 26  # bytes of a file
_TOO_LARGE = 1e15  # for a number of a run


def loader_facts(measured: Facts) -> Facts:
    """Return what a report shows of `mmapds.bench`: the loaders that were tried, and which one to use."""
    ways = [each for each in measured["trials"] if each["kind"] in ("threads", "processes")]
    names = ("records_per_second", "wait_p50", "wait_p99", "memory")
    return {
        "plan": measured["plan"],
        "cores": measured["cores"],
        "seconds": measured["seconds"],
        "ways": [
            {"kind": each["kind"], "workers": each["workers"]}
            | {
                which: None if each[which] is None else {name: each[which][name] for name in names}
                for which in ("cold", "warm")
            }
            for each in ways
        ],
        "recommendation": measured["recommendation"],
    }


def training_facts(paths: Iterable[StrPath]) -> Facts:
    """Return what the records of a training run say, as each rank writes them: see docs/report.md.

    Raises:
      FormatError: a file cannot be read, or has something else.
    """
    records = [record for path in paths for record in _read(str(path))]
    ranks = [_of_rank(rank, records) for rank in sorted({record["rank"] for record in records})]
    seconds, wait = (sum(each[name] for each in ranks) for name in ("seconds", "wait"))
    return {"ranks": ranks, "seconds": seconds, "wait": wait, "waiting": wait / seconds if seconds else 0.0}


def _of_rank(rank: int, records: Sequence[Facts]) -> Facts:
    own = [record for record in records if record["rank"] == rank]
    total = {name: sum(record[name] for record in own) for name in ("batches", "records", "seconds", "wait", "stalls")}
    worst = {name: max(record[name] for record in own) for name in ("wait_p50", "wait_p99", "wait_max")}
    return {
        "rank": rank,
        "passes": len(own),
        **total,
        **worst,
        "waiting": total["wait"] / total["seconds"] if total["seconds"] else 0.0,
    }


def _read(path: str) -> list[Facts]:
    """Return the records in a file: an object, a list of them, or one on each line."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        another = either("--waits FILE", "waits=...")
        raise FormatError(f"{path}: cannot read the waits of a run ({reason(error)}); give another {another}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not JSON: {error.reason} at byte {error.start}") from None
    except ValueError:
        raise FormatError(f"waits = {path!r}, expected the path of a file") from None
    if len(text) > _LARGEST:
        raise FormatError(f"{path}: expected up to {_LARGEST} characters, found more")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = [_line(path, number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    records = found if isinstance(found, list) else [found]
    if not records:
        raise FormatError(f"{path}: expected one record or more, found 0")
    return [_checked(path, number, record) for number, record in enumerate(records)]


def _line(path: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: line {number}: not JSON: {error}") from None


def _checked(path: str, number: int, record: Any) -> Facts:
    """Return a record with the numbers that are needed; the rank is 0 where there is none."""
    if not isinstance(record, dict):
        raise FormatError(f"{path}: record {number}: expected an object, found {type(record).__name__}")
    found: Facts = {}
    for name, value in {"rank": 0, **record}.items():
        if name in (*_NUMBERS, "rank"):
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 <= value < _TOO_LARGE:  # NaN neither
                raise FormatError(
                    f"{path}: record {number}: {name}: expected a number of 0 or more, found {shortened(value, 40)}"
                )
            found[name] = value
    missing = [name for name in _NUMBERS if name not in found]
    if missing:
        raise FormatError(
            f"{path}: record {number}: expected {', '.join(_NUMBERS)}, as loader.stats() has them, found none of "
            f"{', '.join(missing)}"
        )
    return found
