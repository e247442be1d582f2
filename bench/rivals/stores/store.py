"""What every way to keep records answers."""

from abc import ABC, abstractmethod

import numpy as np

from bench.support.memory import worker_memory

BATCH = 256


class Store(ABC):
    """The records of a file of JSON Lines, kept in some way, so that any of them can be read.

    A record comes out as `orjson.loads` of its line would give it: all do the same work. What a store cannot do stands
    in `cannot`, and is neither called nor timed.
    """

    title = ""
    how = ""
    """What is kept, and how it is read, in a few words."""
    package: str | None = None
    """The distribution whose version stands in the table."""
    cannot: dict[str, str] = {}
    """Why there is no "read", "batch", "epoch" or "workers"."""

    def __init__(self, source, folder):
        self.source, self.folder = source, folder

    @abstractmethod
    def prepare(self):
        """Write what `open` needs into the folder; once for a source."""

    @abstractmethod
    def open(self):
        """Make all ready to read, as each process that reads does."""

    @abstractmethod
    def __len__(self):
        """How many records there are."""

    def read(self, row):
        """Return a record. A store that only streams does not have this, and says why in `cannot`."""
        raise NotImplementedError

    def batch(self, rows):
        """Return some records, in the order of their numbers."""
        return [self.read(row) for row in rows]

    def epoch(self, seed):
        """Yield all records in a shuffled order: here, batches along a permutation."""
        order = np.random.default_rng(seed).permutation(len(self))
        for begin in range(0, len(order), BATCH):
            yield from self.batch(order[begin : begin + BATCH].tolist())

    def memory_of_workers(self, workers):
        """Return the anonymous memory of each worker of a loader after its last batch, smallest first."""
        return worker_memory(Rows(self), len(self), "spawn", workers)


class Rows:
    """A store as a dataset of torch."""

    def __init__(self, store):
        self._store = store

    def __getitem__(self, row):
        return self._store.read(row)

    def __getitems__(self, rows):
        return self._store.batch(rows)

    def __len__(self):
        return len(self._store)
