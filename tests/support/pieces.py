"""Formats that are scanned in small pieces, so that a small source has many borders."""

from mmapds.formats.frames import Prefixed
from mmapds.formats.jsonl import JsonLines
from mmapds.formats.megatron import Megatron


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
