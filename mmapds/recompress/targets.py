"""Where seekable files are written: beside their sources or elsewhere, and over nothing that is still to be read."""

import os
import re
from collections.abc import Sequence

from ..compression.frames import Frames
from ..compression.seek_table import read_table
from ..errors import Error, either
from ..storage.files import open_file
from ..storage.replaced import check_is_free, is_same_file
from ..storage.sources import SEEKABLE, Source, inspect, without_codec

_SUFFIX = ".zst"


def elsewhere() -> str:
    """Return how users name another place."""
    return either("-o OUT.zst", "out=...")


def frames_as_they_are(source: Source, frame: int) -> Frames | None:
    """Return the frames of a source that is seekable already; None if it is not, or they are larger than is wanted."""
    found = read_table(open_file(source.path, scan=True)) if source.codec == "zstd" else None
    if found is None or not found.contents or sum(found.contents) > len(found.contents) * frame:
        return None
    return found


def target_of(source: Source, out: str | None) -> str:
    """Return the path to write for a source.

    Raises:
      Error: its name is not that of a zstd file, or its directory is missing.
    """
    target = _beside(source) if out is None else out
    if out is not None and os.path.isdir(out):
        target = os.path.join(out, os.path.basename(_beside(source)))
    if not target.endswith(_SUFFIX) or os.path.isdir(target):
        raise Error(f"{target}: cannot write the seekable file here: expected a file name that ends in {_SUFFIX}")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(
            f"{target}: cannot write the seekable file here (no such directory); give another place with {elsewhere()}"
        )
    return target


def check_target(target: str, path: str, out: str | None) -> None:
    """Raise Error if a file is there already, unless it is the source and the user names it."""
    if out is None or not is_same_file(target, path):
        check_is_free(target, elsewhere())


def check_apart(paths: Sequence[str], out: str | None, frame: int, *, force: bool) -> None:
    """Refuse sources of one command of which one would be replaced by what another becomes, or both become one file.

    Raises:
      Error: there are such. What `inspect` and `target_of` raise.
    """
    taken = {os.path.realpath(path): path for path in paths}
    for source in map(inspect, paths):
        if out is None and not force and frames_as_they_are(source, frame) is not None:
            continue
        target = target_of(source, out)
        other = taken.setdefault(os.path.realpath(target), source.path)
        if other != source.path:
            raise Error(
                f"{target}: expected one source for it, found {other} and {source.path}; give them one by one, and "
                "another place for each"
            )


def _beside(source: Source) -> str:
    """Return the path of the file to write beside a source."""
    path = source.path
    plain = re.sub(r"\.(zstd|gzip)$", "", without_codec(path)) if source.codec else path
    if plain + _SUFFIX != path:
        return plain + _SUFFIX
    stem, suffix = os.path.splitext(plain)
    return f"{stem}{SEEKABLE}{suffix}{_SUFFIX}"
