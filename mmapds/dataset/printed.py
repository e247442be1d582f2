"""How a sample looks: JSON with long values cut, text, or a hex dump, and nothing that steers a terminal."""

import codecs
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from ..errors import DecodeError, Error, FormatError, counted, printable
from .decode import takes_view
from .indexed import IndexedDataset, make_dataset

_LARGE = 1 << 24  # bytes of a record that is not decoded
_STRING, _TEXT = 240, 2_000  # characters that are shown of a string, and of a record of text
_NUMBERS, _ITEMS = 40, 8  # that are shown of lists of numbers, and of other lists
_ARRAY, _BYTES, _DUMPED = 6, 40, 256  # numbers of an array, bytes of a value, bytes of a record

_NOTE = "\ue000"  # begins what stands for a value and is not JSON: it is printed without quotes
_NOTES = re.compile(rf'"{_NOTE}(?:[^"\\]|\\.)*"')
_LISTS_OF_NUMBERS = re.compile(r'\[\n\s+([^][{}"]*?)\n\s*\]')  # only the layout has ends of lines


def undecoded(dataset: IndexedDataset) -> IndexedDataset:
    """Return the records of a dataset as they lie; of a large one in a file, only what is looked at is read."""
    return make_dataset(dataset._catalog, takes_view(lambda record: record), rows=dataset._rows)


def shown(dataset: IndexedDataset, position: int, record: Any, *, full: bool = False) -> tuple[str, Error | None]:
    """Return a sample as `printed`, and the error of its decoder, if that refuses the record.

    The record, which is that of `undecoded`, stands for a sample that cannot be printed, or is large.
    """
    sample, refused = record, None
    try:
        if full or dataset._gives_arrays or len(record) <= _LARGE:
            sample = dataset[position]
    except (DecodeError, FormatError) as error:
        refused = error
    try:
        return printed(sample, full=full), refused
    except Exception:  # of what JSON cannot say: text beyond Unicode, a number too long, lists nested too deep
        return printed(record, full=full), refused


def printed(sample: Any, *, full: bool = False) -> str:
    """Return a sample as text in lines: bytes as text where they are, else as a hex dump; all else as JSON.

    Long strings, lists and bytes are cut, and arrays are shown by their type, shape and first numbers.

    Args:
      full: cut nothing.
    Raises:
      Exception: JSON cannot say it: it has text beyond Unicode, or a number too long, or it is nested too deep.
    """
    size = len(sample) if isinstance(sample, str | bytes | memoryview) else 0
    shown, unit = size if full else _TEXT, "characters" if isinstance(sample, str) else "bytes"
    if isinstance(sample, str):
        text = sample[:shown]
    elif isinstance(sample, bytes | memoryview):
        found = _as_text(sample, shown)
        shown = shown if found is not None or full else _DUMPED
        text = _dump(bytes(sample[:shown])) if found is None else found
    else:
        text = json.dumps(_short(sample, full), indent=2, ensure_ascii=False)
        text = _NOTES.sub(lambda found: printable(json.loads(found[0])[1:]), text)
        text = _LISTS_OF_NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    rest = f"\n… {size:,} {unit} in all; --full prints them" if size > shown else ""
    return "\n".join(map(printable, text.split("\n"))) + rest


def _dump(data: bytes) -> str:
    lines = []
    for begin in range(0, len(data), 16):
        row = data[begin : begin + 16]
        letters = "".join(chr(each) if 0x20 <= each < 0x7F else "." for each in row)
        lines.append(f"{begin:08x}  {row[:8].hex(' '):<23}  {row[8:].hex(' '):<23}  {letters}")
    return "\n".join(lines)


def _short(value: Any, full: bool) -> Any:
    """Return what JSON can write for a value."""
    if isinstance(value, str):
        short = f"{json.dumps(value[:_STRING], ensure_ascii=False)}… {len(value):,} characters"
        return value if full or len(value) <= _STRING else _NOTE + short
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(name): _short(each, full) for name, each in value.items()}
    if isinstance(value, list | tuple):
        most = _NUMBERS if all(isinstance(each, int | float) for each in value) else _ITEMS
        shown = [_short(each, full) for each in (value if full else value[:most])]
        return shown + [f"{_NOTE}… {len(value):,} items in all"] * (len(value) > len(shown))
    if isinstance(value, bytes | memoryview):
        beginning = _as_text(value, len(value) if full else _BYTES)
        if beginning is None:
            beginning = bytes(value if full else value[: _BYTES // 2]).hex(" ")
        return f"{_NOTE}{counted(len(value), 'byte')} {beginning}".rstrip()
    if hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "reshape"):
        return _NOTE + _array(value, full)
    return _NOTE + repr(value)[:_STRING]


def _array(array: Any, full: bool) -> str:
    kind = f"{str(array.dtype).removeprefix('torch.')} {tuple(array.shape)}"
    if full:
        return f"{kind} {json.dumps(array.tolist(), default=str)}"
    first = array.reshape(-1)[:_ARRAY].tolist()
    shown = [f"{each:.6g}" if isinstance(each, float) else json.dumps(each, default=str) for each in first]
    more = ["…"] * (math.prod(array.shape) > _ARRAY)
    return f"{kind} [{', '.join(shown + more)}]" if array.shape else f"{kind} {shown[0]}"


def _as_text(data: bytes | memoryview, limit: int) -> str | None:
    """Return how bytes begin, as text; None if they are not text in UTF-8."""
    head = bytes(data[:limit])
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, len(head) == len(data))
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text
