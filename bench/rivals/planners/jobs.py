"""What is asked of a planner, each in a process of its own."""

import pickle
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from xxhash import xxh3_64

from bench.support.data import log_normal
from bench.support.memory import anonymous

from ..job import rival
from .planner import BUDGET, PACK

FEW = 1_000  # records
STATE = "state.pickle"


def _planner(name, n, folder):
    return rival("planners", name).Planner(log_normal(n), Path(folder))


def _load(name):
    """Plan a few records, so that modules which are loaded late are there before anything is timed."""
    with tempfile.TemporaryDirectory() as place:
        planner = _planner(name, FEW, place)
        planner.prepare()
        next(iter(planner.batches()))


def described(name):
    """Return what the table says of a planner."""
    found = rival("planners", name).Planner
    return {"title": found.title, "version": found.package and version(found.package), "cannot": found.cannot}


def prepare(name, n, folder):
    """Write what the library reads."""
    _planner(name, n, folder).prepare()
    return {}


def expected(n):
    """Return the right answer: each record comes once."""
    return {"cover": xxh3_64(np.arange(n)).hexdigest()}


def answers(name, n, folder):
    """Return a digest of the sorted record numbers of an epoch."""
    found = [record for batch in _planner(name, n, folder).batches() for record in batch]
    return {"answers": {"cover": xxh3_64(np.sort(np.array(found, np.int64))).hexdigest()}} | described(name)


def plan(name, n, folder):
    """Return the seconds to the first batch of an epoch, and the memory that is held then."""
    _load(name)
    planner = _planner(name, n, folder)
    before, begin = anonymous(), time.perf_counter()
    batches = iter(planner.batches())
    next(batches)
    return {
        "seconds": time.perf_counter() - begin,
        "memory": anonymous() - before,
        "before": before,
    }


def epoch(name, n, folder, is_packed):
    """Return how full batches are, how much of them is padding, and how many exceed the budget."""
    _load(name)
    planner = _planner(name, n, folder)
    budget = PACK if is_packed else BUDGET
    tokens = padded = batches = over = 0
    begin = time.perf_counter()
    for batch in planner.batches():
        lengths = planner.lengths[batch]
        real = int(lengths.sum())
        size = budget if is_packed else int(lengths.max()) * len(batch)
        over += (real if is_packed else size) > budget
        tokens, padded, batches = tokens + real, padded + size, batches + 1
    seconds = time.perf_counter() - begin
    return {
        "batches": batches,
        "fill": tokens / (batches * budget),
        "padding": 1 - tokens / padded,
        "over": over / batches,
        "seconds": seconds,
    }


def save(name, n, folder, step):
    """Write a checkpoint after some batches, and return the batch that comes next."""
    planner = _planner(name, n, folder)
    Path(folder, STATE).write_bytes(pickle.dumps(planner.state(step)))
    batches = planner.batches()
    for _ in range(step):
        next(batches)
    return {"batch": next(batches)}


def resume(name, n, folder):
    """Return the batch after the checkpoint, and the seconds to it."""
    _load(name)
    planner = _planner(name, n, folder)
    state = pickle.loads(Path(folder, STATE).read_bytes())
    begin = time.perf_counter()
    batch = next(iter(planner.resumed(state)))
    return {"seconds": time.perf_counter() - begin, "batch": batch}
