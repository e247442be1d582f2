"""What all datasets have in common, and what `map` and `concat` make of them."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import Error, add_note, shortened
from ..orders.basic import integer
from ..orders.permutation import Permutation
from ..storage.runs import LengthOrder
from ..storage.sources import StrPath
from .catalog import Location
from .decode import decoder_name, is_same_decoder
from .views import NestedRows, PermutedRows, RangeRows, Rows, is_position, rows_of

if TYPE_CHECKING:
    import torch.utils.data

    from ..samplers.stream import Stream

    class _Samples(Sequence[Any], torch.utils.data.Dataset[Any]):
        """What type checkers take a dataset for, as torch's DataLoader asks for one of torch's class.

        torch itself never asks, so that a dataset need not load torch to be one.
        """

else:
    _Samples = Sequence[Any]


class Dataset(_Samples):
    """Samples by position: `ds[i]` reads one record and makes its sample, and keeps neither.

    Made by `mmapds.open`, by `map` and by `mmapds.zip`. A slice, an array of ints or a mask gives a view: a dataset
    again, which copies no data. Safe in threads and after a fork; pickles by path. Iteration, `in`, `index` and `count`
    are those of any sequence.
    """

    _MADE_BY = ""
    """How users come by datasets of the class, for messages."""
    _inner: "Dataset"
    """What the dataset is made of, if it is made of another; it has what that one has, but for what its class says."""

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
          key: an int gives a sample. A slice, an array of ints, or a mask (a bool for each sample)
            gives a view. Negative positions count from the end.
        Raises:
          IndexError: a position is out of range or a bool, a mask has another length, or an array has another shape or
            dtype, or is a mask of zeros and ones instead of bools.
          DecodeError: the record is not what the decoder expects.
        """

    @abstractmethod
    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        """Return the samples at `positions`, in that order. DataLoaders call it for each batch, as `__getitems__`.

        Faster than `[ds[i] for i in positions]`: positions are checked first, and all pages are asked for before the
        first is touched. Positions may repeat; negative positions count from the end.

        Args:
          positions: int sequence, array or tensor, shape (k,).
        Returns:
          A list of k samples; of fewer with `on_error="skip"`, where some records cannot be decoded. For array files
          (`.mma`) and `decode=Fields(...)` a sequence that makes each sample when it is asked for; `pad_collate` fills
          its tensors without making any.
        Raises:
          IndexError: a position is outside the dataset, or they are a mask; nothing is returned.
          DecodeError: a record is not what the decoder expects; with `on_error="skip"`, none of the batch is.
        """

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        """Return the samples at `positions` that can be decoded, and which these are.

        With `on_error="raise"`, those are all. With "skip", there may be fewer, or none.

        Returns:
          The samples, as `take` gives them; and where in `positions` each of them was, ascending: shape (samples,).
        """
        samples = self.take(positions)
        return samples, np.arange(len(samples), dtype=np.int64)

    def _one_by_one(self, positions: range) -> Iterator[Any]:
        """Yield the samples at `positions`, each made when it is asked for: it may be far larger than its record."""
        for position in positions:
            yield self[position]

    @property
    def skipped(self) -> list[int]:
        """Positions, ascending, of the records that this process left out so far; only with `on_error="skip"`."""
        return self._inner.skipped

    def __iter__(self) -> Iterator[Any]:
        # A generator turns a StopIteration from a decoder into an error; else it would end the loop.
        for position in range(len(self)):
            if self._on_error == "skip":
                yield from self.take_kept([position])[0]
            else:
                yield self[position]

    @property
    def _on_error(self) -> str:
        """What is done with records that cannot be decoded, as `mmapds.open` takes it."""
        return self._inner._on_error

    def map(self, function: Callable[[Any], Any], *, batched: bool = False) -> "Dataset":
        """Return a dataset whose samples are `function(sample)`, made each time when they are read.

        Everything else is that of this dataset: length, columns, places, views, the states of samplers.

        Args:
          function: takes a sample and returns another; or, if `batched`, takes what `take` returns and returns a list
            of as many samples. It must be picklable where worker processes are spawned.
          batched: call the function once for a batch. `ds[i]` calls it with a batch of one.
        Raises:
          Error: the function is not a callable.
        """
        if not callable(function):
            raise Error(f"function = {function!r}, expected a callable")
        return MappedDataset(self, function, batched)

    def raw(self, position: SupportsIndex) -> bytes:
        """Return the bytes of a record, undecoded and without its framing."""
        return self._inner.raw(position)

    def where(self, position: SupportsIndex) -> Location:
        """Return where a record lies: which file, which byte, how many bytes."""
        return self._inner.where(position)

    def place(self, position: SupportsIndex) -> str:
        """Return where a record lies as messages say it: `train.jsonl:41 (byte 51200)`."""
        return self._inner.place(position)

    def find(self, key: str) -> int:
        """Return the position of the record with a key, as records of a tar have; of the first one, if several have it.

        A binary search in the index, and one read of the record; holds nothing in memory.

        Raises:
          KeyMissingError: no record of this dataset or view has the key.
          FormatError: the records have no keys.
        """
        return self._inner.find(key)

    @property
    def sources(self) -> list[str]:
        """Paths of the files behind the dataset, in the order of their records."""
        return self._inner.sources

    @property
    def indexes(self) -> list[str]:
        """Paths of the indexes behind the dataset."""
        return self._inner.indexes

    @property
    def fingerprint(self) -> str:
        """What identifies the records: 16 hex digits, the same for the same sources and rows, wherever these lie.

        States of samplers hold it. It is made of the sizes and fingerprints that the index has of its sources, and of
        the rows, up to 65,536 of them; a view of all rows is the dataset. Paths, columns, keys, decoders and mapped
        functions have no part in it.
        """
        return self._inner.fingerprint

    @property
    def source_starts(self) -> NDArray[np.int64]:
        """Position of the first record of each source, and the length: shape (sources + 1,).

        A view counts as one source.
        """
        return self._inner.source_starts

    @property
    def block_starts(self) -> NDArray[np.int64]:
        """Position of the first record of each block of compressed sources, and the length: shape (blocks + 1,).

        A block is decoded as a whole, so that a chunk of one costs its decoding once; see `ChunkedSampler`. Blocks
        inside a long record, without the beginning of one, have the position of the next one.

        Raises:
          Error: a source is not compressed, or the dataset is a view that is not a slice of neighbours.
        """
        return self._inner.block_starts

    @property
    def columns(self) -> list[str]:
        """Names of the columns that every index behind the dataset has."""
        return self._inner.columns

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, a number for each sample: shape (len(self),), uint32, uint64, int64 or float64, read-only.

        For a dataset of one index, or a slice of it, the column is mapped and takes no memory. For other views, and for
        several indexes, it is a copy; above 16 MB, it lies in a scratch file. Samplers need none.

        Raises:
          ColumnError: an index does not have the column; the message has the command that adds it.
        """
        return self._inner.column(name)

    @property
    def lengths(self) -> NDArray[Any]:
        """The column that token budgets are planned by: `column("length")`."""
        return self.column("length")

    @property
    def length_order(self) -> LengthOrder | None:
        """Records by falling length, read from the indexes; None without lengths, and for views that are not slices.

        `values` are the different lengths, falling, and `counts` how many records have each of them: shape (m,).
        `at(places)` are records, the longest first, equally long ones ascending, and `lengths.at(records)` their
        lengths. Nothing is copied, however many the indexes; a slice of neighbours has one, too.
        """
        return self._inner.length_order

    def split(self, fractions: Sequence[float], seed: int | None = 0) -> list["Dataset"]:
        """Cut the dataset into disjoint views that together have all of its records.

        Args:
          fractions: size of each view; they add up to 1.
          seed: decides which records go where, and their order; a view is shuffled in constant memory. None does not
            shuffle: each view is a run of neighbours.
        Raises:
          Error: they are not a list of numbers, a fraction is negative or not finite, they do not add up to 1, or the
            seed is not an integer.
        """
        if not isinstance(fractions, Iterable):
            raise Error(f"fractions = {shortened(fractions)}, expected a list of numbers from 0 to 1 that add up to 1")
        fractions, length = list(fractions), len(self)
        try:
            sizes = np.asarray(fractions, float)
        except (TypeError, ValueError, RuntimeError, OverflowError):  # as of lists in the list, or of tensors
            sizes = np.empty(0)
        if sizes.ndim != 1 or not len(sizes) or not (sizes >= 0).all() or abs(sizes.sum() - 1) > 1e-9:
            raise Error(f"fractions = {shortened(fractions)}, expected numbers from 0 to 1 that add up to 1")
        ends = np.rint(np.cumsum(sizes) * length).astype(np.int64).tolist()
        ends[-1] = length
        runs = [range(begin, end) for begin, end in zip([0, *ends], ends, strict=False)]
        if seed is None or length == 0:
            return [self._select(RangeRows(run)) for run in runs]
        shuffled = PermutedRows(Permutation(length, integer("seed", seed)))
        return [self._select(NestedRows(shuffled, RangeRows(run))) for run in runs]

    def save(self, path: StrPath) -> None:
        """Write a view as an index of its own over the same sources, which `mmapds.open(path)` opens at once.

        The file has the records that the view has, in its order, their columns, and their length order. It names the
        indexes behind the view relative to its directory, and is stale when one of these is built again of other
        sources. It has no samples: neither the decoder nor other arguments of `mmapds.open`.

        Args:
          path: of the file, which ends in ".mmx"; a saved view there is replaced.
        Raises:
          Error: the dataset is mapped or zipped; or the file cannot be written, or would replace one that is not a
            saved view.
        """
        raise Error(f"save: expected a dataset of mmapds.open, found one of {self._MADE_BY}; save what it is made of")

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

        if shuffle:
            options["shuffle"] = True
        elif sampler is None and options.get("order") is None:
            options["shuffle"] = False
        return make_stream(self, sampler, batch_size, options)

    def __add__(self, other: "Dataset") -> "Dataset":  # type: ignore[override]
        """Return both datasets one after the other: `mmapds.concat([self, other])`."""
        return concat([self, other])

    @abstractmethod
    def _select(self, rows: Rows) -> "Dataset":
        """Return the view of some positions of this dataset."""

    @classmethod
    @abstractmethod
    def _chained(cls, parts: Sequence[Any]) -> "Dataset":
        """Return datasets of this class, at least one, one after another.

        Raises:
          Error: they do not go together.
        """

    @property
    def _is_view(self) -> bool:
        """Whether it has other records than all of its indexes, in their order."""
        return False

    @property
    def _has_keys(self) -> bool:
        """Whether `find` can be asked."""
        return self._inner._has_keys

    def _columns_named(self, name: str) -> list[str]:
        """Return the columns that a name may mean."""
        return self._inner._columns_named(name)

    def _view(self, key: Any) -> "Dataset":
        """Return the view that a key stands for: a slice, an array of ints, or a mask."""
        if isinstance(key, str):
            remedy = f"ds.column({key!r})" if key in self.columns else f"[sample[{key!r}] for sample in ds]"
            raise IndexError(f"index = {key!r}, expected an int, a slice, or an array of ints or bools; use {remedy}")
        return self._select(rows_of(key, len(self)))


class MappedDataset(Dataset):
    """A dataset whose samples are a function of those of another: what `ds.map` returns. It pickles with the function.

    Args:
      inner: the other dataset.
      function: takes a sample, or a batch of them.
      is_batched: whether it takes a batch and returns a list of as many samples.
    """

    _MADE_BY = "ds.map"

    def __init__(self, inner: Dataset, function: Callable[[Any], Any], is_batched: bool) -> None:
        self._inner = inner
        self._function = function
        self._is_batched = is_batched

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        sample = self._inner[key]
        if self._is_batched:
            return self._batch([sample], [key])[0]
        try:
            made = self._function(sample)
        except Exception as error:
            self._raise_at(key, error)
        return self._refuse_none(key) if made is None else made

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        samples, _ = self.take_kept(positions)
        if not len(samples):
            self._inner.take(positions)  # which raises, unless there are no positions
        return samples

    __getitems__ = take

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        samples, kept = self._inner.take_kept(positions)
        if len(kept) < len(positions):
            positions = [positions[k] for k in kept]
        if self._is_batched:
            return self._batch(samples, positions), kept
        function = self._function
        mapped: list[Any] = []
        for sample in samples:  # of an array file, read here: an error of its own has its place already
            try:
                made = function(sample)
            except Exception as error:
                self._raise_at(positions[len(mapped)], error)
            mapped.append(self._refuse_none(positions[len(mapped)]) if made is None else made)
        return mapped, kept

    def _batch(self, samples: Sequence[Any], positions: Any) -> list[Any]:
        """Return what the function makes of a batch."""
        if not len(samples):
            return []
        try:
            mapped = self._function(samples)
        except Exception as error:
            self._raise_at(positions[0], error, f"a batch of {len(samples)}, the first at ")
        is_list = hasattr(mapped, "__len__") and hasattr(mapped, "__getitem__")
        is_list = is_list and not isinstance(mapped, Mapping | str | bytes)
        if is_list and len(mapped) == len(samples):
            return list(mapped)
        found = str(len(mapped)) if is_list else f"a {type(mapped).__name__}"
        raise Error(
            f"function {decoder_name(self._function)!r}: expected a list of {len(samples)} samples, one for each of a "
            f"batch that it was given, found {found} (the first at {self._inner.place(positions[0])})"
        )

    def _refuse_none(self, position: SupportsIndex) -> NoReturn:
        """Raise an error for a function that changed its sample and returned nothing, as some libraries allow."""
        raise Error(
            f"function {decoder_name(self._function)!r}: expected a sample, found None; return the sample (of "
            f"{self._inner.place(position)})"
        )

    def _raise_at(self, position: SupportsIndex, error: Exception, batch: str = "") -> NoReturn:
        """Raise an error of the function, which keeps its type, with the place of the record."""
        place = f"{batch}{self._inner.place(position)}"
        if isinstance(error, StopIteration):  # a loop would take it for the end of the dataset
            raise RuntimeError(f"function {decoder_name(self._function)!r} raised StopIteration, of {place}") from error
        add_note(error, f"while mapping {place}")
        raise error

    def _select(self, rows: Rows) -> "MappedDataset":
        return MappedDataset(self._inner._select(rows), self._function, self._is_batched)

    @classmethod
    def _chained(cls, parts: Sequence["MappedDataset"]) -> "MappedDataset":
        first = parts[0]
        for k, part in enumerate(parts):
            if not is_same_decoder(part._function, first._function) or part._is_batched != first._is_batched:
                raise Error(
                    f"datasets[{k}]: expected datasets of one function, {first._name()} as in datasets[0], found "
                    f"{part._name()}; use map on what concat returns, or torch.utils.data.ConcatDataset"
                )
        return MappedDataset(concat(part._inner for part in parts), first._function, first._is_batched)

    def _name(self) -> str:
        """Return the function as messages and reprs show it."""
        return decoder_name(self._function) + (" (batched)" if self._is_batched else "")

    def __repr__(self) -> str:
        return f"{repr(self._inner).removesuffix('>')}, map={self._name()}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedDataset, (self._inner, self._function, self._is_batched)


def concat(datasets: Iterable[Dataset]) -> Dataset:
    """Return the datasets one after another as one dataset; views keep their selection.

    Warns of a column that another dataset has measured or computed in another way, as `mmapds.open` does.

    Raises:
      Error: no dataset is given, one is not of mmapds, they differ in decoder, access or mapped function, or only some
        have `check="none"`.
    """
    if isinstance(datasets, Dataset):  # which would be read record by record
        raise Error("datasets: expected a list of datasets, found one dataset; give [a, b]")
    parts = list(datasets)
    if not parts:
        raise Error("datasets: expected one dataset or more, found 0")
    remedy = "use torch.utils.data.ConcatDataset, which takes any datasets"
    for k, part in enumerate(parts):
        if not isinstance(part, Dataset):
            raise Error(
                f"datasets[{k}]: expected a dataset of mmapds.open, found {type(part).__module__}."
                f"{type(part).__qualname__}; {remedy}"
            )
        if type(part) is not type(parts[0]):
            raise Error(
                f"datasets[{k}]: expected a dataset of {parts[0]._MADE_BY}, as datasets[0], found one of "
                f"{part._MADE_BY}; {remedy}"
            )
    return type(parts[0])._chained(parts)
