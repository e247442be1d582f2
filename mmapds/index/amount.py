"""How many bytes building or checking an index reads: the totals of progress bars."""

import os
from collections.abc import Sequence

from ..errors import Error
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, index_path


def bytes_to_build(paths: Sequence[str], *, hashes: bool = False, roots: Roots) -> list[int]:
    """Return how many bytes of each path building reads: a source, or those of an index; twice as many with hashes.

    Args:
      paths: sources and indexes, expanded.
      hashes: whether hashes are asked for.
      roots: where the sources of an index may lie that is among the paths.
    """

    def size(path: str) -> int:
        try:
            if path.endswith(INDEX_SUFFIX):
                return sum(source.size for source in Index(path, roots).sources)
            return os.path.getsize(path)
        except (Error, OSError):  # the build says so
            return 0

    return [size(path) * (2 if hashes else 1) for path in paths]


def bytes_to_check(path: str) -> int:
    """Return how many bytes `examine` reads for the index of a source; 0 if it cannot be opened."""
    from .verify import work  # start-up time: building does without

    try:
        return work(Index(index_path(path)))
    except Error:
        return 0
