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
from ..dataset.indexed import IndexedDataset, make_dataset
from ..dataset.opening import open as open_dataset
from ..dataset.printed import printed
from ..dataset.saving import examine_view
from ..errors import ColumnError, DecodeError, Error, FormatError, counted, plain_counted
from ..index.build import check_workers, summarise
from ..index.inspect import CALLED, SIZES, Number, coverage, describe, format_of, histogram, measure, opened, states_of
from ..index.verify import Findings, examine, work
from ..progress import Progress
from ..storage.index_file import Index, SavedView
from ..storage.sources import INDEX_SUFFIX, Roots, expand, index_path
from . import Cell, one_line, print_aside, print_json, print_line, print_table, progress_on
from .commands import POSITION

_LISTED = 10  # sources without --all
_BAR = 40  # columns of the longest bar
_SHOWN = ("min", "median", "90 %", "99 %", "max", "mean", "total")
_LARGE = 1 << 24  # bytes of a record that is decoded only with --full


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
    indexes: list[tuple[Index, dict[str, Any]]] = []
    with progress_on(paths, total=lambda: _bytes_to_check(paths), quiet=options.quiet) as progress:
        for path in paths:
            document: dict[str, Any] = {"path": index_path(path)}
            documents.append(document)
            lines: list[str] = []
            try:
                index = opened(path, roots)
                states = states_of(index)
                document |= describe(index, states)
                problems = [state.error for state in states if state.error is not None][:1]
                if isinstance(index, SavedView):
                    of = f"{counted(index.total, 'record')} of {_indexes(len(index.bases))}"
                    columns = f"; {', '.join(index.columns)}" if index.columns else ""
                    lines = [f"{index.path}: a saved view, {index.records:,} of the {of}{columns}"]
                    for each in [] if verifies else document["indexes"]:
                        lines.append(f"  {each['path']}: {counted(each['records'], 'record')}; {each['message']}")
                else:
                    lines = [str(summarise(index))] if verifies else []
                    indexes.append((index, document))
                if verifies:
                    findings = _examined(index, options.workers, progress)
                    document |= findings.describe()
                    problems = [problem.error for problem in findings.problems]
                    lines[0] += f"; {counted(len(problems), 'problem') if problems else 'verified'}"
                    lines += [f"  not checked: {what}" for what in findings.not_checked]
            except Error as error:
                document["error"] = str(error)
                lines, problems = [], [error]
            failed |= bool(problems)
            progress.clear()
            for line in [] if options.json else lines:
                progress.print(line)
            for problem in [] if options.json else problems:
                print_aside(one_line(problem))
    if options.json:
        print(json.dumps({"indexes": documents}, indent=1))
    elif indexes and not verifies and not options.quiet:
        _print_info([index for index, _ in indexes], [document for _, document in indexes], options)
    return int(failed)


def _bytes_to_check(paths: Sequence[str]) -> int:
    """Return how many bytes `examine` reads, for those indexes that can be opened."""
    size = 0
    for path in paths:
        with suppress(Error):
            size += work(Index(index_path(path)))
    return size


def _examined(index: Index | SavedView, workers: int | None, progress: Progress) -> Findings:
    if isinstance(index, SavedView):
        return examine_view(index)
    return examine(index, workers=workers, report=progress.update)


def _indexes(number: int) -> str:
    return f"{number:,} indexes" if number > 1 else "1 index"


def _print_info(indexes: list[Index], documents: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print what indexes cover together."""
    facts = coverage(indexes, documents, most=None if options.all else _LISTED)
    names = [each["name"] for each in facts["columns"][1:]]
    wanted = options.histogram or ("length" if "length" in names else CALLED)
    if wanted not in (CALLED, *names):
        listed = ", ".join(map(repr, dict.fromkeys((CALLED, *names))))
        raise ColumnError(f"{indexes[0].path}: expected --histogram with one of {listed}, found {wanted!r}")
    several = f"{_indexes(len(indexes))}, {indexes[0].path} to {indexes[-1].path}"
    print_line(several if len(indexes) > 1 else indexes[0].path, "bold")
    size, content = facts["bytes"], sum(summarise(index).content for index in indexes)
    rows = [("records", f"{facts['records']:,}"), ("sources", f"{facts['sources']:,}"), ("bytes", _size(size))]
    if content != size:
        rows.append(("decoded", _size(content)))
    rows += [("format", text) for text in sorted({format_of(index) for index in indexes})]
    if facts["left_out"]:
        rows.append(("left out", counted(facts["left_out"], "record")))
    print_table([((name, "dim"), text) for name, text in rows], left=(0, 1))
    _print_title("sources")
    sources: list[list[Cell]] = [
        [
            each["path"],
            counted(each["records"], "record"),
            counted(each["bytes"], "byte"),
            (each["message"], "dim" if each["state"] == "unchanged" else "yellow"),
        ]
        for each in facts["listed"]
    ]
    if sources:
        print_table(sources, left=(0, 3))
    if len(sources) < facts["sources"]:
        totals = ", ".join(f"{count:,} {state}" for state, count in facts["states"].items())
        print_line(f"  {totals}; --all lists them", "dim")
    if not any(index.records for index in indexes):
        return
    _print_title("columns")
    columns: list[list[Cell]] = [
        [(each["name"], "bold"), f"{each['of']} {each['type']}".rstrip(), *(_number(each[name]) for name in _SHOWN)]
        for each in facts["columns"]
    ]
    print_table(columns, head=["", "", *_SHOWN], left=(0, 1))
    if sampled := [each["sampled"] for each in facts["columns"] if each["is_sample"]]:
        print_line(f"  percentiles of {counted(min(sampled), 'record')}, evenly spaced", "dim")
    chosen = wanted if wanted in names else SIZES
    bins = histogram(indexes, chosen, measure(indexes, chosen, lambda _: None))
    total, most = sum(count for *_, count in bins), max((count for *_, count in bins), default=0)
    _print_title(f"{wanted}, {counted(total, 'record')}")
    bars: list[list[Cell]] = []
    for begin, end, count in bins:
        label = f"{_number(begin)} or more" if end is None else f"{_number(begin)} to {_number(end)}"
        bar = "█" * max(round(_BAR * count / most), int(count > 0))
        bars.append([label, f"{count:,}", f"{100 * count / total:.1f} %", (bar, "blue")])
    if bars:
        print_table(bars, left=(3,))


def _size(size: int) -> str:
    return f"{size:,} ({decimal(size)})" if size >= 1000 else f"{size:,}"


def _print_title(text: str) -> None:
    print()
    print_line(text, "bold")


def _number(value: Number | None) -> str:
    """Return a number as tables have it: an integer with its digits grouped, or a fraction in six digits."""
    if isinstance(value, float) and abs(value) >= 10:
        value = round(value, 1)
    return "too large" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


# ---- records


def show(options: argparse.Namespace) -> int:
    """Print the records that were asked for; return 1 if one is not what its decoder expects."""
    sources, positions = list(options.sources), list(options.positions)
    while len(sources) > 1 and POSITION.fullmatch(sources[-1]):  # the parser takes all but the last one for sources
        positions.insert(0, sources.pop())
    dataset = _dataset(options, sources)
    chosen = [_records_at(each, len(dataset)) for each in positions]  # before a record is printed
    return _print(dataset, chain.from_iterable(chosen), options)


def _records_at(position: str, records: int) -> Sequence[int]:
    """Return the records that a number or a range means; raise Error if there are none."""
    first, *others = (int(bound) if bound else None for bound in position.split(":"))
    try:
        found = range(records)[slice(first, *others)] if others else [range(records)[first or 0]]
    except (IndexError, ValueError):  # out of range, or a step of 0
        found = range(0)
    if not found:
        raise Error(f"position {position}: expected one of {plain_counted(records, 'record')}, found none")
    return found


def head(options: argparse.Namespace) -> int:
    """Print the first records; return 1 if one is not what its decoder expects."""
    dataset = _dataset(options, options.sources)
    return _print(dataset, range(len(dataset))[: options.records], options)


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
