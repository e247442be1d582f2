"""`mmapds show` and `mmapds head`: records, and where they lie."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, cast

from ..dataset.decode import check_name, takes_view
from ..dataset.indexed import IndexedDataset, make_dataset
from ..dataset.opening import open as open_dataset
from ..dataset.printed import printed
from ..errors import DecodeError, Error, FormatError, IndexMissingError, counted, plain_counted
from . import POSITION, checking_options, position
from .screen import one_line, print_aside, print_json, print_line

_LARGE = 1 << 24  # bytes of a record that is decoded only with --full


def show(options: argparse.Namespace) -> int:
    """Print the records that were asked for; return the exit status."""
    sources, positions = list(options.sources), list(options.positions)
    while len(sources) > 1 and POSITION.fullmatch(sources[-1]):  # the parser takes all but the last one for sources
        positions.insert(0, position(sources.pop()))
    dataset = _opened(options, sources)
    return _print(dataset, _chosen(positions, len(dataset)), options)


def head(options: argparse.Namespace) -> int:
    """Print the first records; return the exit status."""
    dataset = _opened(options, options.sources)
    return _print(dataset, range(min(options.records, len(dataset))), options)


def _chosen(given: Iterable[int | slice], records: int) -> Iterator[int]:
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
        dataset = open_dataset(sources, decode=options.decode, roots=options.roots, build=options.build)
    except IndexMissingError as error:
        raise IndexMissingError(f"{error} (or add --build)") from None
    return cast(IndexedDataset, dataset)


@takes_view
def _as_it_lies(record: memoryview) -> memoryview:
    return record


def _print(dataset: IndexedDataset, positions: Iterable[int], options: argparse.Namespace) -> int:
    """Print records; return 1 if one is not what its decoder expects, else 0."""
    failed = False
    raw = make_dataset(dataset._catalog, _as_it_lies)
    is_cheap = options.full or (options.decode in (None, "torch") and dataset._gives_arrays)
    for number, place in enumerate(positions):
        record = raw[place]
        if number:
            print()
        print_line(f"{place}: {dataset.place(place)}, {counted(len(record), 'byte')}", "bold")
        sample: Any = record
        try:
            if is_cheap or len(record) <= _LARGE:
                sample = dataset[place]
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
