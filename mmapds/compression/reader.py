"""Random access into a compressed source: the blocks that hold some bytes of its content, from the cache or decoded."""

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

from .. import _native
from ..errors import Error, quoted, tool
from ..storage.blocks import BlockTable, Edges, Place
from ..storage.sections import LARGEST_BLOCK
from ..storage.workers import cores, in_order, is_worker
from . import gzip, zstd
from .parts import BlockError, not_decoded

if TYPE_CHECKING:
    from ..storage.index_file import Index
    from ..storage.sections import IndexedSource

CACHE = 64 << 20
"""Bytes of a cache, by default."""
PIECE = 1 << 20
"""Bytes of content of a large block that are kept as one; it ends with a smaller piece."""
_WORTH_THREADS = 4  # blocks to decode
_MOST_THREADS = 4
_MOST_FORWARD = 4  # large blocks at a time whose decoders are kept, each with its window
_MOST_KNOWN = 1 << 9  # blocks whose places are kept
_FEW = 1 << 12  # blocks whose bounds are read without a search for those of a batch
_NEIGHBOURS = 1 << 16  # blocks whose bounds are read at once, to find those of a batch
_BYTES_A_SECOND = 100 << 20  # that a core makes seekable
_TIMES, _MORE = 32, 1 << 20  # bytes that the frames of a block may have: so many times its content, and some more


Block = bytes | _native.Block
"""The content of a block, or a piece of it, as the cache keeps it."""


# ---- the cache --------------------------------------------------------------------------------------------------


class _Cached:
    """What a process has. A forked child begins with nothing: its parent's lock may be held, and blocks cost memory."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.blocks: OrderedDict[Hashable, Block] = OrderedDict()
        self.decoding: dict[Hashable, threading.Lock] = {}
        """Of blocks that a thread decodes; others wait for it."""
        self.size = 0
        self.memory = _native.BlockMemory()


class BlockCache:
    """Decoded blocks; the least recently used ones are dropped.

    Args:
      limit: bytes of memory that they take at most. A block that is larger is not kept.
    """

    def __init__(self, limit: int = CACHE) -> None:
        self.limit = limit
        self._state = _Cached()

    def _own(self) -> _Cached:
        if self._state.process != os.getpid():
            self._state = _Cached()
        return self._state

    def find(self, key: Hashable) -> Block | None:
        """Return a block, if it is there."""
        return self.find_all([key])[0]

    def find_all(self, keys: Sequence[Hashable]) -> list[Block | None]:
        """Return those of some blocks that are there, and None for others."""
        state = self._own()
        with state.lock:
            for key in keys:
                if key in state.blocks:
                    state.blocks.move_to_end(key)
            return [state.blocks.get(key) for key in keys]

    def get(self, key: Hashable, decode: Callable[[], Block]) -> Block:
        """Return a block; where it is not there, decode it, or wait for a thread that does. Raises what that raises."""
        state = self._own()
        with state.lock:
            turn = state.decoding.setdefault(key, threading.Lock())
        try:
            with turn:  # and no event: an interrupt at any place lets the next one go on
                block = self.find(key)
                if block is None:
                    block = decode()
                    self.put(key, block)
                return block
        finally:
            with state.lock:
                state.decoding.pop(key, None)

    @property
    def memory(self) -> _native.BlockMemory:
        """What blocks are made in: the memory of those that were dropped is used again."""
        return self._own().memory

    def make_room(self, size: int) -> None:
        """Drop what is in the way of a block of `size` bytes, so that the block gets its memory."""
        state = self._own()
        if size <= self.limit:
            with state.lock:
                self._drop(state, size)

    def put(self, key: Hashable, block: Block) -> None:
        """Keep a block that was decoded by other means, unless it is larger than the limit."""
        state, size = self._own(), _memory_of(block)
        with state.lock:
            if key not in state.blocks and size <= self.limit:
                state.blocks[key] = block
                state.size += size
                self._drop(state, 0)

    def _drop(self, state: _Cached, more: int) -> None:
        while state.blocks and state.size > self.limit - more:
            key, block = next(iter(state.blocks.items()))
            size = _memory_of(block)
            # No call between the two: a signal may raise after any, and the block would still be counted.
            del state.blocks[key]
            state.size -= size

    @property
    def size(self) -> int:
        """Bytes of memory that the blocks take."""
        return self._own().size


def _memory_of(block: Block) -> int:
    return block.room if isinstance(block, _native.Block) else len(block)


# ---- decoding ---------------------------------------------------------------------------------------------------


class Decoding(Protocol):
    """The content of a block as it is decoded."""

    def read(self) -> bytes:
        """Return the next bytes, as many as there are at once; none at the end."""


def _streams(codec: str, path: str) -> Callable[[_native.Map, int, int, Edges], Decoding]:
    """Return what begins to decode a block: it takes the file, where the block begins and ends there, and its edges.

    Args:
      codec: of the source, one of `sources.CODECS`.
      path: of the source, for messages.
    """
    if codec == "gzip":
        return partial(gzip.Stream, gzip.inflater())
    module = zstd.codec(path)
    return lambda file, begin, end, _: zstd.Stream(module, file, begin, end)


class _Forwarded:
    """What a process has; a forked child begins with nothing, as its parent's lock may be held."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.decoding: Decoding | None = None
        self.next = 0
        """The piece that is decoded next."""
        self.last = b""
        """The piece before it: the one that is being read, whatever the cache keeps."""
        self.rest = b""
        """Bytes of the next piece."""


class Forward:
    """A block that is read in order.

    Args:
      begin: begins to decode it.
      cache: keeps its pieces, by `key` and their numbers.
    """

    def __init__(self, begin: Callable[[], Decoding], cache: BlockCache, key: tuple[int, int]) -> None:
        self._begin, self._cache, self._key = begin, cache, key
        self._state = _Forwarded()

    def piece(self, number: int) -> Block | None:
        """Return a piece; None if it lies behind, and is not kept. The first one can be read again at any time."""
        if self._state.process != os.getpid():
            self._state = _Forwarded()
        state, key = self._state, (*self._key, number)
        if (kept := self._cache.find(key)) is not None:
            return kept
        with state.lock:
            if (kept := self._cache.find(key)) is not None:  # another thread may have decoded it meanwhile
                return kept
            if state.decoding is None or (number == 0 and state.next):
                state.next, state.rest, state.decoding = 0, b"", self._begin()
            if state.next and number == state.next - 1:
                return state.last
            if number < state.next:
                return None
            while state.next <= number:
                self._next(state)
            return state.last

    def _next(self, state: _Forwarded) -> None:
        """Decode the next piece, and keep it; it is empty behind the end.

        The state has no decoder meanwhile: after an error, or a signal that raises, the next read begins anew.
        """
        decoding, state.decoding = state.decoding, None
        assert decoding is not None
        number, parts, size = state.next, [state.rest], len(state.rest)
        while size <= PIECE and (part := decoding.read()):  # one byte more, so that the last piece ends with the block
            parts.append(part)
            size += len(part)
        content = b"".join(parts)
        piece, rest = content[:PIECE], content[PIECE:]
        state.last, state.next, state.rest, state.decoding = piece, number + 1, rest, decoding
        self._cache.put((*self._key, number), piece)


# ---- reading ----------------------------------------------------------------------------------------------------


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
        self._library = zstd.library() if compression.codec == "zstd" else None
        self._stream = _streams(compression.codec, self._path)
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
        found = [(at, memoryview(block)) for at, block in self.blocks(wanted)]
        return b"".join(block[max(begin - at, 0) : end - at] for at, block in sorted(found, key=itemgetter(0)))

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
            begin = partial(self._stream, self._file, place.begin, place.end, self._table.edges(block))
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
            yield place.content + number * PIECE, piece

    def _piece(self, forward: Forward, block: int, place: Place, number: int) -> Block | None:
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
        if self._library is not None and 0 < place.end - place.begin <= _TIMES * place.size + _MORE:
            found = self._library.decode(
                self._cache.memory, self._file, place.begin, place.end, place.size, zstd.LARGEST_WINDOW
            )
            if found is not None:
                return found
        try:
            return self._decode_in_pieces(block, place)  # which says what is wrong
        except BlockError as error:
            raise not_decoded(self._path, block, place.begin, self._codec, error, self._records_of(place)) from None
        except (EOFError, OSError) as error:
            self._lost(error.errno or 0 if isinstance(error, OSError) else 0)
            raise

    def _decode_in_pieces(self, block: int, place: Place) -> Block:
        stream = self._stream(self._file, place.begin, place.end, self._table.edges(block))
        pieces, left = [], place.size
        while left >= 0 and (piece := stream.read()):
            pieces.append(piece)
            left -= len(piece)
        if left:
            found = f"more than {place.size}" if left < 0 else str(place.size - left)
            raise BlockError(f"expected {place.size} bytes of content, found {found}")
        return self._cache.memory.copy(tuple(pieces))

    def _check(self, place: Place) -> None:
        """Raise an error where the file was too short for a block when it was opened, and not compared."""
        if place.end > self._file.size:
            self._lost(0)

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
