"""How a sample looks: its fields in lines, long values cut with their size, and nothing that steers a terminal."""

import codecs
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import counted, printable
from .screen import Screen, columns_of

_STRING, _KEY, _TEXT = 240, 60, 2_000  # characters that are shown of a string, of a name, of a record of text
_NUMBERS, _ITEMS, _FIELDS = 40, 8, 100  # items that are shown of a list of plain values, of others, and of an object
_ARRAY, _BYTES, _DUMPED = 6, 16, 256  # numbers of an array, bytes of a value, bytes of a record
_DEPTH, _DEEPEST = 6, 100  # levels that are shown; that are put on lines of their own with --full
_LINE = 200  # columns of the widest list or object on one line
_INDENT = 2


class _Text(NamedTuple):
    """Text to print, and how many columns it takes, which its colours do not."""

    painted: str
    columns: int

    def __add__(self, other: "_Text") -> "_Text":  # type: ignore[override]
        return _Text(self.painted + other.painted, self.columns + other.columns)


class Renderer:
    """Makes lines of samples.

    Args:
      screen: where they are printed.
      full: cut nothing.
    """

    def __init__(self, screen: Screen, *, full: bool) -> None:
        self._screen = screen
        self._full = full

    def lines(self, sample: Any) -> Iterator[str]:
        """Yield the lines of a sample: an object as JSON is indented, text as it is, bytes as text or a hex dump."""
        if isinstance(sample, bytes | memoryview):
            yield from self.raw(sample)
        elif isinstance(sample, str):
            yield from self._text(sample, len(sample), "characters")
        elif self._full and _is_array(sample):
            yield from self._whole_array(sample)
        else:
            yield from self._block(_Text("", 0), sample, 0, "")

    def raw(self, record: bytes | memoryview) -> Iterator[str]:
        """Yield the bytes of a record: as text where they are, else as a hex dump. What is cut is not read."""
        shown = len(record) if self._full else _TEXT
        text = _as_text(record, shown)
        if text is not None:
            yield from self._text(text, len(record), "bytes")
            return
        shown = len(record) if self._full else min(_DUMPED, len(record))
        step = 16 if self._screen.width >= 78 else 8
        for begin in range(0, shown, step):
            row = bytes(record[begin : min(begin + step, shown)])
            cells = "  ".join(row[at : at + 8].hex(" ") for at in range(0, step, 8))
            text = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
            yield f"{self._note(f'{begin:08x}')}  {cells:<{step * 3 + step // 8 - 2}}  {text}"
        if shown < len(record):
            yield self._cut(len(record), "bytes")

    def members(self, key: str, members: Sequence[tuple[str, memoryview]]) -> Iterator[str]:
        """Yield the key and the members of a sample of a tar: of each its name, its size, and how it begins."""
        yield f"{self._note('key')} {printable(key)}"
        names = [self._short(name) for name, _ in members]
        sizes = [counted(len(data), "byte") for _, data in members]
        widest, longest = (max((columns_of(each) for each in column), default=0) for column in (names, sizes))
        for name, size, (_, data) in zip(names, sizes, members, strict=True):
            padding = " " * (widest - columns_of(name))
            room = max(self._screen.width - widest - longest - 6, _BYTES)
            yield f"  {self._paint(name, 'key')}{padding}  {size:>{longest}}  {self._beginning(data, room)}".rstrip()

    def _text(self, text: str, size: int, unit: str) -> Iterator[str]:
        shown = text if self._full else text[:_TEXT]
        yield from (printable(line) for line in shown.split("\n"))
        if len(shown.encode(errors="surrogatepass")) < size if unit == "bytes" else len(shown) < size:
            yield self._cut(size, unit)

    def _cut(self, size: int, unit: str) -> str:
        return self._note(f"{self._screen.ellipsis} {size:,} {unit} in all; --full prints them")

    def _block(self, name: _Text, value: Any, depth: int, comma: str) -> Iterator[str]:
        """Yield the lines of a value behind its name: one if it fits there."""
        margin = " " * (_INDENT * depth)
        room = self._screen.width - len(margin) - name.columns - len(comma)
        is_object, is_list = isinstance(value, Mapping), isinstance(value, list | tuple)
        is_deep = depth >= (_DEEPEST if self._full else _DEPTH)
        if not (is_object or is_list) or not value:
            yield f"{margin}{name.painted}{self._scalar(value, room).painted}{comma}"
        elif is_deep:
            yield f"{margin}{name.painted}{self._closed(value).painted}{comma}"
        elif (depth or is_list) and (flat := self._flat(value, min(room, _LINE))):
            yield f"{margin}{name.painted}{flat.painted}{comma}"
        else:
            yield f"{margin}{name.painted}{'{' if is_object else '['}"
            yield from self._fields(value, depth + 1) if is_object else self._items(value, depth + 1)
            yield f"{margin}{'}' if is_object else ']'}{comma}"

    def _fields(self, fields: Mapping[Any, Any], depth: int) -> Iterator[str]:
        shown = len(fields) if self._full else min(len(fields), _FIELDS)
        for number, (name, value) in enumerate(islice(fields.items(), shown)):
            yield from self._block(self._name(name), value, depth, "," * (number < len(fields) - 1))
        if shown < len(fields):
            yield " " * (_INDENT * depth) + self._note(f"{self._screen.ellipsis} {len(fields):,} fields in all")

    def _items(self, items: Sequence[Any], depth: int) -> Iterator[str]:
        is_plain = all(value is None or isinstance(value, int | float) for value in items)
        shown = len(items) if self._full else min(len(items), _NUMBERS if is_plain else _ITEMS)
        margin = " " * (_INDENT * depth)
        if is_plain:
            texts = [self._scalar(value, 0) for value in items[:shown]]
            yield from (margin + line for line in self._filled(texts, self._screen.width - len(margin), len(items)))
        else:
            for number, value in enumerate(items[:shown]):
                yield from self._block(_Text("", 0), value, depth, "," * (number < len(items) - 1))
        if shown < len(items):
            yield margin + self._note(f"{self._screen.ellipsis} {len(items):,} items in all")

    def _filled(self, texts: Sequence[_Text], room: int, items: int) -> Iterator[str]:
        """Yield values in lines that are as full as can be."""
        line, used = "", 0
        for number, text in enumerate(texts):
            comma = "," * (number < items - 1)
            if used and used + 1 + text.columns + len(comma) > room:
                yield line
                line, used = "", 0
            line += " " * bool(used) + text.painted + comma
            used += bool(used) + text.columns + len(comma)
        yield line

    def _flat(self, value: Any, room: int) -> _Text | None:
        """Return a value on one line; None if it takes more columns than there are."""
        is_object = isinstance(value, Mapping)
        if not is_object and not isinstance(value, list | tuple):
            text = self._scalar(value, room)
            return text if text.columns <= room else None
        if 2 + 2 * len(value) > room:
            return None
        found = _Text("{" if is_object else "[", 1)
        pairs: Iterable[Any] = value.items() if is_object else ((None, item) for item in value)
        for number, (name, item) in enumerate(pairs):
            if number:
                found += _Text(", ", 2)
            if is_object:
                found += self._name(name)
            part = self._flat(item, room - found.columns - 1)
            if part is None:
                return None
            found += part
        return found + _Text("}" if is_object else "]", 1)

    def _closed(self, value: Any) -> _Text:
        """Return what stands for a value that lies too deep: its kind and size, or with --full its JSON on one line."""
        if self._full:
            try:
                return _plain(printable(json.dumps(value, ensure_ascii=not self._screen.is_unicode, default=repr)))
            except RecursionError:
                pass
        is_object = isinstance(value, Mapping)
        ends, unit = ("{}", "field") if is_object else ("[]", "item")
        note = f"{len(value):,} {unit}{'s' * (len(value) != 1)}"
        text = f"{ends[0]}{self._screen.ellipsis}{ends[1]} {note}"
        return _Text(self._note(text), len(text))

    def _name(self, name: Any) -> _Text:
        text = self._quoted(str(name), _KEY) + self._screen.ellipsis * (not self._full and len(str(name)) > _KEY)
        return _Text(self._paint(text, "key") + ": ", columns_of(text) + 2)

    def _quoted(self, text: str, limit: int) -> str:
        shown = text if self._full else text[:limit]
        return printable(json.dumps(shown, ensure_ascii=not self._screen.is_unicode))

    def _scalar(self, value: Any, room: int) -> _Text:
        """Return a value that is not a list or an object with something in it."""
        if value is None or isinstance(value, bool | np.bool_):
            return self._painted("null" if value is None else "true" if value else "false", "word")
        if isinstance(value, str):
            text = self._painted(self._quoted(value, _STRING), "string")
            return text if self._full or len(value) <= _STRING else text + self._size(len(value), "characters")
        if isinstance(value, bytes | memoryview):
            return self._bytes(value, room)
        if _is_array(value):
            return self._array(value)
        if isinstance(value, int | float | np.generic):
            return self._painted(_number(value), "number")
        if isinstance(value, Mapping | list | tuple):
            return _plain("{}" if isinstance(value, Mapping) else "[]")
        return _plain(printable(_described(value))[:_STRING])

    def _short(self, name: str) -> str:
        """Return a name, cut with an ellipsis if it is long."""
        shown = printable(name)
        return shown if len(shown) <= _KEY else f"{shown[:_KEY]}{self._screen.ellipsis}"

    def _size(self, size: int, unit: str) -> _Text:
        text = f"{self._screen.ellipsis} {size:,} {unit}"
        return _Text(" " + self._note(text), len(text) + 1)

    def _bytes(self, value: bytes | memoryview, room: int) -> _Text:
        """Return how many bytes there are, and how they begin."""
        size = counted(len(value), "byte")
        return _Text(self._note(size), len(size)) + _plain(f" {self._beginning(value, room - len(size) - 1)}".rstrip())

    def _beginning(self, value: bytes | memoryview, room: int) -> str:
        """Return how bytes begin, as text or in hex, in some columns or the few that are shown in any case."""
        room = max(room, 3 * _BYTES)
        text = _as_text(value, room)
        if text is None:
            shown = bytes(value[:_BYTES]).hex(" ")
            return shown + self._note(f" {self._screen.ellipsis}" * (len(value) > _BYTES))
        line = printable(text.replace("\n", "\\n").replace("\t", "\\t"))
        if len(text.encode()) == len(value) and columns_of(line) <= room:
            return line
        while columns_of(line) > room - 2:
            line = line[: room - 2 - columns_of(line)]
        return line + self._note(f" {self._screen.ellipsis}")

    def _array(self, array: Any) -> _Text:
        kind = f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
        shown = ", ".join(_number(each) for each in _first(array, _ARRAY))
        more = f", {self._screen.ellipsis}" if math.prod(array.shape) > _ARRAY else ""
        return _Text(self._note(kind), len(kind)) + _plain(f" [{shown}{more}]" if array.shape else f" {shown}")

    def _whole_array(self, array: Any) -> Iterator[str]:
        yield self._note(f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}")
        numbers = np.asarray(array.float() if "bfloat" in str(array.dtype) and hasattr(array, "float") else array)
        text = np.array2string(numbers, threshold=numbers.size + 1, max_line_width=max(self._screen.width, 20))
        yield from map(printable, text.split("\n"))

    def _painted(self, text: str, style: str) -> _Text:
        return _Text(self._paint(text, style), columns_of(text))

    def _paint(self, text: str, style: str) -> str:
        return self._screen.paint(text, style)

    def _note(self, text: str) -> str:
        return self._screen.paint(text, "note")


def _plain(text: str) -> _Text:
    return _Text(text, columns_of(text))


def _is_array(value: Any) -> bool:
    return all(hasattr(value, name) for name in ("dtype", "shape", "ndim", "__array__")) and not isinstance(
        value, np.generic
    )


def _first(array: Any, count: int) -> list[Any]:
    """Return the first numbers of an array or a tensor, and no copy of the others."""
    if isinstance(array, np.ndarray):
        return list(_with_text(array.flat[:count]))
    found: list[Any] = array.flatten()[:count].tolist()
    return found


def _with_text(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array; as bytes, if it has text beyond Unicode, of which NumPy makes strings that Python cannot use."""
    if array.dtype.kind != "U" or not array.dtype.itemsize:
        return array
    characters = array.astype(array.dtype.newbyteorder("=")).view(np.uint32)
    return array if (characters <= sys.maxunicode).all() else array.view(f"V{array.dtype.itemsize}")


def _number(value: Any) -> str:
    """Return a number as JSON writes it; fractions of arrays in six digits, as they have no more than their type."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.floating):
        return f"{float(value):.6g}"
    if isinstance(value, float):
        return json.dumps(value)
    return printable(str(value))


def _described(value: Any) -> str:
    """Return what an object is that is not data: an image by its type and size."""
    if all(hasattr(value, name) for name in ("size", "mode", "format")):
        return f"<{value.format or 'image'} {value.size[0]} x {value.size[1]}, {value.mode}>"
    return repr(value)


def _as_text(data: bytes | memoryview, limit: int) -> str | None:
    """Return how bytes begin, as text; None if they are not UTF-8, or have control characters as text does not."""
    head = bytes(data[:limit])
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, len(head) == len(data))
    except UnicodeDecodeError:
        return None
    return None if any((each < " " and each not in "\t\n\r") or each == "\x7f" for each in text) else text
