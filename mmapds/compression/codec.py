"""The zstd codec: that of the standard library, or before Python 3.14 its backport. It is imported late."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from ..errors import Error, check_memory


def zstd(path: str) -> ModuleType:
    """Return the module, which has the names of `compression.zstd`. Most processes never meet a compressed file.

    Args:
      path: the file that needs it.
    Raises:
      Error: it is missing, or cannot be loaded.
    """
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd as module
        else:
            from backports import zstd as module
    except ModuleNotFoundError:
        if sys.version_info >= (3, 14):
            raise Error(f"{path}: reading zstd needs a Python that is built with libzstd; build it again") from None
        raise Error(f"{path}: reading zstd needs backports.zstd; run: pip install backports.zstd") from None
    except ImportError as error:  # as where the address space is too small for it
        raise Error(f"{path}: reading zstd needs a library that cannot be loaded: {error}") from None
    return module


@contextmanager
def memory_checked(codec: ModuleType) -> Iterator[None]:
    """As `check_memory`, for what zstd raises meanwhile."""
    try:
        yield
    except codec.ZstdError as error:
        check_memory(error)
        raise


def decompressor(codec: ModuleType, options: dict[Any, int] | None = None) -> Any:
    """Return a new decoder of zstd.

    Raises:
      MemoryError: there is no room for one.
    """
    with memory_checked(codec):
        return codec.ZstdDecompressor(None, options)
