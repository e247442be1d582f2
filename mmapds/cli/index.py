"""`mmapds index`, and `python -m mmapds.index`."""

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from .. import formats
from ..clusters import Engine
from ..errors import ColumnError, Error
from ..index.build import BuildResult, Request, build_each, check_workers, complaints
from ..index.merge import merge
from ..storage.index_file import Index
from ..storage.sources import INDEX_SUFFIX, Roots, expand, given_twice, index_path
from ..storage.workers import cores
from . import arguments_of, checking_options, executor_of, format_options
from .screen import UsageError, print_aside, progress_on

_OF_COLUMNS = ("length", "column", "missing", "validate", "bad", "hash")
_OF_BUILDING = ("format", *_OF_COLUMNS, "force", "grown", "dask", "ray", "parts", *formats.OPTIONS)


def index_or_inspect(options: argparse.Namespace) -> int:
    """Do what `python -m mmapds.index` was asked for; return the exit status."""
    if options.info or options.verify:
        from .inspect import inspect  # start-up time: building does without NumPy

        return inspect(options)
    if options.json:
        raise UsageError("--json: expected --info or --verify with it, found neither; give one of them")
    index(options)
    return 0


def index(options: argparse.Namespace) -> None:
    """Build the indexes that the options ask for, with a progress bar and a line for each."""
    if options.merge:
        _merge_indexes(options)
        return
    paths = expand(options.sources, formats.SUFFIXES, print_aside)
    if options.out is not None and (line := given_twice(paths)):
        print_aside(f"warning: {line}")
    with checking_options():
        request = Request(**{**arguments_of(Request, options), "columns": _parse_columns(options)})
        request.measuring(None)
        if options.format is not None:
            formats.by_name(options.format)
        check_workers(options.workers)
        if options.out is None and (options.dask or options.ray):
            raise Error("--out: expected OUT.mmx with --dask or --ray, found none; give the place of the index")
    engine, roots = Engine.of(executor_of(options), options.parts, options.workers or 1), Roots(options.roots, paths)
    request = request._replace(options=format_options(options, formats.OPTIONS), roots=roots, engine=engine)
    size = partial(bytes_to_build, paths, hashes=options.hash, roots=roots)
    with progress_on(paths, total=size, quiet=options.quiet) as progress:
        started = time.perf_counter()
        results: list[BuildResult] = []
        try:
            for done in build_each(paths, request._replace(report=progress.update), options.out):
                results.append(done)
                progress.print(_described(done, time.perf_counter() - started))
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


def _described(done: BuildResult, seconds: float) -> str:
    """Return the line on an index."""
    if not done.fresh:
        return f"{done.summary}; up to date, --force builds it again"
    reused = f", {done.reused}" if done.reused else ""
    return f"{done.summary}{reused}, {seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s"


def _merge_indexes(options: argparse.Namespace) -> None:
    """Make one index of those that are given, or that the sources have which are given."""
    if options.out is None:
        raise UsageError("--merge: expected -o OUT.mmx with it, found none; give the place of the index")
    for name in _OF_BUILDING:
        if (value := getattr(options, name)) != options.parser.get_default(name):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: expected no option for how to index with --merge, found {value!r}")
    with checking_options():
        check_workers(options.workers)
    paths = [index_path(path) for path in expand(options.sources, (INDEX_SUFFIX,))]
    roots = Roots(options.roots, paths)
    with progress_on(paths, total=partial(bytes_to_build, paths, roots=roots), quiet=options.quiet) as progress:
        started = time.perf_counter()
        workers = options.workers or cores()
        done = merge(paths, options.out, roots=roots, workers=workers, report=progress.update)
        seconds = time.perf_counter() - started
        progress.print(f"{done}, merged {len(paths):,} indexes, {seconds:.2f} s")


def _parse_columns(options: argparse.Namespace) -> dict[str, str]:
    columns = {"length": options.length} if options.length is not None else {}
    for given in options.column:
        name, equals, text = given.partition("=")
        if not equals or not name or not text or name in columns:
            raise ColumnError(f"--column {given}: expected NAME=EXPR, and every name once")
        columns[name] = text
    return columns
