"""Readers of a conversion: sources become batches of records, and of columns where the source has such."""

import errno
import shlex
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from ..arrays.columns import Columns
from ..arrays.infer import common_type
from ..arrays.schema import Schema
from ..errors import Error, FormatError, either

UNDECIDED = "null"
"""The type of a field whose values are all null in a file: that of other files, or else "json"."""


def fields_option(names: Iterable[str]) -> str:
    """Return the option that chooses fields."""
    given = list(names)
    return either(f"--fields {shlex.quote(','.join(given))}", f"fields={given!r}")


class Batch(NamedTuple):
    """Some records, one after another."""

    records: Iterable[Mapping[str, Any]]
    columns: Columns | None = None
    """The same as columns, where that is possible; the records need not be looked at then."""


@dataclass(frozen=True)
class Refused:
    """What stands for the type, or the value, of a field that array files have no type for."""

    place: str = field(compare=False)
    """Where it lies, as messages say it."""
    found: str
    """What messages call its type."""

    def __str__(self) -> str:
        return self.found

    def error(self, others: Iterable[str]) -> FormatError:
        """Return the error for it; `others` are fields that can be converted."""
        kept = list(others)
        hint = f"leave it out with {fields_option(kept)}" if kept else "write it again as one of these"
        return FormatError(
            f"{self.place}: expected numbers, text, bytes, or arrays or structs of these, found {self.found}; {hint}"
        )


class Reader(ABC):
    """The records of some sources, one source after another."""

    total: int | None = None
    """How many records there are; None if only reading them shows it."""
    schema: Mapping[str, Any] | None = None
    """Their fields, as `mmapds.Writer` takes them or a Refused; None if only the records show them."""

    @abstractmethod
    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield all records: what each has of the fields of a schema, or all it has.

        Args:
          fields: where there is no schema, those to look at: any others may be None. None for all.
          defaults: fields whose nulls a default stands for: batches with such nulls are not columns.
        Raises:
          FormatError: a source cannot be read.
        """

    def records(self, schema: Schema | None, fields: Container[str] | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield the records of all batches."""
        for batch in self.batches(schema, fields):
            yield from batch.records

    @abstractmethod
    def place(self, number: int) -> str:
        """Return where a record that was yielded lies, as messages say it."""

    def close(self) -> None:  # noqa: B027 - most readers have a file open only while they read it
        """Release the sources."""


class FileReader(Reader):
    """Records that another library reads, file by file; a file is open only while it is read."""

    TITLE: ClassVar[str]
    """The format's name, as messages say it."""
    RECORD: ClassVar[str] = "record"
    """What messages call a record."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self._types: dict[str, Any] = {}
        self._firsts: list[int] = []  # number of the first record of each file, as far as they are read

    @abstractmethod
    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None, defaults: Container[str]
    ) -> Generator[Batch, None, int]:
        """Yield the records of a file; return how many there were."""

    def _add_fields(self, path: str, fields: Iterable[tuple[str, Any]]) -> None:
        """Add the fields of a file to the schema; numbers take a type that holds those of all files.

        Raises:
          FormatError: a field has another type in a file before, or two fields of this file have the same name.
        """
        added = set()
        for name, found in fields:
            if name in added:
                raise FormatError(f"{path}: expected fields of different names, found two {name!r}; rename one")
            added.add(name)
            before = self._types.get(name, UNDECIDED)
            self._types[name] = self._joined(path, name, before, found)
        self.schema = {name: "json" if found == UNDECIDED else found for name, found in self._types.items()}

    def _joined(self, path: str, name: str, before: Any, found: Any) -> Any:
        if before == found or found == UNDECIDED:
            return before
        if before == UNDECIDED:
            return found
        has_refused = isinstance(before, Refused) or isinstance(found, Refused)
        common = None if has_refused else common_type(before, found)
        if common is None:
            others = [other for other in self._types if other != name]
            hint = f"choose other fields with {fields_option(others)}" if others else "convert them one by one"
            raise FormatError(
                f"{path}: field {name!r}: expected {before}, as in the files before, found {found}; {hint}"
            )
        return common

    def batches(
        self, schema: Schema | None, fields: Container[str] | None = None, defaults: Container[str] = ()
    ) -> Iterator[Batch]:
        """Yield the records of all files; see `Reader.batches`."""
        self._firsts = [0]
        for path in self._paths:
            count = yield from self._read(path, schema, fields, defaults)
            self._firsts.append(self._firsts[-1] + count)

    def place(self, number: int) -> str:
        """Return which record of which file this is."""
        source = bisect_right(self._firsts, number) - 1
        return f"{self._paths[source]}: {self.RECORD} {number - self._firsts[source]}"


def cannot_be_read(path: str, title: str, error: Exception) -> Error:
    """Return the error for a file that its library refuses, or cannot hold in memory; of its message the first line."""
    reason = str(error).partition("\n")[0].rstrip(".")
    if isinstance(error, MemoryError):
        return FormatError(
            f"{path}: {title} file too large to read here: {reason or 'out of memory'}; write it again in smaller "
            "pieces, or convert it on a machine with more memory"
        )
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Error(f"{path}: {error.strerror}; raise the limit (ulimit -n)")
    return FormatError(
        f"{path}: not a readable {title} file: {reason}; copy the file again, or choose its format with "
        f"{either('--format F', 'format=...')}"
    )
