"""Run `mmapds index`, `convert`, `report`, `seekable` and `bench`, and print a line about the result."""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from inspect import signature
from typing import Any, cast

from .. import formats
from ..build_index import merge
from ..errors import ColumnError, Error, FormatError, counted, printable, warn
from ..index.build import BuildResult, Request, check_workers, summarise
from ..index.each import build_each, complaints
from ..index.executors import Engine
from ..remote.objects import places as places_of
from ..storage.index_file import Index
from ..storage.places import Places
from ..storage.sources import INDEX_SUFFIX, given_twice
from . import Cell, Progress, UsageError, print_aside, print_line, print_table

_OF_COLUMNS = ("length", "column", "missing", "validate", "bad", "max_record", "hash")
_OF_BUILDING = ("format", *_OF_COLUMNS, "force", "grown", "dask", "ray", "parts", *formats.OPTIONS)
_SEEKABLE = (".jsonl", ".ndjson", ".gz", ".bgz", ".zst", ".zstd")  # suffixes of sources in a directory


def _given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """Return the given options among these names."""
    return {name: getattr(options, name) for name in names if getattr(options, name, None) is not None}


def _executor(options: argparse.Namespace) -> Any:
    """Return an executor of the chosen cluster; None without --dask and --ray."""
    given = _given(options, ("dask", "ray"))
    if len(given) > 1:
        raise UsageError("--ray: expected no --dask beside it")
    if options.parts is not None and not given:
        raise UsageError("--parts: expected --dask or --ray with it, found neither")
    for name, address in given.items():
        if not address:  # an unset shell variable: the engine would start a cluster on this machine
            raise UsageError(f"--{name}: expected an address, found none")
        from ..index import executors  # start-up time: most commands have no cluster

        try:
            return getattr(executors, name)(address)
        except (ModuleNotFoundError, OSError, TimeoutError) as error:
            raise Error(f"{name}: {error}") from None
    return None


# ---- index


def index(options: argparse.Namespace) -> None:
    """Build, merge or filter indexes, with a progress bar and a line for each."""
    if options.where is not None:
        _filter(options)
        return
    if options.merge:
        _merge(options)
        return
    places = places_of(options.roots, options.cache, options.cache_bytes)
    paths = places.expand(options.sources, formats.SUFFIXES, print_aside)
    if options.out is not None and (line := given_twice(paths)):
        warn(line)
    if options.out is None and (options.dask or options.ray):
        raise UsageError("--out: expected OUT.mmx with --dask or --ray, found none")
    request = Request(**{**_given(options, signature(Request).parameters), "columns": _columns(options)})
    try:
        request.measuring(None)
    except Error as error:  # an expression is wrong for any sources
        raise UsageError(str(error)) from None
    engine = Engine.of(_executor(options), options.parts, options.workers or 1)
    request = request._replace(options=_given(options, formats.OPTIONS), places=places, engine=engine)
    reads = 2 if options.hash else 1
    with Progress(paths, lambda path: reads * _size_of(path, places), quiet=options.quiet) as progress:
        started = time.perf_counter()
        results: list[BuildResult] = []
        try:
            for done in build_each(paths, request._replace(report=progress.update), options.out):
                results.append(done)
                seconds, started = time.perf_counter() - started, time.perf_counter()
                rate = f"{seconds:.2f} s, {done.summary.size / seconds / 1e6:,.0f} MB/s"
                how = ", ".join([str(done.summary), *filter(None, [done.reused]), rate])
                progress.print(how if done.fresh else f"{done.summary}; up to date, --force builds it again")
        finally:
            progress.clear()
            for line in complaints(results):
                warn(line)


def _size_of(path: str, places: Places) -> int:
    """Return the size of a source, or of all sources of an index, in bytes."""
    is_index = path.endswith(INDEX_SUFFIX)
    return sum(each.size for each in (Index(path, places).sources if is_index else places.inspect([path])))


def _merge(options: argparse.Namespace) -> None:
    """Merge the given indexes, or the indexes of the given sources."""
    _check_builds_nothing(options, "merge")
    check_workers(options.workers)
    started = time.perf_counter()
    path = merge(options.sources, **_given(options, signature(merge).parameters))
    if not options.quiet:
        print(printable(f"{summarise(Index(str(path)))}, merged, {time.perf_counter() - started:.2f} s"))


def _filter(options: argparse.Namespace) -> None:
    """Save a view of the records that match a filter."""
    from ..dataset.indexed import IndexedDataset, matching  # start-up time, as below
    from ..dataset.opening import open as open_dataset

    _check_builds_nothing(options, "where", "merge", "workers")
    started = time.perf_counter()
    dataset = cast(IndexedDataset, open_dataset(options.sources, roots=options.roots, cache=options.cache))
    found = matching(dataset, options.where)
    found.save(options.out)
    if not options.quiet:
        what = f"{len(found):,} of {counted(len(dataset), 'record')} where {options.where}"
        print(printable(f"{options.out}: {what}, {time.perf_counter() - started:.2f} s"))


def _check_builds_nothing(options: argparse.Namespace, mode: str, *others: str) -> None:
    """Raise UsageError in a mode that indexes no source: for options of indexing, or without --out."""
    if options.out is None:
        raise UsageError(f"--{mode}: expected -o OUT.mmx with it, found none")
    for name in (*_OF_BUILDING, *others):
        if getattr(options, name) not in (None, []):
            raise UsageError(f"--{name.replace('_', '-')}: expected no option for how to index with --{mode}")


def _columns(options: argparse.Namespace) -> dict[str, str]:
    columns = {"length": options.length} if options.length is not None else {}
    for given in options.column:
        name, _, text = given.partition("=")
        if not name or not text or name in columns:
            raise ColumnError(f"--column {given}: expected NAME=EXPR, such as {name}={name}, and every name once")
        columns[name] = text
    return columns


# ---- other commands import their functions when they run: these load NumPy, which indexing does not need


def convert(options: argparse.Namespace) -> None:
    """Convert sources to an array file."""
    from ..convert import OPTIONS, convert  # start-up time

    started = time.perf_counter()
    given = _given(options, signature(convert).parameters) | _given(options, OPTIONS)
    given |= {name: _json_object(name, text) for name, text in _given(options, ["schema", "types", "defaults"]).items()}
    if options.fields:
        given["fields"] = [name.strip() for name in options.fields.split(",")]
    executor = _executor(options)
    with Progress(options.sources, unit="records", quiet=options.quiet) as progress:
        done = convert(**given, executor=executor, progress=progress.update)
        seconds = time.perf_counter() - started
        size = os.path.getsize(done.path)
        progress.print(f"{done}; {counted(size, 'byte')}, {seconds:.2f} s, {done.records / seconds:,.0f} records/s")


def _json_object(option: str, text: str) -> Any:
    """Return the JSON object of an option, given as text or as the name of a file."""
    try:
        if text.lstrip().startswith("{"):
            return json.loads(text)
        with open(text, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"--{option}: expected a JSON object, or a file that holds one, found {error}") from None


def report(options: argparse.Namespace) -> None:
    """Write a report, or print its numbers."""
    from ..report import report  # start-up time

    options.out = options.out or (None if options.json else "report.html")
    facts = report(options.sources, **_given(options, signature(report).parameters))
    if options.json:
        print(json.dumps(facts, indent=1))
    elif not options.quiet:
        plans = ", ".join(plan["title"] for plan in facts["plans"]) or "no plan"
        records = counted(facts["coverage"]["records"], "record")
        print(printable(f"{options.out}: {facts['title']}, {records}; {plans}"))


def seekable(options: argparse.Namespace) -> None:
    """Recompress each source."""
    from ..convert.recompress import seekable, target_of  # start-up time

    paths = Places().expand(options.sources, _SEEKABLE, print_aside)
    written = [*(target_of(path, options.out) for path in paths), *(paths if options.force else ())]
    target, sources = Counter(map(os.path.realpath, written)).most_common(1)[0]
    if sources > 1:
        raise Error(f"{target}: expected one source for it, found {sources}; give them one by one")
    with Progress(paths, os.path.getsize, quiet=options.quiet) as progress:
        for path in paths:
            started = time.perf_counter()
            done = seekable(path, **_given(options, signature(seekable).parameters), progress=progress.update)
            progress.print(f"{done}; {time.perf_counter() - started:.2f} s" if done.is_new else str(done))


def bench(options: argparse.Namespace) -> None:
    """Measure how fast a dataset is read, and print a table with a row for each pass."""
    from ..bench import bench, name_of  # start-up time

    def tell(trial: dict[str, Any]) -> None:
        if not options.quiet and sys.stderr.isatty():
            print_aside(f"measured {name_of(trial)}")

    facts = bench(options.sources, **_given(options, signature(bench).parameters), progress=tell)
    if options.json:
        print(json.dumps(facts, indent=1))
        return
    records, size = counted(facts["records"], "record"), facts["bytes"] / 1e6
    print_line(f"{facts['title']}: {records}, {size:,.1f} MB, {facts['plan']}", "bold")
    rows: list[list[Cell]] = []
    for trial in facts["trials"]:
        passes = [(name, trial[name]) for name in ("cold", "warm") if trial[name]]
        for title, (name, found) in zip([name_of(trial), ""], passes, strict=False):
            sizes = ["-" if found[each] is None else f"{found[each] / 1e6:,.1f}" for each in ("memory", "from_disk")]
            waits = [f"{found[each] * 1e3:,.3f}" for each in ("wait_p50", "wait_p99")]
            rates = [f"{found['records_per_second']:,.0f}", f"{found['bytes_per_second'] / 1e6:,.1f}"]
            rows.append([(title, "bold"), name, *rates, *waits, *sizes])
    print_table(rows, head=("", "", "records/s", "MB/s", "p50 ms", "p99 ms", "memory MB", "disk MB"), left=(0, 1))
    fit, which = "fit" if facts["fits"] else "do not fit", facts["recommendation"]["pass"]
    print_line(f"The data {fit} into the memory that is available, so {which} passes count.")
    print_line(facts["recommendation"]["text"])
