"""NumPy's .npy files: a record for each entry along the first axis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import FormatError
from ..storage.sources import Source, unreadable
from . import fixed, truncation
from .format import Piece
from .measuring import Measuring

NAME = "npy"
SUFFIXES = (".npy",)
TEXT = False
OPTIONS = truncation.OPTIONS

layout = fixed.layout
decoder = fixed.decoder


def recognises(head: bytes) -> bool:
    """Whether a file is of this format, by its first bytes."""
    return head.startswith(b"\x93NUMPY")


def parameters(given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return `record_bytes`, `dtype` and `shape` of a record, which all sources must share.

    Raises:
      FormatError: a source is no .npy file, has no records, holds objects, or differs from another.
    """
    truncated = truncation.check(given)
    headers = {path: _header(path) for path in sources}
    (path, (shape, dtype, _)), *others = headers.items()
    for other, header in others:
        if (header[0][1:], header[1]) != (shape[1:], dtype):
            raise FormatError(
                f"{other}: records are {header[1]} of shape {header[0][1:]}, those of {path} {dtype} of {shape[1:]}; "
                "expected the same in one index"
            )
    try:
        name, size = fixed.check_array(dtype, shape[1:])
    except FormatError as error:
        raise FormatError(f"{path}: {error}") from None
    return {"record_bytes": size, "dtype": name, "shape": list(shape[1:]), "truncated": truncated}


def scan(
    sources: Sequence[Source],
    *,
    parameters: Mapping[str, Any],
    workers: int,  # noqa: ARG001
    measuring: Measuring,
) -> Iterator[Piece]:
    """Yield how many records each source has: what its header says, which must be what its size says.

    Raises:
      FormatError: a source has more or fewer bytes than its header says.
    """
    for number, source in enumerate(sources):
        shape, _, first = _header(source.path)
        found = fixed.piece(number, source, first, parameters, measuring)
        assert found.end is not None
        count = found.end.lines
        if count != shape[0] and not (parameters["truncated"] == "drop" and count < shape[0]):
            advice = "; if it was cut short, leave out what is missing with --truncated drop"
            raise FormatError(
                f"{source.path}: has {count} records, its header says {shape[0]}{advice if count < shape[0] else ''}"
            )
        yield found._replace(skipped=shape[0] - count)


def _header(path: str) -> tuple[tuple[int, ...], Any, int]:
    """Shape, dtype, and where the data begin."""
    import numpy as np
    from numpy.lib import format as npy

    try:
        with open(path, "rb") as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise FormatError(f"{path}: .npy version {version[0]}.{version[1]}, expected 1.0 or 2.0")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            first = file.tell()
    except OSError as error:
        raise unreadable(path, error) from None
    except FormatError:
        raise
    except Exception as error:  # the header is parsed as Python, which fails in many ways
        raise FormatError(f"{path}: not an .npy file: {error}") from None
    if not shape:
        raise FormatError(f"{path}: one number, expected an array of one axis or more")
    if fortran and len(shape) > 1 and np.prod(shape) > 1:
        raise FormatError(f"{path}: in Fortran order, where a record is scattered; save np.ascontiguousarray of it")
    return shape, dtype, first
