"""A file of sections: written once and atomically, opened in constant time, checked in every field."""

import json
import mmap
import os
import struct
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from sys import intern
from types import TracebackType
from typing import Any, NamedTuple, Self

from xxhash import xxh3_64

from .. import _native
from ..errors import ColumnError, Error, FormatError, either
from .files import open_file
from .lock import create_replacement, locked
from .numbers import APART, BY_DTYPE, COLUMN_TYPES, NumberType, inexact
from .scratch import scratch_beside
from .sources import make_room, reason, working_directory
from .spool import Spool

VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQQ")
_CHECKED = _HEADER.size - 8  # bytes of the header before its checksum
_ALIGNMENT = 64
_PIECE = 1 << 20  # bytes written at a time, so that the checksum reads them from the cache
COLUMN = "column:"
"""Prefix of the name of a section that is a column."""


class Section(NamedTuple):
    """An array in the file."""

    dtype: str
    items: int
    offset: int
    xxh3: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.items * BY_DTYPE[self.dtype].width


class Mark(NamedTuple):
    """A place in a section that is being written."""

    offset: int
    digest: Any
    """The checksum of the section up to there."""


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError, SyntaxError)
"""Exceptions that malformed metadata can cause; the last one if they are a dtype for NumPy."""


class SectionWriter:
    """Writes a file of sections beside its final place, and moves it there when it is complete.

    Use it as a context manager: unless `commit` returns, nothing is left behind, and an older file stays untouched.
    """

    MAGIC: bytes
    KIND = 0
    """What kind of such files it is, a number in the header; readers refuse kinds that they do not know."""
    SUFFIX: str
    NAME: str
    """What messages call such a file."""
    ELSEWHERE: tuple[str, str] | None
    """How a command and Python name another place; ends the message "give another place"."""
    LOCKED = ""
    """Suffix of the file beside this one whose lock is held while this one is replaced; by default, its own."""
    _is_open = False
    """Whether there is something to close, and perhaps to remove."""

    def __init__(self, path: str, way_out: str = "") -> None:
        """Begin a file; `way_out` says what to do where it cannot be written, by default to give another place."""
        if not path.endswith(self.SUFFIX) or os.path.isdir(path):
            raise Error(f"{path}: cannot write {self.NAME} here: expected a file name that ends in {self.SUFFIX}")
        self.path = path
        self.target = os.path.join(working_directory(), path)
        """The absolute path, as the working directory may change meanwhile."""
        self.kind = self.KIND
        self._way_out = way_out
        self._process = os.getpid()
        self._hash = xxh3_64
        self._sections: dict[str, dict[str, Any]] = {}
        self._open_section: tuple[str, str, int, Any] | None = None
        self._spools: list[Spool] = []
        self._flusher = _Flusher()
        self._written: os.stat_result | None = None  # once it is committed
        try:
            self._temporary, self._file = create_replacement(self.target)
            self._is_open = True
        except OSError as error:
            raise Error(f"{path}: cannot write {self.NAME} here ({reason(error)}); {self._elsewhere()}") from None
        self._file.write(bytes(_HEADER.size))

    def _elsewhere(self) -> str:
        return self._way_out or f"give another place{f' with {either(*self.ELSEWHERE)}' if self.ELSEWHERE else ''}"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn an OSError, raised while something is written for this file, into an Error that names the file.

        Raises:
          Error: also in a process that was forked meanwhile, which has no part in the file.
        """
        if os.getpid() != self._process:
            raise Error(
                f"{self.path}: expected process {self._process}, which began to write {self.NAME}, found its child "
                f"{os.getpid()}; make a writer there"
            )
        try:
            yield
        except OSError as error:
            raise Error(
                f"{self.path}: cannot write {self.NAME} ({reason(error)}); nothing was changed; {make_room(error)}"
                f"{self._elsewhere()}"
            ) from None

    def begin_section(self, name: str, dtype: str) -> None:
        """Start a section, to which `write` appends."""
        self._end_section()
        with self.writing():
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        self._open_section = name, dtype, self._file.tell(), self._hash()

    def spool(self) -> Spool:
        """Return a spool for a column, beside the file."""
        self._spools.append(Spool(f"{self._temporary}.{os.urandom(4).hex()}"))
        return self._spools[-1]

    def scratch(self, size: int) -> mmap.mmap:
        """Return scratch memory; above 16 MB it is an unlinked file beside this one, which the kernel may write out."""
        with self.writing():
            return scratch_beside(f"{self._temporary}.{os.urandom(4).hex()}", size)

    def write_column(self, name: str, spool: Spool) -> None:
        """Append a column as a section."""
        if found := spool.rounded():
            record, number = found
            raise ColumnError(
                f"column {name!r}: expected {inexact(number)} found {number}; {APART} (record {record} of the index)"
            )
        self.write_spool(COLUMN + name, spool)

    def write_spool(self, name: str, spool: Spool) -> None:
        """Append the numbers of a spool as a section."""
        self.begin_section(name, spool.number_type.dtype)
        for chunk in spool.chunks():
            self.write(chunk)

    def write_array(self, name: str, dtype: str, data: "memoryview | bytes | mmap.mmap") -> None:
        """Append a section from one buffer."""
        self.begin_section(name, dtype)
        for begin in range(0, len(data), _PIECE):
            self.write(memoryview(data)[begin : begin + _PIECE])

    def copy_section(self, file: "SectionFile", name: str) -> None:
        """Append a section of another file, as it is.

        Raises:
          FormatError: it is damaged; a copy with a checksum of its own would hide that.
        """
        self.begin_section(name, file.sections[name].dtype)
        for piece in file.pieces(name):
            self.write(piece)
        self._end_section()
        file.check_digest(name, self._sections[name]["xxh3"])

    def column(self, name: str) -> tuple[str, memoryview]:
        """Return the type and the bytes, mapped, of a column that was written."""
        self._end_section()
        dtype, (count,), offset = (self._sections[COLUMN + name][key] for key in ("dtype", "shape", "offset"))
        with self.writing():
            self._file.flush()
            opened, size = open_file(self._temporary), count * BY_DTYPE[dtype].width
        return dtype, memoryview(opened)[offset:][:size] if opened.is_mapped else memoryview(opened.read(offset, size))

    @property
    def section_begin(self) -> int:
        """The offset in the file of the section that was begun last."""
        assert self._open_section is not None
        return self._open_section[2]

    def write(self, data: "memoryview | bytes | bytearray") -> None:
        """Append to the section that was begun last."""
        assert self._open_section is not None
        self._open_section[3].update(data)
        with self.writing():
            self._file.write(data)
        self._flusher.wrote(self._file.fileno(), len(data))

    def mark(self) -> Mark:
        """Return the place in the section that was begun last where `write` goes on."""
        assert self._open_section is not None
        return Mark(self._file.tell(), self._open_section[3].copy())

    def take_back(self, mark: Mark) -> memoryview:
        """Remove from the section what was written to it since a mark, and return it in scratch memory."""
        assert self._open_section is not None
        size = self._file.tell() - mark.offset
        taken = memoryview(self.scratch(max(size, 1)))[:size]
        with self.writing():
            self._file.flush()
            opened = open_file(self._temporary)
            for at in range(0, size, _PIECE):
                taken[at : at + _PIECE] = opened.read(mark.offset + at, min(_PIECE, size - at))
            self._file.seek(mark.offset)
            self._file.truncate()
        self._open_section = *self._open_section[:3], mark.digest.copy()
        return taken

    def _end_section(self) -> None:
        if self._open_section is None:
            return
        name, dtype, offset, digest = self._open_section
        count = (self._file.tell() - offset) // BY_DTYPE[dtype].width
        self._sections[name] = {"dtype": dtype, "shape": [count], "offset": offset, "xxh3": digest.hexdigest()}
        self._open_section = None

    def commit(self, metadata: dict[str, Any], records: int, check: Callable[[], object] = lambda: None) -> None:
        """Finish the file, flush it to the disk, and move it to its place.

        Args:
          check: called while this process holds the lock of the file; if it raises, nothing is replaced.
        """
        self.complete(metadata, records)
        self.flush()
        with self.writing(), locked(self.target + self.LOCKED):
            check()
            self.place()

    def flush(self) -> None:
        """Flush a complete file to the disk."""
        with self.writing():
            self._flusher.stop()
            os.fsync(self._file.fileno())
            self._written = os.fstat(self._file.fileno())

    def place(self, *, sync: bool = True) -> None:
        """Move a complete file to its place; the caller holds its lock, and `sync` is False where it flushes that."""
        with self.writing():
            os.replace(self._temporary, self.target)
            if sync:
                self._file.close()  # not before it is in its place, as it is locked until then
                sync_directory(os.path.dirname(self.target))

    def complete(self, metadata: dict[str, Any], records: int) -> str:
        """Finish the file, but leave it beside its place until the writer goes; return its path."""
        self._end_section()
        described = metadata | {"sections": self._sections}
        try:
            text = json.dumps(described, ensure_ascii=False).encode()
        except UnicodeEncodeError:  # a lone surrogate, which only an escape can say
            text = json.dumps(described).encode()
        offset = self._file.tell()
        with self.writing():
            self._file.write(text)
        end = offset + len(text)
        fields = (self.MAGIC, VERSION, _HEADER.size, records, offset, len(text), end, self.kind, 0)
        header = _HEADER.pack(*fields)[:_CHECKED]
        checksum = self._hash(header + text).intdigest()
        with self.writing():
            self._file.seek(0)
            self._file.write(header + checksum.to_bytes(8, "little"))
            self._file.flush()
        return self._temporary

    def is_in_place(self) -> bool:
        """Whether the file that was committed is the one that lies in its place now."""
        try:
            found = os.stat(self.target)
        except OSError:
            return False
        written = self._written
        # The time too, as a file system may give the number of a file that is gone to the next one.
        return written is not None and os.path.samestat(written, found) and written.st_mtime_ns == found.st_mtime_ns

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()  # a signal may end the program before the block of the writer begins, or while it ends

    def _close(self) -> None:
        """Close the file, and remove it unless it was moved to its place."""
        if not self._is_open or os.getpid() != self._process:
            return  # a child that was forked meanwhile ends, and its parent still writes
        with suppress(OSError):  # commit has raised it, or the file is not wanted
            self._flusher.stop()
        with suppress(OSError):
            self._file.close()
        for spool in self._spools:
            spool.close()
        with suppress(OSError):  # it was moved; else the next writer removes it
            os.unlink(self._temporary)
        self._is_open = False


class _Flusher:
    """Flushes to the disk while the file is written, so that the flush at the end has little left to do."""

    _ENOUGH = 8 << 20  # bytes

    def __init__(self) -> None:
        self._unsent = 0
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def wrote(self, fd: int, size: int) -> None:
        self._unsent += size
        if self._unsent < self._ENOUGH:
            return
        self._unsent = 0
        if self._thread is None:
            thread = threading.Thread(target=self._run, args=(fd,), daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return  # there is no room for a thread: all is flushed in the end
            self._thread = thread
        if self._wake.empty():
            self._wake.put(True)

    def stop(self) -> None:
        """Wait for the flush in progress; raise OSError if one failed, as the system reports a failure only once."""
        self._wake.put(False)  # also for a thread whose start a signal cut short
        if self._thread is not None and not sys.is_finalizing():  # which ends it without a word
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, fd: int) -> None:
        try:
            while self._wake.get():
                os.fsync(fd)
        except OSError as error:
            self._error = error


def sync_directory(path: str) -> None:
    """Flush the names of files in a directory to the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse; the rename itself is still atomic
    finally:
        os.close(fd)


class SectionFile:
    """An open file of sections: header and metadata are read and checked, sections are mapped."""

    MAGIC: bytes
    KINDS: Sequence[int] = (0,)
    """Those that it may be of; see `SectionWriter`."""
    NAME: str
    """What messages call such a file, after NOT."""
    TYPES: Collection[NumberType] = COLUMN_TYPES
    """What its sections may hold."""

    def __init__(self, path: str, opened: _native.Map) -> None:
        self.path = path
        self.map = opened
        self._verified: set[str] = set()  # sections that have their checksums
        self.records, self.checksum, self.kind, text = self._read_header()
        try:
            self._metadata: dict[str, Any] | None = json.loads(text)
            sections = self.metadata["sections"]
            self.sections = {intern(name): self._check_section(name, **each) for name, each in sections.items()}
        except Error:
            raise
        except MALFORMED as error:
            raise self.malformed(error) from None

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata as JSON has them; read from the file again where the object does not keep them."""
        found: dict[str, Any] = self._metadata if self._metadata is not None else json.loads(self._read_header()[3])
        return found

    def _read_header(self) -> tuple[int, int, int, bytes]:
        size = self.map.size
        header = self.read(0, min(size, _HEADER.size))
        if size < _HEADER.size or header[:8] != self.MAGIC:
            found = header[:8]
            wrong = f"expected {self.MAGIC!r} at byte 0, found {found!r}"
            if found == self.MAGIC:
                wrong = f"expected a header of {_HEADER.size} bytes, found {size}"
            raise FormatError(f"{self.path}: NOT {self.NAME}: {wrong}; {self.remedy()}")
        fields = _HEADER.unpack(header)
        _, version, header_size, records, offset, length, file_size, kind, checksum = fields
        if version != VERSION:
            raise FormatError(f"{self.path}: VERSION: expected format {VERSION}, found {version}; upgrade mmapds")
        if file_size != size:
            raise self.damaged(f"expected {file_size} bytes, as the header says, found {size}")
        if other := self.other_kind(kind):
            raise other
        if header_size != _HEADER.size or kind not in self.KINDS:
            known = " or ".join(map(str, self.KINDS))
            raise self.damaged(
                f"expected a header of {_HEADER.size} bytes and kind {known}, found {header_size} and {kind}"
            )
        if offset < _HEADER.size or length > size or offset > size - length:
            raise self.damaged(
                f"expected metadata within bytes {_HEADER.size} to {size}, found bytes {offset} to {offset + length}"
            )
        text = self.read(offset, length)
        digest = xxh3_64(header[:_CHECKED])
        digest.update(text)
        if digest.intdigest() != checksum:
            raise self.damaged(
                f"header and metadata do not match their checksum: expected {checksum:016x}, found {digest.hexdigest()}"
            )
        return records, checksum, kind, text

    def other_kind(self, kind: int) -> FormatError | None:
        """Return the error for a file of another kind that this mmapds knows."""
        return None

    def _check_section(self, name: str, dtype: str, shape: list[int], offset: int, xxh3: str, **_: Any) -> Section:
        (count,) = shape
        number_type = BY_DTYPE.get(dtype)
        if number_type is None or number_type not in self.TYPES:
            known = ", ".join(each.dtype for each in self.TYPES)
            raise self.damaged(f"section {name!r}: expected one of {known}, found {dtype!r}")
        section = Section(number_type.dtype, count, offset, xxh3)
        if type(count) is not int or type(offset) is not int or count < 0 or offset < 0 or offset % _ALIGNMENT:
            raise self.damaged(
                f"section {name!r}: expected 0 items or more at a multiple of {_ALIGNMENT} bytes, found {count!r} at "
                f"{offset!r}"
            )
        if offset + section.size > self.map.size:
            raise self.damaged(
                f"section {name!r} does not fit the file: expected up to {self.map.size} bytes, found its end at byte "
                f"{offset + section.size}"
            )
        return section

    @contextmanager
    def reporting_malformed_metadata(self) -> Iterator[None]:
        """Report malformed metadata, wherever it is first used, as FormatError."""
        try:
            yield
        except Error:
            raise
        except MALFORMED as error:
            raise self.malformed(error) from error

    def malformed(self, error: Exception) -> FormatError:
        """Return the error to raise for metadata that caused `error` when they were used."""
        return self.damaged(f"malformed metadata, or from a newer mmapds: {error!r}")

    def damaged(self, what: str) -> FormatError:
        """Return the error to raise for a file that differs from what its writer wrote."""
        return FormatError(f"{self.path}: DAMAGED: {what}; {self.remedy()}")

    def remedy(self) -> str:
        """Return what the user can do about a damaged file, as the end of a message."""
        return "write or copy it again"

    def read(self, begin: int, size: int) -> bytes:
        """Return a copy of some bytes of the file.

        Raises:
          FormatError: the file was cut short since it was opened.
          Error: the system cannot read it.
        """
        try:
            return self.map.read(begin, size)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def count_above(self, name: str, wanted: int) -> int:
        """Return how many words of a section are above `wanted`: u32, falling. Reads few of them.

        Raises as `read` does.
        """
        section = self.sections[name]
        try:
            return self.map.count_above(section.offset, section.size // 4, wanted)
        except (EOFError, OSError) as error:
            raise self._unread(error) from None

    def _unread(self, error: EOFError | OSError) -> Error:
        return self.cut_short() if isinstance(error, EOFError) else Error(f"{self.path}: {reason(error)}")

    def cut_short(self) -> FormatError:
        """Return the error to raise for a file that ends before it did when it was opened."""
        return self.damaged(f"expected {self.map.size} bytes, as when it was opened, found fewer")

    def section(self, name: str) -> memoryview:
        """Return the bytes of a section: mapped, or a copy where the file is read by pread."""
        section = self.sections[name]
        return self.part(section.offset, section.size)

    def part(self, begin: int, size: int) -> memoryview:
        """Return some bytes of the file: mapped, or a copy where it is read by pread."""
        if not self.map.is_mapped:
            return memoryview(self.read(begin, size))
        return memoryview(self.map)[begin : begin + size]

    def pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield a copy of the bytes of a section, or of some of them, a MB at a time."""
        section = self.sections[name]
        stop = section.offset + (section.size if end is None else end)
        for at in range(section.offset + begin, stop, _PIECE):
            yield self.read(at, min(_PIECE, stop - at))

    def checked_pieces(self, name: str, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
        """Yield what `pieces` does; the first time, read all of the section and compare its checksum in the end.

        Raises:
          FormatError: the section is damaged, so what was yielded may be.
        """
        if name in self._verified:
            yield from self.pieces(name, begin, end)
            return
        stop = self.sections[name].size if end is None else end
        digest, at = xxh3_64(), 0
        for piece in self.pieces(name):
            digest.update(piece)
            wanted = piece[max(begin - at, 0) : max(stop - at, 0)]
            if wanted:
                yield wanted
            at += len(piece)
        self.check_digest(name, digest.hexdigest())

    def verify_sections(self) -> None:
        """Read every section and check it against its checksum."""
        for name in self.sections:
            self.verify_section(name)

    def verify_section(self, name: str) -> None:
        """Read a section and check it against its checksum."""
        digest = xxh3_64()
        for piece in self.pieces(name):
            digest.update(piece)
        self.check_digest(name, digest.hexdigest())

    def check_digest(self, name: str, found: str) -> None:
        """Raise FormatError unless the bytes of a section have the checksum that the file says."""
        expected = self.sections[name].xxh3
        if found != expected:
            raise self.damaged(f"section {name!r} does not match its checksum: expected {expected}, found {found}")
        self._verified.add(name)
