"""tf.train.Example without TensorFlow: the part of the protobuf wire format that its three kinds of lists need.

The messages are those of tensorflow/core/example/example.proto and feature.proto, field numbers in brackets:

  Example      features [1]: Features
  Features     feature [1]: entries of a map; an entry has key [1]: string and value [2]: Feature
  Feature      one of bytes_list [1], float_list [2], int64_list [3]
  the lists    value [1]: repeated bytes; float or int64, packed into one field or one by one

As in protobuf, unknown fields are skipped, the parts of a message are joined, and the last entry of a key counts.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LISTS = {0: "bytes_list", 1: "bytes_list", 2: "float_list", 3: "int64_list"}
_UNPACKED = {2: _FIXED32, 3: _VARINT}
"""The wire type of one number, by the field number of its list."""


def tf_example(record: bytes) -> dict[str, Feature]:
    """Return the features of a serialized tf.train.Example.

    Returns:
      name to a list of bytes, a float32 array or an int64 array of shape (values,), by the kind of the feature. Arrays
      of floats may be read-only. A feature without a kind is an empty list.
    Raises:
      ValueError: the bytes are not a tf.train.Example.
    """
    features: dict[str, Feature] = {}
    for _, begin, end in _messages(record, 0, len(record), 1):
        for _, entry, entry_end in _messages(record, begin, end, 1):
            name, parts = "", []
            for number, at, stop in _messages(record, entry, entry_end, 2):
                if number == 1:
                    name = record[at:stop].decode()
                else:
                    parts.append((at, stop))
            features[name] = _feature(record, parts)
    return features


def _feature(record: bytes, parts: list[tuple[int, int]]) -> Feature:
    kind = 0
    lists: list[tuple[int, int]] = []
    for begin, end in parts:
        for number, at, stop in _messages(record, begin, end, 3):
            if number != kind:
                kind, lists = number, []
            lists.append((at, stop))
    values = []
    for begin, end in lists:
        for number, wire, at, stop in _fields(record, begin, end):
            if number == 1 and wire not in (_BYTES, _UNPACKED.get(kind)):
                raise ValueError(f"byte {at}: expected values of a {_LISTS[kind]}, found wire type {wire}")
            if number == 1:
                values.append((at, stop))
    if kind == 2:
        return _joined([_floats(record, at, stop) for at, stop in values], np.float32)
    if kind == 3:
        integers = [np.frombuffer(_native.varints(record, at, stop), np.int64) for at, stop in values]
        return _joined(integers, np.int64)
    return [record[at:stop] for at, stop in values]


def _floats(record: bytes, at: int, stop: int) -> NDArray[np.float32]:
    if (stop - at) % 4:
        raise ValueError(f"byte {at}: expected floats of 4 bytes in a float_list, found {stop - at} bytes")
    return np.frombuffer(record, "<f4", (stop - at) // 4, at)


def _joined(arrays: list[NDArray[Any]], dtype: type) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])


def _messages(record: bytes, begin: int, end: int, most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, begin, end) of each message or string in the fields 1 to `most`."""
    for number, wire, at, stop in _fields(record, begin, end):
        if number <= most:
            if wire != _BYTES:
                raise ValueError(f"byte {at}: field {number}: expected wire type {_BYTES}, found {wire}")
            yield number, at, stop


def _fields(record: bytes, begin: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, wire type, begin, end) of each field of a message; begin and end are those of its value."""
    at = begin
    while at < end:
        key, at = _varint(record, at, end)
        number, wire = key >> 3, key & 7
        if number == 0:
            raise ValueError(f"byte {at}: expected a field number of 1 or more, found 0")
        if wire == _BYTES:
            size, at = _varint(record, at, end)
            stop = at + size
        elif wire == _VARINT:
            _, stop = _varint(record, at, end)
        elif wire in (_FIXED32, _FIXED64):
            stop = at + (4 if wire == _FIXED32 else 8)
        else:
            raise ValueError(f"byte {at}: field {number}: expected wire type 0, 1, 2 or 5, found {wire}")
        if stop > end:
            raise ValueError(f"byte {at}: field {number}: expected its end by byte {end}, found it at byte {stop}")
        yield number, wire, at, stop
        at = stop


def _varint(record: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the integer at a byte, modulo 2^64, and where it ends."""
    if at < end and record[at] < 128:  # most are of one byte
        return record[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            raise ValueError(f"byte {at}: expected the rest of an integer, found the end of the message")
        byte = record[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError(f"byte {at - 10}: expected an integer of up to 10 bytes, found a longer one")
