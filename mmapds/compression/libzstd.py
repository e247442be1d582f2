"""zstd's own library, where the system has it: it decodes a block from memory to memory, in one call."""

import os
import sys
from functools import cache

from .. import _native

_NAMES = (
    tuple(os.path.join(folder, "libzstd.1.dylib") for folder in ("", "/opt/homebrew/lib", "/usr/local/lib"))
    if sys.platform == "darwin"
    else ("libzstd.so.1",)
)


@cache
def library() -> _native.Zstd | None:
    """Return it, loaded; None where there is none, and the codec of Python decodes all blocks."""
    for name in _NAMES:
        try:
            return _native.Zstd(name)
        except OSError:
            continue
    return None
