"""Opening indexed sources as a dataset: `mmapds.open`."""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Collection, Iterable

from ..compression.cache import DEFAULT_SIZE
from ..errors import Error, build_command, warn
from ..index.build import Request, build_and_warn
from ..storage import current
from ..storage.current import BLOCKS
from ..storage.files import IoChoice, check_io
from ..storage.index_file import Index
from ..storage.sources import Roots, StrPath, given_twice, listed
from ..storage.view_file import SavedView, is_saved_view
from .catalog import Catalog
from .dataset import Dataset
from .decode import Decoder
from .indexed import OnError, make_dataset
from .meanings import differing
from .origin import Origin, expand_indexed, open_indexes, overlap
from .saving import unfolded


def open(  # noqa: A001 - mmapds.open is the public name
    source_or_index: StrPath | Iterable[StrPath],
    *,
    decode: str | Decoder | None = None,
    access: str = "auto",
    check: str = "stat",
    io: IoChoice = "mmap",
    block_cache: int = DEFAULT_SIZE,
    on_error: OnError = "raise",
    build: bool = False,
    roots: StrPath | Iterable[StrPath] = (),
) -> Dataset:
    """Open indexed sources as one dataset.

    Args:
      source_or_index: a source, an index or saved view (`.mmx`), a directory, a pattern, or a list, in this order. Of a
        directory: files with the suffix of a format, or an index of their own beside them; a warning names others.
      decode: the decoder, which makes a sample of a record: "json" (orjson), "text" (UTF-8), "bytes", "files" (a dict
        of the bytes of a tar's members), "wds" (those members decoded by extension), "pil" (the same, and images are
        RGB), "tf_example" (see `mmapds.dataset.tf_example`), `Fields`, or a picklable callable of the record's bytes.
        Each format has a default: "json" for JSONL, arrays for binary records with a dtype, "files" for tars. "torch"
        gives tensors where the default gives arrays; they share memory with the file, so they must not be written to.
      access: how records will be read. "random" turns off the kernel's readahead, which would fetch 32 pages for each
        one that is read. "sequential" leaves it on, for chunked orders and whole passes in file order. "auto" is
        "random", with readahead of our own where reads turn out to be in file order.
      check: how each source is compared with the one that was indexed. "stat" compares size and time and, where the
        time is another, as that of a copy, the fingerprint: 16 blocks of 16 KiB, which is all of a source of up to
        256 KiB. Of a larger one that is a sample, so it warns. "sample" compares all fingerprints, and does not warn.
        "full" compares hashes of whole sources, which `build(..., hash=True)` stores.
        "none" compares nothing: records of a source that changed may be any of its bytes, but no others.
      io: how files are read. "mmap" maps them: nothing is faster. "pread" copies each record by a system call, for
        network file systems whose maps cannot be trusted; columns that are asked for are then copied into memory. A
        dict says it by file: patterns of absolute paths, of which the first that matches counts; others are mapped. A
        file that cannot be mapped is read by pread, with a warning.
      block_cache: bytes of decoded blocks of compressed sources that each process keeps; least recently used ones go.
      on_error: "skip" leaves a record that cannot be decoded out of what `take` returns, with a warning, and counts it
        in `ds.skipped`. `len`, positions and states stay as they are, and `ds[i]` raises. See docs/formats.md.
      build: build missing and stale indexes first, instead of raising: see `mmapds.build`. Views are not saved again.
      roots: directories, with all below them, in which the sources of an index may lie besides the directory of the
        index itself; those in the environment variable `MMAPDS_ROOTS` are added. Sources that `source_or_index` names
        need none. An index from somebody else could name any file of yours: see SECURITY.md.
    Raises:
      SourceError: a source is missing, a pattern matches nothing, or an index names a file outside the roots.
      IndexMissingError, StaleIndexError: an index must be built first; the message has the command.
      FormatError: an index is damaged, or a newer mmapds wrote it.
      Error: `check` is "full" and an index has no hashes.
      TypeError: an argument is unknown.
    """
    _check_choices(check=(check, current.CHECKS), on_error=(on_error, ("raise", "skip")))
    check_io(io)
    patterns, paths = _expanded(source_or_index)
    allowed = Roots(roots, paths)
    if build and paths:
        _build(paths, allowed)
    indexes, rows = unfolded(_opened(paths, patterns, allowed, io))
    _warn(indexes, current.check(indexes, check), patterns)
    catalog = Catalog(indexes, access, io, block_cache)
    origin = Origin.of(patterns if rows is None else None, indexes)
    return make_dataset(catalog, origin, catalog.decoder(decode), on_error, rows)


def _expanded(given: StrPath | Iterable[StrPath]) -> tuple[list[str], list[str]]:
    """Return the patterns that are given and what they match.

    Warns of what is passed over in directories, and of files that are given twice.
    """
    patterns = [os.fspath(pattern) for pattern in listed(given)]
    paths = expand_indexed(patterns, warn)
    if line := given_twice(paths):
        warn(line)
    return patterns, paths


def _build(paths: list[str], roots: Roots) -> None:
    """Build the indexes that are missing or stale."""
    build_and_warn([path for path in paths if not is_saved_view(path)], Request(by_sample=True, roots=roots))


def _opened(paths: list[str], patterns: list[str], roots: Roots, io: IoChoice) -> list[Index | SavedView]:
    """Open indexes and saved views; warn where some that nobody named have the same source."""
    found = open_indexes(paths, patterns, roots, io)
    if told := overlap(paths, patterns, found):
        warn(told)
    return found


def _check_choices(**choices: tuple[str, Collection[str]]) -> None:
    for name, (value, known) in choices.items():
        if value not in known:
            raise Error(f"{name} = {value!r}, expected one of {', '.join(map(repr, known))}")


def _warn(indexes: list[Index], sampled: list[tuple[Index, int]], patterns: list[str]) -> None:
    """Warn of a column that is not the same in all indexes, and of sources of another time that a sample decided on."""
    if told := differing(indexes):
        warn(told)
    if not sampled:
        return
    index, number = sampled[0]
    more = f" and {len(sampled) - 1:,} more" if len(sampled) > 1 else ""
    is_one = all(other is index for other, _ in sampled)
    hint = index.hint(force=False) if is_one else f"run: {build_command(patterns)}"
    warn(
        f"{index.source_path(number)}{more}: expected the time of change of when it was indexed, found another and the "
        f"same bytes in {BLOCKS} blocks of it; {hint} (or give check='sample', if that is enough)",
    )
