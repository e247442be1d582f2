"""Which formats there are, and which one a file has.

A new format is one file with a subclass of `Format`, and one line here.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..compression.content import head_of
from ..errors import FormatError, either, quoted, tool
from ..storage.index_file import Index
from ..storage.sources import CONVERTED, Source, compressed, named
from .fixed import Fixed
from .format import ArrayOf, FieldsOf, Format, Option
from .frames import Prefixed, TFRecord
from .jsonl import JsonLines
from .megatron import Megatron
from .mma import ArrayFiles
from .npy import Npy
from .other_text import check_lines
from .tar import Tar

FORMATS: dict[str, Format] = {
    each.name: each for each in (JsonLines(), ArrayFiles(), Fixed(), Megatron(), Npy(), Prefixed(), Tar(), TFRecord())
}
"""By the name that `--format` takes and an index stores. If several fit a file, it has the first of them."""

SUFFIXES: tuple[str, ...] = tuple(suffix for each in FORMATS.values() for suffix in each.suffixes)
"""Those of files that are compressed follow them: see `sources.CODECS`."""

OPTIONS: dict[str, Option] = {name: option for each in FORMATS.values() for name, option in each.options.items()}

CONVERTIBLE: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "parquet": (b"PAR1", CONVERTED["parquet"]),
    "arrow": (b"ARROW1", CONVERTED["arrow"]),
    "hdf5": (b"\x89HDF\r\n\x1a\n", CONVERTED["hdf5"]),
}
"""What must be converted: the first bytes of such files, and what their names end in."""

_HEAD = 4096  # bytes by which a file is known
_DECODERS = {name for each in FORMATS.values() for name in each.decoders}
_TENSORS = "torch"
"""The decoder of arrays, whichever format these are in."""


def by_name(name: str) -> Format:
    """Return a format.

    Raises:
      FormatError: the name is unknown, or that of a format that must be converted.
    """
    known = ", ".join(map(repr, sorted(FORMATS)))
    if name in CONVERTIBLE:
        raise FormatError(
            f"format = {name!r}, expected a format that is read in place ({known}): convert the source, and open the "
            f".mma file that this writes; run: {tool('convert')} SOURCE"
        )
    if name not in FORMATS:
        raise FormatError(f"format = {name!r}, expected one of {known}")
    return FORMATS[name]


def of_index(index: Index) -> Format:
    """Return the format of an index.

    Raises:
      FormatError: this mmapds does not have it.
    """
    if index.format not in FORMATS:
        known = ", ".join(map(repr, sorted(FORMATS)))
        raise FormatError(
            f"{index.path}: VERSION: expected one of the formats {known}, found {index.format!r}; upgrade mmapds"
        )
    return FORMATS[index.format]


def readable_sources(index: Index, chosen: Format) -> list[str]:
    """Return the paths of the sources of an index, once it is certain that a scan may read all that it reads.

    Raises:
      SourceError: a source, or a file beside it, lies where the user has not allowed it.
    """
    paths = [index.readable_path(number) for number in range(len(index.sources))]
    for path in paths:
        check_beside(index, path, chosen)
    return paths


def check_beside(index: Index, path: str, chosen: Format | None = None) -> None:
    """Raise SourceError unless what a scan of a source reads beside it may be read.

    Args:
      chosen: the format to scan it in; by default that of the index.
    """
    if chosen := chosen or FORMATS.get(index.format):
        for other in chosen.beside(path):
            index.check_reach(other)


def for_path(path: str) -> Format:
    """Return the format of a file, by its name or else by its first bytes; JSONL if they are text.

    Raises:
      FormatError: nothing says what the file is, or it is text that must be converted.
      SourceError: it cannot be read.
    """
    check_in_place(path)
    head = _head(path)
    for each in FORMATS.values():
        if named(path, each.suffixes) or each.claims(path):
            if each.is_text:
                check_lines(path, head)
            return each
    for each in FORMATS.values():
        if each.recognises(head):
            return each
    check_lines(path, head)
    if b"\0" in head:
        hint = " (a Megatron .bin needs its .idx beside it)" if path.endswith(".bin") else ""
        raise FormatError(
            f"{path}: format not recognised by its name or its first bytes; choose one with "
            f"{either('--format F', 'format=...')}{hint}"
        )
    return FORMATS[JsonLines.name]


def check_name(path: str, chosen: Format) -> None:
    """Raise FormatError for a source whose name says that it is text of this format, where its first bytes deny it.

    Raises:
      SourceError: it cannot be read.
    """
    if chosen.is_text and named(path, chosen.suffixes):
        check_in_place(path)
        check_lines(path, _head(path))


def check_decoder(index: Index, decode: Any) -> None:
    """Raise FormatError for a decoder, given by name, that does not fit the records of an index."""
    if not isinstance(decode, str) or decode not in {*_DECODERS, _TENSORS}:
        return
    chosen = of_index(index)
    with index.reporting_malformed_metadata():
        sample = chosen.decoder(index.parameters)
        known: tuple[str, ...] = chosen.decoders
        if isinstance(sample, ArrayOf | FieldsOf):
            known = (*(("bytes",) if isinstance(sample, FieldsOf) or sample.has_numbers else known), _TENSORS)
    if decode in known:
        return
    expected = ", ".join([*map(repr, known), *["mmapds.Fields(schema)"] * isinstance(sample, FieldsOf)])
    remedy = "; give collate_fn=mmapds.pad_collate, which makes tensors" if decode == _TENSORS else ""
    raise FormatError(
        f"decode = {decode!r}, expected {expected} or None for {index.path}, whose format is {index.format!r}{remedy}"
    )


def check_options(format_name: str, known: Collection[str], given: Mapping[str, Any]) -> None:
    """Raise FormatError for an option that a format does not have."""
    for name, value in given.items():
        if name not in known:
            expected = f"options among {', '.join(known)}" if known else "no options"
            raise FormatError(f"{name} = {value!r}, expected {expected} for format {format_name!r}")


def check_codecs(chosen: Format, sources: Sequence[Source]) -> None:
    """Raise SourceError for a source that is compressed, where the format cannot be read so."""
    for source in sources:
        if source.codec and not chosen.reads_compressed:
            raise compressed(source.path, source.codec, chosen.name)


def convertible(path: str) -> str | None:
    """Return what `mmapds.convert` calls a file that cannot be indexed, by its name or first bytes; None for others."""
    head = _head(path)
    for name, (mark, suffixes) in CONVERTIBLE.items():
        if head.startswith(mark) or named(path, suffixes):
            return name
    return None


def check_in_place(path: str) -> None:
    """Raise FormatError for a file that must be converted.

    Raises:
      SourceError: it cannot be read.
    """
    if name := convertible(path):
        # As `convert` names it; what users want is to read the records.
        converted = f"{os.path.splitext(path)[0]}.mma"
        raise FormatError(
            f"{path}: {name} is not read in place: convert it, and open {converted}; run: {tool('convert')} "
            f"{quoted(path)}"
        )


def _head(path: str) -> bytes:
    """Return the first bytes of the content of a file."""
    return head_of(path, _HEAD)
