"""NumPy's .npy files: a record for each entry along the first axis."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import FormatError, option
from ..storage.numbers import plain_dtype
from ..storage.sources import Source, open_regular, unreadable
from .fixed import Fixed, all_records, check_array, count_records, one_piece
from .format import TRUNCATED, Piece, check_truncated, drops_truncated
from .measuring import Measuring


class Npy(Fixed):
    """Records of one size behind a header, which gives their dtype and shape."""

    name = "npy"
    suffixes = (".npy",)
    options = TRUNCATED

    def recognises(self, head: bytes) -> bool:
        """Whether a file begins with the magic bytes of .npy files."""
        return head.startswith(b"\x93NUMPY")

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `record_bytes`, `dtype` and `shape` of a record, which all sources must share.

        Raises:
          FormatError: a source is not an .npy file, has no records, holds objects, or differs from another.
        """
        truncated = check_truncated(given)
        headers = {path: _header(path) for path in sources}
        (path, (shape, dtype, _)), *others = headers.items()
        for other, header in others:
            if (header[0][1:], header[1]) != (shape[1:], dtype):
                raise FormatError(
                    f"{other}: expected records of {dtype} of shape {shape[1:]}, as in {path}, found {header[1]} of "
                    f"shape {header[0][1:]}; index the files apart"
                )
        try:
            plain_dtype(dtype)
        except ValueError:
            raise FormatError(
                f"{path}: expected plain numbers, or strings of one size, found entries of type {dtype}; write them to "
                "an array file (.mma) with mmapds.Writer, or save an array of numbers"
            ) from None
        try:
            _, size = check_array(dtype, shape[1:])
        except ValueError as error:
            raise FormatError(f"{path}: {error}") from None
        return {"record_bytes": size, "dtype": dtype.str, "shape": list(shape[1:]), "truncated": truncated}

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield how many records each source has; its header and its size must agree."""
        size = parameters["record_bytes"]
        for number, source in enumerate(sources):
            shape, _, first = _header(source.path)
            count, _ = count_records(source, first, parameters)
            if count != shape[0] and not (drops_truncated(parameters) and count < shape[0]):
                drop = option("truncated", "drop")
                advice = f"; drop the missing ones with {drop} (if the file was truncated)"
                raise FormatError(
                    f"{source.path}: expected {shape[0]} records, as its header says, found {count}"
                    f"{advice if count < shape[0] else ''}"
                )
            yield from all_records(one_piece(number, source, first, count, size, shape[0] - count), size, measuring)


def _header(path: str) -> tuple[tuple[int, ...], Any, int]:
    """Return the shape, the dtype, and the byte where the data begin."""
    import numpy as np  # start-up time: indexing other formats does without
    from numpy.lib import format as npy

    try:
        with open_regular(path) as file:
            version = npy.read_magic(file)
            if version not in ((1, 0), (2, 0)):
                raise FormatError(f"{path}: VERSION: expected .npy version 1.0 or 2.0, found {version[0]}.{version[1]}")
            read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
            shape, fortran, dtype = read(file)
            first = file.tell()
    except OSError as error:
        raise unreadable(path, error) from None
    except FormatError:
        raise
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        reason = str(error).partition("\n")[0]  # what follows is advice for users of numpy.load
        raise FormatError(f"{path}: not an .npy file: {reason}") from None
    if not shape:
        raise FormatError(f"{path}: expected an array of one axis or more, found one number")
    if fortran and len(shape) > 1 and np.prod(shape) > 1:
        raise FormatError(
            f"{path}: expected C order, found Fortran order, which scatters each record; save "
            "np.ascontiguousarray(array)"
        )
    return shape, dtype, first
