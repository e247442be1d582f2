"""Packs: what planning, starting, resuming and reading cost, and how full and how equal packs are."""

import statistics
from collections import deque
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch

import mmapds
from bench.bench_plan import MS
from bench.bench_planners import mates_again
from bench.support.data import log_normal
from bench.support.memory import anonymous
from bench.support.timing import repeated, timed
from mmapds import PackingBatchSampler, TokenBudgetBatchSampler, pack_collate
from tests.support.packs import best_fit_decreasing, bimodal

LENGTH = 2048
ALONE = {"num_replicas": 1, "rank": 0}


def median(work):
    """Seconds that a call takes, in the middle of nine."""
    return statistics.median(timed(work) for _ in range(9))


def test_at_1e8(large, row):
    next(iter(PackingBatchSampler([3, 4], 10, **ALONE)))  # imports
    before = anonymous()
    sampler = PackingBatchSampler(large, LENGTH, num_replicas=8, rank=3)
    state = sampler.state_dict(step=len(sampler) // 2)
    seconds = {
        "constructing": median(lambda: PackingBatchSampler(large, LENGTH, num_replicas=8, rank=3)),
        "set_epoch, and the first pack": median(lambda: (sampler.set_epoch(sampler.epoch + 1), next(iter(sampler)))),
        "resuming in the middle, first pack included": median(
            lambda: (sampler.load_state_dict(state), next(iter(sampler)))
        ),
    }
    for what, each in seconds.items():
        row(f"n = 10^8, {what}", "", f"{each * MS:.2f} ms", "<= 5 ms")
    batches = iter(sampler)
    next(batches)
    taken = 200_000
    rate = taken / timed(partial(deque, islice(batches, taken), maxlen=0))
    row("n = 10^8, packs of a rank as lists", "", f"{rate:,.0f} a second", ">= 100,000")
    row("n = 10^8, growth of a process's own memory", "", f"{(anonymous() - before) / 1e6:.1f} MB", "<= 5 MB")
    summary = sampler.summary()
    row("n = 10^8, fill of packs", "", f"{summary.fill:.3%}", ">= 99.5 %")
    row("n = 10^8, 8 ranks, cost imbalance of a step", "", f"{summary.imbalance:.5f}", "<= 1.01")


@pytest.mark.parametrize("n", [20_000, 200_000, 2_000_000])
def test_efficiency(row, n):
    lengths = log_normal(n)
    sampler = PackingBatchSampler(lengths, LENGTH, num_replicas=8, rank=0)
    summary = sampler.summary()
    row(f"n = {n:,}: fill of packs, 8 ranks", "", f"{summary.fill:.2%}", ">= 99.5 %")
    row(f"n = {n:,}: cost imbalance of a step, 8 ranks", "", f"{summary.imbalance:.4f}", "<= 1.01")
    if n <= 200_000:
        one, other = [], []
        alone = PackingBatchSampler(lengths, LENGTH, **ALONE)
        for epoch, packs in enumerate((one, other)):
            alone.set_epoch(epoch)
            packs += alone
        row(f"n = {n:,}: pairs of mates that share a pack again", "", f"{mates_again(one, other, n):.2%}", "")


@pytest.mark.parametrize("name", ["log-normal", "bimodal"])
def test_against_best_fit_decreasing(compare, row, name):
    n = 50_000
    lengths = log_normal(n) if name == "log-normal" else bimodal(n)
    listed = lengths.tolist()

    def ours():
        return PackingBatchSampler(lengths, LENGTH, **ALONE)

    wanted = best_fit_decreasing(listed, LENGTH)
    row(f"{name}, n = {n:,}: packs", f"{len(wanted):,}, sample by sample", f"{len(ours()):,}", "as many")
    compare(
        f"{name}, n = {n:,}: planning, the sort of lengths included",
        ours,
        "best-fit decreasing sample by sample in Python, a bisect each",
        lambda: best_fit_decreasing(listed, LENGTH),
        "<= 0.1x",
        rounds=5,
    )


def test_against_token_budgets(compare):
    lengths = log_normal(2_000_000)
    rival = TokenBudgetBatchSampler(lengths, 16_384, **ALONE)
    ours = PackingBatchSampler(lengths, 16_384, **ALONE)

    def read(sampler):
        return sum(map(len, islice(sampler, 4000))) if sampler.set_epoch(sampler.epoch + 1) is None else 0

    samples = read(ours) / 4000, read(rival) / 4000
    compare(
        f"4,000 packs of 16,384, of {samples[0]:.0f} samples, from any place",
        lambda: read(ours),
        f"TokenBudgetBatchSampler, 4,000 batches of {samples[1]:.0f} samples",
        lambda: read(rival),
        "",
    )


@pytest.mark.parametrize("source", ["array file", "dicts of arrays"])
@pytest.mark.usefixtures("one_thread")
def test_collating(compare, tmp_path, source):
    rng = np.random.default_rng(0)
    path = tmp_path / "tokens.mma"
    with mmapds.Writer(path, length="input_ids") as writer:
        for n in log_normal(4000):
            writer.write({"input_ids": rng.integers(0, 60_000, n).astype(np.int32)})
    ds = mmapds.open(path)
    packs = list(islice(PackingBatchSampler(ds, 16_384, **ALONE), 20))
    made = [ds.take(pack) if source == "array file" else list(ds.take(pack)) for pack in packs]

    def theirs():
        for each in made:
            arrays = [torch.tensor(sample["input_ids"]) for sample in each]
            ends = torch.tensor([len(array) for array in arrays]).cumsum(0)
            torch.cat(arrays), torch.cat([torch.zeros(1, dtype=torch.int64), ends]).to(torch.int32)

    def ours():
        for each in made:
            pack_collate(each)

    what = f"packs of 16,384 int32 tokens, from {source}"
    compare(what, repeated(ours, 5), "torch.cat of tensors, and a cumsum", repeated(theirs, 5), "< 1x")
