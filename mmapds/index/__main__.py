"""The command line: `python -m mmapds.index`."""

import argparse
import os
import sys
import time

from .. import cli, formats
from ..errors import ColumnError, StaleIndexError
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, expand, reason
from .build import ColumnRequest, build_each
from .summary import summarise
from .verify import verify


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    work = _inspect_indexes if options.info or options.verify else _build_indexes
    return cli.run(lambda: work(options), interrupted="interrupted: nothing was written for the index in progress")


def _parser() -> argparse.ArgumentParser:
    parser = cli.new_parser(
        "mmapds.index", "Index JSONL, tars, TFRecords, arrays and other records in place, for mmapds.open() to read."
    )
    parser.add_argument("-o", "--out", metavar="OUT.mmx", help="one combined index; default: SOURCE.mmx for each")
    parser.add_argument("--format", metavar="F", help="how records are framed; default: by suffix")
    cli.add_format_options(parser, formats.OPTIONS)
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
    return parser


def _build_indexes(options: argparse.Namespace) -> None:
    paths = expand(options.sources, formats.SUFFIXES)
    request = ColumnRequest(_parse_columns(options), _parse_missing(options.missing), options.validate)

    def size() -> int:
        return sum(os.path.getsize(path) for path in paths if os.path.exists(path))

    with cli.Progress(paths, unit="B", total=size, quiet=options.quiet) as progress:
        started = time.perf_counter()
        for done in build_each(
            paths,
            out=options.out,
            format_name=options.format,
            options=cli.format_options(options, formats.OPTIONS),
            request=request,
            workers=options.workers,
            force=options.force,
            report=progress.update,
        ):
            seconds = time.perf_counter() - started
            speed = f"{seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s"
            outcome = f", {speed}" if done.fresh else "; up to date, --force builds it again"
            progress.print(f"{done.summary}{outcome}")
            started = time.perf_counter()


def _parse_columns(options: argparse.Namespace) -> dict[str, str]:
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


def _inspect_indexes(options: argparse.Namespace) -> None:
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
    options = "".join(f", {name} {value}" for name, value in shown.items())
    print(f"  {index.format}{options}")


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
