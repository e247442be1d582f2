"""The command line: `python -m mmapds.convert`."""

import argparse
import json
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ..errors import Error, FormatError
from . import OPTIONS, convert


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a half-written file is removed
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    started = time.perf_counter()
    try:
        with _progress_bar(options.sources, wanted=sys.stderr.isatty() and not options.quiet) as bar:
            done = convert(
                options.sources,
                options.out,
                format=options.format,
                schema=_schema(options.schema),
                fields=[name.strip() for name in options.fields.split(",")] if options.fields is not None else None,
                length=options.length,
                missing=options.missing,
                infer=options.infer,
                decode=options.decode,
                index=not options.no_index,
                progress=lambda count, total: _advance(bar, count, total),
                **given,
            )
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    if not options.quiet:
        seconds = time.perf_counter() - started
        size = os.path.getsize(done.path)
        print(f"{done}; {size:,} bytes, {seconds:.2f} s, {done.records / seconds:,.0f} records/s")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mmapds.convert",
        description="Convert Parquet, Arrow, HDF5, and whatever can be indexed, to an array file (.mma).",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=20, width=100),
    )
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="file, directory, glob or brace pattern")
    parser.add_argument("-o", "--out", metavar="OUT.mma", help="default, for one source: beside it")
    parser.add_argument("--format", metavar="F", help="parquet, arrow, hdf5, or a format that is indexed")
    parser.add_argument("--schema", metavar="JSON", help="fields and their types, or a file that has them")
    parser.add_argument("--fields", metavar="A,B", help="fields to write, in this order; default: all")
    parser.add_argument("--length", metavar="FIELD", help="field that token budgets are planned by")
    parser.add_argument(
        "--missing", default="error", metavar="skip|error", help="what to do with records that lack a field"
    )
    parser.add_argument(
        "--infer", type=int, default=1000, metavar="N", help="records to infer a schema from, of JSON and the like"
    )
    parser.add_argument("--decode", metavar="D", help="json, text, bytes, files, wds or tf_example; default: by format")
    for name, (kind, placeholder, text) in OPTIONS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=placeholder, help=text)
    parser.add_argument("--no-index", action="store_true", help="write no index; for parts that one index will cover")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    return parser


def _schema(text: str | None) -> Any:
    """A schema of JSON, or of a file of it."""
    if text is None:
        return None
    try:
        if not text.lstrip().startswith("{"):
            with open(text, "rb") as file:
                text = file.read().decode()
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise FormatError(f"--schema: expected a JSON object, or a file that holds one: {error}") from None


def _progress_bar(sources: list[str], *, wanted: bool) -> AbstractContextManager[Any]:
    if not wanted:
        return nullcontext()
    from tqdm import tqdm

    name = sources[0] if len(sources) == 1 else f"{len(sources):,} sources"
    return tqdm(desc=name, unit=" records", unit_scale=True, leave=False, file=sys.stderr)


def _advance(bar: Any, count: int, total: int | None) -> None:
    if bar is not None:
        bar.total = total
        bar.update(count)


if __name__ == "__main__":
    sys.exit(main())
