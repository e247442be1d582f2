"""Steps that cost the same on all ranks: padding and imbalance beside Trainer's samplers, and beside balanced packs.

The data and the cost are those of Trainer's BatchRebalanceSampler (transformers#47340): 1,600 log-normal lengths, 2
ranks, 2 batches of 8 samples in an optimizer step. A sample of length L in a batch padded to W costs W + W^2 / 1000.
"""

import heapq
from itertools import count

import numpy as np
import pytest

import mmapds

RANKS, ACCUMULATE, BATCH, QUADRATIC = 2, 2, 8, 1000
STEP = RANKS * ACCUMULATE * BATCH
SAMPLES = 1600


@pytest.fixture(scope="module")
def lengths():
    return np.clip(np.random.default_rng(0).lognormal(5, 1, SAMPLES), 16, 1024).astype(np.int64)


def measured(lengths, steps):
    """Return the padding, the imbalance of a step, and the time of an epoch over that without padding and waits.

    Args:
      steps: of each step, the batch of every rank.
    """
    widths = np.array([[lengths[batch].max() for batch in step] for step in steps])
    sizes = np.array([[len(batch) for batch in step] for step in steps])
    costs = sizes * (widths + widths**2 / QUADRATIC)
    real = lengths + lengths**2 / QUADRATIC
    padding = 1 - lengths.sum() / (sizes * widths).sum()
    return padding, (costs.max(axis=1) / costs.mean(axis=1)).mean(), costs.max(axis=1).sum() * RANKS / real.sum()


def told(found):
    padding, imbalance, time = found
    return f"{padding:.1%} padding, imbalance {imbalance:.3f}, time {time:.2f}"


def steps_of(sampler):
    return [sampler.indices_at(step) for step in range(len(sampler))]


def test_padded_batches(row, lengths):
    utils = pytest.importorskip("transformers.trainer_pt_utils", reason="make build/trainers/installed")
    import torch

    torch.manual_seed(0)
    plain = mmapds.DistributedBatchSampler(lengths, BATCH, RANKS, 0, seed=1)
    grouped = np.array(list(utils.LengthGroupedSampler(BATCH * ACCUMULATE, lengths=lengths.tolist())))
    rebalanced = zip(
        *(utils.BatchRebalanceSampler(lengths.tolist(), STEP, RANKS, ACCUMULATE, rank=rank) for rank in range(RANKS)),
        strict=True,
    )
    rivals = {
        "random batches": steps_of(plain),
        "Trainer's group_by_length": grouped.reshape(-1, BATCH, RANKS).transpose(0, 2, 1),
        "Trainer's batch_rebalance": [[np.array(batch) for batch in step] for step in rebalanced],
    }
    for name, steps in rivals.items():
        row(f"{SAMPLES:,} samples, {RANKS} ranks: {name}", "", told(measured(lengths, list(steps))), "")
    budget = _budget(lengths, SAMPLES // BATCH)
    ours = mmapds.TokenBudgetBatchSampler(
        lengths, budget, quadratic_length=QUADRATIC, group_size=RANKS * ACCUMULATE, num_replicas=RANKS, rank=0
    )
    found = measured(lengths, steps_of(ours))
    best = measured(lengths, rivals["Trainer's batch_rebalance"])
    row(f"{SAMPLES:,} samples, {RANKS} ranks: TokenBudgetBatchSampler", "", told(found), "")
    row("the same over batch_rebalance: time of an epoch", told(best), f"{found[2] / best[2]:.2f}x", "< 1x")
    assert found[2] < best[2]


def _budget(lengths, batches):
    """Return the budget with about so many batches."""
    low, high = 1024 + 1024**2 // QUADRATIC + 1, 2**24
    while low < high:
        middle = (low + high) // 2
        sampler = mmapds.TokenBudgetBatchSampler(
            lengths, middle, quadratic_length=QUADRATIC, num_replicas=1, rank=0, drop_last=True
        )
        low, high = (middle + 1, high) if len(sampler) > batches else (low, middle)
    return low


def balanced(costs, parts):
    """Split costs into parts of about equal sum, by the largest differencing method of Karmarkar and Karp."""
    order = count()
    heap = [(-cost, next(order), [(cost, [place])] + [(0, [])] * (parts - 1)) for place, cost in enumerate(costs)]
    heapq.heapify(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, other) = heapq.heappop(heap), heapq.heappop(heap)
        merged = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        merged.sort(key=lambda part: -part[0])
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], next(order), merged))
    return [places for _, places in heap[0][2]]


@pytest.mark.parametrize("ranks", [2, 8])
def test_packs(row, ranks):
    """Beside samples of a global batch that are dealt to ranks by cost, as verl and Megatron do: no padding at all."""
    n, pack_length = 64_000, 4096
    lengths = np.clip(np.random.default_rng(0).lognormal(5.5, 1, n), 16, pack_length).astype(np.int64)
    costs = lengths + lengths**2 / QUADRATIC
    sampler = mmapds.PackingBatchSampler(lengths, pack_length, quadratic_length=QUADRATIC, num_replicas=ranks, rank=0)
    summary, mean = sampler.summary(), n / len(sampler) / ranks
    together, order = round(mean * ranks), np.random.default_rng(1).permutation(n)
    shares, most = [], 0
    for begin in range(0, n - together + 1, together):
        own = order[begin : begin + together]
        parts = balanced(costs[own].tolist(), ranks)
        sums = [costs[own[part]].sum() for part in parts]
        shares.append(max(sums) / np.mean(sums))
        most = max(most, *(int(lengths[own[part]].sum()) for part in parts))
    row(
        f"{n:,} samples, {ranks} ranks: packs of {pack_length:,} tokens, quadratic_length={QUADRATIC}",
        f"random global batches, balanced by Karmarkar-Karp: imbalance {np.mean(shares):.4f}, up to {most:,} tokens",
        f"imbalance {summary.imbalance:.4f}, up to {pack_length:,} tokens, {summary.fill:.1%} full",
        "<= 1.01",
    )
