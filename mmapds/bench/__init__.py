"""Measure how fast your own data are read, without a trainer: `bench()`, `python -m mmapds.bench`.

Each way to read them is a trial in a process of its own: records one by one, batches, and a loader with several numbers
of threads and of processes; cold, where the system can drop pages from memory, and warm.
"""

from __future__ import annotations  # help() shows them as they are written

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any

from .. import __version__
from ..dataset.dataset import Dataset
from ..dataset.decode import Decoder
from ..dataset.opening import open as open_dataset
from ..errors import Error, OrderError, is_command, names_its_arguments
from ..orders.basic import integer
from ..storage.sources import StrPath, listed
from .choose import recommend
from .machine import available_memory, can_drop_pages, cores

__all__ = ["bench"]

_SPARE = 0.8  # of the memory that is available, for pages of files
_COLLATE = ("list", "pad")
_SAMPLED = 1000  # records whose sizes are looked at


@names_its_arguments("bench", error=OrderError)
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
    _check_pickles(decode)
    dataset = open_dataset(sources, decode=decode, roots=allowed)
    if not len(dataset):
        raise OrderError("dataset: expected one sample or more, found 0 (the dataset or the view is empty)")
    is_cold = cold and can_drop_pages()
    common = (sources, max_tokens, batch_size, seconds, is_cold, collate, decode, allowed)
    record_bytes, trials = _mean_size(dataset), []
    for kind, count in _ways(default_workers() if workers is None else workers, processes=processes):
        found = {"kind": kind, "workers": count, **_run((kind, count, *common), record_bytes)}
        trials.append(found)
        progress(found)
    plan = f"token budget {max_tokens:,}" if max_tokens is not None else f"batches of {batch_size:,}"
    title = ", ".join(os.path.basename(each) or each for each in sources[:3])
    about = {"mmapds": __version__, "title": title, "plan": plan, "seconds": seconds, "record_bytes": record_bytes}
    return about | _result(dataset, trials)


def _check_pickles(decode: str | Decoder | None) -> None:
    """Raise Error for a decoder that the processes of trials could not load."""
    try:
        pickle.dumps(decode)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise Error(
            f"decode = {decode!r}, expected a decoder that another process can load ({error}); define the function in "
            "a module"
        ) from None


def _result(dataset: Dataset, trials: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what was found, and what follows from it on this machine."""
    size, available = sum(map(os.path.getsize, dataset.sources)), available_memory()
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
    most = max(2 * cores(), 4)
    return [0, *(2**power for power in range(most.bit_length()) if 2**power <= min(most, 16))]


def _ways(workers: Sequence[int], *, processes: bool) -> list[tuple[str, int]]:
    found = [("single", 0), ("batched", 0), *(("threads", count) for count in dict.fromkeys(workers))]
    return found + [("processes", count) for count in dict.fromkeys(workers) if count and processes]


def _mean_size(dataset: Dataset) -> float:
    """Return the mean size of records in bytes, of some that are spread evenly."""
    step = max(len(dataset) // _SAMPLED, 1)
    sizes = [dataset.where(record).size for record in range(0, len(dataset), step)]
    return float(sum(sizes) / len(sizes))


def _run(trial: tuple[Any, ...], record_bytes: float) -> dict[str, Any]:
    """Measure in a process of its own; return both passes.

    Raises:
      Error: what the process raised, or that it ended without a result.
    """
    command = [sys.executable, "-m", f"{__name__}.trial"]
    words = (getattr(sys, "argv", [])[:1], is_command())  # of whoever started this, for messages
    ran = subprocess.run(command, input=pickle.dumps((trial, *words)), capture_output=True, check=False)
    lines = ran.stdout.splitlines()
    if ran.returncode or not lines:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or [f"status {ran.returncode}"]
        raise Error(f"{trial[0]}: expected a result of the trial with {trial[1]} workers, found {last[0]}")
    found: dict[str, Any] = json.loads(lines[-1])
    if "error" in found:
        raise (OrderError if found.get("is_order") else Error)(found["error"])
    for each in (found["cold"], found["warm"]):
        if each is not None:
            each["bytes_per_second"] = each["records_per_second"] * record_bytes
    return found
