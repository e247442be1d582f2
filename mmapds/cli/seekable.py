"""`mmapds seekable`."""

import argparse
import os
import re
import time

from ..errors import Error
from ..recompress.seekable import FRAME, LEVEL, WINDOW_LOG, check_arguments, seekable
from ..recompress.targets import check_apart
from ..storage.sources import expand
from . import add_common, checking_options, print_aside, progress_on

SUFFIXES = (".jsonl", ".ndjson", ".gz", ".bgz", ".zst", ".zstd")
"""What the names of files end in that are taken from a directory."""

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


def add_seekable_options(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    add_common(parser, "workers", "no-index", "force", "quiet")
    parser.add_argument("-o", "--out", metavar="OUT", help="OUT.zst, or a directory; default: beside each source")
    frame = f"{FRAME >> 10}K"
    parser.add_argument("--frame", type=_size, default=frame, metavar="SIZE", help=f"text in a frame; default: {frame}")
    parser.add_argument("--level", type=int, default=LEVEL, metavar="N", help="as zstd -N; default: %(default)s")
    parser.add_argument("--long", type=int, default=WINDOW_LOG, metavar="N", help="as zstd --long=N, for sources")
    parser.set_defaults(work=_recompress)


def _recompress(options: argparse.Namespace) -> None:
    paths = expand(options.sources, SUFFIXES, print_aside)
    with checking_options():
        check_arguments(options.frame, options.level, options.workers, options.long)
        if len(paths) > 1 and options.out is not None and not os.path.isdir(options.out):
            raise Error(
                f"--out: expected a directory for {len(paths)} sources, found {options.out!r}; give a directory"
            )
    check_apart(paths, options.out, options.frame, force=options.force)
    size = sum(map(os.path.getsize, paths))
    with progress_on(options.sources, quiet=options.quiet, total=lambda: size) as progress:
        for path in paths:
            started = time.perf_counter()
            done = seekable(
                path,
                options.out,
                frame=options.frame,
                level=options.level,
                workers=options.workers,
                window_log=options.long,
                index=not options.no_index,
                force=options.force,
                progress=progress.update,
            )
            progress.print(f"{done}; {time.perf_counter() - started:.2f} s" if done.is_new else str(done))


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9})([KM]?)(?:i?B)?", text, re.IGNORECASE)
    if not found:
        raise argparse.ArgumentTypeError(f"expected a number of bytes, such as 256K or 1M, found {text!r}")
    return int(found[1]) * _UNITS[found[2].upper()]
