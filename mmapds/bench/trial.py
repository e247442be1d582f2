"""One way to read a dataset, measured in a process of its own: `python -m mmapds.bench.trial`.

It takes the pickled fields of a `Trial` on its standard input, with what messages name commands and options by, and
prints what it found as JSON. A process of its own holds nothing of other trials: no maps, which would keep pages in
memory, and no objects.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain, cycle, islice
from typing import Any, NamedTuple

from ..dataset.collate import pad_collate
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import Error, OrderError, as_command
from ..loader import DataLoader
from ..loops import Waits
from ..samplers.planned import TokenBudgetBatchSampler
from ..samplers.samplers import DistributedBatchSampler
from .machine import Usage, drop_pages

COLLATE: dict[str, Callable[[Any], Any]] = {"list": list, "pad": pad_collate}
"""What makes a batch of samples, by name."""

_DRAWN = 20_000  # batches at most, before the first ones come again
_SINGLE = 200_000  # records at most, where they are read one by one

Deliver = Callable[[Iterator[list[int]]], Iterator[int]]
"""Yields the number of records in each batch, once it is there, of an iterator over batches of record numbers."""


class Trial(NamedTuple):
    """What to measure, and how."""

    kind: str
    """"single" records, "batched" ones, or the "threads" or "processes" of a loader."""
    workers: int
    sources: tuple[str, ...]
    """What `mmapds.open` takes."""
    max_tokens: int | None
    batch_size: int
    seconds: float
    """How long a pass goes on, if the records last as long."""
    is_cold: bool
    """Whether the pages of the sources are dropped from memory first."""
    collate: str
    decode: str | Decoder | None
    roots: tuple[str, ...]


def measure(trial: Trial) -> dict[str, Any]:
    """Return what a trial finds: a cold pass, if it is asked for, and a warm one over the same records."""
    dataset = open_dataset(trial.sources, decode=trial.decode, roots=trial.roots)
    sampler = _sampler(trial, dataset)
    drawn = list(islice(sampler, _DRAWN))
    if trial.kind == "single":
        drawn = [[record] for record in islice(chain.from_iterable(drawn), _SINGLE)]
    if trial.is_cold:
        drop_pages(dataset.sources)
    deliver = _deliverer(trial, dataset)
    first = _pass(deliver, drawn, trial.seconds)
    # The records that were read are in memory now, so reading them again is warm.
    warm = _pass(deliver, cycle(drawn[: first["batches"] + 1]), trial.seconds)
    return {"cold": first if trial.is_cold else None, "warm": warm}


def _sampler(trial: Trial, dataset: Dataset) -> Iterable[list[int]]:
    alone: Any = {"num_replicas": 1, "rank": 0}
    if trial.max_tokens is None:
        return DistributedBatchSampler(dataset, min(trial.batch_size, len(dataset)), **alone)
    return TokenBudgetBatchSampler(dataset, trial.max_tokens, min_length=1, oversize="drop", **alone)


def _deliverer(trial: Trial, dataset: Dataset) -> Deliver:
    if trial.kind == "single":
        return partial(_one_by_one, dataset)
    collate = _Counted(COLLATE[trial.collate])
    if trial.kind == "batched":
        return partial(_batch_by_batch, dataset, collate)
    batches = _Batches()
    workers: Any = {"workers": trial.kind, "num_workers": trial.workers}
    if trial.kind == "processes":
        workers["persistent_workers"] = True
    loader = DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **workers)
    return partial(_by_a_loader, loader, batches)


def _one_by_one(dataset: Dataset, batches: Iterator[list[int]]) -> Iterator[int]:
    for (record,) in batches:
        dataset[record]
        yield 1


def _batch_by_batch(dataset: Dataset, collate: _Counted, batches: Iterator[list[int]]) -> Iterator[int]:
    for batch in batches:
        yield collate(dataset.take(batch))[0]


def _by_a_loader(loader: DataLoader, source: _Batches, batches: Iterator[list[int]]) -> Iterator[int]:
    source.now = batches
    for count, _ in loader:
        yield count


class _Counted:
    """Collates, and says how many samples there were; it can be pickled."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, samples: Any) -> tuple[int, Any]:
        return len(samples), self._collate(samples)


class _Batches:
    """What a loader draws batches from: the iterator that was set last."""

    def __init__(self) -> None:
        self.now: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.now

    def __len__(self) -> int:
        return _DRAWN


class _UntilTold:
    """An iterator that ends once it is told to, so that workers finish what they have begun."""

    def __init__(self, batches: Iterable[list[int]]) -> None:
        self._batches = iter(batches)
        self.is_over = False

    def __iter__(self) -> _UntilTold:
        return self

    def __next__(self) -> list[int]:
        if self.is_over:
            raise StopIteration
        return next(self._batches)


def _pass(deliver: Deliver, batches: Iterable[list[int]], seconds: float) -> dict[str, Any]:
    """Return what a pass delivers from its second batch on; workers start for the first one."""
    waits, source, before = Waits(), _UntilTold(batches), Usage.now()
    begun = asked = time.perf_counter()
    start, usage = 0.0, before
    for number, records in enumerate(deliver(iter(source))):
        now = time.perf_counter()
        if number == 0:
            start = now - begun
        elif not source.is_over:
            waits.add(asked, now, records)
            if now - begun - start >= seconds:
                source.is_over = True
                usage = Usage.now()
        asked = time.perf_counter() if number == 0 else now
    if not source.is_over:
        usage = Usage.now()
    return _described(waits, start, before, usage)


def _described(waits: Waits, start: float, before: Usage, after: Usage) -> dict[str, Any]:
    found = waits.report()
    names = ("batches", "records", "seconds", "records_per_second", "wait_p50", "wait_p99", "wait_max")
    return {
        **{name: found[name] for name in names},
        "start": start,
        "memory": after.memory,
        "from_disk": None if before.read is None or after.read is None else max(after.read - before.read, 0),
    }


def main() -> int:
    """Measure the trial on standard input; print what it finds, or its error, as a line of JSON."""
    fields, sys.argv, of_command = pickle.load(sys.stdin.buffer)
    try:
        with as_command() if of_command else nullcontext():
            found = measure(Trial(*fields))
    except OrderError as error:
        found = {"error": str(error), "is_order": True}
    except Error as error:
        found = {"error": str(error)}
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
