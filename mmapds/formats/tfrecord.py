"""TFRecord: a u64 length, its masked CRC32C, the data, their masked CRC32C.

The layout is that of tensorflow/core/lib/io/record_writer.h. A scan checks the CRC of every length, and so never takes
garbage for a record; that of the data is checked by `--verify`. Compressed TFRecords cannot be read in place.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _native
from ..storage.index_file import IndexedSource
from ..storage.sources import Source
from . import _frames as frames
from . import truncation
from .format import Layout, Piece
from .measuring import Measuring

NAME = "tfrecord"
SUFFIXES = (".tfrecord", ".tfrecords")
TEXT = False
OPTIONS = truncation.OPTIONS


def recognises(head: bytes) -> bool:
    """Whether a file is of this format, by its first bytes: a length and its CRC."""
    crc = _native.crc32c(None, 0, head[:8])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
    return head[8:12] == masked.to_bytes(4, "little")


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - the face of formats
    """Return what to do with a last record that is cut short."""
    return {"truncated": truncation.check(given)}


def layout(parameters: Mapping[str, Any], source: IndexedSource) -> Layout:  # noqa: ARG001
    """How the payload lies between two bounds."""
    return Layout(_native.FRAMING_TFRECORD)


def decoder(parameters: Mapping[str, Any]) -> str:  # noqa: ARG001
    """What makes a sample of a record; `decode="tf_example"` is for those that hold a tf.train.Example."""
    return "bytes"


def scan(
    sources: Sequence[Source], *, parameters: Mapping[str, Any], workers: int, measuring: Measuring
) -> Iterator[Piece]:
    """Yield the start of every record; see `frames.scan`."""
    truncated = parameters["truncated"]
    framing = _native.FRAMING_TFRECORD
    return frames.scan(sources, framing=framing, truncated=truncated, workers=workers, measuring=measuring)


def verify(sources: Sequence[Source], parameters: Mapping[str, Any]) -> None:  # noqa: ARG001
    """Check the CRC of every record's data.

    Raises:
      FormatError: one is not what it should be.
    """
    for source in sources:
        frames.verify(source)
