"""Readers of a conversion: read sources as batches of records or columns."""

import os
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, NamedTuple, cast

from ..arrays.packed import Values
from ..arrays.schema import Schema, unsupported
from ..arrays.values import common_type
from ..build_index import build
from ..dataset import payloads
from ..dataset.decode import Decoder
from ..dataset.indexed import IndexedDataset
from ..dataset.opening import open as open_dataset
from ..errors import DecodeError, Error, FormatError, SourceError, StaleIndexError
from ..formats.format import plain_dtype
from ..formats.tar import Tar
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, StrPath

_REPORTED = 256  # samples of a batch, and between two calls of `progress`


class Rules(NamedTuple):
    """How to write each record."""

    described: Mapping[str, Any]  # the schema, as `Schema` takes it
    length: str | None  # the field for token budgets
    skip: bool  # skip records that lack a field
    is_whole: bool  # refuse records with fields outside the schema
    defaults: Mapping[str, Any]  # values for fields that are missing or null
    max_bytes: int | None  # the largest size of all records together; None for no limit

    @property
    def schema(self) -> Schema:
        """The fields to write. Built on demand: a `Schema` cannot be pickled for workers."""
        return Schema(self.described)


class Batch(NamedTuple):
    """Consecutive records."""

    size: int
    records: Iterable[Mapping[str, Any]]
    columns: Sequence[Values] | None = None  # all fields of the schema; then `records` may be ignored


class Reader(ABC):
    """Reads the records of some sources in order; each source is open only while it is read.

    Args:
      title: the format, for messages.
      record: the word for a record in messages, such as "row".
    """

    total: int | None = None
    """The number of records; None if it is unknown before reading."""
    schema: Mapping[str, Any] | None = None
    """The type of each field, or an error object if array files lack it; None if unknown before reading."""

    def __init__(self, paths: Sequence[str], title: str = "", record: str = "record") -> None:
        self._paths, self._title, self._record = paths, title, record
        self._types: dict[str, Any] = {}
        self._firsts: list[int] = []  # number of the first record of each file that was opened

    @abstractmethod
    def _read(self, path: str, wanted: Container[str] | None, rules: Rules | None) -> Iterator[Batch]:
        """Yield the records of a source; see `batches`."""

    def batches(self, wanted: Container[str] | None, rules: Rules | None = None) -> Iterator[Batch]:
        """Yield all records.

        Args:
          wanted: the fields to read, None for all; other fields may be None or missing.
          rules: its schema has the columns of a batch. A batch with a null that has a default has no columns.
        """
        done, self._firsts = 0, []
        for path in self._paths:
            self._firsts.append(done)
            for batch in self._read(path, wanted, rules):
                done += batch.size
                yield batch

    def place(self, number: int) -> str:
        """Return the place of a yielded record, for messages."""
        source = bisect_right(self._firsts, number) - 1
        return f"{self._paths[source]}: {self._record} {number - self._firsts[source]}"

    def _add_fields(self, path: str, fields: Iterable[tuple[str, Any]]) -> None:
        """Add the fields of a file to the schema; a number gets a type that fits all files."""
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

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Add the path to errors of the library that reads the file, out of memory included."""
        try:
            yield
        except Error:
            raise
        except Exception as error:
            said = str(error).partition("\n")[0].rstrip(".")
            if isinstance(error, MemoryError):
                what = f"{self._title} file too large to read here: {said or 'out of memory'}"
            else:
                what = f"not a readable {self._title} file: {said}"
            raise FormatError(f"{path}: {what}") from error


class IndexedReader(Reader):
    """Reads the decoded records of given indexes, or of sources through a hidden index."""

    def __init__(
        self,
        paths: Sequence[str],
        hidden: str,
        name: str | None,
        decode: str | Decoder | None,
        roots: StrPath | Iterable[StrPath],
        options: Mapping[str, Any],
    ) -> None:
        super().__init__([hidden])
        try:
            if not all(path.endswith(INDEX_SUFFIX) for path in paths):
                build(paths, out=hidden, format=name, roots=roots, force=True, **options)
                paths, roots = [hidden], Index(hidden).roots_needed()  # allowed: the user named these sources
            samples = open_dataset(paths, decode=decode, access="sequential", roots=roots)
            self._samples = cast(IndexedDataset, samples)
            self.total = len(self._samples)
            index = self._samples._catalog.indexes[0]
            self.schema = _index_schema(index, self._samples.sources[0]) if decode is None else None
            self._as_record = _tar_record if index.format == Tar.name and decode is None else as_record
        finally:
            with suppress(OSError):  # no index was built, or the next conversion removes it
                os.unlink(hidden)  # the open map stays valid

    def _read(self, path: str, wanted: Container[str] | None, rules: Rules | None) -> Iterator[Batch]:
        records, count = self._records(), len(self._samples)
        for begin in range(0, count, _REPORTED):
            yield Batch(min(_REPORTED, count - begin), islice(records, _REPORTED))

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
        """Return the place of a record, for messages."""
        return self._samples.place(number)


def _index_schema(index: Index, source: str) -> Mapping[str, Any] | None:
    """Return the fields of all records; None if the index does not store them."""
    if "schema" in index.parameters:
        return dict(index.parameters["schema"])
    if "dtype" not in index.parameters:
        return None
    numbers = plain_dtype(index.parameters["dtype"])
    dtype = numbers.name
    if numbers.kind in "SUV":
        return {"data": unsupported(f"{source}: field 'data'", dtype)}
    shape = index.parameters.get("shape", [None])
    return {"data": (dtype, shape) if shape or dtype.startswith("complex") else dtype}


def as_record(sample: Any) -> dict[str, Any]:
    """Return a sample as a dict; a list of one bytes object (tf.train.Example) becomes that object."""
    if not isinstance(sample, dict):
        return {"data": sample}
    lists = {name: value for name, value in sample.items() if type(value) is list and len(value) == 1}
    alone = {name: value[0] for name, value in lists.items() if type(value[0]) is bytes}
    return sample | alone if alone else sample


def _tar_record(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a tar sample with decoded members; images stay bytes, and each array of an npz becomes a field."""
    del sample["__url__"]
    payloads.decode_members(sample, image=bytes)
    for name in [name for name in sample if name.rpartition(".")[2] == "npz"]:
        parts = {f"{name}.{part}": array for part, array in sample.pop(name).items()}
        if clash := sample.keys() & parts.keys():
            raise FormatError(f"expected fields of different names, found two {min(clash)!r}")
        sample |= parts
    return sample
