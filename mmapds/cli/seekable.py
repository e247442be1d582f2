"""`mmapds seekable`."""

import argparse
import os
import re
import time

from ..errors import Error
from ..recompress.seekable import FRAME, LEVEL, WINDOW_LOG, check_arguments, seekable
from ..recompress.targets import check_apart
from ..storage.sources import expand
from . import Progress, add_quiet, add_sources, checking_options, print_aside

SUFFIXES = (".jsonl", ".ndjson", ".gz", ".bgz", ".zst", ".zstd")
"""What the names of files end in that are taken from a directory."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def add_seekable_options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_sources(parser)
    parser.add_argument("-o", "--out", metavar="OUT", help="OUT.zst, or a directory; default: beside each source")
    parser.add_argument(
        "--frame", default=f"{FRAME >> 10}K", metavar="SIZE", help="text in a frame; default: %(default)s"
    )
    parser.add_argument("--level", type=int, default=LEVEL, metavar="N", help="as zstd -N; default: %(default)s")
    parser.add_argument("--workers", type=int, metavar="N", help="threads that compress; default: all cores")
    parser.add_argument("--long", type=int, default=WINDOW_LOG, metavar="N", help="as zstd --long=N, for sources")
    parser.add_argument("--no-index", action="store_true", help="write no index; for files that one index will cover")
    parser.add_argument(
        "--force", action="store_true", help="replace files that are there; recompress also seekable files"
    )
    add_quiet(parser)
    parser.set_defaults(work=_recompress)


def _recompress(options: argparse.Namespace) -> None:
    paths = expand(options.sources, SUFFIXES, print_aside)
    with checking_options():
        frame = _size("--frame", options.frame)
        check_arguments(frame, options.level, options.workers, options.long)
        into = options.out if options.out is not None and os.path.isdir(options.out) else None
        if options.out is not None and into is None and len(paths) > 1:
            raise Error(
                f"--out: expected a directory for {len(paths)} sources, found {options.out!r}; give a directory"
            )
    check_apart(paths, options.out, frame, force=options.force)
    size = sum(map(os.path.getsize, paths))
    with Progress(options.sources, quiet=options.quiet, total=lambda: size) as progress:
        for path in paths:
            started = time.perf_counter()
            done = seekable(
                path,
                options.out,
                frame=frame,
                level=options.level,
                workers=options.workers,
                window_log=options.long,
                index=not options.no_index,
                force=options.force,
                progress=progress.update,
            )
            progress.print(f"{done}; {time.perf_counter() - started:.2f} s" if done.is_new else str(done))


def _size(option: str, text: str) -> int:
    """Return a number of bytes, such as 256K or 1M.

    Raises:
      Error: it is not one.
    """
    found = re.fullmatch(r"(\d{1,9})([KM]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise Error(f"{option} = {text!r}, expected a number of bytes, such as 256K or 1M")
    return int(found[1]) * _UNITS[found[2].upper()]
