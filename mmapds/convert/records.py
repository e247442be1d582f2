"""Read sources, fit their records to a schema, and write them; choose and check the target."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from .. import formats
from ..arrays.array_file import SUFFIX, ArraySections, Head
from ..arrays.schema import Field, Schema
from ..arrays.values import Inference, cast, pack, with_axes_of
from ..dataset.decode import Decoder
from ..errors import Error, FormatError, either, option, warn
from ..index.build import format_of
from ..storage.lock import is_same_file, locked
from ..storage.sources import INDEX_SUFFIX, StrPath, given_twice, listed, open_file
from .reader import IndexedReader, Reader, Rules
from .writer import Writer

HDF5_OPTIONS: dict[str, tuple[type, str, str]] = {
    "records": (str, "rows|groups|members", "hdf5: a record is a row of all datasets, or a group with all below it"),
    "group": (str, "PATH", "hdf5: the group that holds the records; default: the root"),
}
"""The options of HDF5, by name: (type, placeholder, help), for the command line."""
_OF_FILES = ("pt", "npz", "safetensors")  # a record each
_LIBRARIES = {"hdf5": "h5py", "pt": "torch", "safetensors": "safetensors"}


# ---- reading --------------------------------------------------------------------------------------------------------


class Reading(NamedTuple):
    """The arguments of `mmapds.convert.convert` for reading."""

    format_name: str | None
    decode: str | Decoder | None
    roots: StrPath | Iterable[StrPath]
    options: Mapping[str, Any]

    def open(self, paths: list[str], target: str) -> Reader:
        """Return a reader of some sources; it may build a hidden index beside `target`."""
        found = {self.format_name or formats.convertible(path) or "": path for path in paths}
        if len(found) > 1:
            shown = ", ".join(f"{path} ({name or 'to be indexed'})" for name, path in found.items())
            raise FormatError(f"sources: expected one format in one conversion, found {shown}")
        chosen = next(iter(found))
        if chosen not in formats.CONVERTIBLE:
            if others := [option for option in self.options if option not in formats.OPTIONS]:
                raise FormatError(f"{others[0]} = {self.options[others[0]]!r}, expected an option of an indexed format")
            return IndexedReader(paths, hidden_index(target), self.format_name, self.decode, self.roots, self.options)
        if self.decode is not None and (chosen not in _OF_FILES or not callable(self.decode)):
            expected = "a function of the bytes of a file, or " if chosen in _OF_FILES else ""
            raise FormatError(f"decode = {self.decode!r}, expected {expected}None, as records of {chosen} have types")
        formats.check_options(chosen, HDF5_OPTIONS if chosen == "hdf5" else {}, self.options)
        if line := given_twice(paths):  # for indexed formats, `build` warns
            warn(line)
        return _file_reader(chosen, paths, self.decode, self.options)

    def open_first(self, paths: list[str], target: str, records: int | None) -> Reader:
        """Return a reader of all sources; with `records`, of enough indexed sources to have that many or a schema."""
        count = len(paths) if records is None or not self.is_indexing(paths) else 1
        reader = self.open(paths[:count], target)
        while count < len(paths) and reader.schema is None and (reader.total or 0) < (records or 0):
            count *= 2
            reader = self.open(paths[:count], target)
        if count < len(paths):
            reader.total = None
        return reader

    def is_indexing(self, paths: list[str]) -> bool:
        """Return whether all paths are sources to index."""
        kinds = {self.format_name or formats.convertible(path) or "" for path in paths}
        return not kinds & formats.CONVERTIBLE.keys() and not any(path.endswith(INDEX_SUFFIX) for path in paths)

    def settled(self, paths: list[str]) -> "Reading":
        """Return a copy with format and options settled by all sources, so that tasks with some of them agree."""
        roots = [os.path.abspath(root) for root in listed(self.roots)]
        if not self.is_indexing(paths):
            return self._replace(roots=roots)
        chosen = format_of(paths, self.format_name)
        formats.check_options(chosen.name, chosen.options, self.options)
        parameters = chosen.parameters(self.options, paths)
        options = {name: parameters[name] for name in chosen.options if name in parameters}
        return self._replace(format_name=chosen.name, options=options, roots=roots)


def _file_reader(name: str, paths: list[str], decode: Any, options: Mapping[str, Any]) -> Reader:
    try:
        if name in _OF_FILES:
            from .files import FilesReader  # safetensors is optional

            return FilesReader(paths, name, decode)
        if name == "hdf5":
            from .hdf5 import Hdf5Reader  # h5py is optional

            return Hdf5Reader(paths, **options)
        from .arrow import TableReader  # pyarrow is optional

        return TableReader(paths, name)
    except ImportError:
        library = _LIBRARIES.get(name, "pyarrow")
        raise Error(f"{paths[0]}: reading {name} needs {library}; run: pip install {library}") from None


# ---- writing --------------------------------------------------------------------------------------------------------


class Wanted(NamedTuple):
    """The arguments of `mmapds.convert.convert` of these names."""

    schema: Mapping[str, Any] | None
    types: Mapping[str, Any]
    fields: list[str] | None
    defaults: Mapping[str, Any]
    length: str | None
    skip: bool
    infer: int
    max_bytes: int | None

    def rules(self, reader: Reader, target: str) -> Rules:
        """Return how to write each record."""
        found = reader.schema
        if found is None:
            found = self._inferred(reader) if self.schema is None else self.schema
        described = dict(found if self.schema is None else self.schema)
        _check_names("schema", described, found)
        _check_names("types", self.types, described)
        described |= self.types
        if self.fields is not None:
            _check_names("fields", self.fields, described)
            described = {name: described[name] for name in self.fields}
        for name in described:
            if isinstance(refused := found[name], FormatError):
                raise refused
        schema = Schema(described)
        _check_names("defaults", self.defaults, described)
        defaults = {}
        for name, value in self.defaults.items():
            is_text = described[name] == "bytes" and isinstance(value, str)
            defaults[name] = value.encode() if is_text else value
            try:
                json.dumps(value)  # the names of parts on clusters contain this text
                pack(Schema({name: described[name]}), {name: defaults[name]}, bytearray())
            except (FormatError, TypeError, ValueError) as error:
                raise FormatError(f"defaults[{name!r}]: {error}") from None
        length = self.length or _length_before(target, schema)
        is_whole = self.schema is None and self.fields is None  # then a field outside the schema is an error
        return Rules(schema.describe(), length, self.skip, is_whole, defaults, self.max_bytes)

    def _inferred(self, reader: Reader) -> dict[str, Any]:
        """Infer types from the first records; "json" for fields that are unwanted or typed by the user."""
        # A JSON field has no lengths. So a null in the field of lengths does not make it JSON: writing refuses it.
        inference = Inference(nulls=not self.skip, defaults=[*self.defaults, *filter(None, [self.length])])
        known: dict[str, Any] = {}
        records = (record for batch in reader.batches(self.fields) for record in batch.records)
        for number, record in enumerate(islice(records, self.infer)):
            known |= dict.fromkeys(record, "json")
            wanted = (record.keys() if self.fields is None else record.keys() & set(self.fields)) - self.types.keys()
            try:
                inference.add({name: value for name, value in record.items() if name in wanted})
            except FormatError as error:
                raise FormatError(f"{reader.place(number)}: {error}") from None
        return known | inference.described()


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise FormatError(f"{what}: expected fields among {', '.join(map(repr, known))}, found {name!r}")


def _length_before(target: str, schema: Schema) -> str | None:
    """Return the field of a schema that has the lengths in the array file to be replaced; None without one."""
    try:
        expression = Head(target).columns.get("length")
    except (Error, OSError):  # no file, or not an array file
        return None
    fields = [] if any(field.column == "length" for field in schema.fields) else schema.fields
    return next((field.name for field in fields if field.gives_lengths and field.expression == expression), None)


def _fit(record: Mapping[str, Any], schema: Schema, rules: Rules) -> Mapping[str, Any] | None:
    """Return a record's fields of the schema, with arrays converted; None if the record is to be skipped."""
    fitted: dict[str, Any] = {}
    for field in schema.fields:
        value = record.get(field.name)
        if value is None:
            value = rules.defaults.get(field.name)
        if value is None and field.dtype != "json":
            if rules.skip:
                return None
            found = "null" if field.name in record else "nothing"
            raise FormatError(
                f"field {field.name!r}: expected {field}, found {found}; give {either('--defaults', 'defaults=')} or "
                f"{option('missing', 'skip')}"
            )
        if isinstance(value, np.ndarray) and field.shape is not None:
            value = _converted(value, field)
        fitted[field.name] = value
    if rules.is_whole and (more := [name for name in record if name not in fitted]):
        known = ", ".join(map(repr, fitted))
        raise FormatError(f"expected fields among {known}, as in the records before it, found {more[0]!r}")
    return fitted


def _converted(array: Any, field: Field) -> Any:
    """Return an array in the dtype of a field; the array itself if it cannot be cast: the writer refuses it.

    An empty array also gets the shape of the field.
    """
    if array.size == 0:
        array = array.reshape(with_axes_of(array.shape, field.shape or ()))
    converted = cast(array, field.dtype)
    if converted is None and array.size and array.dtype.kind in "iuf":
        raise FormatError(
            f"field {field.name!r}: expected numbers that fit {field.dtype}, found {array.dtype} from {array.min()} to "
            f"{array.max()}"
        )
    return array if converted is None else converted


def copy_records(
    reader: Reader, rules: Rules, writer: Writer, progress: Callable[[int, int | None], object]
) -> tuple[int, int]:
    """Write all records of a reader, fitted to a schema; return the numbers of read and skipped records.

    Errors name the place of the record.
    """
    schema, done, skipped, begin = rules.schema, 0, 0, writer.bytes_written
    progress(0, reader.total)
    try:
        for batch in reader.batches(schema.names, rules):
            if batch.columns is not None and writer.append_columns(batch.columns, batch.size):
                done += batch.size
                check_written(writer.bytes_written - begin, rules, reader.place, done - 1)
            else:
                for record in batch.records:
                    try:
                        fitted = _fit(record, schema, rules)
                        if fitted is not None:
                            writer.write(fitted)
                    except FormatError as error:
                        reason = str(error).removeprefix(f"{writer.path}: record {done - skipped}: ")
                        raise FormatError(f"{reader.place(done)}: {reason}") from None
                    skipped += fitted is None
                    done += 1
                    check_written(writer.bytes_written - begin, rules, reader.place, done - 1)
            progress(batch.size, reader.total)
    except MemoryError:
        raise FormatError(f"{reader.place(done)}: expected a record that fits into memory, found no room") from None
    return done, skipped


def check_written(written: int, rules: Rules, place: Callable[[Any], str], last: Any) -> None:
    """Raise FormatError if more than `max_bytes` were written; `place(last)` is the place of the last record."""
    if rules.max_bytes is not None and written > rules.max_bytes:
        raise FormatError(
            f"{place(last)}: expected up to {rules.max_bytes} bytes of records, found {written}; write more with "
            f"{option('max_bytes', 2 * written)}"
        )


# ---- where it is written --------------------------------------------------------------------------------------------


def target_of(paths: list[str], out: StrPath | None) -> str:
    """Return the path to write."""
    if out is None and len(paths) > 1:
        raise Error(f"out: expected the name of one array file for {len(paths)} sources, found none")
    target = os.path.splitext(paths[0])[0] + SUFFIX if out is None else os.fspath(out)
    if not target.endswith(SUFFIX):
        raise Error(f"{target}: expected a file to write that ends in {SUFFIX}")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(f"{target}: expected a file to write in a directory, found no such directory")
    if any(is_same_file(path, target) for path in paths):
        raise Error(f"{target}: expected a file to write that is not a source, found a source")
    return target


def origin_of(target: str, paths: Sequence[str]) -> str:
    """Return the path of the first source relative to the array file, so that both can move together."""
    return os.path.relpath(os.path.realpath(paths[0]), os.path.dirname(os.path.realpath(target)))


@contextmanager
def alone(target: str, paths: list[str]) -> Iterator[None]:
    """Hold the lock of the file to write; refuse to replace a file that does not come from `paths`, if given."""
    with locked(target + INDEX_SUFFIX):
        if paths and os.path.exists(target) and os.path.getsize(target):  # now, as another conversion may have ended
            try:
                found = ArraySections(target, open_file(target, scan=True)).metadata.get("origin")
            except (Error, OSError, ValueError):
                found = None
            expected = origin_of(target, paths)
            if found != expected:
                raise Error(
                    f"{target}: expected no file, or an array file that was converted from {expected!r}, found "
                    f"{f'one from {found!r}' if found else 'another file'}; replace it with {option('force', True)}"
                )
        yield


def hidden_index(target: str) -> str:
    """Return the path of the hidden index of sources."""
    directory, name = os.path.split(target)
    return os.path.join(directory, f".{name}.sources{INDEX_SUFFIX}")
