"""Whether the sources of an index are unchanged, and statistics of its numbers, read piece by piece."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Error, SourceError, StaleIndexError
from ..storage import current
from ..storage.index_file import Index, SavedView
from .build import summarise

SIZES = None  # in place of a column's name: the size of each record, with its framing
CALLED = "bytes"  # the name of these sizes for users; a column may have it too
PERCENTILES = {"10 %": 0.1, "median": 0.5, "90 %": 0.9, "99 %": 0.99}

_CURRENT = ("unchanged", "touched")  # states of sources whose records can be read
_PIECE = 1 << 20  # numbers that are processed at a time
_SAMPLE = 1 << 22  # numbers: percentiles of more come from a sample
_BINS = 12

Number = int | float
State = tuple[str, str, Error | None]
"""The state of a source, or of an index of a saved view: a word, a text for people, and the error of opening."""


def describe(index: Index | SavedView) -> tuple[dict[str, Any], list[Error]]:
    """Return what an index covers, as JSON, and an error for each changed source; docs/checks.md lists the keys."""
    if isinstance(index, SavedView):
        states = [_state_of_base(index, number) for number in range(len(index.bases))]
        listed = [{"path": index.path_of(base.path), "records": base.records} for base in index.bases]
        document = {"format": "view", "records": index.records, "columns": dict.fromkeys(index.columns)}
        document["indexes"] = listed
    else:
        states = [_state_of_source(index, number) for number in range(len(index.sources))]
        listed = [_source(index, number) for number in range(len(index.sources))]
        summary = summarise(index)
        document = {
            "format": index.format,
            "parameters": {name: each for name, each in index.parameters.items() if name not in ("columns", "idx")},
            "records": index.records,
            "bytes": summary.size,
            "smallest": summary.smallest,
            "largest": summary.largest,
            "left_out": summary.skipped,
            "bad": summary.bad,
            "columns": {name: index.expressions.get(name) for name in index.columns},
            "hashed": all(source.xxh3_128 for source in index.sources),
            "sources": listed,
        }
    for each, (word, text, _) in zip(listed, states, strict=True):
        each |= {"state": word, "message": text}
    return document, [error for *_, error in states if error is not None]


def _source(index: Index, number: int) -> dict[str, Any]:
    source = index.sources[number]
    found = {"path": index.source_path(number), "records": source.records, "bytes": source.size}
    if source.bad.lines:
        found["bad"] = [{"line": line, "byte": byte} for line, byte in source.bad.first]
    return found


def _state_of_source(index: Index, number: int) -> State:
    try:
        index.readable_path(number)
    except SourceError:  # not a problem: people inspect another person's index before they trust it
        return "outside", "OUTSIDE, not checked; give --root DIRECTORY if you trust who made the index", None
    try:
        found = current.check_now(index, number)
    except StaleIndexError as error:
        return "stale", str(error).removeprefix(f"{index.path}: "), error
    except SourceError as error:
        what = str(error).removeprefix(f"{index.source_path(number)}: ").removesuffix(f" (a source of {index.path})")
        return "missing", f"MISSING: {what}", error
    if found is None:
        return "object", "an object, compared when it is fetched", None
    if found.st_mtime_ns == index.sources[number].mtime_ns:
        return "unchanged", "unchanged", None
    return "touched", "another time, the same fingerprint", None


def _state_of_base(view: SavedView, number: int) -> State:
    path = view.base_path(number)
    try:
        base = view.open_base(number)
        for source in range(len(base.sources)):
            current.check_now(base, source)
    except StaleIndexError as error:
        return "stale", str(error).removeprefix(f"{view.path}: ").removeprefix(f"{path}: "), error
    except Error as error:
        return "unusable", str(error), error
    return "unchanged", "unchanged", None


def format_of(document: dict[str, Any]) -> str:
    """Return a line with the format and the parameters of an index, from the result of `describe`."""
    given = {name: each for name, each in document["parameters"].items() if name != "truncated"}
    drops = ["an incomplete last record is dropped"] if document["parameters"].get("truncated") == "drop" else []
    return ", ".join([document["format"], *(f"{name} {each}" for name, each in given.items()), *drops])


# ---- statistics --------------------------------------------------------------------------------------------------


def measure(indexes: Sequence[Index], name: str | None) -> dict[str, Any]:
    """Return the statistics of a column that all indexes have, or of `SIZES`, by their names in tables.

    Statistics cover finite numbers, and are 0 without any. Percentiles of many numbers come from a sample. A total is
    None if it overflows float64.
    """
    step = max(math.ceil(sum(index.records for index in indexes) / _SAMPLE), 1)
    extremes: list[Number] = []
    sample = [np.empty(0)]
    total: int | np.longdouble = 0
    count = 0
    for piece, times in pieces(indexes, name):
        finite = piece[np.isfinite(piece)]
        if len(finite):
            sample.append(finite[-count % step :: step].copy() if times == 1 else np.repeat(finite, -(-times // step)))
            extremes += [finite.min().item(), finite.max().item()]
            total += _sum(finite) * times
            count += len(finite) * times
    types = sorted({np.dtype(index.column(name)[0]).name for index in indexes}) if name is not SIZES else []
    found, sampled = [0] * len(PERCENTILES), sum(map(len, sample))
    if sampled:
        found = np.quantile(np.concatenate(sample[1:]), list(PERCENTILES.values()), method="inverted_cdf").tolist()
    return {
        "type": ", ".join(types),
        "min": min(extremes, default=0),
        "max": max(extremes, default=0),
        "mean": float(total / max(count, 1)),
        **dict(zip(PERCENTILES, found, strict=True)),
        "total": total if isinstance(total, int) else float(total) if np.isfinite(np.float64(total)) else None,
        "sampled": sampled,
        "is_sample": sampled < count,
    }


def coverage(
    indexes: Sequence[Index], documents: Sequence[dict[str, Any]], records: int | None = None, most: int | None = None
) -> dict[str, Any]:
    """Return what indexes cover together, from results of `describe`; lists have up to `most` indexes and sources.

    A view has fewer `records`.
    """
    sources = [source for each in documents for source in each["sources"]]
    changed = sum(each["state"] not in _CURRENT for each in sources)
    have_left_out = any(source.skipped for index in indexes for source in index.sources)
    columns = [{"name": CALLED, "of": "records, with framing" + " and left-out records behind" * have_left_out}]
    columns[0] |= measure(indexes, SIZES)
    for name in indexes[0].columns:
        if all(name in index.columns for index in indexes):
            meanings = {index.meaning(name) for index in indexes}
            of = meanings.pop() if len(meanings) == 1 else "several"
            columns.append({"name": name, "of": of, **measure(indexes, name)})
    totals = {name: sum(each[name] for each in documents) for name in ("records", "bytes", "left_out", "bad")}
    return {
        "indexes": [index.path for index in indexes][:most],
        "formats": sorted({index.format for index in indexes}),
        **totals,
        "records": totals["records"] if records is None else records,
        "records_of_indexes": totals["records"],
        "sources": len(sources),
        "changed": changed,
        "states": dict(sorted(Counter(each["state"] for each in sources).items())),
        "is_current": not changed,
        "listed": sorted(sources, key=lambda each: each["state"] == "unchanged")[:most],
        "sizes_have_left_out": have_left_out,
        "columns": columns,
    }


def histogram(
    indexes: Sequence[Index], name: str | None, numbers: dict[str, Any]
) -> list[tuple[Number, Number | None, int]]:
    """Return bins for a result of `measure`: begin, end and count of each. The last one may have no end.

    Bins begin at round numbers. Their width suits 99 % of the numbers. Bins of integers end at their last integer.
    """
    least, high = numbers["min"], numbers["99 %"]
    is_whole = isinstance(least, int)
    if not numbers["sampled"] or not math.isfinite(high - least):
        return []
    step: Number = _round((high - least) / _BINS)
    if is_whole:
        step = max(int(step), 1)
    first = least // step * step if step else least
    bins = max(int((high - first) // step) + 1, 1) if step else 1
    edges = [first + step * number for number in range(bins + 1)]
    is_open = bool(step) and numbers["max"] >= edges[-1]
    begins = np.array(edges[1 : bins + is_open], np.uint64 if is_whole and least >= 0 else None)
    counts = [0] * (bins + is_open)
    for piece, times in pieces(indexes, name):
        places = np.searchsorted(begins, piece[np.isfinite(piece)], side="right")
        found = np.bincount(places, minlength=len(counts)).tolist()
        counts = [count + more * times for count, more in zip(counts, found, strict=True)]
    ends = [*(end - 1 if is_whole else end for end in edges[1:]), None]
    return list(zip(edges, ends, counts, strict=False))


def _round(width: float) -> float:
    """Round a width up to 1, 2 or 5 times a power of ten; 0 stays 0."""
    if width <= 0:
        return 0
    power = 10.0 ** math.floor(math.log10(width))
    return next((factor * power for factor in (1, 2, 5) if factor * power >= width), 10 * power)


def _sum(numbers: NDArray[Any]) -> int | np.longdouble:
    """Return a sum: exact for integers of any size, rounded for floats."""
    if numbers.dtype.kind == "f":
        total: np.longdouble = numbers.sum(dtype=np.longdouble)
        return total
    return (int((numbers >> 32).sum()) << 32) + int((numbers & 0xFFFFFFFF).sum())


def pieces(indexes: Sequence[Index], name: str | None) -> Iterator[tuple[NDArray[Any], int]]:
    """Yield all numbers in the order of records, some at a time, each time with a repeat count.

    Records of one size yield a single number: an index may claim any number of them.
    """
    for index in indexes:
        if name is not SIZES:
            dtype, data = index.column(name)
            whole = np.frombuffer(data, dtype)
            yield from ((whole[begin : begin + _PIECE], 1) for begin in range(0, len(whole), _PIECE))
        elif not index.has_bounds:
            if index.records:
                yield np.array([index.parameters["record_bytes"]], np.int64), index.records
        else:
            for number, source in enumerate(index.sources):
                for begin in range(0, source.records, _PIECE):
                    end = min(begin + _PIECE, source.records)
                    yield np.diff(np.frombuffer(index.bounds(number, begin, end + 1), np.int64)), 1
