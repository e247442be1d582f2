"""Megatron-LM's token files: a `.bin` of tokens, and an `.idx` beside it that says where each sequence begins.

A record is a sequence. Documents, which are runs of sequences, are ignored. The `.idx` has one of two layouts, with n
sequences and all numbers little-endian:

  MMIDIDX\\0\\0 (megatron.core.datasets.indexed_dataset): u64 version 1, u8 dtype, u64 n, u64 documents; then i32[n]
    tokens in each sequence, i64[n] bytes before it, and the documents
  TNTIDX\\0\\0 (older, not mapped): u64 version 1, u64 dtype, u64 bytes in a token, u64 n, u64 axes, u64 documents; then
    i64[n + 1] axes before each sequence, i64[n + 1] tokens before it, i64[axes] their lengths, and the documents

The files of fairseq are the same without documents and their number.

The index gets a copy of where the sequences begin, so nothing reads the `.idx` once the index is built.
"""

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from .. import _native
from ..errors import FormatError, SourceError, option
from ..storage.current import fingerprint
from ..storage.files import open_source
from ..storage.numbers import plain_dtype
from ..storage.sections import IndexedSource
from ..storage.sources import Source, inspect
from .format import TRUNCATED, ArrayOf, End, Format, Layout, Piece, Sample, check_truncated, drops_truncated
from .measuring import Measuring

_MMAP, _LEGACY = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2", 9: "<u4", 10: "<u8"}
_HEAD = 56  # bytes of a header, at most
_LONGEST = 1 << 40  # tokens in a sequence, at most: the sums over a piece cannot overflow


class Megatron(Format):
    """Sequences of tokens.

    Args:
      step: sequences in a piece of a scan.
    """

    name = "megatron"
    options = TRUNCATED
    per_source = ("idx",)

    def __init__(self, step: int = 1 << 16) -> None:
        self._step = step

    def claims(self, path: str) -> bool:
        """Whether a file is one of a pair."""
        if not path.endswith((".bin", ".idx")):
            return False
        try:
            head = bytes(memoryview(_native.Map(_beside(path)))[: len(_MMAP)])
        except (OSError, ValueError):  # no such file, or not a regular one
            return False
        return head.startswith((_MMAP, _LEGACY))

    def beside(self, path: str) -> list[str]:
        """Return the path of the .idx."""
        return [_beside(path)]

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `dtype`, which all sources must share, `truncated`, and `idx`, the fingerprints of the .idx files.

        Raises:
          FormatError: the .idx beside a source is malformed, or is itself given as a source.
          SourceError: the .idx beside a source is missing.
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
            marks.append(fingerprint(idx.path).hex)
        assert first is not None
        return {"dtype": first.dtype, "truncated": truncated, "idx": marks}

    def layout(self, parameters: Mapping[str, Any], source: IndexedSource) -> Layout:
        """A payload is all that lies between two bounds."""
        return Layout(_native.FRAMING_NONE)

    def decoder(self, parameters: Mapping[str, Any]) -> Sample:
        """A payload is an array of tokens."""
        return ArrayOf(plain_dtype(parameters["dtype"]), None)

    def scan(
        self, sources: Sequence[Source], parameters: Mapping[str, Any], measuring: Measuring, *, workers: int
    ) -> Iterator[Piece]:
        """Yield the start of every sequence of every source, from the .idx files, whose numbers must add up."""
        for number, source in enumerate(sources):
            yield from _scan(number, source, drops_truncated(parameters), measuring, self._step)


class _Idx(NamedTuple):
    """The content of an .idx file."""

    path: str
    dtype: str
    itemsize: int
    sequences: int
    sizes: "_Numbers"
    """Tokens in each."""
    pointers: "_Numbers"
    """Where each begins."""
    unit: int
    """Bytes in a unit of `pointers`."""


class _Numbers(NamedTuple):
    """Numbers in a file, one for each sequence; a slice of them is read when it is asked for."""

    file: _native.Map
    dtype: str
    at: int

    def part(self, begin: int, end: int) -> Any:
        """Read the numbers of sequences `begin` to `end`: shape (end - begin,)."""
        import numpy as np  # start-up time: indexing other formats does without

        width = np.dtype(self.dtype).itemsize
        return np.frombuffer(self.file.read(self.at + begin * width, (end - begin) * width), self.dtype)


def _beside(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _scan(number: int, source: Source, drop: bool, measuring: Measuring, step: int) -> Iterator[Piece]:
    import numpy as np  # start-up time: indexing other formats does without

    idx = _read(source)
    at = 0
    for begin in range(0, max(idx.sequences, 1), step):
        stop = min(begin + step, idx.sequences)
        sizes = np.asarray(idx.sizes.part(begin, stop), np.int64)
        found = idx.pointers.part(begin, stop)
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
            before_it = f", where sequence {begin + record - 1} ends" if begin + record else ""
            raise FormatError(
                f"{idx.path}: sequence {begin + record}: expected byte {starts[record]}{before_it}, "
                f"found {int(found[record]) * idx.unit}"
            )
        kept = int(np.searchsorted(ends, source.size, side="right"))
        if kept < len(ends) and not drop:
            raise FormatError(
                f"{source.path}: record {begin + kept} (byte {starts[kept]}): expected {ends[kept] - starts[kept]} "
                f"bytes, found {source.size - int(starts[kept])}; leave it out, and all after it, with "
                f"{option('truncated', 'drop')}"
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
    """Read the header of the .idx beside a source.

    Raises:
      FormatError: the .idx is not one of Megatron's, is damaged, or is shorter than its header says.
      SourceError: the .idx is missing or unreadable.
    """
    path = _beside(source.path)
    if not os.path.exists(path):
        raise SourceError(f"{source.path}: expected {path} beside it, found no such file; copy it there")
    file = open_source(inspect(path))
    head = file.read(0, min(file.size, _HEAD))
    is_mapped = head.startswith(_MMAP)
    if not is_mapped and not head.startswith(_LEGACY):
        raise FormatError(f"{path}: expected {_MMAP!r} or {_LEGACY!r} at byte 0, found {head[:9]!r}")
    fixed = 26 if is_mapped else 48
    _check_size(path, file, fixed)
    if is_mapped:
        version, code, count = struct.unpack_from("<QBQ", head, len(_MMAP))
        itemsize, axes, size = 0, count, 12 * count
    else:
        version, code, itemsize, count, axes = struct.unpack_from("<QQQQQ", head, len(_LEGACY))
        size = 8 * (2 * (count + 1) + axes)
    if version != 1:
        raise FormatError(f"{path}: VERSION: expected Megatron version 1, found {version}")
    # Writers of the older layout disagree about the codes of these two types.
    dtype = {(6, 4): "<f4", (7, 8): "<f8"}.get((code, itemsize)) or _DTYPES.get(code)
    if dtype is None:
        raise FormatError(f"{path}: expected a token type of 1 to {max(_DTYPES)}, found {code}")
    width = int(dtype[-1])
    if itemsize not in (0, width) or (not is_mapped and not itemsize):
        raise FormatError(f"{path}: expected tokens of {width} bytes for {dtype}, found {itemsize}")
    if axes != count:
        raise FormatError(f"{path}: expected sequences of one axis, found {axes} axes for {count} sequences")
    at = fixed if file.size <= fixed + size else fixed + 8  # fairseq writes no number of documents
    _check_size(path, file, at + size, count)
    if is_mapped:
        sizes, pointers = _Numbers(file, "<i4", at), _Numbers(file, "<i8", at + 4 * count)
        return _Idx(path, dtype, width, count, sizes, pointers, 1)
    pointers, sizes = _Numbers(file, "<i8", at + 8 * (count + 1)), _Numbers(file, "<i8", at + 16 * (count + 1))
    return _Idx(path, dtype, width, count, sizes, pointers, width)


def _check_size(path: str, file: _native.Map, size: int, count: int | None = None) -> None:
    if file.size < size:
        what = "" if count is None else f" for {count} sequences"
        raise FormatError(f"{path}: expected {size} bytes or more{what}, found {file.size}; copy it again")
