"""From sources to an index."""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from .. import __version__, _native, formats
from ..errors import ColumnError, Error, FormatError, IndexMissingError, SourceError, StaleIndexError
from ..formats.format import Format
from ..formats.measuring import Measuring
from ..storage.index_file import NOTHING, Index, IndexedSource, IndexWriter, relative_to_index
from ..storage.sources import INDEX_SUFFIX, Source, StrPath, check_unchanged, fingerprint, inspect
from ..storage.threads import cores
from .keys import write_keys
from .length_order import write_length_order
from .summary import Summary, summarise


class Built(NamedTuple):
    """The outcome of one index."""

    summary: Summary
    fresh: bool
    """False when the index was up to date and nothing was done."""


def build_each(
    paths: list[str],
    out: StrPath | None = None,
    format_name: str | Format | None = None,
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
        formats.check_options(chosen.name, chosen.options, options)
        framed = chosen.parameters(options, members)
        before = _readable(index_path)
        measuring = (asked or Asked()).after(before, computed, framed.get("columns", {}))
        is_current = before and _is_up_to_date(before, sources, chosen.name, framed, measuring)
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
    path: str, format_name: str | Format | None, parameters: dict[str, Any], force: bool
) -> tuple[str, list[str], str | Format | None, dict[str, Any]]:
    """Where to write an index, of which sources, in which format; an index that is there says what is not given.

    That a last record may be cut short it says of its sources as they were alone.
    """
    index_path = path if path.endswith(INDEX_SUFFIX) else path + INDEX_SUFFIX
    before = Index(path) if path.endswith(INDEX_SUFFIX) else _readable(index_path)
    if before is not None and format_name in (None, before.format):
        options = formats.by_name(before.format).options
        kept = {name: value for name, value in before.parameters.items() if name in options}
        if force or not _is_current(before):
            kept.pop("truncated", None)
        format_name, parameters = before.format, parameters or kept
    members = [path]
    if path.endswith(INDEX_SUFFIX) and before is not None:
        members = [before.source_path(number) for number in range(len(before.sources))]
    return index_path, members, format_name, parameters


def _format(paths: list[str], name: str | Format | None) -> Format:
    if name is not None:
        return name if isinstance(name, Format) else formats.by_name(name)
    found = {formats.for_path(path).name: path for path in paths}
    if len(found) > 1:
        listed = ", ".join(f"{path} is {name}" for name, path in found.items())
        raise FormatError(f"one index holds one format, but {listed}; choose with --format")
    return formats.by_name(next(iter(found)))


def _write(
    index_path: str,
    sources: list[Source],
    chosen: Format,
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
        records, skipped, scanned, smallest, largest, previous = 0, 0, 0, 2**64 - 1, 0, None
        for piece in chosen.scan(sources, parameters, measuring, workers=workers):
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
            scanned += piece.scanned
            if piece.end is None:
                continue
            check_unchanged(source)
            if piece.source != len(done) or scanned != source.size:
                raise Error(
                    f"{source.path}: the scan of format {chosen.name!r} is not whole: expected {source.size} bytes of "
                    f"source {len(done)}, found {scanned} of source {piece.source}; nothing was changed"
                )
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
            records, skipped, scanned, smallest, largest, previous = 0, 0, 0, 2**64 - 1, 0, None
        if len(done) != len(sources):
            raise Error(
                f"{index_path}: the scan of format {chosen.name!r} is not whole: expected {len(sources)} sources, "
                f"found {len(done)}; nothing was changed"
            )
        for name, spool in zip(measuring.columns, spools, strict=True):
            writer.write_column(name, spool)
        if "length" in measuring.columns:
            write_length_order(writer)
        if keys is not None:
            write_keys(writer, keys)
        metadata = {
            "builder": f"mmapds {__version__}",
            "format": chosen.name,
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
