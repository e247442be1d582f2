"""Parts of an array file that other processes write: a task converts some sources, and leaves an array file.

As for indexes (see `mmapds.index.tasks`), a task is a text, and what it runs is a function of a module. A part lies
under a name that follows from what it covers, and is renamed when it is whole; so a task may run twice.
"""

import os
import pickle
from collections.abc import Callable
from contextlib import closing
from typing import Any, NamedTuple

from xxhash import xxh3_128

from ..arrays.array_file import SUFFIX, ArrayFile, Head
from ..arrays.schema import Schema
from ..dataset.decode import Decoder
from ..dataset.fields import Fields
from ..errors import Error
from ..index.tasks import as_sent, decoded, encoded, key_of, outcome_of
from ..storage.sources import INDEX_SUFFIX, Source, check_unchanged
from ..writer import Writer
from .fit import Rules
from .records import Copied, copy_records, open_reader


class Part(NamedTuple):
    """What a task left."""

    file: ArrayFile
    copied: Copied


class Conversion(NamedTuple):
    """What a part is to hold, and how its records are read."""

    sources: tuple[Source, ...]
    """Consecutive ones, with absolute paths; or an index alone."""
    format_name: str | None
    options: dict[str, Any]
    schema: list[Any]
    """Pairs of a field and its type, as the order of fields matters."""
    length: str | None  # this one and the next four as in `Rules`
    skip: bool
    is_whole: bool
    defaults: dict[str, Any]
    max_bytes: int | None
    roots: list[str]
    decoder: str
    """What tells one decoder from another; see `mark_of`."""
    directory: str
    """Where the part is to lie."""
    decode: str | Decoder | None = None
    """The decoder itself, which is sent beside the text."""

    @property
    def key(self) -> str:
        """The name of the part, which follows from all that decides what is in it."""
        return key_of(self[:-2])

    @property
    def path(self) -> str:
        """The path of the part."""
        return os.path.join(self.directory, self.key + SUFFIX)

    @property
    def title(self) -> str:
        """What messages call the task."""
        return self.sources[0].path

    def part(self) -> Part | None:
        """Return the part, if it is there and whole."""
        try:
            file = ArrayFile(Head(self.path))
            with file.reporting_malformed_metadata():
                described = file.metadata["part"]
                if described["key"] != self.key:
                    return None
                copied = Copied(int(described["read"]), int(described["skipped"]), str(described["first"]))
            file.check_records()
        except Error:
            return None
        return Part(file, copied)

    def call(self) -> tuple[Callable[[str, Any], str], str, str | Decoder | None]:
        """Return the function that writes the part elsewhere, and its arguments."""
        return run_conversion, encoded(self[:-1]), self.decode

    @classmethod
    def of(cls, text: str, decode: str | Decoder | None) -> "Conversion":
        """Return the task of a text; raises as `decoded` does."""
        sources, *rest = decoded(text)
        return cls(tuple(Source(*source) for source in sources), *rest)._replace(decode=decode)


def run_conversion(text: str, decode: str | Decoder | None) -> str:
    """Write the part of a task, unless it is there; return the outcome. This runs in other processes, on any host."""

    def work() -> str:
        task = Conversion.of(text, decode)
        if task.part() is None:
            _convert(task)
        return task.key

    return outcome_of(text, work)


def _convert(task: Conversion) -> None:
    """Write a part."""
    sources = as_sent([source for source in task.sources if not source.path.endswith(INDEX_SUFFIX)])
    os.makedirs(task.directory, exist_ok=True)
    paths = [source.path for source in task.sources]
    rules = Rules(Schema(dict(task.schema)), task.length, task.skip, task.is_whole, task.defaults, task.max_bytes)
    opened = open_reader(paths, task.path, task.format_name, task.decode, task.roots, task.options)
    with closing(opened) as reader, _PartWriter(task) as writer:
        copied = copy_records(reader, rules, writer, lambda *_: None)
        writer.of_part = {"key": task.key, **copied._asdict()}
        for source in sources:
            check_unchanged(source)


class _PartWriter(Writer):
    """Writes a part, which says what it is of."""

    def __init__(self, task: Conversion) -> None:
        super().__init__(task.path, dict(task.schema), length=task.length, index=False)
        self.of_part: dict[str, Any] = {}

    def _metadata(self) -> dict[str, Any]:
        return {**super()._metadata(), "part": self.of_part}


def mark_of(decode: str | Decoder | None) -> str:
    """Return what tells one decoder from another: its pickle, and for a function a mark of this call alone.

    Raises:
      Error: other processes cannot import it.
    """
    if decode is None or isinstance(decode, str):
        return str(decode)
    try:
        mark = xxh3_128(pickle.dumps(decode, protocol=4))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(
            f"decode = {decode!r}, expected a decoder that workers can load ({error}); define the function in a module"
        ) from None
    if not isinstance(decode, Fields):
        mark.update(os.urandom(16))  # its code may have changed since the last call
    return mark.hexdigest()
