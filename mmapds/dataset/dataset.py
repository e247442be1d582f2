"""The dataset: a sequence of samples over one index or many that holds none of them in memory."""

import operator
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import formats
from .._native import Records
from ..errors import Error, KeyMissingError
from ..index.keys import candidates
from ..orders.permutation import Permutation
from ..storage.files import IoChoice
from ..storage.processes import is_worker
from .array_decoder import array_decoder
from .batch import Batch
from .catalog import Catalog
from .decode import Decoder, decoder_name, is_same_decoder, raise_at, resolve, wants_location, wants_view
from .origin import Origin
from .other_names import OTHER_NAMES
from .views import ArrayRows, ChainedRows, NestedRows, PermutedRows, RangeRows, Rows

if TYPE_CHECKING:
    import torch.utils.data

    from ..samplers.stream import Stream

    class _Samples(Sequence[Any], torch.utils.data.Dataset[Any]):
        """What type checkers take a dataset for, as torch's DataLoader asks for one of torch's class.

        torch itself never asks, so that a dataset need not load torch to be one.
        """

else:
    _Samples = Sequence[Any]

_ROWS_COMPARED = 65_536  # of a view, by its fingerprint
_SHOWN = 3  # sources that a repr names


class Location(NamedTuple):
    """Where a record lies."""

    source: str
    """Path of the file."""
    offset: int
    """Byte of the file at which the payload begins."""
    size: int
    """Bytes in the payload."""


def make_dataset(catalog: Catalog, origin: Origin, decode: str | Decoder, rows: Rows | None = None) -> "Dataset":
    """Return the dataset of all records of a catalog, or of those that `rows` selects."""
    return Dataset(catalog, catalog.records(views=wants_view(resolve(decode))), origin, decode, rows)


class Dataset(_Samples):
    """Samples by position: `ds[i]` reads one index entry and one record, and keeps neither.

    Made by `mmapds.open`. A slice, an array of ints or a mask gives a view: a dataset again, which copies no data. Safe
    in threads and after a fork; pickles by path. Iteration, `in`, `index` and `count` are those of any sequence.
    """

    def __init__(
        self, catalog: Catalog, records: Records, origin: Origin, decode: str | Decoder, rows: Rows | None = None
    ) -> None:
        self._catalog = catalog
        self._records = records
        self._origin = origin
        self._given_decode = decode
        self._decode = resolve(decode)
        self._is_located = wants_location(self._decode)
        self._gives_arrays = array_decoder(self._decode) is not None
        self._rows = rows  # None: all records, in order
        self._length = len(records) if rows is None else len(rows)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike) -> "Dataset": ...
    def __getitem__(self, key: Any) -> Any:
        """Return the sample at a position, or a view.

        Args:
          key: an int gives a sample. A slice, an array of ints, or a mask (a bool for each sample)
            gives a view. Negative positions count from the end.
        Raises:
          IndexError: a position is out of range, a mask has another length, or an array has another shape or dtype.
          DecodeError: the record is not what the decoder expects.
        """
        if not isinstance(key, int):
            if not hasattr(key, "__index__") or getattr(key, "ndim", False):  # arrays and tensors have both
                return self._view(key)
            key = operator.index(key)
        number = key if self._rows is None else self._record(key)
        record = self._records[number]
        try:
            return self._decode(record, self._locate(number)) if self._is_located else self._decode(record)
        except Exception as error:
            raise_at(self._place(number), error, self._given_decode)

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        """Return the samples at `positions`, in that order. DataLoaders call it for each batch, as `__getitems__`.

        Faster than `[ds[i] for i in positions]`: positions are checked first, and all pages are asked for before the
        first is touched. Positions may repeat; negative positions count from the end.

        Args:
          positions: int sequence, array or tensor, shape (k,).
        Returns:
          A list of k samples. For array files (`.mma`) a sequence that makes each sample when it is asked for;
          `pad_collate` fills its tensors from the file without making any.
        Raises:
          IndexError: a position is outside the dataset; nothing is returned.
          DecodeError: a record is not what the decoder expects.
        """
        decode, samples = self._decode, []
        if hasattr(positions, "numpy"):  # a tensor
            positions = positions.numpy(force=True)
        numbers = positions if self._rows is None else self._record_numbers(positions)
        if self._gives_arrays:
            return Batch(self._catalog, self._records, numbers, decode)
        records = self._records.many(numbers)
        try:
            if self._is_located:
                for record, number in zip(records, numbers, strict=True):
                    samples.append(decode(record, self._locate(number)))
            else:
                for record in records:
                    samples.append(decode(record))
        except Exception as error:
            raise_at(self._place(numbers[len(samples)]), error, self._given_decode)
        return samples

    __getitems__ = take

    def __iter__(self) -> Iterator[Any]:
        # A generator turns a StopIteration from a decoder into an error; else it would end the loop.
        for position in range(self._length):
            yield self[position]

    def raw(self, position: SupportsIndex) -> bytes:
        """Return the bytes of a record, undecoded and without its framing."""
        return bytes(self._records[position if self._rows is None else self._record(position)])

    def where(self, position: SupportsIndex) -> Location:
        """Return where a record lies: which file, which byte, how many bytes."""
        return self._locate(self._record(position))

    def place(self, position: SupportsIndex) -> str:
        """Return where a record lies as messages say it: `train.jsonl:41 (byte 51200)`."""
        return self._place(self._record(position))

    def find(self, key: str) -> int:
        """Return the position of the record with a key, as records of a tar have; of the first one, if several have it.

        A binary search in the index, and one read of the record; holds nothing in memory.

        Raises:
          KeyMissingError: no record of this dataset or view has the key.
          FormatError: the records have no keys.
        """
        if not isinstance(key, str):
            raise TypeError(f"key = {key!r}, expected a string")
        first = 0
        for index in self._catalog.indexes:
            for record in candidates(index, key):
                if formats.of_index(index).key(self._records[first + record]) == key:
                    shown = [first + record] if self._rows is None else self._rows.positions(first + record)
                    if shown:
                        return min(shown)
            first += index.records
        raise KeyMissingError(f"key = {key!r}, expected the key of one of the {self._length} records")

    @property
    def sources(self) -> list[str]:
        """Paths of the files behind the dataset, in the order of their records."""
        return [self._catalog.source_path(member) for member in range(len(self._catalog.members))]

    @property
    def indexes(self) -> list[str]:
        """Paths of the indexes behind the dataset."""
        return [index.path for index in self._catalog.indexes]

    @cached_property
    def fingerprint(self) -> str:
        """What identifies the records: 16 hex digits, the same for the same sources and rows, wherever these lie.

        It is made of the sizes and fingerprints that the index has of its sources, and of the rows of a view, up to
        65,536 of them. Paths, columns, keys and decoders have no part in it.
        """
        rows = np.empty(0, np.int64)
        if self._rows is not None and self._length:
            rows = self._rows.many(np.linspace(0, self._length - 1, min(self._length, _ROWS_COMPARED)).astype(np.int64))
        return self._catalog.fingerprint(f"{self._length}".encode() + np.ascontiguousarray(rows).tobytes())

    @property
    def source_starts(self) -> NDArray[np.int64]:
        """Position of the first record of each source, and the length: shape (sources + 1,).

        A view counts as one source.
        """
        if self._rows is not None:
            return np.array([0, self._length], np.int64)
        return self._catalog.starts.astype(np.int64)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that every index behind the dataset has."""
        indexes = self._catalog.indexes
        return [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, a number for each sample: shape (len(self),), uint32, uint64, int64 or float64, read-only.

        For a dataset of one index, or a slice of it, the column is mapped and takes no memory. For other views, and for
        several indexes, it is a copy.

        Raises:
          ColumnError: an index does not have the column; the message has the command that adds it.
        """
        parts = [index.column(name) for index in self._catalog.indexes]
        arrays = [np.frombuffer(data, dtype) for dtype, data in parts]
        whole = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        if isinstance(self._rows, RangeRows):
            rows = self._rows.range
            whole = whole[rows.start : rows.stop if rows.stop >= 0 else None : rows.step] if rows else whole[:0]
        elif self._rows is not None:
            whole = whole[self._rows.many(np.arange(self._length, dtype=np.int64))]
        whole.flags.writeable = False
        return whole

    @property
    def lengths(self) -> NDArray[Any]:
        """The column that token budgets are planned by: `column("length")`."""
        return self.column("length")

    @property
    def length_order(self) -> tuple[NDArray[Any], NDArray[np.uint64], NDArray[np.uint64]] | None:
        """Records by falling length, mapped from the index; None for a view, several indexes, or without lengths.

        Returns:
          Record numbers, the longest first, shape (len(self),); the different lengths, falling, shape (m,); how many
          records have each of them, shape (m,).
        """
        index = self._catalog.indexes[0]
        names = ("length_order", "length_values", "length_counts")
        if (
            self._rows is not None
            or len(self._catalog.indexes) > 1
            or not all(name in index.sections for name in names)
        ):
            return None
        order, values, counts = (np.frombuffer(index.section(name), index.sections[name].dtype) for name in names)
        unsigned = {order.dtype.kind, values.dtype.kind, counts.dtype.kind} == {"u"}
        falling = unsigned and bool((values[1:] < values[:-1]).all())
        if not falling:
            raise index.damaged("section 'length_values': expected unsigned numbers, each below the one before it")
        if (counts == 0).any() or (counts > index.records).any() or counts.sum() != index.records:
            raise index.damaged(
                f"section 'length_counts': expected counts of 1 or more that add up to {index.records}, found a sum of "
                f"{counts.sum()}"
            )
        return order, values, counts

    def split(self, fractions: Sequence[float], seed: int | None = 0) -> list["Dataset"]:
        """Cut the dataset into disjoint views that together have all of its records.

        Args:
          fractions: size of each view; they add up to 1.
          seed: decides which records go where, and their order; a view is shuffled in constant memory. None does not
            shuffle: each view is a run of neighbours.
        Raises:
          Error: a fraction is negative or not finite, or they do not add up to 1.
        """
        fractions = list(fractions)
        sizes = np.asarray(fractions, float)
        if sizes.ndim != 1 or not len(sizes) or not (sizes >= 0).all() or abs(sizes.sum() - 1) > 1e-9:
            raise Error(f"fractions = {fractions}, expected numbers from 0 to 1 that add up to 1")
        ends = np.rint(np.cumsum(sizes) * self._length).astype(np.int64).tolist()
        ends[-1] = self._length
        runs = [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        if seed is None or self._length == 0:
            return [self._select(RangeRows(run)) for run in runs]
        permutation = Permutation(self._length, seed)
        return [self._select(PermutedRows(permutation, run)) for run in runs]

    def stream(
        self, sampler: Any = None, *, batch_size: int | None = None, shuffle: bool = False, **options: Any
    ) -> "Stream":
        """Return a torch IterableDataset of the samples of this rank, in file order or any other.

        For code that wants an iterable. DataLoaders with workers share it among them; it can be resumed, as samplers
        can: see docs/training.md.

        Args:
          sampler: a sampler of mmapds, whose order and batches are then used; without other arguments.
          batch_size: yield batches as `take` returns them, for a DataLoader with `batch_size=None`; else samples.
          shuffle: a new order every epoch, see `set_epoch`.
          options: other arguments of `DistributedSampler`: `order`, `seed`, `num_replicas`, `rank`, `drop_last`, ...
        Raises:
          OrderError: an argument is out of range, or stands beside a sampler.
        """
        # Start-up time: torch. It stands above this room, as samplers need no dataset.
        from ..samplers.stream import make_stream

        if sampler is None:
            options["shuffle"] = shuffle
        elif shuffle:
            options["shuffle"] = True
        return make_stream(self, sampler, batch_size, options)

    def __add__(self, other: "Dataset") -> "Dataset":  # type: ignore[override]
        """Return both datasets one after the other: `mmapds.concat([self, other])`."""
        return concat([self, other])

    def _view(self, key: Any) -> "Dataset":
        if isinstance(key, slice):
            return self._select(RangeRows(range(self._length)[key]))
        if isinstance(key, str):
            remedy = f"ds.column({key!r})" if key in self.columns else f"[sample[{key!r}] for sample in ds]"
            raise IndexError(f"index = {key!r}, expected an int, a slice, or an array of ints or bools; use {remedy}")
        positions = np.array(np.asarray(key))  # a copy: the caller may change its own later
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iub"):
            raise IndexError(
                f"index: expected an int, a slice, or a one-dimensional array of ints or bools, found "
                f"{type(key).__name__} of dtype {positions.dtype} and shape {positions.shape}"
            )
        if positions.dtype.kind == "b":
            if len(positions) != self._length:
                raise IndexError(f"mask: expected {self._length} items, one for each record, found {len(positions)}")
            return self._select(ArrayRows(np.flatnonzero(positions)))
        return self._select(ArrayRows(self._checked(positions)))

    def _select(self, inner: Rows) -> "Dataset":
        """Return the view of some positions of this dataset."""
        rows: Rows
        if self._rows is None:
            rows = inner
        elif isinstance(inner, ArrayRows):
            rows = ArrayRows(self._rows.many(inner.array))
        elif isinstance(inner, RangeRows):
            rows = self._rows.part(inner.range)
        else:
            rows = NestedRows(self._rows, inner)
        return Dataset(self._catalog, self._records, self._origin, self._given_decode, rows)

    def _checked(self, positions: Any) -> NDArray[np.int64]:
        """Return positions as int64, in range and not negative."""
        given = np.asarray(positions)
        if given.size and (given.dtype.kind not in "iu" or int(given.max()) > 2**63 - 1):
            raise IndexError(f"positions: expected integers below 2^63, found {given.dtype} up to {given.max()}")
        found = given.astype(np.int64, copy=False)
        outside = (found < -self._length) | (found >= self._length)
        if outside.any():
            at = int(np.argmax(outside))
            raise IndexError(f"index[{at}] = {found[at]} is out of range for {self._length} records")
        return np.where(found < 0, found + self._length, found) if found.size and found.min() < 0 else found

    def _record(self, position: SupportsIndex) -> int:
        """Return the number of the record at a position."""
        index = operator.index(position)
        if not -self._length <= index < self._length:
            raise IndexError(f"index {index} is out of range for {self._length} records")
        index %= self._length
        return index if self._rows is None else self._rows.one(index)

    def _record_numbers(self, positions: Any) -> NDArray[np.int64]:
        checked = self._checked(positions)
        return checked if self._rows is None else self._rows.many(checked)

    def _locate(self, record: SupportsIndex) -> Location:
        member, _, begin, end = self._records.locate(record)
        return Location(self._catalog.source_path(member), begin, end - begin)

    def _place(self, record: SupportsIndex) -> str:
        return self._catalog.place(self._records.locate(record))

    def __repr__(self) -> str:
        paths = self.sources
        names = ", ".join(paths[:_SHOWN]) + (f", ... {len(paths):,} sources" if len(paths) > _SHOWN else "")
        total = len(self._records)
        count = f"{total:,}" if self._rows is None else f"{self._length:,} of {total:,}"
        return f"<mmapds.Dataset {names}: {count} records, decode={decoder_name(self._given_decode)}>"

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in OTHER_NAMES]

    def __reduce__(self) -> tuple[Any, ...]:
        catalog = self._catalog
        access = catalog.access, catalog.io, catalog.compares
        return _reopen, (self._origin, access, self._given_decode, self._rows)


for _name, _other in OTHER_NAMES.items():
    setattr(Dataset, _name, _other)


def concat(datasets: Iterable[Dataset]) -> Dataset:
    """Return the datasets one after another as one dataset; views keep their selection.

    Raises:
      Error: no dataset is given, one is not of mmapds, they differ in decoder or access, or only some have
        `check="none"`.
    """
    parts = list(datasets)
    if not parts:
        raise Error("datasets: expected one dataset or more, found 0")
    for k, part in enumerate(parts):
        if not isinstance(part, Dataset):
            raise Error(
                f"datasets[{k}]: expected a dataset of mmapds.open, found {type(part).__module__}."
                f"{type(part).__qualname__}; use torch.utils.data.ConcatDataset, which takes any datasets"
            )
    decode, access, io = parts[0]._given_decode, parts[0]._catalog.access, parts[0]._catalog.io
    for k, part in enumerate(parts):
        alike = (part._catalog.access, part._catalog.io) == (access, io)
        if not is_same_decoder(part._given_decode, decode) or not alike:
            raise Error(
                f"datasets[{k}]: expected decode = {decoder_name(decode)}, access = {access!r} and io = {io!r}, as in "
                f"datasets[0], found {decoder_name(part._given_decode)}, {part._catalog.access!r} and "
                f"{part._catalog.io!r}; open them alike"
            )
        if part._catalog.compares != parts[0]._catalog.compares:
            raise Error(f"datasets[{k}]: expected check = 'none' for all datasets or for none; open them alike")
    indexes = [index for part in parts for index in part._catalog.indexes]
    patterns = [pattern for part in parts for pattern in part._origin.given()]
    catalog, origin = Catalog(indexes, access, io), Origin.of(patterns, indexes)
    if all(part._rows is None for part in parts):
        return make_dataset(catalog, origin, decode)
    firsts = np.cumsum([0, *(len(part._records) for part in parts)]).tolist()
    rows = [part._rows or RangeRows(range(len(part))) for part in parts]
    return make_dataset(catalog, origin, decode, ChainedRows(zip(firsts, rows, strict=False)))


class Unopened:
    """What a worker process has in place of a dataset that it cannot open: the error, for whoever asks it for a sample.

    A worker that raised while it starts would end, and torch would only say that it did.
    """

    def __init__(self, error: Error):
        self._error = error

    def __getitem__(self, i: Any) -> Any:
        raise self._error

    __getitems__ = __getitem__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself looks for, as copy and pickle do
            raise AttributeError(name)
        raise self._error


def _reopen(
    origin: Origin, access: tuple[str, IoChoice, bool], decode: str | Decoder, rows: Rows | None
) -> Dataset | Unopened:
    """Open a pickled dataset again. Sources are checked when they are first read, not all at once in every worker.

    They are then checked as with "stat", as the process that opened them has done more where that was asked for; if it
    did not compare them at all, neither does this one.
    """
    how, io, compares = access
    try:
        indexes = origin.open(io)
    except Error as error:
        if is_worker():
            return Unopened(error)
        raise
    for index in indexes:
        index.check = "stat" if compares else "none"
    return make_dataset(Catalog(indexes, how, io), origin, decode, rows)
