"""Lance: the file converted to a table of columns."""

import lance
import pyarrow.json

from .store import Store as _Store


class Store(_Store):
    title = "Lance"
    how = "a table of columns"
    package = "pylance"

    def prepare(self):
        lance.write_dataset(pyarrow.json.read_json(self.source), self.folder / "table.lance")

    def open(self):
        self._dataset = lance.dataset(self.folder / "table.lance")

    def __len__(self):
        return self._dataset.count_rows()

    def __getstate__(self):
        return {"source": self.source, "folder": self.folder}

    def __setstate__(self, state):
        vars(self).update(state)
        self.open()

    def read(self, row):
        return self.batch([row])[0]

    def batch(self, rows):
        return self._dataset.take(rows).to_pylist()
