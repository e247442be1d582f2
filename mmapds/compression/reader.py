"""Random access into a compressed source: the blocks that hold some bytes of its content, from the cache or decoded."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import Error, quoted, tool
from ..storage.blocks import BlockTable, Edges, Place
from ..storage.processes import is_worker
from ..storage.sections import LARGEST_BLOCK
from ..storage.threads import cores, in_order
from . import zstd_frames
from .cache import BlockCache
from .codecs import decoder_of
from .forward import PIECE, Forward
from .parts import Block, BlockError, Pieces, not_decoded

if TYPE_CHECKING:
    from ..storage.index_file import Index
    from ..storage.sections import IndexedSource

_WORTH_THREADS = 4  # blocks to decode
_MOST_THREADS = 4
_MOST_FORWARD = 4  # large blocks at a time whose decoders are kept, each with its window
_MOST_KNOWN = 1 << 9  # blocks whose places are kept
_FEW = 1 << 12  # blocks whose bounds are read without a search for those of a batch
_NEIGHBOURS = 1 << 16  # blocks whose bounds are read at once, to find those of a batch
_BYTES_A_SECOND = 100 << 20  # that a core makes seekable
_TIMES, _MORE = 32, 1 << 20  # bytes that the frames of a block may have: so many times its content, and some more


def _most_bytes(place: Place) -> int:
    """Return how many bytes of the file are read at once for a block."""
    return _TIMES * place.size + _MORE


def random_access_error(path: str, source: "IndexedSource", found: str) -> Error:
    """Return the error to raise for a source that is read out of order, though a block of it is too large for that."""
    assert source.compression is not None
    size, largest = source.compression.size, source.compression.largest
    seconds = math.ceil(size / (_BYTES_A_SECOND * cores()))
    return Error(
        f"{path}: expected records in the order of the file, as a block has {largest} of its {size} bytes of content, "
        f"{found}; run: {tool('seekable')} {quoted(path)} (about {seconds} s, and {source.size} bytes for the new file)"
    )


class BlockReader:
    """The content of a compressed source, as the core's `Records` reads it.

    Args:
      index: has the source.
      number: of the source there.
      file: the source, which was compared with the one that was indexed.
      cache: of blocks; `key` tells those of this source from others.
      lost: raises the error for a source that was cut short (0), or cannot be read (errno).
    """

    def __init__(
        self,
        index: "Index",
        number: int,
        file: _native.Map,
        cache: BlockCache,
        key: int,
        lost: Callable[[int], object],
    ) -> None:
        compression = index.sources[number].compression
        assert compression is not None
        self._index, self._number, self._file = index, number, file
        self._cache, self._key, self._lost = cache, key, lost
        self._table = BlockTable(index, number)
        self._codec = compression.codec
        self._decoder = decoder_of(compression.codec, self._path)
        self._size = compression.size
        self._forward: dict[int, Forward] = {}
        self._known: dict[int, Place] = {}
        """Where blocks lie that were read lately, as the next batch is often of the same."""
        self._last = 0, Place(0, 0, 0, 0)
        """The block where the last single record was, as the next one is often there too."""

    @property
    def size(self) -> int:
        """Bytes of content."""
        return self._size

    @property
    def _path(self) -> str:
        return self._index.source_path(self._number)

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes of the content, without those after its end."""
        end = min(end, self.size)
        if begin >= end:
            return b""
        wanted = b"".join(each.to_bytes(8, "little") for each in (begin, end))
        found = ((at, b"".join(block)) for at, block in sorted(self.blocks(wanted)))
        return b"".join(content[max(begin - at, 0) : end - at] for at, content in found)

    def blocks(self, wanted: bytes) -> Iterator[tuple[int, Block]]:
        """Yield where each block with some of the wanted bytes begins in the content, and its content; in any order.

        Args:
          wanted: bounds of ranges, uint64 in pairs, ascending.
        Raises:
          FormatError: a block, or the index, is damaged.
          SourceError, StaleIndexError: the source was cut short, or cannot be read.
        """
        missing = []
        places = list(self._places(wanted))
        kept = self._cache.find_all([(self._key, block) for block, _ in places])
        for (block, place), found in zip(places, kept, strict=True):
            if found is not None:
                yield place.content, found
            elif place.size > LARGEST_BLOCK:
                yield from self._in_order(block, place, memoryview(wanted).cast("Q"))
            else:
                missing.append((block, place))
        kept, found = [], None  # a block that the cache drops gives its memory to the next
        workers = min(len(missing), 1 if is_worker() else min(cores(), _MOST_THREADS))
        if len(missing) < _WORTH_THREADS or workers < 2:
            for each in missing:
                yield self._get(each, 0)
        else:
            yield from in_order(self._get, missing, workers=workers, slots=list(range(workers + 1)))

    def _places(self, wanted: bytes) -> Iterator[tuple[int, Place]]:
        """Yield the blocks that have some bytes, ascending, and where they lie: no byte of the content is in two.

        Raises:
          FormatError: the index is damaged.
        """
        ranges = memoryview(wanted).cast("Q")
        if len(ranges) == 2:
            yield from self._neighbours(*ranges)
            return
        end = 0
        blocks = self._blocks_with(wanted)
        if len(self._known) > _MOST_KNOWN:
            self._known = {}
        known = self._known
        new = [block for block in blocks if block not in known]
        known.update(zip(new, self._table.places(new), strict=True))
        for block in blocks:
            place = known[block]
            if place.content < end:
                raise self._index.damaged(
                    f"block {block} of {self._path}: expected content from byte {end} on, found byte {place.content}"
                )
            end = place.content_end
            yield block, place

    def _neighbours(self, begin: int, end: int) -> Iterator[tuple[int, Place]]:
        """Yield the blocks that have the bytes of one range."""
        if begin >= end or not self._table.count:
            return
        block, place = self._last
        if not place.content <= begin < place.content_end:
            block = self._table.find(begin)
            place = self._table.place(block)
        self._last = block, place
        yield block, place
        while place.content_end < end and block + 1 < self._table.count:
            block += 1
            place = self._table.place(block)
            yield block, place

    def _blocks_with(self, wanted: bytes) -> Sequence[int]:
        """Return the numbers of the blocks that have some bytes, ascending."""
        import numpy as np  # batches alone need it

        begins, ends = np.frombuffer(wanted, np.uint64).reshape(-1, 2).T
        begins, ends = begins[begins < ends], ends[begins < ends]
        if not len(begins):
            return ()
        first, last = 0, max(self._table.count - 1, 0)
        if last > _FEW:
            first, last = self._table.find(int(begins[0])), self._table.find(int(ends.max()) - 1)
        if last - first < _NEIGHBOURS:
            bounds = np.asarray(self._table.bounds.read(first + 1, last + 1))
            firsts = first + np.searchsorted(bounds, begins, "right")
            lasts = first + np.searchsorted(bounds, ends, "left")
        else:
            firsts, lasts = (np.array([self._table.find(at) for at in each.tolist()]) for each in (begins, ends - 1))
        if (firsts == lasts).all():
            found: list[int] = sorted(set(firsts.tolist()))
            return found
        ranges_of_blocks = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return sorted({block for first, last in ranges_of_blocks for block in range(first, last + 1)})

    def _in_order(self, block: int, place: Place, ranges: memoryview) -> Iterator[tuple[int, Block]]:
        """Yield the pieces of a large block that have some bytes; see `blocks`."""
        forward = self._forward.get(block)
        if forward is None:
            self._check(place)
            begin = partial(self._decoder.stream, self._file, place.begin, place.end, self._table.edges(block))
            forward = self._forward[block] = Forward(begin, self._cache, (self._key, block))
            for old in list(self._forward)[:-_MOST_FORWARD]:
                self._forward.pop(old, None)
        numbers: set[int] = set()
        for begin_at, end_at in zip(ranges[::2].tolist(), ranges[1::2].tolist(), strict=True):
            first, end = max(begin_at, place.content), min(end_at, place.content_end)
            if first < end:
                numbers.update(range((first - place.content) // PIECE, (end - 1 - place.content) // PIECE + 1))
        for number in sorted(numbers):
            piece = self._piece(forward, block, place, number)
            if piece is None:
                raise self._not_in_order(place, number)
            yield place.content + number * PIECE, (piece,)

    def _piece(self, forward: Forward, block: int, place: Place, number: int) -> "bytes | _native.Block | None":
        try:
            piece = forward.piece(number)
            left = place.size - number * PIECE
            if piece is not None and len(piece) < min(left, PIECE):
                raise BlockError(f"expected {place.size} bytes of content, found {number * PIECE + len(piece)}")
        except BlockError as error:
            raise not_decoded(self._path, block, place.begin, self._codec, error, self._records_of(place)) from None
        except (EOFError, OSError) as error:
            self._lost(error.errno or 0 if isinstance(error, OSError) else 0)
            raise
        return piece

    def _not_in_order(self, place: Place, number: int) -> Error:
        offset = place.content + number * PIECE
        record = self._record_at(min(offset + PIECE, place.content_end) - 1)
        return random_access_error(
            self._path, self._index.sources[self._number], f"found record {record} of the index, which lies behind"
        )

    def _get(self, wanted: tuple[int, Place], _: Any) -> tuple[int, Block]:
        """Return where a block begins in the content, and its content."""
        block, place = wanted
        return place.content, self._cache.get((self._key, block), partial(self._decode, block, place))

    def _decode(self, block: int, place: Place) -> Block:
        self._check(place)
        self._cache.make_room(place.size)
        found = self._decode_at_once(place)
        return (found or self._cache.memory.copy(self._decode_in_pieces(block, place)),)

    def _check(self, place: Place) -> None:
        """Raise an error where the file was too short for a block when it was opened, and not compared."""
        if place.end > self._file.size:
            self._lost(0)

    def _decode_at_once(self, place: Place) -> _native.Block | None:
        """Return a block; None if there is no library for that, or something is wrong with the block."""
        library = self._decoder.library
        if library is None or not 0 < place.end - place.begin <= _most_bytes(place):
            return None
        return library.decode(
            self._cache.memory, self._file, place.begin, place.end, place.size, zstd_frames.LARGEST_WINDOW
        )

    def _decode_in_pieces(self, block: int, place: Place) -> Pieces:
        try:
            content = self._content(place, self._table.edges(block))
            size = None if content is None else sum(map(len, content))
            if content is None or size != place.size:
                found = f"more than {place.size}" if size is None else str(size)
                raise BlockError(f"expected {place.size} bytes of content, found {found}")
        except BlockError as error:
            raise not_decoded(self._path, block, place.begin, self._codec, error, self._records_of(place)) from None
        except (EOFError, OSError) as error:
            self._lost(error.errno or 0 if isinstance(error, OSError) else 0)
            raise
        return content

    def _content(self, place: Place, edges: Edges) -> Pieces | None:
        """Return the content of a block; None if it is more than the index says."""
        if place.end - place.begin <= _most_bytes(place):
            return self._decoder.decode(self._file.read(place.begin, place.end - place.begin), place.size, edges)
        # Mostly a frame without content, such as the seek table of a file to which another was appended.
        stream = self._decoder.stream(self._file, place.begin, place.end, edges)
        pieces: list[bytes] = []
        left = place.size
        while left >= 0 and (piece := stream.read()):
            pieces.append(piece)
            left -= len(piece)
        return tuple(pieces) if left >= 0 else None

    def _records_of(self, place: Place) -> str:
        """Return which records a block has, as the remark of a message."""
        first, last = (self._record_at(offset) for offset in (place.content, place.content_end - 1))
        return f" (it has records {first} to {last} of the index)"

    def _record_at(self, offset: int) -> int:
        """Return the record of the index, counted through all its sources, that holds a byte of the content."""
        low, high = 0, self._index.sources[self._number].records
        while low < high:
            middle = (low + high) // 2
            if self._index.bounds(self._number, middle + 1, middle + 2)[0] > offset:
                high = middle
            else:
                low = middle + 1
        return self._index.firsts[self._number] + min(low, max(self._index.sources[self._number].records - 1, 0))
