"""Why records cannot be measured, as messages say it: what they have instead, and what to do."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from .. import _native
from ..errors import ColumnError, DecodeError, Error, either, nearest, option, shortened
from ..storage.numbers import APART, EXACT
from .measuring import ROUNDED, Expression, UnmeasuredError

_EXPECTED = {
    _native.MEASURE_NUMBER: "a number",
    _native.MEASURE_BYTES: "a string",
    _native.MEASURE_CHARS: "a string",
    _native.MEASURE_ITEMS: "an array",
}
_FOUND = {b'"': "a string", b"[": "an array", b"{": "an object", b"t": "true", b"f": "false", b"n": "null"}
_FITTING = {str: ("chars({})", "bytes({})"), list: ("items({})",), int: ("{}",), float: ("{}",)}
"""Expressions that measure a value."""
_SHOWN = 8  # fields that a message names
_LONGEST_KEY = 80  # characters of a key that is worth a remark


def error_of(found: UnmeasuredError, place: str, number: int, columns: Mapping[str, Expression]) -> Error:
    """Return the error for a record that cannot be measured.

    Args:
      found: what is wrong, and in which source.
      place: where the record lies, as messages say it.
      number: its number among the records that are kept.
    """
    remark = f"record {number} of the index"
    if found.status == _native.JSON_INVALID:
        ways = f"leave such lines out with {option('bad', 'skip')}, or write the line again ({remark})"
        return DecodeError(f"{place}: {not_json(found.record)}; {ways}")
    expression = list(columns.values())[found.column]
    value, above, shown = parsed(found.record), len(expression.path) > 1, written(expression.path)
    if found.status == _native.JSON_MISSING:
        return ColumnError(
            f"{place}: expected {_EXPECTED[expression.measure]} at `{shown}`, found {instead(value, expression.path)}"
            f"{_did_you_mean(value, expression.path)}; leave such records out with {option('missing', 'skip')}, or "
            f"give them a value with {either('--missing N', 'missing=N')} ({remark})"
        )
    if found.status == ROUNDED:
        number = value_at(value, expression.path)
        read = "the number for missing ones" if number is None else number
        return ColumnError(f"{place}: expected {EXACT} found {read} at `{shown}`; {APART} ({remark})")
    kind = kind_of(found.record, found.at)
    if not isinstance(value, dict) and kind != "an object":
        return ColumnError(f"{place}: expected an object with `{shown}`, found {kind} ({remark})")
    expected = f"{_EXPECTED[expression.measure]}{' inside objects' if above else ''} at `{shown}`"
    fitting = [each for each in _fitting(value_at(value, expression.path), expression.path) if each != expression.text]
    remedy = f"; give {' or '.join(fitting)}" if fitting else ""
    if kind in ("true", "false"):
        remedy = "; add the column with mmapds.add_column, whose function may return bools, for 1 and 0"
    return ColumnError(f"{place}: expected {expected}, found {kind}{remedy} ({remark})")


def error_of_all(path: str, first: bytes, found: str, expression: Expression) -> ColumnError:
    """Return the error for a column that no record has.

    Args:
      first: one of the records.
      found: how many there are.
    """
    value = parsed(first)
    return ColumnError(
        f"{path}: expected {_EXPECTED[expression.measure]} at `{written(expression.path)}` in one record or more, "
        f"found {found}; give a field that they have: the first record has {instead(value, expression.path)}"
        f"{_did_you_mean(value, expression.path)}"
    )


def lacks(record: bytes, expression: Expression) -> bool:
    """Whether a record has no value where an expression looks for one."""
    return expression.measure != _native.MEASURE_RECORD and value_at(parsed(record), expression.path) is None


def not_json(record: bytes) -> str:
    """Return what is wrong with a record that is not JSON."""
    try:
        orjson.loads(record)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {not_utf_8(record) or error}"
    return f"not JSON: unexpected byte: char {_native.json_error(None, record)}"


def not_utf_8(record: bytes) -> str:
    """Return which byte of a record is not UTF-8; "" if all are."""
    try:
        record.decode()
    except UnicodeDecodeError as error:
        return f"expected text in UTF-8, found byte 0x{record[error.start]:02x} at char {error.start} of the line"
    return ""


def nearest_path(record: Any, path: Sequence[bytes]) -> list[bytes]:
    """Return the path of a record whose keys are the most like those of another one; that one if none are."""
    found, value = [], record
    for key in path:
        near = nearest(key.decode(), value if isinstance(value, dict) else ())
        if near is None:
            return list(path)
        found.append(near.encode())
        value = value[near]
    return found


def _did_you_mean(record: Any, path: Sequence[bytes]) -> str:
    near = nearest_path(record, path)
    fitting = [*_fitting(value_at(record, near), near), written(near)]
    return f" (did you mean {fitting[0]})" if near != list(path) else ""


def kind_of(record: bytes, at: int) -> str:
    """Return what kind of value begins at a byte of a record, as messages say it."""
    return _FOUND.get(record[at : at + 1], "a number")


def instead(value: Any, path: Sequence[bytes]) -> str:
    """Return what a record has where a field is expected at a path."""
    for depth, key in enumerate(path):
        if not isinstance(value, dict):
            return "null" if value is None else "nothing"
        if key.decode() not in value:
            shown = [f"`{shortened(name)[1:-1]}`" for name in islice(value, _SHOWN)]
            more = f" and {len(value) - _SHOWN:,} more" if len(value) > _SHOWN else ""
            where = f" in `{written(path[:depth])}`" if depth else ""
            return ", ".join(shown) + more + where if shown else f"nothing{where}"
        value = value[key.decode()]
    return "null" if value is None else "nothing"


def _fitting(value: Any, path: Sequence[bytes]) -> list[str]:
    """Return expressions that measure a value at a path."""
    if isinstance(value, dict):
        first = next(iter(value), None)
        return [f"{written(path)}.{first}"] if first is not None and len(first) <= _LONGEST_KEY else []
    return [each.format(written(path)) for each in _FITTING.get(type(value), ())]


def value_at(value: Any, path: Sequence[bytes]) -> Any:
    """Return the value at a path; None if there is none."""
    for key in path:
        value = value.get(key.decode()) if isinstance(value, dict) else None
    return value


def parsed(record: bytes) -> Any:
    """Return the value of a record; None if it is not JSON."""
    try:
        return orjson.loads(record)
    except orjson.JSONDecodeError:
        return None


def written(path: Sequence[bytes]) -> str:
    """Return a path as users write it: keys with dots between them."""
    return ".".join(key.decode().replace(".", r"\.") for key in path)
