"""JSON Lines that are scanned in small pieces, so that a small source has many borders."""

from mmapds.formats.jsonl import JsonLines


def jsonl_in_blocks(block_size):
    """JSONL in blocks of some bytes."""
    chosen = JsonLines()
    chosen.part_size = block_size
    return chosen
