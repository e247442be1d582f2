"""Reports on datasets: one HTML page of lengths, batches, shuffle and reads: `report()`, `python -m mmapds.report`.

Orders and plans are functions, so nearly all of it is computed without reading a record. Facts are plain dicts, each
section's in a file of its own; `sections` and `pictures` show them, by matplotlib, which only the page needs.
"""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..bench import bench
from ..dataset.decode import Decoder
from ..errors import Error, OrderError, either, names_its_arguments
from ..storage.lock import check_is_file, create_replacement, remove_leftovers
from ..storage.replaced import check_is_free, is_same_file
from ..storage.sources import StrPath, listed, reason
from .gather import Subject, gather
from .page import page
from .pictures import check_matplotlib
from .plans import BATCH_SIZE, Wanted
from .waits import loader_facts, training_facts

__all__ = ["report"]


@names_its_arguments("report", error=OrderError)
def report(
    source_or_index: StrPath | Iterable[StrPath],
    out: StrPath | None = None,
    *,
    max_tokens: int | None = None,
    pack: int | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    ranks: int = 8,
    seed: int = 0,
    compare: Sequence[str] | str = (),
    samples: bool = True,
    loader: bool = False,
    waits: StrPath | Iterable[StrPath] = (),
    decode: str | Decoder | None = None,
    roots: StrPath | Iterable[StrPath] = (),
    force: bool = False,
) -> dict[str, Any]:
    """Look at a dataset and at a plan of its epochs; return the facts, and write them as an HTML page.

    Args:
      source_or_index: as in `mmapds.open`; nothing is built.
      out: the page to write; None writes none, and needs no matplotlib.
      max_tokens: look at `TokenBudgetBatchSampler` with this budget; records over it are left out.
      pack: look at `PackingBatchSampler` with this pack length; longer records are left out.
      batch_size: look at `DistributedBatchSampler`, which is the default, with 32.
      chunk_size: with an order of chunks of this size; budgets and packs then by the planner "window".
      ranks, seed: how many processes share the epoch, and which order it has.
      compare: plans to show beside the first, such as `"pack=4096"` or `"max_tokens=8192,ranks=16"`.
      samples: False leaves samples out, and reads none.
      loader: measure loaders with some numbers of workers, by `mmapds.bench`; needs current sources, and torch.
      waits: files of what the ranks of a training run waited for; see docs/report.md.
      decode: the decoder of samples, as in `mmapds.open`.
      roots: directories in which the sources of an index may lie, as in `mmapds.open`.
      force: replace a page that is there.
    Returns:
      A dict that JSON can hold; docs/report.md says what is in it.
    Raises:
      OrderError: an argument is out of range, or leaves no record.
      ColumnError: the plan needs lengths that the index does not have; the message has the command that adds them.
      FormatError: a file of waits has something else.
      Error: matplotlib is missing, or the page is there or cannot be written; what `mmapds.open` and `bench` raise.
    """
    if out is not None:
        _check_page(os.fspath(out), force=force)
    given = {"max_tokens": max_tokens, "pack": pack, "batch_size": batch_size, "chunk_size": chunk_size}
    first = Wanted.of(**given, ranks=ranks, seed=seed)
    others = compare if isinstance(compare, Iterable) and not isinstance(compare, str) else [compare]
    wanted = [first, *(Wanted.parse(text, first) for text in others)]
    run = training_facts(listed(waits, "waits")) if waits else None
    facts = gather(_subject_beside(out, Subject(source_or_index, decode, roots)), wanted, samples=samples)
    facts["training"] = run
    if loader:
        measured = bench(
            source_or_index, max_tokens=max_tokens, batch_size=batch_size or BATCH_SIZE, decode=decode, roots=roots
        )
        facts["loader"] = loader_facts(measured)
    if out is not None:
        write_page(os.fspath(out), page(facts))
    return facts


def _check_page(path: str, *, force: bool) -> None:
    """Raise Error where a page cannot be drawn, or would replace a file unasked, or what is not a regular one."""
    check_matplotlib()
    if not force:
        check_is_free(path, _elsewhere())
    with _writing(path):
        check_is_file(path)


def _subject_beside(out: StrPath | None, subject: Subject) -> Subject:
    """Return what a report is on; raise Error where its page would replace a file of that."""
    read = [*subject.dataset.sources, *subject.dataset.indexes]
    if out is not None and any(is_same_file(each, os.fspath(out)) for each in read):
        raise Error(f"{out}: the page to write is a source or an index; give another place with {_elsewhere()}")
    return subject


def write_page(path: str, text: str) -> None:
    """Write a page so that there is never half of it.

    Raises:
      Error: the directory is missing or cannot be written to.
    """
    with _writing(path):
        remove_leftovers(path)  # of reports that were killed
        temporary, file = create_replacement(path)
        try:
            with file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
                os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):  # it was moved, and then a signal came
                os.unlink(temporary)
            raise


@contextmanager
def _writing(path: str) -> Iterator[None]:
    """Turn an OSError into an Error that names the page."""
    try:
        yield
    except OSError as error:
        raise Error(
            f"{path}: cannot write the report here ({reason(error)}); give another place with {_elsewhere()}"
        ) from None


def _elsewhere() -> str:
    return either("-o FILE", "out=...")
