"""mmapds: an index beside the file."""

import mmapds

from .store import BATCH
from .store import Store as _Store


class Store(_Store):
    title = "mmapds"
    how = "an index; the file stays"
    package = "mmap-datasets"

    def prepare(self):
        mmapds.build(self.source, out=self.folder / "source.mmx")

    def open(self):
        self._dataset = mmapds.open(self.folder / "source.mmx", roots=[self.source.parent])

    def __len__(self):
        return len(self._dataset)

    def read(self, row):
        return self._dataset[row]

    def batch(self, rows):
        return list(self._dataset.take(rows))

    def epoch(self, seed):
        sampler = mmapds.DistributedBatchSampler(self._dataset, BATCH, num_replicas=1, rank=0, seed=seed)
        for rows in sampler:
            yield from self._dataset.take(rows)
