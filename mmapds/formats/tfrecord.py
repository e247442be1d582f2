"""TFRecord: a u64 length, its masked CRC32C, the data, their masked CRC32C.

The layout is that of tensorflow/core/lib/io/record_writer.h. A scan checks the CRC of every length, and so never takes
garbage for a record; that of the data is checked by `--verify`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from ..storage.sources import Source
from ._frames import Framed
from .format import TRUNCATED, check_truncated


class TFRecord(Framed):
    """TFRecords. Their samples are bytes, and examples with `decode="tf_example"`."""

    name = "tfrecord"
    suffixes = (".tfrecord", ".tfrecords")
    options = TRUNCATED

    def recognises(self, head: bytes) -> bool:
        """Whether a file begins with a length and its CRC."""
        crc = _native.crc32c(None, 0, head[:8])
        masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32
        return head[8:12] == masked.to_bytes(4, "little")

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `truncated`."""
        return {"truncated": check_truncated(given)}

    def framing(self, parameters: Mapping[str, Any]) -> int:
        """The data lie between a length with its CRC, and their own CRC."""
        return _native.FRAMING_TFRECORD

    def verify(self, sources: Sequence[Source], parameters: Mapping[str, Any]) -> None:
        """Check the CRC of every record's data."""
        for source in sources:
            self.verify_checksums(source)
