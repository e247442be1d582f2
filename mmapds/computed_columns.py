"""Add a column of given or computed numbers to an index, without a new scan."""

from __future__ import annotations  # help() shows them as they are written

import os
import re
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from types import ModuleType
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays.values import masked_count
from .dataset.dataset import Dataset
from .dataset.decode import Decoder
from .dataset.indexed import IndexedDataset
from .dataset.opening import open as open_dataset
from .errors import ColumnError, SourceError, StaleIndexError, add_note, shortened
from .index.build import check_workers
from .index.write import Grown, Plan, Scan, Stored
from .storage.index_file import LENGTH_SECTIONS, Index
from .storage.lock import locked
from .storage.numbers import BY_DTYPE, Spool, as_numbers, not_a_length
from .storage.sections import COLUMN
from .storage.sources import StrPath
from .storage.workers import cores, in_processes
from .storage.writer import IndexWriter

_TASK_SAMPLES = 4096  # samples of one task of a worker
_KEPT = 1 << 20  # known numbers to copy at a time
Values = ArrayLike | Callable[[Any], float]
Known = dict[range, NDArray[Any]]
"""Numbers of a column that need not be computed again, by range of records."""


def add_column(
    source_or_index: StrPath,
    name: str,
    values: ArrayLike | Callable[[Any], float],
    *,
    version: str | int | None = None,
    decode: str | Decoder | None = None,
    default: float | None = None,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
    roots: StrPath | Iterable[StrPath] = (),
) -> None:
    """Add or replace a column of an index, without a scan of the sources.

        mmapds.add_column("more.jsonl", "weight", np.linspace(0, 1, len(more)))
        weights = mmapds.open("more.jsonl").column("weight")

    Datasets that are open keep their columns. A column named "length" is stored with its order, for samplers. Other
    processes that build the index or add a column to it wait.

    Args:
      source_or_index: an indexed source, or an index.
      values: a number for each record, shape (records,); or a picklable callable that takes a sample and returns a
        number, such as a tokenizer. Bools are 1 and 0. The column has the smallest type of u32, u64, i64 and f64 that
        holds all numbers.
      version: of a callable, as in `mmapds.build`.
      decode: the decoder of samples for a callable, as in `mmapds.open`.
      default: the number of a record that cannot be decoded; None raises its error.
      workers: processes that compute; all cores by default. With 1, the calling process computes.
      progress: called with the number of samples done since the last call; by default, a bar on a terminal.
      roots: directories that may hold the sources of the index, as in `mmapds.open`.
    Raises:
      ColumnError: values have another shape or are not numbers, or lengths are negative or fractional.
      IndexMissingError, StaleIndexError: the index must be built first.
    """
    if not isinstance(name, str) or not name:
        raise ColumnError(f"name = {name!r}, expected a string of one character or more")
    if isinstance(values, str):
        raise ColumnError(f"values = {shortened(values)}, expected a function of a sample, or an array of numbers")
    check_workers(workers)
    # `build` has no decoder or default: it would compute other numbers, so the function gets no identity.
    is_known = callable(values) and (version is not None or (decode is None and default is None))
    functions = identities({name: cast(Any, values)}, version) if is_known else {}
    target = _index_path(open_dataset(source_or_index, decode=decode, roots=roots))
    with locked(target):
        # Open again: the index may have been replaced before the lock.
        dataset = open_dataset(source_or_index, decode=decode, roots=roots)
        _write(dataset, {name: values}, functions, workers, progress, target, default=default)


def identities(computed: Mapping[str, Callable[[Any], float]], version: str | int | None) -> dict[str, str]:
    """Return the identity of each function that computes a column: `module.qualname:version`.

    The name of a lambda, local function, partial function or object does not tell what it computes. So these have an
    identity only with a version; without one, they are absent from the result.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int) or ":" in str(version)):
        raise ColumnError(f"version = {shortened(version)}, expected a text without a colon, or an integer")
    known = {}
    for name, function in computed.items():
        bound = getattr(function, "__self__", None)
        has_name = "<" not in getattr(function, "__qualname__", "<") and isinstance(bound, type | ModuleType | None)
        function = getattr(function, "func", function)  # the function of a partial
        named = function if hasattr(function, "__qualname__") else type(function)
        if has_name or version is not None:
            known[name] = f"{named.__module__}.{named.__qualname__}:{'' if version is None else version}"
    return known


def complete(
    computed: Mapping[str, Callable[[Any], float]],
    functions: Mapping[str, str],
    workers: int | None,
    place: str,
    path: str,
    plan: Plan,
) -> None:
    """Add all columns that functions compute, in one write; see `mmapds.index.build.Complete`.

    Numbers that a function with the same identity has computed before are reused. A function of a script or notebook
    needs a version for that, because its body changes often.
    """
    known = {name: each for name, each in functions.items() if not re.fullmatch(r"__main__\..*:", each)}
    with locked(place):
        index = Index(path)
        if path == place:
            if all(name in index.columns and index.functions.get(name) == known.get(name, "") for name in computed):
                return
            plan = [Stored(index, range(len(index.sources)))]  # the index may be newer than the plan
        stored = {name: _stored(index, plan, name, function) for name, function in known.items()}
        # This build has scanned or compared the sources, so any directory is allowed.
        dataset = open_dataset(path, roots=index.roots_needed())
        target = os.path.realpath(place) if path == place else place
        _write(dataset, computed, functions, workers, None, target, stored)


def _stored(index: Index, plan: Plan, name: str, function: str) -> Known:
    """Return the numbers of a column that the same function has computed before, by range of records."""
    found: Known = {}
    source = 0
    for step in plan:
        first = index.firsts[source]
        source += 1 if isinstance(step, Grown) else len(step.sources)
        if not isinstance(step, Scan) and step.base.functions.get(name) == function and name in step.base.columns:
            step.base.verify_sections(COLUMN + name)
            dtype, data = step.base.column(name)
            numbers = np.frombuffer(data, dtype)[step.records.start : step.records.stop]
            for at in range(0, len(numbers), _KEPT):
                found[range(first + at, min(first + at + _KEPT, first + len(numbers)))] = numbers[at : at + _KEPT]
    return found


def _index_path(dataset: Dataset) -> str:
    """Return the real path of a dataset's index; raise ColumnError unless it has exactly one."""
    indexes = dataset.indexes
    if dataset._is_view or len(indexes) != 1:
        found = "a saved view" if dataset._is_view else len(indexes)
        way = "give columns= to mmapds.build"
        raise ColumnError(f"source_or_index: expected one index of sources, found {found}; {way}")
    return os.path.realpath(indexes[0])


def _write(
    dataset: Dataset,
    columns: Mapping[str, Values],
    functions: Mapping[str, str],
    workers: int | None,
    progress: Callable[[int], object] | None,
    target: str,
    stored: Mapping[str, Known] = {},
    default: float | None = None,
) -> None:
    """Write a copy of a dataset's index with added or replaced columns to `target`."""
    index = Index(_index_path(dataset))
    held = index.parameters.get("columns", {})
    if found := next((name for name in columns if name in held), None):
        raise ColumnError(f"{target}: column {found!r} comes from the sources; give the new column another name")
    with IndexWriter(target) as writer:
        spools = {
            name: _spooled(writer, dataset, name, columns[name], workers, progress, stored.get(name, {}), default)
            for name in columns
        }
        replaced = {COLUMN + name for name in columns}.union(LENGTH_SECTIONS if "length" in columns else ())
        for section, each in index.sections.items():
            if section not in replaced:
                writer.write_section(section, each.dtype, index.pieces(section))
        for name, spool in spools.items():
            writer.write_column(name, spool)
            if name == "length":
                writer.write_length_order()
        metadata = {key: value for key, value in index.metadata.items() if key not in ("sections", "functions")}
        expressions = {each: text for each, text in index.expressions.items() if each not in columns}
        metadata["columns"] = {**index.measuring, "expressions": expressions}
        kept = {each: known for each, known in index.functions.items() if each not in columns}
        if functions or kept:
            metadata["functions"] = kept | dict(functions)
        writer.kind = index.kind
        if index.path == target and Index(target).checksum != index.checksum:
            raise StaleIndexError(f"{target}: STALE: it was replaced while columns were computed; run again")
        writer.commit(metadata, index.records)


def _spooled(
    writer: IndexWriter,
    dataset: Dataset,
    name: str,
    values: Values,
    workers: int | None,
    progress: Callable[[int], object] | None,
    stored: Known,
    default: float | None,
) -> Spool:
    """Return a spool with the numbers of a column, to be written to an index."""
    spool, records = writer.spool(), len(dataset)
    if callable(values):
        work = partial(_compute, dataset, name, values, default)
        pieces = _computed(work, name, records, workers or cores(), stored)
    else:
        cells = _cells(name, values, 0)
        if cells.shape != (records,):
            raise ColumnError(f"values: expected shape ({records},), a number for each record, found {cells.shape}")
        pieces = (each for each in [cells])
    bar = nullcontext(progress) if progress else _bar(f"column {name!r}", records)
    with bar as report, closing(pieces):  # closing ends the workers after errors too
        for cells in pieces:
            spool.append(BY_DTYPE[cells.dtype.str].cell, cells.view(np.uint64).data)
            report(len(cells))
    return spool


@contextmanager
def _bar(title: str, samples: int) -> Iterator[Callable[[int], object]]:
    """Yield a function that counts finished samples, with a bar if stderr is a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich import console, progress  # start-up time: only terminals need it

    stderr, texts = console.Console(stderr=True), progress.TextColumn("{task.description}", markup=False)
    # No refresh thread: forked workers would inherit its locks. No redirect of stdout: it may be a file.
    how: dict[str, Any] = {"auto_refresh": False, "transient": True, "redirect_stdout": False}
    columns = texts, progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeRemainingColumn()
    with progress.Progress(*columns, console=stderr, **how) as bar:
        task = bar.add_task(title, total=samples)
        yield lambda done: bar.update(task, advance=done, refresh=True)


def _computed(
    work: Callable[[range], NDArray[Any]], name: str, records: int, workers: int, stored: Known
) -> Generator[NDArray[Any], None, None]:
    """Yield the numbers of a computed column in order of records; workers compute some tasks ahead."""
    pieces = _cut(records, stored)
    lacking = [piece for piece in pieces if piece not in stored]
    is_alone = workers == 1 or len(lacking) <= 1
    each = (work(piece) for piece in lacking) if is_alone else in_processes(work, lacking, min(workers, len(lacking)))
    try:
        with closing(each) as made:
            for piece in pieces:
                yield _cells(name, stored[piece], piece.start) if piece in stored else next(made)
    except BrokenExecutor:
        what = "a worker process died, killed or out of memory; use workers=1 to see why"
        raise ColumnError(f"column {name!r}: {what}") from None


def _cut(records: int, stored: Known) -> list[range]:
    """Return the stored ranges of records, and split the gaps between them into tasks."""
    pieces, begin = [], 0
    for kept in [*sorted(stored, key=attrgetter("start")), range(records, records)]:
        pieces += [range(at, min(at + _TASK_SAMPLES, kept.start)) for at in range(begin, kept.start, _TASK_SAMPLES)]
        pieces += [kept] if kept else []
        begin = kept.stop
    return pieces


_NO_SAMPLE: Any = object()


def _samples(dataset: Dataset, piece: range, *, skips: bool) -> Iterator[Any]:
    """Yield samples; with `skips`, `_NO_SAMPLE` for a sample that cannot be decoded."""
    if not skips:
        yield from cast(IndexedDataset, dataset)._one_by_one(piece)
        return
    for position in piece:
        try:
            sample = dataset[position]
        except (SourceError, StaleIndexError, MemoryError):
            raise
        except Exception:
            sample = _NO_SAMPLE
        yield sample


def _compute(
    dataset: Dataset, name: str, compute: Callable[[Any], float], default: float | None, piece: range
) -> NDArray[Any]:
    numbers: list[Any] = []
    for position, sample in zip(piece, _samples(dataset, piece, skips=default is not None), strict=True):
        try:
            number = default if sample is _NO_SAMPLE else compute(sample)
        except StopIteration:  # from next() in user code: it would end the column silently
            raise ColumnError(f"{dataset.place(position)}: expected a number, found StopIteration") from None
        except Exception as error:
            add_note(error, f"while computing a column for {dataset.place(position)}")
            raise
        if not isinstance(number, int | float | np.number | np.bool_):
            raise ColumnError(f"{dataset.place(position)}: expected a number from the callable, found {number!r}")
        numbers.append(number)
    return _cells(name, numbers, piece.start)


def _cells(name: str, values: ArrayLike, first: int) -> NDArray[Any]:
    """Return numbers as u64, i64 (if any is negative) or f64; whole floats as lengths become u64."""
    try:
        if masked_count(values):
            raise ValueError("masked; give array.filled(NUMBER)")
        numbers = as_numbers(values, first)
        if numbers.size and numbers.dtype.kind not in "buif":
            raise TypeError(f"of type {numbers.dtype}")
    except ColumnError as error:
        raise ColumnError(f"column {name!r}: {error}") from None
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, or tensors
        found = f"found {type(values).__name__} ({error})"
        raise ColumnError(f"column {name!r}: expected numbers, one for each record, {found}") from None
    kind = numbers.dtype.kind if numbers.size else "u"
    if name == "length" and kind in "if":
        fits = (numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2.0**63)
        if not fits.all():
            wrong = int(fits.argmin())
            raise not_a_length(numbers.flat[wrong], first + wrong)
    elif kind == "f":
        return np.asarray(numbers, np.float64, order="C")
    elif kind == "i" and (numbers < 0).any():
        return np.asarray(numbers, np.int64, order="C")
    return np.asarray(numbers, np.uint64, order="C")
