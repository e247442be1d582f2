"""Length-prefixed records: a size, then so many bytes. Delimited protobuf messages have a varint for a size."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import _native
from ..errors import FormatError
from ..storage.index_file import IndexedSource
from ..storage.sources import Source
from . import _frames as frames
from . import truncation
from .format import Layout, Piece
from .measuring import Measuring

NAME = "prefixed"
SUFFIXES: tuple[str, ...] = ()
TEXT = False
OPTIONS = {
    "prefix": (str, "P", "prefixed: u32le (the default), u32be, u64le, u64be or varint"),
    **truncation.OPTIONS,
}

_FRAMINGS = {
    "u32le": _native.FRAMING_U32LE,
    "u32be": _native.FRAMING_U32BE,
    "u64le": _native.FRAMING_U64LE,
    "u64be": _native.FRAMING_U64BE,
    "varint": _native.FRAMING_VARINT,
}


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:  # noqa: ARG001 - the face of formats
    """Return `prefix`.

    Raises:
      FormatError: there is no such prefix.
    """
    prefix = given.get("prefix", "u32le")
    if prefix not in _FRAMINGS:
        raise FormatError(f"prefix = {prefix!r}, expected {', '.join(_FRAMINGS)}")
    return {"prefix": prefix, "truncated": truncation.check(given)}


def layout(parameters: Mapping[str, Any], source: IndexedSource) -> Layout:  # noqa: ARG001
    """How the payload lies between two bounds."""
    return Layout(_FRAMINGS[parameters["prefix"]])


def decoder(parameters: Mapping[str, Any]) -> str:  # noqa: ARG001
    """What makes a sample of a record."""
    return "bytes"


def scan(
    sources: Sequence[Source], *, parameters: Mapping[str, Any], workers: int, measuring: Measuring
) -> Iterator[Piece]:
    """Yield the start of every record; see `frames.scan`."""
    framing, truncated = _FRAMINGS[parameters["prefix"]], parameters["truncated"]
    return frames.scan(sources, framing=framing, truncated=truncated, workers=workers, measuring=measuring)
