"""What is written of records: the schema that a user wants, records fitted to it, and what to do about misfits."""

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from ..arrays.array_file import Head
from ..arrays.infer import Inference, UndecidedError, widened
from ..arrays.schema import EXTENDED, Field, Schema, dtype_name
from ..arrays.values import cast, fits, shown, with_axes_of
from ..errors import Error, FormatError, did_you_mean, either, option, plain_counted
from .reader import Reader, Refused, fields_option

_SHOWN = 16  # elements of an array that a message shows
_LOOKED_AT = 4096  # records that are searched for all fields that they lack


class Rules(NamedTuple):
    """What is written of each record."""

    schema: Schema
    length: str | None
    """The field that token budgets are planned by."""
    skip: bool
    """Leave records out that lack a field."""
    is_whole: bool
    """Records must not have fields beyond the schema."""
    defaults: dict[str, Any]
    """What stands for a field that is missing or null, as JSON has it."""
    max_bytes: int | None
    """How many bytes of records may be written; None for any."""


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
        """Return what is written of each record.

        Raises:
          FormatError: the sources lack a field that was asked for, or have one that array files have no type for.
        """
        is_whole = self.schema is None and self.fields is None  # so that a field beyond the schema is an error
        schema = self._schema(reader)
        length = self.length or _length_before(target, schema)
        return Rules(schema, length, self.skip, is_whole, self._checked_defaults(schema), self.max_bytes)

    def _schema(self, reader: Reader) -> Schema:
        """Return the schema of the fields to write."""
        found = self._inferred(reader) if self.schema is None and reader.schema is None else reader.schema
        if self.schema is not None:
            found = Schema(self.schema).describe() if found is None else found
            _check_names("schema", self.schema, found)
        assert found is not None
        described: dict[str, Any] = {**(found if self.schema is None else self.schema)}
        _check_names("types", self.types, described)
        described |= self.types
        if self.fields is not None:
            _check_names("fields", self.fields, described)
            described = {name: described[name] for name in self.fields}
        for name in described:
            if isinstance(refused := found[name], Refused):
                raise refused.error(other for other in found if not isinstance(found[other], Refused))
        return Schema(described)

    def _inferred(self, reader: Reader) -> dict[str, Any]:
        """Return the types that suit the first records; a Refused where array files have none.

        Fields that are not wanted, or have a type already, are not looked at, and are "json" here.
        """
        # As JSON, the field of lengths would give none: its nulls are refused where they are met, with what to do.
        inference = Inference(nulls=not self.skip, defaults=[*self.defaults, *filter(None, [self.length])])
        known: dict[str, Any] = {}
        for number, record in enumerate(islice(reader.records(None, self.fields), self.infer)):
            rest = {}
            for name, value in record.items():
                known.setdefault(name, "json")
                if isinstance(value, Refused):
                    known[name] = value
                elif name not in self.types and (self.fields is None or name in self.fields):
                    rest[name] = value
            try:
                inference.add(rest)
            except UndecidedError as error:
                option = fields_option(name for name in known if name != error.field)
                raise FormatError(f"{reader.place(number)}: {error}; choose other fields with {option}") from None
        return known | {name: what for name, what in inference.described().items() if known[name] == "json"}

    def _checked_defaults(self, schema: Schema) -> dict[str, Any]:
        """Return the defaults; raise FormatError for one that does not fit its field."""
        _check_names("defaults", self.defaults, schema.describe())
        for field in schema.fields:
            if field.name not in self.defaults:
                continue
            value = self.defaults[field.name]
            if not _is_json(value):
                raise FormatError(f"defaults[{field.name!r}]: expected a number, text or a list, found {shown(value)}")
            if not fits(field, default_of(field, value)):
                raise FormatError(f"defaults[{field.name!r}]: expected {field}, found {shown(value)}")
        return dict(self.defaults)


def _length_before(target: str, schema: Schema) -> str | None:
    """Return the field of a schema that gives the lengths of the array file that will be replaced; None without one."""
    try:
        expression = Head(target).columns.get("length")
    except (Error, OSError):  # no file, or not one of arrays
        return None
    fields = [] if any(field.column == "length" for field in schema.fields) else schema.fields
    return next((field.name for field in fields if field.gives_lengths and field.expression == expression), None)


def _is_json(value: Any) -> bool:
    """Whether a default can be sent to other processes as text."""
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_names(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            among, meant = ", ".join(map(repr, known)), did_you_mean(name, known)
            raise FormatError(f"{what}: expected fields among {among}, found {name!r}{meant}")


class LacksFieldError(FormatError):
    """A record lacks a field that has no default; see `missing`."""


def fit(record: Mapping[str, Any], rules: Rules) -> Mapping[str, Any] | None:
    """Return the fields of a record that the schema names, numbers in arrays converted; None to leave the record out.

    Raises:
      LacksFieldError: a field is missing.
      FormatError: a field does not fit, or is beyond the schema.
    """
    fitted: dict[str, Any] = {}
    for field in rules.schema.fields:
        value = record.get(field.name)
        if value is None and field.name in rules.defaults:
            value = default_of(field, rules.defaults[field.name])
        if value is None and field.dtype != "json":
            if rules.skip:
                return None
            raise LacksFieldError(field.name)
        if isinstance(value, np.ndarray) and field.shape is not None:
            value = _converted(value, field, rules.schema)
        fitted[field.name] = value
    if rules.is_whole and (more := [name for name in record if name not in fitted]):
        known = ", ".join(map(repr, fitted))
        raise FormatError(
            f"expected fields among {known}, as in the records before it, found {more[0]!r}; choose fields with "
            f"{fields_option(fitted)}, or look at more records with {either('--infer N', 'infer=N')}"
        )
    return fitted


def default_of(field: Field, value: Any) -> Any:
    """Return what stands for a field that is missing: text becomes bytes where the field is bytes."""
    return value.encode() if field.dtype == "bytes" and isinstance(value, str) else value


def _option(name: str, given: Mapping[str, Any]) -> str:
    """Return an option that is given something for fields: to a command as JSON."""
    return either(f"--{name} {shlex.quote(json.dumps(given, ensure_ascii=False))}", f"{name}={dict(given)!r}")


def missing(record: Mapping[str, Any], rest: Iterator[Mapping[str, Any]], rules: Rules) -> FormatError:
    """Return the error for a record that lacks a field, with what to do about all fields that records lack.

    Args:
      rest: the records after it, of which the first ones are looked at.
    """
    lacking: dict[str, Field] = {}
    looked_at = 0
    with suppress(Exception):  # of a later record, or of its decoder
        for each in islice(chain([record], rest), _LOOKED_AT):
            lacking |= {field.name: field for field in rules.schema.fields if _lacks(each, field, rules)}
            looked_at += 1
    first, *others = lacking.values()
    found = "null" if first.name in record else "nothing"
    remark = ""
    if others:
        names = ", ".join(repr(field.name) for field in others)
        lack = f"field {names} lacks" if len(others) == 1 else f"fields {names} lack"
        remark = f" ({lack} values too, in the {plain_counted(looked_at, 'record')} from there on)"
    ways = _ways_without([first, *others], rules)
    remedy = f"{', '.join(ways[:-1])}, or {ways[-1]}" if len(ways) > 1 else ways[0]
    return FormatError(f"field {first.name!r}: expected {first}, found {found}; {remedy}{remark}")


def _lacks(record: Mapping[str, Any], field: Field, rules: Rules) -> bool:
    return record.get(field.name) is None and field.dtype != "json" and rules.defaults.get(field.name) is None


def _ways_without(fields: Sequence[Field], rules: Rules) -> list[str]:
    """Return what can be done about records that lack some of these fields; each way is one for all of them."""
    ways = [f"leave such records out with {option('missing', 'skip')}"]
    examples = {field.name: _example(field) for field in fields}
    if None not in examples.values():
        what = "a value in its place" if len(fields) == 1 else "values in their places"
        ways.append(f"write {what} with {_option('defaults', {**rules.defaults, **examples})}")
    if all(_may_be_json(field) and field.name != rules.length for field in fields):  # JSON gives no lengths
        ways.append(f"keep null with {_option('types', {field.name: 'json' for field in fields})}")
    return ways


def _may_be_json(field: Field) -> bool:
    return field.dtype != "bytes" and field.dtype not in EXTENDED and not field.dtype.startswith("complex")


def _example(field: Field) -> Any:
    """Return a default that a field can have; None if there is none that a message can show."""
    if field.shape is None:
        return {"b": False, "f": 0.0}.get(field.dtype[0], 0) if field.is_scalar else ""
    empty = [axis or 0 for axis in field.shape]
    if field.dtype in EXTENDED or int(np.prod(empty)) > _SHOWN:
        return None
    return np.zeros(empty, "?" if field.dtype == "bool" else "i8").tolist()


def _converted(array: Any, field: Field, schema: Schema) -> Any:
    """Return an array as the dtype of a field; the array itself if that is impossible, which the writer refuses.

    An array without entries also takes the shape of the field.

    Raises:
      FormatError: its numbers do not fit the dtype.
    """
    if array.size == 0:
        array = array.reshape(with_axes_of(array.shape, field.shape or ()))
    if dtype_name(array.dtype) == field.dtype:
        return array
    converted = None if field.dtype in EXTENDED else cast(array, field.dtype)
    if converted is None and array.size and array.dtype.kind in "iuf":
        raise FormatError(
            f"field {field.name!r}: expected numbers that fit {field.dtype}, found {array.dtype} from {array.min()} to "
            f"{array.max()}; {_remedy(field, array, schema)}"
        )
    return array if converted is None else converted


def remedy(fitted: Mapping[str, Any], schema: Schema) -> str:
    """Return what to do about a record that the writer refuses."""
    for field in schema.fields:
        if not fits(field, fitted[field.name]):
            return _remedy(field, fitted[field.name], schema)
    return f"choose another field of lengths with {either('--length', 'length=...')}"


def _remedy(field: Field, value: Any, schema: Schema) -> str:
    """Return what to do about a value that does not fit a field."""
    found = widened(field, value)
    if found is not None:
        return f"choose another type with {_option('types', {field.name: found})}"
    others = [other.name for other in schema.fields if other is not field]
    return f"choose other fields with {fields_option(others)}" if others else "write such values in another way"
