"""Positions that users give: in range, not bools, and not a mask whose bools have become numbers."""

import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arrays.masks import masked_count
from ..errors import plain_counted, shortened

_FEW = 2  # records of which zeros and ones may well be positions


def is_position(key: Any) -> bool:
    """Return whether a key of `ds[key]` is a position, and not that of a view."""
    # Arrays and tensors have both.
    return isinstance(key, int | np.bool_) or (hasattr(key, "__index__") and not getattr(key, "ndim", False))


def as_position(key: Any) -> int:
    """Return a position as an int, which may be out of range.

    Raises:
      IndexError: it is a bool, which Python takes for 0 or 1.
      TypeError: it is not a number at all.
    """
    if isinstance(key, bool | np.bool_) or str(getattr(key, "dtype", "")) in ("bool", "torch.bool"):
        raise IndexError(
            f"index = {bool(key)}, expected an integer, found a bool; give {int(key)} for that record, or ds[mask] a "
            "bool for each record"
        )
    return operator.index(key)


def as_array(name: str, given: Any) -> NDArray[Any]:
    """Return what is given for positions as an array.

    Raises:
      IndexError: NumPy makes no array of it, as of lists of different lengths, or of tensors that need a gradient; or
        entries are behind a mask, so that they are no positions.
    """
    if masked_count(given):
        raise IndexError(f"{name}: expected no entries behind a mask, found a masked array; give array.compressed()")
    try:
        return np.asarray(given)
    except ValueError:
        raise IndexError(f"{name}: expected integers of one axis, found lists of different lengths") from None
    except (TypeError, RuntimeError) as error:
        raise IndexError(f"{name}: expected integers of one axis, found {type(given).__name__} ({error})") from None


def checked(given: Any, length: int) -> NDArray[np.int64]:
    """Return positions of so many records as int64, not negative.

    Raises:
      IndexError: they are not integers, or one is out of range.
    """
    positions = as_array("positions", given)
    if not positions.size:
        return positions.astype(np.int64, copy=False)
    if positions.dtype.kind not in "iu" or int(positions.max()) > 2**63 - 1:
        numbers = [number for number in positions.ravel().tolist() if isinstance(number, int | float)]
        up_to = f" up to {shortened(max(numbers))}" if len(numbers) == positions.size else ""
        raise IndexError(f"positions: expected integers below 2^63, found {positions.dtype}{up_to}")
    lowest, highest = int(positions.min()), int(positions.max())
    found = positions.astype(np.int64, copy=False)
    if lowest < -length or highest >= length:
        at = int(np.argmax((found < -length) | (found >= length)))
        raise IndexError(f"index[{at}] = {found[at]} is out of range for {plain_counted(length, 'record')}")
    return np.where(found < 0, found + length, found) if lowest < 0 else found


def refuse_mask(positions: Any, length: int) -> None:
    """Raise IndexError for batches or a mask in the place of positions: for bools, and for zeros and ones alone.

    Positions behind a mask of NumPy are refused, too.

    A list of zeros and ones is a batch: samplers give lists, of few records some of them again and again. One position
    and a slice are refused, too.
    """
    if not isinstance(positions, list | tuple | np.ndarray):
        if isinstance(positions, int | np.integer | slice):
            one = "ds[index]"
            if not isinstance(positions, slice):
                one = f"ds[{shortened(int(positions))}] for one, ds[:n] for the first n"
            raise IndexError(f"positions = {shortened(positions)}, expected a list of integers; use {one}")
        is_text = isinstance(positions, str | bytes | bytearray)
        if is_text or isinstance(positions, Mapping) or not hasattr(positions, "__getitem__"):
            raise IndexError(f"positions: expected a list of integers, found {type(positions).__name__}")
        return
    if type(positions) is not list and masked_count(positions):
        as_array("positions", positions)  # which raises
    if isinstance(positions, np.ndarray) and positions.ndim != 1:
        raise IndexError(f"positions: expected integers of one axis, found an array of shape {positions.shape}")
    if not len(positions):
        return
    if isinstance(positions[0], bool | np.bool_):
        raise IndexError("positions: expected integers, found bools; use ds[mask] for the records where a mask is True")
    if isinstance(positions[0], list | tuple):
        raise IndexError(
            "positions: expected integers, found a list in a list; a DataLoader takes a sampler of batches as "
            "batch_sampler=, not as sampler="
        )
    if not isinstance(positions, np.ndarray) or positions.dtype.kind not in "iu":
        return
    if len(positions) != length or length <= _FEW:
        return
    lowest, highest = int(positions.min()), int(positions.max())
    inverted = int(np.iinfo(positions.dtype).max) if positions.dtype.kind == "u" else -1  # ~0
    for first, found, mask in (
        (0, "zeros and ones", "np.asarray(mask) == 1"),
        (inverted - 1, "zeros and ones that ~ inverted", "np.asarray(mask) == 0"),
    ):
        if first <= lowest and highest <= first + 1:
            raise IndexError(
                f"index: expected positions, or a mask of bools, found {length} {found}, one for each record; use "
                f"ds[{mask}] (to repeat the records 0 and 1, use ds[:2][index])"
            )
