"""`mmapds info`: what indexes cover together, in a screen: sources, columns, and how lengths are spread."""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import NamedTuple

from .. import cli, formats
from ..errors import ColumnError, Error, counted
from ..index.findings import LISTED
from ..index.inspect import State, bad_lines, first_problem, opened, states_of
from ..index.saved import lines_of_view
from ..index.statistics import CALLED, SIZES, Numbers, histogram, made_of, measure
from ..index.summary import summarise
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, expand
from ..storage.view_file import SavedView
from .index import inspect
from .screen import Screen, columns_of

_LISTED = 10  # sources without --all
_WIDEST = 100  # columns of a histogram
_VALUE = 300  # characters of a parameter
_EXPRESSION = 31  # of the expression of a column
_TITLE = "columns"

_Styled = tuple[str, str]
"""A text and its style; "" for none."""


class _Source(NamedTuple):
    """A source as it is listed."""

    path: str
    records: int
    size: int
    state: str
    """A word."""
    message: str
    """What people read."""


def print_info(options: argparse.Namespace) -> int:
    """Print what indexes cover; return the exit status: 1 if an index cannot be read, or a source is another now."""
    if options.json:
        return inspect(options)
    paths = expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX), report=cli.print_aside)
    roots, failed = Roots(options.root, paths), False
    indexes: list[Index] = []
    views: list[SavedView] = []
    with cli.Progress(paths, unit="B", quiet=options.quiet, bar=False) as output:
        for path in paths:
            try:
                found = opened(path, roots)
            except Error as error:
                failed = True
                output.complain(cli.one_line(error))
                continue
            if isinstance(found, SavedView):
                views.append(found)
            else:
                indexes.append(found)
    of_views, of_indexes = ([states_of(each) for each in kind] for kind in (views, indexes))
    for view, states in zip(views, of_views, strict=True) if not options.quiet else ():
        for line in lines_of_view(view, None, [state.text for state in states]):
            cli.print_line(cli.printable(line))
    if indexes and not options.quiet:
        for line in _Report(Screen(), indexes, of_indexes, options).lines():
            cli.print_line(line)
    problems = [line for states in (*of_views, *of_indexes) for line in first_problem(states)]
    for line in problems:
        cli.print_aside(line)
    return int(failed or bool(problems))


class _Report:
    """The lines on some indexes, which are taken together."""

    def __init__(
        self, screen: Screen, indexes: Sequence[Index], states: Sequence[list[State]], options: argparse.Namespace
    ) -> None:
        self._screen = screen
        self._indexes = indexes
        self._states = states
        self._all = options.all
        self._summaries = [summarise(index) for index in indexes]
        self._have_left_out = any(summary.sizes_have_left_out for summary in self._summaries)
        common = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
        self._columns = common
        wanted = options.histogram or ("length" if "length" in common else CALLED)
        known = dict.fromkeys((CALLED, *common))
        if wanted not in known:
            listed = ", ".join(map(repr, known))
            raise ColumnError(f"--histogram: expected one of {listed}, found {wanted!r}")
        self._chosen: str | None = wanted if wanted in common else SIZES

    def lines(self) -> Iterator[str]:
        """Yield all lines."""
        yield from self._covered()
        yield ""
        yield from self._listed()
        if not sum(summary.records for summary in self._summaries):
            return
        names: list[str | None] = [SIZES, *self._columns]
        sizes = sum(section.size for index in self._indexes for section in index.sections.values())
        path = [index.path for index in self._indexes]
        with cli.Progress(path, unit="B", total=lambda: sizes, quiet=False, bar=sizes > 1 << 26) as progress:
            measured = {name: measure(self._indexes, name, progress.update) for name in names}
            bins = histogram(self._indexes, self._chosen, measured[self._chosen])
        yield ""
        yield from self._table(measured)
        if bins:
            yield ""
            yield from self._bars(bins)

    def _covered(self) -> Iterator[str]:
        indexes, summaries = self._indexes, self._summaries
        title = indexes[0].path
        if len(indexes) > 1:
            title = f"{len(indexes):,} indexes, {title} to {indexes[-1].path}"
        yield self._paint(cli.printable(title), "title")
        size, content = (sum(each) for each in zip(*((one.size, one.content) for one in summaries), strict=True))
        rows = [
            ("records", f"{sum(summary.records for summary in summaries):,}"),
            ("sources", f"{sum(summary.sources for summary in summaries):,}"),
            ("bytes", f"{size:,}{_rounded(size)}"),
            *([("decoded", f"{content:,}{_rounded(content)}")] if content != size else []),
        ]
        rows += [("format", described) for described in sorted({_format(index) for index in indexes})]
        if skipped := sum(summary.skipped for summary in summaries):
            rows.append(("left out", counted(skipped, "record")))
        partly = sorted({name for index in indexes for name in index.columns} - set(self._columns))
        if partly:
            rows.append(("not in all", f"{counted(len(partly), 'column')}: {', '.join(partly)}"))
        if all(source.xxh3_128 for index in indexes for source in index.sources):
            rows.append(("hashes", "one of each source"))
        rows += [("", line.removeprefix("left out: ")) for index in indexes for line in bad_lines(index)][:LISTED]
        for name, text in rows:
            shown = text if self._all or len(text) <= _VALUE else f"{text[:_VALUE]} {self._screen.ellipsis}"
            lines = wrap(cli.printable(shown), max(self._screen.width - 14, 20), break_long_words=False) or [""]
            yield f"  {self._paint(f'{name:<10}', 'note')}  {lines[0]}"
            yield from (f"{'':14}{line}" for line in lines[1:])

    def _listed(self) -> Iterator[str]:
        """Yield the sources, each with its state; of many those alone that are not as they were."""
        found = [
            _Source(index.source_path(number), source.records, source.size, state.word, state.text)
            for index, states in zip(self._indexes, self._states, strict=True)
            for number, (source, state) in enumerate(zip(index.sources, states, strict=True))
        ]
        shown = found if self._all or len(found) <= _LISTED else [each for each in found if each.state != "unchanged"]
        few = shown if self._all else shown[:_LISTED]
        states = Counter(each.state for each in found)
        yield self._paint("sources", "title")
        paths = [cli.printable(each.path) for each in few]
        numbers = [counted(each.records, "record") for each in few], [counted(each.size, "byte") for each in few]
        widths = [max(map(columns_of, column), default=0) for column in (paths, *numbers)]
        for each, path, records, size in zip(few, paths, *numbers, strict=True):
            padding = " " * (widths[0] - columns_of(path))
            state = self._paint(cli.printable(each.message), "note" if each.state == "unchanged" else "number")
            yield f"  {path}{padding}  {records:>{widths[1]}}  {size:>{widths[2]}}  {state}"
        if len(few) < len(found):
            totals = ", ".join(f"{count:,} {state}" for state, count in states.items())
            yield f"  {self._paint(f'{totals}; --all lists them', 'note')}"

    def _table(self, measured: dict[str | None, Numbers]) -> Iterator[str]:
        """Yield a table with a row for each statistic, and as many columns side by side as the screen has room for."""
        statistics = {row: None for numbers in measured.values() for row in numbers.statistics()}
        rows = ["", "type", "of", *statistics]
        margin = max(map(len, [_TITLE, *rows])) + 2
        columns = [self._cells(name, numbers, rows) for name, numbers in measured.items()]
        widths = [max(columns_of(text) for text, _ in cells) for cells in columns]
        begin = 0
        while begin < len(columns):
            end, used = begin + 1, margin + 2 + widths[begin]
            while end < len(columns) and used + 2 + widths[end] <= self._screen.width:
                used += 2 + widths[end]
                end += 1
            if begin:
                yield ""
            for at, row in enumerate(rows):
                cells = [column[at] for column in columns[begin:end]]
                if any(text for text, _ in cells):
                    name = _TITLE if not begin + at else row
                    yield self._row(name, margin, cells, widths[begin:end])
            begin = end
        if sampled := min(
            (numbers.sampled for numbers in measured.values() if numbers.sampled < numbers.finite), default=0
        ):
            yield "  " + self._paint(f"percentiles of {counted(sampled, 'record')}, evenly spaced", "note")

    def _row(self, name: str, margin: int, cells: Sequence[_Styled], widths: Sequence[int]) -> str:
        shown = name if name == _TITLE else f"  {name}"
        line = self._paint(shown, "title" if name == _TITLE else "note") + " " * (margin - len(shown))
        for (text, style), width in zip(cells, widths, strict=True):
            line += "  " + " " * (width - columns_of(text)) + (self._paint(text, style) if style else text)
        return line.rstrip()

    def _cells(self, name: str | None, numbers: Numbers, rows: Sequence[str]) -> list[_Styled]:
        """Return what the rows of the table have of a column, or of the sizes of records."""
        if name is SIZES:
            title, of = CALLED, "records, left-out ones included" if self._have_left_out else "records"
        else:
            title, of = cli.printable(name), made_of(self._indexes, name)
        statistics = numbers.statistics()
        cells = [(cli.printable(text), "note") for text in (numbers.type, of[:_EXPRESSION])]
        return [(title, "title"), *cells, *((statistics.get(row, ""), "") for row in rows[3:])]

    def _bars(self, bins: Sequence[tuple[str, int]]) -> Iterator[str]:
        total, most = sum(count for _, count in bins), max(count for _, count in bins)
        longest = max(len(label) for label, _ in bins)
        digits = len(f"{most:,}")
        room = max(min(self._screen.width, _WIDEST) - longest - digits - len("  " * 4 + "100.0 %"), 4)
        sizes = f"bytes, with framing{' and records left out behind' * self._have_left_out}"
        what = sizes if self._chosen is SIZES else cli.printable(self._chosen)
        yield self._paint(what, "title") + self._paint(f", {counted(total, 'record')}", "note")
        for label, count in bins:
            bar = self._screen.bar(count / most, room)
            padding = " " * (room - len(bar))
            percent = self._paint(f"{100 * count / total:5.1f} %", "note")
            yield f"  {label:>{longest}}  {self._paint(bar, 'bar')}{padding}  {count:>{digits},}  {percent}"

    def _paint(self, text: str, style: str) -> str:
        return self._screen.paint(text, style)


def _rounded(size: int) -> str:
    """Return a size in the unit that suits it, in parentheses; nothing for one below 1 kB."""
    units = [unit for power, unit in enumerate(("kB", "MB", "GB", "TB", "PB"), 1) if size >= 1000**power]
    return f" ({size / 1000 ** len(units):.1f} {units[-1]})" if units else ""


def _format(index: Index) -> str:
    """Return the format of an index and its parameters, but for those that say nothing."""
    known = {name: value for name, value in index.parameters.items() if name not in ("columns", "idx")}
    if known.get("truncated") == "error":
        del known["truncated"]
    return index.format + "".join(f", {name} {_parameter(value)}" for name, value in known.items())


def _parameter(value: object) -> str:
    """Return a parameter; a schema as its fields, each with its type."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_parameter(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " ".join(map(_parameter, value)) if value and isinstance(value[0], str) else _shape(value)
    return str(value)


def _shape(sizes: list[object]) -> str:
    return f"({', '.join('any' if size is None else str(size) for size in sizes)})"
