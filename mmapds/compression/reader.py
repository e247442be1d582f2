"""Random access into a compressed source: get the blocks that hold wanted bytes, from the cache or by decoding."""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from .. import _native
from ..errors import Error, way_to_seekable
from ..storage.index_file import Index
from ..storage.sections import LARGEST_BLOCK
from ..storage.workers import cores, in_order, is_worker
from . import gzip, zstd
from .blocks import RANGE, BlockError, BlockTable, Data, Extent, not_decoded, pieces_of

CACHE = 64 << 20  # bytes of a cache, by default
PIECE = 1 << 20  # bytes of content in a piece of a large block; its last piece is smaller
_WORTH_THREADS = 4  # blocks to decode, at least
_MOST_THREADS = 4
_MOST_KNOWN = 1 << 10  # blocks whose places are cached
_MOST_FORWARD = 4  # decoders of large blocks kept for a source, each with its window

Block = bytes | _native.Block
"""The content of a block, or of a piece of it, in the cache."""


_live: "WeakSet[BlockCache | BlockReader]" = WeakSet()
"""Objects that a forked child resets: the parent may hold their locks, and its blocks cost memory."""


def _begin_anew() -> None:
    for each in list(_live):
        each.begin()


os.register_at_fork(after_in_child=_begin_anew)


# ---- the cache --------------------------------------------------------------------------------------------------


class BlockCache:
    """A least-recently-used cache of decoded blocks.

    Args:
      limit: bytes of memory for all blocks; a larger block is kept until the next one.
    """

    def __init__(self, limit: int = CACHE) -> None:
        self.limit = limit
        self.begin()
        _live.add(self)

    def begin(self) -> None:
        """Drop all blocks, and make new locks."""
        self._lock = threading.Lock()
        self._blocks: OrderedDict[Hashable, Block] = OrderedDict()
        self._turns: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        """A lock for each block that a thread is decoding; other threads wait for it."""
        self.size = 0
        """Bytes of memory that the blocks take."""
        self.decoded = 0
        """How many blocks, and pieces of large blocks, were decoded."""
        self.memory = _native.BlockMemory()
        """Allocates the memory of blocks; it reuses that of dropped blocks."""

    def find(self, keys: Sequence[Hashable]) -> list[Block | None]:
        """Return the cached block of each key, or None."""
        with self._lock:
            found = list(map(self._blocks.get, keys))
            for key, block in zip(keys, found, strict=True):
                if block is not None:
                    self._blocks.move_to_end(key)
        return found

    def get(self, key: Hashable, decode: Callable[[], Block], size: int = 0) -> Block:
        """Return a block: cached, decoded now, or decoded by another thread meanwhile. Raises the errors of `decode`.

        Args:
          size: bytes of the block. Older blocks are dropped first, so that it reuses their memory.
        """
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        with turn:  # a lock instead of an event: after an interrupt at any place, the next thread proceeds
            (block,) = self.find([key])
            if block is None:
                with self._lock:
                    self._drop(size)
                block = decode()
                self.put(key, block)
            return block

    def put(self, key: Hashable, block: Block) -> None:
        """Add a decoded block."""
        size = _memory_of(block)
        with self._lock:
            self.decoded += 1
            if key not in self._blocks:
                self._drop(size)
                self._blocks[key] = block
                self.size += size

    def _drop(self, more: int) -> None:
        """Drop old blocks to make room for `more` bytes."""
        while self._blocks and self.size > self.limit - more:
            key, block = next(iter(self._blocks.items()))
            size = _memory_of(block)
            # No call between these two lines: a signal handler may raise after a call, and the count would be wrong.
            del self._blocks[key]
            self.size -= size


def _memory_of(block: Block) -> int:
    return block.room if isinstance(block, _native.Block) else len(block)


def out_of_order(path: str, block: int, size: int, limit: int) -> Error:
    """Return the error for a record of a block larger than the cache that lies before the decoder's position."""
    return Error(
        f"{path}: expected records in the order of the file, as block {block} has {size} bytes of content, more than "
        f"block_cache = {limit}, found an earlier one; give block_cache={size} or more to mmapds.open, or make "
        f"smaller blocks; {way_to_seekable(path)}"
    )


class Forward:
    """A large block, decoded from its begin by one process.

    Args:
      begin: starts to decode the block.
      size: bytes of its content.
      cache: keeps its pieces, by `key` and piece number.
    """

    def __init__(
        self, begin: Callable[[], Iterator[bytes]], size: int, cache: BlockCache, key: tuple[int, int]
    ) -> None:
        self._begin, self._cache, self._key = begin, cache, key
        self._fits = size <= cache.limit
        self._lock = threading.Lock()
        self._pieces: Iterator[bytes] | None = None
        self._next, self._last = 0, b""  # number of the next piece; the last piece, even if no longer cached

    def piece(self, number: int) -> Block | None:
        """Return a piece, empty after the end.

        For a piece before the decoder's position that is no longer cached, decoding starts again if the block fits the
        cache. In a larger block only piece 0 starts it again, and None is returned for others.
        """
        with self._lock:
            (kept,) = self._cache.find([(*self._key, number)])
            if kept is not None:
                return kept
            is_passed = number < self._next - 1
            if self._pieces is None or (is_passed and (self._fits or number == 0)):
                self._next, self._pieces = 0, _of_one_size(self._begin())
            elif is_passed:
                return None
            while self._next <= number:
                pieces, self._pieces = self._pieces, None  # after an error, or a handler that raises, start again
                assert pieces is not None
                self._last = next(pieces, b"")
                self._cache.put((*self._key, self._next), self._last)
                self._next, self._pieces = self._next + 1, pieces
            return self._last


def _of_one_size(content: Iterator[bytes]) -> Iterator[bytes]:
    """Yield content in pieces of `PIECE` bytes. The last one, perhaps empty, is yielded after the content has ended."""
    held, size = list[bytes](), 0
    for piece in content:
        held.append(piece)
        size += len(piece)
        while size > PIECE:
            whole = b"".join(held)
            held, size, whole = [whole[PIECE:]], size - PIECE, whole[:PIECE]  # keep only the bytes of the next piece
            yield whole
    yield b"".join(held)


# ---- reading ----------------------------------------------------------------------------------------------------


class BlockReader:
    """The content of a compressed source, for the core's `Records`.

    Args:
      number: of the source in the index.
      file: the source, already checked against the index.
      cache: of blocks; `key` identifies this source there.
      lost: raises the error for a source that was cut short (0), or cannot be read (errno).
      decoding: yields the content of a block by its number; None for codecs that this module knows.
    """

    def __init__(
        self,
        index: Index,
        number: int,
        file: _native.Map,
        cache: BlockCache,
        key: int,
        lost: Callable[[int], object],
        decoding: Callable[[int], Iterator[Data]] | None = None,
    ) -> None:
        compression = index.sources[number].compression
        assert compression is not None
        self._path = index.source_path(number)
        self._file, self._cache, self._key, self._lost = file, cache, key, lost
        self._table, self._own = BlockTable(index, number), decoding
        self._codec = compression.codec
        self._zstd = zstd.codec(self._path) if self._codec == "zstd" else None
        self._library = zstd.library() if self._codec == "zstd" else None
        self._last = 0, Extent(0, 0, 0, 0)  # the block of the last read: the next one is often there too
        self._place = lru_cache(_MOST_KNOWN)(self._table.place)  # the next batch often needs the same blocks
        self.size = compression.size
        """Bytes of content."""
        self.begin()
        _live.add(self)

    def begin(self) -> None:
        """Drop the decoders of large blocks."""
        self._forward: dict[int, Forward] = {}

    def read(self, begin: int, size: int) -> bytes:
        """Return bytes of the content."""
        end = begin + size
        found = [(at, memoryview(block)) for at, block in self.blocks(RANGE.pack(begin, end))]
        return b"".join(block[max(begin - at, 0) : end - at] for at, block in sorted(found, key=itemgetter(0)))

    def blocks(self, wanted: bytes) -> Iterator[tuple[int, Block]]:
        """Yield each block with wanted bytes, in any order: where it begins in the content, and its content.

        Args:
          wanted: bounds of ranges, uint64 in pairs, ascending.
        Raises:
          FormatError: a block, or the index, is damaged.
          SourceError, StaleIndexError: the source was cut short, or cannot be read.
        """
        places, missing = self._places(wanted), []
        kept = self._cache.find([(self._key, block) for block, _ in places])
        for (block, place), found in zip(places, kept, strict=True):
            if found is not None:
                yield place.content, found
            elif place.size > LARGEST_BLOCK:
                yield from self._in_order(block, place, memoryview(wanted).cast("Q").tolist())
            else:
                missing.append((block, place))
        kept, found = [], None  # a dropped block gives its memory to the next
        workers = min(len(missing), 1 if is_worker() else min(cores(), _MOST_THREADS))
        if len(missing) < _WORTH_THREADS or workers < 2:
            for each in missing:
                yield self._get(each, 0)
        else:
            yield from in_order(self._get, missing, workers=workers, slots=list(range(workers + 1)))

    def _places(self, wanted: bytes) -> list[tuple[int, Extent]]:
        """Return the blocks with wanted bytes, ascending, and their places; check that blocks do not overlap."""
        if len(wanted) == RANGE.size:
            begin, end = RANGE.unpack(wanted)
            last = self._last  # once: another thread may set it
            if last[1].content <= begin < end <= last[1].content_end:
                return [last]
        found: list[tuple[int, Extent]] = []
        end = 0
        for block in self._table.find_all(wanted):
            place = self._place(block)
            if place.content < end:
                raise self._table.damaged(block, f"content from byte {end} on, found byte {place.content}")
            end = place.content_end
            found.append((block, place))
        if found:
            self._last = found[-1]
        return found

    def _in_order(self, block: int, place: Extent, ranges: Sequence[int]) -> Iterator[tuple[int, Block]]:
        """Yield the pieces of a large block with bytes of some ranges; see `blocks`."""
        known = self._forward
        forward = known.get(block)
        if forward is None:
            forward = Forward(
                lambda: map(bytes, self._decoding(block, place)), place.size, self._cache, (self._key, block)
            )
            forward = known.setdefault(block, forward)
            for old in list(known)[:-_MOST_FORWARD]:
                known.pop(old, None)
        numbers: set[int] = set()
        for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
            first, last = max(begin, place.content), min(end, place.content_end) - 1
            if first <= last:
                numbers.update(range((first - place.content) // PIECE, (last - place.content) // PIECE + 1))
        for number in sorted(numbers):
            with self._naming(block, place):
                piece = forward.piece(number)
            if piece is None:
                raise out_of_order(self._path, block, place.size, self._cache.limit)
            yield place.content + number * PIECE, piece

    def _get(self, wanted: tuple[int, Extent], _: Any) -> tuple[int, Block]:
        """Return where a block begins in the content, and its content."""
        block, place = wanted
        return place.content, self._cache.get((self._key, block), partial(self._decode, block, place), place.size)

    def _decode(self, block: int, place: Extent) -> Block:
        with self._naming(block, place):
            if self._library is not None:
                found = self._library.decode(
                    self._cache.memory, self._file, place.begin, place.end, place.size, zstd.LARGEST_WINDOW
                )
                if found is not None:
                    return found
            return self._cache.memory.copy(place.size, self._decoding(block, place))  # its errors are precise

    def _decoding(self, block: int, place: Extent) -> Iterator[Data]:
        """Yield the content of a block in pieces, each valid until the next one."""
        if self._own is not None:
            return pieces_of(self._own(block), place.size)
        if self._zstd is None:
            text = gzip.text_of(gzip.inflater(), self._file, place, self._table.edges(block))
            return pieces_of(text, place.size)
        return pieces_of(zstd.Stream(self._zstd, self._file, place.begin, place.end), place.size)

    @contextmanager
    def _naming(self, block: int, place: Extent) -> Iterator[None]:
        """Turn errors of decoding into FormatError, and errors of a source that was cut short into those of `lost`."""
        try:
            if place.end > self._file.size:  # with check="none", its size was not compared
                raise EOFError
            yield
        except BlockError as error:
            raise not_decoded(self._path, block, place.begin, self._codec, error) from None
        except (EOFError, OSError) as error:
            self._lost(error.errno or 0 if isinstance(error, OSError) else 0)
            raise
