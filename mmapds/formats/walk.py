"""Scans that walk from record to record, as only a record says where the next one begins.

Threads share out plain files, as whole ones: they make the first piece of each, and most shards have no other. The
parts of a compressed file are decoded by threads, and walked in order.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import TypeVar

from ..compression.content import Data, Part, content_of, in_flight
from ..storage.sources import Source, shrank
from ..storage.workers import in_order
from .format import End, Piece

_WHOLE = 2**62  # bytes in a part of a plain file: as many as there are
_PIECE = 256 << 10  # bytes in one of a compressed file, at least: as many as decoders give at once

Slot = TypeVar("Slot")


class Walk(ABC):
    """A walk over the content of a source, which comes in parts."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = self.size = source.begin
        """Where the next record begins, or what is next in it; and how many bytes of content came."""
        self.found = 0
        """Records in the slot."""

    @abstractmethod
    def scan(self, part: Part, data: Data) -> Iterator[None]:
        """Take in the next part, and put into the slot the records that end there. Yield to have the slot emptied."""

    @abstractmethod
    def piece(self) -> Piece:
        """Return the records in the slot."""

    @abstractmethod
    def end(self) -> tuple[End, int]:
        """Return the totals, once all parts came, and how many incomplete records are left out."""


def walked(
    sources: Sequence[Source], workers: int, new_slot: Callable[[], Slot], new_walk: Callable[[Source, Slot], Walk]
) -> Iterator[Piece]:
    """Yield the records of every source, in order.

    Args:
      new_slot: makes the memory for the records of a piece.
      new_walk: begins a walk, whose pieces lie in such memory.
    """

    def begin(task: tuple[int, Source], slot: Slot) -> tuple[list[Piece], Iterator[Piece]]:
        number, source = task
        pieces = _pieces(number, source, workers, lambda: new_walk(source, slot))
        return [] if source.codec else [next(pieces)], pieces

    threads = min(workers, len(sources))
    slots = [new_slot() for _ in range(in_flight(threads))]
    for first, others in in_order(begin, enumerate(sources), workers=threads, slots=slots):
        yield from first
        yield from others


def _pieces(number: int, source: Source, workers: int, new_walk: Callable[[], Walk]) -> Iterator[Piece]:
    try:
        walk = new_walk()
        with closing(content_of(source, workers, _WHOLE, _PIECE)) as content:
            for part, pieces in content:
                data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                left, before = part.scanned, walk.at
                for _ in walk.scan(part, data):
                    scanned = 0 if source.codec else walk.at - before
                    left, before = left - scanned, walk.at
                    yield walk.piece()._replace(source=number, scanned=scanned)
                    walk.found = 0
                end, cut = walk.end() if part.is_last else (None, 0)
                yield walk.piece()._replace(source=number, scanned=left, end=end, skipped=cut, blocks=part.starts)
                walk.found = 0
    except EOFError:
        raise shrank(source) from None
