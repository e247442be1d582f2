"""The command line: `python -m mmapds.bench`."""

import argparse
import json
import sys
from typing import Any

from .. import cli
from ..dataset.decode import check_name
from ..errors import Error
from . import bench, check_arguments
from .choose import name_of
from .table import lines_of

DESCRIPTION = (
    "Measure how fast a dataset is read, on this machine and without a trainer, and say which loader to use.\n"
    "Before each trial the pages of its sources are dropped from memory, for a cold pass; --no-cold leaves them."
)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = cli.Parser("python -m mmapds.bench", description=DESCRIPTION)
    add_bench_options(parser)
    return cli.main(parser, arguments)


def add_bench_options(parser: argparse.ArgumentParser) -> None:
    """Add what measuring takes."""
    cli.add_sources(parser)
    parser.add_argument("--max-tokens", type=int, metavar="N", help="batches under a budget of tokens")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="else batches of a size; default: 32")
    parser.add_argument("--workers", type=_numbers, metavar="A,B", help="numbers of workers to try; default: by cores")
    parser.add_argument("--no-processes", action="store_true", help="try threads alone")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each pass; default: 2")
    parser.add_argument("--no-cold", action="store_true", help="drop no pages from memory; warm passes alone")
    parser.add_argument("--collate", default="list", metavar="list|pad", help="samples as they are, or pad_collate")
    parser.add_argument("--decode", metavar="D", help="decoder of samples, as in show; default: by format")
    cli.add_roots(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--quiet", action="store_true", help="do not say how far it is")
    parser.set_defaults(work=_bench, interrupted="interrupted")


def _numbers(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"expected numbers such as 0,2,4, found {text!r}")
    return [int(part) for part in parts]


def _bench(options: argparse.Namespace) -> None:
    with cli.checking_options():
        check_arguments(options.max_tokens, options.batch_size, options.workers, options.seconds, options.collate)
        check_name(options.decode)

    def report(trial: dict[str, Any]) -> None:
        if not options.quiet and sys.stderr.isatty():
            cli.print_aside(f"measured {name_of(trial)}")

    try:
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
    except ModuleNotFoundError as error:
        raise Error(str(error)) from None
    for line in [json.dumps(facts, indent=1)] if options.json else lines_of(facts):
        cli.print_line(line if options.json else cli.printable(line))


if __name__ == "__main__":
    sys.exit(main())
