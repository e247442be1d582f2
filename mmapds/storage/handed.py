"""Arrays handed to spawned processes: by the path of a file that all of them map, and not byte by byte."""

import os
from contextlib import suppress
from io import BufferedWriter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import Error, SourceError
from .lock import create_temporary, remove_leftovers
from .processes import is_spawning
from .sources import make_room, reason

_SMALL = 16 << 10  # bytes that a pickle holds

_written: dict[str, tuple[int, BufferedWriter]] = {}
"""Files of this process by their path, open as long as it lives: with its number, as forked children have a copy."""


class Handed(NamedTuple):
    """Where the arrays of a pickle lie, one after another."""

    path: str
    parts: tuple[tuple[str, int], ...]
    """Type and number of items of each."""

    def open(self) -> list[NDArray[Any]]:
        """Map the arrays.

        Raises:
          SourceError: the file is gone, as the process that pickled them has ended.
        """
        size = sum(np.dtype(dtype).itemsize * items for dtype, items in self.parts)
        try:
            opened = memoryview(_native.Map(self.path))
        except (OSError, ValueError) as error:
            problem = reason(error) if isinstance(error, OSError) else "not a regular file"
            raise SourceError(
                f"{self.path}: {problem}; save the view with ds.save(PATH), and pickle what opens that (the "
                "process that pickled the view has ended)"
            ) from None
        if len(opened) != size:
            raise SourceError(f"{self.path}: expected {size} bytes, found {len(opened)}; pickle the view again")
        arrays, at = [], 0
        for dtype, items in self.parts:
            arrays.append(np.frombuffer(opened, dtype, items, at))
            at += arrays[-1].nbytes
        return arrays


class Shared:
    """Arrays that spawned processes get by a file, which is written once, however many processes there are.

    Args:
      arrays: of 8 bytes a number, or less in the last of them.
    """

    def __init__(self, *arrays: NDArray[Any]) -> None:
        self._arrays = list(arrays)
        self._handed: Handed | None = None

    def in_pickle(self) -> list[NDArray[Any]] | Handed:
        """Return what a pickle holds in place of the arrays.

        While a process is spawned, that is a file in the directory for temporary files, unless they are small. This
        process removes it when it ends; where it is killed, the next one that writes such a file does. Other pickles
        may be read on another machine, or much later: these hold the arrays.

        Raises:
          Error: the file cannot be written.
        """
        if not is_spawning() or sum(array.nbytes for array in self._arrays) <= _SMALL:
            return self._arrays
        if self._handed is None or _written[self._handed.path][0] != os.getpid():  # a forked child may live longer
            parts = tuple((array.dtype.str, len(array)) for array in self._arrays)
            self._handed = Handed(_write(self._arrays), parts)
        return self._handed


def _write(arrays: list[NDArray[Any]]) -> str:
    """Write arrays to a file that is there as long as this process; return its path."""
    # Both for the sake of start-up time, as few need them.
    import tempfile
    from multiprocessing.util import Finalize

    target, path = os.path.join(tempfile.gettempdir(), f"mmapds-{os.getuid()}-rows"), ""
    remove_leftovers(target)
    try:
        process = os.getpid()
        if all(writer != process for writer, _ in _written.values()):
            # Not atexit, without which processes end that multiprocessing forks. The last, once children are joined.
            Finalize(None, _remove_all, exitpriority=-100)
        path, file = create_temporary(target)
        _written[path] = process, file
        for array in arrays:
            file.write(np.ascontiguousarray(array).data)
        file.flush()
    except OSError as error:
        _remove_last(path)
        raise Error(
            f"{target}: cannot write the rows of a view for a process that is spawned ({reason(error)}); "
            f"{make_room(error)}set TMPDIR to a directory with room"
        ) from None
    return path


def _remove_last(path: str) -> None:
    """Remove a file that could not be written."""
    if path in _written:
        _, file = _written.pop(path)
        with suppress(OSError):
            os.unlink(path)
        with suppress(OSError):  # it writes what is left
            file.close()


def taken(handed: list[NDArray[Any]] | Handed) -> list[NDArray[Any]]:
    """Return the arrays that a pickle holds, or leads to.

    Raises:
      SourceError: their file is gone.
    """
    return handed.open() if isinstance(handed, Handed) else handed


def _remove_all() -> None:
    for path, (process, file) in _written.items():
        with suppress(OSError):
            if process == os.getpid():
                os.unlink(path)
            file.close()
