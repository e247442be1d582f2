"""A file of sections: written once and atomically, opened in constant time, trusted in nothing."""

import errno
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, NamedTuple, Self

from .. import _native
from ..errors import Error, FormatError
from .lock import alone
from .numbers import WIDTHS
from .sources import reason
from .spool import Spool

VERSION = 1
_HEADER = struct.Struct("<8sIIQQQQQQ")
_CHECKED = _HEADER.size - 8  # all of the header but its checksum
_ALIGNMENT = 64
_IN_MEMORY = 16 << 20  # bytes of scratch memory
_PIECE = 4 << 20  # bytes written at a time, so that a checksum is made of what is still in the cache
COLUMN = "column:"
"""Begins the name of a section that is a column."""


class Section(NamedTuple):
    """An array in the file."""

    dtype: str
    items: int
    offset: int
    xxh3: str

    @property
    def size(self) -> int:
        """Bytes."""
        return self.items * WIDTHS[self.dtype]


MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
"""What metadata raise that are not as they should be."""


class SectionWriter:
    """Writes a file of sections beside its final place and moves it there when it is whole.

    Used as a context manager: unless `commit` was reached, nothing is left behind, and a file that was there before is
    untouched.
    """

    MAGIC: bytes
    SUFFIX: str
    NAME: str
    """What messages call such a file."""
    ELSEWHERE: str
    """How the user says where else to write it."""

    def __init__(self, path: str) -> None:
        from xxhash import xxh3_64

        if not path.endswith(self.SUFFIX) or os.path.isdir(path):
            raise Error(
                f"{path}: cannot write {self.NAME} here; expected the name of a file that ends in {self.SUFFIX}"
            )
        self.path = path
        self.target = os.path.join(os.getcwd(), path)
        """Where it goes, whatever the working directory is by then."""
        self._temporary = f"{self.target}.{os.urandom(4).hex()}.tmp"
        self._hash = xxh3_64
        self._sections: dict[str, dict[str, Any]] = {}
        self._open_section: tuple[str, str, int, Any] | None = None
        self._spools: list[Spool] = []
        try:
            self._file = open(self._temporary, "xb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise Error(
                f"{path}: cannot write {self.NAME} here ({reason(error)}); give another place{self.ELSEWHERE}"
            ) from None
        self._flusher = _Flusher(self._file.fileno())
        self._file.write(bytes(_HEADER.size))

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Turn errors of the system, while something is written for this file, into one that says which."""
        try:
            yield
        except OSError as error:
            raise Error(
                f"{self.path}: cannot write {self.NAME} ({reason(error)}); nothing was changed; make room, or give "
                f"another place{self.ELSEWHERE}"
            ) from None

    def begin_section(self, name: str, dtype: str) -> None:
        """Start the section that `write` appends to."""
        self._end_section()
        with self.writing():
            self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        self._open_section = name, dtype, self._file.tell(), self._hash()

    def spool(self) -> Spool:
        """Return a place for a column beside the file."""
        self._spools.append(Spool(f"{self._temporary}.{os.urandom(4).hex()}"))
        return self._spools[-1]

    def scratch(self, size: int) -> mmap.mmap:
        """Return memory; if much, of a nameless file beside this one, so that the kernel may write it out."""
        if size <= _IN_MEMORY:
            return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        name = f"{self._temporary}.{os.urandom(4).hex()}"
        with self.writing(), open(name, "x+b") as file:
            os.unlink(name)
            _allocate(file.fileno(), size)
            return mmap.mmap(file.fileno(), size)

    def write_column(self, name: str, spool: Spool) -> None:
        """Append a column as a section."""
        self.begin_section(COLUMN + name, spool.dtype)
        for chunk in spool.chunks():
            self.write(chunk)

    def write_array(self, name: str, dtype: str, data: "memoryview | bytes | mmap.mmap") -> None:
        """Append a whole section."""
        self.begin_section(name, dtype)
        for begin in range(0, len(data), _PIECE):
            self.write(memoryview(data)[begin : begin + _PIECE])

    def column(self, name: str) -> tuple[str, memoryview]:
        """The type and the bytes of a column that was written, mapped."""
        self._end_section()
        section = self._sections[COLUMN + name]
        with self.writing():
            self._file.flush()
        view = memoryview(_native.Map(self._temporary))
        size = section["shape"][0] * WIDTHS[section["dtype"]]
        return section["dtype"], view[section["offset"] : section["offset"] + size]

    @property
    def section_begin(self) -> int:
        """Where the section that was begun last lies in the file."""
        assert self._open_section is not None
        return self._open_section[2]

    def write(self, data: "memoryview | bytes | bytearray") -> None:
        """Append to the section that was begun last."""
        assert self._open_section is not None
        self._open_section[3].update(data)
        with self.writing():
            self._file.write(data)
        self._flusher.wrote(len(data))

    def _end_section(self) -> None:
        if self._open_section is None:
            return
        name, dtype, offset, digest = self._open_section
        count = (self._file.tell() - offset) // WIDTHS[dtype]
        self._sections[name] = {"dtype": dtype, "shape": [count], "offset": offset, "xxh3": digest.hexdigest()}
        self._open_section = None

    def commit(self, metadata: dict[str, Any], records: int, check: Callable[[], object] = lambda: None) -> None:
        """Finish the file, flush it to the disk, and put it in its place.

        Args:
          check: called while no other writer replaces files of that directory; what it raises leaves them as they are.
        """
        self._end_section()
        text = json.dumps(metadata | {"sections": self._sections}, ensure_ascii=False).encode()
        offset = self._file.tell()
        with self.writing():
            self._file.write(text)
        header = _HEADER.pack(self.MAGIC, VERSION, _HEADER.size, records, offset, len(text), offset + len(text), 0, 0)[
            :_CHECKED
        ]
        checksum = self._hash(header + text).intdigest()
        with self.writing():
            self._file.seek(0)
            self._file.write(header + checksum.to_bytes(8, "little"))
            self._file.flush()
            self._flusher.stop()
            os.fsync(self._file.fileno())
            self._file.close()
            with alone(os.path.dirname(self.target)):
                check()
                os.replace(self._temporary, self.target)
            _sync_directory(os.path.dirname(self.target))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(OSError):  # commit has raised it, or nothing of this file is wanted
            self._flusher.stop()
        with suppress(OSError):
            self._file.close()
        for spool in self._spools:
            spool.close()
        with suppress(FileNotFoundError):
            os.unlink(self._temporary)


class _Flusher:
    """Sends what is written to the disk meanwhile, so that the flush at the end has little left to wait for."""

    _ENOUGH = 8 << 20

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._unsent = 0
        self._wake: SimpleQueue[bool] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def wrote(self, size: int) -> None:
        self._unsent += size
        if self._unsent < self._ENOUGH:
            return
        self._unsent = 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        if self._wake.empty():
            self._wake.put(True)

    def stop(self) -> None:
        """Wait for what was begun; raise OSError if the disk refused it, as a later flush would not say so again."""
        if self._thread is not None:
            self._wake.put(False)
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._wake.get():
                os.fsync(self._fd)
        except OSError as error:
            self._error = error


def _allocate(fd: int, size: int) -> None:
    """Give an empty file all its blocks, as a store to a map of a file without them is SIGBUS where the disk is full.

    Raises:
      OSError: there is no room.
    """
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:  # macOS has no such call, and some file systems refuse it
        if isinstance(error, OSError) and error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        zeros = bytes(_PIECE)
        for begin in range(0, size, _PIECE):
            left = memoryview(zeros)[: size - begin]
            while left:  # a write may take less than all
                left = left[os.write(fd, left) :]


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    except OSError:
        pass  # some network file systems refuse; the rename itself is still atomic
    finally:
        os.close(fd)


class SectionFile:
    """An open file of sections: its header and metadata read and checked, its sections mapped."""

    MAGIC: bytes
    NAME: str
    """What messages call such a file, after NOT."""
    DTYPES: Collection[str] = ("<u4", "<u8", "<i8", "<f8")
    """What its sections may hold."""

    def __init__(self, path: str, opened: _native.Map) -> None:
        self.path = path
        self.map = opened
        view = memoryview(opened)
        self.records, self.checksum, text = self._read_header(view)
        try:
            self.metadata: dict[str, Any] = json.loads(bytes(text))
            self.sections = {
                name: self._check_section(name, **section) for name, section in self.metadata["sections"].items()
            }
        except MALFORMED as error:
            raise self._not_as_specified(error) from None

    def _read_header(self, view: memoryview) -> tuple[int, int, memoryview]:
        size = len(view)
        if size < _HEADER.size or view[:8] != self.MAGIC:
            raise FormatError(
                f"{self.path}: NOT {self.NAME}: it begins with {bytes(view[:8])!r}, expected {self.MAGIC!r}"
            )
        fields = _HEADER.unpack_from(view)
        _, version, header_size, records, offset, length, file_size, reserved, checksum = fields
        if version != VERSION:
            raise FormatError(
                f"{self.path}: VERSION: file is format {version}, this mmapds reads {VERSION}; upgrade mmapds"
            )
        if file_size != size:
            raise self.damaged(f"it has {size} bytes, its header says {file_size}")
        if header_size != _HEADER.size or reserved != 0:
            raise self.damaged("a reserved field of its header is set")
        if offset < _HEADER.size or length > size or offset > size - length:
            raise self.damaged(f"its metadata, bytes {offset} to {offset + length}, are outside the file")
        from xxhash import xxh3_64

        text = view[offset : offset + length]
        digest = xxh3_64(view[:_CHECKED])
        digest.update(text)
        if digest.intdigest() != checksum:
            raise self.damaged("its header and metadata do not match their checksum")
        return records, checksum, text

    def _check_section(self, name: str, dtype: str, shape: list[int], offset: int, xxh3: str, **_: Any) -> Section:
        (count,) = shape
        section = Section(dtype, count, offset, xxh3)
        whole = all(type(n) is int and n >= 0 for n in (count, offset)) and dtype in self.DTYPES
        if not whole or offset % _ALIGNMENT or offset + section.size > len(memoryview(self.map)):
            raise self.damaged(f"section {name!r} does not fit the file")
        return section

    def _not_as_specified(self, error: Exception) -> FormatError:
        return self.damaged(f"its metadata are not as specified ({error!r})")

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Have errors that metadata raise when they are made use of say that it is these."""
        try:
            yield
        except Error:
            raise
        except MALFORMED as error:
            raise self.damaged(f"its metadata are not as specified ({error!r}), or newer than this mmapds") from error

    def remedy(self) -> str:
        """Return what the user can do about a damaged file, as the end of a message."""
        return "write or copy it again"

    def damaged(self, what: str) -> FormatError:
        """Return the error to raise for a file that is not as its writer left it."""
        return FormatError(f"{self.path}: DAMAGED: {what}; {self.remedy()}")

    def section(self, name: str) -> memoryview:
        """The bytes of a section, mapped."""
        section = self.sections[name]
        return memoryview(self.map)[section.offset : section.offset + section.size]

    def verify_sections(self) -> None:
        """Read every section and check it against its checksum."""
        for name in self.sections:
            self.verify_section(name)

    def verify_section(self, name: str) -> None:
        """Read a section and check it against its checksum."""
        from xxhash import xxh3_64

        if xxh3_64(self.section(name)).hexdigest() != self.sections[name].xxh3:
            raise self.damaged(f"section {name!r} does not match its checksum")
