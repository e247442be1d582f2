"""The part of a length order that a sampler plans."""

from bisect import bisect_left
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError, counted
from ..orders.basic import Int64s
from ..storage.runs import LengthOrder

Uint64s = NDArray[np.uint64]


class Selection(NamedTuple):
    """The part of a length order that is planned. Records that are too long or too short are left out."""

    by_length: LengthOrder
    first: int
    """Number of records that come before it in the order."""
    kept: slice
    """Its part of the distinct lengths."""

    @property
    def values(self) -> Uint64s:
        """The distinct lengths, falling."""
        return self.by_length.values[self.kept]

    @property
    def counts(self) -> Uint64s:
        """How many records have each length."""
        return self.by_length.counts[self.kept]

    @property
    def records(self) -> int:
        """How many records are planned."""
        return int(self.counts.sum())

    @property
    def starts(self) -> Int64s:
        """The rank of the first record of each length, where the first planned record has 0; then `records`."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)


class Limits(Protocol):
    """What a batch or a pack may hold: a `Budget` or `PackLimits`, whose methods are documented there."""

    @property
    def limit(self) -> tuple[str, int]: ...
    def fits(self, length: int) -> bool: ...
    def refusal(self, longest: str, length: int, over: int) -> str: ...


class LeftOut(NamedTuple):
    """What is not planned, or exceeds a limit by itself; see `PlanSummary`."""

    too_short: int
    too_long: int
    too_long_tokens: int
    over: int
    """Samples that exceed a limit by themselves, and are planned nevertheless."""
    over_tokens: int


def select(
    by_length: LengthOrder, limits: Limits, min_length: int, max_length: int | None, oversize: str
) -> tuple[Selection, LeftOut]:
    """Return the samples to plan, and what is left out.

    Raises:
      OrderError: a length is 0, a sample exceeds the limit and `oversize` is "error", or no sample is left.
    """
    values, counts = by_length.values, by_length.counts
    begin = 0 if max_length is None else int((values > np.uint64(max_length)).sum())
    end = max(int((values >= np.uint64(min_length)).sum()), begin)
    if end > begin and values[end - 1] == 0:
        raise OrderError(
            f"lengths[{_first_of(by_length, end - 1)}] = 0, expected 1 or more; leave such samples out with "
            f"min_length=1 (samples of length 0: {int(counts[end - 1]):,})"
        )
    fits = bisect_left(range(end), True, begin, key=lambda i: limits.fits(int(values[i])))
    over = int(counts[begin:fits].sum())
    if over and oversize == "error":
        longest = int(values[begin])
        raise OrderError(limits.refusal(f"lengths[{_first_of(by_length, begin)}] = {longest}", longest, over))
    first = begin
    if oversize == "drop":
        begin, over = fits, 0
    if begin >= end:
        raise OrderError(
            f"lengths: expected samples within min_length = {min_length}, max_length = {max_length} and "
            f"{limits.limit[0]} = {limits.limit[1]}, found {counted(int(counts.sum()), 'sample')} of lengths "
            f"{int(values[-1])} to {int(values[0])}"
        )
    left_out = LeftOut(
        too_short=int(counts[end:].sum()),
        too_long=int(counts[:begin].sum()),
        too_long_tokens=_tokens(by_length, 0, begin),
        over=over,
        over_tokens=_tokens(by_length, first, fits) if over else 0,
    )
    return Selection(by_length, int(counts[:begin].sum()), slice(begin, end)), left_out


def _first_of(by_length: LengthOrder, value: int) -> int:
    """Return the first record of one of the distinct lengths, given by its place."""
    return int(by_length.at(np.array([int(by_length.counts[:value].sum())]))[0])


def _tokens(by_length: LengthOrder, begin: int, end: int) -> int:
    """Return the tokens of all samples of some of the distinct lengths."""
    values, counts = by_length.values[begin:end].astype(object), by_length.counts[begin:end].astype(object)
    return int((values * counts).sum())


def rounded_up(lengths: Uint64s, round_to: int) -> Uint64s:
    """Return lengths rounded up to multiples; where 64 bits do not hold one, the largest number that they do."""
    if round_to == 1:
        return lengths
    step, one = np.uint64(round_to), np.uint64(1)
    found = np.where(lengths, (lengths - one) // step * step + step, lengths)  # which may begin again at 0
    return np.where(found < lengths, ~np.uint64(0), found)


def classes(taken: Uint64s, counts: Uint64s | None = None) -> tuple[Uint64s, Uint64s]:
    """Return the distinct numbers among some that fall, and how many records have each.

    Args:
      taken: what records take.
      counts: how many records take as much; one each by default.
    """
    counts = np.ones(len(taken), np.uint64) if counts is None else counts
    firsts = np.flatnonzero(np.concatenate([[True], taken[1:] != taken[:-1]]))
    return np.ascontiguousarray(taken[firsts]), np.add.reduceat(counts, firsts)
