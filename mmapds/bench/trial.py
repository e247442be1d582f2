"""One way to read a dataset, measured in a process of its own: `python -m mmapds.bench.trial`.

The process holds nothing of other trials: no maps, which would keep pages in memory, and no objects. It takes a pickled
`Trial` on standard input, and gives a pickled result or error on standard output.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from itertools import chain, cycle, islice
from typing import Any

from ..dataset.collate import pad_collate
from ..dataset.dataset import Dataset
from ..dataset.opening import open as open_dataset
from ..errors import Error, as_command
from ..loader import DataLoader
from ..loops import Waits
from ..samplers.planned import TokenBudgetBatchSampler
from ..samplers.samplers import DistributedBatchSampler
from . import Trial, number_in

COLLATE: dict[str, Callable[[Any], Any]] = {"list": list, "pad": pad_collate}
"""What makes a batch of samples, by name."""

_DRAWN = 20_000  # batches at most, before the first ones come again
_SINGLE = 200_000  # records at most, where they are read one by one

Deliver = Callable[[Iterable[list[int]]], Iterable[Any]]
"""Yields something for each batch of record numbers, in their order, once its samples are there."""


def measure(trial: Trial) -> dict[str, Any]:
    """Return what a trial finds: a cold pass, if it is asked for, and a warm one over the same records."""
    dataset = open_dataset(trial.sources, decode=trial.decode, roots=trial.roots)
    drawn = list(islice(_sampler(trial, dataset), _DRAWN))
    if trial.kind == "single":
        drawn = [[record] for record in islice(chain.from_iterable(drawn), _SINGLE)]
    if trial.is_cold:
        drop_pages(dataset.sources)
    deliver = _deliverer(trial, dataset)
    first = _pass(deliver, drawn, trial.seconds)
    # The records that were read are in memory now, so reading them again is warm.
    warm = _pass(deliver, cycle(drawn[: first["batches"] + 1]), trial.seconds)
    return {"cold": first if trial.is_cold else None, "warm": warm}


def drop_pages(paths: Iterable[str]) -> None:
    """Ask the system to drop the pages of files from memory; the files stay as they are.

    It keeps pages that any process has mapped and touched, and those of file systems that are memory.
    """
    for path in paths:
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # pages that are not written yet would be kept
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _sampler(trial: Trial, dataset: Dataset) -> Iterable[list[int]]:
    alone: Any = {"num_replicas": 1, "rank": 0}
    if trial.max_tokens is None:
        return DistributedBatchSampler(dataset, min(trial.batch_size, len(dataset)), **alone)
    return TokenBudgetBatchSampler(dataset, trial.max_tokens, min_length=1, oversize="drop", **alone)


def _deliverer(trial: Trial, dataset: Dataset) -> Deliver:
    collate = COLLATE[trial.collate]
    if trial.kind == "single":
        return lambda batches: (dataset[record] for (record,) in batches)
    if trial.kind == "batched":
        return lambda batches: (collate(dataset.take(batch)) for batch in batches)
    source = _Batches()
    workers: Any = {"workers": trial.kind, "num_workers": trial.workers}
    if trial.kind == "processes":
        workers["persistent_workers"] = True
    loader = DataLoader(dataset, batch_sampler=source, collate_fn=collate, **workers)

    def by_the_loader(batches: Iterable[list[int]]) -> Iterable[Any]:
        source.now = iter(batches)
        return loader

    return by_the_loader


class _Batches:
    """What a loader draws batches from: the iterator that was set last."""

    def __init__(self) -> None:
        self.now: Iterator[list[int]] = iter(())

    def __iter__(self) -> Iterator[list[int]]:
        return self.now

    def __len__(self) -> int:
        return _DRAWN


def _pass(deliver: Deliver, batches: Iterable[list[int]], seconds: float) -> dict[str, Any]:
    """Return what a pass delivers from its second batch on; workers start for the first one."""
    waits, sizes, is_over = Waits(), deque[int](), False

    def drawn() -> Iterator[list[int]]:
        for batch in batches:
            if is_over:  # so workers finish what they have begun
                return
            sizes.append(len(batch))
            yield batch

    read, start, memory, read_in_the_end = _usage()[1], 0.0, None, None
    begun = asked = time.perf_counter()
    for number, _ in enumerate(deliver(drawn())):
        now, records = time.perf_counter(), sizes.popleft()
        if number == 0:
            start, now = now - begun, time.perf_counter()
        elif not is_over:
            waits.add(asked, now, records)
            if now - begun - start >= seconds:
                is_over = True
                memory, read_in_the_end = _usage()
        asked = now
    if not is_over:
        memory, read_in_the_end = _usage()
    found = waits.report()
    names = ("batches", "records", "seconds", "records_per_second", "wait_p50", "wait_p99", "wait_max")
    from_disk = None if read is None or read_in_the_end is None else max(read_in_the_end - read, 0)
    return {**{name: found[name] for name in names}, "start": start, "memory": memory, "from_disk": from_disk}


def _usage() -> tuple[int | None, int | None]:
    """Return the bytes of memory of this process and its workers, and those that they have read from a disk.

    Memory is what is their own: anonymous pages, not those of files, which all processes share.
    """
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]

    def total(file: str, name: str, unit: int) -> int | None:
        found = [number for pid in pids if (number := number_in(f"/proc/{pid}/{file}", name)) is not None]
        return sum(found) * unit if found else None

    return total("smaps_rollup", "Anonymous:", 1024), total("io", "read_bytes:", 1)


def main() -> int:
    """Measure the trial on standard input; give what it finds, or its error."""
    fields, sys.argv, of_command = pickle.load(sys.stdin.buffer)
    results, sys.stdout = sys.stdout.buffer, sys.stderr  # decoders of users may print
    try:
        with as_command() if of_command else nullcontext():
            found: Any = measure(Trial(*fields))
    except Error as error:
        found = error
    results.write(pickle.dumps(found))
    results.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
