"""The catalog of a dataset: its indexes and their sources, which the core opens at the first read."""

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from .. import _native, formats
from ..compression.blocks import BlockTable, Extent
from ..compression.content import line_number
from ..compression.reader import CACHE, PIECE, BlockCache, BlockReader, out_of_order
from ..errors import Error, FormatError, SourceError, StaleIndexError, shortened
from ..storage.current import check_source, stat_source
from ..storage.index_file import Index
from ..storage.places import Place, Places, absolute
from ..storage.sections import LARGEST_BLOCK, Compression
from ..storage.sources import IoChoice, io_of, open_file, reason

_ADVICE = {"auto": _native.ADVISE_RANDOM, "random": _native.ADVISE_RANDOM, "sequential": _native.ADVISE_SEQUENTIAL}

Located = tuple[int, int, int, int]
"""The result of `Records.locate`: source, record number in the source, and begin and end of the payload."""


class Location(NamedTuple):
    """Where a record lies: path, first byte, and number of bytes of its payload.

        source, offset, size = ds.where(7)

    In a compressed file, `offset` counts decompressed bytes. An attribute `block` is then the byte of the file at which
    the record's block begins.
    """

    source: str
    offset: int
    size: int


class _BlockLocation(Location):
    block: int


class Catalog:
    """The indexes behind a dataset, whose records are numbered consecutively over all sources.

    The core's `Records` hold the catalog and request sources from it. The catalog does not hold them: without a cycle,
    all maps close as soon as the last view is deleted.
    """

    def __init__(self, indexes: Sequence[Index], access: str, io: IoChoice, block_cache: int = CACHE) -> None:
        if access not in _ADVICE:
            raise Error(f"access = {access!r}, expected one of {', '.join(map(repr, _ADVICE))}")
        if type(block_cache) is not int or block_cache < 0:
            raise Error(f"block_cache = {shortened(block_cache)}, expected a number of bytes, 0 or more")
        self.blocks = BlockCache(block_cache)
        """Decoded blocks of compressed sources."""
        self.indexes = indexes
        self.access = access
        self.io = io
        self.members = [(index, number) for index in indexes for number in range(len(index.sources))]
        """Every source as (index, number of the source in the index)."""
        self._generations: dict[Place, int] = {}  # of the places, when a source was opened last
        counts = [index.sources[number].records for index, number in self.members]
        self._paths: dict[int, str] = {}
        if sum(counts) >= 2**63:  # positions are signed
            raise indexes[0].damaged(f"expected less than 2**63 records in all, found {sum(counts)}")
        self.starts = np.cumsum([0, *counts], dtype=np.uint64)
        """Number of the first record of each source, then the number of records: shape (sources + 1,)."""
        for index in indexes:
            index.map.advise(_ADVICE[access])

    @property
    def how(self) -> tuple[str, IoChoice, bool]:
        """Arguments of `open` that concatenated datasets must share: access, io, and whether sources are checked."""
        return self.access, self.io, all(index.check != "none" for index in self.indexes)

    def fingerprint(self, rows: bytes) -> str:
        """Return a hash of all sources, as indexed, and of a selection of their rows."""
        mark = xxh3_64(rows)
        for index, number in self.members:
            source = index.sources[number]
            mark.update(f"{source.fingerprint} {source.size} {source.records} ".encode())
            if source.skipped:  # the options decide which lines were skipped
                mark.update(json.dumps(index.measuring, sort_keys=True).encode())
        return mark.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        directory = os.getcwd()
        paths = [each.path if each.opened_in == directory else each.absolute(each.path) for each in self.indexes]
        packed = zlib.compress("\0".join(paths).encode(errors="surrogateescape"))
        places = Places.joined({index.places for index in self.indexes})
        return _reopened, (directory, packed, _identity(self.indexes), places, self.how, self.blocks.limit)

    def source_path(self, member: int) -> str:
        path = self._paths.get(member)
        if path is None:
            index, number = self.members[member]
            path = self._paths[member] = index.source_path(number)
        return path

    def open(
        self, member: int, records: _native.Records | None
    ) -> tuple[_native.Map | BlockReader, _native.Map, int, int, int, int, int]:
        """Open a source for the core, a compressed one as a BlockReader; return it with the layout of its records.

        Args:
          records: those that ask; they close their files if some were removed.
        """
        index, number = self.members[member]
        opened = self._file(index, number, records)
        check_source(index, number, opened.size, opened.mtime_ns)
        content: _native.Map | BlockReader = opened
        if index.sources[number].compression is None:
            opened.advise(_ADVICE[self.access])
        else:  # no advice to the kernel: a block is many pages
            with index.reporting_malformed_metadata():
                own = formats.of_index(index).blocks(index.parameters, index.local_path(number), opened)
            content = BlockReader(index, number, opened, self.blocks, member, partial(self.lost, member), own)
        with index.reporting_malformed_metadata():
            layout = formats.of_index(index).layout(index.parameters, index.sources[number])
        if index.has_bounds != (layout.stride == 0):
            expected, found = ("offsets", "none") if layout.stride == 0 else ("no offsets", "some")
            raise index.damaged(f"format {index.format!r}: expected {expected}, found {found}")
        return content, index.map, index.bounds_at(number), index.sources[number].width, *layout

    def _file(self, index: Index, number: int, records: _native.Records | None) -> _native.Map:
        """Open the file of a source; close all files if the place has removed some: a map would keep their space."""
        while True:
            path, place = index.local_path(number), index.place(number)
            generation = place.generation
            if self._generations.setdefault(place, generation) != generation and records is not None:
                self._generations[place] = generation
                records.forget()
            try:
                return open_file(path, io_of(self.io, path))
            except FileNotFoundError as error:
                if place.is_disk:  # otherwise another process has removed it just now
                    raise index.unreadable(number, reason(error)) from None
            except OSError as error:
                raise index.unreadable(number, reason(error)) from None

    def lost(self, member: int, code: int) -> None:
        """Raise the error for a source that cannot be read (`code` = errno) or was cut short (0); the core calls it."""
        index, number = self.members[member]
        path = index.source_path(number)
        if code:
            raise index.unreadable(number, os.strerror(code).lower())
        if found := stat_source(index, number):
            index.check_size(number, found.st_size)
        path_of_index = index.absolute(index.path)
        if os.path.exists(path_of_index) and os.path.getsize(path_of_index) < index.map.size:
            raise index.cut_short()
        expected = index.sources[number].size
        raise SourceError(f"{path}: expected {expected} bytes, found fewer; check the disk (a source of {index.path})")

    def corrupt(self, member: int, record: int, begin: int, end: int, size: int) -> None:
        """Raise FormatError for the bounds of a record outside its source; the core calls this."""
        index, number = self.members[member]
        raise index.damaged(
            f"record {record} of {index.source_path(number)}: expected bytes within 0 to {size}, found {begin} to {end}"
        )

    def no_room(self, member: int, record: int, begin: int, size: int, count: int = 1) -> NoReturn:
        """Raise MemoryError for records of `size` bytes in all, and name the largest one; the core calls this."""
        what = f"{count} records of {size} bytes together" if count > 1 else f"a record of {size} bytes"
        raise self.short_of_memory((member, record, begin, begin), what)

    def short_of_memory(self, located: Located, what: str) -> MemoryError:
        """Return the MemoryError of a record; `what` names what did not fit."""
        return MemoryError(f"{self.place(located)}: expected room in memory for {what}, found none")

    @property
    def place_of_sources(self) -> Place:
        """Where the sources lie, by the first of them."""
        index, number = self.members[0]
        return index.place(number)

    # ---- the cost of an order over compressed blocks -----------------------------------------------------------

    def decodes(self, numbers: NDArray[np.int64], limit: int) -> tuple[float, float]:
        """Return how often an epoch decodes a block, and the decoded bytes for a record, for a given cache.

        Args:
          numbers: the first records of an epoch; the first half of them fills the cache.
          limit: bytes of the cache.
        Raises:
          Error: a record of a block larger than the cache comes after later ones, which may have replaced it there.
        """
        cached, cached_bytes, decoded, decoded_bytes = OrderedDict[tuple[int, int], int](), 0, 0, 0
        reached: dict[tuple[int, int], int] = {}  # decoded up to this byte of the content, for blocks read in order
        for k, (block, place, begin) in enumerate(self._blocks_of(numbers)):
            size = place.size
            if size > max(LARGEST_BLOCK, limit):
                # Half of the cache: other sources, and threads that read ahead, use it too.
                if place.content + PIECE <= begin < reached.get(block, 0) - limit // 2:
                    raise out_of_order(self.source_path(block[0]), block[1], size, limit)
                reached[block] = max(begin, reached.get(block, 0) if begin >= place.content + PIECE else 0)
            if block in cached:
                cached.move_to_end(block)
                continue
            if k >= len(numbers) // 2:
                decoded, decoded_bytes = decoded + 1, decoded_bytes + size
            while cached and cached_bytes + size > limit:
                cached_bytes -= cached.popitem(last=False)[1]
            cached[block] = size
            cached_bytes += size
        records, blocks = int(self.starts[-1]), sum(each.blocks for each in self._compressed())
        counted = len(numbers) - len(numbers) // 2
        return decoded / counted * records / max(min(blocks, records), 1), decoded_bytes / counted

    def _compressed(self) -> Iterator[Compression]:
        return (source.compression for index in self.indexes for source in index.sources if source.compression)

    @property
    def is_cached(self) -> bool:
        """Whether the cache has room for all blocks."""
        return sum(each.size for each in self._compressed()) <= self.blocks.limit

    def _blocks_of(self, numbers: NDArray[np.int64]) -> Iterator[tuple[tuple[int, int], Extent, int]]:
        """Yield the block of each record of compressed sources, the block's place, and the record's first byte."""
        tables: dict[int, BlockTable] = {}
        members = np.searchsorted(self.starts, numbers.astype(np.uint64), side="right") - 1
        records = numbers - self.starts[members].astype(np.int64)
        for member, record in zip(members.tolist(), records.tolist(), strict=True):
            index, number = self.members[member]
            if index.sources[number].compression is not None:
                table = tables[member] = tables.get(member) or BlockTable(index, number)
                begin = index.bounds(number, record, record + 1)[0]
                block = table.find(begin)
                yield (member, block), table.place(block), begin

    # ---- locations of records, and bad records -----------------------------------------------------------------

    def location(self, located: Located) -> Location:
        member, _, begin, end = located
        index, number = self.members[member]
        path = self.source_path(member)
        if index.sources[number].compression is None:
            return Location(path, begin, end - begin)
        table = BlockTable(index, number)
        found = _BlockLocation(path, begin, end - begin)
        found.block = table.place(table.find(begin)).begin
        return found

    def place(self, located: Located) -> str:
        """Return the location of a record as text: `train.jsonl:41 (byte 51200)`."""
        member, record, offset, _ = located
        index, number = self.members[member]
        source, line = index.sources[number], f": record {record}"
        if formats.of_index(index).is_text and source.lines == source.records:
            line = f":{record + 1}"
        elif formats.of_index(index).is_text:
            with suppress(SourceError, FormatError, MemoryError):  # if lines cannot be counted
                line = f":{line_number(index.local_path(number), offset)}"
        return f"{index.source_path(number)}{line} (byte {offset})"

    def check_line(self, located: Located) -> None:
        """Raise FormatError if an undecodable record is not a whole line: then the index is damaged, not the record."""
        member, record, begin, end = located
        index, number = self.members[member]
        if not formats.of_index(index).is_text or index.check == "none":
            return
        try:
            content = self.open(member, None)[0]
            first, last = max(begin - 1, 0), min(end + 2, content.size)
            before, after = content.read(first, begin - first), content.read(end, max(last - end, 0))
        except (OSError, EOFError, Error, MemoryError):
            return  # the decoder's error says more
        begins = before in (b"", b"\n") or (record, begin) == (0, 3)  # after a byte order mark
        if not begins or not (after.startswith(b"\n") or after in (b"", b"\r\n")):
            path = index.source_path(number)
            raise index.damaged(f"record {record} of {path}: expected a whole line, found bytes {begin} to {end}")


def _identity(indexes: Sequence[Index]) -> int:
    """Return a checksum over the checksums of indexes; it changes when one of them is rebuilt."""
    return zlib.crc32(b"".join(index.checksum.to_bytes(8, "little") for index in indexes))


def _reopened(
    directory: str,
    packed: bytes,
    identity: int,
    places: Places,
    how: tuple[str, IoChoice, bool],
    block_cache: int,
) -> Catalog:
    """Open a pickled catalog again. Sources are checked at the first read, as with `check="stat"` or "none"."""
    access, io, compares = how
    paths = zlib.decompress(packed).decode(errors="surrogateescape").split("\0")
    if os.getcwd() != directory:  # not normalised, as `..` may follow a link
        paths = [absolute(path, directory) for path in paths]
    indexes = [Index(path, places, io_of(io, os.path.join(directory, path))) for path in paths]
    if _identity(indexes) != identity:
        more = f" and {len(paths) - 1:,} more" if len(paths) > 1 else ""
        raise StaleIndexError(f"{paths[0]}{more}: not the indexes of the pickled dataset; open the dataset again")
    for index in indexes:
        index.check = "stat" if compares else "none"
    return Catalog(indexes, access, io, block_cache)
