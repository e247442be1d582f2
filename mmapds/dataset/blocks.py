"""Blocks of tokens over all records: what `ds.blocks` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import ColumnError, Error, shortened
from ..orders.basic import integer
from ..storage.sources import StrPath
from .batch import StackedBatch
from .dataset import Dataset
from .flat import Flat
from .parts import integers_in
from .sums import Sums
from .views import Int64s, NestedRows, RangeRows, Rows, batch_of, checked, is_position


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
      sums: of their tokens.
      shape: what a block has.
      rows: the numbers of the blocks.
    """

    def __init__(self, whole: Dataset, sums: Sums, shape: Shape, rows: Rows) -> None:
        self._whole, self._sums, self._shape, self._rows = whole, sums, shape, rows
        self._flat = Flat.of(whole, shape.field, sums)
        self._inner = whole._select(_Firsts(sums, shape.size, rows))  # the record in which each block begins

    @classmethod
    def of(cls, dataset: Dataset, size: int, column: str | None, shape: Shape, saved: StrPath | None) -> BlockDataset:
        """Return the blocks of a dataset; see `Dataset.blocks`."""
        shape = shape._replace(size=integer("size", size, 1), shift=integer("shift", shape.shift, 0))
        sums = _sums_of(dataset, column, shape.field, saved)
        count = max(sums.total - shape.shift, 0) // shape.size
        if not count:
            raise Error(f"size = {size}, expected up to {sums.total - shape.shift:,}, the tokens of all records")
        return cls(dataset, sums, shape, RangeRows(range(count)))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        return self.take([int(key)])[0] if is_position(key) else self._view(key)

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._on_error == "skip":
            raise Error("blocks: expected a dataset that skips nothing, found on_error='skip'; open it without")
        at = checked(batch_of(positions, len(self)), len(self))
        if not len(at):
            return [], at
        begins = self._rows.many(at) * self._shape.size
        return self._made(begins), np.arange(len(at), dtype=np.int64)

    def _made(self, begins: Int64s) -> StackedBatch:
        """Return the blocks that begin at some tokens."""
        size, width = self._shape.size, self._shape.size + self._shape.shift
        flat = None if self._flat is None or self._shape.restarts else self._flat.read(begins, width)
        if flat is not None:
            return self._split(flat)
        firsts, lasts = (self._sums.records_at(each) for each in (begins, begins + width - 1))
        offsets = (begins - self._sums.before(firsts)).tolist()  # in the first record of each block
        spans = [range(first, last + 1) for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)]
        numbers = sorted(set(chain.from_iterable(spans)))
        arrays = dict(zip(numbers, self._read(numbers), strict=True))
        kinds = {(array.dtype, array.shape[1:]) for array in arrays.values() if len(array)}  # an empty list has no type
        dtype = np.result_type(*(kind for kind, _ in kinds))
        whole = np.empty((len(begins), width, *next(iter(kinds))[1]), dtype)
        restarting = np.empty((len(begins), size), np.int64) if self._shape.restarts else None
        for k, (row, span, offset) in enumerate(zip(whole, spans, offsets, strict=True)):
            done = 0
            for number in span:
                part = arrays[number][offset : offset + width - done]
                row[done : done + len(part)] = part
                if restarting is not None:
                    restarting[k, done : done + len(part)] = np.arange(max(min(len(part), size - done), 0))
                done, offset = done + len(part), 0
        return self._split(whole, restarting)

    def _split(self, whole: NDArray[Any], restarting: NDArray[Any] | None = None) -> StackedBatch:
        """Return blocks with their labels, from runs of the tokens of both."""
        size, shift = self._shape.size, self._shape.shift
        # In one piece of memory, as the C library gives two back to the system each time.
        both = np.empty((1 + (shift > 0), len(whole), size, *whole.shape[2:]), self._shape.dtype)
        both[0] = whole[:, :size]
        made = {"tokens": both[0]}
        if shift:
            both[1] = whole[:, shift:]
            made["labels"] = both[1]
        return StackedBatch(made if restarting is None else {**made, "position_ids": restarting})

    def _read(self, numbers: Sequence[int]) -> list[NDArray[Any]]:
        """Return the tokens of records."""
        records = np.array(numbers, np.int64)
        field, samples = self._shape.field, self._whole.take(records)
        plain = field is None and type(samples[0]) is np.ndarray
        arrays = list(samples) if plain else [np.asarray(_tokens_of(each, field)) for each in samples]
        expected = self._sums.of_each(records)
        if (found := list(map(len, arrays))) != expected:
            k = next(k for k, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other)
            place = self._whole.place(numbers[k])
            raise Error(f"blocks: expected {expected[k]} tokens, its length, found {found[k]} (of {place})")
        return arrays

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
        return BlockDataset(self._whole, self._sums, self._shape, NestedRows(self._rows, rows))

    @classmethod
    def _chained(cls, parts: Sequence[BlockDataset]) -> BlockDataset:
        found = len(parts)
        raise Error(f"datasets: expected none of blocks, found {found}; make blocks of concat(...), to cross its parts")

    def _with_own_epoch(self) -> Dataset:
        whole = self._whole._with_own_epoch()
        return self if whole is self._whole else BlockDataset(whole, self._sums, self._shape, self._rows)

    def __repr__(self) -> str:
        return f"<blocks of {self._shape.size} tokens, {len(self):,}, of {self._whole!r}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockDataset, (self._whole, self._sums, self._shape, self._rows)


class _Firsts(Rows):
    """The record in which each block begins."""

    def __init__(self, sums: Sums, size: int, blocks: Rows) -> None:
        self._sums, self._size, self._blocks = sums, size, blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def many(self, positions: Int64s) -> Int64s:
        return self._sums.records_at(self._blocks.many(positions) * self._size)


def _tokens_of(sample: Any, field: str | None) -> Any:
    """Return the tokens of a sample; raise Error if it has none."""
    if field is None and isinstance(sample, Mapping):
        raise Error(f"field = None, expected that of the tokens, found a sample with {shortened([*sample])}")
    if field is not None and (not isinstance(sample, Mapping) or field not in sample):
        found = shortened([*sample]) if isinstance(sample, Mapping) else type(sample).__name__
        raise Error(f"field = {field!r}, expected a field of the samples, found {found}")
    return sample if field is None else sample[field]


def _sums_of(dataset: Dataset, column: str | None, field: str | None, saved: StrPath | None) -> Sums:
    """Return the sums of the tokens of records; without a column, all have as many as the first one."""
    if column is None:
        return Sums.even(len(_tokens_of(dataset[0], field)), len(dataset))
    return Sums.of(integers_in(dataset, column), lambda own: own, saved)
