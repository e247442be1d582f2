"""The schema that records have, inferred from some of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FormatError
from .schema import EXTENDED, ITEM_BYTES, MAX_DIMS, Schema, dtype_name
from .values import list_as_array, shown

_PYTHON = {bool: "bool", int: "int64", float: "float64", bytes: "bytes", str: "str", dict: "json"}
_NULL, _EMPTY = "null", ("null", (None,))  # the types of null and of an empty list, which fit several others
_IN_JSON = {_NULL, "bool", "int64", "uint64", "float64", "str", "json"}


def infer_schema(records: Iterable[Mapping[str, Any]], *, nulls: bool = True) -> Schema:
    """Infer a schema that all of some records fit.

    The first axis of an array is ragged, and so is every other axis whose length differs between records. A field
    whose values have several types becomes "json", if JSON can hold them. With `nulls`, so does a field that some
    records lack or have as null; without, these records do not count.

    Raises:
      FormatError: no type can hold a value, or no one type the values of a field.
    """
    found: dict[str, Any] = {}
    only_null: dict[str, Any] = {}
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise FormatError(f"expected a dict of fields, found {shown(record)}")
        if nulls:
            for name in found.keys() - record.keys():
                found[name] = _joined(name, found[name], _NULL)
        for name, value in record.items():
            if value is not None or nulls:
                inferred = _inferred(name, value)
                before = found.get(name, _NULL if number and nulls else inferred)
                found[name] = _joined(name, before, inferred)
            else:
                only_null[name] = _NULL
    described = found | {name: what for name, what in only_null.items() if name not in found}
    return Schema({name: "json" if _is_undecided(what) else what for name, what in described.items()})


def _is_undecided(what: Any) -> bool:
    """Whether all values of a field were null, or empty lists."""
    return bool(what == _NULL or what[0] == _NULL)


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
    raise FormatError(
        f"field {name!r}: expected a number, text, bytes, a list, a dict or an array, found {shown(value)}; "
        "give a schema"
    )


def _joined(name: Any, one: Any, other: Any) -> Any:
    """Return the type that holds values of two types.

    Raises:
      FormatError: no type holds both.
    """
    if one == other or (other == _NULL and one not in _IN_JSON):
        return one  # writing refuses the record that lacks it
    if one == _NULL and other not in _IN_JSON:
        return other
    if {one, other} == {"int64", "float64"}:
        return "float64"
    arrays = [what for what in (one, other) if isinstance(what, tuple)]
    if _EMPTY in arrays and len(arrays) == 2:
        return one if other == _EMPTY else other
    if len(arrays) == 2:
        known = [what[0] for what in arrays if what[0] != _NULL] or [_NULL]
        dtype = _joined(name, known[0], known[-1])
        if (dtype in ITEM_BYTES or dtype == _NULL) and len(one[1]) == len(other[1]):
            return dtype, tuple(a if a == b else None for a, b in zip(one[1], other[1], strict=True))
    if "bytes" in (one, other):
        second = one if other == "bytes" else other
        raise FormatError(f"field {name!r}: expected one type in all records, found bytes and {second}; give a schema")
    return "json"
