"""One pass over an epoch: which rank takes which positions in each step, and which are excluded."""

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import OrderError
from ..orders.basic import Int64s
from .contents import EpochContents
from .exclusions import Exclusions, Ranges, beyond, clipped

_LARGEST_BATCH = 1 << 40  # samples; their numbers alone take 8 TB


class Sharding(NamedTuple):
    """How ranks share an epoch: a step is the next `num_replicas * batch_size` positions, one to each rank in turn."""

    num_replicas: int
    rank: int
    batch_size: int
    drop_last: bool
    pad: bool = True
    """Whether the last step is filled up, so that all ranks have as many samples."""

    @property
    def stride(self) -> int:
        """Positions in a step, over all ranks."""
        return self.num_replicas * self.batch_size

    def steps(self, positions: int) -> int:
        """Return how many steps some positions make; the same on every rank."""
        if self.drop_last:
            return positions // self.stride
        return -(-positions // self.stride)

    def own_steps(self, positions: int) -> int:
        """Return the steps in which this rank has something: without padding, ranks may differ by one."""
        steps = self.steps(positions)
        alone = self.pad or self.drop_last or positions > (steps - 1) * self.stride + self.rank
        return steps if alone or not steps else steps - 1


class ResumePoint(NamedTuple):
    """Where a pass begins, and what it excludes."""

    position: int = 0
    epoch: int | None = None
    """The epoch that the position belongs to; None for any."""
    positions: Ranges = ()
    """Positions that were excluded before."""
    records: Ranges = ()
    """Record numbers that were excluded before."""
    new_steps: Ranges = ()
    """Steps to exclude, counted as in the pass that begins here and excludes nothing new; some of them repeatedly."""
    new_records: Ranges = ()
    """More record numbers to exclude."""


class Pass:
    """One pass over an epoch, from a resume point to the end: the positions of each step.

    Attributes:
      start: the resume point; all that is excluded counts as excluded before, its new steps as positions.
      first_step: the steps of the epoch that come before this pass, so that its last one is the last of the epoch, also
        where the pass begins in the middle of a step of this number of replicas.
      steps: how many steps it has.
      was_over: whether it would have none also without what its resume point excludes anew.
      own_steps: in how many of them this rank has something.
      had: how many of them the trainer had; None where no loader says so.
      in_workers: whether workers read copies of it. How far they got is chance, so it counts as not read on all ranks.
    """

    def __init__(
        self, contents: EpochContents, sharding: Sharding, epoch: int, start: ResumePoint, block_size: int
    ) -> None:
        self.epoch = epoch
        self._total = len(contents)
        self._sharding = sharding
        self._block_size = block_size
        self._exclude(contents, start)
        self.was_over = not self.steps
        for steps in beyond(start.new_steps):
            start = start._replace(positions=start.positions + tuple(map(self._positions_of, steps)))
            self._exclude(contents, start)
        self.start = start._replace(records=start.records + start.new_records, new_steps=(), new_records=())
        if start.new_records:
            self._exclude(contents, self.start)
        self.own_steps = sharding.own_steps(self._exclusions.left - self._begin)
        self.had: int | None = None
        self.in_workers = False
        self._block: Iterator[Any] = iter(())
        self._block_end = 0

    def _exclude(self, contents: EpochContents, start: ResumePoint) -> None:
        """Leave out what was excluded before."""
        found = contents.positions_holding(self.epoch, start.records) if start.records else clipped((), 0)
        self._exclusions = Exclusions(start.positions, found, self._total)
        self._begin = self._exclusions.number(start.position)
        self.steps = self._sharding.steps(self._exclusions.left - self._begin)
        self.first_step = self._sharding.steps(self._exclusions.left) - self.steps

    def _positions_of(self, steps: tuple[int, int]) -> tuple[int, int]:
        """Return the positions of a range of steps of the epoch, also of those before this pass."""
        first, end = (self.position_after(step - self.first_step) for step in steps)
        return first, end

    @property
    def done(self) -> int:
        """Steps that were yielded."""
        return self._block_end - operator.length_hint(self._block)

    @property
    def over(self) -> bool:
        """Whether it had steps, and all were yielded."""
        return 0 < self.steps == self.done

    @property
    def delivered(self) -> int:
        """Steps that the trainer had; those that were drawn, where no loader says so."""
        return self.done if self.had is None else self.had

    @property
    def was_read(self) -> bool:
        """Whether the trainer had all of it, as far as is known."""
        return self.delivered >= self.steps

    def position_after(self, steps: int) -> int:
        """Return the position that comes next after some steps of this pass; before it, if they are negative."""
        number = max(self._begin + steps * self._sharding.stride, 0)
        if number >= self._exclusions.left:
            return self._total
        return int(self._exclusions.positions(np.array([number]))[0])

    def positions(self, first: int, steps: int, ranks: Sequence[int]) -> Int64s:
        """Return the positions of some steps that are of one size: shape (steps, batch, ranks).

        Positions beyond the end start again at the beginning, as torch's own sampler pads; without padding they are
        -1.
        """
        replicas, batch = self._sharding.num_replicas, self._sharding.batch_size
        left = -(-(self._exclusions.left - self._begin) // replicas) - first * batch
        columns = min(batch, left)
        if columns > _LARGEST_BATCH:
            raise OrderError(
                f"batch_size = {batch}, expected up to {_LARGEST_BATCH} samples in a step, found {columns}"
            )
        column = np.arange(steps * columns, dtype=np.int64).reshape(steps, columns, 1)
        numbers = self._begin + (first * batch + column) * replicas + np.asarray(ranks, np.int64)
        if numbers.size and numbers[-1, -1, -1] >= self._exclusions.left:
            if not self._sharding.pad:
                are_none = numbers >= self._exclusions.left
                return np.where(are_none, -1, self._exclusions.positions(numbers))
            numbers %= self._exclusions.left
        return self._exclusions.positions(numbers)

    def map(self, make: Callable[[int, Int64s], list[Any]]) -> Iterator[Any]:
        """Yield what a function returns for each step, in order.

        Args:
          make: takes the number of a step of this pass, and the positions of this rank in the steps from there on,
            shape (steps, batch); returns a list with an item for each of these steps.
        """
        for first, positions in self._blocks():
            # The place in the epoch is read off this iterator, so that nothing is counted step by step.
            # Both at once: a signal may raise after any call, and a trainer then saves its state.
            self._block, self._block_end = iter(make(first, positions)), first + len(positions)
            yield from self._block
        self._block, self._block_end = iter(()), self.steps  # also steps in which this rank has no share

    def remainder(self, step: int) -> Int64s:
        """Return the positions of a last step that is not full, without padding; empty for any other step."""
        begin = self._begin + step * self._sharding.stride
        if begin + self._sharding.stride <= self._exclusions.left:
            return np.empty(0, np.int64)
        return self._exclusions.positions(np.arange(begin, self._exclusions.left, dtype=np.int64))

    def _blocks(self) -> Iterator[tuple[int, Int64s]]:
        ranks, batch = [self._sharding.rank], self._sharding.batch_size
        # The last step may be smaller than the others, so it is a block of its own.
        even = (self._exclusions.left - self._begin) % self._sharding.stride == 0
        whole = self.steps if even or self._sharding.drop_last else max(self.steps - 1, 0)
        size = max(self._block_size // batch, 1)
        for first in range(0, whole, size):
            yield first, self.positions(first, min(size, whole - first), ranks)[:, :, 0]
        if whole < self.steps:
            last = self.positions(whole, 1, ranks)[:, :, 0]
            last = last[:, last[0] >= 0]
            if last.size:
                yield whole, last
