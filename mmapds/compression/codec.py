"""The zstd codec: that of the standard library, or before Python 3.14 its backport. It is imported late."""

import sys
from types import ModuleType

from ..errors import Error
from ..storage.imports import importing


def zstd(path: str) -> ModuleType:
    """Return the module, which has the names of `compression.zstd`. Most processes never meet a compressed file.

    Args:
      path: the file that needs it.
    Raises:
      Error: it is missing.
    """
    try:
        with importing:
            if sys.version_info >= (3, 14):
                from compression import zstd as module
            else:
                from backports import zstd as module
    except ModuleNotFoundError:
        if sys.version_info >= (3, 14):
            raise Error(f"{path}: reading zstd needs a Python that is built with libzstd; build it again") from None
        raise Error(f"{path}: reading zstd needs backports.zstd; run: pip install backports.zstd") from None
    return module
