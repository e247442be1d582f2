"""What is asked of a sampler, each in a process of its own."""

import itertools
import time
from importlib.metadata import version

import numpy as np
from xxhash import xxh3_64

from bench.support.memory import anonymous

from ..job import rival

REPLICAS, RANK = 8, 3
TAKEN = 1_000  # indices that are looked at


def described(name):
    """Return what the table says of a sampler."""
    found = rival("samplers", name)
    return {"title": found.TITLE, "version": found.PACKAGE and version(found.PACKAGE), "cannot": {}}


def expected(n):
    """Return the right answer: all indices come, over all ranks, and another epoch has another order."""
    return {"cover": xxh3_64(np.arange(n)).hexdigest(), "ranks": REPLICAS, "differs": True, "again": True}


def answers(name, n):
    """Return a digest of the indices of all ranks, sorted, each once, and whether epochs differ and can be repeated."""
    module = rival("samplers", name)

    def epoch(number):
        return [list(module.indices(n, REPLICAS, rank, number)) for rank in range(REPLICAS)]

    one = epoch(1)
    found = np.unique(np.concatenate([np.array(each, np.int64) for each in one]))
    ranks = len({len(each) for each in one} - {n // REPLICAS, -(-n // REPLICAS)})
    right = {
        "cover": xxh3_64(found).hexdigest(),
        "ranks": REPLICAS - ranks,
        "differs": epoch(2) != one,
        "again": epoch(1) == one,
    }
    return {"answers": right} | described(name)


def measure(name, n):
    """Return the seconds to the first index of an epoch, and the memory that is held from then on."""
    module = rival("samplers", name)
    next(iter(module.indices(10_000, REPLICAS, RANK, 0)))  # what is loaded at first use
    before, begin = anonymous(), time.perf_counter()
    indices = iter(module.indices(n, REPLICAS, RANK, 1))
    taken = [next(indices)]
    seconds = time.perf_counter() - begin
    taken += itertools.islice(indices, TAKEN)
    if len(set(taken)) < len(taken) or not 0 <= min(taken) <= max(taken) < n:
        raise AssertionError(f"{name}: not distinct indices below {n}: {taken[:10]} ...")
    return {"seconds": seconds, "memory": anonymous() - before, "before": before}
