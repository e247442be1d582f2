"""Decoders: from the bytes of a record to a sample."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson

from .errors import Error

Decoder = Callable[[bytes], Any]


def _bytes(record: bytes) -> bytes:
    return record


def takes_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes a read-only memoryview of the file, where others take a copy of the bytes."""
    function.takes_view = True  # type: ignore[attr-defined]
    return function


@takes_view
def array(record: memoryview, *, dtype: str, shape: tuple[int, ...]) -> Any:
    """Return a record as a read-only array that shares memory with the file."""
    return np.ndarray(shape, dtype, record)


BY_NAME: dict[str, Decoder] = {"json": orjson.loads, "text": bytes.decode, "bytes": _bytes}

EXPECTS = {"json": "JSON", "text": "UTF-8 text"}
"""What a decoder that fails on bad records had expected."""


def wants_view(decode: Decoder) -> bool:
    """Whether a decoder takes a view of the file."""
    function = decode.func if isinstance(decode, partial) else decode
    return getattr(function, "takes_view", False) is True


def same(one: str | Decoder, other: str | Decoder) -> bool:
    """Whether two decoders do the same; partials do that call the same with the same arguments."""
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    return one == other


def resolve(decode: str | Decoder) -> Decoder:
    """Return the decoder that a name or a callable stands for.

    Raises:
      Error: no decoder has that name.
    """
    if callable(decode):
        return decode
    if decode not in BY_NAME:
        raise Error(f"decode={decode!r} is unknown; expected {', '.join(map(repr, BY_NAME))}, 'torch' or a callable")
    return BY_NAME[decode]
