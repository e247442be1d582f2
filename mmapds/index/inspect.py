"""What `--info` and `--verify` print of indexes."""

import json
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from .. import cli
from ..errors import Error, SourceError, StaleIndexError, counted
from ..storage import current
from ..storage.index_file import Index, SavedViewFoundError
from ..storage.roots import Roots
from ..storage.sources import index_path
from ..storage.view_file import SavedView
from .amount import bytes_to_check
from .findings import LISTED, Findings
from .saved import describe_view, examine_view, lines_of_view, state_of_base
from .summary import summarise
from .verify import examine

_INDENT = "  "


class State(NamedTuple):
    """Whether a source of an index, or an index of a saved view, is as it was."""

    word: str
    text: str
    """What people read in a list."""
    error: Error | None = None
    """What opening raises."""


def inspect_indexes(
    paths: Sequence[str],
    *,
    info: bool,
    verify: bool,
    as_json: bool,
    quiet: bool,
    workers: int | None,
    roots: Roots,
) -> int:
    """Print what indexes cover; check them in full if `verify`; say of all what is wrong.

    Args:
      paths: sources and indexes.
      info: print their sources too.
      as_json: print one JSON document, with everything, and nothing else but a progress bar.
      workers: threads; all cores by default.
      roots: where the sources of the indexes may lie.
    Returns:
      The exit status: 1 if an index cannot be read or has a problem, or a source is not what it was.
    """
    documents, failed = [], False
    ends: list[int] = []

    def total() -> int:
        ends[:] = accumulate(map(bytes_to_check, paths))
        return ends[-1]

    with cli.Progress(paths, unit="B", total=total, quiet=quiet, bar=verify) as progress:
        for number, path in enumerate(paths):
            progress.reach(ends[number - 1] if ends and number else 0)
            document: dict[str, Any] = {"path": index_path(path)}
            documents.append(document)
            index: Index | SavedView
            try:
                index, findings = opened(path, roots), None
                if verify and isinstance(index, Index):
                    findings = examine(index, workers=workers, report=progress.update)
                elif verify and isinstance(index, SavedView):
                    findings = examine_view(index)
                states = states_of(index) if info or as_json else []
            except Error as error:
                failed = True
                document["error"] = str(error)
                if not as_json:
                    progress.complain(cli.one_line(error))
                continue
            problems = first_problem(states) if findings is None else findings.lines()
            failed |= bool(problems)
            if as_json:
                document |= _described(index, states) | (findings.describe() if findings else {})
                continue
            for line in problems:
                progress.complain(line)
            for line in () if quiet else _lines(index, findings, states, info=info):
                progress.print(line)
    if as_json:
        cli.print_line(json.dumps({"indexes": documents}, indent=1))
    return int(failed)


def opened(path: str, roots: Roots) -> Index | SavedView:
    """Open the index of a source, or a saved view; raises as they do."""
    try:
        index = Index(index_path(path), roots)
    except SavedViewFoundError:
        return SavedView(index_path(path), roots)
    index.check_covers(path)
    return index


def states_of(index: Index | SavedView) -> list[State]:
    """Return the state of each source of an index, or of each index of a saved view."""
    if isinstance(index, SavedView):
        return [State(*state_of_base(index, number)) for number in range(len(index.bases))]
    return [state_of(index, number) for number in range(len(index.sources))]


def first_problem(states: Sequence[State]) -> list[str]:
    """Return the line on the first source that is not what it was, if there is one, as opening raises it."""
    return [cli.one_line(state.error) for state in states if state.error is not None][:1]


def _lines(index: Index | SavedView, findings: Findings | None, states: Sequence[State], *, info: bool) -> list[str]:
    if isinstance(index, SavedView):
        return lines_of_view(index, findings, [state.text for state in states])
    outcome = ""
    if findings is not None:
        count = findings.count
        outcome = "; verified" if not count else f"; {counted(count, 'problem')}"
    lines = [f"{summarise(index)}{outcome}"]
    if findings is not None:
        lines += [f"{_INDENT}not checked: {what}" for what in findings.not_checked]
    if info:
        lines += [f"{_INDENT}{line}" for line in bad_lines(index)]
        shown = {name: value for name, value in index.parameters.items() if name not in ("columns", "idx")}
        lines.append(f"{_INDENT}{index.format}" + "".join(f", {name} {value}" for name, value in shown.items()))
        for number, (source, state) in enumerate(zip(index.sources, states, strict=True)):
            covered = f"{counted(source.records, 'record')}, {counted(source.size, 'byte')}"
            lines.append(f"{_INDENT}{index.source_path(number)}: {covered}; {state.text}")
    return lines


def bad_lines(index: Index) -> list[str]:
    """Return where the first bad lines lie that were left out; the index knows it without its sources."""
    return [
        f"left out: {index.source_path(number)}:{line} (byte {byte}), not JSON"
        for number, source in enumerate(index.sources)
        for line, byte in source.bad.first
    ][:LISTED]


def state_of(index: Index, number: int) -> State:
    """Return whether a source is as it was when it was indexed."""
    try:
        index.readable_path(number)
    except SourceError:
        # Not a problem: people look at an index of others before they trust it.
        return State(
            "outside", "OUTSIDE, not looked at; give its directory with --root if you trust who made the index"
        )
    try:
        found = current.stat_source(index, number)
        current.check_source(index, number, found.st_size, found.st_mtime_ns)
    except StaleIndexError as error:
        return State("stale", str(error).removeprefix(f"{index.path}: "), error)
    except SourceError as error:
        what = str(error).removeprefix(f"{index.source_path(number)}: ").removesuffix(f" (a source of {index.path})")
        what = what.partition("; run: ")[0]
        return State("missing", f"MISSING: {what}", error)
    if found.st_mtime_ns == index.sources[number].mtime_ns:
        return State("unchanged", "unchanged")
    return State("touched", "another time, the same fingerprint")


def _described(index: Index | SavedView, states: Sequence[State]) -> dict[str, Any]:
    """Return what an index covers, as JSON."""
    if isinstance(index, SavedView):
        return describe_view(index, [state[:2] for state in states])
    summary, expressions = summarise(index), index.measuring["expressions"]
    sources = []
    for number, source in enumerate(index.sources):
        state, message, _ = states[number]
        described = {"path": index.source_path(number), "records": source.records, "bytes": source.size}
        described |= (
            {"bad": [{"line": line, "byte": byte} for line, byte in source.bad.first]} if source.bad.lines else {}
        )
        sources.append({**described, "state": state, "message": message})
    return {
        "format": index.format,
        "parameters": {name: value for name, value in index.parameters.items() if name not in ("columns", "idx")},
        "records": index.records,
        "bytes": summary.size,
        "smallest": summary.smallest,
        "largest": summary.largest,
        "left_out": summary.skipped,
        "bad": summary.bad,
        "columns": {name: expressions.get(name) for name in index.columns},
        "hashed": all(source.xxh3_128 for source in index.sources),
        "sources": sources,
    }
