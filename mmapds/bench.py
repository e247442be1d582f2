"""Measure how fast your data are read, without a trainer: `bench()` and `python -m mmapds bench`.

Each way of reading is a trial in a new process, without maps and objects of other trials.
"""

from __future__ import annotations  # help() shows them as they are written

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from itertools import chain, cycle, islice, tee
from statistics import fmean
from typing import Any

import numpy as np

from . import __version__
from .dataset.dataset import Dataset
from .dataset.decode import Decoder
from .dataset.opening import open as open_dataset
from .errors import Error, OrderError
from .orders.basic import Chunked, integer
from .storage.sources import StrPath, listed
from .storage.workers import cores

__all__ = ["bench"]

NEAR = 0.9  # prefer a cheaper loader with at least this share of the best rate
_COLLATE = ("list", "pad")
_SPARE = 0.8  # share of the available memory for pages of files
_SAMPLED = 1000  # records sampled for the mean size
_DRAWN = 20_000  # the most batches to plan; a trial then repeats them
_SINGLE = 200_000  # the same for records read one by one
_TRIAL = f"from {__name__} import run_trial; run_trial()"


def bench(
    source_or_index: StrPath | Iterable[StrPath],
    *,
    max_tokens: int | None = None,
    batch_size: int = 32,
    workers: Sequence[int] | None = None,
    processes: bool = True,
    seconds: float = 2.0,
    cold: bool = True,
    collate: str = "list",
    decode: str | Decoder | None = None,
    roots: StrPath | Iterable[StrPath] = (),
    progress: Callable[[dict[str, Any]], object] = lambda trial: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Measure how fast a dataset is read, and say which loader to use.

        print(mmapds.bench.bench("train.jsonl", workers=[0, 2], seconds=0.1, processes=False, cold=False))

    Args:
      source_or_index: as in `mmapds.open`; this function builds and writes nothing.
      max_tokens: use `TokenBudgetBatchSampler` with this budget; records over it are dropped.
      batch_size: without `max_tokens`, use `DistributedBatchSampler` with this number of records.
      workers: numbers of workers to try; by default 0, 1, 2, 4, 8 and 16, up to twice the cores or 4.
      processes: whether to try worker processes too.
      seconds: duration of each pass; a trial has a cold and a warm pass.
      cold: whether to drop the pages of the sources from memory before each trial, if the system can. Other processes
        that read the sources then wait for the disk.
      collate: "list" makes lists of samples, "pad" is `pad_collate`.
      decode: the decoder of samples, as in `mmapds.open`; it must be picklable by name.
      roots: directories that may hold the sources of an index, as in `mmapds.open`.
      progress: called with each finished trial, as in the result.
    Returns:
      A dict that JSON can hold; docs/bench.md describes it.
    Raises:
      OrderError: an argument is out of range.
      Error: a record cannot be read, a trial ended without a result, or `mmapds.open` raises it.
      ModuleNotFoundError: torch is missing.
    """
    if find_spec("torch") is None:
        raise ModuleNotFoundError("mmapds.bench needs torch; run: pip install torch", name="torch")
    batch_size = integer("batch_size", batch_size, 1)
    max_tokens = None if max_tokens is None else integer("max_tokens", max_tokens, 1)
    if not seconds > 0:
        raise OrderError(f"seconds = {seconds!r}, expected a number above 0")
    if collate not in _COLLATE:
        raise OrderError(f"collate = {collate!r}, expected {' or '.join(map(repr, _COLLATE))}")
    sources = [os.fspath(each) for each in listed(source_or_index)]
    allowed = [os.fspath(each) for each in listed(roots)]
    dataset = open_dataset(sources, decode=decode, roots=allowed)
    if not len(dataset):
        raise OrderError("dataset: expected one sample or more, found 0")
    how: dict[str, Any] = {"sources": sources, "max_tokens": max_tokens, "batch_size": batch_size, "seconds": seconds}
    how |= {"cold": cold and hasattr(os, "posix_fadvise"), "collate": collate, "decode": decode, "roots": allowed}
    counts = dict.fromkeys(workers or [0, *(count for count in (1, 2, 4, 8, 16) if count <= max(2 * cores(), 4))])
    ways = [("single", 0), ("batched", 0), *(("threads", count) for count in counts)]
    ways += [("processes", count) for count in counts if count and processes]
    records, size = len(dataset), sum(map(os.path.getsize, dataset.sources))
    record_bytes = fmean(dataset.where(at).size for at in range(0, records, max(records // _SAMPLED, 1)))
    is_by_block, trials = block_chunks(dataset) is not None, list[dict[str, Any]]()
    del dataset  # the system keeps pages that are mapped
    for kind, count in ways:
        way = {"kind": kind, "workers": count}
        trials.append(way | _run(way | how, record_bytes, size / records))
        progress(trials[-1])
    free = _number_in("/proc/meminfo", "MemAvailable:")
    available = None if free is None else free * 1024
    fits = available is None or size < _SPARE * available
    return {
        "mmapds": __version__,
        "title": ", ".join(os.path.basename(each) or each for each in sources[:3]),
        "plan": (f"batches of {batch_size:,}" if max_tokens is None else f"token budget {max_tokens:,}")
        + (", chunks of blocks" if is_by_block else ""),
        "seconds": seconds,
        "record_bytes": record_bytes,
        "records": records,
        "bytes": size,
        "cores": cores(),
        "available_memory": available,
        "fits": fits,
        "trials": trials,
        "recommendation": recommend(trials, fits=fits),
    }


def _run(trial: dict[str, Any], record_bytes: float, stored_bytes: float) -> dict[str, Any]:
    """Run a trial in a new process; return both passes, or raise its error.

    A cold pass that read less than half of its bytes from a disk was warm, so it is None.

    Args:
      record_bytes, stored_bytes: mean size of a record, and of its share of the files.
    """
    try:
        given = pickle.dumps(trial)
    except (AttributeError, TypeError, pickle.PicklingError) as error:
        raise Error(f"decode = {trial['decode']!r}, expected a function of a module ({error})") from None
    ran = subprocess.run([sys.executable, "-c", _TRIAL], input=given, capture_output=True, check=False)
    if ran.returncode or not ran.stdout:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {ran.returncode}"]
        what = f"expected a result of the trial with {trial['workers']} workers, found {last[0]}"
        raise Error(f"{trial['kind']}: {what}")
    found: dict[str, Any] = pickle.loads(ran.stdout)
    for each in found.values():
        if each is not None:
            each["bytes_per_second"] = each["records_per_second"] * record_bytes
    cold = found["cold"]
    if cold is not None and cold["from_disk"] is not None and 2 * cold["from_disk"] < cold["records"] * stored_bytes:
        found["cold"] = None
    return found


def recommend(trials: Sequence[dict[str, Any]], *, fits: bool) -> dict[str, Any]:
    """Return the cheapest loader within 10 % of the best rate; by cold passes if the data do not fit in memory."""
    loaders = [trial for trial in trials if trial["kind"] in ("threads", "processes")]
    which = "warm" if fits or any(trial["cold"] is None for trial in loaders) else "cold"

    def rate(trial: dict[str, Any]) -> float:
        return float(trial[which]["records_per_second"])

    best = max(loaders, key=rate)
    near = [trial for trial in loaders if rate(trial) >= NEAR * rate(best)]
    # Prefer threads to processes, which take memory and must send their batches. Prefer one thread to none: it reads
    # while the trainer computes, and a trial without a trainer cannot measure that.
    chosen = min(near, key=lambda trial: (trial["kind"] == "processes", trial["workers"] == 0, trial["workers"]))
    found, share = chosen[which], rate(chosen) / rate(best) if rate(best) else 1.0
    arguments = f"num_workers={chosen['workers']}" + ', workers="processes"' * (chosen["kind"] == "processes")
    text = f"mmapds.DataLoader(..., {arguments}) delivers {rate(chosen):,.0f} records/s {which}"
    text += "" if chosen is best else f", {share:.0%} of {name_of(best)}"
    if chosen["workers"] == 0:
        text += f"; each step waits about {found['wait_p50'] * 1e3:.3g} ms for its batch."
    else:
        step = 1e3 * found["seconds"] / max(found["batches"], 1)
        text += f"; a step of more than {step:.3g} ms does not wait, as a rule."
    own, other = ({"kind": each["kind"], "workers": each["workers"]} for each in (chosen, best))
    return {**own, "pass": which, "share": share, "best": other, "text": text}


def name_of(trial: dict[str, Any]) -> str:
    """Return the name of a trial for people."""
    kind, workers = trial["kind"], trial["workers"]
    if kind in ("single", "batched"):
        return {"single": "ds[i]", "batched": "ds.take(batch)"}[kind]
    several = f"{workers} {kind}" if workers else "num_workers=0"
    return {"1 threads": "1 thread", "1 processes": "1 process"}.get(several, several)


# ---- in the process of a trial


def run_trial() -> None:
    """Read a trial from standard input, and write what it finds to standard output, both pickled."""
    results, sys.stdout = sys.stdout.buffer, sys.stderr  # what user decoders print must not mix with the results
    try:
        found = measure(pickle.load(sys.stdin.buffer))
    except Error as error:
        sys.exit(" ".join(str(error).splitlines()))
    results.write(pickle.dumps(found))
    results.flush()


def measure(trial: dict[str, Any]) -> dict[str, Any]:
    """Run a trial; return a cold pass if requested, and a warm pass over the same records."""
    from .dataset.collate import pad_collate  # needs torch, as below
    from .samplers.planned import TokenBudgetBatchSampler
    from .samplers.samplers import DistributedBatchSampler

    dataset = open_dataset(trial["sources"], decode=trial["decode"], roots=trial["roots"])
    how: Any = {"num_replicas": 1, "rank": 0, "order": block_chunks(dataset)}
    if trial["max_tokens"] is None:
        sampler: Any = DistributedBatchSampler(dataset, min(trial["batch_size"], len(dataset)), **how)
    else:
        how |= {"planner": "window" if how["order"] else "bucket", "min_length": 1, "oversize": "drop"}
        sampler = TokenBudgetBatchSampler(dataset, trial["max_tokens"], **how)
    drawn = list(islice(sampler, _DRAWN))
    if trial["kind"] == "single":
        drawn = [[record] for record in islice(chain.from_iterable(drawn), _SINGLE)]
    if trial["cold"]:
        drop_pages(dataset.sources)
    collate: Any = pad_collate if trial["collate"] == "pad" else list
    deliver = partial(_delivered, dataset, trial, collate)
    first = _pass(deliver, drawn, trial["seconds"])
    # The records that were read are in memory now, so reading them again is warm.
    warm = _pass(deliver, cycle(drawn[: first["batches"] + 1]), trial["seconds"])
    return {"cold": first if trial["cold"] else None, "warm": warm}


def block_chunks(dataset: Dataset) -> Chunked | None:
    """Return an order by blocks if the sources are compressed and exceed the cache; else None."""
    if dataset._decodes(np.zeros(1, np.int64), 0) == (0, 0):
        return None
    with suppress(Error):  # other sources are not compressed
        return Chunked(dataset, "block")
    return None


def drop_pages(paths: Iterable[str]) -> None:
    """Ask the system to drop the pages of files from memory; it keeps pages that a process has mapped."""
    for path in paths:
        with suppress(OSError), open(path, "rb") as file:
            os.fsync(file)  # the system keeps dirty pages
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _delivered(
    dataset: Dataset, trial: dict[str, Any], collate: Callable[[Any], Any], batches: Iterator[list[int]]
) -> Iterator[Any]:
    """Return an iterator with an item for each batch of record numbers, in order."""
    if trial["kind"] == "single":
        return (dataset[record] for (record,) in batches)
    if trial["kind"] == "batched":
        return (collate(dataset.take(batch)) for batch in batches)
    from .loader import DataLoader  # needs torch

    how: Any = {"workers": trial["kind"], "num_workers": trial["workers"]}
    return iter(DataLoader(dataset, batch_sampler=batches, collate_fn=collate, **how))


def _pass(
    deliver: Callable[[Iterator[list[int]]], Iterator[Any]], batches: Iterable[list[int]], seconds: float
) -> dict[str, Any]:
    """Measure a pass from its second batch on, because workers start for the first."""
    from .prefetch import Waits  # needs torch

    drawn, given = tee(batches)
    waits, (_, read), begun = Waits(), _usage(), time.perf_counter()
    delivered = deliver(given)
    next(delivered)
    asked = start = time.perf_counter()
    for batch, _ in zip(islice(drawn, 1, None), delivered):  # noqa: B905 - either may end first
        waits.add(asked, time.perf_counter(), len(batch))
        asked = time.perf_counter()
        if asked - start >= seconds:
            break
    memory, read_in_the_end = _usage()  # before the workers end
    from_disk = None if read is None or read_in_the_end is None else max(read_in_the_end - read, 0)
    return {**waits.report(), "start": start - begun, "memory": memory, "from_disk": from_disk}


def _usage() -> tuple[int | None, int | None]:
    """Return anonymous memory, and bytes read from disks, of this process and its workers."""
    pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]

    def total(file: str, name: str, unit: int) -> int | None:
        found = [number for pid in pids if (number := _number_in(f"/proc/{pid}/{file}", name)) is not None]
        return sum(found) * unit if found else None

    return total("smaps_rollup", "Anonymous:", 1024), total("io", "read_bytes:", 1)


def _number_in(path: str, name: str) -> int | None:
    """Return a number from a file in /proc; None on other systems, or if the process has ended."""
    with suppress(OSError, ValueError), open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), None)
    return None
