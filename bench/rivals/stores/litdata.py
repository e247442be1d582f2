"""LitData: the file converted to chunks."""

import litdata
import orjson

from .store import Store as _Store


def records(path):
    """Yield the records of a file."""
    with open(path, "rb") as file:
        yield from map(orjson.loads, file)


class Store(_Store):
    title = "LitData"
    how = "chunks of 64 MB"
    package = "litdata"

    def prepare(self):
        # One worker, so that records keep their order.
        litdata.optimize(records, [str(self.source)], output_dir=str(self.folder), chunk_bytes="64MB", num_workers=1)

    def open(self):
        self._dataset = litdata.StreamingDataset(str(self.folder), shuffle=True)

    def __len__(self):
        return len(self._dataset)

    def read(self, row):
        return self._dataset[row]

    def epoch(self, seed):
        yield from self._dataset
