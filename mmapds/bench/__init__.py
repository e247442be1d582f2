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
from typing import Any, NamedTuple

from .. import __version__
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import Error, OrderError, is_command
from ..orders.basic import integer
from ..storage.sources import StrPath, listed
from ..storage.threads import cores
from .choose import recommend

__all__ = ["bench"]

_COLLATE = ("list", "pad")
_SPARE = 0.8  # of the memory that is available, for pages of files
_SAMPLED = 1000  # records whose sizes are looked at


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
    sources = tuple(os.fspath(each) for each in listed(source_or_index))
    allowed = tuple(os.fspath(each) for each in listed(roots, "roots"))
    try:
        pickle.dumps(decode)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        what = f"expected a decoder that another process can load ({error})"
        raise Error(f"decode = {decode!r}, {what}; define the function in a module") from None
    dataset = open_dataset(sources, decode=decode, roots=allowed)
    if not len(dataset):
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")
    is_cold = cold and hasattr(os, "posix_fadvise")
    record_bytes, trials = _mean_size(dataset), []
    for kind, count in _ways(default_workers() if workers is None else workers, processes=processes):
        trial = Trial(kind, count, sources, max_tokens, batch_size, seconds, is_cold, collate, decode, allowed)
        trials.append({"kind": kind, "workers": count, **_run(trial, record_bytes)})
        progress(trials[-1])
    plan = f"token budget {max_tokens:,}" if max_tokens is not None else f"batches of {batch_size:,}"
    title = ", ".join(os.path.basename(each) or each for each in sources[:3])
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


def _ways(workers: Sequence[int], *, processes: bool) -> list[tuple[str, int]]:
    found = [("single", 0), ("batched", 0), *(("threads", count) for count in dict.fromkeys(workers))]
    return found + [("processes", count) for count in dict.fromkeys(workers) if count and processes]


def number_in(path: str, name: str) -> int | None:
    """Return a number that a file of /proc has; None on another system, or where the process has just ended."""
    with suppress(OSError, ValueError), open(path) as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name)), None)
    return None


def _mean_size(dataset: Dataset) -> float:
    """Return the mean size of records in bytes, of some that are spread evenly."""
    step = max(len(dataset) // _SAMPLED, 1)
    sizes = [dataset.where(record).size for record in range(0, len(dataset), step)]
    return float(sum(sizes) / len(sizes))


def _run(trial: Trial, record_bytes: float) -> dict[str, Any]:
    """Measure in a process of its own; return both passes.

    Raises:
      Error: what the process raised, or that it ended without a result.
    """
    names = (getattr(sys, "argv", [])[:1], is_command())  # of whoever started this, for messages
    command = [sys.executable, "-m", f"{__name__}.trial"]
    ran = subprocess.run(command, input=pickle.dumps((tuple(trial), *names)), capture_output=True, check=False)
    if ran.returncode or not ran.stdout:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {ran.returncode}"]
        raise Error(f"{trial.kind}: expected a result of the trial with {trial.workers} workers, found {last[0]}")
    found = pickle.loads(ran.stdout)
    if isinstance(found, Error):
        raise found
    for each in (found["cold"], found["warm"]):
        if each is not None:
            each["bytes_per_second"] = each["records_per_second"] * record_bytes
    result: dict[str, Any] = found
    return result
