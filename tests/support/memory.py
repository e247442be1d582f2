"""A third place, to show that the disk and the stores are only two of them: names such as memory://data/a.jsonl."""

import os
from fnmatch import fnmatchcase

from mmapds.errors import IndexMissingError, SourceError, StaleIndexError
from mmapds.storage.places import Place, is_below, outside
from mmapds.storage.sources import Source, named


class Memory(Place):
    """Bytes in a dict, by name; their number stands for the time. Files lie in `folder` while somebody reads them."""

    def __init__(self, folder):
        self.folder, self.data, self.asked = folder, {}, []

    def expand(self, pattern, suffixes, report):
        found = sorted(name for name in self.data if fnmatchcase(name, pattern) and named(name, (*suffixes, ".mmx")))
        if not found:
            raise SourceError(f"{pattern}: expected one name or more, found none")
        return found

    def inspect(self, names):
        return [Source(name, len(self.data[name]), 0, etag=self._etag(name)) for name in names]

    def check(self, name, index, home):
        if not is_below(name, home):
            raise outside(index, "names below its own", name, name[: name.rfind("/") + 1])

    def file(self, source):
        self.asked.append(source.path)
        if self._etag(source.path) != source.etag:
            raise StaleIndexError(f"{source.path}: STALE: has other bytes than when it was indexed; index it again")
        return self._written(source.path)

    def file_of_index(self, name):
        if name not in self.data:
            raise IndexMissingError(f"{name}: no such index")
        return self._written(name)

    def publish(self, path, name):
        with open(path, "rb") as file:
            self.data[name] = file.read()

    def figures(self):
        return {"asked": len(self.asked)}

    def _etag(self, name):
        return str(hash(self.data[name]))

    def _written(self, name):
        path = os.path.join(self.folder, f"{self._etag(name)}-{os.path.basename(name)}")
        if not os.path.exists(path):
            with open(path, "xb") as file:
                file.write(self.data[name])
        return path
