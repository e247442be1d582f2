"""Readers of a conversion: the interface that they share, and the base of those that use another library."""

import errno
import shlex
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Container, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

from ..arrays.columns import Columns
from ..arrays.infer import common_type
from ..arrays.schema import Schema
from ..errors import Error, FormatError, either


def fields_option(names: Iterable[str]) -> str:
    """Return the option that chooses fields."""
    given = list(names)
    return either(f"--fields {shlex.quote(','.join(given))}", f"fields={given!r}")


class Block(NamedTuple):
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
        remedy = f"leave it out with {fields_option(kept)}" if kept else "write it again as one of these"
        return FormatError(
            f"{self.place}: expected numbers, text, bytes, or arrays or structs of these, found {self.found}; {remedy}"
        )


class Reader(Protocol):
    """The records of some sources, one source after another."""

    total: int | None
    """How many records there are; None if only reading them shows it."""
    schema: Mapping[str, Any] | None
    """Their fields, as `mmapds.Writer` takes them or a Refused; None if only the records show them."""

    def records(self, schema: Schema | None, fields: Container[str] | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield every record: what it has of the fields of a schema, or all it has.

        Args:
          fields: where there is no schema, those to look at: any others may be None. None for all.
        """

    def blocks(self, schema: Schema, defaults: Container[str]) -> Iterator[Block]:
        """Yield the same in blocks, as columns where the source has such.

        Args:
          defaults: fields whose nulls a default stands for: blocks with such nulls are not columns.
        """

    def place(self, number: int) -> str:
        """Return where a record that was yielded lies, as messages say it."""

    def close(self) -> None:
        """Release the sources."""


class FileReader(ABC):
    """Records that another library reads, file by file; a file is open only while it is read."""

    NAME: ClassVar[str]
    """The format's name, as `--format` takes it."""
    TITLE: ClassVar[str]
    """The format's name, as messages say it."""
    RECORD: ClassVar[str] = "record"
    """What messages call a record."""
    OPTIONS: ClassVar[dict[str, tuple[type, str, str]]] = {}
    """Options of the format, by name: (type, placeholder, help), for the command line."""

    def __init__(self, paths: Sequence[str], **_: Any) -> None:
        self.total: int | None = None
        self.schema: Mapping[str, Any] | None = None
        self._paths = paths
        self._types: dict[str, Any] = {}
        self._firsts: list[int] = []  # number of the first record of each file, as far as they are read

    @abstractmethod
    def _read(
        self, path: str, schema: Schema | None, fields: Container[str] | None
    ) -> Generator[Mapping[str, Any], None, int]:
        """Yield the records of a file; return how many there were."""

    def _add_fields(self, path: str, fields: Iterable[tuple[str, Any]]) -> None:
        """Add the fields of a file to the schema; numbers take a type that holds those of all files.

        Raises:
          FormatError: a field has another type in a file before.
        """
        self.schema = self._types
        for name, found in fields:
            expected = self._types.setdefault(name, found)
            if expected == found:
                continue
            has_refused = isinstance(expected, Refused) or isinstance(found, Refused)
            common = None if has_refused else common_type(expected, found)
            if common is None:
                others = [other for other in self._types if other != name]
                remedy = f"choose other fields with {fields_option(others)}" if others else "convert them one by one"
                raise FormatError(
                    f"{path}: field {name!r}: expected {expected}, as in the files before, found {found}; {remedy}"
                )
            self._types[name] = common

    def records(self, schema: Schema | None, fields: Container[str] | None = None) -> Iterator[Mapping[str, Any]]:
        """Yield every record: what it has of the fields of a schema, or all it has; see `Reader.records`.

        Raises:
          FormatError: a file cannot be read.
        """
        self._firsts = [0]
        for path in self._paths:
            count = yield from self._read(path, schema, fields)
            self._firsts.append(self._firsts[-1] + count)

    def blocks(self, schema: Schema, defaults: Container[str]) -> Iterator[Block]:
        """Yield the records of all files as one block."""
        yield Block(self.records(schema))

    def place(self, number: int) -> str:
        """Return which record of which file this is."""
        source = bisect_right(self._firsts, number) - 1
        return f"{self._paths[source]}: {self.RECORD} {number - self._firsts[source]}"

    def close(self) -> None:
        """Forget where files begin. No file is open between reads."""
        self._firsts.clear()


def cannot_be_read(path: str, title: str, error: Exception) -> Error:
    """Return the error for a file that its library refuses; of several lines of its message the first."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return Error(f"{path}: {error.strerror}; raise the limit (ulimit -n)")
    reason = str(error).partition("\n")[0].rstrip(".")
    return FormatError(
        f"{path}: not a readable {title} file: {reason}; copy the file again, or choose its format with "
        f"{either('--format F', 'format=...')}"
    )


def too_large(path: str, title: str, error: Exception) -> FormatError:
    """Return the error for a file that its library cannot hold in memory, a piece of it at a time."""
    reason = str(error).partition("\n")[0].rstrip(".") or "out of memory"
    return FormatError(
        f"{path}: {title} file too large to read here: {reason}; write it again in smaller pieces, or convert it on a "
        "machine with more memory"
    )
