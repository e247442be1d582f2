"""`mmapds bench`."""

import argparse
import json
import sys
from typing import Any

from ..bench import bench, check_arguments, name_of
from ..dataset.decode import check_name
from ..errors import counted
from . import add_common, checking_options, print_aside
from .screen import Cell, print_line, print_table

_HEAD = ("", "", "records/s", "MB/s", "p50 ms", "p99 ms", "memory MB", "disk MB")


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add what measuring takes."""
    add_common(parser, "max-tokens", "decode", "root", "json", "quiet")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="else batches of a size; default: 32")
    parser.add_argument("--workers", type=_numbers, metavar="A,B", help="numbers of workers to try; default: by cores")
    parser.add_argument("--no-processes", action="store_true", help="try threads alone")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each pass; default: 2")
    parser.add_argument("--no-cold", action="store_true", help="drop no pages from memory; warm passes alone")
    parser.add_argument("--collate", default="list", metavar="list|pad", help="samples as they are, or pad_collate")
    parser.set_defaults(work=_bench)


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,2,4, found {text!r}")
    return [int(part) for part in parts]


def _bench(options: argparse.Namespace) -> None:
    with checking_options():
        check_arguments(options.max_tokens, options.batch_size, options.workers, options.seconds, options.collate)
        check_name(options.decode)

    def report(trial: dict[str, Any]) -> None:
        if not options.quiet and sys.stderr.isatty():
            print_aside(f"measured {name_of(trial)}")

    facts = bench(
        options.sources,
        max_tokens=options.max_tokens,
        batch_size=options.batch_size,
        workers=options.workers,
        processes=not options.no_processes,
        seconds=options.seconds,
        cold=not options.no_cold,
        collate=options.collate,
        decode=options.decode,
        roots=options.root,
        progress=report,
    )
    if options.json:
        print(json.dumps(facts, indent=1))
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    """Print what was measured, as a table with a row for each pass."""
    print_line(
        f"{facts['title']}: {counted(facts['records'], 'record')}, {facts['bytes'] / 1e6:,.1f} MB, {facts['plan']}",
        "bold",
    )
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
