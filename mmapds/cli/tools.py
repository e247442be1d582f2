"""`mmapds convert`, `report`, `seekable` and `bench`: each is a function of the package with a line on what it did."""

import argparse
import json
import os
import sys
import time
from inspect import signature
from typing import Any

from .. import formats
from ..bench import bench, name_of
from ..bench import check_arguments as check_bench
from ..convert import OPTIONS, convert, expanded
from ..convert import check_arguments as check_convert
from ..dataset.decode import check_name
from ..errors import Error, FormatError, counted, printable, shortened
from ..recompress import check_apart, seekable
from ..recompress import check_arguments as check_seekable
from ..report import report
from ..report.plans import Wanted, wanted_plans
from ..storage.sources import expand
from . import arguments_of, checking_options, executor_of, format_options
from .screen import Cell, print_aside, print_line, print_table, progress_on

SUFFIXES = (".jsonl", ".ndjson", ".gz", ".bgz", ".zst", ".zstd")
"""What the names of files end in that `seekable` takes from a directory."""

_HEAD = ("", "", "records/s", "MB/s", "p50 ms", "p99 ms", "memory MB", "disk MB")


def run_convert(options: argparse.Namespace) -> None:
    """Convert sources to an array file."""
    started = time.perf_counter()
    given = arguments_of(convert, options)
    others = format_options(options, OPTIONS)
    if options.fields is not None:
        given["fields"] = [name.strip() for name in options.fields.split(",")]
    with checking_options():
        given |= {name: _json_object(name, given[name]) for name in ("schema", "types", "defaults")}
        checked = {name: given[name] for name in signature(check_convert).parameters if name in given}
        check_convert(**checked, options=others)
        check_name(options.decode)
        known = sorted({*formats.FORMATS, *formats.CONVERTIBLE})
        if options.format not in (None, *known):
            raise FormatError(f"format = {options.format!r}, expected one of {', '.join(map(repr, known))}")
    executor = executor_of(options)
    given["sources"] = expanded(options.sources, options.format, print_aside)
    with progress_on(options.sources, unit="records", quiet=options.quiet) as progress:
        done = convert(**given, **others, executor=executor, progress=progress.update)
        seconds = time.perf_counter() - started
        size = os.path.getsize(done.path)
        progress.print(f"{done}; {counted(size, 'byte')}, {seconds:.2f} s, {done.records / seconds:,.0f} records/s")


def _json_object(option: str, text: str | None) -> Any:
    """Return what an option is given: a JSON object, or the name of a file that holds one."""
    if text is None:
        return None
    given = text
    try:
        if not text.lstrip().startswith("{"):
            with open(text, "rb") as file:
                text = file.read().decode()
        return json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(
            f"--{option}: expected a JSON object, or the name of a file that holds one, found {shortened(given, 60)} "
            f"({error})"
        ) from None


def run_report(options: argparse.Namespace) -> None:
    """Write a report, or print its numbers."""
    with checking_options():
        wanted_plans(options.compare, **arguments_of(Wanted, options))
        check_name(options.decode)
    options.out = options.out or (None if options.json else "report.html")
    facts = report(options.sources, **arguments_of(report, options))
    if options.json:
        print(json.dumps(facts, indent=1))
    elif not options.quiet:
        plans = ", ".join(plan["title"] for plan in facts["plans"]) or "no plan"
        records = counted(facts["coverage"]["records"], "record")
        print(printable(f"{options.out}: {facts['title']}, {records}; {plans}"))


def run_seekable(options: argparse.Namespace) -> None:
    """Recompress each source."""
    paths = expand(options.sources, SUFFIXES, print_aside)
    with checking_options():
        check_seekable(**arguments_of(check_seekable, options))
        if len(paths) > 1 and options.out is not None and not os.path.isdir(options.out):
            raise Error(
                f"--out: expected a directory for {len(paths)} sources, found {options.out!r}; give a directory"
            )
    check_apart(paths, options.out, options.frame, force=options.force)
    size = sum(map(os.path.getsize, paths))
    with progress_on(options.sources, quiet=options.quiet, total=lambda: size) as progress:
        for path in paths:
            started = time.perf_counter()
            done = seekable(path, **arguments_of(seekable, options), progress=progress.update)
            progress.print(f"{done}; {time.perf_counter() - started:.2f} s" if done.is_new else str(done))


def run_bench(options: argparse.Namespace) -> None:
    """Measure how fast a dataset is read, and print a table with a row for each pass."""
    with checking_options():
        check_bench(**arguments_of(check_bench, options))
        check_name(options.decode)

    def tell(trial: dict[str, Any]) -> None:
        if not options.quiet and sys.stderr.isatty():
            print_aside(f"measured {name_of(trial)}")

    facts = bench(options.sources, **arguments_of(bench, options), progress=tell)
    if options.json:
        print(json.dumps(facts, indent=1))
        return
    records, size = counted(facts["records"], "record"), facts["bytes"] / 1e6
    print_line(f"{facts['title']}: {records}, {size:,.1f} MB, {facts['plan']}", "bold")
    rows = [
        _row(name_of(trial) if name == "cold" or trial["cold"] is None else "", name, trial[name])
        for trial in facts["trials"]
        for name in ("cold", "warm")
        if trial[name] is not None
    ]
    print_table(rows, head=_HEAD, left=(0, 1))
    fit = "fit" if facts["fits"] else "do not fit"
    which = facts["recommendation"]["pass"]
    print_line(f"The data {fit} into the memory that is available, so {which} passes count.")
    print_line(facts["recommendation"]["text"])


def _row(title: str, name: str, found: dict[str, Any]) -> list[Cell]:
    rates = [f"{found['records_per_second']:,.0f}", f"{found['bytes_per_second'] / 1e6:,.1f}"]
    waits = [f"{found[each] * 1e3:,.3f}" for each in ("wait_p50", "wait_p99")]
    sizes = ["-" if found[each] is None else f"{found[each] / 1e6:,.1f}" for each in ("memory", "from_disk")]
    return [(title, "bold"), name, *rates, *waits, *sizes]
