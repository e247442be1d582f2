"""Building indexes: `build()` and `python -m mmapds.index`."""

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from . import __version__, _native, formats
from .errors import ColumnError, Error, FormatError, IndexMissingError, SourceError, StaleIndexError
from .keys import write_keys
from .lengths import write_length_order
from .measure import NOTHING, Measuring, numbers, same_numbers
from .parallel import cores
from .sources import INDEX_SUFFIX, Source, StrPath, check_unchanged, expand, fingerprint, inspect, quoted, reason
from .store import Index, IndexedSource, IndexWriter, relative_to_index

if TYPE_CHECKING:
    from pathlib import Path  # at run time where it is needed: it takes as long to import as 40 MB to index


Column = str | Callable[[Any], float]
"""What a column is made of: an expression, or a callable that takes a sample."""


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
    columns: tuple[str, ...]
    """What the index has columns of, as they were asked for."""
    skipped: int
    """Records that were left out."""
    cut: int
    """Bytes after the last whole record, where what is cut short is left out."""

    def __str__(self) -> str:
        mean = self.size / self.records if self.records else 0.0
        sources = f" in {self.sources:,} sources" if self.sources > 1 else ""
        columns = f"; {', '.join(self.columns)}" if self.columns else ""
        skipped = f"; {self.skipped:,} records left out" if self.skipped else ""
        cut = f", the last {self.cut:,} bytes" if self.cut else ""
        return (
            f"{self.path}: {self.records:,} records{sources}, {self.size:,} bytes, "
            f"{mean:.1f} bytes a record ({self.smallest:,} to {self.largest:,}){columns}{skipped}{cut}"
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
    length: Column | None = None,
    columns: Mapping[str, Column] | None = None,
    missing: str | float | None = None,
    validate: bool | None = None,
    workers: int | None = None,
    force: bool = False,
    **parameters: Any,
) -> "Path | list[Path]":
    """Index sources in place; an index that is up to date is left as it is.

    Args:
      sources: paths, directories, globs or brace patterns (`part-{000..099}.jsonl`). The path of an index stands for
        that index, which is built again from its sources where they changed.
      out: one combined index for all sources; by default each gets its own, `train.jsonl.mmx` beside `train.jsonl`.
      format: how records are framed; by default the suffix decides.
      length: the column that token budgets are planned by: the same as `columns={"length": ...}`. Lengths are integers
        of 0 or more; the index also gets their order, so that no sampler ever sorts.
      columns: name to what is measured of each record: an expression (see `mmapds.measure`), measured while records are
        scanned; or a picklable callable that takes the decoded sample and returns a number, run in other processes.
      missing: what to do with a record that lacks a field an expression names: "error" (the default), "skip" to leave
        the record out of the index, or the number to take for it.
      validate: check that every record is JSON from its first byte to its last.
      workers: threads that scan, also within one file; all cores by default.
      force: build even where an index is up to date, and without the columns that were computed in Python. Expressions
        that an index was built with are kept; to be rid of them, delete it.
      **parameters: options of the format, such as `record_bytes`; see docs/formats.md.
    Returns:
      The index's path; a list of them for several sources without `out`.
    Raises:
      SourceError: a source is missing, unreadable, compressed, no regular file, or changes meanwhile.
      ColumnError: a column cannot be measured; the message has the record's place.
      DecodeError: a record that should be measured or validated is not JSON.
      Error: an index cannot be written.
    """
    from pathlib import Path

    wanted = {**({"length": length} if length is not None else {}), **(columns or {})}
    asked = Asked({name: text for name, text in wanted.items() if isinstance(text, str)}, missing, validate)
    computed = {name: compute for name, compute in wanted.items() if not isinstance(compute, str)}
    paths = expand(sources, formats.SUFFIXES)
    built = []
    for done in build_each(
        paths, out, format, workers, force, asked=asked, computed=tuple(computed), parameters=parameters
    ):
        built.append(Path(done.summary.path))
        for name, compute in computed.items():
            if done.fresh or name not in Index(done.summary.path).columns:
                from .columns import add_column

                add_column(done.summary.path, name, compute, workers=workers)
    return built[0] if len(built) == 1 else built


def build_each(
    paths: list[str],
    out: StrPath | None = None,
    format_name: str | ModuleType | None = None,
    workers: int | None = None,
    force: bool = False,
    report: Callable[[int], object] = lambda _: None,
    asked: "Asked | None" = None,
    computed: Collection[str] = (),
    parameters: Mapping[str, Any] | None = None,
) -> Iterator[Built]:
    """Build the indexes of expanded paths one after another, yielding each as it is done.

    `computed` are columns that the caller is going to compute where an index was built. `report` is called with the
    number of bytes that were dealt with since the last call.
    """
    if not paths:
        raise SourceError("no sources were given")
    workers = cores() if workers is None else workers
    if workers < 1:
        raise Error(f"workers = {workers}, expected 1 or more")
    given = dict(parameters or {})
    if out is None:
        plans = [_plan(path, format_name, given, force) for path in paths]
    else:
        plans = [(os.fspath(out), paths, format_name, given)]
    for index_path, members, wanted_format, options in plans:
        sources = [inspect(path) for path in members]
        chosen = _format(members, wanted_format)
        formats.check_options(chosen, options)
        framed = chosen.parameters(options, members)
        before = _readable(index_path)
        measuring = (asked or Asked()).after(before, computed, framed.get("columns", {}))
        is_current = before and _is_up_to_date(before, sources, chosen.NAME, framed, measuring)
        existing = before if is_current and not force else None
        if existing is None:
            if before is not None and not force:
                _check_nothing_is_lost(before, {*measuring.columns, *computed, *before.parameters.get("columns", {})})
            _write(index_path, sources, chosen, framed, workers, report, measuring)
            yield Built(summarise(Index(index_path)), fresh=True)
        else:
            report(sum(source.size for source in sources))
            yield Built(summarise(existing), fresh=False)


def _plan(
    path: str, format_name: str | ModuleType | None, parameters: dict[str, Any], force: bool
) -> tuple[str, list[str], str | ModuleType | None, dict[str, Any]]:
    """Where to write an index, of which sources, in which format; an index that is there says what is not given.

    That a last record may be cut short it says of its sources as they were alone.
    """
    index_path = path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX
    before = _known(path) if path.endswith(INDEX_SUFFIX) else _readable(index_path)
    if before is not None and format_name in (None, before.format):
        options = formats.by_name(before.format).OPTIONS
        kept = {name: value for name, value in before.parameters.items() if name in options}
        if force or not _is_current(before):
            kept.pop("truncated", None)
        format_name, parameters = before.format, parameters or kept
    members = [path]
    if path.endswith(INDEX_SUFFIX) and before is not None:
        members = [before.source_path(number) for number in range(len(before.sources))]
    return index_path, members, format_name, parameters


def _format(paths: list[str], name: str | ModuleType | None) -> ModuleType:
    if name is not None:
        return formats.by_name(name)
    found = {formats.for_path(path).NAME: path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in found.items())
        raise FormatError(f"one index holds one format, but {listed}; choose with --format")
    return formats.by_name(next(iter(found)))


def _write(
    index_path: str,
    sources: list[Source],
    chosen: ModuleType,
    parameters: dict[str, Any],
    workers: int,
    report: Callable[[int], object],
    measuring: Measuring,
) -> None:
    done: list[IndexedSource] = []
    with IndexWriter(index_path) as writer:
        spools = [writer.spool() for _ in measuring.columns]
        keys = None
        if "record_bytes" not in parameters:
            writer.begin_section("offsets", "<u8")
        records, skipped, smallest, largest, previous = 0, 0, 2**64 - 1, 0, None
        for piece in chosen.scan(sources, parameters=parameters, workers=workers, measuring=measuring):
            with writer.writing():
                for spool, (kind, cells) in zip(spools, piece.columns, strict=True):
                    spool.append(kind, cells)
                if piece.keys is not None:
                    keys = writer.spool() if keys is None else keys
                    keys.append(0, piece.keys)
            skipped += piece.skipped
            starts, source = piece.starts, sources[piece.source]
            if starts:
                writer.write(starts)
                smallest, largest = _native.record_sizes(starts, previous, smallest, largest)
                previous = starts[-1]
                records += len(starts)
            report(piece.scanned)
            if piece.end is None:
                continue
            check_unchanged(source)
            if piece.end.fixed is not None:
                records = piece.end.fixed
                smallest = largest = parameters["record_bytes"] if records else 0
            else:
                end = piece.end.end.to_bytes(8, "little")
                writer.write(end)
                smallest, largest = _native.record_sizes(end, previous, smallest, largest) if records else (0, 0)
            path = relative_to_index(source.path, index_path)
            mark = fingerprint(source.path, source.size)
            size, mtime_ns = source.size, source.mtime_ns
            counts = records, piece.end.lines, smallest, largest, skipped, piece.end.first
            done.append(IndexedSource(path, size, mtime_ns, mark, *counts))
            records, skipped, smallest, largest, previous = 0, 0, 2**64 - 1, 0, None
        for name, spool in zip(measuring.columns, spools, strict=True):
            writer.write_column(name, spool)
        if "length" in measuring.columns:
            write_length_order(writer)
        if keys is not None:
            write_keys(writer, keys)
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": chosen.NAME,
            "parameters": parameters,
            "sources": [source._asdict() for source in done],
            "columns": measuring.describe(),
        }
        writer.commit(metadata, sum(source.records for source in done))


class Asked(NamedTuple):
    """The columns and checks that a user asked for; what is None was left open."""

    columns: Mapping[str, str] = {}
    missing: str | float | None = None
    validate: bool | None = None

    def after(
        self, before: Index | None, computed: Collection[str] = (), held: Mapping[str, str] | None = None
    ) -> Measuring:
        """Return what to measure where there may be an index: its own expressions too, and its ways by default.

        Columns that are going to be `computed` are not measured. `held` are those that the sources themselves hold.
        """
        known = before.measuring if before else NOTHING
        held_before = before.parameters.get("columns", {}) if before else {}
        kept = {
            name: text
            for name, text in known["expressions"].items()
            if name not in computed and held_before.get(name) != text
        }
        own = held_before if held is None else held
        return Measuring(
            {**{name: text for name, text in own.items() if name not in computed}, **kept, **self.columns},
            known["missing"] if self.missing is None else self.missing,
            known["validate"] if self.validate is None else self.validate,
        )


def _known(index_path: str) -> Index:
    """An index that stands for its sources.

    Raises:
      FormatError: it is damaged, and so does not say what they are.
    """
    try:
        return Index(index_path)
    except FormatError as error:
        found = str(error).partition("; ")[0]
        command = f"python -m mmapds.index SOURCE... -o {quoted(index_path)}"
        raise FormatError(f"{found}; index its sources again: {command}") from None


def _is_current(index: Index) -> bool:
    try:
        index.check_current()
    except (SourceError, StaleIndexError):
        return False
    return True


def _readable(index_path: str) -> Index | None:
    try:
        return Index(index_path)
    except (IndexMissingError, FormatError):
        return None


def _is_up_to_date(
    index: Index, sources: list[Source], format_name: str, parameters: dict[str, Any], measuring: Measuring
) -> bool:
    """Whether an index covers just these sources as they are now, and was measured in this way."""
    known = [(source.path, source.size, source.mtime_ns) for source in index.sources]
    wanted = [(relative_to_index(path, index.path), size, mtime_ns) for path, size, mtime_ns in sources]
    how = (index.format, index.parameters, index.measuring)
    return known == wanted and how == (format_name, parameters, measuring.describe())


def _check_nothing_is_lost(index: Index, columns: Collection[str]) -> None:
    lost = ", ".join(repr(name) for name in index.columns if name not in columns)
    if lost:
        raise ColumnError(
            f"{index.path}: its column {lost} was computed in Python and cannot be measured again here; build it again "
            "with columns={...} in mmapds.build, or leave it out with --force"
        )


def summarise(index: Index) -> Summary:
    """Return what an index covers, from its metadata alone."""
    expressions = index.measuring["expressions"]
    return Summary(
        index.path,
        len(index.sources),
        index.records,
        sum(source.size for source in index.sources),
        min((source.smallest for source in index.sources if source.records), default=0),
        max((source.largest for source in index.sources), default=0),
        tuple(f"{name} = {expressions[name]}" if name in expressions else name for name in index.columns),
        sum(source.skipped for source in index.sources),
        sum(_cut(index, number) for number in range(len(index.sources))),
    )


def _cut(index: Index, number: int) -> int:
    source = index.sources[number]
    if index.parameters.get("truncated") != "drop" or not source.skipped:
        return 0
    fixed = source.first + source.records * index.parameters.get("record_bytes", 0)
    return source.size - (index.bounds(number)[-1] if index.has_bounds else fixed)


def verify(index: Index) -> None:
    """Check what an index says of its sources: its checksums, their sizes and times, and by a new scan every bound.

    What it says of a source's content is checked in the first and last 64 KiB, in where every record begins, and by
    the checksums of a format that has some.

    Raises:
      FormatError: a section is damaged, or a scan of the sources finds other records.
      StaleIndexError: a source changed.
    """
    index.check_current()
    index.verify_sections()
    with index.understood():
        _verify_records(index)


def _verify_records(index: Index) -> None:
    stored = index.section("offsets").cast("Q") if index.has_bounds else memoryview(b"").cast("Q")
    sources = []
    for number, (_, size, mtime_ns, mark, *_) in enumerate(index.sources):
        path = index.source_path(number)
        sources.append(Source(path, size, mtime_ns))
        if fingerprint(path, size) != mark:
            raise StaleIndexError(f"{index.path}: STALE: {path} has other content; run: {index.rebuild_command()}")
    at = 0
    measuring = Asked().after(index)
    columns = [(name, _cells(index, name)) for name in measuring.columns]
    records = 0
    module = formats.by_name(index.format)
    for piece in module.scan(sources, parameters=index.parameters, workers=cores(), measuring=measuring):
        found_records = len(piece.starts)
        if piece.end is not None and piece.end.fixed is not None:
            found_records = piece.end.fixed
            if found_records != index.sources[piece.source].records:
                raise FormatError(
                    f"{index.path}: DAMAGED: its records are not those of {sources[piece.source].path}; "
                    f"run: {index.rebuild_command()}"
                )
        for (name, (dtype, cells)), (kind, found) in zip(columns, piece.columns, strict=True):
            if not same_numbers(dtype, cells[records : records + found_records], kind, found):
                path = sources[piece.source].path
                raise FormatError(
                    f"{index.path}: DAMAGED: its column {name!r} is not that of {path}; run: {index.rebuild_command()}"
                )
        records += found_records
        end = [piece.end.end] if piece.end is not None and index.has_bounds else []
        stop = at + len(piece.starts) + len(end)
        if stored[at:stop] != piece.starts if not end else list(stored[at:stop]) != [*piece.starts, *end]:
            path = sources[piece.source].path
            raise FormatError(
                f"{index.path}: DAMAGED: its records are not those of {path}; run: {index.rebuild_command()}"
            )
        at = stop
    if hasattr(module, "verify"):
        module.verify(sources, index.parameters)


def _cells(index: Index, name: str) -> tuple[str, memoryview]:
    dtype, data = index.column(name)
    return dtype, numbers(dtype, data)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m mmapds.index",
        description="Index JSONL, tars, TFRecords, arrays and other records in place, for mmapds.open() to read.",
        # Asked for its width, the default formatter imports half the standard library to find the terminal's.
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=100),
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    parser.add_argument("-o", "--out", metavar="OUT.mmx", help="one combined index; default: SOURCE.mmx for each")
    parser.add_argument("--format", metavar="F", help="how records are framed; default: by suffix")
    for name, (kind, placeholder, text) in formats.OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)
    parser.add_argument("--length", metavar="EXPR", help="column for token budgets: the same as --column length=EXPR")
    parser.add_argument(
        "--column",
        action="append",
        default=[],
        metavar="NAME=EXPR",
        help="number to store for each record: path, bytes(path), chars(path), items(path) or bytes()",
    )
    parser.add_argument("--missing", metavar="skip|N|error", help="what to do with records that lack a field")
    parser.add_argument("--validate", action="store_true", default=None, help="check that every record is JSON")
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
    asked = Asked(_parse_columns(options), _parse_missing(options.missing), options.validate)
    given = {name: getattr(options, name) for name in formats.OPTIONS if getattr(options, name) is not None}
    with _progress_bar(paths, wanted=sys.stderr.isatty() and not options.quiet) as bar:
        report = bar.update if bar is not None else lambda _: None
        started = time.perf_counter()
        for done in build_each(
            paths, options.out, options.format, options.workers, options.force, report, asked, parameters=given
        ):
            seconds = time.perf_counter() - started
            speed = f"{seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s"
            line = f"{done.summary}, {speed}" if done.fresh else f"{done.summary}; up to date, --force builds it again"
            if bar is not None:
                bar.write(line, file=sys.stdout)
            elif not options.quiet:
                print(line)
            started = time.perf_counter()


def _parse_columns(options: Any) -> dict[str, str]:
    columns = {"length": options.length} if options.length is not None else {}
    for given in options.column:
        name, equals, text = given.partition("=")
        if not equals or not name or not text or name in columns:
            raise ColumnError(f"--column {given}: expected NAME=EXPR, and every name once")
        columns[name] = text
    return columns


def _parse_missing(text: str | None) -> str | float | None:
    if text in (None, "skip", "error"):
        return text
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ColumnError(f"--missing {text}: expected skip, error or a number") from None


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
            _print_format(index)
            _print_sources(index)


def _print_format(index: Index) -> None:
    shown = {name: value for name, value in index.parameters.items() if name not in ("columns", "idx")}
    told = "".join(f", {name} {value}" for name, value in shown.items())
    print(f"  {index.format}{told}")


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
