"""Fingerprints and hashes of sources: a copy has another time, and these tell it from a file of other content."""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from xxhash import xxh3_64, xxh3_128

from ..errors import SourceError
from .sources import Source, changed, kind_of_file, unreadable
from .threads import in_order

BLOCKS, BLOCK = 16, 1 << 14
"""How many blocks a fingerprint covers, and their bytes. Few, as each is a seek; in memory, they take 33 us."""
COVERED = BLOCKS * BLOCK
"""Bytes: a fingerprint covers the whole of a source that is not larger."""
WAITING = 16
"""Threads that sample sources: they wait for the disk or the network more than they compute."""
_PIECE = 1 << 20
Task = TypeVar("Task")
Result = TypeVar("Result")


class Digest(NamedTuple):
    """What a source holds, and the size and time that it had when it was read."""

    size: int
    mtime_ns: int
    hex: str


def fingerprint(path: str, size: int | None = None) -> Digest:
    """Return xxh3-64 of a file's size and of 16 blocks of 16 KiB, evenly spaced from its first byte to its last.

    Up to 256 KiB, that is the whole file.

    Args:
      size: take the first bytes of the file, as many as these, for the file.
    Raises:
      SourceError: it cannot be read, or is not a regular file.
    """
    with _opened(path) as fd:
        found = os.fstat(fd)
        size = found.st_size if size is None else size
        digest = xxh3_64(size.to_bytes(8, "little"))
        begins: Sequence[int] = range(0, size, BLOCK)
        if size > COVERED:
            begins = [block * (size - BLOCK) // (BLOCKS - 1) for block in range(BLOCKS)]
        for begin in begins:  # in small pieces, as the memory of large ones would be new each time
            digest.update(os.pread(fd, min(BLOCK, size - begin), begin))
    return Digest(size, found.st_mtime_ns, digest.hexdigest())


def full_hash(path: str, report: Callable[[int], object] = lambda _: None, size: int | None = None) -> Digest:
    """Return xxh3-128 of all bytes of a file.

    Args:
      report: called with the number of bytes that were read since the last call.
      size: take the first bytes of the file, as many as these, for the file.
    Raises:
      SourceError: it cannot be read, is not a regular file, or changes meanwhile.
    """
    with _opened(path) as fd:
        before = os.fstat(fd)
        digest = xxh3_128()
        piece, left = memoryview(bytearray(_PIECE)), before.st_size if size is None else size
        while left and (count := os.readv(fd, [piece[:left]])):
            digest.update(piece[:count])
            report(count)
            left -= count
        after = os.fstat(fd)
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise changed(Source(path, before.st_size, before.st_mtime_ns), after.st_size)
    return Digest(before.st_size, before.st_mtime_ns, digest.hexdigest())


def each(work: Callable[[Task], Result], tasks: Sequence[Task], *, workers: int) -> Iterator[Result]:
    """Yield `work(task)` for every task, such as a path, in order, computed by threads."""
    workers = max(min(workers, len(tasks)), 1)
    slots = list(range(workers + 2))  # which `in_order` wants; this work needs no memory of its own
    return in_order(lambda task, _: work(task), tasks, workers=workers, slots=slots)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO would wait for its writer
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            raise SourceError(f"{path}: expected a regular file, found {kind_of_file(mode)}")
        yield fd
    except OSError as error:
        raise unreadable(path, error) from None
    finally:
        os.close(fd)
