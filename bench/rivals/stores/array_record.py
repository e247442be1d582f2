"""ArrayRecord: the lines copied to one file that is made for random reads."""

import orjson
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter

from .store import Store as _Store


class Store(_Store):
    title = "ArrayRecord"
    how = "lines in groups of one, not compressed"
    package = "array-record"

    def prepare(self):
        writer = ArrayRecordWriter(self._path, "group_size:1,uncompressed")
        with open(self.source, "rb") as file:
            for line in file:
                writer.write(line.rstrip(b"\n"))
        writer.close()

    @property
    def _path(self):
        return str(self.folder / "lines.array_record")

    def open(self):
        self._lines = ArrayRecordDataSource([self._path])

    def __len__(self):
        return len(self._lines)

    def read(self, row):
        return orjson.loads(self._lines[row])

    def batch(self, rows):
        return list(map(orjson.loads, self._lines.__getitems__(rows)))
