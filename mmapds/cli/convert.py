"""`mmapds convert`."""

import argparse
import json
import os
import time
from typing import Any

from ..convert import OPTIONS, check_arguments, convert, expanded
from ..dataset.decode import check_name
from ..errors import FormatError, counted, shortened
from . import (
    add_cluster_options,
    add_common,
    add_format_options,
    checking_options,
    executor_of,
    format_options,
    print_aside,
    progress_on,
)


def _convert(options: argparse.Namespace) -> None:
    started = time.perf_counter()
    fields = [name.strip() for name in options.fields.split(",")] if options.fields is not None else None
    others = format_options(options, OPTIONS)
    with checking_options():
        schema, types, defaults = (
            _json_object(name, getattr(options, name)) for name in ("schema", "types", "defaults")
        )
        check_arguments(types, fields, defaults, options.missing, options.infer, options.max_bytes, others)
        check_name(options.decode)
    executor = executor_of(options)
    sources = expanded(options.sources, options.format, print_aside)
    with progress_on(options.sources, unit="records", quiet=options.quiet) as progress:
        done = convert(
            sources,
            options.out,
            format=options.format,
            schema=schema,
            types=types,
            fields=fields,
            defaults=defaults,
            length=options.length,
            missing=options.missing,
            infer=options.infer,
            max_bytes=options.max_bytes,
            decode=options.decode,
            index=not options.no_index,
            force=options.force,
            progress=progress.update,
            roots=options.root,
            executor=executor,
            parts=options.parts,
            **others,
        )
        seconds = time.perf_counter() - started
        size = os.path.getsize(done.path)
        progress.print(f"{done}; {counted(size, 'byte')}, {seconds:.2f} s, {done.records / seconds:,.0f} records/s")


def add_convert_options(parser: argparse.ArgumentParser) -> None:
    """Add what a conversion takes."""
    add_common(parser, "decode", "root", "no-index", "force", "quiet")
    parser.add_argument("-o", "--out", metavar="OUT.mma", help="default, for one source: beside it")
    parser.add_argument("--format", metavar="F", help="parquet, arrow, hdf5, or a format that can be indexed")
    parser.add_argument("--schema", metavar="JSON", help="fields and their types, or a file that has them")
    parser.add_argument("--types", metavar="JSON", help="types of some fields; the others keep theirs")
    parser.add_argument("--fields", metavar="A,B", help="fields to write, in this order; default: all")
    parser.add_argument("--defaults", metavar="JSON", help="what stands for fields that are missing or null")
    parser.add_argument("--length", metavar="FIELD", help="field that token budgets are planned by")
    parser.add_argument("--missing", default="error", metavar="skip|error", help="records that lack a field")
    parser.add_argument("--infer", type=int, default=1000, metavar="N", help="records of JSON to infer a schema from")
    parser.add_argument(
        "--max-bytes", type=int, metavar="N", help="most to write; default: 100 times the sources, or 4 GiB"
    )
    add_format_options(parser, OPTIONS)
    add_cluster_options(parser)
    parser.set_defaults(work=_convert)


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
