"""Whether the sources of an index are what they were, and statistics of its numbers, read piece by piece."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import Error, SourceError, StaleIndexError
from ..storage import current
from ..storage.index_file import Index, SavedView
from ..storage.sections import SavedViewFoundError
from ..storage.sources import Roots, index_path
from .build import summarise

SIZES = None
"""Stands for what is not a column: the size of a record, with its framing."""
CALLED = "bytes"
"""What users call these sizes; a column may have that name, too."""
PERCENTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99}

_CURRENT = ("unchanged", "touched")  # states of sources whose records can be read
_PIECE = 1 << 20  # numbers that are looked at together
_SAMPLE = 1 << 22  # numbers of which percentiles are exact
_BINS = 12

Number = int | float


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
        return State("outside", "OUTSIDE, not looked at; give --root DIRECTORY if you trust who made the index")
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
    summary, expressions = summarise(index), index.expressions
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


# ---- statistics --------------------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """What is known of a column; `least`, `most`, `mean` and `percentiles` are 0 where it has no finite number."""

    type: str
    least: Number
    most: Number
    mean: float
    total: Number | None
    """None where it is larger than float64 holds."""
    finite: int
    """How many numbers are finite."""
    others: int
    """How many are not."""
    percentiles: tuple[Number, ...]
    """Those of `PERCENTILES`; of a sample, where there are many numbers."""
    sampled: int
    """How many numbers the percentiles are of."""


def made_of(indexes: Sequence[Index], name: str) -> str:
    """Return the expression or the function that made a column of all indexes; "several" where they differ."""
    meanings = {index.meaning(name) for index in indexes}
    return meanings.pop() if len(meanings) == 1 else "several"


def measure(indexes: Sequence[Index], name: str | None, report: Callable[[int], object]) -> Statistics:
    """Return the statistics of a column that all indexes have, or of the sizes of their records.

    Args:
      name: of the column; `SIZES` for those.
      report: called with the number of bytes that were read since the last call.
    """
    step = max(math.ceil(sum(index.records for index in indexes) / _SAMPLE), 1)
    extremes: list[Number] = []
    sample: list[NDArray[Any]] = []
    total: int | np.longdouble = 0
    count = others = 0
    for piece, times in pieces(indexes, name):
        finite = _finite(piece)
        others += len(piece) - len(finite)
        sample.append(finite[-count % step :: step].copy() if times == 1 else np.repeat(finite, -(-times // step)))
        report(piece.nbytes)
        if len(finite):
            extremes += [finite.min().item(), finite.max().item()]
            total += _sum(finite) * times
            count += len(finite) * times
    whole = np.concatenate(sample) if sample else np.empty(0)
    found = [0] * len(PERCENTILES)
    if len(whole):
        found = np.quantile(whole, list(PERCENTILES.values()), method="inverted_cdf").tolist()
    types = sorted({np.dtype(index.column(name)[0]).name for index in indexes}) if name is not SIZES else []
    least, most = min(extremes, default=0), max(extremes, default=0)
    mean = float(total / max(count, 1))
    shown = total if isinstance(total, int) else float(total) if np.isfinite(np.float64(total)) else None
    return Statistics(", ".join(types), least, most, mean, shown, count, others, tuple(found), len(whole))


def coverage(
    indexes: Sequence[Index], documents: Sequence[dict[str, Any]], records: int | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return what indexes cover together, and which sources have changed since.

    `documents` are what `describe` says of them. A view has fewer `records`. `most` limits the lists of
    indexes and sources.
    """
    sources = [source for each in documents for source in each["sources"]]
    others = [each for each in sources if each["state"] not in _CURRENT]
    have_left_out = any(source.skipped for index in indexes for source in index.sources)
    of = "records, with framing" + " and left-out records behind" * have_left_out
    shared = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
    columns: list[dict[str, Any]] = [
        {"name": CALLED, "of": of},
        *({"name": name, "of": made_of(indexes, name)} for name in shared),
    ]
    for column, name in zip(columns, (SIZES, *shared), strict=True):
        numbers = measure(indexes, name, lambda _: None)
        column |= {"type": numbers.type, "min": numbers.least, "max": numbers.most, "mean": numbers.mean}
        column |= zip(PERCENTILES, numbers.percentiles, strict=True)
        column |= {"total": numbers.total, "not_finite": numbers.others, "sampled": numbers.sampled}
        column["is_sample"] = numbers.sampled < numbers.finite
    return {
        "indexes": [index.path for index in indexes][:most],
        "formats": sorted({index.format for index in indexes}),
        "records": sum(each["records"] for each in documents) if records is None else records,
        **{name: sum(each[name] for each in documents) for name in ("bytes", "left_out", "bad")},
        "records_of_indexes": sum(each["records"] for each in documents),
        "sources": len(sources),
        "changed": len(others),
        "states": dict(sorted(Counter(each["state"] for each in sources).items())),
        "is_current": not others,
        "listed": sorted(sources, key=lambda each: each["state"] == "unchanged")[:most],
        "sizes_have_left_out": have_left_out,
        "columns": columns,
    }


def histogram(
    indexes: Sequence[Index], name: str | None, numbers: Statistics
) -> list[tuple[Number, Number | None, int]]:
    """Return bins of a column: where each begins and ends, and how many numbers it has. The last one may have no end.

    Bins begin at round numbers, and are as wide as suits 99 % of the numbers. Those of integers end at the last one.
    """
    is_whole = isinstance(numbers.least, int)
    high = int(numbers.percentiles[-1]) if is_whole else numbers.percentiles[-1]
    if not numbers.finite or not math.isfinite(high - numbers.least):
        return []
    step: Number = _round((high - numbers.least) / _BINS)
    if is_whole:
        step = max(int(step), 1)
    first = numbers.least // step * step if step else numbers.least
    bins = max(int((high - first) // step) + 1, 1) if step else 1
    edges = [first + step * number for number in range(bins + 1)]
    is_open = bool(step) and numbers.most >= edges[-1]
    counts = [0] * (bins + is_open)
    begins = np.array(edges[1 : len(counts)], np.uint64 if is_whole and numbers.least >= 0 else None)
    for piece, times in pieces(indexes, name):
        places = np.searchsorted(begins, _finite(piece), side="right")
        found = np.bincount(places, minlength=len(counts)).tolist()
        counts = [count + more * times for count, more in zip(counts, found, strict=True)]
    ends = [*(end - 1 if is_whole else end for end in edges[1:]), None]
    return list(zip(edges, ends, counts, strict=False))


def _round(width: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a width; 0 for 0."""
    if width <= 0:
        return 0
    power = 10.0 ** math.floor(math.log10(width))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= width), 10 * power)


def _finite(numbers: NDArray[Any]) -> NDArray[Any]:
    return numbers[np.isfinite(numbers)] if numbers.dtype.kind == "f" else numbers


def _sum(numbers: NDArray[Any]) -> int | np.longdouble:
    """Return a sum, which may be larger than the numbers of any type; that of floats is rounded."""
    if numbers.dtype.kind == "f":
        total: np.longdouble = numbers.sum(dtype=np.longdouble)
        return total
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


def pieces(indexes: Sequence[Index], name: str | None) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield all numbers, some at a time, in the order of records; and how often they come one after another.

    The sizes of records of one size are one number, as an index may claim any number of them.
    """
    for index in indexes:
        if name is not SIZES:
            dtype, data = index.column(name)
            whole = np.frombuffer(data, dtype)
            yield from ((whole[begin : begin + _PIECE], 1) for begin in range(0, len(whole), _PIECE))
        elif not index.has_bounds:
            if index.records:
                yield np.array([index.parameters["record_bytes"]], np.int64), index.records
        else:
            for number, source in enumerate(index.sources):
                for begin in range(0, source.records, _PIECE):
                    end = min(begin + _PIECE, source.records)
                    yield np.diff(np.frombuffer(index.bounds(number, begin, end + 1), np.int64)), 1
