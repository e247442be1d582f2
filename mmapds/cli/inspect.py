"""`mmapds info` and `verify` describe and check indexes. `mmapds show` and `head` print records."""

import argparse
import json
import os
import platform
import re
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain, takewhile
from typing import Any, cast

from rich.filesize import decimal

from .. import __version__, formats
from .._native import SIMD
from ..dataset.indexed import IndexedDataset, shown, undecoded
from ..dataset.opening import open as open_dataset
from ..dataset.opening import refuse_missing
from ..dataset.saving import examine_view
from ..errors import ColumnError, Error, IndexMissingError, counted
from ..index.build import check_workers, summarise
from ..index.inspect import CALLED, SIZES, Number, coverage, describe, format_of, histogram
from ..index.verify import examine, work
from ..remote.cache import Cache
from ..remote.objects import places as places_of
from ..storage.index_file import Index, SavedView, open_stored
from ..storage.sources import INDEX_SUFFIX, index_path
from . import Cell, Progress, UsageError, one_line, print_aside, print_json, print_line, print_table

_LISTED = 10  # sources to list without --all
_PACKAGES = (
    *("numpy", "torch", "orjson", "xxhash", "rich", "pyarrow", "h5py", "isal", "pillow", "obstore", "urllib3"),
    *("torchdata", "lightning", "accelerate", "transformers", "grain", "distributed", "ray"),
)
"""What `versions` prints if it is installed."""
_BAR = 40  # columns of the longest bar
_POSITION = re.compile(r"-?\d{1,19}|(-?\d{1,19})?(:(-?\d{1,19})?){1,2}")  # a record number, or a range
_SHOWN = ("min", "median", "90 %", "99 %", "max", "mean", "total")


def info(options: argparse.Namespace) -> int:
    """Describe indexes; return 1 if an index cannot be read, or a source has changed."""
    indexes, documents, failed = _inspect(options, verifies=False)
    if indexes and not options.json and not options.quiet:
        _print_info(indexes, documents, options)
    return int(failed)


def versions(options: argparse.Namespace) -> None:
    """Print the versions of this package, of Python, and of what is used if it is installed."""
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()  # Python 3.13 and later tell
    found = {
        "mmapds": f"{__version__}, SIMD {SIMD}",
        "Python": f"{platform.python_version()}{'' if gil else ', no GIL'}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
    }
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if options.json:
        print_json(json.dumps(found, indent=2))
    else:
        print_table([[name, text] for name, text in found.items()], left=(0, 1))


def cache(options: argparse.Namespace) -> None:
    """Show what caches of objects hold, or clear them."""
    for directory in options.sources:
        if not Cache.is_at(directory):
            raise Error(f"{directory}: expected the directory of a cache, found none")
        held = Cache(directory)
        entries = held.clear() if options.clear else sorted(held.entries())
        size, removed = sum(each.size for each in entries), "removed " * bool(options.clear)
        if options.json:
            keys = "name", "bytes", "used", "complete"
            objects = [
                dict(zip(keys, (each.name, each.size, each.used, not each.is_part), strict=True)) for each in entries
            ]
            print_json(json.dumps({"path": directory, "bytes": size, "objects": objects}, indent=2))
        elif not options.quiet:
            print_line(f"{directory}: {removed}{counted(len(entries), 'object')}, {decimal(size)}")
            shown = [
                [each.name.partition("-")[2] or "under way", decimal(each.size), _ago(time.time() - each.used)]
                for each in sorted(entries, key=lambda each: each.used)
            ]
            print_table([] if options.clear else shown)


def _ago(seconds: float) -> str:
    """Return how long ago something was, in its largest unit."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size:
            return f"used {seconds / size:.0f} {unit} ago"
    return "used just now"


def verify(options: argparse.Namespace) -> int:
    """Compare indexes in full with their sources; return 1 if an index cannot be read, or has a problem."""
    check_workers(options.workers)
    return int(_inspect(options, verifies=True)[-1])


def _inspect(options: argparse.Namespace, *, verifies: bool) -> tuple[list[Index], list[dict[str, Any]], bool]:
    """Describe or verify each index; return indexes that are not views, their documents, and whether any failed."""
    places, failed = places_of(options.roots, getattr(options, "cache", None)), False  # `verify` has no --cache
    paths = places.expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX), print_aside)
    documents: list[dict[str, Any]] = []
    missing: list[str] = []
    found: dict[Index, dict[str, Any]] = {}
    with Progress(paths, lambda path: work(Index(index_path(path))), quiet=options.quiet) as progress:
        for path in paths:
            document: dict[str, Any] = {"path": index_path(path)}
            documents.append(document)
            try:
                index = open_stored(index_path(path), places, given=path)
                described, problems = describe(index)
                document |= described
                lines = _lines_of(index, document)
                if verifies:
                    how: Any = {"workers": options.workers, "report": progress.update}
                    findings = examine(index, **how) if isinstance(index, Index) else examine_view(index)
                    document |= findings.describe()
                    problems = [problem.error for problem in findings.problems]
                    lines = [f"{lines[0]}; {counted(len(problems), 'problem') if problems else 'verified'}"]
                    lines += [f"  not checked: {what}" for what in findings.not_checked]
                else:
                    del problems[1:]
                if isinstance(index, Index):
                    found[index] = document
                    lines = lines if verifies else []
            except Error as error:
                document["error"] = str(error)
                lines, problems, failed = [], [error], True
                if isinstance(error, IndexMissingError) and not os.path.lexists(index_path(path)):
                    missing.append(path)
                    problems = []
            failed |= bool(problems)
            progress.clear()
            for line in [] if options.json else lines:
                progress.print(line)
            for problem in [] if options.json else problems:
                print_aside(one_line(problem))
    if options.json:
        print(json.dumps({"indexes": documents}, indent=1))
    elif missing:
        try:
            refuse_missing(missing, options.sources)
        except Error as error:
            print_aside(one_line(error))
    return list(found), list(found.values()), failed


def _lines_of(index: Index | SavedView, document: dict[str, Any]) -> list[str]:
    """Return a line about an index, or about a saved view and each of its indexes."""
    if isinstance(index, Index):
        return [str(summarise(index))]
    bases = document["indexes"]
    columns = f"; {', '.join(index.columns)}" if index.columns else ""
    of = f"{counted(index.total, 'record')} of {_indexes(len(bases))}"
    lines = [f"  {each['path']}: {counted(each['records'], 'record')}; {each['message']}" for each in bases]
    return [f"{index.path}: a saved view, {index.records:,} of the {of}{columns}", *lines]


def _indexes(number: int) -> str:
    return f"{number:,} indexes" if number > 1 else "1 index"


def _print_info(indexes: list[Index], documents: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Print a summary of all indexes together."""
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
    rows += [("decoded", _size(content))] if content != size else []
    rows += [("format", text) for text in sorted({format_of(document) for document in documents})]
    rows += [("left out", counted(facts["left_out"], "record"))] if facts["left_out"] else []
    print_table([((name, "dim"), text) for name, text in rows], left=(0, 1))
    _print_title("sources")
    sources: list[list[Cell]] = []
    for each in facts["listed"]:
        state = (each["message"], "dim" if each["state"] == "unchanged" else "yellow")
        sources.append([each["path"], counted(each["records"], "record"), counted(each["bytes"], "byte"), state])
    print_table(sources, left=(0, 3))
    if len(sources) < facts["sources"]:
        shown = ((count, "in a store" if state == "object" else state) for state, count in facts["states"].items())
        print_line(f"  {', '.join(f'{count:,} {state}' for count, state in shown)}; --all lists them", "dim")
    if facts["records"]:
        _print_title("columns")
        _print_columns(facts["columns"])
        number = names.index(wanted) + 1 if wanted in names else 0
        _print_histogram(wanted, histogram(indexes, wanted if number else SIZES, facts["columns"][number]))


def _print_columns(columns: Sequence[dict[str, Any]]) -> None:
    rows: list[list[Cell]] = [
        [(each["name"], "bold"), f"{each['of']} {each['type']}".rstrip(), *(_number(each[name]) for name in _SHOWN)]
        for each in columns
    ]
    print_table(rows, head=["", "", *_SHOWN], left=(0, 1))
    if sampled := [each["sampled"] for each in columns if each["is_sample"]]:
        print_line(f"  percentiles of {counted(min(sampled), 'record')}, evenly spaced", "dim")


def _print_histogram(title: str, bins: Sequence[tuple[Number, Number | None, int]]) -> None:
    counts = [count for *_, count in bins]
    _print_title(f"{title}, {counted(sum(counts), 'record')}")
    rows: list[list[Cell]] = []
    for begin, end, count in bins:
        label = f"{_number(begin)} or more" if end is None else f"{_number(begin)} to {_number(end)}"
        bar = "█" * max(round(_BAR * count / max(counts)), int(count > 0))
        rows.append([label, f"{count:,}", f"{100 * count / sum(counts):.1f} %", (bar, "blue")])
    print_table(rows, left=(3,))


def _print_title(text: str) -> None:
    print()
    print_line(text, "bold")


def _size(size: int) -> str:
    return f"{size:,} ({decimal(size)})" if size >= 1000 else f"{size:,}"


def _number(value: Number | None) -> str:
    """Return a number as text for tables: grouped digits, or six significant digits of a fraction."""
    if isinstance(value, float) and abs(value) >= 10:
        value = round(value, 1)
    return "too large" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


# ---- records


def show(options: argparse.Namespace) -> int:
    """Print the chosen records; return 1 if a record cannot be decoded."""
    words = [*options.sources, *options.positions]  # the parser puts all words but the last into `sources`
    positions = [*takewhile(_POSITION.fullmatch, reversed(words[1:]))][::-1]
    if not positions:
        raise UsageError(f"POSITION {words[-1]}: expected the number of a record, or a range such as 10:20")
    dataset = _dataset(options, words[: -len(positions)])
    chosen = [_records_at(each, len(dataset)) for each in positions]  # check all positions before printing
    return _print(dataset, chain.from_iterable(chosen), options)


def _records_at(position: str, records: int) -> Sequence[int]:
    """Return the record numbers of a position or range; raise Error if there are none."""
    first, *others = (int(bound) if bound else None for bound in position.split(":"))
    try:
        found = range(records)[slice(first, *others)] if others else [range(records)[first or 0]]
    except (IndexError, ValueError):  # out of range, or a step of 0
        found = range(0)
    if not found:
        expected = f"0 to {records - 1}, found no record" if records else "a record, found 0 records"
        raise Error(f"position {position}: expected {expected}")
    return found


def head(options: argparse.Namespace) -> int:
    """Print the first records; return 1 if a record cannot be decoded."""
    dataset = _dataset(options, options.sources)
    return _print(dataset, range(len(dataset))[: options.records], options)


def _dataset(options: argparse.Namespace, sources: Sequence[str]) -> IndexedDataset:
    """Open the dataset of the sources; with --build, index it first."""
    given = {name: getattr(options, name) for name in ("decode", "roots", "build", "cache")}
    return cast(IndexedDataset, open_dataset(sources, **given))


def _print(dataset: IndexedDataset, positions: Iterable[int], options: argparse.Namespace) -> int:
    """Print records; return 1 if a record cannot be decoded, else 0."""
    failed, raw = False, undecoded(dataset)
    for number, position in enumerate(positions):
        record = raw[position]
        if number:
            print()
        print_line(f"{position}: {dataset.place(position)}, {counted(len(record), 'byte')}", "bold")
        text, refused = shown(dataset, position, record, full=options.full)
        if refused is not None:
            failed = True
            print_aside(one_line(refused))
        print_json(text)
    if not len(dataset):
        print_line(f"{', '.join(dataset.sources[:3])}: 0 records")
    return int(failed)
