"""Reports on datasets: one HTML page of lengths, batches, shuffle and reads: `report()`, `python -m mmapds.report`.

Orders and plans are functions, so nearly all of it is computed without reading a record. Facts are plain dicts. One
template shows them, and matplotlib draws the charts; only the page needs these two.
"""

from __future__ import annotations  # help() shows them as they are written

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from ..bench import bench
from ..dataset.decode import Decoder
from ..dataset.opening import IndexedDataset
from ..dataset.opening import open as open_dataset
from ..errors import Error, either
from ..storage.lock import check_is_free, is_same_file, replacing
from ..storage.sources import StrPath, listed, reason
from .gather import gather, loader_facts, training_facts
from .numbers import Facts
from .plans import BATCH_SIZE, wanted_plans

__all__ = ["report"]


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
      out: the page to write; None writes none, and needs neither matplotlib nor Jinja2.
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
      Error: an extra is missing, or the page is there or cannot be written; what `mmapds.open` and `bench` raise.
    """
    make_page = None if out is None else _page_maker(os.fspath(out), force)
    plan = {"max_tokens": max_tokens, "pack": pack, "batch_size": batch_size, "chunk_size": chunk_size}
    wanted = wanted_plans(compare, **plan, ranks=ranks, seed=seed)
    patterns = [os.fspath(pattern) for pattern in listed(source_or_index)]
    dataset = cast(IndexedDataset, open_dataset(patterns, decode=decode, check="none", roots=roots))
    facts = gather(dataset, patterns, wanted, samples=samples)
    if waits:
        facts["training"] = training_facts([os.fspath(path) for path in listed(waits, "waits")])
    if loader:
        size = batch_size or BATCH_SIZE
        measured = bench(patterns, max_tokens=max_tokens, batch_size=size, decode=decode, roots=roots)
        facts["loader"] = loader_facts(measured)
    if out is not None and make_page is not None:
        _write(os.fspath(out), make_page(facts), [*patterns, *dataset.sources, *dataset.indexes])
    return facts


def _page_maker(out: str, force: bool) -> Callable[[Facts], str]:
    """Return what makes a page; raise Error if an extra is missing, or `out` is there and not to be replaced."""
    try:
        from .page import page  # needs an extra
    except ModuleNotFoundError as error:
        name, no_page = (error.name or "").partition(".")[0], either("--json", "no out")
        advice = f"run: pip install 'mmapds[report]' (or give {no_page}, which needs none)"
        raise Error(f"mmapds.report needs {name}; {advice}") from None
    if not force:
        check_is_free(out)
    return page


def _write(path: str, text: str, read: Iterable[str]) -> None:
    """Write the page, but over no file that was read."""
    advice = f"give another place with {either('-o FILE', 'out=...')}"
    if any(is_same_file(each, path) for each in read):
        raise Error(f"{path}: the page to write is a source or an index; {advice}")
    try:
        with replacing(os.path.abspath(path), lambda: None) as file:
            file.write(text.encode())
    except OSError as error:
        raise Error(f"{path}: cannot write the report here ({reason(error)}); {advice}") from None
