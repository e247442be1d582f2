"""What is not JSON Lines: refused, by its first bytes; text, with the command that makes JSON Lines of it."""

import json
import os
import re
from contextlib import suppress
from itertools import pairwise

from .. import _native
from ..compression.plain import codec_at, opened
from ..errors import FormatError, SourceError, another_name, either, option, quoted
from ..storage.sources import named, without_codec

_SUFFIXES = (".jsonl", ".ndjson", ".json")
"""Names of files that should hold JSON."""
_HEAD = 4096  # bytes that are looked at
_PART = 1 << 20  # bytes that are read at a time, to see whether a file has one line
_BOM = b"\xef\xbb\xbf"
_MARKS = {
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_UNMARKED = {b"{\0": "UTF-16LE", b"[\0": "UTF-16LE", b"\0{": "UTF-16BE", b"\0[": "UTF-16BE"}
_BINARY = {
    b"\x89PNG\r\n\x1a\n": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF87a": "a GIF image",
    b"GIF89a": "a GIF image",
    b"%PDF-": "a PDF document",
    b"\x7fELF": "an ELF executable",
    b"SQLite format 3\0": "an SQLite database",
    **{bytes([0x80, version]): f"a pickle of protocol {version}" for version in range(2, 6)},
}
"""Files of other kinds, by their first bytes, with which no JSON begins."""
_PREFIX = 1024  # bytes in which other files than text have a NUL
_NAME = re.compile(r"[^\W\d][^][{}]*")
"""The name of a column: it begins with a letter."""
_TABLES = {".csv": ",", ".tsv": "\t"}
_OPENERS = (b"{", b"[", b'"')
"""What JSON begins with, other than numbers and words."""
_PYTHON = "python -c 'import {}; [print(json.dumps(row)) for row in {}]'"


def check_lines(path: str, head: bytes) -> None:
    """Raise FormatError for a file that is a JSON array of objects, JSON over several lines, a table, UTF-16, lines
    that end in '\\r' alone, or not text though its name says JSON.

    Other text is let through, as its lines can be records, too; so are lines of damaged JSON.

    Args:
      head: the first 4,096 bytes.
    """
    if encoding := _encoding(path, head):
        what = f"not UTF-8: expected text in UTF-8, found {encoding[:6]}"
        raise _refused(path, what, f"iconv -f {encoding} -t UTF-8 {{}}", ".utf8")
    if named(path, _SUFFIXES) and (kind := _binary(head)):
        raise _not_text(path, kind)
    text = head.removeprefix(_BOM).lstrip(b" \t\r\n")
    first, _, rest = text.partition(b"\n")
    second, is_json = rest.lstrip().partition(b"\n")[0], _is_json(first)
    suffix = os.path.splitext(without_codec(path))[1].lower()
    if suffix in _TABLES and not is_json and not _looks_like_json(text):
        raise _table(path, _delimiter(first, _TABLES[suffix]))
    if text.startswith(_OPENERS) and b"\n" not in head and _has_old_ends(path):
        raise _old_ends(path)
    may_be_one_line = text.startswith(b"[") and not rest.strip() and (is_json or len(head) >= _HEAD)
    if may_be_one_line and (suffix == ".json" or _holds_objects(first, is_json)) and _has_one_line(path):
        raise _array(path)
    if is_json or not second:
        return
    if _begins_over_lines(text) and not (text.startswith(b"{") and _is_json(second)):  # else a line that was cut off
        raise _array(path) if text.startswith(b"[") else _over_lines(path)
    if named(path, _SUFFIXES) and not _is_json(second):
        for delimiter in "\t,;|":
            if _is_table(text, delimiter, is_whole=len(head) < _HEAD):
                raise _table(path, delimiter)


def _encoding(path: str, head: bytes) -> str | None:
    """Return what iconv calls the encoding of text that is not UTF-8; None for others."""
    marked = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if named(path, _SUFFIXES):
        return marked or next((name for begin, name in _UNMARKED.items() if head.startswith(begin)), None)
    return marked if b"\n" in head and b"\0" in head else None


def _binary(head: bytes) -> str | None:
    """Return what a file is that is not text; None for others.

    JSON of which something is damaged may have NUL bytes too: it begins as JSON does, or has a line that is JSON
    and no number: a digit between two line ends is no rare thing in compressed bytes.
    """
    if known := next((name for mark, name in _BINARY.items() if head.startswith(mark)), None):
        return known
    at = head.find(b"\0", 0, _PREFIX)
    begins_so = head.removeprefix(_BOM).lstrip(b" \t\r\n").startswith(_OPENERS)
    if at < 0 or begins_so or any(line.lstrip().startswith(_OPENERS) and _is_json(line) for line in head.splitlines()):
        return None
    return f"a NUL byte at byte {at}"


def _is_json(line: bytes) -> bool:
    return _native.json_error(None, line) is None


def _holds_objects(line: bytes, is_whole: bool) -> bool:
    """Whether a line is an array of objects, as `json.dump` writes rows; where it was cut off, whether it begins so."""
    if not is_whole:
        return line[1:].lstrip().startswith(b"{")
    try:
        held = json.loads(line)
    except RecursionError:  # it is nested deeper than Python reads: no rows
        return False
    return bool(held) and all(isinstance(each, dict) for each in held)


def _has_one_line(path: str) -> bool:
    """Whether only blank lines come before and after the one that is not blank, as far as it can be decoded."""
    lines, is_inside, codec = 0, False, codec_at(path)
    with suppress(SourceError), opened(path, codec) as file:
        while lines < 2 and (part := file.readline(_PART)):
            if not is_inside and part.removeprefix(_BOM).strip():
                is_inside, lines = True, lines + 1
            is_inside &= not part.endswith(b"\n")
    return lines == 1


def _has_old_ends(path: str) -> bool:
    """Whether '\\r' alone ends lines of JSON, as on old Macs; between tokens of a record it is a space.

    One of the first two lines is whole JSON, and another one follows it.
    """
    codec = codec_at(path)
    with suppress(SourceError), opened(path, codec) as file:
        text = file.readline(_PART)
        lines = [] if b"\n" in text else text.removeprefix(_BOM).strip().split(b"\r", 3)
        return any(
            _is_json(line) and following.lstrip().startswith(_OPENERS)
            for line, following in pairwise(each for each in lines if each.strip())
        )
    return False


def _delimiter(line: bytes, usual: str) -> str:
    """Return what cuts the first line of a table into most cells: the usual delimiter, unless another one does better.

    Args:
      line: up to a '\\n'; its own line ends may be '\\r' alone.
      usual: what the suffix of the file says.
    """
    import csv  # start-up time: as below

    first = line.decode("utf-8", "replace").splitlines()[:1]

    def cells(delimiter: str) -> int:
        return max(map(len, csv.reader(first, delimiter=delimiter)), default=0)

    return max([usual, ";", "|", "\t", ","], key=cells)


def _is_table(text: bytes, delimiter: str, *, is_whole: bool) -> bool:
    """Whether rows have as many cells as the first one, which has names: those of two columns or more.

    A line of damaged JSON has delimiters too, and so has a Python dict.
    """
    import csv  # start-up time: most files are JSON Lines

    if _looks_like_json(text):
        return False
    found = [row for row in csv.reader(text.decode("utf-8", "replace").splitlines(), delimiter=delimiter) if row]
    rows = found[1:] if is_whole else found[1:-1]
    if not rows:  # as where a quote that is not closed makes one row of all lines
        return False
    names = found[0]
    are_names = len(set(names)) == len(names) > 1 and all(_NAME.fullmatch(name.strip()) for name in names)
    return are_names and all(len(row) == len(names) for row in rows)


def _looks_like_json(lines: bytes) -> bool:
    """Whether a line begins as an object or an array does."""
    return any(line.lstrip()[:1] in (b"{", b"[") for line in lines.splitlines())


def _begins_over_lines(text: bytes) -> bool:
    """Whether a text begins with one JSON value over several lines, as far as it goes in whole lines."""
    lines = text[: text.rfind(b"\n") + 1]
    at = _native.json_error(None, lines)
    return at is None or at == len(lines) or (_is_json(lines[:at]) and b"\n" in lines[:at].strip())


def _not_text(path: str, kind: str) -> FormatError:
    other = either("--format F", "format=...")
    remedy = f"give the file that you mean, its format with {other}, or {option('format', 'jsonl')} to take its lines"
    return FormatError(f"{path}: not JSON Lines: expected text, found {kind}; {remedy} as they are")


def _array(path: str) -> FormatError:
    python = _PYTHON.format("json", 'json.load(open(0, encoding="utf-8-sig"))')
    what = "not JSON Lines: expected a record a line, found one JSON array"
    return _refused(path, what, f"{python} < {{}}", also="jq -c '.[]' {}", when="or with ")


def _old_ends(path: str) -> FormatError:
    what = r"not JSON Lines: expected lines that end in '\n', found '\r' alone"
    return _refused(path, what, r"tr '\r' '\n' < {}", ".lf")


def _over_lines(path: str) -> FormatError:
    what = "not JSON Lines: expected a record a line, found JSON over several lines"
    compact = "python -m json.tool --compact {}"
    return _refused(path, what, "jq -c . {}", also=compact, when="one value alone with ")


def _table(path: str, delimiter: str) -> FormatError:
    shown = "tabs" if delimiter == "\t" else f"{delimiter!r}"
    given = f', delimiter="{delimiter!r}"'.replace("'", "") if delimiter != "," else ""
    rows = f'csv.DictReader(open(0, encoding="utf-8-sig", newline=""){given})'
    what = f"not JSON Lines: expected JSON, found a table with {shown} between cells"
    return _refused(path, what, f"{_PYTHON.format('csv, json', rows)} < {{}}", when="cells become strings")


def _refused(path: str, what: str, command: str, infix: str = "", *, also: str = "", when: str = "") -> FormatError:
    """Return the error for a file.

    Args:
      command: writes what the file should be to its output; `{}` is for the name of the file.
      infix: of the name of the file to write.
      also: another such command.
      when: what to know of that, or of the first.
    """
    remark = f" ({when}{_command(path, also, infix) if also else ''})" if when or also else ""
    given = option("format", "jsonl")
    return FormatError(
        f"{path}: {what}; give {given} to take its lines as they are, or convert it{remark}; run: "
        f"{_command(path, command, infix)}"
    )


def _command(path: str, command: str, infix: str) -> str:
    """Return a command of `_refused`, with names of files; one that is compressed is decoded for it."""
    out = quoted(another_name(without_codec(path), ".jsonl", infix))
    if not (codec := codec_at(path)):
        return f"{command.format(quoted(path))} > {out}"
    reader = command.replace(" < {}", "").replace(" {}", "")
    return f"{codec} -dc < {quoted(path)} | {reader} > {out}"
