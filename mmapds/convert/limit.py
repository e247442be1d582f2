"""How large an array file may become: small sources stay small, and a disk does not run full before anybody knows."""

import os
import shutil
from collections.abc import Sequence

from ..arrays.schema import Schema
from ..errors import Error, FormatError, either, option
from ..storage.sources import Source

_LEAST, _TIMES = 4 << 30, 100  # bytes that any sources may become, and how many times their own


def default_bytes(sources: Sequence[Source]) -> int:
    """Return how many bytes of records sources may become where the user does not say."""
    return max(_LEAST, _TIMES * sum(source.size for source in sources))


def check_ahead(target: str, schema: Schema, records: int, most: int | None) -> None:
    """Raise an error if so many records cannot be written, before any is read.

    Args:
      most: bytes of records; None for any.
    """
    least = records * schema.least_bytes
    if most is not None and least > most:
        raise FormatError(
            f"{target}: expected up to {most} bytes of records, found {records} records of {schema.least_bytes} bytes "
            f"or more; write them with {option('max_bytes', least)} (sources declare records that they hardly store)"
        )
    free = shutil.disk_usage(os.path.dirname(target) or ".").free
    if least > free:
        raise Error(
            f"{target}: expected room for {least} bytes or more, found {free} bytes free; give another place with "
            f"{either('-o OUT.mma', 'out=...')}"
        )


def too_much(place: str, written: int, most: int) -> FormatError:
    """Return the error where more was written than may be.

    Args:
      place: where the record lies that was written last.
    """
    return FormatError(
        f"{place}: expected up to {most} bytes of records, found {written}; write more with "
        f"{option('max_bytes', 2 * written)}"
    )
