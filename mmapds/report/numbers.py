"""What the sections of a report share: quantiles and histograms of numbers that come so many times each."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 0.999)
"""Which quantiles a report gives."""

_BINS = 40
_NARROWEST = 60  # bins of one width that the whole range has at most, so that each can be seen
_WIDE = 12  # from this ratio of the 99th to the 1st percentile on, bins grow with the numbers


def distinct(numbers: Array) -> tuple[Array, Array]:
    """Return the different numbers, rising, and how often each comes."""
    return np.unique(numbers, return_counts=True)


def quantiles(values: Array, counts: Array) -> dict[str, float]:
    """Return the least, the quantiles, the largest and the mean of numbers.

    Args:
      values: the different numbers, rising.
      counts: how often each comes.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1])
    # The smallest number that at least this share of all is not above.
    places = [min(max(int(np.ceil(share * total)), 1), total) for share in QUANTILES]
    found = values[np.searchsorted(ends, places)].tolist()
    named = {f"{share * 100:g} %": value for share, value in zip(QUANTILES, found, strict=True)}
    mean = float((values.astype(np.float64) * counts).sum() / total)
    low, high = values[[0, -1]].tolist()
    return {"min": low, **named, "max": high, "mean": mean}


def edges_of(values: Array, counts: Array) -> list[int]:
    """Return the edges of bins for whole numbers; each bin has its lower edge and not its upper one.

    The first and the last bin are for what lies beyond the bulk of the numbers, however far that reaches.
    """
    found = quantiles(values, counts)
    low, high = int(found["1 %"]), int(found["99.9 %"])
    first, end = int(values[0]), int(values[-1]) + 1
    if high > _WIDE * max(low, 1):
        grown = np.rint(np.geomspace(float(max(low, 1)), float(high + 1), _BINS + 1)).tolist()
        return sorted({first, *(min(max(int(edge), first), end) for edge in grown), end})
    step = max((high - low) // _BINS, (end - first) // _NARROWEST, 1)
    inner = range(high + 1, low - step, -step)  # from above, where the bulk is of batches that are nearly full
    return sorted({first, *(edge for edge in inner if first + step <= edge <= end - step), end})


def bins_of(values: Array, edges: list[int]) -> Array:
    """Return the bin that each number lies in, compared as integers: of large ones, float64 has not all."""
    begins = np.array(edges[:-1], values.dtype)
    bins: Array = np.searchsorted(begins, values, side="right") - 1
    return bins


def histogram(values: Array, counts: Array, edges: list[int]) -> list[int]:
    """Return how many numbers lie in each bin."""
    found = np.zeros(len(edges) - 1, np.int64)
    np.add.at(found, bins_of(values, edges), counts.astype(np.int64))
    return [int(count) for count in found]
