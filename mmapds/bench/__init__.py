"""Measure how fast your own data are read, without a trainer: `bench()`, `python -m mmapds.bench`.

Each way to read them is a trial in a process of its own: records one by one, batches, and a loader with several numbers
of threads and of processes; cold, where the system can drop pages from memory, and warm.
"""

from __future__ import annotations  # help() shows them as they are written

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from .. import __version__
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import Error, OrderError, is_command
from ..orders.basic import integer
from ..storage.sources import StrPath, listed
from ..storage.workers import cores

__all__ = ["bench"]

NEAR = 0.9
"""A way that delivers this share of the best one is as good, if it needs less."""

_COLLATE = ("list", "pad")
_SPARE = 0.8  # of the memory that is available, for pages of files
_SAMPLED = 1000  # records whose sizes are looked at


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

    Args:
      source_or_index: as in `mmapds.open`; nothing is built, and nothing is written.
      max_tokens: batches of `TokenBudgetBatchSampler` with this budget; records over it are left out.
      batch_size: else batches of `DistributedBatchSampler` with so many records.
      workers: numbers of workers to try; by default 0, 1, 2, 4 and so on, up to twice the cores, or 4.
      processes: whether to try processes, too.
      seconds: how long each pass goes on; a trial has two.
      cold: whether to drop the pages of the sources from memory before each trial, where the system can. Other
        processes that read them have to wait for the disk then.
      collate: "list" leaves samples as they are, "pad" is `pad_collate`.
      decode: the decoder of samples, as in `mmapds.open`; one that can be pickled by name.
      roots: directories in which the sources of an index may lie, as in `mmapds.open`.
      progress: called with each trial, as it stands in the result.
    Returns:
      A dict that JSON can hold; docs/bench.md says what is in it.
    Raises:
      OrderError: an argument is out of range.
      Error: a record cannot be read, a trial ended without a result; what `mmapds.open` raises.
      ModuleNotFoundError: torch is missing.
    """
    if find_spec("torch") is None:
        raise ModuleNotFoundError("mmapds.bench needs torch; run: pip install 'mmapds[torch]'", name="torch")
    check_arguments(max_tokens, batch_size, workers, seconds, collate)
    sources = [os.fspath(each) for each in listed(source_or_index)]
    allowed = [os.fspath(each) for each in listed(roots, "roots")]
    dataset = open_dataset(sources, decode=decode, roots=allowed)
    if not len(dataset):
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")
    sampled = [dataset.where(at).size for at in range(0, len(dataset), max(len(dataset) // _SAMPLED, 1))]
    record_bytes = sum(sampled) / len(sampled)
    how: dict[str, Any] = {"sources": sources, "max_tokens": max_tokens, "batch_size": batch_size, "seconds": seconds}
    how |= {"cold": cold and hasattr(os, "posix_fadvise"), "collate": collate, "decode": decode, "roots": allowed}
    trials: list[dict[str, Any]] = []
    for way in _ways(default_workers() if workers is None else workers, processes=processes):
        trials.append(way | _run(way | how, record_bytes))
        progress(trials[-1])
    title = ", ".join(os.path.basename(each) or each for each in sources[:3])
    plan = f"token budget {max_tokens:,}" if max_tokens is not None else f"batches of {batch_size:,}"
    about = {"mmapds": __version__, "title": title, "plan": plan, "seconds": seconds, "record_bytes": record_bytes}
    return about | _result(dataset, trials)


def _result(dataset: Dataset, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was found, and what follows from it on this machine."""
    size, free = sum(map(os.path.getsize, dataset.sources)), number_in("/proc/meminfo", "MemAvailable:")
    available = None if free is None else free * 1024
    fits = available is None or size < _SPARE * available
    return {
        "records": len(dataset),
        "bytes": size,
        "cores": cores(),
        "available_memory": available,
        "fits": fits,
        "trials": trials,
        "recommendation": recommend(trials, fits=fits),
    }


def check_arguments(
    max_tokens: int | None, batch_size: int, workers: Sequence[int] | None, seconds: float, collate: str
) -> None:
    """Raise OrderError for arguments that are wrong whatever the data are."""
    if max_tokens is not None:
        integer("max_tokens", max_tokens, 1)
    integer("batch_size", batch_size, 1)
    for place, count in enumerate(workers or ()):
        integer(f"workers[{place}]", count, 0)
    if workers is not None and not len(workers):
        raise OrderError("workers: expected one number or more, found 0")
    if not seconds > 0:
        raise OrderError(f"seconds = {seconds!r}, expected a number above 0")
    if collate not in _COLLATE:
        raise OrderError(f"collate = {collate!r}, expected {' or '.join(map(repr, _COLLATE))}")


def default_workers() -> list[int]:
    """Return the numbers of workers that are tried: powers of two, up to twice the cores, or 4."""
    return [0, *(count for count in (1, 2, 4, 8, 16) if count <= max(2 * cores(), 4))]


def _ways(workers: Sequence[int], *, processes: bool) -> list[dict[str, Any]]:
    ways = [("single", 0), ("batched", 0), *(("threads", count) for count in dict.fromkeys(workers))]
    ways += [("processes", count) for count in dict.fromkeys(workers) if count and processes]
    return [{"kind": kind, "workers": count} for kind, count in ways]


def number_in(path: str, name: str) -> int | None:
    """Return a number that a file of /proc has; None on another system, or where the process has just ended."""
    with suppress(OSError, ValueError), open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), None)
    return None


def _run(trial: dict[str, Any], record_bytes: float) -> dict[str, Any]:
    """Measure in a process of its own; return both passes.

    Raises:
      Error: what the process raised, or that it ended without a result.
    """
    try:
        given = pickle.dumps((is_command(), trial))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(f"decode = {trial['decode']!r}, expected a function of a module ({error})") from None
    ran = subprocess.run([sys.executable, "-m", f"{__name__}.trial"], input=given, capture_output=True, check=False)
    if ran.returncode or not ran.stdout:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {ran.returncode}"]
        what = f"expected a result of the trial with {trial['workers']} workers, found {last[0]}"
        raise Error(f"{trial['kind']}: {what}")
    found: dict[str, Any] | Error = pickle.loads(ran.stdout)
    if isinstance(found, Error):
        raise found
    for each in found.values():
        if each is not None:
            each["bytes_per_second"] = each["records_per_second"] * record_bytes
    return found


def recommend(trials: Sequence[dict[str, Any]], *, fits: bool) -> dict[str, Any]:
    """Return the loader that needs least of those that deliver within 10 % of the best.

    Args:
      trials: what was measured, as `bench` returns it; those that are not of loaders are passed over.
      fits: whether the data fit into memory, so that warm passes count; else cold ones, if they were measured.
    Returns:
      A dict: `kind` and `workers`; `share` of the records a second that the best loader delivers, in `pass`, "cold" or
      "warm"; `best`, the kind and the workers of that one; `text`, which says so.
    """
    loaders = [trial for trial in trials if trial["kind"] in ("threads", "processes")]
    which = "warm" if fits or any(trial["cold"] is None for trial in loaders) else "cold"
    best = max(loaders, key=lambda trial: trial[which]["records_per_second"])
    most = best[which]["records_per_second"]
    near = [trial for trial in loaders if trial[which]["records_per_second"] >= NEAR * most]
    # Processes take memory, and what they make is sent: so any number of threads comes first. A thread reads while the
    # trainer computes, which a trial without a trainer does not see: so one is better than none.
    chosen = min(near, key=lambda trial: (trial["kind"] == "processes", trial["workers"] == 0, trial["workers"]))
    found = chosen[which]
    share = found["records_per_second"] / most if most else 1.0
    arguments = f"num_workers={chosen['workers']}" + ', workers="processes"' * (chosen["kind"] == "processes")
    text = f"mmapds.DataLoader(..., {arguments}) delivers {found['records_per_second']:,.0f} records/s {which}"
    if chosen is not best:
        why = "reads while a trainer computes" if best["workers"] == 0 else "needs less"
        text += f", {share:.0%} of {name_of(best)}, and {why}"
    if chosen["workers"] == 0:
        text += f"; each step waits about {found['wait_p50'] * 1e3:.3g} ms for its batch."
    else:
        step = 1e3 * found["seconds"] / max(found["batches"], 1)
        text += f"; a step of more than {step:.3g} ms does not wait, as a rule."
    own, other = ({"kind": each["kind"], "workers": each["workers"]} for each in (chosen, best))
    return {**own, "pass": which, "share": share, "best": other, "text": text}


def name_of(trial: dict[str, Any]) -> str:
    """Return what people call a way to read."""
    kind, workers = trial["kind"], trial["workers"]
    if kind in ("single", "batched"):
        return {"single": "ds[i]", "batched": "ds.take(batch)"}[kind]
    singular = {"threads": "thread", "processes": "process"}[kind]
    return f"{workers} {singular if workers == 1 else kind}" if workers else "num_workers=0"
