"""What a machine has, and what processes take of it; None where the system does not say."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple


class Usage(NamedTuple):
    """What this process and its workers hold and have read."""

    memory: int | None
    """Bytes of memory that are their own: anonymous pages, not those of files, which all processes share."""
    read: int | None
    """Bytes that came from a disk, not from memory."""

    @classmethod
    def now(cls) -> Usage:
        """Return what it is now."""
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid is not None)]
        return cls(
            _sum(f"/proc/{pid}/smaps_rollup" for pid in pids),
            _sum((f"/proc/{pid}/io" for pid in pids), name="read_bytes:", unit=1),
        )


def _sum(paths: Iterable[str], *, name: str = "Anonymous:", unit: int = 1024) -> int | None:
    """Return the sum of a number that files of /proc have; None where there is none."""
    found = [number for path in paths for number in (_number(path, name),) if number is not None]
    return sum(found) * unit if found else None


def _number(path: str, name: str) -> int | None:
    try:
        with open(path) as file:
            return next((int(line.split()[1]) for line in file if line.startswith(name)), None)
    except (OSError, ValueError):  # another system, or a process that has just ended
        return None


def can_drop_pages() -> bool:
    """Return whether the system can be asked to drop pages of files."""
    return hasattr(os, "posix_fadvise")


def drop_pages(paths: Iterable[str]) -> None:
    """Ask the system to drop the pages of files from memory; the files stay as they are.

    It keeps pages that any process has mapped and touched, and those of file systems that are memory.
    """
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # pages that are not written yet would be kept
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def available_memory() -> int | None:
    """Return the bytes of memory that processes and pages of files can still take."""
    found = _number("/proc/meminfo", "MemAvailable:")
    return None if found is None else found * 1024
