"""Weights as sums, in which draws find their records: 8 bytes a record, in a file for all processes of a node."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from xxhash import xxh3_64

from .. import _native
from ..errors import OrderError, shortened
from ..storage.lock import locked
from ..storage.numbers import U64
from ..storage.sections import SectionFile
from ..storage.sources import StrPath
from ..storage.writer import SectionWriter

_MAGIC = b"\x89MMW\r\n\x1a\n"
_BITS = 62  # of the sum of all weights
_BLOCK = 4096  # weights of a coarse sum, as in csrc/sampling.h
_PIECE = 32 * _BLOCK  # weights at a time
_IN_MEMORY = 1 << 21  # weights; sums of more are in a file


class Sums(NamedTuple):
    """The sum of the weights up to each record, as integers.

    Attributes:
      ends: u64, shape (records,): a weight is the difference to the sum before it.
      coarse: every 4,096th of them, in few pages.
      mark: a hash of them; "" until it is needed.
    """

    ends: NDArray[np.uint64]
    coarse: NDArray[np.uint64]
    mark: str

    @classmethod
    def of(cls, weights: Any) -> Sums:
        """Return the sums of weights, or those of a file of `save_weights`.

        Raises:
          OrderError: a weight is negative, infinite or not a number; or all are 0.
        """
        if isinstance(weights, str | os.PathLike):
            return _read(os.fspath(weights))
        values, total = _checked(weights)
        coarse: list[NDArray[np.uint64]] = []
        if len(values) < _IN_MEMORY:
            return cls(np.concatenate(list(_sums(values, total, coarse))), np.concatenate(coarse), "")
        with TemporaryFile() as file:  # to write it is faster than to touch as much memory, and processes share it
            for piece in _sums(values, total, coarse):
                file.write(piece.data)
            file.flush()
            mapped = mmap.mmap(file.fileno(), 8 * len(values), prot=mmap.PROT_READ)
        return cls(np.frombuffer(mapped, np.uint64), np.concatenate(coarse), "")

    def marked(self) -> Sums:
        """Return the same sums, with their hash."""
        return self if self.mark else self._replace(mark=xxh3_64(self.ends.data).hexdigest())


def _checked(weights: Any) -> tuple[NDArray[Any], float]:
    """Return weights as an array, and their sum; raise OrderError for one that is out of range."""
    values = np.asarray(weights)
    if values.ndim != 1 or values.dtype.kind not in "biuf" or not len(values):
        found = f"{values.dtype} of shape {values.shape}"
        raise OrderError(f"weights: expected one number or more, of one axis, found {found}")
    total = 0.0
    for begin in range(0, len(values), _PIECE):
        piece = values[begin : begin + _PIECE]
        with np.errstate(over="ignore"):
            total += float(piece.sum(dtype=np.float64))
        if (piece.min() < 0 or not np.isfinite(total)) and (wrong := (piece < 0) | ~np.isfinite(piece)).any():
            at = int(wrong.argmax())
            raise OrderError(f"weights[{begin + at}] = {piece[at]}, expected a finite number of 0 or more")
    if not 0 < total < np.inf:
        raise OrderError(f"weights: expected a finite sum above 0, found {total}")
    return values, total


def _sums(values: NDArray[Any], total: float, coarse: list[NDArray[np.uint64]]) -> Iterator[NDArray[np.uint64]]:
    """Yield the sums of checked weights, in pieces, and collect the coarse ones.

    Integers stay as they are, if their sum is below 2**62. Other weights are scaled by a power of two, such that their
    sum is about 2**61.
    """
    pieces = [values[begin : begin + _PIECE] for begin in range(0, len(values), _PIECE)]
    is_exact = values.dtype.kind != "f" and total < 2**_BITS
    shift = 0 if is_exact else _BITS - 1 - int(np.frexp(total)[1])
    before = np.uint64(0)
    for piece in pieces:
        found = piece if is_exact else np.rint(np.ldexp(piece.astype(np.float64, copy=False), shift))
        sums = found.astype(np.uint64)
        np.cumsum(sums, out=sums)
        sums += before
        before = sums[-1]
        coarse.append(sums[_BLOCK - 1 :: _BLOCK].copy())
        yield sums


def save_weights(path: StrPath, weights: ArrayLike) -> None:
    """Write weights to a file, for `Weighted` in all processes of a node.

        mmapds.orders.save_weights("lengths.mmw", ds.lengths)
        order = mmapds.orders.Weighted("lengths.mmw", size=100_000)

    Args:
      path: a name that ends in `.mmw`.
      weights: of all records, shape (records,): finite numbers of 0 or more, not all 0.
    Raises:
      OrderError: a weight is out of range.
    """
    (values, total), target = _checked(weights), os.fspath(path)
    coarse: list[NDArray[np.uint64]] = []
    with locked(target), _Writer(target) as writer:
        writer.write_section("ends", U64.dtype, (piece.data.cast("B") for piece in _sums(values, total, coarse)))
        writer.write_array("coarse", U64.dtype, np.concatenate(coarse).data.cast("B"))
        writer.commit({}, len(values))


def _read(path: str) -> Sums:
    try:
        opened = _native.Map(path)
    except (OSError, ValueError) as error:
        raise OrderError(f"weights = {shortened(path)}, expected a file of save_weights ({error})") from None
    file = _File(path, opened)
    ends, coarse = (np.frombuffer(file.section(name), np.uint64) for name in ("ends", "coarse"))
    if not len(ends) or not 0 < ends[-1] < 2**63 or len(coarse) != len(ends) // _BLOCK:
        raise file.damaged("expected sums of weights, found others")
    return Sums(ends, coarse, file.sections["ends"].xxh3)


class _Writer(SectionWriter):
    MAGIC, SUFFIX, NAME = _MAGIC, ".mmw", "weights"


class _File(SectionFile):
    MAGIC, NAME = _MAGIC, "A FILE OF WEIGHTS"
