"""Draws by weight over 10^8 records: building the sums, the first batch, draws a second, and memory."""

import time

import numpy as np
import torch

import mmapds
from bench.support.memory import anonymous
from mmapds import orders

N, BATCH, SIZE = 10**8, 256, 10**7
MS = 1e3


def rate_of(batches, seconds=1.0):
    """Return samples a second."""
    begin, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch)
        if (taken := time.perf_counter() - begin) > seconds:
            return count / taken
    return count / (time.perf_counter() - begin)


def test_weights(row, tmp_path):
    next(iter(mmapds.DistributedBatchSampler(range(9), 2, num_replicas=1, rank=0, weights=[1] * 9)))  # imports
    weights = np.random.default_rng(0).random(N)
    begin = time.perf_counter()
    sampler = mmapds.DistributedBatchSampler(range(N), BATCH, 1, 0, weights=weights, epoch_size=SIZE)
    next(iter(sampler))
    seconds = time.perf_counter() - begin
    read = min(_timed(weights.sum) for _ in range(3))
    row(
        "n = 10^8: sums built, first batch", f"numpy's sum of the weights: {read:.2f} s", f"{seconds:.2f} s", "<= 1.5 s"
    )
    path = tmp_path / "weights.mmw"
    begin = time.perf_counter()
    orders.save_weights(path, weights)
    row("n = 10^8: sums written to a file", "", f"{time.perf_counter() - begin:.2f} s", "once a node")
    del sampler, weights
    for replacement in (True, False):
        before, times = anonymous(), []
        for _ in range(7):
            begin = time.perf_counter()
            order = orders.Weighted(path, SIZE, replacement=replacement)
            sampler = mmapds.DistributedBatchSampler(range(N), BATCH, 1, 0, order=order)
            next(iter(sampler))
            times.append(time.perf_counter() - begin)
        what = f"n = 10^8, mapped, {'with' if replacement else 'without'} replacement"
        row(f"{what}: first batch", "", f"{sorted(times)[3] * MS:.1f} ms", "<= 5 ms")
        rate = rate_of(sampler)
        row(f"{what}: draws as lists", "", f"{rate:,.0f} a second", "")
        row(f"{what}: growth of a process's own memory", "", f"{(anonymous() - before) / 1e6:.2f} MB", "<= 1 MB")
    small = torch.rand(2**24 - 1, dtype=torch.float64)
    begin = time.perf_counter()
    next(iter(torch.utils.data.WeightedRandomSampler(small, 2**24 - 1)))
    theirs = time.perf_counter() - begin
    before = time.perf_counter()
    next(iter(mmapds.DistributedBatchSampler(range(len(small)), BATCH, 1, 0, weights=small.numpy())))
    ours = time.perf_counter() - before
    row(
        "n = 2^24 - 1, torch's most: first sample",
        f"WeightedRandomSampler: {theirs:.2f} s",
        f"{ours / theirs:.3f}x",
        "<= 0.2x",
    )


def _timed(work):
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin
