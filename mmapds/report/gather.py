"""What a report reads: indexes, samples, loaders that `mmapds.bench` measured, and the waits of a training run."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from .. import __version__
from ..dataset.opening import IndexedDataset
from ..dataset.printed import printed
from ..errors import DecodeError, Error, FormatError, shortened
from ..index.inspect import state_of, summarise
from ..index.lengths import read_lengths
from ..index.statistics import CALLED, PERCENTILES, SIZES, made_of, measure, pieces
from ..orders.permutation import Permutation
from ..storage.index_file import Index
from ..storage.runs import LengthOrder
from ..storage.sources import reason
from .numbers import Array, Facts, batch_facts, length_facts, read_facts, shuffle_facts
from .plans import Wanted, plan_epoch

CURRENT = ("unchanged", "touched")
"""States of sources whose records can be read."""

_LISTED = 12  # sources
_RANDOM, _EXTREMES, _UNDECODABLE = 6, 3, 3  # samples
_TRIED = 1000  # records that are decoded to find some that cannot be
_LARGE = 1 << 24  # bytes; a larger record is not decoded
_LINES, _COLUMNS = 24, 400
_SUMS = ("batches", "records", "seconds", "wait", "stalls")
_WORST = ("wait_p50", "wait_p99", "wait_max")


def gather(dataset: IndexedDataset, patterns: Sequence[str], wanted: Sequence[Wanted], *, samples: bool) -> Facts:
    """Return the facts of all sections but those of loaders and of a training run.

    Args:
      patterns: what the user calls the dataset.
      wanted: plans; the first one is compared with the others.
      samples: False reads no sample.
    Raises:
      OrderError, ColumnError: a plan cannot be made of the dataset.
    """
    # Those of the dataset compare nothing, so that a changed source is shown, and not an error.
    indexes, by_length = [Index(each.path, each.roots) for each in dataset._catalog.indexes], None
    if len(dataset) and "length" in dataset.columns and dataset.lengths.dtype.kind == "u":
        by_length = read_lengths(dataset, None, None)
    coverage = coverage_facts(indexes, len(dataset))
    is_shown = samples and len(dataset) and coverage["is_current"]
    return {
        "mmapds": __version__,
        "title": ", ".join(os.path.basename(pattern) or pattern for pattern in patterns[:3]),
        "fingerprint": dataset.fingerprint,
        "coverage": coverage,
        "lengths": _lengths(indexes, by_length, wanted) if len(dataset) else None,
        "plans": [_plan_facts(dataset, by_length, coverage, each) for each in wanted] if len(dataset) else [],
        "loader": None,
        "training": None,
        "samples": _sample_facts(dataset, by_length, wanted[0].seed) if is_shown else None,
    }


def coverage_facts(indexes: Sequence[Index], records: int) -> Facts:
    """Return what indexes cover, and which sources have changed since; a view has fewer records than its indexes."""
    summaries = [summarise(index) for index in indexes]
    sources = [
        {"path": index.source_path(number), "records": source.records, "bytes": source.size, "state": state}
        | ({} if state in CURRENT else {"message": message})
        for index in indexes
        for number, source in enumerate(index.sources)
        for state, message, _ in (state_of(index, number),)
    ]
    others = [each for each in sources if each["state"] not in CURRENT]
    have_left_out = any(each.sizes_have_left_out for each in summaries)
    sizes = _column(indexes, SIZES, CALLED, "records, with framing" + " and left-out records behind" * have_left_out)
    names = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
    return {
        "indexes": [index.path for index in indexes][:_LISTED],
        "formats": sorted({index.format for index in indexes}),
        "records": records,
        "records_of_indexes": sum(each.records for each in summaries),
        "bytes": sum(each.size for each in summaries),
        "left_out": sum(each.skipped for each in summaries),
        "bad": sum(each.bad for each in summaries),
        "sources": len(sources),
        "states": dict(sorted(Counter(each["state"] for each in sources).items())),
        "is_current": not others,
        "listed": (others or sources)[:_LISTED],
        "sizes_have_left_out": have_left_out,
        "columns": [sizes, *(_column(indexes, name, name, made_of(indexes, name)) for name in names)],
    }


def _column(indexes: Sequence[Index], name: str | None, title: str, of: str) -> Facts:
    """Return the statistics of a column, or of the sizes of records."""
    numbers = measure(indexes, name, lambda _: None)
    return {
        "name": title,
        "of": of,
        "type": numbers.type,
        "min": numbers.least,
        **dict(zip(PERCENTILES, numbers.percentiles, strict=True)),
        "max": numbers.most,
        "mean": numbers.mean,
        "total": numbers.total,
        "not_finite": numbers.others,
        "sampled": numbers.sampled,
    }


def _lengths(indexes: Sequence[Index], by_length: LengthOrder | None, wanted: Sequence[Wanted]) -> Facts:
    if by_length is None:
        return length_facts(*_record_sizes(indexes), "bytes", [])
    chosen = [limit for each in wanted for limit in (each.max_tokens, each.pack) if limit is not None]
    return length_facts(by_length.values[::-1], by_length.counts[::-1], "tokens", chosen)


def _record_sizes(indexes: Sequence[Index]) -> tuple[Array, Array]:
    """Return the distinct sizes of records in bytes, rising, and how many records have each."""
    sizes: Counter[int] = Counter()
    for piece, times in pieces(indexes, SIZES):
        values, counts = np.unique(piece, return_counts=True)
        sizes.update(dict(zip(values.tolist(), (counts * times).tolist(), strict=True)))
    found = np.array(sorted(sizes.items()), np.int64)
    return found[:, 0], found[:, 1]


def _plan_facts(dataset: IndexedDataset, by_length: LengthOrder | None, coverage: Facts, wanted: Wanted) -> Facts:
    epoch = plan_epoch(dataset, by_length, wanted)
    record_bytes = coverage["bytes"] / max(coverage["records_of_indexes"], 1)
    return {
        "title": wanted.title,
        "options": wanted._asdict(),
        "batches": batch_facts(epoch),
        "shuffle": shuffle_facts(epoch, len(dataset)),
        "reads": read_facts(epoch, dataset, record_bytes) if coverage["is_current"] else None,
    }


# ---- samples


def _sample_facts(dataset: IndexedDataset, by_length: LengthOrder | None, seed: int) -> Facts:
    """Return some samples as lines of text: random ones, the longest, the shortest, and some that cannot be decoded."""
    records = len(dataset)
    tried = Permutation(records, seed)[np.arange(min(_TRIED, records))].tolist()
    groups = {"random": tried[:_RANDOM]}
    if by_length is not None:
        places = np.arange(min(_EXTREMES, records))
        groups |= {"longest": by_length.at(places).tolist(), "shortest": by_length.at(records - 1 - places).tolist()}
    found = {name: [_sample(dataset, by_length, each) for each in positions] for name, positions in groups.items()}
    undecodable = islice((each for each in tried if not _is_decodable(dataset, each)), _UNDECODABLE)
    return {**found, "undecodable": [_sample(dataset, None, each) for each in undecodable], "tried": len(tried)}


def _sample(dataset: IndexedDataset, by_length: LengthOrder | None, position: int) -> Facts:
    """Return a sample as the first lines of what `mmapds show` prints."""
    size = dataset.where(position).size
    shown: Facts = {"position": position, "place": dataset.place(position), "bytes": size}
    if by_length is not None:
        shown["length"] = int(by_length.lengths.at(np.array([position]))[0])
    if size > _LARGE:
        return {**shown, "error": f"{size:,} bytes, too many to be shown"}
    try:
        return {**shown, "lines": _lines(dataset[position])}
    except DecodeError as error:
        return {**shown, "error": str(error), "lines": _lines(dataset.raw(position))}
    except Error as error:
        return {**shown, "error": str(error)}


def _lines(sample: Any) -> list[str]:
    lines = printed(sample).split("\n")
    more = ["…"] if len(lines) > _LINES else []
    return [line if len(line) <= _COLUMNS else f"{line[:_COLUMNS]}…" for line in lines[:_LINES]] + more


def _is_decodable(dataset: IndexedDataset, position: int) -> bool:
    """Return False for a record that its decoder refuses; large ones are not tried."""
    try:
        if dataset.where(position).size <= _LARGE:
            dataset[position]
    except DecodeError:
        return False
    return True


# ---- waits


def loader_facts(measured: Facts) -> Facts:
    """Return the loaders that `mmapds.bench` tried, and its recommendation."""
    names = ("records_per_second", "wait_p50", "wait_p99", "memory")
    ways = [
        {"kind": trial["kind"], "workers": trial["workers"]}
        | {which: trial[which] and {name: trial[which][name] for name in names} for which in ("cold", "warm")}
        for trial in measured["trials"]
        if trial["kind"] in ("threads", "processes")
    ]
    return {name: measured[name] for name in ("plan", "cores", "seconds", "recommendation")} | {"ways": ways}


def training_facts(paths: Iterable[str]) -> Facts:
    """Return what the ranks of a training run waited for.

    Args:
      paths: files in which each line is a JSON object: `rank`, and what `loader.stats()` returns.
    Raises:
      FormatError: a file cannot be read, or holds something else.
    """
    passes: dict[int, list[Facts]] = {}
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                for number, line in enumerate(file.readlines() or [""], 1):
                    found = _pass_of(f"{path}: line {number}", line)
                    passes.setdefault(found["rank"], []).append(found)
        except OSError as error:
            raise FormatError(f"{path}: cannot read the waits of a run ({reason(error)})") from None
    ranks = []
    for rank, own in sorted(passes.items()):
        facts: Facts = {"rank": rank, "passes": len(own)}
        facts |= {name: sum(each[name] for each in own) for name in _SUMS}
        facts |= {name: max(each[name] for each in own) for name in _WORST}
        ranks.append({**facts, "waiting": facts["wait"] / facts["seconds"] if facts["seconds"] else 0.0})
    seconds, wait = (sum(each[name] for each in ranks) for name in ("seconds", "wait"))
    return {"ranks": ranks, "seconds": seconds, "wait": wait, "waiting": wait / seconds if seconds else 0.0}


def _pass_of(where: str, line: str) -> Facts:
    """Return what a rank wrote of an epoch."""
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        found = {"rank": 0, **json.loads(line)}
        if all(0 <= found[name] < float("inf") for name in ("rank", *_SUMS, *_WORST)):
            return found
    raise FormatError(
        f"{where}: expected numbers in JSON, as loader.stats() returns, found {shortened(line.strip(), 40)}"
    )
