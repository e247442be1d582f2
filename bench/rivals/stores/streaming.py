"""MosaicML Streaming: the file converted to shards of MDS."""

import orjson
from torch.utils.data import IterableDataset

from bench.support.memory import stream_memory

from ..mds import streaming
from .store import BATCH
from .store import Store as _Store

COLUMNS = {"id": "int", "source": "str", "source_len": "int", "target": "str"}


class Store(_Store):
    title = "MosaicML Streaming"
    how = "MDS shards"
    package = "mosaicml-streaming"

    def prepare(self):
        with streaming.MDSWriter(out=str(self.folder), columns=COLUMNS) as writer, open(self.source, "rb") as file:
            for line in file:
                writer.write(orjson.loads(line))

    def open(self):
        self._dataset = streaming.StreamingDataset(local=str(self.folder), shuffle=True, batch_size=BATCH)

    def __len__(self):
        return len(self._dataset)

    def read(self, row):
        return self._dataset[row]

    def epoch(self, seed):
        yield from self._dataset

    def memory_of_workers(self, workers):
        return stream_memory(Stream(self._dataset), workers)


class Stream(IterableDataset):
    """The dataset, in a class of this module, so that workers load streaming as it is loaded here."""

    def __init__(self, dataset):
        self._dataset = dataset

    def __iter__(self):
        return iter(self._dataset)
