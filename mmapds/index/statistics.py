"""Statistics of the numbers that indexes have of their records, piece by piece: memory does not grow with them."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..storage.index_file import Index

SIZES = None
"""Stands for what is not a column: the size of a record, with its framing."""
CALLED = "bytes"
"""What users call these sizes; a column may have that name, too."""
PERCENTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99}

_PIECE = 1 << 20  # numbers that are looked at together
_SAMPLE = 1 << 22  # numbers of which percentiles are exact
_BINS = 12

Number = int | float


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
        finite = piece[np.isfinite(piece)] if piece.dtype.kind == "f" else piece
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
        finite = piece[np.isfinite(piece)] if piece.dtype.kind == "f" else piece
        found = np.bincount(np.searchsorted(begins, finite, side="right"), minlength=len(counts)).tolist()
        counts = [count + more * times for count, more in zip(counts, found, strict=True)]
    ends = [*(end - 1 if is_whole else end for end in edges[1:]), None]
    return list(zip(edges, ends, counts, strict=False))


def _round(width: float) -> float:
    """Return the smallest of 1, 2 and 5 times a power of ten that is not below a width; 0 for 0."""
    if width <= 0:
        return 0
    power = 10.0 ** math.floor(math.log10(width))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= width), 10 * power)


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
