"""Indexes that are left out of a directory, or of what a pattern matches, although sources of theirs are gone."""

import os
from collections.abc import Sequence

from ..errors import Error, SourceError
from .compressed_by import CODECS, without_codec
from .index_file import Index
from .sources import quoted


def check_none_is_gone(paths: Sequence[str], *, parts: bool) -> None:
    """Raise SourceError for an index whose sources, in its own directory, are gone.

    Saved views and files that cannot be read as indexes are passed over. A source that was compressed or decompressed
    is there under its other name.

    Args:
      paths: of indexes that do not stand beside a source.
      parts: whether one source that is gone, of several, is an error, too.
    """
    for path in paths:
        try:
            index = Index(path)
        except Error:
            continue
        inside = [number for number, source in enumerate(index.sources) if "/" not in source.path]
        gone = [number for number in inside if not _is_there(index.absolute(index.source_path(number)))]
        if gone and len(gone) == len(index.sources):
            more = len(gone) - 1
            where = index.source_path(gone[0]) + (f" and {more} more" if more else "")
            what, back = ("them", "them") if more else ("it", "the file")
            raise SourceError(f"{where}: no such file; delete {quoted(path)}, which indexes {what}, or put {back} back")
        if gone and parts:
            raise index.unreadable(gone[0], "no such file")


def _is_there(path: str) -> bool:
    others = [path + suffix for suffixes in CODECS.values() for suffix in suffixes]
    return any(map(os.path.lexists, [path, without_codec(path), *others]))
