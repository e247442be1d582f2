"""Parquet: a row is a record of named fields, and a row group is a block of records.

The content of a source is what an array file of its rows would hold. So a row group is decoded, cached and waited for
as a block of a compressed source, and all that reads array files reads it. pyarrow decodes; it is optional.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from .. import _native
from ..compression.blocks import BlockStart, Data
from ..compression.content import in_flight
from ..errors import Error, FormatError, option
from ..storage.sources import Source
from ..storage.workers import in_order
from .expressions import Measuring
from .format import End, FieldsOf, Format, Option, OptionError, Parameters, Piece, Sample, Sources


class Parquet(Format):
    """Rows of Parquet files."""

    name = "parquet"
    suffixes = (".parquet", ".pq")
    codecs = ("parquet",)
    options = {
        "select": Option(str, "A,B", "parquet: the fields to read; default: all"),
        "as_json": Option(str, "A,B", "parquet: fields whose values come as in JSON: nulls, and lists of any shape"),
    }

    def recognises(self, path: str, head: bytes) -> bool:
        return head.startswith((b"PAR1", b"PARE"))

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return the `schema` of all sources, and `select` and `as_json` if they are given."""
        select, as_json = (_names(given, name) for name in ("select", "as_json"))
        types, nulls = _types_of(sources, select)
        for what, names in (("select", select), ("as_json", as_json)):
            for name in names or ():
                if name not in types:
                    known = ", ".join(map(repr, types))
                    raise OptionError(f"{what} = {name!r}, expected fields among {known}")
        schema: dict[str, Any] = {}
        for name in select or types:
            kind = types[name]
            is_json = kind == "null" or name in (as_json or ()) or (name in nulls and isinstance(kind, str))
            schema[name] = "json" if is_json else kind
            if isinstance(schema[name], FormatError):
                others = ",".join(other for other in types if other != name)
                raise FormatError(f"{schema[name]}; leave it out with {option('select', others)}")
        chosen = {"select": select, "as_json": as_json}
        described = _row_groups(sources[0]).Schema(schema).describe()
        return {"schema": described, **{name: names for name, names in chosen.items() if names}}

    def decoder(self, parameters: Parameters) -> Sample:
        return FieldsOf(parameters["schema"])

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the rows of every row group: the sizes that they have as records of an array file, and columns."""
        measuring.check_binary()
        for number, source in enumerate(sources):
            yield from _scan(number, source, parameters, measuring, workers)

    def blocks(self, parameters: Parameters, path: str, known: _native.Map) -> Callable[[int], Iterator[Data]]:
        """Return what yields the content of each row group of a source; see `Format.blocks`."""
        module = _row_groups(path)
        found: Callable[[int], Iterator[Data]] = module.Rows(path, module.Schema(parameters["schema"]), known).content
        return found


def _row_groups(path: str) -> Any:
    """Return the module that reads row groups of a source; raise Error if pyarrow is missing."""
    try:
        from . import row_groups  # pyarrow is optional
    except ImportError:
        raise Error(f"{path}: reading parquet needs pyarrow; run: pip install pyarrow") from None
    return row_groups


def _scan(number: int, source: Source, parameters: Parameters, measuring: Measuring, workers: int) -> Iterator[Piece]:
    module = _row_groups(source.path)
    schema = module.Schema(parameters["schema"])
    columns = [module.Column.of(schema, name, each) for name, each in measuring.columns.items()]
    with module.opened(source.path) as file:
        metadata = file.metadata
    begins, counts = [0, *module.begins_of(metadata)[1:], source.size], module.rows_of(metadata)
    tasks, rows_of = list(module.runs_of(metadata)), module.Rows(source.path, schema, metadata=metadata)

    def load(groups: range, _: Any) -> tuple[range, Any]:
        return groups, rows_of.measured(groups, columns)

    done = content = 0
    threads = min(workers, max(len(tasks), 1))
    slots = list(range(in_flight(threads)))
    for groups, found in in_order(load, tasks, workers=threads, slots=slots):
        starts: Any = content + found.ends - found.sizes
        *firsts, rows = accumulate(counts[groups.start : groups.stop], initial=0)
        if rows != len(starts):
            raise FormatError(f"{source.path}: row group {groups.start}: expected {rows} rows, found {len(starts)}")
        before = (content + int(found.ends[row - 1]) if row else content for row in firsts)
        blocks = tuple(BlockStart(begins[group], at) for group, at in zip(groups, before, strict=True))
        content, done = content + int(found.sizes.sum()), done + rows
        end = End(done, content, content=content) if groups.stop == len(counts) else None
        scanned = begins[groups.stop] - begins[groups.start]
        yield Piece(number, memoryview(starts), found.columns, 0, scanned, end, blocks=blocks)
    if not tasks:
        none = memoryview(b"").cast("Q")
        yield Piece(number, none, tuple((_native.NUMBER_U64, none) for _ in columns), 0, source.size, End(0, 0))


def _types_of(paths: Sequence[str], select: list[str] | None) -> tuple[dict[str, Any], set[str]]:
    """Return the type of each field of all files, or an error object, and the fields with nulls.

    Raises:
      FormatError: files differ in a field that is read.
    """
    found: dict[str, Any] = {}
    nulls: set[str] = set()
    for path in paths:
        module = _row_groups(path)
        with module.opened(path) as file:
            types = module.types_of(path, file)
            nulls |= module.with_nulls(file)
        found = found or dict(types)
        for name in select or [*found, *types]:
            for types_here, where, other in ((types, path, paths[0]), (found, paths[0], path)):
                if name not in types_here and name in {**found, **types}:
                    raise FormatError(f"{where}: expected a field {name!r}, as in {other}, found none")
            before, kind = found.get(name), types.get(name)
            if "null" in (before, kind):  # a file without rows, or with nulls alone
                nulls.add(name)
                found[name] = kind if before == "null" else before
            elif repr(before) != repr(kind) and not isinstance(kind, FormatError):
                raise FormatError(f"{path}: field {name!r}: expected {before}, as in {paths[0]}, found {kind}")
    return found, nulls


def _names(given: Mapping[str, Any], name: str) -> list[str] | None:
    """Return the names in an option, a list or a text with commas; None if it is not given."""
    found = given.get(name)
    names = found.split(",") if isinstance(found, str) else found
    if names is not None and (not isinstance(names, list | tuple) or not names or "" in names):
        raise OptionError(f"{name} = {found!r}, expected names of fields")
    return names if names is None else list(names)
