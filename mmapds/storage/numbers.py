"""The types of numbers that a file may hold, and how to get from one to another."""

import operator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

from .. import _native

if TYPE_CHECKING:
    from numpy.typing import NDArray

DTYPES = {_native.NUMBER_U64: "<u8", _native.NUMBER_I64: "<i8", _native.NUMBER_F64: "<f8"}
"""How to read the 64 bits of a cell, as the core says it, to what a section says."""
NUMBER_TYPES = {"<u4": _native.NUMBER_U64} | {dtype: number_type for number_type, dtype in DTYPES.items()}
"""And back."""
WIDTHS = {"|u1": 1, "<u4": 4, "<u8": 8, "<i8": 8, "<f8": 8}


def as_numbers(values: Any) -> "NDArray[Any]":
    """Return numbers as an array; integers of 64 bits stay integers, which numpy makes floats of in mixed lists."""
    import numpy as np  # which indexing does without

    found: NDArray[Any] = np.asarray(values)
    if found.dtype.kind == "f" and isinstance(values, list | tuple):
        with suppress(TypeError, OverflowError, ValueError):
            return np.asarray([operator.index(value) for value in values], np.uint64)
    return found


def numbers(dtype: str, data: memoryview) -> "memoryview[Any]":
    """The bytes of a column as its numbers."""
    formats: dict[str, Literal["I", "Q", "q", "d"]] = {"<u4": "I", "<u8": "Q", "<i8": "q", "<f8": "d"}
    return data.cast(formats[dtype])


def same_numbers(dtype: str, stored: memoryview, kind: int, cells: memoryview) -> bool:
    """Whether the numbers of a column are those of some cells, bit by bit; a column's type may be wider."""
    if not len(cells):
        return not len(stored)
    own, data = DTYPES[kind], cells.cast("B")
    if dtype == "<u4":
        if own != "<u8" or _native.cells_largest(cells) >= 2**32:
            return False
        narrowed = memoryview(bytearray(len(data) // 2))
        _native.cells_narrow(cells, narrowed)
        return narrowed == stored.cast("B")
    return (data if own == dtype else converted(data, own, dtype)) == stored.cast("B")


def converted(data: memoryview, kind: str, to: str) -> memoryview:
    """Numbers as another type that holds them."""
    cells = memoryview(bytearray(len(data) * 8 // WIDTHS[kind]))
    if kind == "<u4":
        _native.cells_widen(data, cells)
        kind = "<u8"
    else:
        cells[:] = data
    _native.cells_convert(cells, NUMBER_TYPES[kind], NUMBER_TYPES[to])
    return cells
