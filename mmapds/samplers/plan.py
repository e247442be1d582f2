"""Plans: how an epoch is cut into batches. Made once from the lengths, read batch by batch.

A plan has a batch at every position of an epoch, as an order has a record. `plan.reader(epoch)` reads the batches.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.basic import Int64s
from ..orders.permutation import Permutation, word
from .lengths import Selection

VERSION = 2
"""Increased when a plan changes for the same arguments, so that old states are refused, not misread."""
_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1

Reader = Callable[[Int64s], tuple[Int64s, Int64s]]
"""Reads the batches of an epoch at ascending positions: their records, one after another, and where each batch ends."""


class Plan(ABC):
    """What all planners share. A plan is the contents of an epoch (see `resumable.Contents`), in batches.

    Args:
      selection: the samples that are planned.
      limits: what a batch or a pack may hold.
      ranks: how many batches a step has. Where those of a last step that is not full would hold fewer samples than
        this, there are so many more batches that it is full.
      shuffle: False reads the same batches in the same order in every epoch.
      group_size: neighbouring batches that stay together, to be the batches of one step on all ranks.
    """

    kind: str
    """What states call the plan."""

    def __init__(
        self, selection: Selection, limits: Any, *, ranks: int, seed: int, shuffle: bool, group_size: int = 1
    ) -> None:
        self.selection = selection
        self.limits = limits
        self.ranks = ranks
        self.seed = seed
        self.shuffle = shuffle
        self.group_size = group_size

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in an epoch."""

    @abstractmethod
    def reader(self, epoch: int) -> Reader:
        """Return what reads the batches of an epoch."""

    @abstractmethod
    def measured(self, lengths: NDArray[Any], begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Return the tokens of each of some batches, its tokens with padding, and its cost, which ranks should share.

        Args:
          lengths: of the samples of all these batches, one batch after another.
          begins, sizes: where each batch begins, and how many samples it has.
        """

    def changes_after(self, epoch: int) -> bool:
        """Return whether the next epoch has other batches."""
        return self.shuffle

    @property
    def records(self) -> int:
        """Number of records in the dataset, planned or not."""
        return len(self.selection.by_length)

    def describe(self) -> dict[str, Any]:
        """Return what identifies this plan, for states."""
        digest = blake2b(self.selection.values.tobytes() + self.selection.counts.tobytes(), digest_size=8).hexdigest()
        return {
            "order": self.kind,
            "shuffle": self.shuffle,
            "ranks": self.ranks,
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
        """Return what else shapes batches, for states."""
        return {"group_size": self.group_size}


class Groups:
    """Which batch stands at each position of an epoch, where batches are numbered in order of their cost.

    A group is the batches of one step on all ranks, so that these cost about the same. Every epoch permutes the groups.

    Args:
      batches: how many there are.
      group_size: neighbouring batches that stay together.
      shuffle: False reads the batches in order of their numbers, in every epoch.
      stream: of the permutation of the groups.
      first: groups of the epoch that come before these.
    """

    def __init__(
        self, batches: int, group_size: int, seed: int, shuffle: bool, *, stream: int = _GROUPS, first: int = 0
    ) -> None:
        self._batches = batches
        self.group_size = group_size
        self._seed = seed
        self._shuffle = shuffle
        self._stream = stream
        self._first = first
        self._whole = batches // group_size  # groups; the last one may be smaller, and stays the last

    def batches_at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the number of the batch at each position."""
        if not self._shuffle:
            return positions
        groups, places = np.divmod(positions, self.group_size)
        whole = groups < self._whole
        if self._whole:
            groups[whole] = Permutation(self._whole, self._seed, epoch, stream=self._stream)[groups[whole]]
        # Each group is rotated by a random number, so that no rank always has the longest batch.
        sizes = np.where(whole, self.group_size, max(self._batches % self.group_size, 1))
        batches: Int64s = groups * self.group_size + (places + self._rotations(epoch, groups)) % sizes
        return batches

    def _rotations(self, epoch: int, groups: Int64s) -> Int64s:
        rotations = np.empty_like(groups)
        _native.draw(
            self.group_size, word(self._seed), word(epoch), np.ascontiguousarray(groups + self._first), rotations
        )
        return rotations


def pieces(batch: Int64s, parts: int, multiple: int) -> list[Int64s]:
    """Return a batch in some parts of about the same size, which are multiples where none is smaller than one."""
    whole = len(batch) - len(batch) % multiple
    rest = [batch[whole:]] if whole < len(batch) else []
    if parts > 1 and whole // multiple >= parts - len(rest):
        units = np.array_split(np.arange(0, whole, multiple), parts - len(rest))
        return [batch[unit[0] : unit[-1] + multiple] for unit in units] + rest
    return np.array_split(batch, parts)
