"""`mmapds show` and `mmapds head`: records, and where they lie."""

import argparse
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import cast

from .. import cli
from ..dataset.decode import check_name, takes_view
from ..dataset.indexed import IndexedDataset, make_dataset
from ..dataset.opening import open as open_dataset
from ..dataset.origin import expand_indexed
from ..errors import DecodeError, Error, FormatError, IndexMissingError, counted, plain_counted
from ..formats import tar
from ..index.amount import bytes_to_build
from ..index.build import build_each
from ..storage.roots import Roots
from .options import Position, is_position, parse_position
from .render import Renderer
from .screen import Screen

_LARGE = 1 << 24  # bytes of a record that is decoded only with --full


def show(options: argparse.Namespace) -> int:
    """Print the records that were asked for; return the exit status."""
    sources, given = _split(options.sources, options.positions)
    dataset = _opened(options, sources)
    return _print(dataset, _chosen(given, len(dataset)), options)


def head(options: argparse.Namespace) -> int:
    """Print the first records; return the exit status."""
    dataset = _opened(options, options.sources)
    return _print(dataset, range(min(options.records, len(dataset))), options)


def _split(sources: Sequence[str], last: Sequence[Position]) -> tuple[list[str], list[Position]]:
    """Return the sources, and the positions behind them: all arguments from the end on that are numbers or ranges."""
    left = list(sources)
    positions = list(last)
    while len(left) > 1 and is_position(left[-1]):
        positions.insert(0, parse_position(left.pop()))
    return left, positions


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
    with cli.checking_options():
        check_name(options.decode)
    paths = expand_indexed(sources)
    if options.build:
        roots = Roots(options.root, paths)
        with cli.Progress(
            paths, unit="B", total=lambda: sum(bytes_to_build(paths, roots=roots)), quiet=False
        ) as progress:
            for _ in build_each(paths, by_sample=True, roots=roots, report=progress.update):
                pass
    try:
        return cast(IndexedDataset, open_dataset(sources, decode=options.decode, roots=options.root))
    except IndexMissingError as error:
        raise IndexMissingError(f"{error} (or add --build)") from None


@takes_view
def _as_it_lies(record: memoryview) -> memoryview:
    return record


def _print(dataset: IndexedDataset, positions: Iterable[int], options: argparse.Namespace) -> int:
    """Print records; return 1 if one is not what its decoder expects, else 0."""
    screen = Screen()
    renderer = Renderer(screen, full=options.full)
    raw = make_dataset(dataset._catalog, dataset._origin, _as_it_lies)
    indexes = dataset._catalog.indexes
    is_tar = options.decode in (None, "files") and all(index.format == tar.Tar.name for index in indexes)
    is_cheap = options.full or (options.decode in (None, "torch") and dataset._gives_arrays)
    failed = False
    for number, position in enumerate(positions):
        if number:
            cli.print_line("")
        record, place = raw[position], dataset.place(position)
        cli.print_line(
            screen.paint(f"{position}:", "title") + cli.printable(f" {place}, {counted(len(record), 'byte')}")
        )
        try:
            if is_tar:
                lines = _members(record, place, renderer)
            elif is_cheap or len(record) <= _LARGE:
                lines = renderer.lines(dataset[position])
            else:
                lines = renderer.raw(record)
        except (DecodeError, FormatError) as error:
            failed = True
            cli.print_aside(cli.one_line(error))
            lines = renderer.raw(record)
        for line in lines:
            cli.print_line(line)
    if not len(dataset):
        cli.print_line(f"{cli.printable(', '.join(dataset.sources[:3]))}: 0 records")
    return int(failed)


def _members(record: memoryview, place: str, renderer: Renderer) -> Iterator[str]:
    """Return the lines of a sample of a tar, whose members are not read."""
    try:
        key, members = tar.members(record)
    except FormatError as error:
        raise FormatError(f"{place}: {error}") from None
    return renderer.members(key, [(extension, record[begin:end]) for extension, begin, end in members])
