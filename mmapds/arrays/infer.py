"""The schema that records have, inferred from some of them."""

from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import FormatError
from .schema import EXTENDED, ITEM_BYTES, MAX_DIMS, Schema, dtype_name
from .values import list_as_array, shown

_PYTHON = {bool: "bool", int: "int64", float: "float64", bytes: "bytes", str: "str", dict: "json"}
_NULL, _EMPTY = "null", ("null", (None,))  # of values that do not tell their type
_IN_JSON = {_NULL, "bool", "int64", "uint64", "float64", "str", "json"}


def infer_schema(records: Iterable[Mapping[str, Any]], *, nulls: bool = True) -> Schema:
    """Infer a schema that records fit: the first axis of their arrays is ragged, and every other that differs.

    What differs in more than that is "json", if JSON can hold it; with `nulls`, so is what some have null or lack.

    Raises:
      FormatError: a field has a value that does not tell, or values that no type holds.
    """
    found: dict[str, Any] = {}
    only_null: dict[str, Any] = {}
    for number, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise FormatError(f"found {shown(record)}, expected a dict of fields")
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
    return Schema({name: "json" if _is_untold(what) else what for name, what in described.items()})


def _is_untold(what: Any) -> bool:
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
    raise FormatError(f"field {name!r}: found {shown(value)}, whose type does not tell how to store it; give a schema")


def _joined(name: Any, one: Any, other: Any) -> Any:
    """The type of what has values of two types.

    Raises:
      FormatError: there is none.
    """
    if one == other or (other == _NULL and one not in _IN_JSON):
        return one  # and a record without it is told when it comes
    if one == _NULL and other not in _IN_JSON:
        return other
    if {one, other} == {"int64", "float64"}:
        return "float64"
    arrays = [what for what in (one, other) if isinstance(what, tuple)]
    if _EMPTY in arrays and len(arrays) == 2:
        return one if other == _EMPTY else other
    if len(arrays) == 2:
        told = [what[0] for what in arrays if what[0] != _NULL] or [_NULL]
        dtype = _joined(name, told[0], told[-1])
        if (dtype in ITEM_BYTES or dtype == _NULL) and len(one[1]) == len(other[1]):
            return dtype, tuple(a if a == b else None for a, b in zip(one[1], other[1], strict=True))
    if "bytes" in (one, other):
        raise FormatError(
            f"field {name!r}: found bytes in some records and {one if other == 'bytes' else other} in others"
        )
    return "json"
