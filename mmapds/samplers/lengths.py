"""Records in order of their length: sorted once, and which of them are planned."""

import os
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError
from ..storage.lock import alone
from ..storage.sort import AT_ONCE, order_bytes, sort

Int64s = NDArray[np.int64]
Uint64s = NDArray[np.uint64]
_CACHE = b"\x89mmapds length order 1\r\n"  # begins a cache


class LengthOrder(NamedTuple):
    """Records in order of their length, and how many have each."""

    order: NDArray[Any]
    """u32 or u64, shape (records,): the longest first, equally long ones in ascending order."""
    values: Uint64s
    """The lengths there are, falling."""
    counts: Uint64s
    """How many records have each."""

    @classmethod
    def of(cls, values: NDArray[Any], cache: str | None = None) -> "LengthOrder":
        """Sort lengths, given as u32 or u64; with a path, only where no process of this machine has done it before.

        A cache is made by one process while others wait for it, and is mapped by all. One that is of other lengths is
        replaced.
        """
        if cache is None:
            return cls._sorted(values)
        from xxhash import xxh3_64

        mark = np.array([len(values), xxh3_64(values.data).intdigest()], np.uint64)
        try:
            with alone(os.path.dirname(cache)):
                found = cls._cached(cache, mark)
                if found is None:
                    cls._sorted(values)._save(cache, mark)
                    found = cls._cached(cache, mark)
        except OSError as error:
            raise OrderError(f"order_cache = {cache!r} cannot be written: {error.strerror}") from None
        assert found is not None
        return found

    def _save(self, path: str, mark: Uint64s) -> None:
        temporary = f"{path}.{os.urandom(4).hex()}.tmp"
        try:
            with open(temporary, "xb") as file:
                file.write(_CACHE)
                for array in (mark, self.values, self.counts, self.order):
                    np.save(file, array)
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    @classmethod
    def _sorted(cls, values: NDArray[Any]) -> "LengthOrder":
        width = order_bytes(len(values))
        order = np.empty(len(values), f"<u{width}")
        wide = len(values) and int(values.max()) >= 1 << AT_ONCE
        spare = np.empty(len(values) if wide else 0, order.dtype)
        found, counts = sort(values, values.itemsize, order, width, spare)
        return cls(order, np.frombuffer(found, np.uint64), np.frombuffer(counts, np.uint64))

    @classmethod
    def _cached(cls, path: str, mark: Uint64s) -> "LengthOrder | None":
        """What a cache holds; None if there is none, or one of other lengths, or a damaged one.

        Raises:
          OrderError: the file is something else, which is not to be overwritten.
        """
        try:
            with open(path, "rb") as file:
                if file.read(len(_CACHE)) != _CACHE:
                    raise OrderError(f"order_cache = {path!r} is a file that is no cache; expected one, or a new name")
                found, values, counts = np.load(file), np.load(file), np.load(file)
                header = np.lib.format.read_magic(file), np.lib.format.read_array_header_1_0(file)
                shape, _, dtype = header[1]
                order = np.memmap(path, dtype, "r", file.tell(), shape)
        except FileNotFoundError:
            return None
        except OrderError:
            raise
        except Exception:  # numpy's reader raises almost anything for a damaged header
            return None
        whole = order.dtype.kind == "u" and order.shape == (int(mark[0]),) and values.shape == counts.shape
        whole = whole and values.dtype == counts.dtype == np.uint64 and int(counts.sum()) == int(mark[0])
        return cls(order, values, counts) if whole and np.array_equal(found, mark) else None


class Selection(NamedTuple):
    """The part of a length order that is planned: its longest and shortest records may be left out."""

    by_length: LengthOrder
    first: int
    """Records of the order that come before."""
    kept: slice
    """Which of the lengths there are."""

    @property
    def values(self) -> Uint64s:
        """Lengths, falling."""
        return self.by_length.values[self.kept]

    @property
    def counts(self) -> Uint64s:
        """How many records have each."""
        return self.by_length.counts[self.kept]

    @property
    def records(self) -> int:
        """How many there are."""
        return int(self.counts.sum())

    @property
    def starts(self) -> Int64s:
        """Rank of the first record of each length, from the first that is planned on; and the number of records."""
        return np.concatenate([[0], np.cumsum(self.counts)]).astype(np.int64)
