"""Hugging Face datasets: the file converted to Arrow in a cache."""

import datasets

from .store import Store as _Store


class Store(_Store):
    title = "HF datasets"
    how = "Arrow files in a cache"
    package = "datasets"

    def prepare(self):
        self.open()

    def open(self):
        self._dataset = datasets.load_dataset(
            "json", data_files=str(self.source), split="train", cache_dir=str(self.folder)
        )

    def __len__(self):
        return len(self._dataset)

    def read(self, row):
        return self._dataset[row]

    def batch(self, rows):
        return self._dataset.__getitems__(rows)

    def epoch(self, seed):
        yield from self._dataset.shuffle(seed=seed)
