"""Plans: the selected samples of a dataset, and their batches; made once, for all epochs.

A plan has a batch at every position of an epoch, as an order has a record. `plan.reader(epoch)` reads the batches.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from hashlib import blake2b
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import OrderError, counted
from ..index.lengths import LengthOrder
from ..orders.basic import Int64s
from ..orders.permutation import Permutation, word

Uint64s = NDArray[np.uint64]


class Selection(NamedTuple):
    """The part of a length order to plan, without records that are too long or too short."""

    by_length: LengthOrder
    first: int
    """Number of records before it in the order: those that are too long."""
    kept: slice
    """Its slice of the distinct lengths."""

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
    def too_short(self) -> int:
        """How many records are too short; they come after it in the order."""
        return len(self.by_length) - self.first - self.records


def select(by_length: LengthOrder, limits: Any, min_length: int, max_length: int | None, oversize: str) -> Selection:
    """Return the samples to plan within a `Budget` or `PackLimits`, whose first field is the limit.

    Raises:
      OrderError: a length is 0, a sample exceeds the limit and `oversize` is "error", or no sample is left.
    """
    values, counts = by_length.values, by_length.counts
    begin = 0 if max_length is None else int((values > np.uint64(max_length)).sum())
    end = max(int((values >= np.uint64(min_length)).sum()), begin)
    if end > begin and values[end - 1] == 0:
        raise OrderError(
            f"lengths[{_first_of(by_length, end - 1)}] = 0, expected 1 or more; drop such samples with "
            f"min_length=1 (samples of length 0: {int(counts[end - 1]):,})"
        )
    over = begin + _over(values[begin:end], limits)
    if over > begin and oversize == "error":
        longest = int(values[begin])
        raise OrderError(
            f"{limits._fields[0]} = {limits[0]}, expected {limits.cost(longest)} or more, the cost of "
            f"lengths[{_first_of(by_length, begin)}] = {longest}; drop such samples with oversize='drop' or "
            f"max_length=N (samples over the limit: {int(counts[begin:over].sum()):,})"
        )
    if oversize == "drop":
        begin = over
    if begin >= end:
        raise OrderError(
            f"lengths: expected samples within min_length = {min_length}, max_length = {max_length} and "
            f"{limits._fields[0]} = {limits[0]}, found {counted(int(counts.sum()), 'sample')} of lengths "
            f"{int(values[-1])} to {int(values[0])}"
        )
    return Selection(by_length, int(counts[:begin].sum()), slice(begin, end))


def _over(values: Uint64s, limits: Any) -> int:
    """Return how many of `values`, which fall, exceed the limit on their own."""
    return bisect_left(values, True, key=lambda length: limits.cost(int(length)) <= limits[0])


def _first_of(by_length: LengthOrder, value: int) -> int:
    """Return the first record whose length is the distinct length number `value`."""
    return int(by_length.at(np.array([int(by_length.counts[:value].sum())]))[0])


def rounded_up(lengths: Uint64s, round_to: int) -> Uint64s:
    """Return lengths rounded up to a multiple of `round_to`; 2**64 - 1 where the multiple overflows."""
    if round_to == 1:
        return lengths
    step, one = np.uint64(round_to), np.uint64(1)
    found = np.where(lengths, (lengths - one) // step * step + step, lengths)  # may wrap around
    return np.where(found < lengths, ~np.uint64(0), found)


def classes(taken: Uint64s, counts: Uint64s | None = None) -> tuple[Uint64s, Uint64s]:
    """Return the distinct numbers of `taken`, and how many records have each.

    Args:
      taken: the lengths that records take, falling.
      counts: how many records each item stands for; one by default.
    """
    counts = np.ones(len(taken), np.uint64) if counts is None else counts
    firsts = np.flatnonzero(np.concatenate([[True], taken[1:] != taken[:-1]]))
    return np.ascontiguousarray(taken[firsts]), np.add.reduceat(counts, firsts)


# ---- plans ----------------------------------------------------------------------------------------------------------


VERSION = 3
"""Increased when a plan changes for the same arguments, so that old states are refused, not misread."""
_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1

Reader = Callable[[Int64s], tuple[Int64s, Int64s]]
"""Maps ascending positions of an epoch to the records of the batches there, concatenated, and the end of each batch."""


class Totals(NamedTuple):
    """What an epoch reads and leaves out; `summary.Summary` explains the fields."""

    samples: int
    too_short: int
    too_long: int
    too_long_tokens: int
    over: int
    cut_tokens: int
    tokens: int
    fill: float


@dataclass(eq=False)
class Plan(ABC):
    """The base of all planners. A plan is the contents of an epoch (see `resumable.Contents`), in batches.

    Args:
      selection: the samples to plan.
      limits: what a batch or a pack may hold, a `Budget` or `PackLimits`.
      shuffle: False reads the same batches in the same order in every epoch.
      group_size: batches of an optimizer step, over all ranks.
      fills: make more batches until the last group is full, or there is one for each sample.
    """

    kind: ClassVar[str]
    """The name of the plan in states."""
    cuts: ClassVar[bool] = False
    """Whether samples over the limit are truncated."""

    selection: Selection
    limits: Any
    _: KW_ONLY
    seed: int
    shuffle: bool
    group_size: int = 1
    fills: bool = False

    def filled(self, batches: int) -> int:
        """Return how many batches to make of samples that fit into `batches`."""
        return min(-(-batches // self.group_size) * self.group_size, self.selection.records) if self.fills else batches

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    @abstractmethod
    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch."""

    @abstractmethod
    def measured(self, records: Int64s, begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Return the tokens, the tokens with padding, and the cost of each batch; shape (batches,) each.

        Args:
          records: of all batches, concatenated.
          begins, sizes: where each batch begins, and how many samples it has.
        """

    def totals(self) -> Totals:
        """Return what an epoch reads and leaves out."""
        selection, limit = self.selection, self.limits[0]
        begin, end, over = selection.kept.start, selection.kept.stop, _over(selection.values, self.limits)
        counts = selection.by_length.counts.astype(object)  # Python's integers, as sums may exceed 64 bits
        tokens = selection.by_length.values.astype(object) * counts
        samples_over = int(counts[begin : begin + over].sum())
        cut_tokens = int(tokens[begin : begin + over].sum()) - samples_over * limit if self.cuts else 0
        planned = int(tokens[begin:end].sum()) - cut_tokens
        return Totals(
            selection.records,
            selection.too_short,
            selection.first,
            int(tokens[:begin].sum()),
            samples_over,
            cut_tokens,
            planned,
            planned / len(self) / limit,
        )

    @property
    def records(self) -> int:
        """Number of records in the dataset, planned or not."""
        return len(self.selection.by_length)

    def describe(self) -> dict[str, Any]:
        """Return the identity of this plan for states."""
        digest = blake2b(self.selection.values.tobytes() + self.selection.counts.tobytes(), digest_size=8).hexdigest()
        return {
            "order": self.kind,
            "shuffle": self.shuffle,
            "group_size": self.group_size,
            "fills": self.fills,
            **self._shape(),
            "version": VERSION,
            "records": self.records,
            "shortest planned": int(self.selection.values[-1]),
            "longest planned": int(self.selection.values[0]),
            "lengths": digest,
            "planned": [self.selection.first, self.selection.records],
            **self.limits._asdict(),
            "seed": self.seed,
        }

    def _shape(self) -> dict[str, Any]:
        """Return the other arguments that shape batches, for states."""
        return {}


class PartPlan:
    """Another plan in parts: an epoch reads the next `size` batches, and each pass goes on where an epoch ended."""

    def __init__(self, plan: Any, size: int) -> None:
        self.plan, self._size = plan, size

    def __getattr__(self, name: str) -> Any:
        if name == "plan":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self.plan, name)

    def __len__(self) -> int:
        return self._size

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch."""
        passes, first = divmod(epoch * self._size, len(self.plan))
        readers: dict[int, Reader] = {}

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            begun, places = np.divmod(positions + first, len(self.plan))
            found = []
            for each in np.unique(begun).tolist():
                if each not in readers:
                    readers[each] = self.plan.reader(passes + each)
                found.append(readers[each](places[begun == each]))
            sizes = [np.diff(ends, prepend=0) for _, ends in found]
            return np.concatenate([out for out, _ in found]), np.cumsum(np.concatenate(sizes))

        return read

    def totals(self) -> Totals:
        """Return what an epoch reads, on average, and what a pass leaves out."""
        found: Totals = self.plan.totals()
        samples, tokens = (round(each * self._size / len(self.plan)) for each in (found.samples, found.tokens))
        return found._replace(samples=samples, tokens=tokens)

    def describe(self) -> dict[str, Any]:
        """Return the identity of this plan for states."""
        return {**self.plan.describe(), "part_size": self._size}


class Groups(NamedTuple):
    """Maps the positions of an epoch to batches, which are numbered by their cost.

    A group is the batches of one step on all ranks, so that these cost about the same. Every epoch permutes the groups.

    Args:
      batches: number of batches.
      group_size: neighbouring batches that stay together.
      shuffle: False reads the batches in order of their numbers, in every epoch.
      stream: of the permutation of the groups.
      first: number of groups of the epoch before these.
    """

    batches: int
    group_size: int
    seed: int
    shuffle: bool
    stream: int = _GROUPS
    first: int = 0

    def batches_at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the number of the batch at each position."""
        if not self.shuffle:
            return np.ascontiguousarray(positions)
        groups, places = np.divmod(positions, self.group_size)
        count = self.batches // self.group_size  # full groups; a smaller one stays the last
        whole = groups < count
        if count:
            groups[whole] = Permutation(count, self.seed, epoch, stream=self.stream)[groups[whole]]
        # Each group is rotated by a random number, so that no rank always has the longest batch.
        sizes = np.where(whole, self.group_size, max(self.batches % self.group_size, 1))
        rotations = np.empty_like(groups)
        _native.draw(self.group_size, word(self.seed), word(epoch), groups + self.first, rotations)
        batches: Int64s = groups * self.group_size + (places + rotations) % sizes
        return batches


def pieces(batch: Int64s, parts: int, multiple: int) -> list[Int64s]:
    """Split a batch into `parts` parts of about equal size; keep sizes a multiple of `multiple` if possible."""
    if len(batch) % multiple or len(batch) // multiple < parts:
        return np.array_split(batch, parts)
    units = np.array_split(np.arange(0, len(batch), multiple), parts)
    return [batch[unit[0] : unit[-1] + multiple] for unit in units]
