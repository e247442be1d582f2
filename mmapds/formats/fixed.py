"""Records of one size: token blocks, feature vectors, NumPy's .npy files. An index of them stores no bounds."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from .. import _native
from ..errors import FormatError, option, shortened
from ..storage.sections import IndexedSource
from ..storage.sources import Source, open_regular
from .expressions import Measuring
from .format import (
    TRUNCATED,
    ArrayOf,
    End,
    Format,
    Layout,
    Option,
    OptionError,
    Parameters,
    Piece,
    Sample,
    Sources,
    plain_dtype,
)

if TYPE_CHECKING:
    import numpy as np

_STEP = 1 << 16  # records in a piece with columns
_AXES = 32  # the most that every version of NumPy supports


class Fixed(Format):
    """Records of `record_bytes` bytes, one after another."""

    name = "fixed"
    is_contiguous = True
    options = {
        "record_bytes": Option(int, "N", "fixed: bytes in a record; or give dtype and shape"),
        "dtype": Option(str, "D", "fixed, datatrove: type of a record's numbers, as NumPy names it"),
        "shape": Option(str, "N,N", "fixed: shape of a record; default: one number"),
        "header": Option(int, "N", "fixed: bytes before the first record; default: 0"),
        **TRUNCATED,
    }

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `record_bytes`, `dtype` and `shape` of arrays, `header` unless it is 0, and `truncated`."""
        size, header = given.get("record_bytes"), given.get("header", 0)
        if type(header) is not int or not 0 <= header < 2**63:
            raise OptionError(f"header = {shortened(header)}, expected an integer of 0 to 2**63 - 1")
        more = {**({"header": header} if header else {}), **self.truncated(given)}
        if "dtype" not in given:
            if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size < 2**63 or "shape" in given:
                raise OptionError(
                    f"record_bytes = {shortened(size)}, expected an integer of 1 to 2**63 - 1, or dtype and shape"
                )
            return {"record_bytes": size, **more}
        shape = _shape(given.get("shape", ()))
        try:
            dtype, expected = _array(given["dtype"], shape)
        except ValueError as error:
            raise OptionError(str(error)) from None
        if size not in (None, expected):
            raise OptionError(f"record_bytes = {size}, expected {expected}, the bytes of {dtype.str} of shape {shape}")
        return {"record_bytes": expected, "dtype": dtype.str, "shape": list(shape), **more}

    def layout(self, parameters: Parameters, source: IndexedSource) -> Layout:
        header = parameters.get("header", 0)
        if source.first != header and self.name == Fixed.name:
            raise ValueError(f"first = {source.first}, expected {header} in format {self.name!r}")
        return Layout(_native.FRAMING_NONE, source.first, parameters["record_bytes"])

    def decoder(self, parameters: Parameters) -> Sample:
        if "dtype" not in parameters:
            return "bytes"
        shape = tuple(map(operator.index, parameters["shape"]))
        dtype, size = _array(parameters["dtype"], shape)
        if size != (found := parameters["record_bytes"]):
            raise ValueError(f"record_bytes = {found}, expected {size}, the bytes of {dtype.str} of shape {shape}")
        return ArrayOf(dtype, shape)

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the number of records of each source, from its size, checked against its header if it has one."""
        size, drop = parameters["record_bytes"], parameters.get("truncated") == "drop"
        for number, source in enumerate(sources):
            first, expected = self._header(source, parameters)
            if source.size < first:
                raise FormatError(f"{source.path}: expected a header of {first} bytes, found {source.size} in all")
            count, rest = divmod(source.size - first, size)
            if rest and not drop:
                raise FormatError(
                    f"{source.path}: record {count} (byte {first + count * size}): expected {size} bytes, found "
                    f"{rest}; leave it out with {option('truncated', 'drop')}"
                )
            lost = int(rest > 0) if expected is None else expected - count
            if expected is not None and (lost < 0 or (lost and not drop)):
                raise FormatError(f"{source.path}: expected {expected} records, as its header says, found {count}")
            end = End(count, first + count * size, first)
            yield from _pieces(number, source, size, measuring, lost, end)

    def _header(self, source: Source, parameters: Parameters) -> tuple[int, int | None]:
        """Return where the first record of a source begins, and the number of records if its header gives it."""
        return parameters.get("header", 0), None


class Npy(Fixed):
    """Records of one size after a header, which gives their dtype and shape."""

    name = "npy"
    suffixes = (".npy",)
    options = TRUNCATED

    def recognises(self, path: str, head: bytes) -> bool:
        return head.startswith(b"\x93NUMPY")

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `record_bytes`, `dtype` and `shape` of a record, which all sources must share, and `truncated`."""

        def describe(path: str) -> dict[str, Any]:
            shape, dtype, _ = _npy_header(path)
            return {"dtype": dtype, "shape": shape[1:]}

        found = self.shared(sources, describe)
        try:
            dtype, size = _array(found["dtype"], found["shape"])
        except ValueError as error:
            raise FormatError(f"{sources[0]}: {error}") from None
        shape = list(found["shape"])
        return {"record_bytes": size, "dtype": dtype.str, "shape": shape, **self.truncated(given)}

    def _header(self, source: Source, parameters: Parameters) -> tuple[int, int | None]:
        shape, _, first = _npy_header(source.path)
        return first, shape[0]


def _pieces(number: int, source: Source, size: int, measuring: Measuring, lost: int, end: End) -> Iterator[Piece]:
    """Yield the records of a source; in several pieces if it has columns."""
    none, count = memoryview(b"").cast("Q"), end.lines
    step = _STEP if measuring.columns else max(count, 1)
    cells = memoryview(size.to_bytes(8, "little") * (step if measuring.columns else 0)).cast("Q")
    for begin in range(0, max(count, 1), step):
        records = min(step, count - begin)
        piece = Piece(number, none, measuring.sizes(cells[:records]), 0, 0, None, fixed=records)
        yield piece if begin + records < count else piece._replace(skipped=lost, scanned=source.size, end=end)


def _array(given: Any, shape: Sequence[int]) -> "tuple[np.dtype[Any], int]":
    """Return the dtype of a name, and the bytes of an array of that shape; raise ValueError if either is invalid."""
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


def _npy_header(path: str) -> tuple[tuple[int, ...], Any, int]:
    """Return the shape, the dtype, and the byte where the data begin."""
    from numpy.lib import format as npy  # start-up time: other formats do not need it

    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with open_regular(path) as file:
        try:
            version = npy.read_magic(file)
            if version not in readers:
                raise ValueError(f"expected version 1.0 or 2.0, found {version[0]}.{version[1]}")
            shape, fortran, dtype = readers[version](file)
            first = file.tell()
        except OSError:
            raise
        except Exception as error:  # numpy parses the header as Python, which fails in many ways
            reason = str(error).partition("\n")[0]  # further lines are advice for users of numpy.load
            raise FormatError(f"{path}: not an .npy file: {reason}") from None
    if not shape or (fortran and len(shape) > 1 and prod(shape) > 1):
        found = "Fortran order" if shape else "one number"
        raise FormatError(f"{path}: expected an array in C order, of one axis or more, found {found}")
    return shape, dtype, first
