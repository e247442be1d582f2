"""Which names sources may have."""

import os

from ..errors import SourceError


def check_name(path: str) -> None:
    """Raise SourceError for a source whose name is not UTF-8, and cannot be in an index."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise SourceError(f"{os.fsencode(path)!r}: expected a name in UTF-8; rename the file") from None
