"""Grain: its own shuffle, and readers ahead, over ArrayRecord."""

import grain
import orjson

from .array_record import Store as _ArrayRecord


class Store(_ArrayRecord):
    title = "Grain"
    how = "over ArrayRecord, with threads that read ahead"
    package = "grain"

    def open(self):
        super().open()
        self._dataset = grain.MapDataset.source(self._lines).map(orjson.loads)

    def read(self, row):
        return self._dataset[row]

    def batch(self, rows):
        return [self._dataset[row] for row in rows]

    def epoch(self, seed):
        yield from self._dataset.shuffle(seed=seed).to_iter_dataset()
