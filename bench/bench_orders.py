"""Orders and samplers over 10^9 records, and against torch's DistributedSampler at a size it can still do."""

import itertools
import statistics
import time

import numpy as np
import pytest
import torch
from torch.utils.data.distributed import DistributedSampler as TorchSampler

from bench.support.memory import anonymous
from bench.support.timing import timed
from mmapds import DistributedBatchSampler, DistributedSampler, orders

N = 10**9
BLOCK = 10**6
RIVAL_N = 5 * 10**6


def milliseconds(work, rounds=9):
    return statistics.median(timed(work) for _ in range(rounds)) * 1e3


def test_everything_at_once_and_in_no_memory(row):
    sampler = DistributedSampler(range(N), 8, 3)
    next(iter(sampler))
    before = anonymous()
    epochs = itertools.count(1)
    sampler.set_epoch(0)
    state = sampler.state_dict(step=10**8)

    def resume():
        other = DistributedSampler(range(N), 8, 3)
        other.load_state_dict(state)
        return next(iter(other))

    assert resume() == sampler.indices_at(10**8)[3]
    target = "<= 1 ms"
    row("n = 10^9: construction", "", f"{milliseconds(lambda: DistributedSampler(range(N), 8, 3)):.3f} ms", target)
    row("n = 10^9: `set_epoch`", "", f"{milliseconds(lambda: sampler.set_epoch(next(epochs))):.3f} ms", target)
    row("n = 10^9: first index of an epoch", "", f"{milliseconds(lambda: next(iter(sampler))):.3f} ms", target)
    row("n = 10^9: construction, resume and first index", "", f"{milliseconds(resume):.3f} ms", target)
    for _ in itertools.islice(sampler, 10**6):
        pass
    row("n = 10^9: growth of anonymous memory", "", f"{(anonymous() - before) / 1e6:.2f} MB", "<= 1 MB")


def test_speed_of_orders(row, compare):
    positions = np.arange(BLOCK, dtype=np.int64)
    shuffled = orders.Shuffled(N)
    assert len(np.unique(shuffled.at(0, positions))) == BLOCK
    compare(
        f"{BLOCK:,} positions of a shuffled order",
        lambda: shuffled.at(0, positions),
        "torch.randperm of as many",
        lambda: torch.randperm(BLOCK),
        "",
    )
    for name, order in {
        "shuffled": shuffled,
        "chunked": orders.Chunked(N, 1000),
        "resampled": orders.Resampled(N),
        "mixture of 3": orders.Mixture([N, N // 10, N // 100], [0.7, 0.2, 0.1]),
    }.items():
        seconds = min(timed(lambda order=order: order.at(1, positions)) for _ in range(7))
        target = ">= 50 M/s" if name == "shuffled" else ""
        row(f"order: {name}", "", f"{BLOCK / seconds / 1e6:.0f} M indices/s", target)


@pytest.mark.parametrize(
    ("whose", "positions", "target"),
    [("one rank of 64", 64 * np.arange(BLOCK) + 9, "<= 1.2x"), ("all ranks", np.arange(BLOCK), "")],
    ids=["rank", "all"],
)
def test_the_cost_of_lanes(compare, whose, positions, target):
    plain, laned = orders.Chunked(N, 1000), orders.Chunked(N, 1000, lanes=8, lane_ranks=8)
    compare(
        f"{BLOCK:,} positions of {whose} in 8 lanes",
        lambda: laned.at(0, positions),
        "without lanes",
        lambda: plain.at(0, positions),
        target,
    )


def test_speed_of_samplers(row):
    for name, sampler in {
        "DistributedSampler": DistributedSampler(range(N), 8, 3),
        "DistributedBatchSampler, batches of 64": DistributedBatchSampler(range(N), 64, 8, 3),
    }.items():
        per = 64 if "Batch" in name else 1
        count = 5 * 10**6 // per
        begin = time.perf_counter()
        for _ in itertools.islice(sampler, count):
            pass
        seconds = time.perf_counter() - begin
        row(f"iterating {name}", "", f"{count * per / seconds / 1e6:.1f} M ints/s", ">= 10 M ints/s")


def test_the_first_index_against_torch(compare):
    ours, theirs = DistributedSampler(range(RIVAL_N), 8, 3), TorchSampler(range(RIVAL_N), 8, 3)

    def first(sampler):
        sampler.set_epoch(sampler.epoch + 1)
        return next(iter(sampler))

    compare(
        f"first index of an epoch of {RIVAL_N:,}",
        lambda: first(ours),
        "torch.utils.data.DistributedSampler",
        lambda: first(theirs),
        "",
        rounds=5,
    )


def test_an_epoch_against_torch(compare):
    ours, theirs = DistributedSampler(range(RIVAL_N), 8, 3), TorchSampler(range(RIVAL_N), 8, 3)
    assert len(list(ours)) == len(list(theirs))
    compare(
        f"a rank's whole epoch of {RIVAL_N:,} over 8 replicas",
        lambda: sum(1 for _ in ours),
        "torch.utils.data.DistributedSampler",
        lambda: sum(1 for _ in theirs),
        "",
        rounds=5,
    )


def test_memory_against_torch(row):
    def growth(sampler):
        before = anonymous()
        iterator = iter(sampler)
        next(iterator)
        return anonymous() - before

    torch.randperm(10)
    ours, theirs = DistributedSampler(range(RIVAL_N), 8, 3), TorchSampler(range(RIVAL_N), 8, 3)
    next(iter(ours))
    figure = f"{growth(ours) / 1e6:.2f} MB against {growth(theirs) / 1e6:.0f} MB"
    row(f"memory held at the first index of {RIVAL_N:,}", "torch.utils.data.DistributedSampler", figure, "")
