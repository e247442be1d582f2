"""Facts of waits for data: of loaders that `mmapds.bench` measured, and of a training run."""

import json
from collections.abc import Iterable
from typing import Any

from ..errors import FormatError, either, shortened
from ..storage.sources import reason
from .lengths import Facts

_SUMS = ("batches", "records", "seconds", "wait", "stalls")
_WORST = ("wait_p50", "wait_p99", "wait_max")
_TOO_LARGE = 1e15


def loader_facts(measured: Facts) -> Facts:
    """Return the loaders that `mmapds.bench` tried, and its recommendation."""
    names = ("records_per_second", "wait_p50", "wait_p99", "memory")
    ways = [
        {"kind": trial["kind"], "workers": trial["workers"]}
        | {which: trial[which] and {name: trial[which][name] for name in names} for which in ("cold", "warm")}
        for trial in measured["trials"]
        if trial["kind"] in ("threads", "processes")
    ]
    return {name: measured[name] for name in ("plan", "cores", "seconds", "recommendation")} | {"ways": ways}


def training_facts(paths: Iterable[str]) -> Facts:
    """Return what the ranks of a training run waited for.

    Args:
      paths: files in which each line is a JSON object: `rank`, and what `loader.stats()` returns.
    Raises:
      FormatError: a file cannot be read, or holds something else.
    """
    passes: dict[int, list[Facts]] = {}
    for path in paths:
        for found in _read(path):
            passes.setdefault(found["rank"], []).append(found)
    ranks = []
    for rank, own in sorted(passes.items()):
        facts: Facts = {"rank": rank, "passes": len(own)}
        facts |= {name: sum(each[name] for each in own) for name in _SUMS}
        facts |= {name: max(each[name] for each in own) for name in _WORST}
        ranks.append({**facts, "waiting": facts["wait"] / facts["seconds"] if facts["seconds"] else 0.0})
    seconds, wait = (sum(each[name] for each in ranks) for name in ("seconds", "wait"))
    return {"ranks": ranks, "seconds": seconds, "wait": wait, "waiting": wait / seconds if seconds else 0.0}


def _read(path: str) -> list[Facts]:
    try:
        with open(path, encoding="utf-8") as file:
            found = [_parsed(path, number, line) for number, line in enumerate(file, 1) if line.strip()]
    except OSError as error:
        another = either("--waits FILE", "waits=...")
        raise FormatError(f"{path}: cannot read the waits of a run ({reason(error)}); give another {another}") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not JSON: {error.reason} at byte {error.start}") from None
    if not found:
        raise FormatError(f"{path}: expected one record or more, found 0")
    return found


def _parsed(path: str, number: int, line: str) -> Facts:
    where = f"{path}: line {number}"
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{where}: expected an object, found {type(found).__name__}")
    found = {"rank": 0, **found}
    missing = [name for name in (*_SUMS, *_WORST) if name not in found]
    if missing:
        raise FormatError(f"{where}: expected what loader.stats() returns, found none of {', '.join(missing)}")
    for name in ("rank", *_SUMS, *_WORST):
        _check_number(f"{where}: {name}", found[name])
    return found


def _check_number(where: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < _TOO_LARGE:  # NaN is not
        raise FormatError(f"{where}: expected a number of 0 or more, found {shortened(value, 40)}")
