"""What many write first: a Python list of where lines begin, and a seek for each."""

import orjson

from .store import Store as _Store


class Store(_Store):
    title = "plain Python"
    how = "a list of offsets, made by each process; seek, readline"

    def prepare(self):
        """Write nothing: the file is scanned wherever it is opened."""

    def open(self):
        self._file, self._offsets, at = None, [], 0
        with open(self.source, "rb") as file:
            for line in file:
                self._offsets.append(at)
                at += len(line)

    def __len__(self):
        return len(self._offsets)

    def __getstate__(self):
        return vars(self) | {"_file": None}

    def read(self, row):
        if self._file is None:
            self._file = open(self.source, "rb")  # noqa: SIM115 - for as long as there are reads
        self._file.seek(self._offsets[row])
        return orjson.loads(self._file.readline())
