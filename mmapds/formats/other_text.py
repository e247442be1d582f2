"""What is not JSON Lines: refused, by its first bytes; text, with the command that makes JSON Lines of it."""

import os
from contextlib import suppress

from .. import _native
from ..compression.content import codec_at, opened
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
_TABLES = {".csv": ",", ".tsv": "\t"}
_OPENERS = (b"{", b"[", b'"')
"""What JSON begins with, other than numbers and words."""
_PYTHON = "python -c 'import {}; [print(json.dumps(row)) for row in {}]'"


def check_lines(path: str, head: bytes) -> None:
    """Raise FormatError for what the first bytes show: an array of objects, JSON over several lines, lines that end in
    '\\r' alone, UTF-16, a table by its name, or what is not text though its name says JSON.

    Other text is let through, as its lines can be records, too; so are lines of damaged JSON.

    Args:
      head: the first 4,096 bytes.
    """
    is_named = named(path, _SUFFIXES)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
    if encoding and (is_named or (b"\n" in head and b"\0" in head)):
        what = f"not UTF-8: expected text in UTF-8, found {encoding}"
        raise _refused(path, what, f"iconv -f {encoding} -t UTF-8 {{}}", ".utf8")
    if is_named and (kind := _binary(head)):
        raise _not_text(path, kind)
    text = head.removeprefix(_BOM).lstrip(b" \t\r\n")
    first, _, rest = text.partition(b"\n")
    second, is_json = rest.lstrip().partition(b"\n")[0], _is_json(first)
    suffix = os.path.splitext(without_codec(path))[1].lower()
    lines = text.splitlines()
    if suffix in _TABLES and not is_json and not any(line.lstrip()[:1] in (b"{", b"[") for line in lines):
        names = b"".join(lines[:1]).decode("latin-1")
        raise _table(path, max([_TABLES[suffix], *";|\t,"], key=names.count))
    ends = text.split(b"\r", 2)
    if not rest and ends[1:] and _is_json(ends[0]) and b"".join(ends[1:]).lstrip().startswith(_OPENERS):
        raise _old_ends(path)
    may_be_one_line = text.startswith(b"[") and not rest.strip() and (is_json or len(head) >= _HEAD)
    holds_objects = suffix == ".json" or first[1:].lstrip().startswith(b"{")
    if may_be_one_line and holds_objects and _has_one_line(path):
        raise _array(path)
    if second and not is_json and _begins_over_lines(text):
        if text.startswith(b"["):
            raise _array(path)
        if not _is_json(second):  # else the first line was cut off
            raise _over_lines(path)


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


def _has_one_line(path: str) -> bool:
    """Whether only blank lines come before and after the one that is not blank, as far as it can be decoded."""
    lines, is_inside = 0, False
    with suppress(SourceError, FormatError), opened(path) as file:
        while lines < 2 and (part := file.readline(_PART)):
            if not is_inside and part.removeprefix(_BOM).strip():
                is_inside, lines = True, lines + 1
            is_inside &= not part.endswith(b"\n")
    return lines == 1


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
