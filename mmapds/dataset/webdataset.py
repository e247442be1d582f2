"""Samples from the members of a tar, as WebDataset makes them: their bytes by extension, or decoded."""

import json
import math
import os
import re
import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import IO, Any

import numpy as np
import orjson
from numpy.lib import format as npy

from ..errors import Error, check_memory, warn
from ..formats import tar

MOST_BYTES = "MMAPDS_MAX_NPZ_BYTES"
"""The environment variable for how many bytes the arrays of an npz may take, where it is compressed; else 1 GiB."""


def members_of(record: bytes, url: str) -> dict[str, Any]:
    """Return `{"__key__": ..., "__url__": ..., extension: bytes, ...}`, extensions in lower case."""
    key, members = tar.members(record)
    found: dict[str, Any] = {"__key__": key, "__url__": url}
    for extension, begin, end in members:
        extension = extension.lower()
        if extension in found:
            raise ValueError(f"sample {key!r}: expected each extension once, found {extension!r} twice")
        found[extension] = record[begin:end]
    return found


def sample_of(record: bytes, url: str, *, rgb: bool = False) -> dict[str, Any]:
    """Return a sample whose members are decoded by what follows the last dot of their extension.

    Members whose extension is not in the tables, pickles among them, stay bytes.

    Args:
      rgb: convert images to RGB; else they have the mode of their file, and stay bytes without Pillow.
    """
    sample = members_of(record, url)
    decode_members(sample, _rgb if rgb else _image_or_bytes)
    return sample


def decode_members(sample: dict[str, Any], image: Callable[[bytes], Any]) -> None:
    """Decode the members of a sample in place, as `sample_of` does.

    Args:
      image: the decoder of images.
    Raises:
      ValueError: a member is not what its extension says.
      MemoryError: there is no room for it.
    """
    for extension, data in sample.items():
        last = re.sub(r".*\.", "", extension)
        decoder = image if last in _IMAGES else _DECODERS.get(last)
        if extension in ("__key__", "__url__") or decoder is None:
            continue
        try:
            sample[extension] = decoder(data)
        except Exception as error:
            if isinstance(error, _QUOTE_NOTHING):
                check_memory(error)
            raise ValueError(f"member {extension!r} of sample {sample['__key__']!r}: {error}") from error


_QUOTE_NOTHING = (MemoryError, zlib.error)
"""What is raised where memory is short, by libraries whose messages do not have the data in them."""


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return json.loads(data)  # accepts NaN, as other readers of tars do


def _array(data: bytes) -> Any:
    file = BytesIO(data)
    _check_holds(file, len(data))
    file.seek(0)
    return np.load(file, allow_pickle=False)


def _check_holds(file: IO[bytes], size: int) -> None:
    """Raise ValueError for an npy that is smaller than it says, as NumPy makes room for all numbers before it reads.

    Args:
      size: of the file.
    """
    if file.read(len(npy.MAGIC_PREFIX)) != npy.MAGIC_PREFIX:
        return  # NumPy says what it is not
    file.seek(0)
    read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except MemoryError:  # which Python's parser says of what is nested too deep
        raise ValueError("expected a header of NumPy's, found one that is nested too deep") from None
    expected, found = math.prod(shape) * dtype.itemsize, size - file.tell()
    if expected > found and not dtype.hasobject:
        raise ValueError(f"expected {expected} bytes of numbers, as its header says, found {found}")


def _arrays(data: bytes) -> dict[str, Any]:
    with np.load(BytesIO(data), allow_pickle=False) as arrays:
        parts = arrays.zip.infolist()
        size, limit = sum(part.file_size for part in parts), _most_bytes()
        if size > max(limit, len(data)):  # parts that overlap make it larger, too
            raise ValueError(
                f"expected arrays of up to {limit} bytes, found {size} in an npz of {len(data)}; set {MOST_BYTES} to "
                "read them"
            )
        for part in parts:
            with arrays.zip.open(part) as file:
                _check_holds(file, part.file_size)
        return dict(arrays)


def _most_bytes() -> int:
    given = os.environ.get(MOST_BYTES) or 1 << 30
    try:
        return int(given)
    except ValueError:
        raise ValueError(f"{MOST_BYTES}: expected a number of bytes, found {given!r}; set it to an integer") from None


@cache
def _pillow() -> Any:
    """Return Pillow's module of images, with all that it would load later, at the first image of a type."""
    pillow: Any = import_module("PIL.Image")
    pillow.preinit()
    for name in ("PIL.WebPImagePlugin", "PIL.TiffImagePlugin"):
        import_module(name)
    return pillow


def _image(data: bytes) -> Any:
    """Return an image, the first one of several in a file.

    Raises:
      ValueError: it is of another type than those below, damaged, or has more than `PIL.Image.MAX_IMAGE_PIXELS`.
      OSError, EOFError: it is damaged, as Pillow says it, also where memory is short.
      MemoryError: there is no room for it.
    """
    pillow = _pillow()
    limit = pillow.MAX_IMAGE_PIXELS
    try:
        image = pillow.open(BytesIO(data), formats=_TYPES)
    except pillow.UnidentifiedImageError:
        raise ValueError(f"expected an image of type {', '.join(_TYPES)}, found another or a damaged one") from None
    tags = getattr(image, "tag_v2", {})  # of a TIFF, whose tiles may be larger than the image, and are read whole
    tile = tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0)
    pixels = max(math.prod(image.size), tile)
    if limit is not None and pixels > limit:  # where Pillow itself warns, and raises only at twice as many
        raise ValueError(f"expected up to {limit} pixels, found {pixels}; set PIL.Image.MAX_IMAGE_PIXELS to read them")
    image.load()
    return image


def _rgb(data: bytes) -> Any:
    return _image(data).convert("RGB")


def _image_or_bytes(data: bytes) -> Any:
    return _image(data) if _has_pillow() else data


_TYPES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
"""The types that images may have, whatever their extension: others, such as EPS, start programs."""
_TILE_WIDTH, _TILE_LENGTH = 322, 323  # tags of a TIFF
_IMAGES = {"jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "ppm", "pgm", "pbm", "pnm", "tif", "tiff"}
"""Extensions of images."""

_EXTENSIONS: dict[Callable[[bytes], Any], str] = {
    _json: "json jsn",
    bytes.decode: "txt text transcript",
    int: "cls cls2 index inx id",
    _array: "npy",
    _arrays: "npz",
}
_DECODERS = {name: decode for decode, names in _EXTENSIONS.items() for name in names.split()}


def check_pillow() -> None:
    """Raise Error unless images can be decoded."""
    try:
        _pillow()
    except ImportError:
        raise Error("decode = 'pil' needs Pillow; run: pip install 'mmapds[images]'") from None


@cache
def _has_pillow() -> bool:
    try:
        check_pillow()
    except Error:
        warn("images stay bytes without Pillow; run: pip install 'mmapds[images]'")
        return False
    return True
