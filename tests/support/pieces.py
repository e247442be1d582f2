"""Formats that are scanned in small pieces, so that a small source has many borders."""

from functools import partial
from types import ModuleType

from mmapds.formats import _frames as frames
from mmapds.formats import jsonl, megatron, prefixed


def scanned(module, scan):
    """A format with another scan: what `format=` of `mmapds.build` takes."""
    changed = ModuleType(module.NAME)
    vars(changed).update(vars(module) | {"scan": scan})
    return changed


def jsonl_in_blocks(block_size):
    """JSONL in blocks of some bytes."""
    return scanned(jsonl, partial(jsonl.scan, block_size=block_size))


def prefixed_in_pieces(room, step):
    """Prefixed records in pieces of up to `room` records and some `step` bytes."""

    def scan(sources, *, parameters, workers, measuring):
        framing, truncated = prefixed.layout(parameters, None).framing, parameters["truncated"]
        return frames.scan(
            sources,
            framing=framing,
            truncated=truncated,
            workers=workers,
            measuring=measuring,
            room=room,
            step=step,
        )

    return scanned(prefixed, scan)


def megatron_in_pieces(step):
    """Megatron's pairs in pieces of `step` sequences."""
    return scanned(megatron, partial(megatron.scan, step=step))
