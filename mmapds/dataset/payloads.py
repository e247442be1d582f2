"""Payloads of other tools: members of tars, decoded as by WebDataset; samples of MDS; tf.train.Example."""

import gzip
import json
import math
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from io import BytesIO
from itertools import chain
from struct import Struct
from typing import Any

import numpy as np
import orjson
from numpy.lib import format as npy
from numpy.typing import NDArray

from .. import _native
from ..errors import DecodeError, check_memory, warn
from ..formats import mds, tar

MOST_BYTES = "MMAPDS_MAX_NPZ_BYTES"
"""The environment variable for the most bytes of a compressed npz or gz, decompressed; 1 GiB by default."""


def members_of(record: bytes, location: Any) -> dict[str, Any]:
    """Return `{"__key__": ..., "__url__": ..., extension: bytes, ...}`, extensions in lower case."""
    key, members = tar.members(record)
    found: dict[str, Any] = {"__key__": key, "__url__": location.source}
    for extension, begin, end in members:
        extension = extension.lower()
        if extension in found:
            raise ValueError(f"sample {key!r}: expected each extension once, found {extension!r} twice")
        found[extension] = record[begin:end]
    return found


def sample_of(record: bytes, location: Any, *, rgb: bool = False) -> dict[str, Any]:
    """Return a sample with its members decoded by the last part of their extension.

    Members of other extensions stay bytes, pickles too. Behind "gz" the part before it decides.

    Args:
      rgb: convert images to RGB; False keeps the mode of their file, and leaves bytes without Pillow.
    """
    sample = members_of(record, location)
    decode_members(sample, (lambda data: _image(data).convert("RGB")) if rgb else _image_or_bytes)
    return sample


def decode_members(sample: dict[str, Any], image: Callable[[bytes], Any]) -> None:
    """Decode the members of a sample in place, as `sample_of` does.

    Args:
      image: the decoder of images.
    Raises:
      ValueError: a member is not what its extension says.
      MemoryError: memory is short.
    """
    for extension, data in sample.items():
        rest, _, last = extension.rpartition(".")
        is_packed = last == "gz"
        last = rest.rpartition(".")[2] if is_packed else last
        decoder = image if last in _IMAGES else _DECODERS.get(last)
        if extension in ("__key__", "__url__") or not (decoder or is_packed):
            continue
        try:
            content = _unpacked(data) if is_packed else data
            sample[extension] = decoder(content) if decoder else content
        except Exception as error:
            if isinstance(error, MemoryError | zlib.error):  # messages of other errors may quote the data
                check_memory(error)
            raise ValueError(f"member {extension!r} of sample {sample['__key__']!r}: {error}") from error


def _largest(data: bytes) -> int:
    """Return the most bytes to decompress from a member; one that holds as many is always read."""
    return max(int(os.environ.get(MOST_BYTES) or 1 << 30), len(data))


def _unpacked(data: bytes) -> bytes:
    limit = _largest(data)
    with gzip.GzipFile(fileobj=BytesIO(data)) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"expected content of up to {limit} bytes, found more; set {MOST_BYTES} to read it")
    return content


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)  # accepts NaN, as other readers of tars do


def _array(data: bytes) -> Any:
    file = BytesIO(data)
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except MemoryError:  # Python's parser raises it for deep nesting
        raise ValueError("expected a header of NumPy's, found one that is nested too deep") from None
    expected, found = math.prod(shape) * dtype.itemsize, len(data) - file.tell()
    if expected > found and not dtype.hasobject:  # NumPy would allocate all numbers before it reads
        raise ValueError(f"expected {expected} bytes of numbers, as its header says, found {found}")
    file.seek(0)
    return npy.read_array(file, allow_pickle=False)


def arrays_of(data: bytes) -> dict[str, Any]:
    """Return the arrays of an .npz file; raise ValueError if they take more than `MOST_BYTES` allows."""
    with zipfile.ZipFile(BytesIO(data)) as parts:
        size, limit = sum(part.file_size for part in parts.infolist()), _largest(data)
        if size > limit:  # overlapping parts also make it larger than the file
            raise ValueError(f"expected arrays of up to {limit} bytes, found {size}; set {MOST_BYTES} to read them")
        found = {name.removesuffix(".npy"): parts.read(name) for name in parts.namelist()}
    return {name: _array(part) if part.startswith(npy.MAGIC_PREFIX) else part for name, part in found.items()}


def _image(data: bytes) -> Any:
    """Return the first image of a file."""
    from PIL import Image, UnidentifiedImageError  # optional: the extra mmapds[images]

    try:
        image = Image.open(BytesIO(data), formats=_TYPES)
    except UnidentifiedImageError:
        raise ValueError(f"expected an image of type {', '.join(_TYPES)}, found another or a damaged one") from None
    tags = getattr(image, "tag_v2", {})  # of a TIFF: Pillow reads whole tiles, which may be larger than the image
    limit, pixels = Image.MAX_IMAGE_PIXELS, max(math.prod(image.size), tags.get(322, 0) * tags.get(323, 0))
    if limit is not None and pixels > limit:  # Pillow itself only warns here, and raises at twice as many
        raise ValueError(f"expected up to {limit} pixels, found {pixels}; set PIL.Image.MAX_IMAGE_PIXELS to read them")
    image.load()
    return image


def _image_or_bytes(data: bytes) -> Any:
    try:
        import PIL.Image  # noqa: F401 - optional
    except ImportError:
        warn("images stay bytes without Pillow; run: pip install pillow")
        return data
    return _image(data)


_TYPES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
"""The allowed types of images, whatever their extension: Pillow starts programs for others, such as EPS."""
_IMAGES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff"}
"""Extensions of images."""

_EXTENSIONS: dict[Callable[[bytes], Any], str] = {
    _json: "json jsn",
    bytes.decode: "txt text transcript",
    int: "cls cls2 index inx id",
    _array: "npy",
    arrays_of: "npz",
}
_DECODERS = {name: decode for decode, names in _EXTENSIONS.items() for name in names.split()}


# ---- samples of MDS -----------------------------------------------------------------------------------------------
#
# The encodings are those of streaming/base/format/mds/encodings.py. A value is decoded from bytes of its own, so that
# arrays are aligned.


class EncodedSample:
    """A decoder: a sample of an MDS shard as a dict of values; see `mmapds.formats.mds`.

    Numbers are NumPy's, and "int" is Python's. Arrays are read-only.

    Args:
      encodings: of each field, by its name, in the order of the sample.
      images: decode images, as RGB; otherwise they stay bytes, and lists of images lists of bytes.
    """

    def __init__(self, encodings: Mapping[str, str], *, images: bool = False) -> None:
        self.encodings, self.images = dict(encodings), images
        self._fields = [
            (name, mds.fixed_size(encoding), _decoder_of(encoding, images)) for name, encoding in encodings.items()
        ]
        varying = [size for _, size, _ in self._fields].count(None)
        self._sizes, self._fixed = Struct(f"<{varying}I"), sum(size or 0 for _, size, _ in self._fields)

    def __call__(self, record: bytes) -> dict[str, Any]:
        record, at = bytes(record), self._sizes.size
        sizes = self._sizes.unpack_from(record) if len(record) >= at else ()
        wanted = at + self._fixed + sum(sizes)
        if wanted != len(record):
            raise DecodeError(f"expected a sample of {wanted} bytes, found {len(record)}")
        sample, varying = {}, iter(sizes)
        for name, size, decode in self._fields:
            end = at + (next(varying) if size is None else size)
            try:
                sample[name] = decode(record[at:end])
            except Exception as error:
                if isinstance(error, MemoryError):
                    raise
                raise DecodeError(f"field {name!r}: not {self.encodings[name]!r}: {error}") from error
            at = end
        return sample

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EncodedSample) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[Any, ...]:
        return tuple(self.encodings.items()), self.images

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(EncodedSample, images=self.images), (self.encodings,)

    def __repr__(self) -> str:
        return f"mds({self.encodings}{', images=True' * self.images})"


def _decoder_of(encoding: str, images: bool) -> Callable[[bytes], Any]:
    if encoding in mds.NUMBERS:
        return partial(_number, np.dtype(encoding).newbyteorder("<"))
    if encoding.startswith("ndarray"):
        dtype, shape = mds.array_type(encoding)
        return partial(_encoded_array, None if dtype is None else np.dtype(dtype).newbyteorder("<"), shape)
    if encoding in mds.IMAGES:
        kind, begin = encoding, None
        if encoding.startswith("list["):
            kind, begin = encoding[5:-1], 4  # behind a number that is reserved
        elif encoding.startswith("jpeg") and encoding != "jpeg":
            kind, begin = "jpeg", 0
        decode = (_raw_image if kind == "pil" else _rgb) if images else bytes
        return decode if begin is None else partial(_list_of, decode, begin)
    return _ENCODED[encoding]


def _number(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype)[0]


def _encoded_array(dtype: Any, shape: tuple[int, ...] | None, data: bytes) -> Any:
    """Return an array, whose type, axes and shape are said first unless the encoding gives them."""
    at = 0
    if dtype is None:
        dtype, at = _NUMBERED.get(data[0]), 1
        if dtype is None:
            raise ValueError(f"expected one of the types {sorted(_NUMBERED)}, found {data[0]}")
    if shape is None:
        axes, width = data[at] >> 2, 1 << (data[at] & 3)
        shape = tuple(np.frombuffer(data, f"<u{width}", axes, at + 1).tolist())
        at += 1 + axes * width
    expected, found = math.prod(shape) * dtype.itemsize, len(data) - at
    if expected != found:
        raise ValueError(f"expected {expected} bytes of numbers, found {found}")
    return np.frombuffer(data[at:], dtype).reshape(shape)


def _list_of(decode: Callable[[bytes], Any], begin: int, data: bytes) -> list[Any]:
    """Return a list of values, before which their number and their sizes are said."""
    counted = Struct(f"<{begin}xI")
    (count,) = counted.unpack_from(data)
    sizes = np.frombuffer(data, "<u4", count, counted.size).tolist() if count else []
    at, values = counted.size + 4 * count, []
    if at + sum(sizes) != len(data):
        raise ValueError(f"expected {at + sum(sizes)} bytes of {count} values, found {len(data)}")
    for size in sizes:
        values.append(decode(data[at : at + size]))
        at += size
    return values


def _rgb(data: bytes) -> Any:
    return _image(data).convert("RGB")


def _raw_image(data: bytes) -> Any:
    """Return an image of which width, height, the size of the mode's name, that name and the pixels are given."""
    from PIL import Image  # optional: the extra mmapds[images]

    width, height, size = _RAW.unpack_from(data)
    mode, pixels = data[_RAW.size : _RAW.size + size].decode(), data[_RAW.size + size :]
    if not 0 < width * height <= 8 * len(pixels):  # Pillow would allocate all of them before it looks
        raise ValueError(f"expected pixels for {width} x {height}, found {len(pixels)} bytes")
    return Image.frombytes(mode, (width, height), pixels).convert("RGB")


_RAW = Struct("<III")
_NUMBERED = {
    (8 * size + {"u": 0, "i": 1, "f": 2}[name[0]]): np.dtype(name).newbyteorder("<")
    for name, size in mds.NUMBERS.items()
}
"""Types of numbers as an array names them: the bits, plus 1 for signed and 2 for floating-point numbers."""
_ENCODED: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": bytes.decode,
    "int": partial(int.from_bytes, byteorder="little", signed=True),
    "json": _json,
    "str_int": int,
    "str_float": float,
    "str_decimal": lambda data: Decimal(data.decode()),
}


# ---- tf.train.Example ---------------------------------------------------------------------------------------------
#
# The messages are those of tensorflow/core/example/example.proto and feature.proto: an Example has Features [1], these
# have entries of a map [1], an entry has a name [1] and a Feature [2], and a Feature has a list of bytes [1], floats
# [2] or int64 [3]. As in protobuf, unknown fields are skipped, parts of a message joined, and the last entry counts.

Feature = list[bytes] | NDArray[np.float32] | NDArray[np.int64]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LISTS = {0: "bytes_list", 1: "bytes_list", 2: "float_list", 3: "int64_list"}
_UNPACKED = {2: _FIXED32, 3: _VARINT}
"""The wire type of one number, by the field number of its list."""


def tf_example(record: bytes) -> dict[str, Feature | list[Feature]]:
    """Return the features of a serialized tf.train.Example or SequenceExample; raise ValueError for other bytes.

    Returns:
      A dict from name to feature: a list of bytes, or a float32 or int64 array of shape (values,). Arrays of floats may
      be read-only. A feature without a type is an empty list. A feature list is a list of features.
    """
    features: dict[str, Feature | list[Feature]] = {}
    for part, begin, end in _messages(record, 0, len(record), 2):  # the context of a sequence, and its feature lists
        for _, entry, entry_end in _messages(record, begin, end, 1):
            name, parts = "", []
            for number, at, stop in _messages(record, entry, entry_end, 2):
                if number == 1:
                    name = record[at:stop].decode()
                else:
                    parts.append((at, stop))
            if part == 1:
                features[name] = _feature(record, parts)
                continue
            if name in features:
                raise ValueError(f"feature list {name!r}: expected a name that no feature has")
            each = (_messages(record, begin, end, 1) for begin, end in parts)
            features[name] = [_feature(record, [(at, stop)]) for _, at, stop in chain.from_iterable(each)]
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
        return _joined([np.frombuffer(memoryview(record)[at:stop], "<f4") for at, stop in values], np.float32)
    if kind == 3:
        integers = [np.frombuffer(_native.varints(record, at, stop), np.int64) for at, stop in values]
        return _joined(integers, np.int64)
    return [record[at:stop] for at, stop in values]


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
    """Yield (number, wire type, begin, end) of each field of a message; its value lies from begin to end."""
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
    """Return the integer at a byte, modulo 2^64, and its end."""
    if at < end and record[at] < 128:  # fast path: most have one byte
        return record[at], at + 1
    value = 0
    for shift, byte in zip(range(0, 70, 7), record[at : min(at + 10, end)], strict=False):
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (2**64 - 1), at
    raise ValueError(f"byte {at}: expected the last of up to 10 bytes of an integer, found more or the message's end")
