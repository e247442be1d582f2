"""The base class of datasets, and the datasets that `map` and `concat` return."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Error, add_note, shortened
from ..index.lengths import LengthOrder
from ..orders.basic import integer
from ..orders.permutation import Permutation
from ..storage.sources import StrPath
from .catalog import Location
from .decode import decoder_name, is_same_decoder
from .randomness import Randomness
from .views import PermutedRows, RepeatedRows, Rows, is_position, rows_of

if TYPE_CHECKING:
    import torch.utils.data

    from ..samplers.stream import Stream

    class _Samples(Sequence[Any], torch.utils.data.Dataset[Any]):
        """Makes a dataset a torch Dataset for type checkers only; torch does not check the class."""

else:
    _Samples = Sequence[Any]


class Dataset(_Samples):
    """Samples by position: `ds[i]` reads and decodes one record.

        train, val = ds.split([0.9, 0.1])
        long = ds[ds.lengths > 100]

    A slice, an array of ints or a mask gives a view, a dataset that copies no data. A dataset is safe in threads and
    after a fork; it pickles by path. Iteration, `in`, `index` and `count` work as in any sequence.
    """

    _inner: "Dataset"
    """The wrapped dataset, if any. Methods delegate to it unless a subclass overrides them."""

    def __len__(self) -> int:
        return len(self._inner)

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike) -> "Dataset": ...
    @abstractmethod
    def __getitem__(self, key: Any) -> Any:
        """Return the sample at a position, or a view.

        Args:
          key: an int gives a sample. A slice, an array of ints, or a mask (a bool for each sample) gives a view.
            Negative positions count from the end.
        Raises:
          IndexError: a position is out of range, or a mask has another length, or zeros and ones instead of bools.
          DecodeError: the record is not what the decoder expects.
        """

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        """Return the samples at `positions`, in that order; faster than one by one.

        It checks all positions first, and prefetches all pages before it reads one. Positions may repeat; negative
        positions count from the end.

        Args:
          positions: int sequence, array or tensor, shape (k,).
        Returns:
          A list of k samples; with `on_error="skip"`, without the records that cannot be decoded. For array files and
          `Fields`, a lazy sequence that makes each sample on access; `pad_collate` reads it without making samples.
        Raises:
          IndexError: a position is outside the dataset, or `positions` is a mask; nothing is returned.
          DecodeError: a record is not what the decoder expects; with `on_error="skip"`, every record of the batch.
        """
        samples, _ = self.take_kept(positions)
        return samples if len(samples) or not len(positions) else [self[positions[0]]]  # raises its DecodeError

    def __getitems__(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        return self.take(positions)

    @abstractmethod
    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        """Return the samples at `positions` that can be decoded, and their places in `positions`.

        The places ascend, shape (samples,). With `on_error="raise"`, every place is there.
        """

    @property
    def skipped(self) -> list[int]:
        """Positions of the records that this process skipped, with `on_error="skip"`."""
        return self._inner.skipped

    def __iter__(self) -> Iterator[Any]:
        # A generator, as it turns a decoder's StopIteration into an error; otherwise it would end the loop.
        for position in range(len(self)):
            if self._on_error == "skip":
                yield from self.take_kept([position])[0]
            else:
                yield self[position]
        if 0 < len(self) == len(self.skipped):
            _ = self[0]  # raises the error of the record, as `take` does if it skips all records

    @property
    def _on_error(self) -> str:
        """The argument `on_error` of `mmapds.open`: "raise" or "skip"."""
        return self._inner._on_error

    def map(self, function: Callable[..., Any], *, batched: bool = False, seed: int | None = None) -> "Dataset":
        """Return a dataset of `function(sample)`, computed at each read.

            cropped = ds.map(lambda sample, random: sample["tokens"][random.integers(8) :], seed=7)

        Args:
          function: takes a sample and returns another; or, if `batched`, takes the samples of `take` and returns a list
            of equally many. Spawned worker processes need a picklable function.
          batched: call the function once for a batch. `ds[i]` calls it with a batch of one.
          seed: pass a `numpy.random.Generator` to the function, too; if `batched`, a list with one for each sample. The
            generator depends only on the seed, the epoch and the record. See `set_epoch`.
        """
        if not callable(function):
            raise Error(f"function = {function!r}, expected a callable")
        return MappedDataset(self, function, batched, None if seed is None else Randomness(seed))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of functions of `map(seed=...)`, in all views, from the next loop on.

        A stream, and a `mmapds.DataLoader` with a sampler of mmapds, use the epoch of the sampler instead. With other
        samplers and loaders, call this before each epoch; spawned workers must not persist.
        """
        self._inner.set_epoch(epoch)

    def _with_own_epoch(self) -> "Dataset":
        """Return the same samples with a separate epoch, which `set_epoch` of this dataset does not change."""
        return self

    def raw(self, position: SupportsIndex) -> bytes:
        """Return the bytes of a record, undecoded and without its framing."""
        return self._inner.raw(position)

    def where(self, position: SupportsIndex) -> Location:
        """Return the location of a record: file, first byte and number of bytes."""
        return self._inner.where(position)

    def place(self, position: SupportsIndex) -> str:
        """Return the location of a record as text: `train.jsonl:41 (byte 51200)`."""
        return self._inner.place(position)

    def find(self, key: str) -> int:
        """Return the position of the first record with a key, such as that of a tar sample.

        Raises:
          KeyMissingError: no record of this dataset or view has the key.
          FormatError: the records have no keys.
        """
        return self._inner.find(key)

    @property
    def sources(self) -> list[str]:
        """Paths of the sources, in the order of their records."""
        return self._inner.sources

    @property
    def indexes(self) -> list[str]:
        """Paths of the indexes."""
        return self._inner.indexes

    @property
    def fingerprint(self) -> str:
        """Identity of the records: 16 hex digits, the same wherever the sources lie.

        States of samplers hold it. It hashes the sizes and fingerprints of the sources, as indexed, and up to 65,536
        rows. Paths, columns, keys, decoders and mapped functions do not change it.
        """
        return self._inner.fingerprint

    @property
    def source_starts(self) -> NDArray[np.int64]:
        """Positions where sources begin, then the length; a view is one source."""
        return self._inner.source_starts

    @property
    def block_starts(self) -> NDArray[np.int64]:
        """Positions where blocks of compressed sources begin, then the length.

        A block in which no record begins has the position of the next record. In a view, these are the positions whose
        block differs from that of the previous sample.

        Raises:
          Error: a source is not compressed.
        """
        return self._inner.block_starts

    @property
    def _indexed(self) -> Any:
        """The IndexedDataset with the same positions."""
        return self._inner._indexed

    def _decodes(self, positions: NDArray[np.int64], limit: int | None = None) -> tuple[float, float]:
        """Return how often an epoch decodes a block, and the decoded bytes for a record.

        Args:
          positions: the first positions of the epoch.
          limit: bytes of the cache; by default, that of the dataset.
        """
        return self._inner._decodes(positions, limit)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that all indexes have."""
        return self._inner.columns

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: a read-only array with a number for each sample.

        It is uint32, uint64, int64 or float64. Neighbours in one index are mapped; other views copy (above 16 MB, to a
        temporary file).

        Raises:
          ColumnError: an index does not have the column; the message has the command that adds it.
        """
        return self._inner.column(name)

    @property
    def lengths(self) -> NDArray[Any]:
        """The column for token budgets: `column("length")`."""
        return self.column("length")

    @property
    def length_order(self) -> LengthOrder | None:
        """Records by falling length; None without lengths, or for views that are not slices.

        `values` are the distinct lengths, falling, and `counts` the number of records of each: shape (m,). `at(places)`
        returns records, longest first and ties ascending; `lengths.at(records)` returns their lengths.
        """
        return self._inner.length_order

    def split(self, fractions: Sequence[float], seed: int | None = 0) -> list["Dataset"]:
        """Split all records into disjoint views, at random by default.

        Args:
          fractions: size of each view; they add up to 1.
          seed: chooses the records of each view and their order, in constant memory; None makes runs of neighbours.
        Raises:
          Error: a fraction is negative, they do not add up to 1, or the seed is not an integer.
        """
        sizes = np.array(fractions, float)
        if sizes.ndim != 1 or not (sizes >= 0).all() or abs(sizes.sum() - 1) > 1e-9:
            raise Error(f"fractions = {shortened(fractions)}, expected numbers from 0 to 1 that add up to 1")
        whole, length = self, len(self)
        if seed is not None and length:
            whole = self._select(PermutedRows(Permutation(length, integer("seed", seed))))
        ends = np.rint(np.cumsum(sizes) * length).astype(np.int64).tolist()
        return [whole[begin:end] for begin, end in pairwise([0, *ends[:-1], length])]

    def repeat(self, counts: ArrayLike | str, *, sums: StrPath | None = None) -> "Dataset":
        """Return a view in which each record comes several times in a row.

            twice = ds.repeat(2)
            oversampled = ds.repeat(np.where(ds.lengths > 100, 3, 1))

        It is a view as any other, for each sampler. It takes 8 bytes a record, or none where `counts` is one integer.

        Args:
          counts: how often each record comes: an integer for all, integers of shape (records,), or a column by name;
            0 leaves a record out.
          sums: a directory in which the 8 bytes of each record are kept, and mapped by all processes.
        Raises:
          Error: a count is negative or no integer, or there is another number of them.
        """
        given = self.column(counts) if isinstance(counts, str) else counts
        return self._select(RepeatedRows.of(given, len(self), sums))

    def windows(
        self,
        length: int,
        stride: int | None = None,
        *,
        fields: str | Sequence[str] = (),
        column: str | None = "length",
        short: str = "keep",
        sums: StrPath | None = None,
    ) -> "Dataset":
        """Return a dataset of parts of records: each of `length` items, or the rest.

            windows = ds.windows(64, fields="tokens")
            packs = mmapds.PackingBatchSampler(windows, pack_length=256)

        Lists, arrays, tensors or text are cut along their first axis. The column has the sizes of windows, so samplers
        plan with them. It takes 8 bytes a record, or none with `column=None`.

        Args:
          length: most items of a window.
          fields: names of what to cut; the other fields of a sample stay. A sample without fields is cut itself.
          stride: items from one window of a record to the next one; `length` by default, so that none overlap.
          column: the column with the number of items of each record; None if all have as many as the first one.
          short: "keep" a last window that is shorter, "drop" it, or "pad" it with zeros.
          sums: a directory in which the 8 bytes of each record are kept, and mapped by all processes.
        Raises:
          Error: an argument is out of range; or, at a read, a field has not as many items as the column says.
        """
        from .parts import WindowedDataset  # it is a dataset, too

        return WindowedDataset.of(self, length, stride, column, short, fields, sums)

    def blocks(
        self,
        size: int,
        *,
        field: str | None = None,
        shift: int = 1,
        position_ids: bool = False,
        column: str | None = "length",
        dtype: str = "int64",
        sums: StrPath | None = None,
    ) -> "Dataset":
        """Return a dataset of runs of `size` tokens over all records, in their order.

            blocks = ds.blocks(128, field="tokens")
            sampler = mmapds.DistributedBatchSampler(blocks, batch_size=8, seed=7)

        Sample i is a dict: `tokens`, the i-th run; `labels`, the same `shift` tokens later; and `position_ids`, which
        restart where a record begins. Blocks cross records; the tokens behind the last whole block are left out. It
        takes 8 bytes a record, or none with `column=None`.

        Args:
          size: tokens of a block.
          field: that of the tokens; None for samples that are arrays.
          shift: how many tokens later the labels are; 0 for no labels.
          position_ids: whether to give them.
          column: the column with the tokens of each record; None if all records have equally many.
          dtype: of tokens and labels.
          sums: a directory in which the 8 bytes of each record are kept, and mapped by all processes.
        Raises:
          Error: an argument is out of range; or, at a read, a record has not as many tokens as the column says.
        """
        from .blocks import BlockDataset, Shape  # it is a dataset, too

        return BlockDataset.of(self, size, column, Shape(0, shift, field, position_ids, dtype), sums)

    def around(self, offsets: Any, *, group: Any) -> "Dataset":
        """Return a dataset of records with others around them: frames of an episode.

            clips = ds.around({"tokens": [-1, 0], "id": range(0, 4)}, group=np.arange(len(ds)) // 100)

        A field has its values at all offsets, stacked where they are arrays, and beside it a mask `FIELD_is_pad`: true
        beyond the first or the last record of the group, whose value is repeated there.

        Args:
          offsets: integers for all fields, or a dict of them by field; other fields stay as in the record itself.
          group: the name of a column, or numbers of shape (records,), such as that of the episode. Records of a group
            are neighbours.
        Raises:
          Error: an argument is out of range; or, at a read, samples have no such fields.
        """
        from .parts import AroundDataset  # it is a dataset, too

        return AroundDataset.of(self, offsets, group)

    def save(self, path: StrPath) -> None:
        """Save a view as an index (`.mmx`), which `mmapds.open(path)` opens.

        The file has the numbers of the records, their columns, and their length order. It refers to the indexes behind
        the view by relative paths. It becomes stale when one of these is rebuilt from other data.

        Args:
          path: path of the file, which ends in ".mmx"; `save` replaces a saved view there.
        Raises:
          Error: the dataset is mapped or zipped, or the file would replace one that is not a saved view.
        """
        found = type(self).__name__
        raise Error(f"save: expected a dataset of mmapds.open, found a {found}; save the view before map or zip")

    def stream(
        self, sampler: Any = None, *, batch_size: int | None = None, shuffle: bool = False, **options: Any
    ) -> "Stream":
        """Return a torch IterableDataset of the samples of this rank.

        The workers of a DataLoader share its samples. It resumes like a sampler: see docs/training.md.

        Args:
          sampler: a sampler of mmapds that gives order and batches; no other arguments then.
          batch_size: yield batches of `take`, for a DataLoader with `batch_size=None`; None yields samples.
          shuffle: a new order every epoch, see `set_epoch`.
          options: other arguments of `DistributedSampler`: `order`, `seed`, `num_replicas`, `rank`, `drop_last`, ...
        Raises:
          OrderError: an argument is out of range, or given together with a sampler.
        """
        from ..samplers.stream import make_stream  # start-up time: torch; and samplers are a layer above this one

        if shuffle or (sampler is None and options.get("order") is None):
            options["shuffle"] = shuffle
        return make_stream(self, sampler, batch_size, options)

    def __add__(self, other: "Dataset") -> "Dataset":  # type: ignore[override]
        """Return both datasets one after the other: `mmapds.concat([self, other])`."""
        return concat([self, other])

    def _record(self, position: SupportsIndex) -> int:
        """Return the number of the record at a position; the same in all views."""
        return self._inner._record(position)

    @abstractmethod
    def _select(self, rows: Rows) -> "Dataset":
        """Return the view of `rows` of this dataset."""

    @classmethod
    @abstractmethod
    def _chained(cls, parts: Sequence[Any]) -> "Dataset":
        """Concatenate one or more datasets of this class."""

    @property
    def _is_view(self) -> bool:
        """Whether it is a selection, not all records of its indexes in order."""
        return False

    def _columns_named(self, name: str) -> list[str]:
        """Return the columns that match a name; a zip may have several."""
        return self._inner._columns_named(name)

    def _view(self, key: Any) -> "Dataset":
        return self._select(rows_of(key, len(self)))


class MappedDataset(Dataset):
    """A dataset whose samples are a function of those of another: what `ds.map` returns."""

    def __init__(
        self, inner: Dataset, function: Callable[..., Any], is_batched: bool, randomness: Randomness | None = None
    ) -> None:
        self._inner = inner
        self._function = function
        self._is_batched = is_batched
        self._randomness = randomness

    def set_epoch(self, epoch: int) -> None:
        self._inner.set_epoch(epoch)
        if self._randomness is not None:
            self._randomness.epoch = integer("epoch", epoch)

    def _with_own_epoch(self) -> Dataset:
        inner, randomness = self._inner._with_own_epoch(), self._randomness
        if inner is self._inner and randomness is None:
            return self
        return MappedDataset(inner, self._function, self._is_batched, randomness and randomness.copy())

    def _function_at(self, positions: Any) -> Callable[[Any], Any]:
        """Return the function with the generators of `positions`; call it for each sample in turn, or for the batch."""
        function, randomness = self._function, self._randomness
        if randomness is None:
            return function
        randomness.warn_unless_set()
        generators = [randomness.of(self._inner._record(position)) for position in positions]
        if self._is_batched:
            return lambda samples: function(samples, generators)
        left = iter(generators)
        return lambda sample: function(sample, next(left))

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        sample = self._inner[key]
        if self._is_batched:
            return self._batch([sample], [key])[0]
        try:
            made = self._function_at([key])(sample)
        except Exception as error:
            self._raise_at(key, error)
        return self._refuse_none(key) if made is None else made

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        samples, kept = self._inner.take_kept(positions)
        if len(kept) < len(positions):
            positions = [positions[k] for k in kept]
        if self._is_batched:
            return self._batch(samples, positions) if len(samples) else [], kept
        function, mapped = self._function_at(positions), list[Any]()
        for sample in samples:  # inlined: a helper call for each sample costs more than most functions
            try:
                mapped.append(function(sample))
            except Exception as error:
                self._raise_at(positions[len(mapped)], error)
            if mapped[-1] is None:
                self._refuse_none(positions[len(mapped) - 1])
        return mapped, kept

    def _refuse_none(self, position: SupportsIndex) -> NoReturn:
        place = self._inner.place(position)
        raise Error(f"function {decoder_name(self._function)!r}: expected a sample, found None (of {place})")

    def _batch(self, samples: Sequence[Any], positions: Any) -> list[Any]:
        try:
            made = self._function_at(positions)(samples)
        except Exception as error:
            self._raise_at(positions[0], error, f"a batch of {len(samples)}, the first at ")
        is_list = hasattr(made, "__len__") and hasattr(made, "__getitem__")
        if not is_list or isinstance(made, Mapping | str | bytes) or len(made) != len(samples):
            found = f"{type(made).__name__} of {len(made)}" if hasattr(made, "__len__") else type(made).__name__
            raise Error(
                f"function {decoder_name(self._function)!r}: expected a list of {len(samples)} samples for a batch, "
                f"found {found} (the first at {self._inner.place(positions[0])})"
            )
        return list(made)

    def _raise_at(self, position: SupportsIndex, error: Exception, batch: str = "") -> NoReturn:
        """Raise an error of the function again, with a note of the record's place; its type stays."""
        place = batch + self._inner.place(position)
        if isinstance(error, StopIteration):  # a loop would take it for the end of the dataset
            raise RuntimeError(f"function {decoder_name(self._function)!r} raised StopIteration, of {place}") from error
        add_note(error, f"while mapping {place}")
        raise error

    def _select(self, rows: Rows) -> "MappedDataset":
        return MappedDataset(self._inner._select(rows), self._function, self._is_batched, self._randomness)

    @classmethod
    def _chained(cls, parts: Sequence["MappedDataset"]) -> "MappedDataset":
        first = parts[0]
        for k, part in enumerate(parts):
            if not is_same_decoder(part._function, first._function) or part._name() != first._name():
                raise Error(
                    f"datasets[{k}]: expected function {first._name()}, as in datasets[0], found {part._name()}"
                )
        inner = concat(part._inner for part in parts)
        return MappedDataset(inner, first._function, first._is_batched, first._randomness)

    def _name(self) -> str:
        """Return the function as messages and reprs show it."""
        seed = "" if self._randomness is None else f" (seed {self._randomness.seed})"
        return decoder_name(self._function) + (" (batched)" if self._is_batched else "") + seed

    def __repr__(self) -> str:
        return f"{repr(self._inner).removesuffix('>')}, map={self._name()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedDataset, (self._inner, self._function, self._is_batched, self._randomness)


def concat(datasets: Iterable[Dataset]) -> Dataset:
    """Return datasets one after another as one dataset.

        both = mmapds.concat([ds, more])

    Raises:
      Error: no dataset is given, one is not of mmapds, or they differ in arguments of `open` or in a mapped function.
    """
    if isinstance(datasets, Dataset):  # which would be read record by record
        raise Error("datasets: expected a list of datasets, found one dataset")
    parts = list(datasets)
    if not parts:
        raise Error("datasets: expected one dataset or more, found 0")
    first = type(parts[0])
    for k, part in enumerate(parts):
        if not isinstance(part, Dataset) or type(part) is not first:
            expected = f"{first.__name__}, as in datasets[0]" if k else "a dataset of mmapds.open"
            hint = "; use concat before map or zip" if isinstance(part, Dataset) else ""
            raise Error(f"datasets[{k}]: expected {expected}, found {type(part).__qualname__}{hint}")
    return first._chained(parts)
