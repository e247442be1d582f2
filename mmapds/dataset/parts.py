"""Parts of records, and records around others: what `ds.windows` and `ds.around` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from xxhash import xxh3_64

from .._native import json_cut
from ..errors import Error, shortened
from ..orders.basic import integer
from ..storage.numbers import scratch
from ..storage.sources import StrPath
from .dataset import Dataset, concat
from .indexed import json_texts
from .sums import Sums
from .views import (
    ArrayRows,
    ChainedRows,
    Int64s,
    NestedRows,
    RangeRows,
    RepeatedRows,
    Rows,
    batch_of,
    checked,
    is_position,
)

Short = Literal["keep", "drop", "pad"]
_PIECE = 1 << 20  # records at a time


class Cut(NamedTuple):
    """How records are cut.

    Attributes:
      length: items of a window.
      stride: items from one window of a record to the next one.
      short: what to do with a window that the end of its record cuts short.
      column: the column with the number of items of each record; None if all have as many as the first one.
      fields: names of what is cut, in samples with fields.
      items: those of every record, without a column.
    """

    length: int
    stride: int
    short: str
    column: str | None
    fields: tuple[str, ...]
    items: int = 0

    def counts(self, lengths: NDArray[Any]) -> Int64s:
        """Return the number of windows of records."""
        items = lengths.astype(np.int64)
        over = items - self.length
        if self.short == "drop":
            return np.where(over >= 0, over // self.stride + 1, 0)
        found: Int64s = np.minimum(-(-np.maximum(over, 0) // self.stride) + 1, -(-items // self.stride))
        return found

    def items_of(self, sample: Any) -> int:
        """Return the items of a sample."""
        value = sample
        if isinstance(sample, Mapping):
            value = sample.get(self.fields[0]) if self.fields else None
        if not hasattr(value, "__len__"):
            raise Error(f"fields = {self.fields}, expected some with items, found {shortened(value)}")
        return len(value)

    def sizes(self, lengths: NDArray[Any], begins: Int64s) -> Int64s:
        """Return the items of windows: lengths of their records, and where they begin there."""
        if self.short == "pad":
            return np.full(len(begins), self.length, np.int64)
        found: Int64s = np.minimum(lengths.astype(np.int64) - begins, self.length)
        return found


class WindowedDataset(Dataset):
    """Windows of the records of another dataset.

    Args:
      inner: for each window, its record.
      numbers: of the windows, for each position: which one it is of its record.
      cut: how records are cut.
    """

    def __init__(self, inner: Dataset, numbers: Rows, cut: Cut) -> None:
        self._inner, self._numbers, self._cut = inner, numbers, cut
        self._texts = json_texts(inner) if cut.fields else None

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        length: int,
        stride: int | None,
        column: str | None,
        short: str,
        fields: str | Sequence[str],
        saved: StrPath | None,
    ) -> WindowedDataset:
        """Return the windows of a dataset; see `Dataset.windows`."""
        if short not in ("keep", "drop", "pad"):
            raise Error(f"short = {short!r}, expected 'keep', 'drop' or 'pad'")
        length = integer("length", length, 1)
        stride, names = length if stride is None else integer("stride", stride, 1), fields
        cut = Cut(length, stride, short, column, (names,) if isinstance(names, str) else tuple(names))
        if column is None:
            cut = cut._replace(items=cut.items_of(dataset[0]))
            sums = Sums.even(int(cut.counts(np.array([cut.items]))[0]), len(dataset))
        else:
            sums = Sums.of(integers_in(dataset, column), cut.counts, saved, cut._replace(fields=()))
        return cls(dataset._select(RepeatedRows(sums)), _Within(sums), cut)

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        position = int(key) + (len(self) if int(key) < 0 else 0)
        if self._texts is not None:
            return self._parsed([self._texts[key]], [position])[0]
        return self._cut_out([self._inner[key]], [position])[0]

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        at = checked(batch_of(positions, len(self)), len(self))
        if self._texts is not None:
            return self._parsed(self._texts.take(positions), at), np.arange(len(at), dtype=np.int64)
        samples, kept = self._inner.take_kept(positions)
        return self._cut_out(samples, at[kept]), kept

    def _parsed(self, texts: Sequence[bytes], positions: Any) -> list[Any]:
        """Return the windows of JSON texts at positions; the other items of an array are not parsed."""
        places = np.asarray(positions, np.int64)
        begins = self._numbers.many(places) * self._cut.stride
        rows = zip(texts, self._lengths_at(places).tolist(), begins.tolist(), places.tolist(), strict=True)
        return [self._of_text(*row) for row in rows]

    def _of_text(self, text: bytes, size: int, begin: int, position: int) -> Any:
        pad, shorter = self._cut.length if self._cut.short == "pad" else 0, text
        for name in self._cut.fields:
            found = json_cut(shorter, name.encode(), begin, begin + self._cut.length)
            if found is None or found[1] != size:  # text, for one; or an error, which the whole record explains
                return self._window(self._inner[position], size, begin, pad)
            shorter = found[0]
        try:
            sample = orjson.loads(shorter)
        except ValueError:
            return self._window(self._inner[position], size, begin, pad)
        return sample | {name: _padded(sample[name], pad) for name in self._cut.fields}

    def _cut_out(self, samples: Sequence[Any], positions: Any) -> list[Any]:
        """Return the windows of the samples at positions."""
        places = np.asarray(positions, np.int64)
        begins = self._numbers.many(places) * self._cut.stride
        lengths = self._lengths_at(places)
        pad = self._cut.length if self._cut.short == "pad" else 0
        rows = zip(samples, lengths.tolist(), begins.tolist(), strict=True)
        return [self._window(sample, size, begin, pad) for sample, size, begin in rows]

    def _window(self, sample: Any, size: int, begin: int, pad: int) -> Any:
        own, fields = slice(begin, min(begin + self._cut.length, size)), self._cut.fields
        if not isinstance(sample, Mapping):
            return _padded(_of(sample, "the sample", size)[own], pad)
        if not fields:
            raise Error(f"fields = (), expected those to cut, found a sample with {shortened([*sample])}")
        found = {}
        for name in fields:
            if name not in sample:
                raise Error(f"fields: expected some of {shortened([*sample])}, found {name!r}")
            found[name] = _padded(_of(sample[name], f"field {name!r}", size)[own], pad)
        return {**sample, **found}

    def _lengths_at(self, positions: Int64s) -> NDArray[Any]:
        """Return the length of the record at each position."""
        if self._cut.column is None:
            return np.full(len(positions), self._cut.items, np.uint32)
        return self._inner._select(ArrayRows(positions)).column(self._cut.column)

    @property
    def fingerprint(self) -> str:
        return xxh3_64(f"{self._inner.fingerprint} {self._cut}".encode()).hexdigest()

    @property
    def columns(self) -> list[str]:
        own = self._inner.columns
        return own if self._cut.column is not None or "length" in own else [*own, "length"]

    def column(self, name: str) -> NDArray[Any]:
        if name != (self._cut.column or "length"):
            return self._inner.column(name)
        found = np.frombuffer(scratch(4 * len(self)), np.uint32, len(self))
        for begin in range(0, len(self), _PIECE):
            positions = np.arange(begin, min(begin + _PIECE, len(self)))
            begins = self._numbers.many(positions) * self._cut.stride
            found[begin : begin + len(positions)] = self._cut.sizes(self._lengths_at(positions), begins)
        found.flags.writeable = False
        return found

    @property
    def length_order(self) -> None:
        return None

    def _record(self, position: Any) -> int:
        return (self._inner._record(position) << 24) + self._numbers.one(int(position))  # apart for each window

    def _select(self, rows: Rows) -> WindowedDataset:
        return WindowedDataset(self._inner._select(rows), NestedRows(self._numbers, rows), self._cut)

    @classmethod
    def _chained(cls, parts: Sequence[WindowedDataset]) -> WindowedDataset:
        first = parts[0]
        for k, part in enumerate(parts):
            if part._cut != first._cut:
                raise Error(f"datasets[{k}]: expected windows of {first._cut}, as in datasets[0], found {part._cut}")
        numbers = ChainedRows((0, part._numbers) for part in parts)
        return WindowedDataset(concat(part._inner for part in parts), numbers, first._cut)

    def _with_own_epoch(self) -> Dataset:
        inner = self._inner._with_own_epoch()
        return self if inner is self._inner else WindowedDataset(inner, self._numbers, self._cut)

    def __repr__(self) -> str:
        shown = f"windows={self._cut.length}/{self._cut.stride}, short={self._cut.short!r}"
        return f"{repr(self._inner).removesuffix('>')}, {shown}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return WindowedDataset, (self._inner, self._numbers, self._cut)


class _Within(Rows):
    """Which window of its record each one is: 0 for the first one."""

    def __init__(self, sums: Sums) -> None:
        self._sums = sums

    def __len__(self) -> int:
        return self._sums.total

    def many(self, positions: Int64s) -> Int64s:
        return positions - self._sums.before(self._sums.records_at(positions))


def integers_in(dataset: Dataset, column: str) -> NDArray[Any]:
    """Return a column; raise Error unless it has integers."""
    found = dataset.column(column)
    if found.dtype.kind not in "iu":
        raise Error(f"column {column!r}: expected integers, found {found.dtype}")
    return found


def _of(value: Any, what: str, size: int) -> Any:
    """Return a value that has so many items along its first axis; raise Error for another one."""
    if not hasattr(value, "__getitem__") or not getattr(value, "ndim", 1) or len(value) != size:
        found = f"{len(value)}" if getattr(value, "ndim", 1) and hasattr(value, "__len__") else type(value).__name__
        raise Error(f"windows: expected {what} with {size} items, its length, found {found}")
    return value


def _padded(value: Any, length: int) -> Any:
    """Return a list, an array or a tensor with zeros at its end, up to a length."""
    missing = length - len(value)
    if missing <= 0:
        return value
    if isinstance(value, list):
        return value + [0] * missing
    if isinstance(value, np.ndarray):
        return np.concatenate([value, np.zeros((missing, *value.shape[1:]), value.dtype)])
    if hasattr(value, "new_zeros"):
        found = value.new_zeros((length, *value.shape[1:]))
        found[: len(value)] = value
        return found
    raise Error(f"short = 'pad', expected a list, an array or a tensor to pad, found {type(value).__name__}")


# ---- records around others -----------------------------------------------------------------------------------------


class AroundDataset(Dataset):
    """Records with others around them; those beyond the first or the last one of a group repeat it.

    Args:
      whole: the dataset of all records.
      rows: the anchors; None for all records.
      starts: where groups begin in the whole dataset, then its length.
      offsets: of the records of each field; under None those of all other fields.
    """

    def __init__(self, whole: Dataset, rows: Rows | None, starts: Int64s, offsets: dict[str | None, list[int]]) -> None:
        self._whole, self._rows, self._starts, self._offsets = whole, rows, starts, offsets
        self._inner = whole if rows is None else whole._select(rows)
        self._all = np.unique(np.concatenate([[0], *offsets.values()])).astype(np.int64)

    @classmethod
    def of(cls, dataset: Dataset, offsets: Any, group: Any) -> AroundDataset:
        """Return a dataset of records with others around them; see `Dataset.around`."""
        given = offsets if isinstance(offsets, Mapping) else {None: offsets}
        try:
            found = {name: [integer(f"offsets[{name!r}]", each) for each in own] for name, own in given.items()}
        except TypeError:
            raise Error(f"offsets = {shortened(offsets)}, expected integers, or a dict of them by field") from None
        if not all(found.values()):
            raise Error("offsets: expected one or more, found 0")
        groups = dataset.column(group) if isinstance(group, str) else np.asarray(group)
        if groups.shape != (len(dataset),):
            raise Error(f"group: expected one number for each of {len(dataset)} records, found shape {groups.shape}")
        changes = np.flatnonzero(groups[1:] != groups[:-1]) + 1
        return cls(dataset, None, np.concatenate([[0], changes, [len(dataset)]]).astype(np.int64), found)

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        return self.take([int(key)])[0]

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._on_error == "skip":
            raise Error("around: expected a dataset that skips nothing, found on_error='skip'; open it without")
        at = checked(batch_of(positions, len(self)), len(self))
        anchors = at if self._rows is None else self._rows.many(at)
        groups = np.searchsorted(self._starts, anchors, side="right") - 1
        wanted = anchors[:, None] + self._all
        found = np.clip(wanted, self._starts[groups][:, None], self._starts[groups + 1][:, None] - 1)
        numbers, places = np.unique(found, return_inverse=True)
        samples = list(self._whole.take(numbers))
        places = places.reshape(found.shape)
        made = [self._around(samples, rows, beyond) for rows, beyond in zip(places, wanted != found, strict=True)]
        return made, np.arange(len(at), dtype=np.int64)

    def _around(self, samples: list[Any], rows: Int64s, beyond: NDArray[np.bool_]) -> Any:
        """Return the sample of one anchor; `beyond` are the offsets that lie outside its group."""
        anchor = samples[rows[int(np.searchsorted(self._all, 0))]]
        if not isinstance(anchor, Mapping):
            raise Error(f"around: expected samples with fields, found {type(anchor).__name__}")
        for name in self._offsets:
            if name is not None and name not in anchor:
                raise Error(f"offsets[{name!r}]: expected one of the fields {[*anchor]}")
        made: dict[str, Any] = {}
        for name, value in anchor.items():
            offsets = self._offsets.get(name, self._offsets.get(None))
            if offsets is None:
                made[name] = value
                continue
            at = np.searchsorted(self._all, offsets)
            values = [samples[row][name] for row in rows[at]]
            made[name] = np.stack(values) if isinstance(value, np.ndarray | np.generic) else values
            made[f"{name}_is_pad"] = beyond[at]
        return made

    @property
    def fingerprint(self) -> str:
        return xxh3_64(f"{self._inner.fingerprint} {self._offsets}".encode()).hexdigest()

    def _select(self, rows: Rows) -> AroundDataset:
        nested = rows if self._rows is None else NestedRows(self._rows, rows)
        return AroundDataset(self._whole, nested, self._starts, self._offsets)

    @classmethod
    def _chained(cls, parts: Sequence[AroundDataset]) -> AroundDataset:
        first = parts[0]
        for k, part in enumerate(parts):
            if part._offsets != first._offsets:
                raise Error(
                    f"datasets[{k}]: expected offsets {first._offsets}, as in datasets[0], found {part._offsets}"
                )
        begins = np.cumsum([0, *(len(part._whole) for part in parts)]).tolist()
        starts = [part._starts[:-1] + begin for part, begin in zip(parts, begins, strict=False)]
        own = [RangeRows(range(len(part))) if part._rows is None else part._rows for part in parts]
        rows = zip(begins, own, strict=False)
        whole = concat(part._whole for part in parts)
        return AroundDataset(whole, ChainedRows(rows), np.concatenate([*starts, [len(whole)]]), first._offsets)

    def _with_own_epoch(self) -> Dataset:
        whole = self._whole._with_own_epoch()
        return self if whole is self._whole else AroundDataset(whole, self._rows, self._starts, self._offsets)

    def __repr__(self) -> str:
        return f"{repr(self._inner).removesuffix('>')}, around={shortened(self._offsets)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return AroundDataset, (self._whole, self._rows, self._starts, self._offsets)
