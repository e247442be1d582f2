"""The cursor of a sampler: the epoch and the position where its next iterator begins.

A position is a place in the order of an epoch, over all ranks. It means the same at any number of ranks and any batch
size, so a state is little more than an epoch and a position. docs/samplers.md has the rules, under "Resume".
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from operator import length_hint
from typing import Any, NamedTuple

import numpy as np

from ..errors import warn
from ..orders.basic import Int64s

_FIRST = 64  # positions of the first block


class Sharding(NamedTuple):
    """How ranks share an epoch: each step deals the next `num_replicas * batch_size` positions, round-robin."""

    num_replicas: int
    rank: int
    batch_size: int
    drop_last: bool
    pad: bool = True
    """Whether to pad the last step, so that all ranks have the same number of samples in it."""

    @property
    def stride(self) -> int:
        """Positions in a step, over all ranks."""
        return self.num_replicas * self.batch_size

    def steps(self, positions: int) -> int:
        """Return the number of steps for `positions` positions; the same on every rank."""
        return positions // self.stride if self.drop_last else -(-positions // self.stride)

    def own_steps(self, positions: int) -> int:
        """Return the number of steps in which this rank has samples; without padding, ranks may differ by one."""
        steps = self.steps(positions)
        has_last = self.pad or self.drop_last or positions > (steps - 1) * self.stride + self.rank
        return steps if has_last or not steps else steps - 1


class Span(NamedTuple):
    """The steps of an epoch from the position `start` to the end, the position `total`."""

    sharding: Sharding
    total: int
    epoch: int
    start: int

    @property
    def steps(self) -> int:
        """The number of steps."""
        return self.sharding.steps(self.total - self.start)

    @property
    def first_step(self) -> int:
        """The number of the first step.

        Numbers count back from the last step of the epoch. After a resume with another number of ranks, step k need
        not begin at the position `k * stride`.
        """
        return self.sharding.steps(self.total) - self.steps

    def position_after(self, steps: int) -> int:
        """Return the position after `steps` steps; after the last step, the end of the epoch, even with `drop_last`."""
        return self.total if steps >= self.steps else self.start + steps * self.sharding.stride

    def positions(self, first: int, steps: int, ranks: Sequence[int]) -> Int64s:
        """Return the positions of `steps` steps, shape (steps, batch, ranks): full steps, or a single one.

        Positions after the end wrap around to the beginning, as torch's own sampler pads; without padding they are -1.
        """
        replicas, batch = self.sharding.num_replicas, self.sharding.batch_size
        columns = min(batch, -(-(self.total - self.start) // replicas) - first * batch)
        column = np.arange(steps * columns, dtype=np.int64).reshape(steps, columns, 1)
        positions = self.start + (first * batch + column) * replicas + np.asarray(ranks, np.int64)
        if positions.size and positions[-1, -1, -1] >= self.total:
            return positions % self.total if self.sharding.pad else np.where(positions < self.total, positions, -1)
        return positions

    def remainder(self, step: int) -> Int64s:
        """Return the positions of a partial last step, without padding; an empty array for any other step."""
        begin = self.start + step * self.sharding.stride
        return np.arange(begin, self.total if begin + self.sharding.stride > self.total else begin, dtype=np.int64)

    def blocks(self, size: int) -> Iterator[tuple[int, Int64s]]:
        """Yield blocks of steps of this rank: the number of the first step, and positions, shape (steps, batch).

        Args:
          size: about how many positions a block has; the first ones are smaller, so that the first batch comes fast.
        """
        ranks, batch = [self.sharding.rank], self.sharding.batch_size
        # The last step may be smaller than the others, so it is a block of its own.
        is_even = self.sharding.drop_last or (self.total - self.start) % self.sharding.stride == 0
        full = self.steps if is_even else self.steps - 1
        first, steps = 0, max(min(size, _FIRST) // batch, 1)
        while first < full:
            yield first, self.positions(first, min(steps, full - first), ranks)[:, :, 0]
            first, steps = first + steps, max(min(2 * steps, size // batch), 1)
        if full < self.steps:
            last = self.positions(full, 1, ranks)[:, :, 0]
            if last[0, 0] >= 0:
                yield full, last[:, last[0] >= 0]


Make = Callable[[int, Int64s], list[Any]]
"""Makes the steps of a block from the number of its first step and its positions, shape (steps, batch)."""


class Iteration(Iterator[Iterator[Any]]):
    """Yields the blocks of one iterator, and counts its steps.

    Attributes:
      span: the steps of the iterator; None before its first step.
      delivered: delivered steps, if a loader counts them; None if every step counts as soon as it is drawn.
      is_drawn_ahead: whether a loader prefetches steps.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.span: Span | None = None
        self.delivered: int | None = None
        self.is_drawn_ahead = False
        self._block: Iterator[Any] = iter(())
        self._block_end = 0

    def __next__(self) -> Iterator[Any]:
        if self.span is None:
            self.span, self._blocks, self._make = self.sampler._start_iterator(self)
        # `length_hint` of the block tells how many steps were drawn, so no step pays for a counter.
        block = next(self._blocks, None)
        if block is None:
            self._block_end = self.span.steps  # without padding, the last step may belong to other ranks alone
            self._block = iter(())
            raise StopIteration
        first, positions = block
        self._block, self._block_end = iter(self._make(first, positions)), first + len(positions)
        return self._block

    @property
    def done(self) -> int:
        """Finished steps."""
        return self._block_end - length_hint(self._block) if self.delivered is None else self.delivered

    @property
    def at(self) -> tuple[int, int]:
        """The epoch and the position after the finished steps."""
        if self.span is None:
            return self.sampler._cursor.next()  # type: ignore[no-any-return]
        return self.span.epoch, self.span.position_after(self.done)

    @property
    def is_over(self) -> bool:
        """Whether all steps are finished."""
        return self.span is not None and self.done >= self.span.steps

    @property
    def is_ahead(self) -> bool:
        """Whether the trainer may have finished fewer steps, since a loader prefetches and does not count."""
        return self.is_drawn_ahead and self.delivered is None


class Steps(chain[Any]):
    """The iterator of a sampler: a `chain` of blocks, so that C code yields each step."""

    _iteration: Iteration

    @classmethod
    def of(cls, sampler: Any) -> "Steps":
        """Return an iterator over the remaining steps; it takes its position at the first `next()`."""
        iteration = Iteration(sampler)
        steps: Any = cls.from_iterable(iteration)
        steps._iteration = iteration
        return steps  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the steps of this iterator; torchdata calls this."""
        return self._iteration.sampler._state_at(*self._iteration.at)  # type: ignore[no-any-return]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the sampler. torchdata calls this in `iter(loader)`, so the state wins over `set_epoch`."""
        sampler = self._iteration.sampler
        epoch = sampler._cursor.chosen
        sampler.load_state_dict(state_dict)
        if epoch not in (None, sampler.epoch):
            warn(f"epoch = {epoch}, expected {sampler.epoch}, that of the loaded state; begin the loop with that epoch")


class Cursor:
    """The epoch and the position where the next iterator begins; docs/samplers.md has its rules.

    Args:
      total: positions in an epoch.
      position: where the first iterator begins, in its epoch.
    Attributes:
      latest: the iterator that started last; None after another epoch is set or a state is loaded.
      chosen: the epoch of `set_epoch`, until an iterator starts.
    """

    def __init__(self, total: int, position: int = 0) -> None:
        self.total = total
        self.latest: Iteration | None = None
        self.chosen: int | None = None
        self._epoch: int | None = None  # None until an epoch is set, or an iterator begins
        self._position = position
        self._loaded: int | None = None  # the epoch of a loaded state, until an iterator starts or another epoch is set

    def next(self) -> tuple[int, int]:
        """Return the epoch and the position where the next iterator begins."""
        if self.latest is not None and self.latest.span is not None and self.latest.is_over:
            return self.latest.span.epoch + 1, 0
        return self._epoch or 0, self._position

    def span(self, sharding: Sharding) -> Span:
        """Return the span of the iterator that started last, or of the next one."""
        latest = None if self.latest is None else self.latest.span
        return latest._replace(sharding=sharding) if latest else Span(sharding, self.total, *self.next())

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator."""
        current, position = self.next()
        if self._epoch is not None and epoch != current:
            if self._loaded is not None and epoch < self._loaded:
                warn(
                    f"epoch = {epoch}, expected {current}, that of the loaded state, whose position is dropped; make "
                    "the loop range(sampler.epoch, ...)"
                )
            position = self.total if epoch == self._loaded else 0  # a loaded epoch before the current one is over
            self._loaded = None
        if epoch != current or (self.latest is not None and self.latest.is_over):
            self.latest = None
        self._epoch, self._position, self.chosen = epoch, position, epoch

    def load(self, epoch: int, position: int) -> None:
        """Set the epoch and the position of the next iterator; the end of an epoch is the beginning of the next one."""
        self.latest, self._loaded = None, epoch
        is_over = position >= self.total and self.chosen != epoch
        self._epoch, self._position = (epoch + 1, 0) if is_over else (epoch, position)

    def begin(self, iteration: Iteration, steps: int) -> None:
        """Record that an iterator of `steps` steps starts; an empty one changes nothing."""
        self._epoch, self._position = self.next()
        if steps:
            self.chosen, self._loaded, self.latest = None, None, iteration

    def __getstate__(self) -> dict[str, Any]:
        epoch, position = self.next()
        known = self._epoch if self._epoch is None else epoch
        return {**self.__dict__, "_epoch": known, "_position": position, "latest": None}
