"""`mmapds show` and `mmapds head`: records, and where they lie."""

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

from ..dataset.decode import check_name, takes_view
from ..dataset.indexed import IndexedDataset, make_dataset
from ..dataset.opening import open as open_dataset
from ..dataset.printed import printed
from ..errors import DecodeError, Error, FormatError, IndexMissingError, counted, plain_counted
from . import Parser, add_common, checking_options, one_line, print_aside
from .screen import print_json, print_line

Position = int | slice
"""What the user means by a number, or by a range like those of Python."""

_LARGE = 1 << 24  # bytes of a record that is decoded only with --full
_POSITION = re.compile(r"\s?-?\d{1,19}|(\s?-?\d{1,19})?(:(-?\d{1,19})?){1,2}")
_MEANT = "record from 0; -1 is the last; 10:20 are ten records, -3: the last three, ::1000 every thousandth"


def add_show_options(parser: Parser) -> None:
    """Add what `show` takes."""
    add_common(parser, "decode", "root")
    parser.usage = f"{parser.usage} POSITION..."
    parser.add_argument("positions", nargs="+", type=_position, metavar="POSITION", help=_MEANT)
    _add_options(parser)
    parser.set_defaults(work=_show)


def add_head_options(parser: Parser) -> None:
    """Add what `head` takes."""
    add_common(parser, "decode", "root")
    parser.add_argument("-n", "--records", type=_count, default=5, metavar="N", help="how many records; default: 5")
    _add_options(parser)
    parser.set_defaults(work=_head)


def _add_options(parser: Parser) -> None:
    parser.add_argument("--full", action="store_true", help="cut nothing: all of long strings, lists, arrays and bytes")
    parser.add_argument("--build", action="store_true", help="build missing and stale indexes first")


def _position(text: str) -> Position:
    if _POSITION.fullmatch(text):
        parts = [int(part) if part else None for part in text.split(":")]
        if len(parts) == 1:
            return cast(int, parts[0])
        if parts[2:] != [0]:
            return slice(*parts)
    raise argparse.ArgumentTypeError(f"expected a number, or a range such as 10:20, found {text!r}")


def _count(text: str) -> int:
    if not re.fullmatch("[0-9]{1,19}", text):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, found {text!r}")
    return int(text)


def _show(options: argparse.Namespace) -> int:
    """Print the records that were asked for; return the exit status."""
    sources, positions = list(options.sources), list(options.positions)
    while len(sources) > 1 and _POSITION.fullmatch(sources[-1]):  # the parser takes all but the last one for sources
        positions.insert(0, _position(sources.pop()))
    dataset = _opened(options, sources)
    return _print(dataset, _chosen(positions, len(dataset)), options)


def _head(options: argparse.Namespace) -> int:
    """Print the first records; return the exit status."""
    dataset = _opened(options, options.sources)
    return _print(dataset, range(min(options.records, len(dataset))), options)


def _chosen(given: Iterable[Position], records: int) -> Iterator[int]:
    """Return the records that are meant, once it is certain that there are some for each number and range.

    Raises:
      Error: a number is out of range, or a range has no records.
    """
    ranges = []
    for each in given:
        if isinstance(each, int):
            if not -records <= each < records:
                raise Error(f"position {each} is out of range for {plain_counted(records, 'record')}")
            ranges.append(range(each % records, each % records + 1))
        else:
            ranges.append(range(records)[each])
            if not ranges[-1]:
                bounds = ":".join("" if end is None else str(end) for end in (each.start, each.stop))
                raise Error(
                    f"position[{bounds}]: expected a range of {plain_counted(records, 'record')}, found none in it"
                )
    return chain.from_iterable(ranges)


def _opened(options: argparse.Namespace, sources: Sequence[str]) -> IndexedDataset:
    """Return the dataset of the sources, indexed first if that was asked for."""
    with checking_options():
        check_name(options.decode)
    try:
        dataset = open_dataset(sources, decode=options.decode, roots=options.root, build=options.build)
    except IndexMissingError as error:
        raise IndexMissingError(f"{error} (or add --build)") from None
    return cast(IndexedDataset, dataset)


@takes_view
def _as_it_lies(record: memoryview) -> memoryview:
    return record


def _print(dataset: IndexedDataset, positions: Iterable[int], options: argparse.Namespace) -> int:
    """Print records; return 1 if one is not what its decoder expects, else 0."""
    failed = False
    raw = make_dataset(dataset._catalog, dataset._origin, _as_it_lies)
    is_cheap = options.full or (options.decode in (None, "torch") and dataset._gives_arrays)
    for number, position in enumerate(positions):
        record = raw[position]
        if number:
            print()
        print_line(f"{position}: {dataset.place(position)}, {counted(len(record), 'byte')}", "bold")
        sample: Any = record
        try:
            if is_cheap or len(record) <= _LARGE:
                sample = dataset[position]
        except (DecodeError, FormatError) as error:
            failed = True
            print_aside(one_line(error))
        try:
            text = printed(sample, full=options.full)
        except Exception:  # of what JSON cannot say: text beyond Unicode, a number too long, lists nested too deep
            text = printed(record, full=options.full)
        print_json(text)
    if not len(dataset):
        print_line(f"{', '.join(dataset.sources[:3])}: 0 records")
    return int(failed)
