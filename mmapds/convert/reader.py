"""Readers of a conversion: sources become batches of records, or of columns where the source has such."""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np

from .. import _native
from ..arrays.schema import Field, Schema
from ..arrays.values import common_type
from ..build_index import build
from ..dataset import payloads
from ..dataset.decode import Decoder
from ..dataset.indexed import IndexedDataset
from ..dataset.opening import open as open_dataset
from ..errors import DecodeError, FormatError, SourceError, StaleIndexError
from ..formats.tar import Tar
from ..storage.index_file import Index, open_stored
from ..storage.numbers import plain_dtype
from ..storage.sources import INDEX_SUFFIX, Roots, StrPath

_PIECE = 1 << 20  # bytes of records that wait in memory


# ---- columns --------------------------------------------------------------------------------------------------------


class Values(NamedTuple):
    """The values of one field in some records, all arrays u64 of shape (records,)."""

    words: Sequence[Any] = ()  # in the tables, but sizes of runs: numbers as they are stored, lengths of ragged axes
    data: Any = None  # the bytes of all records, one buffer; None for numbers
    begins: Any = None  # where the bytes of each record begin in it
    sizes: Any = None  # how many bytes each record has


class Columns:
    """The values of all fields of a schema, in its order, in some records."""

    def __init__(self, schema: Schema, values: Sequence[Values], count: int) -> None:
        self.count = count
        words: list[Any] = []
        runs: list[Any] = []
        arrays: list[Any] = []
        self._numbers: list[Any] = []
        for field, found in zip(schema.fields, values, strict=True):
            if field.column:
                self._numbers.append(found.words[0])
            is_run = field.shape is None and not field.is_scalar
            words += [found.sizes] if is_run else found.words
            if found.data is not None:
                (runs if is_run else arrays).append((found.data, found.begins, found.sizes, not is_run))
        self._words, self._parts = tuple(words), (*runs, *arrays)

    def numbers(self, fields: Sequence[Field]) -> Iterator[tuple[int, memoryview]]:
        """Yield, for each field that has a column, the type of its cells for a spool, and the cells."""
        for field, words in zip(fields, self._numbers, strict=True):
            kind = field.number_type
            if kind == _native.NUMBER_I64 and words.view(np.int64).min(initial=0) >= 0:
                kind = _native.NUMBER_U64
            yield kind, memoryview(words)

    def pieces(self, at: int) -> Iterator[tuple[memoryview, memoryview]]:
        """Yield the records, some at a time: their bytes, and where each begins in a file that has the first at `at`.

        A piece holds until the next is asked for.
        """
        first, room = 0, bytearray(_PIECE)
        while first < self.count:
            ends = np.empty(self.count - first, np.uint64)
            packed, needed = _native.pack_array_records(self._words, self._parts, first, room, ends)
            if not packed:
                room = bytearray(needed)
                continue
            size = int(ends[packed - 1])
            starts: Any = np.empty(packed, np.uint64)
            starts[0], starts[1:] = at, ends[: packed - 1] + np.uint64(at)
            yield memoryview(room)[:size], memoryview(starts)
            first, at = first + packed, at + size


# ---- readers --------------------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Some records, one after another."""

    size: int
    records: Iterable[Mapping[str, Any]]
    columns: Columns | None = None  # the same, where that is possible; the records need not be looked at then


class Reader(ABC):
    """The records of some sources, one source after another."""

    total: int | None = None
    """How many records there are; None if only reading them shows it."""
    schema: Mapping[str, Any] | None = None
    """The type of each field, an error for one that array files lack; None if only the records show them."""

    @abstractmethod
    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield all records: what each has of the fields of a schema, or all it has.

        Args:
          fields: where there is no schema, those to look at: any others may be None. None for all.
          defaults: fields whose nulls a default stands for: batches with such nulls are not columns.
        """

    @abstractmethod
    def place(self, number: int) -> str:
        """Return where a record that was yielded lies, as messages say it."""

    def close(self) -> None:  # noqa: B027 - most readers have a file open only while they read it
        """Release the sources."""


def unsupported(place: str, found: object) -> FormatError:
    """Return the error for a field whose type array files lack."""
    return FormatError(f"{place}: expected numbers, text, bytes, or arrays or structs of these, found {found}")


class FileReader(Reader):
    """Records that another library reads, file by file; a file is open only while it is read."""

    TITLE: ClassVar[str]  # of the format, for messages
    RECORD: ClassVar[str] = "record"  # what messages call one

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._types: dict[str, Any] = {}
        self._firsts: list[int] = []  # number of the first record of each file, as far as they are read

    @abstractmethod
    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None, defaults: Container[str]
    ) -> Iterator[Batch]:
        """Yield the records of a file."""

    def _add_fields(self, path: str, fields: Iterable[tuple[str, Any]]) -> None:
        """Add the fields of a file to the schema; numbers take a type that holds those of all files."""
        added = set()
        for name, found in fields:
            if name in added:
                raise FormatError(f"{path}: expected fields of different names, found two {name!r}")
            added.add(name)
            before = self._types.get(name, found)
            refused = next((each for each in (before, found) if isinstance(each, FormatError)), None)
            common = refused or common_type(before, found)
            if common is None:
                raise FormatError(f"{path}: field {name!r}: expected {before}, as in the files before, found {found}")
            self._types[name] = common
        self.schema = {name: "json" if found == "null" else found for name, found in self._types.items()}

    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield the records of all files; see `Reader.batches`."""
        done, self._firsts = 0, []
        for path in self._paths:
            self._firsts.append(done)
            for batch in self._read(path, schema, fields, defaults):
                done += batch.size
                yield batch

    def place(self, number: int) -> str:
        """Return which record of which file this is."""
        source = bisect_right(self._firsts, number) - 1
        return f"{self._paths[source]}: {self.RECORD} {number - self._firsts[source]}"

    def _unreadable(self, path: str, error: Exception) -> FormatError:
        """Return the error for a file that its library refuses, or cannot hold in memory."""
        said = str(error).partition("\n")[0].rstrip(".")
        if isinstance(error, MemoryError):
            return FormatError(f"{path}: {self.TITLE} file too large to read here: {said or 'out of memory'}")
        return FormatError(f"{path}: not a readable {self.TITLE} file: {said}")


class IndexedReader(Reader):
    """The decoded records of sources that are indexed in a hidden file, or of indexes, which are read as they are."""

    def __init__(
        self,
        paths: Sequence[str],
        hidden: str,
        name: str | None,
        decode: str | Decoder | None,
        roots: StrPath | Iterable[StrPath],
        options: Mapping[str, Any],
    ) -> None:
        self._built: Path | None = None
        try:
            if not all(path.endswith(INDEX_SUFFIX) for path in paths):
                self._built = Path(hidden)
                build(paths, out=hidden, format=name, roots=roots, force=True, **options)
                paths, roots = [hidden], Index(hidden).roots_needed()  # the user named these sources
            samples = open_dataset(paths, decode=decode, access="sequential", roots=roots)
            self._samples = cast(IndexedDataset, samples)
            self.total: int | None = len(self._samples)
            stored = open_stored(paths[0], Roots(roots, paths), given=paths[0])
            index = stored if isinstance(stored, Index) else stored.open_base(0)
            self.schema = _index_schema(index, self._samples.sources[0]) if decode is None else None
            self._as_record = _tar_record if index.format == Tar.name and decode is None else _record
        except BaseException:
            self.close()
            raise

    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield all samples as one batch of dicts; a sample that is not a dict becomes the field "data"."""
        yield Batch(len(self._samples), self._records())

    def _records(self) -> Iterator[Mapping[str, Any]]:
        numbers = range(len(self._samples))
        samples = self._samples._one_by_one(numbers)
        for number in numbers:
            try:
                sample = next(samples)
            except StaleIndexError as error:
                changed = str(error).partition("STALE: ")[2].partition("; run:")[0]
                raise SourceError(f"sources: {changed}") from None
            try:
                yield self._as_record(sample)
            except ValueError as error:
                raise DecodeError(f"{self.place(number)}: {error}") from error

    def place(self, number: int) -> str:
        """Return where a record lies, as messages say it."""
        return self._samples.place(number)

    def close(self) -> None:
        """Remove the hidden index."""
        if self._built is not None:
            with suppress(OSError):  # the next conversion removes it
                self._built.unlink(missing_ok=True)
            self._built = None


def _index_schema(index: Index, source: str) -> Mapping[str, Any] | None:
    """Return the fields that all records have; None if the index does not say."""
    if "schema" in index.parameters:
        found: Mapping[str, Any] = index.parameters["schema"]
        return found
    if "dtype" not in index.parameters:
        return None
    numbers = plain_dtype(index.parameters["dtype"])
    dtype = numbers.name
    if numbers.kind in "SUV":
        return {"data": unsupported(f"{source}: field 'data'", dtype)}
    shape = index.parameters.get("shape", [None])
    return {"data": (dtype, shape) if shape or dtype.startswith("complex") else dtype}


def _record(sample: Any) -> dict[str, Any]:
    """Return a sample as a dict; a list of one bytes object, as in a tf.train.Example, becomes that object."""
    if not isinstance(sample, dict):
        return {"data": sample}
    lists = {name: value for name, value in sample.items() if type(value) is list and len(value) == 1}
    alone = {name: value[0] for name, value in lists.items() if type(value[0]) is bytes}
    return sample | alone if alone else sample


def _tar_record(sample: dict[str, Any]) -> dict[str, Any]:
    """Return the decoded members of a tar's sample; images stay bytes, and each array of an npz becomes a field."""
    del sample["__url__"]
    payloads.decode_members(sample, image=bytes)
    for name in [name for name in sample if name.rpartition(".")[2] == "npz"]:
        parts = {f"{name}.{part}": array for part, array in sample.pop(name).items()}
        if clash := sample.keys() & parts.keys():
            raise FormatError(f"expected fields of different names, found two {min(clash)!r}")
        sample |= parts
    return sample
