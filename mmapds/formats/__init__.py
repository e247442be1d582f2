"""List the formats, and choose the format of a file.

To add a format, write one file with a subclass of `Format`, such as frames.py, and one line here.
"""

import os
from collections.abc import Collection, Mapping
from typing import Any

from .. import _native
from ..compression.content import head_of, opened
from ..errors import FormatError, either, option, quoted, tool
from ..storage.index_file import Index
from ..storage.sources import named, piped, without_codec
from .expressions import constant_in, encodings_of
from .fixed import Fixed, Npy
from .format import ArrayOf, EncodedOf, FieldsOf, Format, Option
from .frames import Prefixed, TFRecord
from .jsonl import JsonLines
from .mds import Mds
from .megatron import Datatrove, Megatron
from .mma import ArrayFiles
from .parquet import Parquet
from .tar import Tar

FORMATS: dict[str, Format] = {
    each.name: each
    for each in (
        JsonLines(),
        ArrayFiles(),
        Datatrove(),
        Fixed(),
        Mds(),
        Megatron(),
        Npy(),
        Parquet(),
        Prefixed(),
        Tar(),
        TFRecord(),
    )
}
"""Formats by their name in `--format` and in an index. If several fit a file, the first one wins."""

SUFFIXES: tuple[str, ...] = tuple(suffix for each in FORMATS.values() for suffix in each.suffixes)
"""Suffixes of codecs may follow: see `sources.CODECS`."""

OPTIONS: dict[str, Option] = {name: option for each in FORMATS.values() for name, option in each.options.items()}

CONVERTIBLE: dict[str, tuple[bytes | tuple[bytes, ...], tuple[str, ...]]] = {
    "parquet": ((b"PAR1", b"PARE"), (".parquet", ".pq")),
    "arrow": (b"ARROW1", (".arrow", ".arrows", ".feather", ".ipc")),
    "hdf5": (b"\x89HDF\r\n\x1a\n", (".h5", ".hdf5", ".hdf", ".he5")),
    "pt": ((), (".pt", ".pth")),
    "npz": ((), (".npz",)),
    "safetensors": ((), (".safetensors",)),
}
"""Files that must be converted: their first bytes, if these tell, and the suffixes of their names."""

_HEAD = 4096  # bytes by which a file is recognised
_PART = 1 << 20  # bytes read at a time, to see whether a file has only one line
_BLANK = b" \t\r\n\xef\xbb\xbf"  # blanks, and the bytes of a byte order mark


def by_name(name: str) -> Format:
    """Return the format of a name; raise FormatError if it is unknown."""
    if name not in FORMATS:
        raise FormatError(f"format = {name!r}, expected one of {', '.join(map(repr, sorted(FORMATS)))}")
    return FORMATS[name]


def of_index(index: Index) -> Format:
    """Return the format of an index; raise FormatError if this mmapds does not know it."""
    if index.format not in FORMATS:
        known = ", ".join(map(repr, sorted(FORMATS)))
        raise FormatError(
            f"{index.path}: VERSION: expected one of the formats {known}, found {index.format!r}; upgrade mmapds"
        )
    return FORMATS[index.format]


def readable_sources(index: Index, chosen: Format) -> list[str]:
    """Check that a scan may read all files that it needs; return the paths of the sources of an index."""
    paths = [index.readable_path(number) for number in range(len(index.sources))]
    for path in paths:
        check_beside(index, path, chosen)
    return paths


def check_beside(index: Index, path: str, chosen: Format | None = None) -> None:
    """Raise SourceError unless the roots allow the files beside a source that a scan of its format reads."""
    if chosen := chosen or FORMATS.get(index.format):
        for other in chosen.beside(path):
            index.check_reach(other)


def for_path(path: str) -> Format:
    """Return the format of a file, by its name or, failing that, its first bytes; JSON Lines if they are text."""
    if (known := convertible(path)) in FORMATS:
        return FORMATS[known]
    check_in_place(path)
    head = head_of(path, _HEAD)
    found = next((each for each in FORMATS.values() if named(path, each.suffixes)), None)
    found = found or next((each for each in FORMATS.values() if each.recognises(path, head)), None)
    if found is None and b"\0" in head:
        raise FormatError(
            f"{path}: format not recognised by its name or its first bytes; choose one with "
            f"{either('--format F', 'format=...')}"
        )
    if found is None or found.is_text:
        _check_lines(path, head)
    return found or FORMATS[JsonLines.name]


def _check_lines(path: str, head: bytes) -> None:
    """Raise FormatError for one JSON array in one line, or if the name suggests lines but most of them are not JSON."""
    text = head.lstrip(_BLANK)
    lines = [line for line in text.split(b"\n") if line.strip()]
    found = ""
    is_array = text.startswith(b"[") and (named(path, (".json",)) or text[1:].lstrip().startswith(b"{"))
    if is_array and len(lines) == 1 and _has_one_line(path):
        found = "one JSON array"
    elif named(path, (*JsonLines.suffixes, ".json", ".csv", ".tsv")) and lines:
        cut = lines.pop() if len(head) == _HEAD and not head.endswith(b"\n") else b""
        good = sum(_native.json_error(None, line) is None for line in lines)
        if 2 * good < len(lines) or not (lines or cut.lstrip().startswith((b"{", b"[", b'"'))):
            found = "other text"
    remedy = f"give {option('format', 'jsonl')} to take its lines as they are"
    if found == "other text" and (names := encodings_of(head)) is not None:
        found = f"text that is not UTF-8{' and may be ' * bool(names)}{' or '.join(names[:3])}"
        steps = [f"{'zstd' if path.endswith(('zst', 'zstd')) else 'gzip'} -dc"] * (without_codec(path) != path)
        remedy = f"run: {piped(path, *steps, f'iconv -f {names[0]} -t UTF-8') if names else f'file {quoted(path)}'}"
    elif found == "other text" and (name := constant_in(lines[0])):
        found, remedy = f"{name}, which JSON lacks", f"{remedy}, and open it with decode=json.loads"
    if found:
        raise FormatError(f"{path}: not JSON Lines: expected a JSON value a line, found {found}; {remedy}")


def _has_one_line(path: str) -> bool:
    """Whether a file has exactly one line that is not blank."""
    lines, is_new = 0, True
    with opened(path) as file:
        while lines < 2 and (part := file.readline(_PART)):
            lines += is_new and bool(part.strip(_BLANK))
            is_new = part.endswith(b"\n")
    return lines == 1


def check_decoder(index: Index, decode: Any) -> None:
    """Raise FormatError if a decoder, given by name, does not fit the records of an index."""
    if not isinstance(decode, str):
        return
    if decode not in {"torch", *(name for each in FORMATS.values() for name in each.decoders)}:
        return
    chosen = of_index(index)
    with index.reporting_malformed_metadata():
        sample = chosen.decoder(index.parameters)
        known: tuple[str, ...] = chosen.decoders
        if isinstance(sample, ArrayOf | FieldsOf):
            has_text = isinstance(sample, ArrayOf) and sample.dtype.kind in "SUV"
            known = (*(known if has_text else ("bytes",)), "torch")
        elif isinstance(sample, EncodedOf):
            known = (*known, "torch")
    if decode not in known:
        expected = ", ".join(map(repr, known))
        raise FormatError(
            f"decode = {decode!r}, expected {expected} or None for {index.path}, whose format is {index.format!r}"
        )


def check_options(format_name: str, known: Collection[str], given: Mapping[str, Any]) -> None:
    """Raise FormatError for an option that a format does not have."""
    for name, value in given.items():
        if name not in known:
            expected = f"options among {', '.join(known)}" if known else "no options"
            raise FormatError(f"{name} = {value!r}, expected {expected} for format {format_name!r}")


def convertible(path: str) -> str | None:
    """Return the name in `mmapds.convert` of a format that cannot be indexed, by file name or first bytes, or None."""
    head = head_of(path, _HEAD)
    for name, (mark, suffixes) in CONVERTIBLE.items():
        if head.startswith(mark) or named(path, suffixes):
            return name
    return None


def check_in_place(path: str) -> None:
    """Raise FormatError for a file that must be converted."""
    if (name := convertible(path)) and name not in FORMATS:
        converted = f"{os.path.splitext(path)[0]}.mma"  # as `convert` names it
        raise FormatError(
            f"{path}: {name} is not read in place: convert it, and open {converted}; run: {tool('convert')} "
            f"{quoted(path)}"
        )
