"""Formats that are scanned in small pieces, so that a small source has many borders."""

from itertools import chain, pairwise

from mmapds.compression.content import Part
from mmapds.formats.expressions import Measuring
from mmapds.formats.format import reserve_words
from mmapds.formats.frames import Prefixed
from mmapds.formats.jsonl import JsonLines
from mmapds.formats.megatron import Megatron
from mmapds.storage.sources import Source


def jsonl_in_blocks(block_size):
    """JSONL in blocks of some bytes."""
    return with_sizes(JsonLines(), part_size=block_size)


def prefixed_in_pieces(room, step):
    """Prefixed records in pieces of up to `room` records and some `step` bytes."""
    return with_sizes(Prefixed(), room=room, step=step)


def megatron_in_pieces(step):
    """Megatron's pairs in pieces of `step` sequences."""
    return with_sizes(Megatron(), step=step)


def with_sizes(chosen, **sizes):
    vars(chosen).update(sizes)
    return chosen


def walked(new_walk, data, cuts):
    """Walk over content that is cut at some bytes; return the walk and, of all its pieces, the numbers of records.

    Args:
      new_walk: called as `mmapds.formats.format.walked` calls it, with a compressed source.
    """
    slot, measuring = [reserve_words(4) for _ in range(3)], Measuring({"size": "bytes()"}, "error", False)
    walk = new_walk(Source("a", 0, 0, codec="gzip"), slot, measuring, drop=True)
    found = [[], [], []]
    bounds = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for begin, end in pairwise(bounds):
        part = Part(begin, end, 0, (), end == len(data), 1, lambda _: ())
        for _ in chain(walk.scan(part, data[begin:end]), [None]):
            piece = walk.piece()
            columns = [cells for _, cells in piece.columns]
            for numbers, more in zip(found, [piece.starts, *columns, piece.keys or ()], strict=False):
                numbers += more
            walk.found = 0
    return walk, found
