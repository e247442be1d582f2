"""Blocks of tokens over all records: what `ds.blocks` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import ColumnError, Error, shortened
from ..orders.basic import integer
from .dataset import Dataset
from .views import Int64s, NestedRows, RangeRows, Rows, batch_of, is_position, running_sums, sums_before

_COPIED = 4  # tokens of whole records, for each one of a block, up to which they are copied together


class Spread(NamedTuple):
    """Where records begin in the tokens of all of them.

    Attributes:
      ends: the token after each record; or None.
      each: tokens of every record, if `ends` is None.
      records: how many there are.
    """

    ends: Int64s | None
    each: int
    records: int

    @classmethod
    def of(cls, dataset: Dataset, column: str | None, value: Any) -> Spread:
        """Return that of a dataset; without a column, all records are as long as a value."""
        if column is None:
            return cls(None, len(value), len(dataset))
        lengths = dataset.column(column)
        if lengths.dtype.kind not in "iu":
            raise Error(f"column {column!r}: expected integers, found {lengths.dtype}")
        ends = running_sums(len(lengths), lambda piece: lengths[piece])
        return cls(ends, 0, len(dataset))

    @property
    def tokens(self) -> int:
        if self.ends is None:
            return self.each * self.records
        return int(self.ends[-1]) if self.records else 0

    def records_at(self, tokens: Int64s) -> Int64s:
        """Return the record that has each token."""
        if self.ends is None:
            return tokens // self.each
        found: Int64s = self.ends.searchsorted(tokens, side="right").astype(np.int64, copy=False)
        return found

    def begins(self, records: Int64s) -> Int64s:
        """Return the first token of each record."""
        if self.ends is None:
            return records * self.each
        return sums_before(self.ends, records)


class Shape(NamedTuple):
    """What a block has.

    Attributes:
      size: tokens of a block.
      shift: how many tokens later the labels are; 0 for none.
      field: the field of the tokens; None for samples that are arrays.
      restarts: whether to give position ids, which restart at each record.
      dtype: of tokens and labels.
    """

    size: int
    shift: int
    field: str | None
    restarts: bool
    dtype: str


class BlockDataset(Dataset):
    """Runs of tokens over the records of another dataset, in their order.

    Args:
      whole: the dataset of all records.
      spread: where they begin.
      shape: what a block has.
      rows: the numbers of the blocks.
    """

    def __init__(self, whole: Dataset, spread: Spread, shape: Shape, rows: Rows) -> None:
        self._whole, self._spread, self._shape, self._rows = whole, spread, shape, rows
        self._inner = whole._select(_Firsts(spread, shape.size, rows))  # the record in which each block begins

    @classmethod
    def of(cls, dataset: Dataset, size: int, column: str | None, shape: Shape) -> BlockDataset:
        """Return the blocks of a dataset; see `Dataset.blocks`."""
        shape = shape._replace(size=integer("size", size, 1), shift=integer("shift", shape.shift, 0))
        spread = Spread.of(dataset, column, _tokens_of(dataset[0], shape.field) if column is None else None)
        count = max(spread.tokens - shape.shift, 0) // shape.size
        if not count:
            raise Error(f"size = {size}, expected up to {spread.tokens - shape.shift:,}, the tokens of all records")
        return cls(dataset, spread, shape, RangeRows(range(count)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        return self.take([int(key)])[0] if is_position(key) else self._view(key)

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._on_error == "skip":
            raise Error("blocks: expected a dataset that skips nothing, found on_error='skip'; open it without")
        at = np.asarray(batch_of(positions, len(self)), np.int64)
        at = np.where(at < 0, at + len(self), at)
        if len(at) and not (at.min() >= 0 and at.max() < len(self)):
            raise IndexError(f"index {shortened(positions)} is out of range for {len(self):,} blocks")
        if not len(at):
            return [], at
        size, shift = self._shape.size, self._shape.shift
        begins = self._rows.many(at) * size
        first, last = (self._spread.records_at(each) for each in (begins, begins + size + shift - 1))
        counts = last - first + 1
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers = np.unique(np.repeat(first, counts) + within)
        starts = self._spread.begins(numbers)
        arrays = self._read(numbers, self._spread.begins(numbers + 1) - starts)
        offsets = begins - starts[np.searchsorted(numbers, first)]  # in the first record of each block
        own = np.searchsorted(numbers, first)
        if sum(map(len, arrays)) <= _COPIED * len(at) * (size + shift):  # one copy for all blocks
            joined, before = np.concatenate(arrays), np.cumsum([0, *map(len, arrays)])[own]
            parts = [joined[begin : begin + size + shift] for begin in (before + offsets).tolist()]
        else:
            rows = zip(own.tolist(), counts.tolist(), offsets.tolist(), strict=True)
            parts = [_run(arrays[k : k + count], offset, size + shift) for k, count, offset in rows]
        made = [self._block(part) for part in parts]
        if self._shape.restarts:
            for block, begin, k, count in zip(made, begins.tolist(), own.tolist(), counts.tolist(), strict=True):
                block["position_ids"] = _restarting(starts[k + 1 : k + count] - begin, size)
        return made, np.arange(len(at), dtype=np.int64)

    def _read(self, numbers: Int64s, lengths: Int64s) -> list[Any]:
        """Return the tokens of records of these lengths."""
        arrays = [_tokens_of(sample, self._shape.field) for sample in self._whole.take(numbers)]
        for number, array, length in zip(numbers.tolist(), arrays, lengths.tolist(), strict=True):
            if len(array) != length:
                place = self._whole.place(number)
                raise Error(f"blocks: expected {length} tokens, its length, found {len(array)} (of {place})")
        return arrays

    def _block(self, tokens: NDArray[Any]) -> dict[str, NDArray[Any]]:
        size, shift = self._shape.size, self._shape.shift
        whole = tokens.astype(self._shape.dtype)
        return {"tokens": whole[:size], "labels": whole[shift:]} if shift else {"tokens": whole}

    @property
    def fingerprint(self) -> str:
        return xxh3_64(f"{self._inner.fingerprint} {self._shape}".encode()).hexdigest()

    @property
    def columns(self) -> list[str]:
        return ["length"]

    def column(self, name: str) -> NDArray[Any]:
        if name != "length":
            raise ColumnError(f"column {name!r}: expected 'length', the only one of blocks, found another")
        found = np.full(len(self), self._shape.size, np.uint32)
        found.flags.writeable = False
        return found

    @property
    def length_order(self) -> None:
        return None

    def _record(self, position: Any) -> int:
        return self._rows.one(int(position))

    def _select(self, rows: Rows) -> BlockDataset:
        return BlockDataset(self._whole, self._spread, self._shape, NestedRows(self._rows, rows))

    @classmethod
    def _chained(cls, parts: Sequence[BlockDataset]) -> BlockDataset:
        found = len(parts)
        raise Error(f"datasets: expected none of blocks, found {found}; make blocks of concat(...), to cross its parts")

    def _with_own_epoch(self) -> Dataset:
        whole = self._whole._with_own_epoch()
        return self if whole is self._whole else BlockDataset(whole, self._spread, self._shape, self._rows)

    def __repr__(self) -> str:
        return f"<blocks of {self._shape.size} tokens, {len(self):,}, of {self._whole!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockDataset, (self._whole, self._spread, self._shape, self._rows)


class _Firsts(Rows):
    """The record in which each block begins."""

    def __init__(self, spread: Spread, size: int, blocks: Rows) -> None:
        self._spread, self._size, self._blocks = spread, size, blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def many(self, positions: Int64s) -> Int64s:
        return self._spread.records_at(self._blocks.many(positions) * self._size)


def _run(arrays: list[Any], begin: int, count: int) -> NDArray[Any]:
    """Return some tokens of neighbouring records."""
    parts, end = [], begin + count
    for array in arrays:
        parts.append(array[max(begin, 0) : max(end, 0)])
        begin, end = begin - len(array), end - len(array)
    return np.concatenate(parts)


def _restarting(starts: Int64s, size: int) -> Int64s:
    """Return position ids that restart at some tokens."""
    own = starts[starts < size]
    latest = np.zeros(size, np.int64)
    latest[own] = own
    found: Int64s = np.arange(size) - np.maximum.accumulate(latest)
    return found


def _tokens_of(sample: Any, field: str | None) -> Any:
    """Return the tokens of a sample; raise Error if it has none."""
    if field is None and isinstance(sample, Mapping):
        raise Error(f"field = None, expected that of the tokens, found a sample with {shortened([*sample])}")
    if field is not None and (not isinstance(sample, Mapping) or field not in sample):
        found = shortened([*sample]) if isinstance(sample, Mapping) else type(sample).__name__
        raise Error(f"field = {field!r}, expected a field of the samples, found {found}")
    return sample if field is None else sample[field]
