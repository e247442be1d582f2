"""Files of tokens with an index of their sequences beside them: those of Megatron-LM and of datatrove.

Megatron-LM has a `.bin` of tokens, and an `.idx` with the start of each sequence. A record is a sequence. Documents,
which are runs of sequences, are ignored. The `.idx` has one of two layouts, with n sequences and all numbers
little-endian:

  MMIDIDX\\0\\0 (megatron.core.datasets.indexed_dataset): u64 version 1, u8 dtype, u64 n, u64 documents; then i32[n]
    tokens in each sequence, i64[n] bytes before it, and the documents
  TNTIDX\\0\\0 (older, not mapped): u64 version 1, u64 dtype, u64 bytes in a token, u64 n, u64 axes, u64 documents; then
    i64[n + 1] axes before each sequence, i64[n + 1] tokens before it, i64[axes] their lengths, and the documents

The files of fairseq are the same without documents and their number.

datatrove, and nanotron, have a `.ds` of tokens of 2 or 4 bytes, and a `.ds.index` with the end of each document: u64,
counted in tokens.

The index gets a copy of where the sequences begin, so nothing reads the file beside them once it is built.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, ClassVar, NamedTuple

from .. import _native
from ..errors import FormatError, option, shortened
from ..storage.current import fingerprint
from ..storage.sources import Source, inspect, open_source
from .expressions import Measuring
from .fixed import Fixed
from .format import (
    TRUNCATED,
    ArrayOf,
    End,
    Format,
    Option,
    OptionError,
    Parameters,
    Piece,
    Sample,
    Sources,
    plain_dtype,
)

_MMAP, _LEGACY = b"MMIDIDX\0\0", b"TNTIDX\0\0"
_HEADS = {_MMAP: Struct("<9xQBQ"), _LEGACY: Struct("<8xQQQQQ")}
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2", 9: "<u4", 10: "<u8"}
_OF_LEGACY = {(6, 4): "<f4", (7, 8): "<f8"}  # by code and size, as writers disagree about these codes
_LONGEST = 1 << 40  # tokens in a sequence, at most: so sums over a piece cannot overflow


class Megatron(Format):
    """Sequences of tokens."""

    name, suffix, index_suffix = "megatron", ".bin", ".idx"
    options = TRUNCATED
    per_source = ("idx",)
    is_contiguous = True
    step = 1 << 16  # sequences in a piece of a scan

    def recognises(self, path: str, head: bytes) -> bool:
        if not path.endswith((".bin", ".idx")):
            return False
        try:
            beside = _native.Map(_beside(path))
        except (OSError, ValueError):  # no such file, or not a regular one
            return False
        return beside.read(0, min(beside.size, len(_MMAP))).startswith((_MMAP, _LEGACY))

    def beside(self, path: str) -> list[str]:
        return [_beside(path)]

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `dtype`, which all sources must share, `truncated`, and `idx`, the fingerprints of the .idx files."""
        for path in sources:
            if path.endswith(self.index_suffix):
                raise FormatError(f"{path}: expected a {self.suffix} file, found its {self.index_suffix}")
        dtype = self.shared(sources, lambda path: {"dtype": self._read(inspect(path)).dtype})
        prints = [fingerprint(self.beside(path)[0]).hex for path in sources]
        return {**dtype, **self.truncated(given), "idx": prints}

    def decoder(self, parameters: Parameters) -> Sample:
        return ArrayOf(plain_dtype(parameters["dtype"]), None)

    def scan(self, sources: Sources, parameters: Parameters, measuring: Measuring, *, workers: int) -> Iterator[Piece]:
        """Yield the start of every sequence of every source, from the .idx files; check that their numbers add up."""
        for number, source in enumerate(sources):
            drop = parameters.get("truncated") == "drop"
            yield from _scan(number, source, self._read(source, parameters["dtype"]), drop, measuring, self.step)

    def _read(self, source: Source, dtype: str = "") -> "_Idx | _Ends":
        """Return what the file beside a source says; `dtype` is that of tokens, if it does not say so."""
        return _read(source)


class Datatrove(Megatron):
    """Documents of tokens."""

    name, suffix, index_suffix = "datatrove", ".ds", ".ds.index"
    suffixes = (".ds",)
    options: ClassVar[dict[str, Option]] = {"dtype": Fixed.options["dtype"]}

    def recognises(self, path: str, head: bytes) -> bool:
        return False  # by its suffix alone

    def beside(self, path: str) -> list[str]:
        return [f"{path}.index"]

    def parameters(self, given: Mapping[str, Any], sources: Sequence[str]) -> dict[str, Any]:
        """Return `dtype`, and `idx`, the fingerprints of the .ds.index files."""
        dtype = plain_dtype(given.get("dtype", "uint16"))
        if dtype.str not in ("<u2", "<u4"):
            raise OptionError(f"dtype = {shortened(given['dtype'])}, expected 'uint16' or 'uint32'")
        return {"dtype": dtype.str, "idx": super().parameters({}, sources)["idx"]}

    def _read(self, source: Source, dtype: str = "<u2") -> "_Ends":
        (path,) = self.beside(source.path)
        file = open_source(inspect(path))
        if file.size % 8:
            raise FormatError(f"{path}: expected whole numbers of 8 bytes, found {file.size} bytes")
        return _Ends(path, file, dtype, file.size // 8)


class _Ends(NamedTuple):
    """The content of a .ds.index file."""

    path: str
    file: _native.Map
    dtype: str
    sequences: int
    unit: int = 1

    def ends(self, stop: int) -> int:
        """Return the token after a number of sequences."""
        return int.from_bytes(self.file.read(8 * stop - 8, 8), "little") if stop else 0

    def bounds(self, begin: int, end: int) -> tuple[Any, Any]:
        """Return the tokens of sequences `begin` to `end`, and the byte where each begins."""
        import numpy as np  # start-up time: other formats do not need it

        found = np.frombuffer(self.file.read(8 * begin, 8 * (end - begin)), "<u8").astype(np.int64)
        before = np.concatenate([[self.ends(begin)], found[:-1]])[: len(found)]
        return found - before, before * int(self.dtype[-1])


class _Idx(NamedTuple):
    """The content of an .idx file."""

    path: str
    file: _native.Map
    dtype: str
    sequences: int
    sizes: tuple[str, int]  # tokens in each sequence: type of these numbers, and their byte in the file
    pointers: tuple[str, int]  # where each begins, in units
    unit: int  # bytes

    def bounds(self, begin: int, end: int) -> tuple[Any, Any]:
        """Return the tokens of sequences `begin` to `end`, and where each begins, in units."""
        return self._numbers(self.sizes, begin, end), self._numbers(self.pointers, begin, end)

    def _numbers(self, place: tuple[str, int], begin: int, end: int) -> Any:
        """Read numbers of sequences `begin` to `end`: int64, shape (end - begin,)."""
        import numpy as np  # start-up time: other formats do not need it

        dtype, at = place
        width = int(dtype[-1])
        return np.frombuffer(self.file.read(at + begin * width, (end - begin) * width), dtype).astype(np.int64)


def _beside(path: str) -> str:
    return os.path.splitext(path)[0] + ".idx"


def _scan(
    number: int, source: Source, idx: "_Idx | _Ends", drop: bool, measuring: Measuring, step: int
) -> Iterator[Piece]:
    import numpy as np  # start-up time: other formats do not need it

    at, width = 0, int(idx.dtype[-1])
    for begin in range(0, max(idx.sequences, 1), step):
        stop = min(begin + step, idx.sequences)
        sizes, found = idx.bounds(begin, stop)
        bounds = at + np.concatenate([[0], np.cumsum(sizes * width)])
        wrong = (sizes < 0) | (sizes > _LONGEST) | (found != bounds[:-1] // idx.unit)
        if wrong.any():
            first = int(wrong.argmax())
            raise FormatError(
                f"{idx.path}: sequence {begin + first}: expected 0 to {_LONGEST} tokens from byte {bounds[first]} on, "
                f"found {sizes[first]} from byte {int(found[first]) * idx.unit} on"
            )
        kept = int(np.searchsorted(bounds[1:], source.size, side="right"))
        before, at, left_out = at, int(bounds[kept]), 0
        if kept < len(sizes):
            left_out = idx.sequences - begin - kept
            if not drop:
                raise FormatError(
                    f"{source.path}: record {begin + kept} (byte {at}): expected {bounds[kept + 1] - at} bytes, found "
                    f"{source.size - at}; leave it out, and all after it, with {option('truncated', 'drop')}"
                )
        elif stop == idx.sequences and at != source.size:
            other = f"; give {option('dtype', 'uint32')}" * (isinstance(idx, _Ends) and 2 * at == source.size)
            raise FormatError(f"{source.path}: expected {at} bytes, as {idx.path} says, found {source.size}{other}")
        end = End(begin + kept, at) if left_out or stop == idx.sequences else None
        tokens = sizes[:kept]
        starts, cells, items = (
            memoryview(each.tobytes()).cast("Q") for each in (bounds[:kept], tokens * width, tokens.astype(np.int64))
        )
        scanned = (at if end is None else source.size) - before
        yield Piece(number, starts, measuring.sizes(cells, items), left_out, scanned, end)
        if end is not None:
            return


def _read(source: Source) -> _Idx:
    """Read the header of the .idx file of a source."""
    path = _beside(source.path)
    file = open_source(inspect(path))
    magic = next((each for each in _HEADS if file.read(0, min(file.size, len(each))) == each), None)
    if magic is None or file.size < _HEADS[magic].size:
        raise FormatError(f"{path}: expected an .idx file of Megatron, found {file.size} bytes of another kind")
    head = _HEADS[magic]
    version, code, *others = head.unpack(file.read(0, head.size))
    itemsize, count, axes = others if magic == _LEGACY else (0, *others, *others)
    dtype = _OF_LEGACY.get((code, itemsize)) or _DTYPES.get(code, "0")
    width, at = int(dtype[-1]), head.size
    itemsize = itemsize if magic == _LEGACY else width
    if (version, itemsize, axes) != (1, width, count) or not width:
        raise FormatError(
            f"{path}: expected version 1, a token type of 1 to {max(_DTYPES)}, and one axis a sequence, found version "
            f"{version}, type {code} of {itemsize} bytes, and {axes} axes for {count} sequences"
        )
    size = 12 * count if magic == _MMAP else 8 * (3 * count + 2)
    at += 8 * (file.size > at + size)  # fairseq omits the number of documents
    if file.size < at + size:
        raise FormatError(f"{path}: expected {at + size} bytes or more for {count} sequences, found {file.size}")
    if magic == _MMAP:
        return _Idx(path, file, dtype, count, ("<i4", at), ("<i8", at + 4 * count), 1)
    return _Idx(path, file, dtype, count, ("<i8", at + 16 * (count + 1)), ("<i8", at + 8 * (count + 1)), width)
