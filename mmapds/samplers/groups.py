"""Groups of neighbouring batches of about one cost, which are shuffled as a whole."""

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..orders.basic import Int64s
from ..orders.permutation import Permutation, word

_GROUPS = 2  # stream of the permutation of groups; records and chunks have 0 and 1


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
            groups[whole] = self._permutation(epoch)[groups[whole]]
        # Each group is rotated by a random number, so that no rank always has the longest batch.
        batches: Int64s = groups * self.group_size + (places + self._rotations(epoch, groups)) % self._sizes(whole)
        return batches

    def positions_of(self, epoch: int, batches: Int64s) -> Int64s:
        """Return the positions of batches, given by their numbers; the inverse of `batches_at`."""
        if not self._shuffle:
            return batches
        groups, places = np.divmod(batches, self.group_size)
        whole = groups < self._whole
        places = (places - self._rotations(epoch, groups)) % self._sizes(whole)
        if self._whole:
            groups[whole] = self._permutation(epoch).inverse(groups[whole])
        positions: Int64s = groups * self.group_size + places
        return positions

    def _sizes(self, whole: NDArray[np.bool_]) -> Int64s:
        return np.where(whole, self.group_size, max(self._batches % self.group_size, 1))

    def _permutation(self, epoch: int) -> Permutation:
        return Permutation(self._whole, self._seed, epoch, stream=self._stream)

    def _rotations(self, epoch: int, groups: Int64s) -> Int64s:
        rotations = np.empty_like(groups)
        _native.draw(
            self.group_size, word(self._seed), word(epoch), np.ascontiguousarray(groups + self._first), rotations
        )
        return rotations
