"""The command line: `python -m mmapds.index`."""

import argparse
import time
from itertools import accumulate

from .. import cli, formats
from ..errors import ColumnError, Error
from ..index.amount import bytes_to_build, bytes_to_merge
from ..index.build import ColumnRequest, build_each, check_workers, complaints
from ..index.left_out import lacking_lines
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, expand, given_twice, index_path
from ..storage.threads import cores
from .clusters import add_engine_options, chosen_cluster, engine_of


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = cli.Parser("python -m mmapds.index", description=DESCRIPTION)
    add_build_options(parser)
    parser.add_argument("--info", action="store_true", help="print what each index covers, and which sources changed")
    parser.add_argument("--verify", action="store_true", help="check each index in full against its sources")
    _add_json(parser, "with --info, --verify: print one JSON document instead")
    parser.set_defaults(work=_run)
    return cli.main(parser, arguments)


def _run(options: argparse.Namespace) -> int:
    if options.info or options.verify:
        return inspect(options)
    if options.json:
        raise cli.UsageError("--json: expected --info or --verify with it, found neither; give one of them")
    build_indexes(options)
    return 0


DESCRIPTION = "Index JSONL, tars, TFRecords, arrays and other records in place, for mmapds.open() to read."


def add_build_options(parser: argparse.ArgumentParser) -> None:
    """Add what building an index takes."""
    cli.add_sources(parser)
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
    parser.add_argument("--bad", metavar="skip|error", help="what to do with lines that are not JSON; skip validates")
    parser.add_argument("--hash", action="store_true", help="store a hash of each source, for verify and check='full'")
    _add_workers(parser)
    add_engine_options(parser, work="scan", out="OUT.mmx")
    cli.add_roots(parser)
    parser.add_argument("--force", action="store_true", help="build even where the index is up to date")
    parser.add_argument("--grown", action="store_true", help="scan but the new end of a source that has grown")
    parser.add_argument("--merge", action="store_true", help="make OUT.mmx of indexes, without a look at their records")
    _add_quiet(parser)
    parser.set_defaults(work=build_indexes, interrupted="interrupted: nothing was written for the index in progress")


def add_inspect_options(parser: argparse.ArgumentParser) -> None:
    """Add what looking at indexes takes, but for `info` and `verify` themselves."""
    cli.add_sources(parser)
    _add_workers(parser)
    cli.add_roots(parser)
    _add_quiet(parser)
    _add_json(parser, "print one JSON document instead")
    parser.set_defaults(work=inspect, interrupted="interrupted")


def add_verify_options(parser: argparse.ArgumentParser) -> None:
    """Add what `verify` takes."""
    add_inspect_options(parser)
    parser.set_defaults(info=False, verify=True)


def _add_workers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workers", type=int, metavar="N", help="threads that scan; default: all cores")


def _add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def _add_json(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--json", action="store_true", help=text)


def inspect(options: argparse.Namespace) -> int:
    """Print what indexes cover, or check them; return the exit status."""
    from ..index.inspect import inspect_indexes  # start-up time: building does without

    with cli.checking_options():
        check_workers(options.workers)
    paths = expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX), report=cli.print_aside)
    return inspect_indexes(
        paths,
        info=options.info,
        verify=options.verify,
        as_json=options.json,
        quiet=options.quiet,
        workers=options.workers,
        roots=Roots(options.root, paths),
    )


def build_indexes(options: argparse.Namespace) -> None:
    """Build the indexes that the options ask for, with a progress bar and a line for each."""
    if options.merge:
        _merge_indexes(options)
        return
    paths = expand(options.sources, formats.SUFFIXES, report=cli.print_aside)
    if options.out is not None and (line := given_twice(paths)):
        cli.print_aside(f"warning: {line}")
    with cli.checking_options():
        columns, missing = _parse_columns(options), _parse_missing(options.missing)
        request = ColumnRequest(columns, missing, options.validate, hash=options.hash, bad=options.bad)
        request.measuring(None)
        if options.format is not None:
            formats.by_name(options.format)
        check_workers(options.workers)

        if options.out is None and (cluster := chosen_cluster(options)):
            raise Error(f"--{cluster}: expected -o OUT.mmx with it, found none; give the place of the index")

    roots, engine = Roots(options.root, paths), engine_of(options, options.workers or 1)
    ends: list[int] = []

    def size() -> int:
        ends[:] = accumulate(bytes_to_build(paths, out=options.out, hashes=options.hash, roots=roots))
        return ends[-1]

    with cli.Progress(paths, unit="B", total=size, quiet=options.quiet) as progress:
        started = time.perf_counter()
        built = build_each(
            paths,
            out=options.out,
            format_name=options.format,
            options=cli.format_options(options, formats.OPTIONS),
            request=request,
            workers=options.workers,
            force=options.force,
            grown=options.grown,
            roots=roots,
            engine=engine,
            report=progress.update,
        )
        results = []
        for number, done in enumerate(built):
            results.append(done)
            progress.reach(ends[number] if ends else 0)
            seconds = time.perf_counter() - started
            speed = f"{seconds:.2f} s, {done.summary.size / seconds / 1e9:.2f} GB/s"
            reused = f", {done.reused}" if done.reused else ""
            added = f"added {done.hashed:,} hash{'es' * (done.hashed > 1)}, the rest is " if done.hashed else ""
            outcome = f"{reused}, {speed}" if done.fresh else f"; {added}up to date, --force builds it again"
            for line in done.bad_lines:
                progress.complain(line)
            progress.print(f"{done.summary}{outcome}")
            for line in lacking_lines(Index(done.summary.path)) if done.fresh else ():
                progress.print(f"  {line}")
            if done.fresh and (note := _note_on_roots(Index(done.summary.path))):
                progress.print(note)
            started = time.perf_counter()
        for line in complaints(results, of_each=True):
            progress.complain(f"warning: {line}")


def _merge_indexes(options: argparse.Namespace) -> None:
    """Make one index of those that are given, or that the sources have which are given."""
    from ..index.merge import merge  # start-up time: building does without

    if options.out is None:
        raise cli.UsageError("--merge: expected -o OUT.mmx with it, found none; give the place of the index")
    columns, engine = ("length", "column", "missing", "validate", "bad", "hash"), ("dask", "ray", "parts")
    for name in ("format", *columns, "force", "grown", *engine, *formats.OPTIONS):
        if value := getattr(options, name):
            option = f"--{name.replace('_', '-')}"
            raise cli.UsageError(
                f"{option}: expected no option for how to index with --merge, found {value!r}; leave it out"
            )
    with cli.checking_options():
        check_workers(options.workers)
    paths = [index_path(path) for path in expand(options.sources, (INDEX_SUFFIX,), indexed=False)]
    roots = Roots(options.root, paths)
    with cli.Progress(paths, unit="B", total=lambda: bytes_to_merge(paths), quiet=options.quiet) as progress:
        started = time.perf_counter()
        workers = options.workers or cores()
        done = merge(paths, options.out, roots=roots, workers=workers, report=progress.update)
        seconds = time.perf_counter() - started
        progress.print(f"{done.summary}, merged {len(paths):,} indexes, {seconds:.2f} s")
        if note := _note_on_roots(Index(options.out)):
            progress.print(note)


def _note_on_roots(index: Index) -> str:
    """Say what opening an index takes whose sources lie elsewhere; nothing of one that lies beside its source."""
    roots = [] if index.is_beside_its_source else index.roots_needed()
    return f"  its sources lie elsewhere; open it with mmapds.open({index.path!r}, roots={roots})" if roots else ""


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
