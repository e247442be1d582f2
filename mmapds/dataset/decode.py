"""Decoders: from the bytes of a record to a sample."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import orjson

from ..errors import Error
from . import webdataset as files
from .tf_example import tf_example

Decoder = Callable[..., Any]
"""Takes the bytes of a record; see `takes_view` and `takes_location` for decoders that take something else, or more."""


def _bytes(record: bytes) -> bytes:
    return record


def takes_view(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes a read-only memoryview of the file, where others take a copy of the bytes."""
    function.takes_view = True  # type: ignore[attr-defined]
    return function


def takes_location(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a decoder that takes a second argument: the `Location` of the record."""
    function.takes_location = True  # type: ignore[attr-defined]
    return function


@takes_view
def array(record: memoryview, *, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
    """Return a record as a read-only array that shares memory with the file."""
    return np.ndarray(shape, dtype, record)


@takes_view
def vector(record: memoryview, *, dtype: np.dtype[Any]) -> Any:
    """Return a record as a read-only array, of as many numbers as it holds, that shares memory with the file."""
    return np.frombuffer(record, dtype)


@takes_location
@takes_view
def _files(record: memoryview, location: Any) -> Any:
    return files.sample(record, location.source)


@takes_location
@takes_view
def _wds(record: memoryview, location: Any) -> Any:
    return files.decoded(record, location.source)


BY_NAME: dict[str, Decoder] = {
    "json": orjson.loads,
    "text": bytes.decode,
    "bytes": _bytes,
    "files": _files,
    "wds": _wds,
    "tf_example": tf_example,
}
_EXPECTS: dict[Decoder, str] = {
    orjson.loads: "JSON",
    bytes.decode: "UTF-8 text",
    _files: "a sample of a tar",
    _wds: "what its extensions say",
    tf_example: "a tf.train.Example",
    array: "an array of that type",
    vector: "an array of that type",
}


def expects(decode: str | Decoder) -> str | None:
    """What a decoder of mmapds that fails on a record had expected; None for decoders of the user's."""
    if callable(decode):
        return _EXPECTS.get(decode.func) if isinstance(decode, partial) else None
    return _EXPECTS.get(BY_NAME[decode])


def wants_view(decode: Decoder) -> bool:
    """Whether a decoder takes a view of the file."""
    return _is_marked(decode, "takes_view")


def wants_location(decode: Decoder) -> bool:
    """Whether a decoder takes the location of the record too."""
    return _is_marked(decode, "takes_location")


def _is_marked(decode: Decoder, mark: str) -> bool:
    function = decode.func if isinstance(decode, partial) else decode
    return getattr(function, mark, False) is True


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
