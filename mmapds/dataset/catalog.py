"""The indexes and sources behind a dataset: which there are, and how the core gets at one when it is first read."""

import numpy as np

from .. import _native, formats
from ..errors import Error, SourceError
from ..storage.index_file import Index
from ..storage.sources import reason
from .array_decoder import Tensors, of_format
from .decode import Decoder, same

_ADVICE = {
    "auto": _native.ADVISE_RANDOM,
    "random": _native.ADVISE_RANDOM,
    "sequential": _native.ADVISE_SEQUENTIAL,
}


class Catalog:
    """Some indexes, their records numbered through.

    The core's `Records` over a catalog ask it for sources; it does not refer to them, so that when the last view goes,
    every map goes with it at once.
    """

    def __init__(self, indexes: list[Index], access: str) -> None:
        if access not in _ADVICE:
            raise Error(f"access={access!r} is unknown; expected {', '.join(map(repr, _ADVICE))}")
        self.indexes = indexes
        self.access = access
        self.members = [(index, number) for index in indexes for number in range(len(index.sources))]
        counts = [index.sources[number].records for index, number in self.members]
        self._paths: dict[int, str] = {}
        self.starts = np.concatenate([[0], np.cumsum(counts, dtype=np.uint64)]).astype(np.uint64)
        for index in indexes:
            index.map.advise(_ADVICE[access])

    def records(self, *, views: bool) -> _native.Records:
        """Return all records, copied or as views of their source; sources are mapped when first read."""
        ahead, ask = self.access == "auto", self.access != "sequential"
        return _native.Records(self.starts, self, readahead=ahead, will_need=ask, views=views)

    def decoder(self, given: str | Decoder | None = None) -> str | Decoder:
        """What makes a sample of a record, also where the user does not say so.

        Raises:
          Error: the indexes are of formats that differ in this.
        """
        for index in self.indexes:
            formats.check_decoder(index.format, given, index.path)
        if given is not None and given != "torch":
            return given
        found: list[str | Decoder] = []
        for index in self.indexes:
            with index.understood():
                found.append(of_format(formats.by_name(index.format).decoder(index.parameters)))
        for index, decode in zip(self.indexes, found, strict=True):
            if not same(decode, found[0]):
                raise Error(f"{self.indexes[0].path} and {index.path} differ in what their records are; give decode=")
        if given is None:
            return found[0]
        try:
            return Tensors(found[0])
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Error("decode='torch' needs torch; run: pip install 'mmapds[torch]'") from None

    def source_path(self, member: int) -> str:
        """Where a source lies."""
        path = self._paths.get(member)
        if path is None:
            index, number = self.members[member]
            path = self._paths[member] = index.source_path(number)
        return path

    def open(self, member: int) -> tuple[_native.Map, memoryview, int, int, int]:
        """Map a source for the core, once it proves to be the one that was indexed."""
        index, number = self.members[member]
        path = index.source_path(number)
        try:
            opened = _native.Map(index.absolute(path))
        except OSError as error:
            raise SourceError(f"{path}: {reason(error)}; it is a source of {index.path}") from None
        except ValueError:
            raise SourceError(f"{path}: not a regular file; it is a source of {index.path}") from None
        index.check_source(number, opened.size, opened.mtime_ns)
        opened.advise(_ADVICE[self.access])
        with index.understood():
            layout = formats.by_name(index.format).layout(index.parameters, index.sources[number])
        return opened, index.bounds(number), *layout

    def corrupt(self, member: int, record: int, begin: int, end: int, size: int) -> None:
        """Raise for bounds that the core found not to fit their source."""
        index, number = self.members[member]
        raise index.damaged(
            f"record {record} of {index.source_path(number)} is said to be bytes {begin} to {end}, the file has {size}"
        )

    def place(self, member: int, record: int, offset: int) -> str:
        """Where a record is, as messages say it."""
        index, number = self.members[member]
        path = index.source_path(number)
        if not formats.by_name(index.format).is_text:
            return f"{path}: record {record} (byte {offset})"
        line = self._line(index, number, record, offset)
        return f"{path}{'' if line is None else f':{line}'} (byte {offset})"

    def _line(self, index: Index, number: int, record: int, offset: int) -> int | None:
        """The line, counted from 1, on which a record stands; None if it takes the source to tell, and that is gone."""
        source = index.sources[number]
        if source.lines == source.records:
            return record + 1
        try:
            view = memoryview(_native.Map(index.absolute(index.source_path(number))))
        except (OSError, ValueError):
            return None
        step = 1 << 20
        return 1 + sum(bytes(view[at : min(at + step, offset)]).count(b"\n") for at in range(0, offset, step))

    @property
    def identity(self) -> int:
        """A number that differs when other indexes are behind the same paths."""
        return hash(tuple(index.checksum for index in self.indexes))
