"""Reports on datasets: one HTML page of lengths, batches, shuffle and reads: `report()`, `python -m mmapds report`.

Facts are plain dicts. One template shows them, and matplotlib draws the charts; only the page needs these two.
"""

from __future__ import annotations  # help() shows them as they are written

import json
import os
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from itertools import groupby
from operator import itemgetter
from typing import Any, cast

import numpy as np

from .. import __version__
from ..bench import bench, block_chunks
from ..dataset.decode import Decoder
from ..dataset.indexed import IndexedDataset, shown, undecoded
from ..dataset.opening import open as open_dataset
from ..errors import Error, FormatError, OrderError, shortened
from ..index.inspect import SIZES, coverage, describe, pieces
from ..index.lengths import LengthOrder, read_lengths
from ..orders.basic import Mixture
from ..orders.permutation import Permutation
from ..storage.index_file import Index
from ..storage.lock import check_is_free, is_same_file, replacing
from ..storage.sources import StrPath, listed, reason
from .numbers import BATCH_SIZE, Facts, Member, Wanted, length_facts, plan_facts, wanted_plans

__all__ = ["report"]

_LISTED = 12  # sources
_RANDOM, _EXTREMES, _UNDECODABLE = 6, 3, 3  # samples
_TRIED = 1000  # records that are decoded to find some that cannot be
_LINES = 24  # of a sample
_SUMS = ("batches", "records", "seconds", "wait", "stalls")
_WORST = ("wait_p50", "wait_p99", "wait_max")


def report(
    source_or_index: StrPath | Iterable[StrPath],
    out: StrPath | None = None,
    *,
    max_tokens: int | None = None,
    pack: int | None = None,
    batch_size: int | None = None,
    chunk_size: int | None = None,
    mix_chunks: int | None = None,
    mix: Sequence[float] | None = None,
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
    """Report on a dataset and a plan of its epochs, as numbers and as an HTML page.

        mmapds.report.report("train.jsonl", "report.html", max_tokens=16_384)

    Args:
      source_or_index: as in `mmapds.open`; nothing is built.
      out: the page to write; None writes none, and needs neither matplotlib nor Jinja2.
      max_tokens: look at `TokenBudgetBatchSampler` with this budget; records over it are left out.
      pack: look at `PackingBatchSampler` with this pack length; longer records are left out.
      batch_size: look at `DistributedBatchSampler`, which is the default, with 32.
      chunk_size: with an order of chunks of this size; budgets and packs then by the planner "window". By default all
        records are shuffled, or the blocks of compressed sources that are larger than their cache.
      mix_chunks: how many chunks are shuffled together, as in `mmapds.orders.Chunked`; by default 16.
      mix: look at `MixtureSampler`, or `MixtureBatchSampler` by tokens, with these shares of the sources in turn.
      ranks, seed: how many processes share the epoch, and which order it has.
      compare: plans to show beside the first, such as `"pack=4096"` or `"max_tokens=8192,ranks=16"`.
      samples: False leaves samples out, and reads none.
      loader: measure loaders with some numbers of workers, by `mmapds.bench`; needs current sources, and torch.
      waits: files of what the ranks of a training run waited for; see docs/report.md.
      decode: the decoder of samples, as in `mmapds.open`.
      roots: directories in which the sources of an index may lie, as in `mmapds.open`.
      force: replace a page that is there.
    Returns:
      A dict that JSON can hold; docs/report.md explains the numbers.
    Raises:
      OrderError: an argument is out of range, or leaves no record.
      ColumnError: the plan needs lengths that the index does not have.
      FormatError: a file of waits has something else.
      Error: an extra is missing, or the page is there or cannot be written; what `mmapds.open` and `bench` raise.
    """
    waits, roots = listed(waits), listed(roots)
    asked = dict(locals())
    plan = {"max_tokens": max_tokens, "pack": pack, "batch_size": batch_size, "chunk_size": chunk_size}
    shares = None if mix is None else _shares(mix, source_or_index)
    wanted = wanted_plans(compare, **plan, mix_chunks=mix_chunks, ranks=ranks, seed=seed, mix=shares)
    if out is not None:
        try:
            from .page import page  # needs an extra
        except ModuleNotFoundError as error:
            name = (error.name or "").partition(".")[0]
            raise Error(f"mmapds.report needs {name}; run: pip install matplotlib jinja2") from None
        if not force:
            check_is_free(os.fspath(out))
    patterns = [os.fspath(pattern) for pattern in listed(source_or_index)]
    dataset = cast(IndexedDataset, open_dataset(patterns, decode=decode, check="none", roots=roots))
    parts = [] if mix is None else [open_dataset(each, check="none", roots=roots) for each in patterns]
    if parts and sum(map(len, parts)) != len(dataset):
        raise OrderError("mix: expected sources that differ, found a record in two of them")
    facts = _facts(dataset, patterns, wanted, parts, samples=samples)
    if waits:
        facts["training"] = _training_facts([os.fspath(path) for path in waits])
    if loader:
        size = batch_size or BATCH_SIZE
        facts["loader"] = bench(patterns, max_tokens=max_tokens, batch_size=size, decode=decode, roots=roots)
    if out is not None:
        made = page(facts, date=_today(), command=_command(patterns, asked))
        _write(os.fspath(out), made, [*patterns, *dataset.sources, *dataset.indexes])
    return facts


def _shares(mix: Sequence[float], sources: StrPath | Iterable[StrPath]) -> tuple[float, ...]:
    """Return the shares of sources; raise OrderError, by the name of the argument, unless each has one."""
    shares = tuple(mix)
    try:
        Mixture([1] * len(listed(sources)), shares, epoch_size=1)
    except OrderError as error:
        raise OrderError(str(error).replace("weights", "mix", 1)) from None
    return shares


def _today() -> str:
    """Return the date in UTC; SOURCE_DATE_EPOCH gives another, for pages that are the same each time."""
    return time.strftime("%Y-%m-%d", time.gmtime(float(os.environ.get("SOURCE_DATE_EPOCH") or time.time())))


def _command(patterns: Sequence[str], asked: dict[str, Any]) -> str:
    """Return the command line that asks for the same numbers; a function that decodes has no name there."""
    words = ["mmapds", "report", *patterns[:_LISTED], *["..."] * (len(patterns) > _LISTED)]
    for name, parameter in signature(report).parameters.items():
        value = asked[name]
        if name in ("source_or_index", "out", "force") or callable(value) or value is parameter.default:
            continue
        if isinstance(value, bool):
            words.append("--no-samples" if name == "samples" else f"--{name}")
            continue
        if name == "mix":
            value = ",".join(f"{each:g}" for each in value)
        option = "--root" if name == "roots" else f"--{name.replace('_', '-')}"
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [option, str(each)]
    return shlex.join(words)


def _write(path: str, text: str, read: Iterable[str]) -> None:
    """Write the page, but over no file that was read."""
    if any(is_same_file(each, path) for each in read):
        raise Error(f"{path}: expected another file, found a source or an index")
    try:
        with replacing(os.path.abspath(path), next(iter(read)), lambda: None) as file:
            file.write(text.encode())
    except OSError as error:
        raise Error(f"{path}: cannot write the report here ({reason(error)}); give another place") from None


def _facts(
    dataset: IndexedDataset, patterns: Sequence[str], wanted: Sequence[Wanted], parts: Sequence[Any], *, samples: bool
) -> Facts:
    """Return the facts of all sections but those of loaders and of a training run."""
    # Those of the dataset compare nothing, so that a changed source is shown, and not an error.
    indexes, by_length = [Index(each.path, each.places) for each in dataset._catalog.indexes], None
    if len(dataset) and "length" in dataset.columns and dataset.lengths.dtype.kind == "u":
        by_length = read_lengths(dataset, None, None)
    if len(dataset) and block_chunks(dataset) and not parts:
        wanted = [each._replace(chunk_size=each.chunk_size or "block") for each in wanted]
    wanted = [each.with_defaults() for each in wanted]
    names = [os.path.basename(pattern) or pattern for pattern in patterns]
    known = [None if by_length is None else read_lengths(part, None, None) for part in parts]
    members = [Member(*each) for each in zip(names[: len(parts)], parts, known, strict=True)]
    documents = [describe(index)[0] for index in indexes]
    covered, has_plans = coverage(indexes, documents, len(dataset), _LISTED), len(dataset) > 0
    record_bytes = covered["bytes"] / max(covered["records_of_indexes"], 1) if covered["is_current"] else None
    is_shown = samples and has_plans and covered["is_current"]
    return {
        "mmapds": __version__,
        "title": ", ".join(names[:3]),
        "fingerprint": dataset.fingerprint,
        "coverage": covered,
        "lengths": _lengths(indexes, by_length, wanted) if has_plans else None,
        "plans": [plan_facts(dataset, by_length, each, record_bytes, members) for each in wanted if has_plans],
        "loader": None,
        "training": None,
        "samples": _samples(dataset, by_length, wanted[0].seed) if is_shown else None,
    }


def _lengths(indexes: Sequence[Index], by_length: LengthOrder | None, wanted: Sequence[Wanted]) -> Facts:
    """Return how lengths are distributed, or where there are none, the sizes of records in bytes."""
    if by_length is not None:
        chosen = [limit for each in wanted for limit in (each.max_tokens, each.pack) if limit is not None]
        return length_facts(by_length.values[::-1], by_length.counts[::-1], "tokens", chosen)
    sizes: Counter[int] = Counter()
    for piece, times in pieces(indexes, SIZES):
        values, counts = np.unique(piece, return_counts=True)
        sizes.update(dict(zip(values.tolist(), (counts * times).tolist(), strict=True)))
    found = np.array(sorted(sizes.items()), np.int64)
    return length_facts(found[:, 0], found[:, 1], "bytes", [])


# ---- samples


def _samples(dataset: IndexedDataset, by_length: LengthOrder | None, seed: int) -> Facts:
    """Return some samples: random ones, the longest, the shortest, and some that cannot be decoded."""
    records, raw = len(dataset), undecoded(dataset)

    def sample(position: int) -> Facts:
        """Return the first lines of what `mmapds show` prints."""
        found: Facts = {"position": position, "place": dataset.place(position), "bytes": dataset.where(position).size}
        if by_length is not None:
            found["length"] = int(by_length.lengths.at(np.array([position]))[0])
        try:
            text, refused = shown(dataset, position, raw[position])
        except Error as error:  # of a block that cannot be decompressed, for one
            text, refused = "", error
        if refused is not None:
            found["error"] = str(refused)
        lines = text.split("\n")
        return {**found, "lines": lines[:_LINES] + ["…"] * (len(lines) > _LINES)}

    tried = [sample(each) for each in Permutation(records, seed)[np.arange(min(_TRIED, records))].tolist()]
    found: Facts = {"random": tried[:_RANDOM]}
    if by_length is not None:
        ends = np.arange(min(_EXTREMES, records))
        for name, ranks in (("longest", ends), ("shortest", records - 1 - ends)):
            found[name] = [sample(each) for each in by_length.at(ranks).tolist()]
    bad = [each for each in tried if "error" in each]
    return {**found, "undecodable": bad[:_UNDECODABLE], "tried": len(tried)}


# ---- waits


def _training_facts(paths: Iterable[str]) -> Facts:
    """Return what the ranks of a training run waited for."""
    passes = sorted((found for path in paths for found in _passes(path)), key=itemgetter("rank"))
    ranks = []
    for rank, own in ((rank, list(own)) for rank, own in groupby(passes, itemgetter("rank"))):
        facts: Facts = {"rank": rank, "passes": len(own)}
        facts |= {name: sum(each[name] for each in own) for name in _SUMS}
        facts |= {name: max(each[name] for each in own) for name in _WORST}
        ranks.append({**facts, "waiting": facts["wait"] / (facts["seconds"] or 1)})
    seconds, wait = (sum(each[name] for each in ranks) for name in ("seconds", "wait"))
    return {"ranks": ranks, "seconds": seconds, "wait": wait, "waiting": wait / (seconds or 1)}


def _passes(path: str) -> Iterator[Facts]:
    """Yield what a rank wrote of each epoch: a line of numbers."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.readlines() or [""]
    except OSError as error:
        raise FormatError(f"{path}: cannot read the waits of a run ({reason(error)})") from None
    for number, line in enumerate(lines, 1):
        try:
            found = {"rank": 0, **json.loads(line)}
            is_right = all(0 <= found[name] < float("inf") for name in ("rank", *_SUMS, *_WORST))
        except (ValueError, TypeError, KeyError, RecursionError):
            is_right = False
        if not is_right:
            what = f"expected numbers in JSON, as loader.stats() returns, found {shortened(line.strip(), 40)}"
            raise FormatError(f"{path}: line {number}: {what}")
        yield found
