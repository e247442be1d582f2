"""Megatron-LM's token files: a `.bin` of tokens, and an `.idx` beside it that says where each sequence begins.

A record is a sequence; documents, which are runs of sequences, are not told apart. Two layouts of the `.idx` are about,
all numbers little-endian, with n sequences:

  MMIDIDX\\0\\0 (megatron.core.datasets.indexed_dataset): u64 version 1, u8 dtype, u64 n, u64 documents; then i32[n]
    tokens in each sequence, i64[n] bytes before it, and what concerns documents
  TNTIDX\\0\\0 (before it was mapped): u64 version 1, u64 dtype, u64 bytes in a token, u64 n, u64 axes, u64 documents;
    then i64[n + 1] axes before each record, i64[n + 1] tokens before it, i64[axes] their lengths, and documents

Those of fairseq are the same without documents and their number.

Where the sequences begin is copied into the index, so that the `.idx` is not read again once that is built.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _native
from ..errors import FormatError, SourceError
from ..storage.index_file import IndexedSource
from ..storage.sources import Source, fingerprint, inspect, map_source
from .format import TRUNCATED, ArrayOf, End, Format, Layout, Piece, Sample, check_truncated
from .measuring import Measuring

_MMAP, _LEGACY = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2", 9: "<u4", 10: "<u8"}
_LONGEST = 1 << 40  # tokens in a sequence: no sum of as many as a piece has overflows


class Megatron(Format):
    """Sequences of tokens.

    Args:
      step: sequences in a piece of a scan.
    """

    name = "megatron"
    options = TRUNCATED

    def __init__(self, step: int = 1 << 16) -> None:
        self._step = step

    def claims(self, path: str) -> bool:
        """Whether a file is one of the pair."""
        if not path.endswith((".bin", ".idx")):
            return False
        try:
            with open(_beside(path), "rb", buffering=0) as file:
                return file.read(len(_MMAP)).startswith((_MMAP, _LEGACY))
        except OSError:
            return False

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `dtype`, which all sources must share, and `idx`, fingerprints of what else the index is made of.

        Raises:
          FormatError: the .idx beside a source is missing or malformed, or is given itself.
        """
        truncated = check_truncated(given)
        marks = []
        first: _Idx | None = None
        for path in sources:
            if path.endswith(".idx"):
                raise FormatError(
                    f"{path}: an .idx file holds no records; give the .bin file beside it: {path[:-4]}.bin"
                )
            idx = _read(inspect(path))
            first = first or idx
            if idx.dtype != first.dtype:
                raise FormatError(
                    f"{path}: expected tokens of {first.dtype}, as in {first.path}, found {idx.dtype}; index the "
                    "files apart"
                )
            marks.append(fingerprint(idx.path, os.path.getsize(idx.path)))
        assert first is not None
        return {"dtype": first.dtype, "truncated": truncated, "idx": marks}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """Sequences lie one after another."""
        return Layout(_native.FRAMING_NONE)

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """An array of tokens."""
        return ArrayOf(parameters["dtype"], None)

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield the start of every sequence of every source: what the .idx files say, once that adds up."""
        for number, source in enumerate(sources):
            yield from _scan(number, source, parameters["truncated"] == "drop", measuring, self._step)


class _Idx(NamedTuple):
    """What an .idx file says."""

    path: str
    dtype: str
    itemsize: int
    sequences: int
    sizes: Any
    """Tokens in each, shape (sequences,)."""
    pointers: Any
    """Where each begins, shape (sequences,)."""
    unit: int
    """Bytes in a unit of `pointers`."""


def _beside(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _scan(number: int, source: Source, drop: bool, measuring: Measuring, step: int) -> Iterator[Piece]:
    import numpy as np

    idx = _read(source)
    at = 0
    for begin in range(0, max(idx.sequences, 1), step):
        sizes = np.asarray(idx.sizes[begin : begin + step], np.int64)
        found = idx.pointers[begin : begin + step]
        wrong = (sizes < 0) | (sizes > _LONGEST)
        if wrong.any():
            record = int(np.argmax(wrong))
            raise FormatError(
                f"{idx.path}: sequence {begin + record}: expected 0 to {_LONGEST} tokens, found {sizes[record]}"
            )
        ends = np.cumsum(sizes * idx.itemsize) + at
        starts = np.concatenate([[at], ends[:-1]])[: len(ends)]
        apart = found != starts // idx.unit
        if apart.any():
            record = int(np.argmax(apart))
            raise FormatError(
                f"{idx.path}: sequence {begin + record}: expected byte {starts[record]}, where the one before it ends, "
                f"found {int(found[record]) * idx.unit}"
            )
        kept = int(np.searchsorted(ends, source.size, side="right"))
        if kept < len(ends) and not drop:
            raise FormatError(
                f"{source.path}: record {begin + kept} (byte {starts[kept]}): expected {ends[kept] - starts[kept]} "
                f"bytes, found {source.size - int(starts[kept])}; leave it out, and all after it, with --truncated drop"
            )
        before, at = at, int(ends[kept - 1]) if kept else at
        left_out = idx.sequences - begin - kept if kept < len(ends) else 0
        last = begin + kept if left_out or begin + step >= idx.sequences else None
        if last == idx.sequences and at != source.size:
            raise FormatError(
                f"{source.path}: expected {at} bytes, as {idx.path} says, found {source.size}; give a .bin and an "
                ".idx of one data set"
            )
        cells = _words(ends[:kept] - starts[:kept])
        end = End(last, at) if last is not None else None
        scanned = (at if end is None else source.size) - before
        yield Piece(number, _words(starts[:kept]), measuring.sizes(cells), left_out, scanned, end)
        if end is not None:
            return


def _words(numbers: Any) -> memoryview:
    return memoryview(numbers.tobytes()).cast("Q")


def _read(source: Source) -> _Idx:
    """Read the header of the .idx beside a source, and map the rest.

    Raises:
      FormatError: it is another file, or its size is not what its header says.
      SourceError: it is missing or unreadable.
    """
    import numpy as np

    path = _beside(source.path)
    if not os.path.exists(path):
        raise SourceError(f"{source.path}: expected {path} beside it, found no such file; copy it there")
    view = memoryview(map_source(inspect(path)))

    def numbers(dtype: str, offset: int, count: int) -> Any:
        return np.frombuffer(view, dtype, count, offset)

    try:
        if view[:9] == _MMAP:
            version, code, count = struct.unpack_from("<QBQ", view, 9)
            dtype = _DTYPES[code]
            itemsize = np.dtype(dtype).itemsize
            at = 26 if len(view) == 26 + 12 * count else 34
            sizes, pointers, unit = numbers("<i4", at, count), numbers("<i8", at + 4 * count, count), 1
        elif view[:8] == _LEGACY:
            version, code, itemsize, count, axes = struct.unpack_from("<QQQQQ", view, 8)
            dtype = {(6, 4): "<f4", (7, 8): "<f8"}.get((code, itemsize), _DTYPES[code])  # its writers differ in these
            at = 48 if len(view) == 48 + 8 * (2 * count + 2 + axes) else 56
            if axes != count:
                raise FormatError(f"{path}: expected sequences of one axis, found {axes} axes for {count} sequences")
            pointers, unit = numbers("<i8", at + 8 * (count + 1), count), itemsize
            sizes = numbers("<i8", at + 16 * (count + 1), count)
        else:
            raise FormatError(f"{path}: expected {_MMAP!r} or {_LEGACY!r} at byte 0, found {bytes(view[:9])!r}")
    except KeyError:
        raise FormatError(f"{path}: expected a token type of 1 to {max(_DTYPES)}, found {code}") from None
    except (struct.error, ValueError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"{path}: not a whole Megatron index ({error}); copy it again") from None
    if version != 1:
        raise FormatError(f"{path}: VERSION: expected Megatron version 1, found {version}")
    if np.dtype(dtype).itemsize != itemsize:
        raise FormatError(f"{path}: expected tokens of {np.dtype(dtype).itemsize} bytes for {dtype}, found {itemsize}")
    return _Idx(path, dtype, itemsize, count, sizes, pointers, unit)
