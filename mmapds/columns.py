"""Adding a column to an index, from numbers or by computing one from each sample, without a new scan."""

from __future__ import annotations  # help() shows them as they are written

import multiprocessing
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import BrokenExecutor
from contextlib import closing
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .arrays.values import masked_count
from .dataset.dataset import Dataset
from .dataset.decode import Decoder
from .dataset.opening import open as open_dataset
from .errors import ColumnError, add_note, shortened
from .progress import Progress
from .storage.index_file import LENGTH_SECTIONS, Index
from .storage.lock import locked
from .storage.numbers import BY_DTYPE, EXACT, Spool, as_numbers, first_rounded
from .storage.sections import COLUMN
from .storage.sources import StrPath
from .storage.workers import cores, in_processes
from .storage.writer import IndexWriter

_TASK_SAMPLES = 4096  # computed by a worker at a time
Values = ArrayLike | Callable[[Any], float]


def add_column(
    source_or_index: StrPath,
    name: str,
    values: ArrayLike | Callable[[Any], float],
    *,
    version: str | int | None = None,
    decode: str | Decoder | None = None,
    workers: int | None = None,
    progress: Callable[[int], object] | None = None,
    roots: StrPath | Iterable[StrPath] = (),
) -> None:
    """Add a column to an index, or replace one; the sources are not scanned, and the index is replaced atomically.

    Open datasets keep the columns they have. A column named "length" is stored with the order that samplers read. No
    other process builds the index or adds a column to it meanwhile: it waits.

    Args:
      source_or_index: an indexed source, or an index.
      values: a number for each record, shape (records,); or a picklable callable that takes a sample and returns a
        number: a tokenizer, for instance. Bools are 1 and 0. The column has the smallest of u32, u64, i64 and f64 that
        holds all of them.
      version: of a callable, as in `mmapds.build`.
      decode: the decoder of samples for a callable, as in `mmapds.open`.
      workers: processes that compute; all cores by default. With 1, this process does.
      progress: called with the number of samples done since the last call; by default, a bar on a terminal.
      roots: directories in which the sources of the index may lie, as in `mmapds.open`.
    Raises:
      ColumnError: values have another shape or are not numbers, or lengths are negative or fractional.
      IndexMissingError, StaleIndexError: the index must be built first.
    """
    if workers is not None and workers < 1:
        raise ColumnError(f"workers = {workers}, expected 1 or more")
    if not isinstance(name, str) or not name:
        raise ColumnError(f"name = {name!r}, expected a string of one character or more")
    if isinstance(values, str):
        raise ColumnError(
            f"values = {shortened(values)}, expected a function of a sample, or an array of numbers; give an "
            "expression to mmapds.build, in columns={...}"
        )
    target = _index_path(open_dataset(source_or_index, decode=decode, roots=roots))
    with locked(target):
        # Again, as the index may have been replaced before the lock.
        dataset = open_dataset(source_or_index, decode=decode, roots=roots)
        functions = identities({name: values}, version) if callable(values) else {}
        _write(dataset, {name: values}, functions, workers, progress, target)


def identities(computed: Mapping[str, Callable[[Any], float]], version: str | int | None) -> dict[str, str]:
    """Return what the functions that compute columns are known by: `module.qualname:version`.

    A lambda, a function in another one, a partial function and an object are known only with a version, as their name
    does not say what they compute. Others are left out.

    Raises:
      ColumnError: the version is neither a text nor a number, or has a colon.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, str | int) or ":" in str(version)):
        raise ColumnError(f"version = {shortened(version)}, expected a text without a colon, or an integer")
    known = {}
    for name, function in computed.items():
        bound = getattr(function, "__self__", None)
        has_name = "<" not in getattr(function, "__qualname__", "<") and isinstance(bound, type | ModuleType | None)
        function = getattr(function, "func", function)  # of a partial function
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
) -> None:
    """Add columns that functions compute to an index, all at once.

    Args:
      functions: what these are known by.
      place: of the index.
      path: of the file that has the rest of it: a new file that is not there yet, or the index itself.
    """
    with locked(place):
        # Its sources were scanned or compared for this call, so they may be read, wherever they lie.
        dataset = open_dataset(path, roots=Index(path).roots_needed())
        _write(dataset, computed, functions, workers, None, os.path.realpath(place) if path == place else place)


def _index_path(dataset: Dataset) -> str:
    """Return the real path of the one index of a dataset."""
    indexes = dataset.indexes
    if dataset._is_view:
        raise ColumnError("source_or_index: expected an index of sources, found a saved view; add it to its indexes")
    if len(indexes) != 1:
        raise ColumnError(f"source_or_index: expected one index, found {len(indexes)}; add the column to each of them")
    return os.path.realpath(indexes[0])


def _write(
    dataset: Dataset,
    columns: Mapping[str, Values],
    functions: Mapping[str, str],
    workers: int | None,
    progress: Callable[[int], object] | None,
    target: str,
) -> None:
    """Write the index of a dataset with more columns, or with others of their names.

    Args:
      functions: what those among them are known by.
      target: where to put it; it replaces the index of the dataset there.
    """
    index = Index(_index_path(dataset))
    held = index.parameters.get("columns", {})
    if found := next((name for name in columns if name in held), None):
        raise ColumnError(f"{target}: column {found!r} comes from the sources; give the new column another name")
    with IndexWriter(target) as writer:
        spools = {name: _spooled(writer, dataset, name, columns[name], workers, progress) for name in columns}
        replaced = {COLUMN + name for name in columns}.union(LENGTH_SECTIONS if "length" in columns else ())
        for section in index.sections:
            if section not in replaced:
                writer.copy_section(index, section)
        for name, spool in spools.items():
            writer.write_column(name, spool)
            if name == "length":
                writer.write_length_order()
        metadata = _metadata(index, columns, functions)
        if index.path == target:
            writer.replace(index, metadata)
        else:
            writer.kind = index.kind
            writer.commit(metadata, index.records)


def _metadata(index: Index, columns: Iterable[str], computed: Mapping[str, str]) -> dict[str, Any]:
    """Return the metadata of an index in which these columns are computed, some of them by functions."""
    metadata = {key: value for key, value in index.metadata.items() if key not in ("sections", "functions")}
    expressions = {name: text for name, text in index.measuring["expressions"].items() if name not in columns}
    functions = {name: known for name, known in index.functions.items() if name not in columns} | dict(computed)
    described = {**metadata, "columns": {**index.measuring, "expressions": expressions}}
    return {**described, "functions": functions} if functions else described


def _spooled(
    writer: IndexWriter,
    dataset: Dataset,
    name: str,
    values: Values,
    workers: int | None,
    progress: Callable[[int], object] | None,
) -> Spool:
    """Return the numbers of a column on their way into an index."""
    spool, records = writer.spool(), len(dataset)
    pieces = _computed(dataset, name, values, workers or cores()) if callable(values) else _given(name, values, records)
    bar = Progress(f"column {name!r}", unit="samples", total=lambda: records, quiet=progress is not None)
    with bar, closing(pieces):  # which ends workers, whatever happens
        for cells in pieces:
            with writer.writing():
                spool.append(BY_DTYPE[cells.dtype.str].cell, cells.view(np.uint64).data)
            (progress or bar.update)(len(cells))
    return spool


def _given(name: str, values: ArrayLike, records: int) -> Generator[NDArray[Any], None, None]:
    cells = _cells(name, values, 0)
    if cells.shape != (records,):
        raise ColumnError(f"values: expected shape ({records},), a number for each record, found {cells.shape}")
    yield cells


def _computed(
    dataset: Dataset, name: str, compute: Callable[[Any], float], workers: int
) -> Generator[NDArray[Any], None, None]:
    """Yield a column that a function computes, in the order of records; workers compute some pieces ahead."""
    pieces = [range(begin, min(begin + _TASK_SAMPLES, len(dataset))) for begin in range(0, len(dataset), _TASK_SAMPLES)]
    work = partial(_compute, dataset, name, compute)
    is_daemon = multiprocessing.current_process().daemon  # which has no children, as those of multiprocessing.Pool
    if workers == 1 or len(pieces) <= 1 or is_daemon:
        yield from map(work, pieces)
        return
    try:
        yield from in_processes(work, pieces, min(workers, len(pieces)))
    except BrokenExecutor:
        raise ColumnError(
            f"column {name!r}: a worker process died, killed or out of memory; use workers=1 to see why"
        ) from None


def _compute(dataset: Dataset, name: str, compute: Callable[[Any], float], piece: range) -> NDArray[Any]:
    numbers = []
    for position in piece:
        sample = dataset[position]
        try:
            number = compute(sample)
        except StopIteration as error:  # as of next(), where nothing is left: it would end the column
            raise ColumnError(
                f"{dataset.place(position)}: expected a number from the callable, found StopIteration"
            ) from error
        except Exception as error:
            add_note(error, f"while computing a column for {dataset.place(position)}")
            raise
        if not isinstance(number, int | float | np.number | np.bool_):
            raise ColumnError(f"{dataset.place(position)}: expected a number from the callable, found {number!r}")
        numbers.append(number)
    return _cells(name, numbers, piece.start)


def _cells(name: str, values: ArrayLike, first: int) -> NDArray[Any]:
    """Return numbers as u64, as i64 if any is negative, or as f64; lengths as u64, also if they are whole floats.

    Args:
      first: the record that the first of them belongs to.
    Raises:
      ColumnError: they are not numbers, or no lengths; or an integer would be rounded, as others are floats.
    """
    try:
        if masked_count(values):
            raise ValueError("masked; give array.filled(NUMBER)")
        numbers = as_numbers(values)
    except (TypeError, ValueError, RuntimeError) as error:  # as of lists of other lengths, or of tensors
        raise ColumnError(
            f"column {name!r}: expected numbers, one for each record, found {type(values).__name__} ({error})"
        ) from None
    kind = numbers.dtype.kind if numbers.size else "u"
    if kind not in "buif":
        raise ColumnError(f"column {name!r}: expected numbers, found {numbers.dtype}")
    if found := first_rounded(values, numbers):
        at, number = found
        raise ColumnError(
            f"column {name!r}: expected {EXACT} found {number} at record {first + at}; give all as floats, "
            "which are rounded, or add two columns"
        )
    if name == "length" and kind in "if":
        fits = (numbers >= 0) & (numbers == np.floor(numbers)) & (numbers < 2.0**63)
        if not fits.all():
            wrong = int(fits.argmin())
            raise ColumnError(
                f"column 'length': expected integers of 0 or more, found {numbers.flat[wrong]} at record "
                f"{first + wrong}; give whole numbers, as milliseconds for seconds, or give the column another name"
            )
    elif kind == "f":
        return np.asarray(numbers, np.float64, order="C")
    elif kind == "i" and (numbers < 0).any():
        return np.asarray(numbers, np.int64, order="C")
    return np.asarray(numbers, np.uint64, order="C")
