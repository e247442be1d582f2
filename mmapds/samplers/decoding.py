"""What an order of records costs where these lie in compressed blocks."""

from typing import Any

from ..errors import warn
from ..orders.basic import Int64s

LOOKED_AT = 4096
"""Records of an epoch, at its beginning, by which its cost is known."""
_MANY = 3  # times that a block is decoded in an epoch
_MUCH = 256 << 10  # bytes decoded for a record: a quarter of a millisecond
_LARGER = (2, 4, 8, 16)  # caches that are tried


def warn_of_decoding(dataset: Any, records: Int64s) -> None:
    """Warn where an epoch that begins with some records decodes much, as it decodes blocks many times."""
    (times, size), limit = dataset._decodes(records), max(dataset._blocks.limit, 1)
    if _is_cheap(times, size):
        return
    enough = next((limit * n for n in _LARGER if _is_cheap(*dataset._decodes(records, limit * n))), None)
    cache = "" if enough is None else f"give block_cache={enough} to mmapds.open, or "
    warn(
        f"each block of the compressed sources would be decoded about {times:,.0f} times an epoch, expected about "
        f"once; {cache}read chunks, as in ChunkedSampler(ds, 'block'), or make smaller blocks: mmapds seekable SOURCE"
    )


def _is_cheap(times: float, size: float) -> bool:
    return times <= _MANY or size <= _MUCH
