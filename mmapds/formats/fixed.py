"""Records of one size: token blocks, feature vectors, packed structs. An index of them stores no bounds."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import FormatError, either, option, shortened
from ..storage.numbers import plain_dtype
from ..storage.sections import IndexedSource
from ..storage.sources import Source
from .format import (
    TRUNCATED,
    ArrayOf,
    End,
    Format,
    Layout,
    Option,
    OptionError,
    Piece,
    Sample,
    check_truncated,
    drops_truncated,
)
from .measuring import Measuring

if TYPE_CHECKING:
    import numpy as np

_STEP = 1 << 16  # records in a piece that has columns
_AXES = 32  # every version of NumPy has these


class Fixed(Format):
    """Records of `record_bytes` bytes, one after another."""

    name = "fixed"
    options = {
        "record_bytes": Option(int, "N", "fixed: bytes in a record; or give dtype and shape"),
        "dtype": Option(str, "D", "fixed: type of a record's numbers, as NumPy names it"),
        "shape": Option(str, "N,N", "fixed: shape of a record; default: one number"),
        **TRUNCATED,
    }

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `record_bytes`, and `dtype` and `shape` where a record is an array.

        Raises:
          OptionError: an option is missing or invalid, or `record_bytes` and `dtype` disagree.
        """
        truncated = check_truncated(given)
        if "dtype" not in given:
            size = given.get("record_bytes")
            if "shape" in given:
                raise OptionError(
                    f"shape = {given['shape']!r}, expected a dtype with it, found none; give "
                    f"{either('--dtype D --shape N,N', 'dtype=... and shape=...')}"
                )
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**63:
                raise OptionError(
                    f"record_bytes = {shortened(size)}, expected an integer of 1 to 2**63 - 1, or dtype and shape "
                    f"instead; give {either('--record-bytes N', 'record_bytes=N')}, or "
                    f"{either('--dtype D --shape N,N', 'dtype=... and shape=...')}"
                )
            return {"record_bytes": size, "truncated": truncated}
        shape = _shape(given.get("shape", ()))
        try:
            dtype, size = check_array(given["dtype"], shape)
        except ValueError as error:
            raise OptionError(str(error)) from None
        if given.get("record_bytes", size) != size:
            raise OptionError(
                f"record_bytes = {given['record_bytes']}, expected {size}, the bytes of {dtype.str} of shape {shape}"
            )
        return {"record_bytes": size, "dtype": dtype.str, "shape": list(shape), "truncated": truncated}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """Records lie one after another, from the first."""
        if source.first and self.name == Fixed.name:
            raise ValueError(f"first = {source.first}, expected 0 in format {self.name!r}")
        return Layout(_native.FRAMING_NONE, source.first, parameters["record_bytes"])

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """A payload is an array, or bytes where no dtype was given."""
        if "dtype" not in parameters:
            return "bytes"
        shape = tuple(map(operator.index, parameters["shape"]))
        dtype, size = check_array(parameters["dtype"], shape)
        if size != (found := parameters["record_bytes"]):
            raise ValueError(f"record_bytes = {found}, expected {size}, the bytes of {dtype.str} of shape {shape}")
        return ArrayOf(dtype, shape)

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield how many records each source has, from its size alone."""
        size = parameters["record_bytes"]
        for number, source in enumerate(sources):
            count, rest = count_records(source, 0, parameters)
            yield from all_records(one_piece(number, source, 0, count, size, int(rest > 0)), size, measuring)


def count_records(source: Source, first: int, parameters: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many whole records there are from byte `first` on, and the bytes left after them.

    Raises:
      FormatError: the last record is incomplete.
    """
    size = parameters["record_bytes"]
    count, rest = divmod(source.size - first, size)
    if rest and not drops_truncated(parameters):
        raise FormatError(
            f"{source.path}: record {count} (byte {first + count * size}): expected {size} bytes, found {rest}; "
            f"leave it out with {option('truncated', 'drop')}"
        )
    return count, rest


def one_piece(number: int, source: Source, first: int, count: int, size: int, skipped: int) -> Piece:
    """Return a piece of all records of a source, without columns."""
    end = End(count, first + count * size, first, has_bounds=False)
    return Piece(number, memoryview(b"").cast("Q"), (), skipped, source.size, end, fixed=count)


def all_records(whole: Piece, size: int, measuring: Measuring) -> Iterator[Piece]:
    """Yield `whole`, a piece of all records of a source; in several pieces where there are columns to fill.

    Args:
      size: bytes in a record.
    """
    assert whole.end is not None
    step = _STEP if measuring.columns else max(whole.fixed, 1)
    columns = measuring.constant(min(whole.fixed, step) if measuring.columns else 0, size)
    for begin in range(0, max(whole.fixed, 1), step):
        count = min(step, whole.fixed - begin)
        filled = tuple((kind, cells[:count]) for kind, cells in columns)
        if begin + count < whole.fixed:
            yield whole._replace(columns=filled, skipped=0, scanned=0, end=None, fixed=count)
        else:
            yield whole._replace(columns=filled, fixed=count)


def check_array(given: Any, shape: Sequence[int]) -> "tuple[np.dtype[Any], int]":
    """Return the dtype of a name and the size in bytes of an array of it.

    Raises:
      ValueError: NumPy has no such type, its values are not plain numbers or strings, or no such array can exist.
    """
    dtype = plain_dtype(given)
    size = prod(shape) * dtype.itemsize
    if not 1 <= size < 2**63 or len(shape) > _AXES or any(length < 0 for length in shape):
        raise ValueError(
            f"shape = {tuple(shape)}, expected up to {_AXES} axes and records of 1 byte or more, found {len(shape)} "
            f"axes and {size} bytes of {dtype}"
        )
    return dtype, size


def _shape(given: Any) -> tuple[int, ...]:
    try:
        sizes = map(int, given.split(",")) if isinstance(given, str) else [given] if isinstance(given, int) else given
        shape = tuple(map(operator.index, sizes))
    except (TypeError, ValueError):
        shape = (0,)
    if any(size < 1 for size in shape):
        raise OptionError(f"shape = {given!r}, expected sizes of 1 or more")
    return shape
