"""`mmapds index`, and `python -m mmapds.index`."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from .. import formats
from ..clusters import Engine
from ..errors import ColumnError, Error
from ..index.build import BuildResult, Request, build_each, check_workers, complaints
from ..index.merge import merge
from ..progress import Progress
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, Roots, expand, given_twice, index_path
from ..storage.threads import cores
from . import (
    Parser,
    UsageError,
    add_cluster_options,
    add_common,
    add_format_options,
    checking_options,
    executor_of,
    format_options,
    print_aside,
    progress_on,
    run,
)

DESCRIPTION = "Index JSONL, tars, TFRecords, arrays and other records in place, for mmapds.open() to read."

_OF_COLUMNS = ("length", "column", "missing", "validate", "bad", "hash")
_OF_BUILDING = ("format", *_OF_COLUMNS, "force", "grown", "dask", "ray", "parts")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = Parser("python -m mmapds.index", description=DESCRIPTION)
    add_index_options(parser)
    parser.add_argument("--info", action="store_true", help="print what indexes cover, as mmapds info does")
    parser.add_argument("--verify", action="store_true", help="check each index in full against its sources")
    parser.add_argument("--json", action="store_true", help="with --info or --verify: print one JSON document")
    parser.set_defaults(work=_index_or_inspect, all=False, histogram=None)
    return run(lambda: parser.run(sys.argv[1:] if arguments is None else arguments))


def _index_or_inspect(options: argparse.Namespace) -> int:
    if options.info or options.verify:
        from .inspect import inspect  # start-up time: building does without NumPy

        return inspect(options)
    if options.json:
        raise UsageError("--json: expected --info or --verify with it, found neither; give one of them")
    _index(options)
    return 0


def add_index_options(parser: argparse.ArgumentParser) -> None:
    """Add what building an index takes."""
    add_common(parser, "workers", "root", "force", "quiet")
    parser.add_argument("-o", "--out", metavar="OUT.mmx", help="one combined index; default: SOURCE.mmx for each")
    parser.add_argument("--format", metavar="F", help="how records are framed; default: by suffix")
    add_format_options(parser, formats.OPTIONS)
    parser.add_argument("--length", metavar="EXPR", help="column for token budgets: the same as --column length=EXPR")
    expressions = "number of each record: path, bytes(path), chars(path), items(path) or bytes()"
    parser.add_argument("--column", action="append", default=[], metavar="NAME=EXPR", help=expressions)
    parser.add_argument("--missing", type=_parse_missing, metavar="skip|N|error", help="records that lack a field")
    parser.add_argument("--validate", action="store_true", default=None, help="check that every record is JSON")
    parser.add_argument("--bad", metavar="skip|error", help="lines that are not JSON; skip validates")
    parser.add_argument("--hash", action="store_true", help="store a hash of each source, for verify and check='full'")
    add_cluster_options(parser)
    parser.add_argument("--grown", action="store_true", help="scan but the new end of a source that has grown")
    parser.add_argument("--merge", action="store_true", help="make OUT.mmx of indexes, without a look at their records")
    parser.set_defaults(work=_index)


def _index(options: argparse.Namespace) -> None:
    """Build the indexes that the options ask for, with a progress bar and a line for each."""
    if options.merge:
        _merge_indexes(options)
        return
    paths = expand(options.sources, formats.SUFFIXES, print_aside)
    if options.out is not None and (line := given_twice(paths)):
        print_aside(f"warning: {line}")
    with checking_options():
        request = Request(
            options.format,
            columns=_parse_columns(options),
            missing=options.missing,
            validate=options.validate,
            bad=options.bad,
            hash=options.hash,
            force=options.force,
            grown=options.grown,
            workers=options.workers,
        )
        request.measuring(None)
        if options.format is not None:
            formats.by_name(options.format)
        check_workers(options.workers)
        if options.out is None and (options.dask or options.ray):
            raise Error("--out: expected OUT.mmx with --dask or --ray, found none; give the place of the index")
    engine, roots = Engine.of(executor_of(options), options.parts, options.workers or 1), Roots(options.root, paths)
    request = request._replace(options=format_options(options, formats.OPTIONS), roots=roots, engine=engine)
    size = partial(bytes_to_build, paths, hashes=options.hash, roots=roots)
    with progress_on(paths, total=size, quiet=options.quiet) as progress:
        started = time.perf_counter()
        results: list[BuildResult] = []
        try:
            for done in build_each(paths, request._replace(report=progress.update), options.out):
                results.append(done)
                _print_result(progress, done, time.perf_counter() - started)
                started = time.perf_counter()
        finally:
            progress.clear()
            for line in complaints(results):
                print_aside(f"warning: {line}")


def bytes_to_build(paths: Sequence[str], *, hashes: bool = False, roots: Roots) -> int:
    """Return how many bytes building reads: sources, or those of indexes; twice as many with hashes."""
    size = 0
    for path in paths:
        with suppress(Error, OSError):  # the build says what is wrong
            is_index = path.endswith(INDEX_SUFFIX)
            size += sum(each.size for each in Index(path, roots).sources) if is_index else os.path.getsize(path)
    return size * (2 if hashes else 1)


def _print_result(progress: Progress, done: BuildResult, seconds: float) -> None:
    """Print a line on an index, and what users must know of it."""
    if not done.fresh:
        progress.print(f"{done.summary}; up to date, --force builds it again")
        return
    reused = f", {done.reused}" if done.reused else ""
    progress.print(f"{done.summary}{reused}, {seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s")


def _merge_indexes(options: argparse.Namespace) -> None:
    """Make one index of those that are given, or that the sources have which are given."""
    if options.out is None:
        raise UsageError("--merge: expected -o OUT.mmx with it, found none; give the place of the index")
    for name in (*_OF_BUILDING, *formats.OPTIONS):
        if (value := getattr(options, name)) != options.parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: expected no option for how to index with --merge, found {value!r}")
    with checking_options():
        check_workers(options.workers)
    paths = [index_path(path) for path in expand(options.sources, (INDEX_SUFFIX,))]
    roots = Roots(options.root, paths)
    with progress_on(paths, total=partial(bytes_to_build, paths, roots=roots), quiet=options.quiet) as progress:
        started = time.perf_counter()
        workers = options.workers or cores()
        done = merge(paths, options.out, roots=roots, workers=workers, report=progress.update)
        seconds = time.perf_counter() - started
        progress.print(f"{done.summary}, merged {len(paths):,} indexes, {seconds:.2f} s")


def _parse_columns(options: argparse.Namespace) -> dict[str, str]:
    columns = {"length": options.length} if options.length is not None else {}
    for given in options.column:
        name, equals, text = given.partition("=")
        if not equals or not name or not text or name in columns:
            raise ColumnError(f"--column {given}: expected NAME=EXPR, and every name once")
        columns[name] = text
    return columns


def _parse_missing(text: str) -> str | float:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
