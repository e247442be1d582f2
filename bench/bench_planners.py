"""Token budgets: how full batches are, and how other than those of the epoch before."""

from itertools import pairwise

import numpy as np
import pytest

from bench.bench_plan import BUDGET
from bench.support.data import log_normal
from mmapds import TokenBudgetBatchSampler


@pytest.mark.parametrize("planner", ["bucket", "window"])
@pytest.mark.parametrize("n", [20_000, 200_000, 2_000_000])
def test_efficiency(row, planner, n):
    lengths = log_normal(n)
    summary = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=8, rank=0, planner=planner).summary()
    bucket = planner == "bucket"
    what = f"{planner}, n = {n:,}"
    bound = "" if n < 2_000_000 else ">= 99.9 %" if bucket else ">= 98.8 %"
    row(f"{what}: real tokens in padded batches", "", f"{1 - summary.padding:.2%}", bound)
    row(f"{what}: fill of the budget", "", f"{summary.fill:.2%}", ">= 97.5 %" if n >= 2_000_000 else "")
    row(f"{what}: cost imbalance of a step", "", f"{summary.imbalance:.4f}", "<= 1.005" if bound and bucket else "")


def mates_again(one, other, n):
    """The share of pairs of samples with a batch in common in one epoch that have one in common in the other too."""
    batch_of = np.empty(n, np.int64)
    for number, batch in enumerate(other):
        batch_of[batch] = number
    counts = [np.unique(batch_of[batch], return_counts=True)[1] for batch in one]
    return sum(int((each * (each - 1)).sum()) for each in counts) / sum(len(batch) * (len(batch) - 1) for batch in one)


@pytest.mark.parametrize("planner", ["bucket", "window"])
@pytest.mark.parametrize("n", [1_100, 4_000, 20_000, 200_000])
def test_few_batches(row, planner, n):
    again, mates, real = [], [], []
    for seed in range(3):
        lengths = log_normal(n, seed)
        sampler = TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=1, rank=0, planner=planner)
        epochs = []
        for epoch in range(4):
            sampler.set_epoch(epoch)
            epochs.append(list(sampler))
        for one, other in pairwise(epochs):
            again.append(len(set(map(frozenset, one)) & set(map(frozenset, other))) / len(one))
            mates.append(mates_again(one, other, n))
        padded = [sum(int(lengths[batch].max()) * len(batch) for batch in epoch) for epoch in epochs]
        real += [int(lengths.sum(dtype=np.int64)) / each for each in padded]
    what, bucket = f"{planner}, n = {n:,} ({len(sampler)} batches), 3 datasets", planner == "bucket"
    bound = "<= 10 %" if n < 4_000 else "<= 1 %"
    row(f"{what}: batches that come again in the next epoch", "", f"{np.mean(again):.2%}", bound if bucket else "")
    row(f"{what}: pairs of mates that have a batch in common again", "", f"{np.mean(mates):.1%}", "")
    row(f"{what}: real tokens, mean of 4 epochs", "", f"{np.mean(real):.2%}", ">= windows'" if bucket else "")
