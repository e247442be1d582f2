"""How the workers of a loader share a pass of a stream: each reads every n-th block of its steps."""

from collections.abc import Sequence
from typing import NamedTuple

from .exclusions import Ranges

_MOST_RANGES = 1 << 16  # a loader takes from workers in turn, which gives a few; forged counts may give any number
_LARGEST_BATCH = 1 << 16  # samples that a loader takes from a worker at a time, where nobody knows yet how many


class Share(NamedTuple):
    """What one worker reads of a pass."""

    worker: int
    workers: int
    size: int
    """Steps in a block."""

    def step_of(self, item: int) -> int:
        """Return the step of the pass that is an item of this worker, by its number there."""
        block, rest = divmod(item, self.size)
        return self._begin_of(block) + rest

    def _begin_of(self, block: int) -> int:
        return (block * self.workers + self.worker) * self.size

    def steps_before(self, item: int, begin: int) -> list[tuple[int, int]]:
        """Return the steps of this worker from one of the pass to an item of its own: ranges (first, end)."""
        end = self.step_of(item)
        blocks = range(begin // (self.workers * self.size), -(-item // self.size))
        if len(blocks) > _MOST_RANGES:
            return []
        ranges = ((max(self._begin_of(block), begin), min(self._begin_of(block) + self.size, end)) for block in blocks)
        return [(first, last) for first, last in ranges if first < last]

    def steps_of(self, steps: int) -> int:
        """Return how many steps of a pass are of this worker.

        Args:
          steps: how many the pass has.
        """
        blocks = -(-steps // self.size)
        own = max(-(-(blocks - self.worker) // self.workers), 0)
        has_last = own > 0 and self._begin_of(own - 1) + self.size > steps
        return own * self.size - has_last * (blocks * self.size - steps)

    def last_read(self, item: int, steps: int, at_once: int) -> int:
        """Return the last step of a pass that this worker has read, or perhaps one that has come to its end; else -1.

        A worker with something left knows the last step that it has read itself. So those who have nothing left are of
        concern to the others.

        Args:
          item: the next one of this worker, which has something left.
          steps: how many the pass has.
          at_once: how many steps a loader takes from a worker before it turns to the next one, at most, as far as this
            worker has seen; 0 if it was not asked yet.
        """
        found = self.step_of(item - 1) if item else -1
        if not at_once:
            at_once = _LARGEST_BATCH if self.size > 1 else 1
        for worker in range(self.workers):
            other = self._replace(worker=worker)
            count = other.steps_of(steps)
            if worker != self.worker and 0 < count <= item + at_once:
                last = other.step_of(count - 1)
                # Single steps that are taken one by one come in turn, so none after the next one of this worker.
                if self.size > 1 or at_once > 1 or last < self.step_of(item):
                    found = max(found, last)
        return found


def read_by_all(items: Sequence[int], size: int) -> tuple[int, Ranges]:
    """Return what workers have read: the first step that is left, and later ones that are not.

    Args:
      items: how many items each of them has read.
      size: steps in a block.
    """
    shares = [Share(worker, len(items), size) for worker in range(len(items))]
    first = min(share.step_of(count) for share, count in zip(shares, items, strict=True))
    later = [each for share, count in zip(shares, items, strict=True) for each in share.steps_before(count, first)]
    return first, tuple(sorted(later))
