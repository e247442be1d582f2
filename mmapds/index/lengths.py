"""Lengths that a sampler is given, and their order: of an index, or sorted once for all ranks of a machine."""

import operator
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from .. import _native
from ..arrays.values import masked_count
from ..errors import FormatError, OrderError, shortened
from ..storage.index_file import LENGTH_SECTIONS
from ..storage.lock import locked
from ..storage.numbers import as_numbers, scratch, sort_lengths
from ..storage.runs import LengthOrder
from ..storage.sections import MALFORMED, SectionFile
from ..storage.sources import StrPath, kind_of_file, reason
from ..storage.writer import SectionWriter

Uint64s = NDArray[np.uint64]
_CACHE = b"\x89MMO\r\n\x1a\n"  # the first bytes of a cache file
Arrays = tuple[NDArray[Any], Uint64s, Uint64s]
"""An order of records, the distinct lengths, and how many records have each; see `FileOrder`."""


def read_lengths(given: Any, targets: Any, cache: StrPath | None) -> LengthOrder:
    """Return lengths and their order; both are those of the indexes, if these have them.

    Args:
      given: an mmapds dataset, or the lengths.
      targets: second lengths, or None; of each record, the larger length counts.
      cache: where to keep the order of lengths that are not those of indexes.
    Raises:
      OrderError: the lengths are not integers, or no file can have the path.
    """
    if hasattr(type(given), "length_order"):
        stored: LengthOrder | None = given.length_order if targets is None and len(given) else None
        if stored is not None:
            return stored
        given = given.lengths
    lengths = _as_lengths("lengths", given)
    if not len(lengths):
        raise OrderError("lengths: expected one sample or more, found 0 (the dataset or the view is empty)")
    if targets is not None:
        second = _as_lengths("target_lengths", targets)
        if len(second) != len(lengths):
            raise OrderError(f"target_lengths: expected {len(lengths)}, one for each length, found {len(second)}")
        lengths = np.maximum(lengths, second)
    return sorted_lengths(lengths, cache)


def _as_lengths(name: str, given: Any) -> NDArray[Any]:
    """Return an array or list of lengths as u32, or u64 where one needs it.

    Raises:
      OrderError: `given`, called `name`, has another shape, type or a negative number.
    """
    if not isinstance(given, list | tuple | np.ndarray) and not hasattr(given, "__array__"):
        try:
            operator.index(given[0] if len(given) else 0)  # before all are read
            given = given[:]  # as of a column of Hugging Face's datasets
        except (TypeError, LookupError, AttributeError):
            expected = "expected an mmapds dataset or a view of one, or an array or list of integers"
            raise OrderError(f"{name}: {expected}, found {type(given).__name__}") from None
    try:
        if masked_count(given):
            raise ValueError("masked; give array.filled(NUMBER)")
        values = as_numbers(given)
    except (TypeError, ValueError, RuntimeError) as error:  # as of lists of tokens, or of tensors
        found = type(given).__name__
        raise OrderError(f"{name}: expected integers of 1 or more, found {found} ({error})") from None
    if values.ndim != 1 or (values.dtype.kind not in "iu" and values.size):
        found = f"type {values.dtype} of shape {values.shape}"
        raise OrderError(f"{name}: expected integers of 1 or more, one for each record, found {found}")
    if values.min(initial=0) < 0:
        at = int(np.argmax(values < 0))
        raise OrderError(f"{name}[{at}] = {values[at]}, expected 1 or more")
    return np.ascontiguousarray(values, np.uint32 if values.max(initial=0) < 2**32 else np.uint64)


def sorted_lengths(values: NDArray[Any], order_cache: StrPath | None = None) -> LengthOrder:
    """Sort lengths, given as u32 or u64.

    With a path, one process of a machine sorts and writes the order there, while others wait; then all of them map it.
    A cache that is damaged, or of other lengths, is replaced.

    Raises:
      OrderError: the cache cannot be read, or the file is not a cache.
      Error: it cannot be written.
    """
    if order_cache is None:
        return LengthOrder.of_arrays(*_sort(values), values)
    if not isinstance(order_cache, str | os.PathLike):
        raise OrderError(f"order_cache = {shortened(order_cache)}, expected the path of a file")
    cache = os.fspath(order_cache)
    mark = xxh3_64(values.data).hexdigest()
    try:
        found = _cached(cache, len(values), mark) or _made(cache, values, mark)
    except OSError as error:
        raise OrderError(f"order_cache = {cache!r}, expected a path that can be used ({reason(error)})") from None
    return LengthOrder.of_arrays(*found, values)


def _sort(values: NDArray[Any]) -> Arrays:
    found = sort_lengths(values, values.itemsize, scratch)
    order, distinct, counts = (np.frombuffer(numbers, dtype) for dtype, numbers in found)
    return order, distinct, counts


def _made(cache: str, values: NDArray[Any], mark: str) -> Arrays:
    """Sort lengths, write the cache and map it, unless another process writes it meanwhile."""
    with locked(cache):
        if found := _cached(cache, len(values), mark):
            return found
        arrays = _sort(values)
        with _CacheWriter(cache) as writer:
            for name, array in zip(LENGTH_SECTIONS, arrays, strict=True):
                writer.write_array(name, array.dtype.str, array.data.cast("B") if len(array) else b"")
            writer.commit({"lengths": mark}, len(values))
        return _cached(cache, len(values), mark) or arrays


def _cached(path: str, records: int, mark: str) -> Arrays | None:
    """Return what a cache holds; None if it does not exist, is damaged, or belongs to other lengths.

    Raises:
      OrderError: the file is not a cache, so it must not be overwritten.
      OSError: it cannot be read.
    """
    try:
        opened = _native.Map(path)
    except FileNotFoundError:
        return None
    except ValueError:
        kind = kind_of_file(os.stat(path).st_mode)
        raise OrderError(f"order_cache = {path!r}, expected a regular file, found {kind}") from None
    if memoryview(opened)[: len(_CACHE)] != _CACHE:
        raise OrderError(f"order_cache = {path!r}, expected an order cache or a new path, found another file")
    try:
        file = _Cache(path, opened)
        if file.records != records or file.metadata.get("lengths") != mark:
            return None
        file.verify_sections()
        fits = all(file.sections[name].dtype in types for name, types in LENGTH_SECTIONS.items())
        order, values, counts = (
            np.frombuffer(file.section(name), file.sections[name].dtype) for name in LENGTH_SECTIONS
        )
    except (FormatError, *MALFORMED):
        return None
    return (order, values, counts) if fits and len(order) == records and len(values) == len(counts) else None


class _CacheWriter(SectionWriter):
    MAGIC, SUFFIX = _CACHE, ""
    NAME = "the order cache"


class _Cache(SectionFile):
    MAGIC, NAME = _CACHE, "AN ORDER CACHE"
