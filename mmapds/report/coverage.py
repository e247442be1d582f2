"""The section on what is covered: records, bytes, sources and columns, and whether sources are what they were."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..command.numbers import CALLED, SIZES, Numbers, made_of, measure, pieces
from ..index.inspect import state_of
from ..index.summary import summarise
from ..storage.index_file import Index
from .numbers import Array

_LISTED = 12  # sources
CURRENT = ("unchanged", "touched")
"""States of sources whose records can be read."""


def coverage_facts(indexes: Sequence[Index], records: int) -> dict[str, Any]:
    """Return what indexes cover.

    Args:
      records: how many the dataset has, which may be a view.
    """
    summaries = [summarise(index) for index in indexes]
    sources = [
        {"path": index.source_path(number), "records": source.records, "bytes": source.size, "state": state}
        | ({} if state in CURRENT else {"message": message})
        for index in indexes
        for number, source in enumerate(index.sources)
        for state, message, _ in (state_of(index, number),)
    ]
    states = Counter(each["state"] for each in sources)
    others = [each for each in sources if each["state"] not in CURRENT]
    have_left_out = any(each.sizes_have_left_out for each in summaries)
    return {
        "indexes": [index.path for index in indexes][:_LISTED],
        "formats": sorted({index.format for index in indexes}),
        "records": records,
        "records_of_indexes": sum(each.records for each in summaries),
        "bytes": sum(each.size for each in summaries),
        "left_out": sum(each.skipped for each in summaries),
        "bad": sum(each.bad for each in summaries),
        "sources": len(sources),
        "states": dict(sorted(states.items())),
        "is_current": not others,
        "listed": (others or sources)[:_LISTED],
        "sizes_have_left_out": have_left_out,
        "columns": _columns(indexes, "records, with framing" + " and left-out records behind" * have_left_out),
    }


def _columns(indexes: Sequence[Index], sizes_of: str) -> list[dict[str, Any]]:
    """Return the statistics of the columns that all indexes have, and of the sizes of records.

    Args:
      sizes_of: what these are the sizes of.
    """
    names = [name for name in indexes[0].columns if all(name in index.columns for index in indexes)]
    found = []
    for name, title, of in [(SIZES, CALLED, sizes_of), *((name, name, made_of(indexes, name)) for name in names)]:
        numbers = measure(indexes, name, lambda _: None)
        found.append({"name": title, "of": of, **_described(numbers)})
    return found


def _described(numbers: Numbers) -> dict[str, Any]:
    low, median, high, highest = numbers.percentiles
    return {
        "type": numbers.type,
        "min": numbers.least,
        "10 %": low,
        "median": median,
        "90 %": high,
        "99 %": highest,
        "max": numbers.most,
        "mean": numbers.mean,
        "total": numbers.total,
        "not_finite": numbers.others,
        "sampled": numbers.sampled,
    }


def record_sizes(indexes: Sequence[Index]) -> tuple[Array, Array]:
    """Return the different sizes of records in bytes, rising, and how many records have each; piece by piece."""
    values, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for piece, times in pieces(indexes, SIZES):
        found, own = np.unique(piece, return_counts=True)
        every, places = np.unique(np.concatenate([values, found]), return_inverse=True)
        values, counts = every, np.bincount(places, np.concatenate([counts, own * times])).astype(np.int64)
    return values, counts
