"""Building indexes: `build()` and `python -m mmapds.index`."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import __version__, _native, formats
from .errors import Error, FormatError, IndexMissingError, SourceError, StaleIndexError
from .parallel import cores
from .sources import INDEX_SUFFIX, Source, StrPath, check_unchanged, expand, fingerprint, inspect, reason
from .store import Index, IndexedSource, IndexWriter, relative_to_index

if TYPE_CHECKING:
    from pathlib import Path  # at run time where it is needed: it takes as long to import as 40 MB to index


class Summary(NamedTuple):
    """What an index covers."""

    path: str
    sources: int
    records: int
    size: int
    """Bytes in the sources."""
    smallest: int
    largest: int
    """Sizes of records in bytes, line ends and following blank lines included; 0 when there are none."""

    def __str__(self) -> str:
        mean = self.size / self.records if self.records else 0.0
        sources = f" in {self.sources:,} sources" if self.sources > 1 else ""
        return (
            f"{self.path}: {self.records:,} records{sources}, {self.size:,} bytes, "
            f"{mean:.1f} bytes a record ({self.smallest:,} to {self.largest:,})"
        )


class Built(NamedTuple):
    """The outcome of one index."""

    summary: Summary
    fresh: bool
    """False when the index was up to date and nothing was done."""


def build(
    sources: StrPath | Iterable[StrPath],
    *,
    out: StrPath | None = None,
    format: str | None = None,  # noqa: A002 - the field's word, and what the command line calls it
    workers: int | None = None,
    force: bool = False,
) -> "Path | list[Path]":
    """Index sources in place; an index that is up to date is left as it is.

    Args:
      sources: paths, directories, globs or brace patterns (`part-{000..099}.jsonl`). The path of an index stands for
        that index, which is built again from its sources where they changed.
      out: one combined index for all sources; by default each gets its own, `train.jsonl.mmx` beside `train.jsonl`.
      format: how records are framed; by default the suffix decides.
      workers: threads that scan, also within one file; all cores by default.
      force: build even where an index is up to date.
    Returns:
      The index's path; a list of them for several sources without `out`.
    Raises:
      SourceError: a source is missing, unreadable, compressed, no regular file, or changes meanwhile.
      Error: an index cannot be written.
    """
    from pathlib import Path

    paths = expand(sources, formats.SUFFIXES)
    built = [Path(done.summary.path) for done in build_each(paths, out, format, workers, force)]
    return built[0] if len(built) == 1 else built


def build_each(
    paths: list[str],
    out: StrPath | None = None,
    format_name: str | None = None,
    workers: int | None = None,
    force: bool = False,
    report: Callable[[int], object] = lambda _: None,
) -> Iterator[Built]:
    """Build the indexes of expanded paths one after another, yielding each as it is done.

    `report` is called with the number of bytes that were dealt with since the last call.
    """
    if not paths:
        raise SourceError("no sources were given")
    workers = cores() if workers is None else workers
    if workers < 1:
        raise Error(f"workers = {workers}, expected 1 or more")
    plans = [_plan(path, format_name) for path in paths] if out is None else [(os.fspath(out), paths, format_name)]
    for index_path, members, wanted_format in plans:
        chosen = _format(members, wanted_format)
        sources = [inspect(path) for path in members]
        existing = None if force else _up_to_date(index_path, sources, chosen.NAME)
        if existing is None:
            _write(index_path, sources, chosen, workers, report)
            yield Built(summarise(Index(index_path)), fresh=True)
        else:
            report(sum(source.size for source in sources))
            yield Built(summarise(existing), fresh=False)


def _plan(path: str, format_name: str | None) -> tuple[str, list[str], str | None]:
    """Where to write an index, of which sources, in which format."""
    if not path.endswith(INDEX_SUFFIX):
        return path + INDEX_SUFFIX, [path], format_name
    index = Index(path)
    return path, [index.source_path(number) for number in range(len(index.sources))], format_name or index.format


def _format(paths: list[str], name: str | None) -> ModuleType:
    if name is not None:
        return formats.by_name(name)
    found = {formats.for_path(path).NAME: path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in found.items())
        raise FormatError(f"one index holds one format, but {listed}; choose with --format")
    return formats.for_path(paths[0])


def _write(
    index_path: str, sources: list[Source], chosen: ModuleType, workers: int, report: Callable[[int], object]
) -> None:
    done: list[IndexedSource] = []
    with IndexWriter(index_path) as writer:
        writer.begin_section("offsets", "<u8")
        records, smallest, largest, previous = 0, 2**64 - 1, 0, None
        for piece in chosen.scan(sources, workers=workers):
            starts, source = piece.starts, sources[piece.source]
            if starts:
                writer.write(starts)
                smallest, largest = _native.record_sizes(starts, previous, smallest, largest)
                previous = starts[-1]
                records += len(starts)
            report(piece.scanned)
            if piece.lines is None:
                continue
            check_unchanged(source)
            end = source.size.to_bytes(8, "little")
            writer.write(end)
            smallest, largest = _native.record_sizes(end, previous, smallest, largest) if records else (0, 0)
            path = relative_to_index(source.path, index_path)
            mark = fingerprint(source.path, source.size)
            size, mtime_ns = source.size, source.mtime_ns
            done.append(IndexedSource(path, size, mtime_ns, mark, records, piece.lines, smallest, largest))
            records, smallest, largest, previous = 0, 2**64 - 1, 0, None
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": chosen.NAME,
            "sources": [source._asdict() for source in done],
        }
        writer.commit(metadata, sum(source.records for source in done))


def _up_to_date(index_path: str, sources: list[Source], format_name: str) -> Index | None:
    """Return the index if it covers just these sources as they are now."""
    try:
        index = Index(index_path)
    except (IndexMissingError, FormatError):
        return None
    known = [(source.path, source.size, source.mtime_ns) for source in index.sources]
    wanted = [(relative_to_index(path, index_path), size, mtime_ns) for path, size, mtime_ns in sources]
    return index if known == wanted and index.format == format_name else None


def summarise(index: Index) -> Summary:
    """Return what an index covers, from its metadata alone."""
    return Summary(
        index.path,
        len(index.sources),
        index.records,
        sum(source.size for source in index.sources),
        min((source.smallest for source in index.sources if source.records), default=0),
        max((source.largest for source in index.sources), default=0),
    )


def verify(index: Index) -> None:
    """Check what an index says of its sources: its checksums, their sizes and times, and by a new scan every bound.

    What it says of a source's content is checked in the first and last 64 KiB, and in where every record begins.

    Raises:
      FormatError: a section is damaged, or a scan of the sources finds other records.
      StaleIndexError: a source changed.
    """
    index.check_current()
    index.verify_sections()
    stored = index.section("offsets").cast("Q")
    sources = []
    for number, (_, size, mtime_ns, mark, *_) in enumerate(index.sources):
        path = index.source_path(number)
        sources.append(Source(path, size, mtime_ns))
        if fingerprint(path, size) != mark:
            raise StaleIndexError(f"{index.path}: STALE: {path} has other content; run: {index.rebuild_command()}")
    at = 0
    for piece in formats.by_name(index.format).scan(sources, workers=cores()):
        end = [sources[piece.source].size] if piece.lines is not None else []
        stop = at + len(piece.starts) + len(end)
        if stored[at:stop] != piece.starts if not end else list(stored[at:stop]) != [*piece.starts, *end]:
            path = sources[piece.source].path
            raise FormatError(
                f"{index.path}: DAMAGED: its records are not those of {path}; run: {index.rebuild_command()}"
            )
        at = stop


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m mmapds.index",
        description="Index JSONL files in place, so that mmapds.open() can read any record at once.",
        # Asked for its width, the default formatter imports half the standard library to find the terminal's.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=100),
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    parser.add_argument("-o", "--out", metavar="OUT.mmx", help="one combined index; default: SOURCE.mmx for each")
    parser.add_argument("--format", metavar="F", help="how records are framed; default: by suffix")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that scan; default: all cores")
    parser.add_argument("--force", action="store_true", help="build even where the index is up to date")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--info", action="store_true", help="print what each index covers, and which sources changed")
    parser.add_argument("--verify", action="store_true", help="check each index in full against its sources")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a half-written index is removed
    try:
        if options.info or options.verify:
            _inspect_indexes(options)
        else:
            _build_indexes(options)
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing was written for the index in progress", file=sys.stderr)
        return 130
    return 0


def _build_indexes(options: Any) -> None:
    paths = expand(options.sources, formats.SUFFIXES)
    with _progress_bar(paths, wanted=sys.stderr.isatty() and not options.quiet) as bar:
        report = bar.update if bar is not None else lambda _: None
        started = time.perf_counter()
        for done in build_each(paths, options.out, options.format, options.workers, options.force, report):
            seconds = time.perf_counter() - started
            speed = f"{seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s"
            line = f"{done.summary}, {speed}" if done.fresh else f"{done.summary}; up to date, --force builds it again"
            if bar is not None:
                bar.write(line, file=sys.stdout)
            elif not options.quiet:
                print(line)
            started = time.perf_counter()


def _progress_bar(paths: list[str], *, wanted: bool) -> AbstractContextManager[Any]:
    if not wanted:
        return nullcontext()
    from tqdm import tqdm

    name = paths[0] if len(paths) == 1 else f"{len(paths):,} sources"
    total = sum(os.path.getsize(path) for path in paths if os.path.exists(path))
    return tqdm(total=total, desc=name, unit="B", unit_scale=True, leave=False, file=sys.stderr)


def _inspect_indexes(options: Any) -> None:
    for path in expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX)):
        index = Index(path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX)
        if options.verify:
            verify(index)
        if options.quiet:
            continue
        print(f"{summarise(index)}{'; verified' if options.verify else ''}")
        if options.info:
            _print_sources(index)


def _print_sources(index: Index) -> None:
    for number, source in enumerate(index.sources):
        path = index.source_path(number)
        try:
            found = os.stat(path)
            index.check_source(number, found.st_size, found.st_mtime_ns)
            state = "unchanged"
        except StaleIndexError as error:
            state = str(error).removeprefix(f"{index.path}: ")
        except OSError as error:
            state = f"MISSING: {reason(error)}"
        print(f"  {path}: {source.records:,} records, {source.size:,} bytes; {state}")


if __name__ == "__main__":
    sys.exit(main())
