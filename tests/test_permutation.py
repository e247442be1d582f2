"""The keyed permutation: a bijection at every n, and as random as torch's own by the same tests."""

import itertools
import json
import os
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmapds import Permutation, _native
from tests.support.commands import python
from tests.support.files import DATA

GOLDEN = DATA / "permutation-v1.json"
AROUND_POWERS = sorted({2**k + d for k in range(1, 21) for d in (-1, 0, 1)})


def is_bijection(n, seed=0, epoch=0):
    values = Permutation(n, seed, epoch)[:]
    seen = np.zeros(n, bool)
    seen[values] = True
    return len(values) == n and seen.all()


def test_every_small_n():
    for n in range(1, 5001):
        p = Permutation(n, seed=n, epoch=3)
        values = p[:]
        assert np.array_equal(np.sort(values), np.arange(n)), n
        assert np.array_equal(p.inverse(values), np.arange(n)), n


@pytest.mark.parametrize("n", [*AROUND_POWERS, *(2**k + d for k in (22, 24) for d in (-1, 0, 1))])
def test_around_powers_of_two(n):
    assert is_bijection(n)
    sample = np.linspace(0, n - 1, 1000).astype(np.int64)
    p = Permutation(n)
    assert np.array_equal(p.inverse(p[sample]), sample)


@pytest.mark.parametrize("n", [10**9, 10**12, 2**32 - 1, 2**32, 2**32 + 1, 2**62 + 1, 2**63 - 1])
def test_spots_of_the_largest(n):
    p = Permutation(n, seed=7)
    edges = np.arange(1000, dtype=np.int64)
    positions = np.unique(np.concatenate([edges, n - 1 - edges, np.arange(4000, dtype=np.int64) * (n // 4001)]))
    values = p[positions]
    assert ((values >= 0) & (values < n)).all()
    assert len(np.unique(values)) == len(positions)
    assert np.array_equal(p.inverse(values), positions)


@given(n=st.integers(1, 2**63 - 1), seed=st.integers(), epoch=st.integers(), data=st.data())
def test_all_ways_of_asking_agree(n, seed, epoch, data):
    p = Permutation(n, seed, epoch)
    start = data.draw(st.integers(0, n - 1))
    step = data.draw(st.integers(1, max(n // 40, 1)))
    positions = range(n)[start::step][:40]
    expected = [p[i] for i in positions]
    assert p[np.array(positions)].tolist() == expected
    assert p.range(positions).tolist() == expected
    assert p[list(positions)].tolist() == expected
    assert p[positions.start : positions.stop : positions.step].tolist() == expected
    assert p.range(positions[::-1]).tolist() == expected[::-1]
    assert [p.inverse(value) for value in expected] == list(positions)
    assert p[start - n] == p[start]


def test_bad_arguments():
    for n in (0, -1, 2**63):
        with pytest.raises(ValueError, match=f"n = {n}, expected 1 <= n < 2\\*\\*63"):
            Permutation(n)
    p = Permutation(10)
    for position in (10, -11, [3, 10], [-1]):
        with pytest.raises(IndexError, match="out of range for a permutation of 10"):
            p[position]
    with pytest.raises(IndexError, match="out of range"):
        p.inverse(10)
    with pytest.raises(IndexError, match="array of integers, found dtype float64"):
        p[[0.5]]


def test_it_is_a_small_value():
    p = Permutation(10**12, seed=-3, epoch=2**70, stream=5)
    assert pickle.loads(pickle.dumps(p)) == p
    assert len(pickle.dumps(p)) < 200
    assert p != Permutation(10**12, seed=-3)
    assert p[:0].dtype == np.int64


def test_golden_vectors():
    for case in json.loads(GOLDEN.read_text()):
        p = Permutation(case["n"], case["seed"], case["epoch"], case["stream"])
        assert p[case["positions"]].tolist() == case["values"], case


@pytest.mark.parametrize("variant", _native.simd_variants())
def test_every_variant_gives_the_same(variant):
    code = f"""
import json, mmapds
for case in json.load(open({str(GOLDEN)!r})):
    p = mmapds.Permutation(case["n"], case["seed"], case["epoch"], case["stream"])
    positions = [i % case["n"] for i in range(40)]
    assert p[positions].tolist() == [p[i] for i in positions]
    assert p[case["positions"]].tolist() == case["values"]
"""
    python(code, env={**os.environ, "MMAPDS_SIMD": variant})


# ---- statistics: everything is asked of torch.randperm as well ---------------------------------------------------


def ours(n, seed):
    return Permutation(n, seed=11, epoch=seed)[:]


def by_seed(n, seed):
    return Permutation(n, seed=seed)[:]


def control(n, seed):
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()


SHUFFLES = pytest.mark.parametrize("shuffle", [ours, by_seed, control])


def deviations(statistic, expected, variance):
    """How many standard deviations a mean of many values is off."""
    statistic = np.asarray(statistic, float)
    return abs(statistic.mean() - expected) / np.sqrt(variance / len(statistic))


@SHUFFLES
@pytest.mark.parametrize("n", [100, 1000, 65_537])
def test_positions_and_values_are_uncorrelated(shuffle, n):
    found = [np.corrcoef(np.arange(n), shuffle(n, seed))[0, 1] for seed in range(200)]
    assert deviations(found, 0, 1 / (n - 1)) < 4
    assert 0.75 < np.var(found) * (n - 1) < 1.3


@SHUFFLES
@pytest.mark.parametrize("n", [50, 1000, 65_537])
def test_neighbours_are_as_far_apart_as_strangers(shuffle, n):
    found = [np.abs(np.diff(shuffle(n, seed))).mean() for seed in range(200)]
    assert deviations(found, (n + 1) / 3, np.var(found)) < 4


@SHUFFLES
@pytest.mark.parametrize("n", [37, 1000, 50_000])
def test_each_tenth_goes_everywhere_alike(shuffle, n):
    """Chi-square of which tenth of the positions goes to which tenth of the values."""
    trials = 400_000 // n + 20
    table = np.zeros((10, 10))
    tenth = np.arange(n) * 10 // n
    for seed in range(trials):
        np.add.at(table, (tenth, tenth[shuffle(n, seed)]), 1)
    rows = np.bincount(tenth, minlength=10)
    expected = np.outer(rows, rows) / n * trials
    chi = ((table - expected) ** 2 / expected).sum()
    # 81 degrees of freedom, drawn without replacement, which scales the variance of the cells by n / (n - 1).
    assert abs(chi * (n - 1) / n - 81) < 5 * np.sqrt(2 * 81)


@SHUFFLES
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_all_orders_of_a_few_are_as_likely(shuffle, n):
    count = 6000
    orders = dict.fromkeys(itertools.permutations(range(n)), 0)
    for seed in range(count):
        orders[tuple(shuffle(n, seed).tolist())] += 1
    expected = count / len(orders)
    chi = sum((found - expected) ** 2 / expected for found in orders.values())
    freedom = len(orders) - 1
    assert chi < freedom + 4.5 * np.sqrt(2 * freedom) + 3


@SHUFFLES
def test_fixed_points_and_parity(shuffle):
    """As many fixed points as there should be (1 on average, variance 1), and even permutations half the time."""
    shuffled = [shuffle(300, seed) for seed in range(1500)]
    assert deviations([(p == np.arange(300)).sum() for p in shuffled], 1, 1) < 4
    small = [shuffle(9, seed) for seed in range(1500)]
    assert deviations([np.linalg.det(np.eye(9)[p]) > 0 for p in small], 0.5, 0.25) < 4


@pytest.mark.parametrize("n", [1000, 10**6, 10**12])
def test_avalanche(n):
    """One bit more in seed or epoch leaves nothing as it was."""
    positions = np.linspace(0, n - 1, 500).astype(np.int64)
    base = Permutation(n, 5, 9)[positions]
    for bit in range(64):
        for other in (Permutation(n, 5 ^ 1 << bit, 9), Permutation(n, 5, 9 ^ 1 << bit), Permutation(n, 5, 9, 1 << bit)):
            values = other[positions]
            assert (values == base).mean() < 0.02
            assert abs(np.corrcoef(values.astype(float), base.astype(float))[0, 1]) < 0.25


def test_epochs_of_neighbouring_seeds_have_nothing_in_common():
    assert not np.array_equal(Permutation(1000, 0, 1)[:], Permutation(1000, 1, 0)[:])


@pytest.mark.parametrize("n", [5_000, 10**9])
def test_pairs_of_epochs_are_independent(n):
    """The same position in two epochs: its values are uncorrelated over many pairs."""
    epochs = np.array([Permutation(n, 1, epoch)[:500] for epoch in range(400)], float)
    for apart in (1, 2, 8):
        found = [np.corrcoef(a, b)[0, 1] for a, b in zip(epochs, epochs[apart:], strict=False)]
        assert deviations(found, 0, 1 / 499) < 4
