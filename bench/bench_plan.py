"""Token budgets: what starting, resuming and iterating cost at 10^8 samples."""

import time
from collections import deque
from functools import partial
from itertools import islice

import numpy as np

from bench.support.data import log_normal
from bench.support.memory import anonymous
from bench.support.timing import timed
from mmapds import TokenBudgetBatchSampler
from mmapds.index.lengths import sorted_lengths

BUDGET = 16_384
MS = 1e3


def test_at_1e8(large, row):
    before = anonymous()
    seconds = {}
    begin = time.perf_counter()
    sampler = TokenBudgetBatchSampler(large, BUDGET, num_replicas=8, rank=3)
    seconds["constructing"] = time.perf_counter() - begin
    seconds["set_epoch"] = timed(lambda: sampler.set_epoch(1))
    seconds["the first batch"] = timed(lambda: next(iter(sampler)))
    state = sampler.state_dict(step=len(sampler) // 2)
    seconds["resuming in the middle, first batch included"] = timed(
        lambda: (sampler.load_state_dict(state), next(iter(sampler)))
    )
    for what, each in seconds.items():
        row(f"n = 10^8, {what}", "", f"{each * MS:.2f} ms", "<= 5 ms")
    batches = iter(sampler)
    next(batches)
    taken = 200_000
    rate = taken / timed(partial(deque, islice(batches, taken), maxlen=0))
    row("n = 10^8, batches of a rank as lists", "", f"{rate:,.0f} a second", ">= 200,000")
    row("n = 10^8, growth of a process's own memory", "", f"{(anonymous() - before) / 1e6:.1f} MB", "<= 5 MB")


def test_building_the_order(row):
    lengths = log_normal(10**8)
    seconds = timed(lambda: sorted_lengths(lengths))
    row("sorting 10^8 lengths", "", f"{10**8 / seconds / 1e6:.0f} M records/s", ">= 20 M records/s")
    np.argsort(lengths[: 10**7], kind="stable")
    theirs = timed(lambda: np.argsort(lengths[: 10**7], kind="stable")) * 10
    row("sorting 10^8 lengths", "numpy's stable argsort (of 10^7, times 10)", f"{seconds / theirs:.3f}x", "")


def test_window_planner(row):
    lengths = log_normal(20_000_000)
    sampler = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=8, rank=0, planner="window")
    begin = time.perf_counter()
    for _ in sampler:
        pass
    rate = len(lengths) / (time.perf_counter() - begin)
    row("window planner, a rank's batches out of all", "", f"{rate / 1e6:.0f} M samples/s", ">= 15 M samples/s")


def by_the_book(lengths, window=8192):
    """What people write: shuffle, sort windows, cut greedily."""
    batches, batch, longest = [], [], 0
    order = np.random.default_rng(0).permutation(len(lengths))
    for begin in range(0, len(order), window):
        part = order[begin : begin + window]
        for record in part[np.argsort(lengths[part])].tolist():
            length = int(lengths[record])
            longest = max(longest, length)
            if longest * (len(batch) + 1) > BUDGET:
                batches.append(batch)
                batch, longest = [], length
            batch.append(record)
    return [*batches, batch]


def test_against_plain_python(compare):
    lengths = log_normal(200_000)

    def ours():
        return list(TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=1, rank=0, planner="window"))

    assert sum(map(len, ours())) == sum(map(len, by_the_book(lengths))) == len(lengths)
    compare("an epoch of 200,000 in windows", ours, "the same in Python", lambda: by_the_book(lengths), "", rounds=5)
