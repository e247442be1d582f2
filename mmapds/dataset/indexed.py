"""The dataset that `open` returns: a decoder makes a sample from each record of its indexes."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Literal, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .. import formats
from .._native import ArrayBatch, JsonBatch, Records, Samples
from ..errors import DecodeError, Error, FormatError, KeyMissingError, add_note, counted, plain_counted, shortened, warn
from ..index.lengths import LengthOrder
from ..index.write import candidates
from ..storage.places import Place
from ..storage.sources import Source, StrPath
from . import saving
from .batch import RecordBatch, Refused
from .catalog import Catalog, Location
from .dataset import Dataset
from .decode import (
    Decoder,
    array_columns,
    as_bytes,
    decoder_name,
    is_marked,
    is_same_decoder,
    is_short_of_memory,
    printed,
    reason_of,
    resolve,
    shown_apart,
    takes_view,
)
from .fields import Fields, StoredFields
from .views import (
    ChainedRows,
    RangeRows,
    Rows,
    as_position,
    batch_of,
    checked,
    composed,
    is_position,
    positions_of,
    rows_where,
)

OnError = Literal["raise", "skip"]
"""What to do with records that cannot be decoded."""
_ROWS_COMPARED = 65_536  # rows that a fingerprint hashes
_LARGE = 1 << 24  # bytes above which a record is shown undecoded
_ENOUGH = 100  # skipped records without a decoded one that make an error


def make_dataset(
    catalog: Catalog, decode: str | Decoder, on_error: OnError = "raise", rows: Rows | None = None
) -> IndexedDataset:
    """Return the dataset of a catalog."""
    how = {"readahead": catalog.access == "auto", "will_need": catalog.access != "sequential"}
    records = Records(catalog.starts, catalog, views=is_marked(resolve(decode), "takes_view"), **how)
    return IndexedDataset(catalog, records, decode, rows, _Skips() if on_error == "skip" else None)


class _Skips(set[int]):
    """The numbers of the records that this process skipped; all views share them."""

    any_kept = False
    """Whether a record was ever decoded."""


class IndexedDataset(Samples, Dataset):
    """Decodes the records of indexes into samples; `mmapds.open` returns it.

    Args:
      rows: the selected records of the catalog; None for all, in order.
      skips: the skipped records; None raises an error for a record that cannot be decoded.
    """

    def __init__(
        self, catalog: Catalog, records: Records, decode: str | Decoder, rows: Rows | None, skips: _Skips | None
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._given_decode = decode
        self._decode = resolve(decode)
        self._is_located = is_marked(self._decode, "takes_location")
        self._takes_views = is_marked(self._decode, "takes_view")
        may_skip = skips is not None and isinstance(self._decode, StoredFields) and self._decode.converts
        self._gives_arrays = array_columns(self._decode) is not None and not may_skip
        self._rows = rows
        self._skips = skips
        self._length = len(self._records) if rows is None else len(rows)
        self._fingerprint: str | None = None
        if rows is None and not self._is_located:
            self._decode_record = None if self._decode is as_bytes else self._decode

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:  # records are the same in every epoch
        pass

    def _at(self, key: Any) -> Any:
        """Return `self[key]` in the cases that C's `Samples` leaves to Python."""
        if type(key) is not int:
            if not is_position(key):
                return self._view(key)
            key = as_position(key)
        number = key if self._rows is None else self._record(key)
        return self._sample(self._records[number], number, key)

    def _sample(self, record: Any, number: int, position: int) -> Any:
        try:
            sample = self._decoded(record, number)
        except Exception as error:
            self._raise_at(number, position, error)
        if self._takes_views:
            self._records.check(number)  # if the source was cut short meanwhile, the sample has zeros
        return sample

    def _one_by_one(self, positions: range) -> Iterator[Any]:
        """Yield samples, each made on demand: it may be far larger than its record."""
        while positions:
            numbers = self._record_numbers(positions[:1024])
            fitting = max(1, self._records.fitting(numbers, 1 << 20))  # a larger record is read alone
            records = self._records.many(numbers[:fitting])  # in one call, as finding a block for each record is slow
            for position, number, record in zip(positions, numbers.tolist(), records, strict=False):
                yield self._sample(record, number, position)
            positions = positions[fitting:]

    def _decoded(self, record: Any, number: int) -> Any:
        return self._decode(record, self._locate(number)) if self._is_located else self._decode(record)

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        decode, positions = self._decode, batch_of(positions, self._length)
        if self._skips is not None and not self._gives_arrays:
            return super().take(positions)
        numbers = positions if self._rows is None else self._record_numbers(positions)
        if decode is as_bytes:
            return self._records.many(numbers)
        if isinstance(decode, Fields):
            return self._take_fields(numbers, positions)[0]
        refused = partial(self._raise_of, numbers, positions)
        if self._gives_arrays:
            return self._take_arrays(numbers, refused)
        if self._is_located:
            places = map(self._locate, numbers)
            return self._records.decode(numbers, lambda record: decode(record, next(places)), refused)
        return self._records.decode(numbers, decode, refused)

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._skips is None or self._gives_arrays:
            return self.take(positions), np.arange(len(positions), dtype=np.int64)
        positions = batch_of(positions, self._length)
        read = self._take_fields if isinstance(self._decode, Fields) else self._take_others
        samples, kept = read(self._record_numbers(positions), positions)
        self._skips.any_kept |= len(kept) > 0
        if len(positions) and not self._skips.any_kept and len(self._skips) >= min(self._length, _ENOUGH):
            _ = self[positions[0]]  # raises: the decoder fits no record
        return samples, kept

    def _take_arrays(self, numbers: Any, refused: Refused) -> RecordBatch:
        columns = array_columns(self._decode)
        try:
            found = ArrayBatch(self._records, numbers, columns.native)
        except FormatError as error:
            if len(error.args) > 1:  # the reason, and the record's place in the batch
                reason, k = error.args
                refused(k, FormatError(reason))
            raise
        return RecordBatch(found, columns, self._decode, refused, found.check)

    def _take_others(self, numbers: Any, positions: Any) -> tuple[Sequence[Any], NDArray[np.int64]]:
        """Read records and decode them one by one; return as `_take_fields`."""
        samples: list[Any] = []
        kept: list[int] = []
        for k, (record, number) in enumerate(zip(self._records.many(numbers), numbers.tolist(), strict=True)):
            try:
                samples.append(self._decoded(record, number))
            except Exception as error:
                if is_short_of_memory(error) or isinstance(error, RecursionError):
                    self._raise_at(number, positions[k], error)
                reason = reason_of(error, self._given_decode, partial(self._records.copy, number))
                self._leave_out(number, reason or f"{type(error).__name__}: {error}")
                continue
            kept.append(k)
            if self._takes_views:
                self._records.check(number)
        return samples, np.array(kept, np.int64)

    def _take_fields(self, numbers: Any, positions: Any) -> tuple[Sequence[Any], NDArray[np.int64]]:
        """Read the fields of a batch of records; return the samples that are not skipped, and their places."""
        decode = self._decode
        assert isinstance(decode, Fields)
        found = JsonBatch(self._records, numbers, decode.native, skip=self._skips is not None)
        kept = np.arange(len(found), dtype=np.int64)
        for place, why in found.refused:
            number = int(numbers[place])
            reason = decode._reason(bytes(self._records[number]), *why)
            if self._skips is None:
                self._raise_at(number, positions[place], DecodeError(reason))
            self._leave_out(number, reason)
        if len(found) < len(numbers):
            kept = np.frombuffer(found.places, np.uint64).astype(np.int64)
            numbers, positions = numbers[kept], np.asarray(positions)[kept]
        return RecordBatch(found, decode, None, partial(self._raise_of, numbers, positions)), kept

    @property
    def skipped(self) -> list[int]:
        records = sorted(self._skips or ())
        return records if self._rows is None or not records else list(positions_of(self._rows, records))

    @property
    def _on_error(self) -> OnError:
        return "raise" if self._skips is None else "skip"

    # ---- records that cannot be decoded ------------------------------------------------------------------------

    def _leave_out(self, number: int, reason: str) -> None:
        """Record that a record was skipped; warn of the first one."""
        assert self._skips is not None
        self._check_source(number)
        is_first = not self._skips
        self._skips.add(number)
        if is_first:
            more = "skipped; ds.skipped lists it and all later ones, which give no warning"
            warn(f"{self._catalog.place(self._records.locate(number))}: {reason}; {more}", RuntimeWarning)

    def _check_source(self, number: SupportsIndex) -> None:
        """Raise an error if the source or its index caused a decoder's error, not the record."""
        self._records.check(number)
        self._catalog.check_line(self._records.locate(number))

    def _raise_at(self, number: SupportsIndex, position: Any, error: Exception) -> NoReturn:
        """Raise a decoder's error with the place of the record; errors of a user's decoder keep their type."""
        self._check_source(number)
        located = self._records.locate(number)
        if is_short_of_memory(error):
            what = f"decoding a record of {located[3] - located[2]} bytes"
            raise self._catalog.short_of_memory(located, what) from error
        place, at = self._catalog.place(located), f" (ds[{int(position) % self._length}])"
        if type(error) in (DecodeError, FormatError):
            raise type(error)(f"{place}: {error}{at}") from None
        if reason := reason_of(error, self._given_decode, partial(self._records.copy, number)):
            raise DecodeError(f"{place}: {reason}{at}") from error
        if isinstance(error, StopIteration):  # a loop would take it for the end of the dataset
            raise RuntimeError(f"{place}: the decoder raised StopIteration{at}") from error
        add_note(error, f"while decoding {place}{at}")
        raise error

    def _raise_of(self, numbers: Any, positions: Any, k: int, error: Exception) -> NoReturn:
        """Raise the error of record `k` of a batch."""
        self._raise_at(numbers[k], positions[k], error)

    # ---- records, sources and columns --------------------------------------------------------------------------

    def raw(self, position: SupportsIndex) -> bytes:
        return self._records.copy(as_position(position) if self._rows is None else self._record(position))

    def where(self, position: SupportsIndex) -> Location:
        return self._locate(self._record(position))

    def place(self, position: SupportsIndex) -> str:
        return self._catalog.place(self._records.locate(self._record(position)))

    def find(self, key: str) -> int:
        if not isinstance(key, str):
            raise TypeError(f"key = {shortened(key)}, expected a string")
        indexes = self._catalog.indexes
        records = (
            first + record
            for first, index in zip(accumulate((each.records for each in indexes), initial=0), indexes, strict=False)
            for record in candidates(index, key)
            if formats.of_index(index).key(self._records.copy(first + record)) == key
        )
        found = next(records if self._rows is None else positions_of(self._rows, list(records)), None)
        if found is None:
            raise KeyMissingError(f"key = {shortened(key)}, expected the key of one of the {self._length} records")
        return found

    @property
    def _selection(self) -> Rows:
        return RangeRows(range(self._length)) if self._rows is None else self._rows

    @property
    def _is_view(self) -> bool:
        return self._rows is not None

    @property
    def sources(self) -> list[str]:
        return [self._catalog.source_path(member) for member in range(len(self._catalog.members))]

    @property
    def indexes(self) -> list[str]:
        return [index.path for index in self._catalog.indexes]

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:  # not a cached_property: see `Index.home`
            rows = np.linspace(0, self._length - 1, min(self._length, _ROWS_COMPARED)).astype(np.int64)
            if self._rows is not None and self._length:
                rows = self._rows.many(rows)
            self._fingerprint = self._catalog.fingerprint(f"{self._length}".encode() + rows.tobytes())
        return self._fingerprint

    @property
    def source_starts(self) -> NDArray[np.int64]:
        if self._rows is not None:
            return np.array([0, self._length], np.int64)
        return self._catalog.starts.astype(np.int64)

    @property
    def block_starts(self) -> NDArray[np.int64]:
        return saving.block_starts(self._catalog.indexes, self._selection)

    @property
    def _indexed(self) -> IndexedDataset:
        return self

    @property
    def _place(self) -> Place:
        """Where the sources lie."""
        return self._catalog.place_of_sources

    def _described(self) -> list[Source]:
        """Return the sources as they were indexed."""
        return [index.described(number) for index, number in self._catalog.members]

    @property
    def _block_cache(self) -> int:
        """Bytes of the cache of decoded blocks."""
        return self._catalog.blocks.limit

    def _figures(self) -> dict[str, Any]:
        """Return what reads of this process have cost, for `DataLoader.stats`."""
        return {"decoded_blocks": self._catalog.blocks.decoded, **self._place.figures()}

    def _waiting(self) -> str:
        """Return what readers of this process wait for, as text for a message; empty for nothing."""
        return self._place.waiting()

    def _decodes(self, positions: NDArray[np.int64], limit: int | None = None) -> tuple[float, float]:
        if self._catalog.is_cached:
            return 0.0, 0.0
        numbers = positions if self._rows is None else self._rows.many(positions)
        return self._catalog.decodes(numbers, self._catalog.blocks.limit if limit is None else limit)

    @property
    def columns(self) -> list[str]:
        indexes = self._catalog.indexes
        return [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]

    def _columns_named(self, name: str) -> list[str]:
        return [name] if name in self.columns else []

    def column(self, name: str) -> NDArray[Any]:
        found = saving.column(self._catalog.indexes, self._selection, name)
        found.flags.writeable = False
        return found

    @property
    def length_order(self) -> LengthOrder | None:
        return saving.length_order(self._catalog.indexes, self._selection, self)

    def save(self, path: StrPath) -> None:
        saving.save(path, self._catalog.indexes, self._selection, self.columns)

    def _select(self, inner: Rows) -> IndexedDataset:
        rows = composed(self._rows, inner, len(self._records))
        return IndexedDataset(self._catalog, self._records, self._given_decode, rows, self._skips)

    @property
    def _opened_with(self) -> dict[str, Any]:
        """The arguments of `open` in which datasets in a row agree."""
        access, io, compares = self._catalog.how
        check = "stat" if compares else "none"  # or another comparison
        return {"decode": self._given_decode, "access": access, "io": io, "check": check, "on_error": self._on_error}

    @classmethod
    def _chained(cls, parts: Sequence[IndexedDataset]) -> IndexedDataset:
        first, catalog = parts[0], parts[0]._catalog
        for k, part in enumerate(parts):
            for name, expected in first._opened_with.items():
                found = part._opened_with[name]
                if not (is_same_decoder(found, expected) if name == "decode" else found == expected):
                    name, *shown = shown_apart(name, expected, found)
                    raise Error(
                        f"datasets[{k}]: expected {name} = {shown[0]} as of datasets[0], found {shown[1]}; use "
                        "torch.utils.data.ConcatDataset, open them alike, or convert them to one kind with "
                        "mmapds.convert"
                    )
        indexes = [index for part in parts for index in part._catalog.indexes]
        limit = max(part._catalog.blocks.limit for part in parts)
        rows = None
        if any(part._is_view for part in parts):
            firsts = np.cumsum([0, *(len(part._records) for part in parts)]).tolist()
            rows = ChainedRows(zip(firsts, (part._selection for part in parts), strict=False))
        joined = Catalog(indexes, catalog.access, catalog.io, limit)
        return make_dataset(joined, first._given_decode, first._on_error, rows)

    def _record(self, position: SupportsIndex) -> int:
        index = as_position(position)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {shortened(index)} is out of range for {plain_counted(self._length, 'record')}")
        index %= self._length
        return index if self._rows is None else self._rows.one(index)

    def _sources_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the source of each position."""
        return np.searchsorted(self._catalog.starts, self._record_numbers(positions).astype(np.uint64), "right") - 1

    def _record_numbers(self, positions: Any) -> NDArray[np.int64]:
        numbers = checked(positions, self._length)
        return numbers if self._rows is None else self._rows.many(numbers)

    def _locate(self, record: SupportsIndex) -> Location:
        return self._catalog.location(self._records.locate(record))

    def __repr__(self) -> str:
        paths = self.sources
        names = ", ".join(paths[:3]) + (f", ... {len(paths):,} sources" if len(paths) > 3 else "")
        of = f"{self._length:,} of " * self._is_view
        name = decoder_name(self._given_decode)
        return f"<mmapds.Dataset {names}: {of}{counted(len(self._records), 'record')}, decode={name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return make_dataset, (self._catalog, self._given_decode, self._on_error, self._rows)


# ---- samples for the command line ---------------------------------------------------------------------------------


def matching(dataset: IndexedDataset, where: str) -> IndexedDataset:
    """Return the view of the records that pass a filter of their columns; see `views.rows_where`."""
    return dataset._select(rows_where(where, dataset.column, len(dataset)))


def json_texts(dataset: Dataset) -> IndexedDataset | None:
    """Return the records of a dataset as bytes, if it parses them as JSON and skips none; otherwise None."""
    if not isinstance(dataset, IndexedDataset) or dataset._given_decode != "json" or dataset._skips is not None:
        return None
    return IndexedDataset(dataset._catalog, dataset._records, "bytes", dataset._rows, None)


def undecoded(dataset: IndexedDataset) -> IndexedDataset:
    """Return the dataset of the undecoded records, as memoryviews: only bytes that are looked at are read."""
    return make_dataset(dataset._catalog, takes_view(lambda record: record), rows=dataset._rows)


def shown(dataset: IndexedDataset, position: int, record: Any, *, full: bool = False) -> tuple[str, Error | None]:
    """Return a sample as text, by `printed`, and the error of its decoder, if any.

    The text shows the `record` of `undecoded` instead if the sample is large or cannot be printed.
    """
    sample, refused = record, None
    try:
        if full or dataset._gives_arrays or len(record) <= _LARGE:
            sample = dataset[position]
    except (DecodeError, FormatError) as error:
        refused = error
    try:
        return printed(sample, full=full), refused
    except Exception:  # JSON cannot hold it: text beyond Unicode, too long numbers, too deep lists
        return printed(record, full=full), refused
