"""Where seekable files are written: beside their sources or elsewhere, and over nothing that is still to be read."""

import os
from collections.abc import Sequence

from ..compression.frames import Frames
from ..compression.seek_table import read_table
from ..errors import Error, either
from ..storage.replaced import check_is_free
from ..storage.sources import SEEKABLE, Source, real_path, without_codec
from .text import inspected, mapped

_SUFFIXES = (".zst", ".zstd", ".gz", ".bgz", ".gzip")
_TARS = (".tgz", ".tzst")
_SUFFIX = ".zst"
_ONE_BY_ONE = "give them one by one, and another place for each"


def elsewhere() -> str:
    """Return how users name another place."""
    return either("-o OUT.zst", "out=...")


def frames_as_they_are(source: Source, codec: str, frame: int) -> Frames | None:
    """Return the frames of a source that is seekable already; None if it is not, or they are larger than is wanted."""
    found = read_table(mapped(source)) if codec == "zstd" else None
    if found is None or not found.contents or sum(found.contents) > len(found.contents) * frame:
        return None
    return found


def target_of(path: str, codec: str, out: str | None) -> str:
    """Return the path to write for a source that is compressed by `codec`.

    Raises:
      Error: its name is not that of a zstd file, or its directory is missing.
    """
    beside = _beside(path, codec)
    into_directory = out is not None and os.path.isdir(out)
    target = beside if out is None else os.path.join(out, os.path.basename(beside)) if into_directory else out
    if not target.endswith(_SUFFIX) or os.path.isdir(target):
        raise Error(f"{target}: cannot write the seekable file here: expected a file name that ends in {_SUFFIX}")
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise Error(
            f"{target}: cannot write the seekable file here (no such directory); give another place with {elsewhere()}"
        )
    return target


def check_target(target: str, path: str, out: str | None) -> None:
    """Raise Error if a file is there already, unless it is the source and the user names it."""
    is_source = out is not None and os.path.exists(target) and os.path.samefile(target, path)
    if not is_source:
        check_is_free(target, elsewhere())


def check_apart(paths: Sequence[str], out: str | None, frame: int, *, force: bool) -> None:
    """Refuse sources of one command of which one would be replaced by what another becomes, or both become one file.

    Raises:
      Error: there are such. What `inspected` and `target_of` raise.
    """
    found = [inspected(path) for path in paths]
    sources = {_file_at(path): path for path in paths}
    written: dict[str, str] = {}
    for path, (source, codec) in zip(paths, found, strict=True):
        if out is None and not force and frames_as_they_are(source, codec, frame) is not None:
            continue
        target = target_of(path, codec, out)
        replaced = sources.get(_file_at(target), path) if os.path.exists(target) else path
        if replaced != path:
            raise Error(f"{target}: expected a name that is free, found the source {replaced}; {_ONE_BY_ONE}")
        place = os.path.join(real_path(os.path.dirname(target)), os.path.basename(target))
        if place in written:
            raise Error(f"{target}: expected one source for it, found {written[place]} and {path}; {_ONE_BY_ONE}")
        written[place] = path


def _file_at(path: str) -> tuple[int, int]:
    """Return what is the same for all names of a file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def _beside(path: str, codec: str) -> str:
    """Return the path of the file to write beside a source that is compressed by `codec`."""
    stem, suffix = os.path.splitext(without_codec(path) if path.endswith(_TARS) else path)
    plain = stem if codec and suffix in _SUFFIXES else stem + suffix
    if plain + _SUFFIX != path:
        return plain + _SUFFIX
    stem, suffix = os.path.splitext(plain)
    return f"{stem}{SEEKABLE}{suffix}{_SUFFIX}"
