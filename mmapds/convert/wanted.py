"""What a user wants of records: which fields, of which types, and what stands for those that are missing."""

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, NamedTuple

from ..arrays.array_file import Head
from ..arrays.infer import Inference, UndecidedError
from ..arrays.schema import Schema
from ..arrays.values import fits, shown
from ..errors import Error, FormatError, did_you_mean
from .fit import Rules, default_of
from .reader import Reader, Refused, fields_option


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
