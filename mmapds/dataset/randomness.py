"""Random numbers for functions of `ds.map`: of a seed, an epoch and a record."""

from __future__ import annotations

import mmap
from typing import Any, SupportsIndex

import numpy as np

from ..errors import warn
from ..orders.basic import integer
from ..orders.permutation import word
from ..storage.workers import is_worker


class Randomness:
    """Makes a generator for each record of an epoch, of epoch 0 until one is set. Forked processes share the epoch."""

    def __init__(self, seed: SupportsIndex, epoch: int | None = None) -> None:
        self.seed = integer("seed", seed)
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        if epoch is not None:
            self.epoch = epoch

    @property
    def epoch(self) -> int:
        return int.from_bytes(self._shared[:8], "little")

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._shared[:9] = word(epoch).to_bytes(8, "little") + b"\1"

    @property
    def is_set(self) -> bool:
        """Whether somebody has set the epoch."""
        return self._shared[8] != 0

    def copy(self) -> Randomness:
        """Return another with its own epoch, the same at first."""
        return Randomness(self.seed, self.epoch if self.is_set else None)

    def warn_unless_set(self) -> None:
        """Warn in a worker whose loader set no epoch; of forked workers one warns."""
        if not self.is_set and is_worker():
            self.epoch = 0
            warn(
                f"map(seed={self.seed}): expected set_epoch before the workers start, found none; these random numbers "
                "are of epoch 0. Call ds.set_epoch(epoch) before each epoch, or use mmapds.DataLoader"
            )

    def of(self, record: int) -> np.random.Generator:
        """Return the generator of a record in this epoch."""
        key = np.array([word(self.seed), self.epoch], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, record]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Randomness, (self.seed, self.epoch if self.is_set else None)
