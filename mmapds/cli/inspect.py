"""`mmapds verify`, and `python -m mmapds.index` with `--info` or `--verify`: lines on indexes, or a JSON document."""

import argparse
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from .. import formats
from ..errors import Error, counted
from ..index.build import check_workers
from ..index.findings import Findings
from ..index.inspect import State, bad_lines, describe, format_of, opened, states_of
from ..index.saved import examine_view
from ..index.summary import summarise
from ..index.verify import examine, work
from ..storage.index_file import Index
from ..storage.roots import Roots
from ..storage.sources import INDEX_SUFFIX, expand, index_path
from ..storage.view_file import SavedView
from . import Progress, checking_options, one_line, print_aside, print_line


def expanded(options: argparse.Namespace) -> list[str]:
    """Return the sources and indexes that are given, and check the number of workers."""
    with checking_options():
        check_workers(options.workers)
    return expand(options.sources, (*formats.SUFFIXES, INDEX_SUFFIX), print_aside)


def first_problem(states: Sequence[State]) -> list[str]:
    """Return the line on the first source that is not what it was, if there is one, as opening raises it."""
    return [one_line(state.error) for state in states if state.error is not None][:1]


def inspect(options: argparse.Namespace) -> int:
    """Print what indexes cover; with `verify`, compare them in full with their sources.

    Returns:
      The exit status: 1 if an index cannot be read or has a problem, or a source is not what it was.
    """
    paths = expanded(options)
    roots, documents, failed = Roots(options.root, paths), [], False
    with Progress(paths, total=lambda: _bytes_to_check(paths), quiet=options.quiet) as progress:
        for path in paths:
            document: dict[str, Any] = {"path": index_path(path)}
            documents.append(document)
            try:
                index = opened(path, roots)
                findings = _examined(index, options.workers, progress) if options.verify else None
                states = states_of(index) if options.info or options.json else []
            except Error as error:
                failed = True
                document["error"] = str(error)
                if not options.json:
                    progress.complain(one_line(error))
                continue
            problems = first_problem(states) if findings is None else findings.lines()
            failed |= bool(problems)
            if options.json:
                document |= describe(index, states) | (findings.describe() if findings else {})
                continue
            for line in problems:
                progress.complain(line)
            for line in _lines(index, findings, states if options.info else []):
                progress.print(line)
    if options.json:
        print_line(json.dumps({"indexes": documents}, indent=1))
    return int(failed)


def _bytes_to_check(paths: Sequence[str]) -> int:
    """Return how many bytes `examine` reads, for those indexes that can be opened."""
    size = 0
    for path in paths:
        with suppress(Error):
            size += work(Index(index_path(path)))
    return size


def _examined(index: Index | SavedView, workers: int | None, progress: Progress) -> Findings:
    if isinstance(index, SavedView):
        return examine_view(index)
    return examine(index, workers=workers, report=progress.update)


def _lines(index: Index | SavedView, findings: Findings | None, states: Sequence[State]) -> list[str]:
    """Return what is printed of an index: a line, with more on its sources if their states are given."""
    outcome, unchecked = "", []
    if findings is not None:
        outcome = f"; {counted(findings.count, 'problem')}" if findings.count else "; verified"
        unchecked = [f"  not checked: {what}" for what in findings.not_checked]
    if isinstance(index, SavedView):
        first, *others = view_lines(index, states)
        return [f"{first}{outcome}", *unchecked, *others]
    lines = [f"{summarise(index)}{outcome}", *unchecked]
    if states:
        lines += [f"  {line}" for line in bad_lines(index)]
        lines.append(f"  {format_of(index)}")
    for number, state in enumerate(states):
        source = index.sources[number]
        covered = f"{counted(source.records, 'record')}, {counted(source.size, 'byte')}"
        lines.append(f"  {index.source_path(number)}: {covered}; {state.text}")
    return lines


def view_lines(view: SavedView, states: Sequence[State]) -> list[str]:
    """Return what is printed of a saved view: a line, and one for each of its indexes whose state is given."""
    columns = f"; {', '.join(view.columns)}" if view.columns else ""
    indexes = f"{len(view.bases):,} indexes" if len(view.bases) > 1 else "1 index"
    of = f"{view.records:,} of the {counted(view.total, 'record')} of {indexes}"
    return [f"{view.path}: a saved view, {of}{columns}"] + [
        f"  {view.base_path(number)}: {counted(view.bases[number].records, 'record')}; {state.text}"
        for number, state in enumerate(states)
    ]
