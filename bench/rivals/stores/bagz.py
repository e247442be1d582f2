"""bagz: the lines copied to one file with their limits behind them."""

import bagz
import orjson

from .store import Store as _Store


class Store(_Store):
    title = "bagz"
    how = "lines in a .bag, not compressed"
    package = "bagz"

    def prepare(self):
        with bagz.Writer(self.folder / "lines.bag") as writer, open(self.source, "rb") as file:
            for line in file:
                writer.write(line.rstrip(b"\n"))

    def open(self):
        self._reader = bagz.Reader(self.folder / "lines.bag")

    def __len__(self):
        return len(self._reader)

    def __getstate__(self):
        return {"source": self.source, "folder": self.folder}

    def __setstate__(self, state):
        vars(self).update(state)
        self.open()

    def read(self, row):
        return orjson.loads(self._reader[row])

    def batch(self, rows):
        return list(map(orjson.loads, self._reader.read_indices(rows)))
