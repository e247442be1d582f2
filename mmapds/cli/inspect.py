"""`mmapds info` and `verify`: what indexes cover, and whether it is so. `mmapds show` and `head`: records."""

import argparse
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any, cast

from rich.filesize import decimal

from .. import formats
from ..dataset.decode import takes_view
from ..dataset.opening import IndexedDataset, make_dataset
from ..dataset.opening import open as open_dataset
from ..dataset.printed import printed
from ..dataset.saving import examine_view
from ..errors import ColumnError, DecodeError, Error, FormatError, counted
from ..index.build import check_workers
from ..index.inspect import State, describe, format_of, opened, states_of, summarise
from ..index.statistics import CALLED, PERCENTILES, SIZES, Number, Statistics, histogram, made_of, measure
from ..index.verify import Findings, examine, work
from ..progress import Progress
from ..storage.index_file import Index, SavedView
from ..storage.sources import INDEX_SUFFIX, Roots, expand, index_path
from . import Cell, one_line, print_aside, print_json, print_line, print_table, progress_on
from .commands import POSITION, position

_LISTED = 10  # sources without --all
_BAR = 40  # columns of the longest bar
_SHOWN = ("median", "90 %", "99 %")  # percentiles, of more than a line of a terminal has room for
_LARGE = 1 << 24  # bytes of a record that is decoded only with --full

Inspected = Index | SavedView


def info(options: argparse.Namespace) -> int:
    """Print what indexes cover; return 1 if one cannot be read, or a source is not what it was."""
    return _inspect(options, verifies=False)


def verify(options: argparse.Namespace) -> int:
    """Compare indexes in full with their sources; return 1 if one cannot be read, or has a problem."""
    check_workers(options.workers)
    return _inspect(options, verifies=True)


def _inspect(options: argparse.Namespace, *, verifies: bool) -> int:
    paths = expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX), print_aside)
    roots, failed = Roots(options.roots, paths), False
    documents: list[dict[str, Any]] = []
    states: dict[Inspected, list[State]] = {}
    with progress_on(paths, total=lambda: _bytes_to_check(paths), quiet=options.quiet) as progress:
        for path in paths:
            documents.append({"path": index_path(path)})
            try:
                index = opened(path, roots)
                findings = None
                if verifies and isinstance(index, Index):
                    findings = examine(index, workers=options.workers, report=progress.update)
                elif verifies:
                    findings = examine_view(cast(SavedView, index))
                own = states[index] = [] if verifies and not options.json else states_of(index)
            except Error as error:
                documents[-1]["error"] = str(error)
                problems = [error]
            else:
                changed = [state.error for state in own if state.error is not None]
                problems = changed[:1] if findings is None else findings.errors
                if options.json:
                    documents[-1] |= describe(index, own) | (findings.describe() if findings else {})
                elif findings is not None:
                    _print_findings(progress, index, findings)
            failed |= bool(problems)
            progress.clear()
            for problem in [] if options.json else problems:
                print_aside(one_line(problem))
    if options.json:
        print(json.dumps({"indexes": documents}, indent=1))
    elif not verifies and not options.quiet:
        _print_info(states, options)
    return int(failed)


def _bytes_to_check(paths: Sequence[str]) -> int:
    """Return how many bytes `examine` reads, for those indexes that can be opened."""
    size = 0
    for path in paths:
        with suppress(Error):
            size += work(Index(index_path(path)))
    return size


def _print_findings(progress: Progress, index: Inspected, findings: Findings) -> None:
    """Print a line on an index that was verified, and what was not checked."""
    covered = _view_line(index) if isinstance(index, SavedView) else str(summarise(index))
    progress.print(f"{covered}; {counted(len(findings.problems), 'problem') if findings.problems else 'verified'}")
    for what in findings.not_checked:
        progress.print(f"  not checked: {what}")


def _view_line(view: SavedView) -> str:
    """Return what is printed of a saved view."""
    columns = f"; {', '.join(view.columns)}" if view.columns else ""
    of = f"{view.records:,} of the {counted(view.total, 'record')} of {_indexes(len(view.bases))}"
    return f"{view.path}: a saved view, {of}{columns}"


def _indexes(number: int) -> str:
    return f"{number:,} indexes" if number > 1 else "1 index"


def _print_info(states: dict[Inspected, list[State]], options: argparse.Namespace) -> None:
    """Print what saved views cover, each alone, and what indexes cover together."""
    for view, own in states.items():
        if isinstance(view, SavedView):
            print_line(_view_line(view))
            for number, state in enumerate(own):
                records = counted(view.bases[number].records, "record")
                print_line(f"  {view.base_path(number)}: {records}; {state.text}")
    indexes = [index for index in states if isinstance(index, Index)]
    if not indexes:
        return
    columns = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
    wanted = options.histogram or ("length" if "length" in columns else CALLED)
    if wanted not in (CALLED, *columns):
        listed = ", ".join(map(repr, dict.fromkeys((CALLED, *columns))))
        raise ColumnError(f"--histogram: expected one of {listed}, found {wanted!r}")
    several = f"{_indexes(len(indexes))}, {indexes[0].path} to {indexes[-1].path}"
    print_line(several if len(indexes) > 1 else indexes[0].path, "bold")
    print_table([((name, "dim"), text) for name, text in _covered(indexes)], left=(0, 1))
    _print_sources({index: states[index] for index in indexes}, list_all=options.all)
    if any(index.records for index in indexes):
        size = sum(section.size for index in indexes for section in index.sections.values())
        with progress_on([index.path for index in indexes], total=lambda: size) as progress:
            measured = {name: measure(indexes, name, progress.update) for name in (SIZES, *columns)}
        _print_columns(indexes, measured)
        chosen = wanted if wanted in columns else SIZES
        _print_histogram(wanted, histogram(indexes, chosen, measured[chosen]))


def _covered(indexes: Sequence[Index]) -> list[tuple[str, str]]:
    """Return the rows on all indexes: a name and a text."""
    summaries = [summarise(index) for index in indexes]
    size, content, records, sources, skipped = (
        sum(getattr(summary, name) for summary in summaries)
        for name in ("size", "content", "records", "sources", "skipped")
    )
    rows = [("records", f"{records:,}"), ("sources", f"{sources:,}"), ("bytes", _size(size))]
    if content != size:
        rows.append(("decoded", _size(content)))
    rows += [("format", text) for text in sorted({format_of(index) for index in indexes})]
    if skipped:
        rows.append(("left out", counted(skipped, "record")))
    return rows


def _size(size: int) -> str:
    return f"{size:,} ({decimal(size)})" if size >= 1000 else f"{size:,}"


def _print_sources(states: dict[Index, list[State]], *, list_all: bool) -> None:
    """Print the sources, each with its state; of many those alone that are not as they were."""
    rows: dict[str, list[list[Cell]]] = {}
    for index, own in states.items():
        for number, (source, state) in enumerate(zip(index.sources, own, strict=True)):
            told = (state.text, "dim" if state.word == "unchanged" else "yellow")
            row: list[Cell] = [
                index.source_path(number),
                counted(source.records, "record"),
                counted(source.size, "byte"),
                told,
            ]
            rows.setdefault(state.word, []).append(row)
    found = [row for each in rows.values() for row in each]
    changed = [row for word, each in rows.items() if word != "unchanged" for row in each]
    shown = found if list_all or len(found) <= _LISTED else changed[:_LISTED]
    _print_title("sources")
    if shown:
        print_table(shown, left=(0, 3))
    if len(shown) < len(found):
        totals = ", ".join(f"{len(each):,} {word}" for word, each in rows.items())
        print_line(f"  {totals}; --all lists them", "dim")


def _print_columns(indexes: Sequence[Index], measured: dict[str | None, Statistics]) -> None:
    """Print a table with a row for each column, and one for the sizes of records."""
    rows: list[list[Cell]] = []
    for name, numbers in measured.items():
        of = "of records" if name is SIZES else f"{made_of(indexes, name)} {numbers.type}"
        percentiles = dict(zip(PERCENTILES, numbers.percentiles, strict=True))
        mean = numbers.mean if abs(numbers.mean) < 10 else round(numbers.mean, 1)
        statistics = (numbers.least, *(percentiles[each] for each in _SHOWN), numbers.most, mean)
        total = "too large" if numbers.total is None else _number(numbers.total)
        rows.append([(CALLED if name is SIZES else name, "bold"), of, *map(_number, statistics), total])
    _print_title("columns")
    print_table(rows, head=["", "", "min", *_SHOWN, "max", "mean", "total"], left=(0, 1))
    if sampled := min((each.sampled for each in measured.values() if each.sampled < each.finite), default=0):
        print_line(f"  percentiles of {counted(sampled, 'record')}, evenly spaced", "dim")


def _print_histogram(name: str, bins: Sequence[tuple[Number, Number | None, int]]) -> None:
    total, most = sum(count for *_, count in bins), max((count for *_, count in bins), default=0)
    rows: list[list[Cell]] = []
    for begin, end, count in bins:
        label = f"{_number(begin)} or more" if end is None else f"{_number(begin)} to {_number(end)}"
        bar = "█" * max(round(_BAR * count / most), int(count > 0))
        rows.append([label, f"{count:,}", f"{100 * count / total:.1f} %", (bar, "blue")])
    if rows:
        _print_title(f"{name}, {counted(total, 'record')}")
        print_table(rows, left=(3,))


def _print_title(text: str) -> None:
    print()
    print_line(text, "bold")


def _number(value: Number) -> str:
    """Return a number as tables have it: an integer with its digits grouped, or a fraction in six digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


# ---- records


def show(options: argparse.Namespace) -> int:
    """Print the records that were asked for; return 1 if one is not what its decoder expects."""
    sources, positions = list(options.sources), list(options.positions)
    while len(sources) > 1 and POSITION.fullmatch(sources[-1]):  # the parser takes all but the last one for sources
        positions.insert(0, position(sources.pop()))
    dataset = _dataset(options, sources)
    chosen: list[Sequence[int]] = []
    for each in positions:  # all of them, before a record is printed
        try:
            found = range(len(dataset))[each]
        except (IndexError, ValueError):
            found = range(0)
        chosen.append([found] if isinstance(found, int) else found)
        if not chosen[-1]:
            raise Error(f"position {each}: expected one of {len(dataset)} records, found none")
    return _print(dataset, chain.from_iterable(chosen), options)


def head(options: argparse.Namespace) -> int:
    """Print the first records; return 1 if one is not what its decoder expects."""
    dataset = _dataset(options, options.sources)
    return _print(dataset, range(len(dataset))[: max(options.records, 0)], options)


def _dataset(options: argparse.Namespace, sources: Sequence[str]) -> IndexedDataset:
    """Return the dataset of the sources, indexed first if that was asked for."""
    given = {"decode": options.decode, "roots": options.roots, "build": options.build}
    return cast(IndexedDataset, open_dataset(sources, **given))


def _print(dataset: IndexedDataset, positions: Iterable[int], options: argparse.Namespace) -> int:
    """Print records; return 1 if one is not what its decoder expects, else 0."""
    failed = False

    @takes_view
    def as_it_lies(record: memoryview) -> memoryview:
        return record

    raw = make_dataset(dataset._catalog, as_it_lies)
    is_cheap = options.full or (options.decode in (None, "torch") and dataset._gives_arrays)
    for number, place in enumerate(positions):
        record = raw[place]
        if number:
            print()
        print_line(f"{place}: {dataset.place(place)}, {counted(len(record), 'byte')}", "bold")
        sample: Any = record
        try:
            if is_cheap or len(record) <= _LARGE:
                sample = dataset[place]
        except (DecodeError, FormatError) as error:
            failed = True
            print_aside(one_line(error))
        try:
            text = printed(sample, full=options.full)
        except Exception:  # of what JSON cannot say: text beyond Unicode, a number too long, lists nested too deep
            text = printed(record, full=options.full)
        print_json(text)
    if not len(dataset):
        print_line(f"{', '.join(dataset.sources[:3])}: 0 records")
    return int(failed)
