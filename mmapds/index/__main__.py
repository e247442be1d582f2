"""`python -m mmapds.index`: the command line."""

import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from .. import formats
from ..errors import ColumnError, Error, StaleIndexError
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, expand, reason
from .build import ColumnRequest, build_each
from .summary import summarise
from .verify import verify


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
    request = ColumnRequest(_parse_columns(options), _parse_missing(options.missing), options.validate)
    given = {name: getattr(options, name) for name in formats.OPTIONS if getattr(options, name) is not None}
    with _progress_bar(paths, wanted=sys.stderr.isatty() and not options.quiet) as bar:
        report = bar.update if bar is not None else lambda _: None
        started = time.perf_counter()
        for done in build_each(
            paths,
            out=options.out,
            format_name=options.format,
            options=given,
            request=request,
            workers=options.workers,
            force=options.force,
            report=report,
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
