"""The dataset that `open` returns: samples over one index or many, none of them held in memory."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Literal, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from .. import formats
from .._native import JsonBatch, Records, Samples
from ..errors import (
    DecodeError,
    Error,
    KeyMissingError,
    counted,
    either,
    plain_counted,
    shortened,
    warn,
)
from ..formats.unmeasured import not_utf_8
from ..index.keys import candidates
from ..storage.runs import LengthOrder
from ..storage.sources import StrPath
from ..storage.workers import is_worker
from . import saving, stored
from .batch import RecordBatch, Refused
from .catalog import Catalog, Location, reopened, warn_of_meanings
from .dataset import Dataset
from .decode import (
    Decoder,
    array_batch,
    array_columns,
    as_bytes,
    decoder_name,
    is_same_decoder,
    is_short_of_memory,
    raise_at,
    reason_of,
    resolve,
    wants_location,
    wants_view,
)
from .fields import Fields, StoredFields, differing_records
from .views import ChainedRows, RangeRows, Rows, as_position, checked, composed, is_position, refuse_mask

OnError = Literal["raise", "skip"]
"""What to do with records that cannot be decoded."""
_ROWS_COMPARED = 65_536  # of a view, by its fingerprint
_READ_TOGETHER = 1024  # records, at most, where samples are made one by one
_ROOM = 1 << 20  # bytes of these records; a larger one is read alone
_TRIED = 4  # records that tell a decoder of other records from a bad record
_SHOWN = 3  # sources that a repr names
_NAMED = 10  # skipped records that a process warns of, one by one
_ENOUGH = 100  # records, of which none was decoded, that make an error


def make_dataset(
    catalog: Catalog, decode: str | Decoder, on_error: OnError = "raise", rows: Rows | None = None
) -> "IndexedDataset":
    """Return the dataset of all records of a catalog, or of those that `rows` selects."""
    records = catalog.records(views=wants_view(resolve(decode)))
    return IndexedDataset(catalog, records, decode, rows, Skips() if on_error == "skip" else None)


class Skips:
    """The records that were left out in this process, each once. Views of a dataset share it, and so do threads."""

    def __init__(self) -> None:
        self._records: dict[int, object] = {}
        self.any_kept = False
        """Whether a record was ever decoded; those who read `Fields` set it."""

    def add(self, record: int, what: Callable[[], str]) -> None:
        """Take in a record that was left out; warn, if it is the first time.

        Args:
          what: returns the place of the record, and what is wrong with it. It is called only where that is shown, as
            it may read the source up to the record to count its lines.
        """
        mark = object()
        if self._records.setdefault(record, mark) is not mark:  # one step, so that threads need no lock
            return
        count = len(self._records)
        rest = ", the 11th record in this process; ds.skipped has all, and the next ones are left out without a warning"
        if count <= _NAMED + 1:
            warn(f"{what()}; left out{rest if count > _NAMED else ''}", RuntimeWarning)

    def are_all(self, total: int) -> bool:
        """Whether nothing was ever decoded, of enough records to say that the decoder fits none of `total`."""
        return not self.any_kept and len(self._records) >= min(total, _ENOUGH)

    @property
    def records(self) -> list[int]:
        """The numbers of the records, ascending."""
        return sorted(self._records)


class IndexedDataset(Samples, Dataset):
    """A dataset of the records of indexes, each made a sample by a decoder: what `mmapds.open` returns.

    Args:
      records: all records of the catalog, which views share.
      rows: which of them; None for all, in order.
      skips: takes in records that cannot be decoded; None if such a record is an error.
    """

    _MADE_BY = "mmapds.open"

    def __init__(
        self, catalog: Catalog, records: Records, decode: str | Decoder, rows: Rows | None, skips: Skips | None
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._given_decode = decode
        self._decode = resolve(decode)
        self._is_located, self._takes_views = wants_location(self._decode), wants_view(self._decode)
        may_skip = skips is not None and isinstance(self._decode, StoredFields) and self._decode.converts
        self._gives_arrays = array_columns(self._decode) is not None and not may_skip
        self._rows = rows
        self._skips = skips
        self._length = len(self._records) if rows is None else len(rows)
        self._fingerprint: str | None = None
        if rows is None and not self._is_located:
            self._decode_record = None if self._decode is as_bytes else self._decode

    # ---- samples -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._length

    def _at(self, key: Any) -> Any:
        """Return what `self[key]` is, where that is more than a record and its decoder; see `Samples`."""
        if type(key) is not int:
            if not is_position(key):
                return self._view(key)
            key = as_position(key)
        number = key if self._rows is None else self._record(key)
        return self._sample(self._records[number], number, key)

    def _sample(self, record: Any, number: int, position: int) -> Any:
        """Return the sample of a record that was read."""
        try:
            sample = self._decode(record, self._locate(number)) if self._is_located else self._decode(record)
        except Exception as error:
            self._raise_at(number, position, error)
        self._check_view(number)
        return sample

    def _one_by_one(self, positions: range) -> Iterator[Any]:
        while positions:
            some = positions[:_READ_TOGETHER]
            numbers: Any = some if self._rows is None else self._record_numbers(some)
            fitting = max(1, self._records.fitting(numbers, _ROOM))
            records = self._records.many(numbers[:fitting])
            for position, number, record in zip(some, numbers, records, strict=False):
                yield self._sample(record, number, position)
            positions = positions[fitting:]

    def _check_view(self, number: SupportsIndex) -> None:
        """Raise the error for a source that was cut short while a view of it was decoded: the sample may have zeros."""
        if self._takes_views:
            self._records.check(number)

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        decode = self._decode
        if hasattr(positions, "numpy"):  # a tensor
            positions = positions.numpy(force=True)
        refuse_mask(positions, self._length)
        numbers = positions if self._rows is None else self._record_numbers(positions)

        refused = self._refused(numbers, positions)
        if self._gives_arrays:
            return array_batch(self._records, numbers, decode, refused)
        if self._skips is not None:
            kept, _ = self.take_kept(positions)
            return kept if kept or not len(positions) else [self[positions[0]]]  # which raises
        if isinstance(decode, Fields):
            found = JsonBatch(self._records, numbers, decode.reader.native, skip=False)
            for place, why in found.refused:
                error = DecodeError(decode.reader.reason(bytes(self._records[numbers[place]]), *why))
                self._raise_at(numbers[place], positions[place], error)
            return RecordBatch(found, decode.reader, decode.reader.finished, refused)

        if decode is as_bytes:
            return self._records.many(numbers)
        if self._is_located:
            places = map(self._locate, numbers)
            return self._records.decode(numbers, lambda record: decode(record, next(places)), refused)
        return self._records.decode(numbers, decode, refused)

    __getitems__ = take

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._skips is None or self._gives_arrays:
            return super().take_kept(positions)
        refuse_mask(positions, self._length)
        decode, numbers = self._decode, self._record_numbers(positions)
        if isinstance(decode, Fields):
            return self._take_fields(decode, numbers, positions)
        samples: list[Any] = []
        kept: list[int] = []
        for k, (record, number) in enumerate(zip(self._records.many(numbers), numbers.tolist(), strict=True)):
            try:
                sample = decode(record, self._locate(number)) if self._is_located else decode(record)
            except Exception as error:
                if is_short_of_memory(error) or isinstance(error, RecursionError):
                    self._raise_at(number, positions[k], error)
                self._check_source(number)
                self._skips.add(number, partial(self._described, number, reason_of(error, self._given_decode)))
            else:
                self._check_view(number)
                samples.append(sample)
                kept.append(k)
        return samples, np.array(kept, np.int64)

    def _take_fields(
        self, decode: Fields, numbers: NDArray[np.int64], positions: Any
    ) -> tuple[RecordBatch, NDArray[np.int64]]:
        """Read the fields of the records that can be read, and leave out the others.

        Raises:
          DecodeError: none of many records could ever be read, so that a field of the schema is wrong.
        """
        assert self._skips is not None
        found = JsonBatch(self._records, numbers, decode.reader.native, skip=True)
        self._skips.any_kept |= len(found) > 0
        for place, why in found.refused:
            number = int(numbers[place])
            self._catalog.check_line(self._records.locate(number))
            what = partial(self._described, number, decode.reader.reason(bytes(self._records[number]), *why))
            self._skips.add(number, what)
            if why[1] is not None and self._skips.are_all(len(self._records)):
                count = plain_counted(len(self._skips.records), "record")
                remedy = f"give a field and a type that records have, as none of {count} can be read"
                raise DecodeError(f"{what()}; {remedy}")
        places = np.frombuffer(found.places, np.uint64).astype(np.int64)
        refused = self._refused(numbers[places], np.asarray(positions)[places])
        return RecordBatch(found, decode.reader, decode.reader.finished, refused), places

    @property
    def skipped(self) -> list[int]:
        if self._skips is None or self._rows is None:
            return self._skips.records if self._skips is not None else []
        return sorted(position for record in self._skips.records for position in self._rows.positions(record))

    @property
    def _on_error(self) -> OnError:
        return "raise" if self._skips is None else "skip"

    # ---- records that cannot be decoded ------------------------------------------------------------------------

    def _described(self, number: int, reason: str) -> str:
        """Return the place of a record, and what is wrong with it."""
        return f"{self._place(number)}: {reason}"

    def _check_source(self, number: SupportsIndex) -> None:
        """Raise where the source or its index is to blame for the error of a decoder, and not the record."""
        self._records.check(number)
        self._catalog.check_line(self._records.locate(number))

    def _raise_at(self, number: SupportsIndex, position: Any, error: Exception) -> NoReturn:
        """Raise the error of the decoder, with the place of the record, its position, and what to do."""
        self._check_source(number)
        located = self._records.locate(number)
        if is_short_of_memory(error):
            remark = str(error).partition("\n")[0]
            what = f"decoding a record of {located[3] - located[2]} bytes{f' ({remark})' * bool(remark)}"
            raise self._catalog.short_of_memory(located, what) from error
        is_json = self._given_decode == "json"
        if is_json and (why := not_utf_8(bytes(self._records[number]))):
            error = DecodeError(f"not JSON: {why}")
        hint = self._catalog.hint(located, int(position) % self._length, self._on_error, is_json=is_json)
        if tried := self._refused_from_the_first():
            others = f"; or {hint.removeprefix('; ')}" if hint else ""
            given = either("--decode", "decode=...")
            hint = f"; give another {given}, as it refuses all of the first {tried} records{others}"
        raise_at(self._catalog.place(located), error, self._given_decode, hint)

    def _refused(self, numbers: Any, positions: Any) -> Refused:
        """Return what raises the errors of some records; see `_raise_at`."""

        def refused(k: int, error: Exception) -> NoReturn:
            self._raise_at(numbers[k], positions[k], error)

        return refused

    def _refused_from_the_first(self) -> int:
        """Return how many of the first records a decoder given by name was tried on, if it refuses all; else 0.

        One record alone may be to blame itself. A function of the user's is not called for what nobody asked for, and
        the format says more about JSON.
        """
        given, tried = self._given_decode, min(len(self._records), _TRIED)
        if not isinstance(given, str) or given == "json" or tried < 2:
            return 0
        for number in range(tried):
            with suppress(Exception):
                record = self._records[number]
                _ = self._decode(record, self._locate(number)) if self._is_located else self._decode(record)
                return 0
        return tried

    # ---- records, sources and columns --------------------------------------------------------------------------

    def raw(self, position: SupportsIndex) -> bytes:
        return self._records.copy(as_position(position) if self._rows is None else self._record(position))

    def where(self, position: SupportsIndex) -> Location:
        return self._locate(self._record(position))

    def place(self, position: SupportsIndex) -> str:
        return self._place(self._record(position))

    def find(self, key: str) -> int:
        if not isinstance(key, str):
            raise TypeError(f"key = {shortened(key)}, expected a string")
        if self._rows is None:
            found = list(islice(self._records_of(key), 1))
        else:
            found = [position for record in self._records_of(key) for position in self._rows.positions(record)]
        if found:
            return min(found)
        raise KeyMissingError(f"key = {shortened(key)}, expected the key of one of the {self._length} records")

    def _records_of(self, key: str) -> Iterator[int]:
        """Yield the numbers of the records that have a key, ascending."""
        first = 0
        for index in self._catalog.indexes:
            for record in candidates(index, key):
                if formats.of_index(index).key(self._records.copy(first + record)) == key:
                    yield first + record
            first += index.records

    @property
    def _is_view(self) -> bool:
        return self._rows is not None

    @property
    def _has_keys(self) -> bool:
        return all("key_hashes" in index.sections for index in self._catalog.indexes)

    @property
    def sources(self) -> list[str]:
        return [self._catalog.source_path(member) for member in range(len(self._catalog.members))]

    @property
    def indexes(self) -> list[str]:
        return [index.path for index in self._catalog.indexes]

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:  # not a cached_property: see `Index.bounds_at`
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
        return stored.block_starts(self._catalog.indexes, self._rows)

    @property
    def columns(self) -> list[str]:
        indexes = self._catalog.indexes
        return [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]

    def _columns_named(self, name: str) -> list[str]:
        return [name] if name in self.columns else []

    def column(self, name: str) -> NDArray[Any]:
        found = stored.column(self._catalog.indexes, self._rows, name)
        found.flags.writeable = False
        return found

    @property
    def length_order(self) -> LengthOrder | None:
        return stored.length_order(self._catalog.indexes, self._rows, self)

    def save(self, path: StrPath) -> None:
        rows = RangeRows(range(self._length)) if self._rows is None else self._rows
        saving.save(path, self._catalog.indexes, rows, self.columns)

    # ---- views -------------------------------------------------------------------------------------------------

    def _select(self, inner: Rows) -> "IndexedDataset":
        rows = composed(self._rows, inner, len(self._records))
        return IndexedDataset(self._catalog, self._records, self._given_decode, rows, self._skips)

    @classmethod
    def _chained(cls, parts: Sequence["IndexedDataset"]) -> "IndexedDataset":
        first, access, io = parts[0], parts[0]._catalog.access, parts[0]._catalog.io
        for k, part in enumerate(parts):
            alike = (part._catalog.access, part._catalog.io) == (access, io)
            if not is_same_decoder(part._given_decode, first._given_decode) or not alike:
                if differ := differing_records(first._given_decode, part._given_decode, "datasets[0]"):
                    raise Error(f"datasets[{k}]: {differ}")
                raise Error(
                    f"datasets[{k}]: expected decode = {decoder_name(first._given_decode)}, access = {access!r} and io "
                    f"= {io!r}, as in datasets[0], found {decoder_name(part._given_decode)}, {part._catalog.access!r} "
                    f"and {part._catalog.io!r}; open them alike"
                )
            if part._on_error != first._on_error:
                raise Error(f"datasets[{k}]: expected on_error = 'skip' for all datasets or for none; open them alike")
            if part._catalog.compares != first._catalog.compares:
                raise Error(f"datasets[{k}]: expected check = 'none' for all datasets or for none; open them alike")
        warn_of_meanings([part._catalog.indexes[0] for part in parts])  # `open` compares those of one dataset
        indexes = [index for part in parts for index in part._catalog.indexes]
        catalog = Catalog(indexes, access, io, max(part._catalog.blocks.limit for part in parts))
        rows = None
        if any(part._rows is not None for part in parts):
            firsts = np.cumsum([0, *(len(part._records) for part in parts)]).tolist()
            every = [RangeRows(range(len(part))) if part._rows is None else part._rows for part in parts]
            rows = ChainedRows(zip(firsts, every, strict=False))
        return make_dataset(catalog, first._given_decode, first._on_error, rows)

    def _record(self, position: SupportsIndex) -> int:
        """Return the number of the record at a position."""
        index = as_position(position)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {shortened(index)} is out of range for {plain_counted(self._length, 'record')}")
        index %= self._length
        return index if self._rows is None else self._rows.one(index)

    def _record_numbers(self, positions: Any) -> NDArray[np.int64]:
        numbers = checked(positions, self._length)
        return numbers if self._rows is None else self._rows.many(numbers)

    def _locate(self, record: SupportsIndex) -> Location:
        return self._catalog.location(self._records.locate(record))

    def _place(self, record: SupportsIndex) -> str:
        return self._catalog.place(self._records.locate(record))

    def __repr__(self) -> str:
        paths = self.sources
        names = ", ".join(paths[:_SHOWN]) + (f", ... {len(paths):,} sources" if len(paths) > _SHOWN else "")
        total = len(self._records)
        count = counted(total, "record") if self._rows is None else f"{self._length:,} of {counted(total, 'record')}"
        return f"<mmapds.Dataset {names}: {count}, decode={decoder_name(self._given_decode)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._catalog.packed(), self._given_decode, self._on_error, self._rows)


class Unopened:
    """What a worker process has in place of a dataset that it cannot open: the error, for whoever asks it for anything.

    A worker that raised while it starts would end, and torch would only say that it did.
    """

    def __init__(self, error: Error) -> None:
        self._error = error

    def __len__(self) -> int:
        raise self._error

    def __getitem__(self, key: Any) -> Any:
        raise self._error

    __getitems__ = __getitem__

    def __iter__(self) -> Iterator[Any]:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for, as copy and pickle do
            raise AttributeError(name)
        raise self._error


def _reopen(
    packed: tuple[Any, ...], decode: str | Decoder, on_error: OnError, rows: Rows | None
) -> IndexedDataset | Unopened:
    """Open a pickled dataset again."""
    try:
        catalog = reopened(*packed)
    except Error as error:
        if is_worker():
            return Unopened(error)
        raise
    return make_dataset(catalog, decode, on_error, rows)
