"""Random numbers of a record in an epoch: the same in any process, order and batch."""

import mmap
from typing import Any, SupportsIndex

import numpy as np

from ..orders.basic import integer
from ..orders.permutation import word


class Randomness:
    """Makes a generator for each record of an epoch. Forked processes share the epoch."""

    def __init__(self, seed: SupportsIndex, epoch: int = 0) -> None:
        self.seed = integer("seed", seed)
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.epoch = epoch

    @property
    def epoch(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shared[:8] = word(epoch).to_bytes(8, "little")

    def of(self, record: int) -> np.random.Generator:
        """Return the generator of a record in this epoch."""
        key = np.array([word(self.seed), self.epoch], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, record]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Randomness, (self.seed, self.epoch)
