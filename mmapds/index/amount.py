"""How many bytes building or checking an index reads: the totals of progress bars."""

import os
from collections.abc import Sequence
from contextlib import suppress

from ..errors import Error, SourceError
from ..storage.current import stat_source
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.sources import index_path


def bytes_to_build(paths: Sequence[str], *, out: str | None = None, hashes: bool = False, roots: Roots) -> list[int]:
    """Return how many bytes building each index reads: its sources, and twice if they are hashed, too.

    Args:
      paths: sources and indexes, expanded.
      out: the one index for all of them, if there is one.
      hashes: whether hashes are asked for; an index that has them keeps them.
      roots: where the sources of an index may lie that is among the paths.
    """

    def amount(path: str, members: Sequence[str]) -> int:
        before = None
        with suppress(Error):
            before = Index(path, roots)
        if members == [path]:
            size = sum(_size(before, number) for number in range(len(before.sources))) if before else 0
        else:
            size = sum(os.path.getsize(each) for each in members if os.path.exists(each))
        is_hashed = hashes or (before is not None and any(source.xxh3_128 for source in before.sources))
        return 2 * size if is_hashed else size

    return [amount(out, paths)] if out is not None else [amount(index_path(path), [path]) for path in paths]


def bytes_to_merge(paths: Sequence[str]) -> int:
    """Return how many bytes the sources of some indexes have; of those that can be opened."""
    size = 0
    for path in paths:
        with suppress(Error):
            size += sum(source.size for source in Index(path).sources)
    return size


def _size(index: Index, number: int) -> int:
    """Return the size of a source as it is now or, if nothing is there to be read, as it was."""
    try:
        return stat_source(index, number).st_size
    except SourceError:
        return index.sources[number].size


def bytes_to_check(path: str) -> int:
    """Return how many bytes `examine` reads for the index of a source; 0 if it cannot be opened."""
    from .verify import work  # start-up time: building does without

    try:
        return work(Index(index_path(path)))
    except Error:
        return 0
