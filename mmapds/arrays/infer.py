"""The schema that records have, inferred from some of them."""

from collections.abc import Container, Iterable, Mapping
from typing import Any

from ..errors import FormatError
from .schema import EXTENDED, ITEM_BYTES, MAX_DIMS, Field, Schema, dtype_name
from .values import as_array, cast, fits, list_as_array, shown

_PYTHON = {bool: "bool", int: "int64", float: "float64", bytes: "bytes", str: "str", dict: "json"}
_NULL, _EMPTY = "null", ("null", (None,))  # the types of null and of an empty list, which fit several others


class UndecidedError(FormatError):
    """No type can hold a value, or no one type the values of a field."""

    def __init__(self, field: Any, reason: str) -> None:
        super().__init__(f"field {field!r}: {reason}")
        self.field = field


def infer_schema(records: Iterable[Mapping[str, Any]], *, nulls: bool = True) -> Schema:
    """Infer a schema that all of some records fit; see `Inference`."""
    inference = Inference(nulls=nulls)
    for record in records:
        inference.add(record)
    return Schema(inference.described())


class Inference:
    """Infers a schema that all of some records fit.

    The first axis of an array is ragged, and so is every other axis whose length differs between records. A field
    whose values have several types becomes "json", if JSON can hold them. So does one of fractions beside integers that
    a float64 does not hold.

    Args:
      nulls: a field that some records lack, or have as null, becomes "json" too. Otherwise these records do not count.
      defaults: fields of which they do not count in any case.
    """

    def __init__(self, *, nulls: bool = True, defaults: Container[str] = ()) -> None:
        self._nulls, self._defaults = nulls, defaults
        self._count = 0
        self._found: dict[str, Any] = {}
        self._only_null: dict[str, Any] = {}
        self._exact: set[str] = set()
        """Fields with integers that a float64 does not hold."""

    def _counts(self, name: str) -> bool:
        """Whether it counts that a field is missing or null."""
        return self._nulls and name not in self._defaults

    def add(self, record: Mapping[str, Any]) -> None:
        """Look at one more record.

        Raises:
          FormatError: it is not a dict.
          UndecidedError: no type can hold a value, or no one type the values of a field.
        """
        if not isinstance(record, Mapping):
            raise FormatError(f"expected a dict of fields, found {shown(record)}")
        found = self._found
        for name in found.keys() - record.keys():
            if self._counts(name):
                found[name] = _joined(name, found[name], _NULL)
        for name, value in record.items():
            if value is not None or self._counts(name):
                inferred = _inferred(name, value)
                before = found.get(name, _NULL if self._count and self._counts(name) else inferred)
                found[name] = _joined(name, before, inferred)
                if name not in self._exact and not _fits_floats(value, inferred):
                    self._exact.add(name)
            else:
                self._only_null[name] = _NULL
        self._count += 1

    def described(self) -> dict[str, Any]:
        """Return the schema, as `Schema` takes it."""
        described = self._only_null | self._found
        return {
            name: "json" if _is_undecided(what) or (name in self._exact and _dtype_of(what) == "float64") else what
            for name, what in described.items()
        }


def widened(field: Field, value: Any) -> Any:
    """Return the type that holds the values of a field, and one that it does not hold; None if there is none."""
    before = field.dtype if field.shape is None else (field.dtype, field.shape)
    try:
        alone = _inferred(field.name, value)
        found = alone if before == "json" else _joined(field.name, before, alone)
    except FormatError:
        return None
    if found == before and alone != before and before != "json":  # integers that floats do not hold
        return "json"
    if found == "json" and not fits(Field(field.name, "json", None), value):
        return None
    return None if found == before or _is_undecided(found) or not _is_known(found) else found


def common_type(one: Any, other: Any) -> Any:
    """Return the type, as schemas have it, that holds numbers or arrays of two types; None if there is none."""
    if isinstance(one, str) and isinstance(other, str):
        return _common(one, other)
    if isinstance(one, str) or isinstance(other, str) or len(one[1]) != len(other[1]):
        return None
    dtype = _common(one[0], other[0])
    return dtype and (dtype, [a if a == b else None for a, b in zip(one[1], other[1], strict=True)])


def _is_undecided(what: Any) -> bool:
    """Whether all values of a field were null, or empty lists."""
    return bool(what == _NULL or what[0] == _NULL)


def _is_known(what: Any) -> bool:
    """Whether array files have a type; NumPy's text, dates and objects have others."""
    return _dtype_of(what) in ITEM_BYTES or what in _PYTHON.values()


def _dtype_of(what: Any) -> Any:
    """Return the dtype of numbers or of arrays; any other type as it is."""
    return what[0] if isinstance(what, tuple) else what


def _fits_floats(value: Any, inferred: Any) -> bool:
    """Whether a value does not change where its numbers become float64."""
    if _dtype_of(inferred) not in ("int64", "uint64"):
        return True
    if type(value) is int:
        return float(value) == value
    array = list_as_array(value) if isinstance(value, list) else as_array(value)
    return array is None or cast(array, "float64") is not None


def _inferred(name: Any, value: Any) -> Any:
    if type(value) is int and not -(2**63) <= value < 2**63:
        return "uint64" if 0 <= value < 2**64 else "json"
    if type(value) in _PYTHON:
        return _PYTHON[type(value)]
    if value is None:
        return _NULL
    if isinstance(value, list):
        array = list_as_array(value)
        if array is None or array.ndim > MAX_DIMS:
            return "json"
        return array.dtype.name if array.size else _NULL, (None, *array.shape[1:])
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        dtype = dtype_name(value.dtype)
        if value.shape:
            return dtype, (None, *value.shape[1:])
        return (dtype, ()) if dtype in EXTENDED or dtype.startswith("complex") else dtype
    raise UndecidedError(name, f"expected a number, text, bytes, a list, a dict or an array, found {shown(value)}")


def _joined(name: Any, one: Any, other: Any) -> Any:
    """Return the type that holds values of two types.

    Raises:
      UndecidedError: no type holds both.
    """
    if one == other:
        return one
    if _NULL in (one, other):
        what = other if one == _NULL else one
        return "json" if _is_in_json(what) else what  # otherwise, writing refuses the record that lacks it
    arrays = [what for what in (one, other) if isinstance(what, tuple)]
    if _EMPTY in arrays and len(arrays) == 2:
        return one if other == _EMPTY else other
    if len(arrays) == 2 and len(one[1]) == len(other[1]):
        dtype = other[0] if one[0] == _NULL else one[0] if other[0] == _NULL else _common(one[0], other[0])
        if dtype is not None:
            return dtype, tuple(a if a == b else None for a, b in zip(one[1], other[1], strict=True))
    if not arrays and (dtype := _common(one, other)) is not None:
        return dtype
    for what in (one, other):
        if not _is_in_json(what):
            raise UndecidedError(name, f"expected one type in all records, found {_shown(one)} and {_shown(other)}")
    return "json"


def _is_in_json(what: Any) -> bool:
    """Whether JSON can hold the values of a type."""
    dtype = _dtype_of(what)
    return dtype != "bytes" and dtype not in EXTENDED and not dtype.startswith("complex")


def _common(one: str, other: str) -> str | None:
    """Return the type that holds numbers of two types; integers among floats stay what they are, or are refused."""
    kinds = {name[0] for name in (one, other)}
    if one == other or not kinds <= set("iufc") or not {one, other} <= ITEM_BYTES.keys() - EXTENDED.keys():
        return one if one == other else None
    import numpy as np  # start-up time: records without arrays do without

    found = np.promote_types(one, other)
    return None if found.kind == "f" and "f" not in kinds else str(found.name)


def _shown(what: Any) -> str:
    return f"arrays of {what[0]}" if isinstance(what, tuple) else str(what)
