"""Packs inside mixes of chunks: how full and how equal they are, and what planning and reading cost."""

import statistics
from collections import deque
from functools import partial
from itertools import islice

import pytest

from bench.support.data import log_normal
from bench.support.timing import timed
from mmapds import PackingBatchSampler
from mmapds.orders.basic import Chunked

LENGTH, N, RANKS = 2048, 2_000_000, 8
MIXED = 64_000  # samples in a mix


@pytest.mark.parametrize("chunk_size", [256, 1000, 4000])
def test_windows(row, chunk_size):
    lengths = log_normal(N)
    order = Chunked(N, chunk_size, mix_chunks=MIXED // chunk_size)
    what = f"n = {N:,}, mixes of {order.mix_chunks} chunks of {chunk_size:,}, {RANKS} ranks"

    def made():
        return PackingBatchSampler(lengths, LENGTH, planner="window", order=order, num_replicas=RANKS, rank=0)

    sampler = made()
    summary = sampler.summary()
    row(f"{what}: fill of packs", "", f"{summary.fill:.2%}", ">= 99.5 %" if chunk_size >= 1000 else "")
    row(f"{what}: cost imbalance of a step", "", f"{summary.imbalance:.4f}", "<= 1.01")
    seconds = statistics.median(timed(made) for _ in range(7))
    row(f"{what}: constructing", "", f"{N / seconds:,.0f} samples a second", "")
    rates = []
    for epoch in range(7):
        sampler.set_epoch(epoch)
        steps = min(20_000, len(sampler))
        rates.append(steps * RANKS / timed(partial(deque, islice(sampler, steps), maxlen=0)))
    row(f"{what}: packs of all ranks, as lists of one", "", f"{statistics.median(rates):,.0f} a second", ">= 100,000")
