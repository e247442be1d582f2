"""Length-prefixed records: a size, then that many bytes. Delimited protobuf messages have a varint as the size."""

from collections.abc import Mapping, Sequence
from typing import Any

from .. import _native
from ._frames import Framed
from .format import TRUNCATED, Option, OptionError, check_truncated

_FRAMINGS = {
    "u32le": _native.FRAMING_U32LE,
    "u32be": _native.FRAMING_U32BE,
    "u64le": _native.FRAMING_U64LE,
    "u64be": _native.FRAMING_U64BE,
    "varint": _native.FRAMING_VARINT,
}


class Prefixed(Framed):
    """Records, each behind its size."""

    name = "prefixed"
    options = {"prefix": Option(str, "P", "prefixed: u32le (the default), u32be, u64le, u64be or varint"), **TRUNCATED}

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `prefix` and `truncated`."""
        prefix = given.get("prefix", "u32le")
        if not isinstance(prefix, str) or prefix not in _FRAMINGS:
            raise OptionError(f"prefix = {prefix!r}, expected one of {', '.join(map(repr, _FRAMINGS))}")
        return {"prefix": prefix, "truncated": check_truncated(given)}

    def framing(self, parameters: Mapping[str, Any]) -> int:
        """The prefix decides: its size and its byte order, or a varint."""
        return _FRAMINGS[parameters["prefix"]]
