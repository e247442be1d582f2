"""How the workers of a loader share a pass of a stream: each reads every n-th block of its steps."""

from collections.abc import Sequence
from typing import NamedTuple

from .exclusions import Ranges

_MOST_RANGES = 1 << 16  # a loader takes from workers in turn, which gives a few; forged counts may give any number


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


def last_read(items: Sequence[int], size: int) -> int:
    """Return the last step that workers have read; -1 for none.

    Args:
      items: how many items each of them has read.
      size: steps in a block.
    """
    return max((share.step_of(count - 1) for share, count in _shares(items, size) if count), default=-1)


def has_more(items: Sequence[int], size: int, steps: int) -> bool:
    """Return whether a worker has something left.

    Args:
      items: how many items each of them has read.
      size: steps in a block.
      steps: how many the pass has.
    """
    return any(share.step_of(count) < steps for share, count in _shares(items, size))


def read_by_all(items: Sequence[int], size: int) -> tuple[int, Ranges]:
    """Return what workers have read: the first step that is left, and later ones that are not.

    Args:
      items: how many items each of them has read.
      size: steps in a block.
    """
    first = min(share.step_of(count) for share, count in _shares(items, size))
    later = [each for share, count in _shares(items, size) for each in share.steps_before(count, first)]
    return first, tuple(sorted(later))


def _shares(items: Sequence[int], size: int) -> list[tuple[Share, int]]:
    """Return the share of each worker, beside the number of items that it has read."""
    return [(Share(worker, len(items), size), count) for worker, count in enumerate(items)]
