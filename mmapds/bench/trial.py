"""One way to read a dataset, measured in a process of its own: `python -m mmapds.bench.trial`.

The process holds nothing of other trials: no maps, which would keep pages in memory, and no objects. It takes a pickle
on standard input, of whether a command asks and of the arguments of `measure`. It gives a pickled result or error on
standard output.
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
from functools import partial
from itertools import chain, cycle, islice
from typing import Any

from ..dataset.collate import pad_collate
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import Error, as_command
from ..loader import DataLoader
from ..loops import Waits
from ..samplers.planned import TokenBudgetBatchSampler
from ..samplers.samplers import DistributedBatchSampler
from . import number_in

COLLATE: dict[str, Callable[[Any], Any]] = {"list": list, "pad": pad_collate}
"""What makes a batch of samples, by name."""

_DRAWN = 20_000  # batches at most, before the first ones come again
_SINGLE = 200_000  # records at most, where they are read one by one
_REPORTED = ("batches", "records", "seconds", "records_per_second", "wait_p50", "wait_p99", "wait_max")


def measure(
    *,
    kind: str,
    workers: int,
    sources: list[str],
    max_tokens: int | None,
    batch_size: int,
    seconds: float,
    cold: bool,
    collate: str,
    decode: str | Decoder | None,
    roots: list[str],
) -> dict[str, Any]:
    """Return what a trial finds: a cold pass, if it is asked for, and a warm one over the same records.

    Args:
      kind: "single" records, "batched" ones, or the "threads" or "processes" of a loader.
      seconds: how long a pass goes on, if the records last as long.

    See `bench` for the others.
    """
    dataset = open_dataset(sources, decode=decode, roots=roots)
    alone: Any = {"num_replicas": 1, "rank": 0}
    if max_tokens is None:
        sampler: Any = DistributedBatchSampler(dataset, min(batch_size, len(dataset)), **alone)
    else:
        sampler = TokenBudgetBatchSampler(dataset, max_tokens, min_length=1, oversize="drop", **alone)
    drawn = list(islice(sampler, _DRAWN))
    if kind == "single":
        drawn = [[record] for record in islice(chain.from_iterable(drawn), _SINGLE)]
    if cold:
        drop_pages(dataset.sources)
    deliver = partial(_delivered, dataset, kind, workers, COLLATE[collate])
    first = _pass(deliver, drawn, seconds)
    # The records that were read are in memory now, so reading them again is warm.
    warm = _pass(deliver, cycle(drawn[: first["batches"] + 1]), seconds)
    return {"cold": first if cold else None, "warm": warm}


def drop_pages(paths: Iterable[str]) -> None:
    """Ask the system to drop the pages of files from memory; the files stay as they are.

    It keeps pages that any process has mapped and touched, and those of file systems that are memory.
    """
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            os.fsync(file)  # pages that are not written yet would be kept
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _delivered(
    dataset: Dataset, kind: str, workers: int, collate: Callable[[Any], Any], batches: Iterator[list[int]]
) -> Iterable[Any]:
    """Return something for each batch of record numbers, in their order, once its samples are there."""
    if kind == "single":
        return (dataset[record] for (record,) in batches)
    if kind == "batched":
        return (collate(dataset.take(batch)) for batch in batches)
    how: Any = {"workers": kind, "num_workers": workers}
    return DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **how)


def _pass(
    deliver: Callable[[Iterator[list[int]]], Iterable[Any]], batches: Iterable[list[int]], seconds: float
) -> dict[str, Any]:
    """Return what a pass delivers from its second batch on; workers start for the first one."""
    waits, sizes, is_over = Waits(), deque[int](), False

    def drawn() -> Iterator[list[int]]:
        for batch in batches:
            if is_over:  # so workers finish what they have begun
                return
            sizes.append(len(batch))
            yield batch

    before, start, after = _usage(), 0.0, None
    begun = asked = time.perf_counter()
    for number, _ in enumerate(deliver(drawn())):
        now, records = time.perf_counter(), sizes.popleft()
        if number == 0:
            start, now = now - begun, time.perf_counter()
        elif not is_over:
            waits.add(asked, now, records)
            if now - begun - start >= seconds:
                is_over, after = True, _usage()
        asked = now
    (_, read), (memory, read_in_the_end) = before, after or _usage()
    from_disk = None if read is None or read_in_the_end is None else max(read_in_the_end - read, 0)
    found = waits.report()
    return {**{name: found[name] for name in _REPORTED}, "start": start, "memory": memory, "from_disk": from_disk}


def _usage() -> tuple[int | None, int | None]:
    """Return the bytes of memory of this process and its workers, and those that they have read from a disk.

    Memory is what is their own: anonymous pages, not those of files, which all processes share.
    """
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]

    def total(file: str, name: str, unit: int) -> int | None:
        found = [number for pid in pids if (number := number_in(f"/proc/{pid}/{file}", name)) is not None]
        return sum(found) * unit if found else None

    return total("smaps_rollup", "Anonymous:", 1024), total("io", "read_bytes:", 1)


if __name__ == "__main__":
    is_of_command, arguments = pickle.load(sys.stdin.buffer)
    results, sys.stdout = sys.stdout.buffer, sys.stderr  # decoders of users may print
    try:
        with as_command() if is_of_command else nullcontext():
            outcome: Any = measure(**arguments)
    except Error as error:
        outcome = error
    results.write(pickle.dumps(outcome))
    results.flush()
