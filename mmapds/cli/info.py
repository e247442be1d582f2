"""`mmapds info`: what indexes cover together, in a screen: sources, columns, and how lengths are spread."""

import argparse
from collections.abc import Sequence

from ..errors import ColumnError, Error, counted
from ..index.findings import LISTED
from ..index.inspect import State, bad_lines, format_of, opened, states_of
from ..index.statistics import CALLED, PERCENTILES, SIZES, Number, Numbers, histogram, made_of, measure
from ..index.summary import Summary, summarise
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.view_file import SavedView
from . import Progress, one_line, print_aside
from .inspect import expanded, first_problem, inspect, view_lines
from .screen import Cell, Screen

_LISTED = 10  # sources without --all
_BAR = 40  # columns of the longest bar
_SHOWN = ("median", "90 %", "99 %")  # percentiles, of more than a line of a terminal has room for


def print_info(options: argparse.Namespace) -> int:
    """Print what indexes cover; return the exit status: 1 if an index cannot be read, or a source is another now."""
    if options.json:
        return inspect(options)
    paths = expanded(options)
    roots, failed = Roots(options.root, paths), False
    found: list[Index | SavedView] = []
    for path in paths:
        try:
            found.append(opened(path, roots))
        except Error as error:
            failed = True
            print_aside(one_line(error))
    states = [states_of(each) for each in found]
    indexes = {each: own for each, own in zip(found, states, strict=True) if isinstance(each, Index)}
    if not options.quiet:
        screen = Screen()
        for each, own in zip(found, states, strict=True):
            if isinstance(each, SavedView):
                for line in view_lines(each, own):
                    screen.line(line)
        if indexes:
            _print_indexes(screen, indexes, options)
    problems = [line for own in states for line in first_problem(own)]
    for line in problems:
        print_aside(line)
    return int(failed or bool(problems))


def _print_indexes(screen: Screen, states: dict[Index, list[State]], options: argparse.Namespace) -> None:
    """Print what some indexes cover together."""
    indexes = list(states)
    summaries = [summarise(index) for index in indexes]
    columns = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
    wanted = options.histogram or ("length" if "length" in columns else CALLED)
    if wanted not in (CALLED, *columns):
        listed = ", ".join(map(repr, dict.fromkeys((CALLED, *columns))))
        raise ColumnError(f"--histogram: expected one of {listed}, found {wanted!r}")
    several = f"{len(indexes):,} indexes, {indexes[0].path} to {indexes[-1].path}"
    screen.line(several if len(indexes) > 1 else indexes[0].path, "bold")
    screen.table([((name, "dim"), text) for name, text in _covered(indexes, summaries, columns)], left=(0, 1))
    screen.line("")
    screen.line("sources", "bold")
    _print_sources(screen, states, list_all=options.all)
    if any(summary.records for summary in summaries):
        names = [SIZES, *columns]
        size = sum(section.size for index in indexes for section in index.sections.values())
        with Progress([index.path for index in indexes], total=lambda: size) as progress:
            measured = {name: measure(indexes, name, progress.update) for name in names}
        have_left_out = any(summary.sizes_have_left_out for summary in summaries)
        _print_columns(screen, indexes, measured, have_left_out=have_left_out)
        chosen = wanted if wanted in columns else SIZES
        _print_histogram(screen, wanted, histogram(indexes, chosen, measured[chosen]))


def _covered(indexes: Sequence[Index], summaries: Sequence[Summary], columns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the rows on all indexes: a name and a text."""
    size, content = (sum(each) for each in zip(*((one.size, one.content) for one in summaries), strict=True))
    rows = [
        ("records", f"{sum(summary.records for summary in summaries):,}"),
        ("sources", f"{sum(summary.sources for summary in summaries):,}"),
        ("bytes", f"{size:,}{_rounded(size)}"),
    ]
    if content != size:
        rows.append(("decoded", f"{content:,}{_rounded(content)}"))
    rows += [("format", text) for text in sorted({format_of(index) for index in indexes})]
    if skipped := sum(summary.skipped for summary in summaries):
        rows.append(("left out", counted(skipped, "record")))
    if partly := sorted({name for index in indexes for name in index.columns} - set(columns)):
        rows.append(("not in all", f"{counted(len(partly), 'column')}: {', '.join(partly)}"))
    if all(source.xxh3_128 for index in indexes for source in index.sources):
        rows.append(("hashes", "one of each source"))
    return rows + [("", line.removeprefix("left out: ")) for index in indexes for line in bad_lines(index)][:LISTED]


def _print_sources(screen: Screen, states: dict[Index, list[State]], *, list_all: bool) -> None:
    """Print the sources, each with its state; of many those alone that are not as they were."""
    rows: dict[str, list[list[Cell]]] = {}
    for index, own in states.items():
        for number, (source, state) in enumerate(zip(index.sources, own, strict=True)):
            size = counted(source.size, "byte")
            told = (state.text, "dim" if state.word == "unchanged" else "yellow")
            row: list[Cell] = [index.source_path(number), counted(source.records, "record"), size, told]
            rows.setdefault(state.word, []).append(row)
    found = [row for each in rows.values() for row in each]
    changed = [row for word, each in rows.items() if word != "unchanged" for row in each]
    shown = found if list_all or len(found) <= _LISTED else changed[:_LISTED]
    if shown:
        screen.table(shown, left=(0, 3))
    if len(shown) < len(found):
        totals = ", ".join(f"{len(each):,} {word}" for word, each in rows.items())
        screen.line(f"  {totals}; --all lists them", "dim")


def _print_columns(
    screen: Screen, indexes: Sequence[Index], measured: dict[str | None, Numbers], *, have_left_out: bool
) -> None:
    """Print a table with a row for each column, and one for the sizes of records."""
    screen.line("")
    screen.line("columns", "bold")
    has_others = any(numbers.others for numbers in measured.values())
    head = ["", "", "min", *_SHOWN, "max", "mean", "total", *["not finite"] * has_others]
    rows: list[list[Cell]] = []
    for name, numbers in measured.items():
        if name is SIZES:
            of = f"of records{', left-out ones included' * have_left_out}"
        else:
            of = f"{made_of(indexes, name)} {numbers.type}"
        percentiles = dict(zip(PERCENTILES, numbers.percentiles, strict=True))
        statistics = (numbers.least, *(percentiles[each] for each in _SHOWN), numbers.most)
        mean = _number(numbers.mean if abs(numbers.mean) < 10 else round(numbers.mean, 1))
        total = "too large" if numbers.total is None else _number(numbers.total)
        cells = [*map(_number, statistics), mean, total, *[_number(numbers.others)] * has_others]
        rows.append([(CALLED if name is SIZES else name, "bold"), of, *cells])
    screen.table(rows, head=head, left=(0, 1))
    if sampled := min((each.sampled for each in measured.values() if each.sampled < each.finite), default=0):
        screen.line(f"  percentiles of {counted(sampled, 'record')}, evenly spaced", "dim")


def _print_histogram(screen: Screen, name: str, bins: Sequence[tuple[Number, Number | None, int]]) -> None:
    if not bins:
        return
    total, most = sum(count for *_, count in bins), max(count for *_, count in bins)
    screen.line("")
    screen.line(f"{name}, {counted(total, 'record')}", "bold")
    rows: list[list[Cell]] = []
    for begin, end, count in bins:
        label = f"{_number(begin)} or more" if end is None else f"{_number(begin)} to {_number(end)}"
        bar = screen.block * max(round(_BAR * count / most), int(count > 0))
        rows.append([label, f"{count:,}", f"{100 * count / total:.1f} %", (bar, "blue")])
    screen.table(rows, left=(3,))


def _number(value: Number) -> str:
    """Return a number as tables have it: an integer with its digits grouped, or a fraction in six digits."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _rounded(size: int) -> str:
    """Return a size in the unit that suits it, in parentheses; nothing for one below 1 kB."""
    units = [unit for power, unit in enumerate(("kB", "MB", "GB", "TB", "PB"), 1) if size >= 1000**power]
    return f" ({size / 1000 ** len(units):.1f} {units[-1]})" if units else ""
