"""What a pass leaves out: ranges of positions, steps and records."""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import OrderError, shortened
from ..orders.basic import Int64s

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges (begin, end)."""
Exclude = Mapping[str, Iterable[Any]]
"""What a sampler's `exclude=` takes."""
LARGEST = 2**63 - 1
_MOST_EXCLUDED = 1 << 27  # records; their positions are looked up one by one, and take 8 bytes each


def members(ranges: Ranges, limit: int) -> Int64s:
    """Return the numbers in some ranges that are below a limit, ascending, each once.

    Raises:
      OrderError: they are too many to be excluded one by one.
    """
    union = merged(clipped(ranges, limit))
    count = int((union[:, 1] - union[:, 0]).sum())
    if count > _MOST_EXCLUDED:
        raise OrderError(
            f"exclude: expected up to {_MOST_EXCLUDED} records, found {count}; sample a view of the dataset without "
            "them"
        )
    return np.concatenate([np.empty(0, np.int64), *(np.arange(begin, end, dtype=np.int64) for begin, end in union)])


def clipped(ranges: Ranges, limit: int) -> Int64s:
    """Return the parts of ranges within [0, limit): shape (k, 2)."""
    return np.array([(min(max(begin, 0), limit), min(end, limit)) for begin, end in ranges], np.int64).reshape(-1, 2)


def merged(ranges: Int64s) -> Int64s:
    """Return the union of ranges, shape (k, 2), as ranges in ascending order that do not touch: shape (m, 2)."""
    ranges = ranges[ranges[:, 0] < ranges[:, 1]]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ranges[:, 1])  # the largest end so far
    first = np.concatenate([[True], ranges[1:, 0] > reach[:-1]])[: len(ranges)]
    last = np.concatenate([first[1:], [True]])[: len(ranges)]
    return np.stack([ranges[first, 0], reach[last]], axis=1)


def beyond(ranges: Ranges, others: Ranges = ()) -> list[Ranges]:
    """Return the numbers that ranges hold more often than others do: those of once more, of twice more, and so on."""
    bounds, at = np.unique(np.array([*ranges, *others], np.int64).ravel(), return_inverse=True)
    changes = np.zeros(len(bounds), np.int64)
    np.add.at(changes, at, np.repeat([[1, -1], [-1, 1]], [len(ranges), len(others)], axis=0).ravel())
    more = np.cumsum(changes)[:-1]  # in ranges than in others, from each bound to the next
    each = np.stack([bounds[:-1], bounds[1:]], axis=1)
    return [as_ranges(merged(each[more > times])) for times in range(max(more, default=0))]


def as_ranges(pairs: Int64s) -> Ranges:
    """Return ranges of shape (k, 2) as tuples of ints."""
    return tuple((begin, end) for begin, end in pairs.tolist())


def runs_of_numbers(numbers: Int64s) -> Int64s:
    """Return numbers, in any order, as ranges that do not touch: shape (k, 2)."""
    ascending = np.sort(numbers)
    gaps = np.flatnonzero(np.diff(ascending) > 1) + 1
    first = np.concatenate([[0], gaps])[: len(ascending)].astype(np.int64)
    last = np.concatenate([gaps - 1, [len(ascending) - 1]])[: len(first)].astype(np.int64)
    return np.stack([ascending[first], ascending[last] + 1], axis=1)


class Exclusions:
    """Positions that a pass leaves out. The others are numbered in order, without gaps.

    Args:
      ranges: of positions.
      found: more of them, shape (k, 2), below the total.
      total: how many positions there are.
    """

    def __init__(self, ranges: Ranges, found: Int64s, total: int) -> None:
        union = merged(np.concatenate([clipped(ranges, total), found]))
        self._begins = union[:, 0]
        sizes = union[:, 1] - union[:, 0]
        self._excluded = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)  # before each range, and in all
        self._numbers = self._begins - self._excluded[:-1]  # of the first position after each range
        self.left = total - int(self._excluded[-1])
        """How many positions are not excluded."""

    def number(self, position: int) -> int:
        """Return how many positions before this one are not excluded."""
        i = int(np.searchsorted(self._begins, position, side="left"))
        if i == 0:
            return position
        size = int(self._excluded[i] - self._excluded[i - 1])
        inside = min(position - int(self._begins[i - 1]), size)
        return position - int(self._excluded[i - 1]) - inside

    def positions(self, numbers: Int64s) -> Int64s:
        """Return the positions that have these numbers."""
        if not len(self._begins):
            return numbers
        return numbers + self._excluded[np.searchsorted(self._numbers, numbers, side="right")]


def ranges_of(pairs: Iterable[Sequence[Any]]) -> Ranges:
    """Return the ranges of a state.

    Raises:
      TypeError, ValueError: they are not pairs of integers with 0 <= begin <= end < 2**63.
    """
    ranges = tuple((operator.index(begin), operator.index(end)) for begin, end in pairs)
    for begin, end in ranges:
        if not 0 <= begin <= end <= LARGEST:
            raise ValueError(f"{shortened((begin, end))}, expected 0 <= begin <= end < 2**63")
    return ranges


def parse_exclude(exclude: Exclude | None) -> dict[str, Ranges]:
    parsed: dict[str, Ranges] = {"steps": (), "records": ()}
    if exclude is not None and not isinstance(exclude, Mapping):
        raise OrderError(f"exclude: expected a dict with the keys 'steps' and 'records', found {shortened(exclude)}")
    for kind, given in (exclude or {}).items():
        if kind not in parsed:
            raise OrderError(f"exclude: expected the keys 'steps' and 'records', found {shortened(kind)}")
        if not isinstance(given, Iterable) or getattr(given, "ndim", 1) == 0:
            raise OrderError(f"exclude[{kind!r}] = {shortened(given)}, expected a list of numbers and ranges")
        given = list(given)
        ranges = tuple(_parse_range(f"exclude[{kind!r}][{i}]", each) for i, each in enumerate(given))
        if len(ranges) > 2 and set(ranges) <= {(0, 1), (1, 2)} and all(hasattr(each, "__index__") for each in given):
            raise OrderError(
                f"exclude[{kind!r}]: expected each number once, found {len(ranges)} zeros and ones; give "
                "np.flatnonzero(mask) for a mask, or ranges, as (0, 1), for a step that is left out repeatedly"
            )
        parsed[kind] = ranges
    return parsed


def check_excluded(kind: str, ranges: Ranges, limit: int, of: str, new: Ranges | None = None) -> None:
    """Raise OrderError for steps or records to exclude that do not exist.

    Args:
      limit: how many there are, of what.
      new: numbers without which a range is right, as it is of another world; by default all are new.
    """
    for i, (begin, end) in enumerate(ranges):
        if end > limit and (new is None or any(first < end and begin < last for first, last in new)):
            shown = begin if end - begin <= 1 else (begin, end)
            raise OrderError(
                f"exclude[{kind!r}][{i}] = {shown!r}, expected {kind} below {limit}, those of {of} (the end of a range "
                "is not in it)"
            )


def _parse_range(name: str, given: Any) -> tuple[int, int]:
    """Return a number, or a pair of begin and end, as a range."""
    try:
        if isinstance(given, bool):
            raise TypeError
        begin, end = (given, operator.index(given) + 1) if hasattr(given, "__index__") else given
        if 0 <= operator.index(begin) <= operator.index(end):
            return min(operator.index(begin), LARGEST), min(operator.index(end), LARGEST)
    except (TypeError, ValueError):
        pass
    raise OrderError(f"{name} = {shortened(given)}, expected a number or 0 <= begin <= end")
