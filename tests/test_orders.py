"""Orders, and the keyed permutation below them: pure functions of (seed, epoch, position)."""

import itertools
import json
import os
import pickle

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmapds import OrderError, Permutation, _native
from mmapds.orders.basic import Chunked, Mixture, Order, Resampled, Sequential, Shuffled
from tests.support.commands import python
from tests.support.files import DATA
from tests.support.messages import check

SIZES = [*range(1, 1001), *(2**k + d for k in range(10, 21) for d in (-1, 0, 1))]
LARGEST = [10**9, 10**12, 2**32 - 1, 2**32, 2**32 + 1, 2**62 + 1, 2**63 - 1]


def test_a_permutation_is_a_bijection_with_an_inverse():
    for n in (*SIZES, *LARGEST):
        p, positions = Permutation(n, seed=n, epoch=3), np.arange(min(n, 2**21))
        if n in LARGEST:
            positions = np.concatenate([positions[:1000], n - 1 - positions[:1000], np.arange(4000) * (n // 4001)])
        values = p[positions]
        assert ((values >= 0) & (values < n)).all(), n
        assert np.array_equal(p.inverse(values), positions), n


@given(n=st.integers(1, 2**63 - 1), seed=st.integers(), epoch=st.integers(), data=st.data())
def test_all_ways_of_asking_agree(n, seed, epoch, data):
    p = Permutation(n, seed, epoch)
    start = data.draw(st.integers(0, n - 1))
    step = data.draw(st.integers(1, max(n // 40, 1)))
    positions = range(n)[start::step][:40]
    expected = [p[i] for i in positions]
    for asked in (np.array(positions), list(positions), slice(positions.start, positions.stop, positions.step)):
        assert p[asked].tolist() == expected
    assert p.range(positions).tolist() == p.range(positions[::-1]).tolist()[::-1] == expected
    assert [p.inverse(value) for value in expected] == list(positions)
    assert p[start - n] == p[start]
    again = pickle.loads(pickle.dumps(p))
    assert (again, again[start]) == (p, p[start])
    assert again != Permutation(n, seed, epoch, stream=5)


def test_places_outside_a_permutation_are_refused():
    p = Permutation(10)
    for ask, place in [(p.__getitem__, 10), (p.__getitem__, -11), (p.__getitem__, [3, 10]), (p.inverse, [-1])]:
        with pytest.raises(IndexError, match="out of range for a permutation of 10"):
            ask(place)
    with pytest.raises(IndexError, match="array of integers, found dtype float64"):
        p[[0.5]]
    with pytest.raises(ValueError, match="n = 9223372036854775808, expected 1 <= n < 2\\*\\*63"):
        Permutation(2**63)


@pytest.mark.parametrize("variant", _native.simd_variants())
def test_every_variant_gives_the_golden_vectors(variant):
    code = f"""
import json, mmapds
for case in json.load(open({str(DATA / "permutation-v1.json")!r})):
    p = mmapds.Permutation(case["n"], case["seed"], case["epoch"], case["stream"])
    positions = [i % case["n"] for i in range(40)]
    assert p[positions].tolist() == [p[i] for i in positions]
    assert p[case["positions"]].tolist() == case["values"]
"""
    python(code, env={**os.environ, "MMAPDS_SIMD": variant})


def is_uniform(table, expected, freedom):
    """Whether the chi-square of a table is within five standard deviations of its mean."""
    return abs(((table - expected) ** 2 / expected).sum() - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("name", ["epoch", "seed"])
def test_each_tenth_goes_everywhere_alike_and_all_orders_of_a_few_are_as_likely(name):
    for n in (37, 1000, 50_000):
        trials, table, tenth = 400_000 // n + 20, np.zeros((10, 10)), np.arange(n) * 10 // n
        for number in range(trials):
            np.add.at(table, (tenth, tenth[Permutation(n, **{name: number})[:]]), 1)
        rows = np.bincount(tenth, minlength=10)
        assert is_uniform(table, np.outer(rows, rows) / n * trials, 81)
    for n in range(2, 6):
        orders = dict.fromkeys(itertools.permutations(range(n)), 0)
        for number in range(6000):
            orders[tuple(Permutation(n, **{name: number})[:].tolist())] += 1
        assert is_uniform(np.array(list(orders.values())), 6000 / len(orders), len(orders) - 1)


ORDERS = [
    Sequential(100),
    Shuffled(100, seed=3),
    Chunked([0, 33, 33, 100], 7, mix_chunks=3, seed=3),
    Chunked([0, 33, 33, 100], 7, mix_chunks=3, seed=3, lanes=3, lane_ranks=2),
    Resampled(100, 250, seed=3),
    Mixture([50, 30, 20], [0.5, 0.4, 0.1], seed=3, epoch_size=300),
]


def everything(order, epoch=0):
    return order.at(epoch, np.arange(len(order)))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.describe()["order"])
def test_what_every_order_is(order):
    assert isinstance(order, Order)
    records = everything(order, 5)
    assert (records.dtype, set(records.tolist()) <= set(range(100))) == (np.int64, True)
    assert json.loads(json.dumps(order.describe())) == order.describe()
    assert len(pickle.dumps(order)) < 10_000
    again = pickle.loads(pickle.dumps(order))
    assert again.describe() == order.describe()
    some = np.random.default_rng(0).permutation(len(order))
    assert np.array_equal(again.at(5, some), records[some]), "positions may be asked for in any order"
    if order.describe()["order"] != "sequential":
        assert everything(order, 6).tolist() != records.tolist()
        assert everything(order, 0).tolist() != sorted(everything(order, 0)), "epoch 0 is shuffled too"


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    chunk_size=st.integers(1, 25) | st.just(2**62),
    mix_chunks=st.integers(1, 8) | st.just(2**62),
    seed=st.integers(0, 2**64),
)
def test_chunks_cover_each_record_once_and_stay_together(sizes, chunk_size, mix_chunks, seed):
    starts = np.cumsum([0, *sizes]).tolist()
    order = Chunked(starts, chunk_size, mix_chunks=mix_chunks, seed=seed)
    begins = [begin for start, end in itertools.pairwise(starts) for begin in range(start, end, chunk_size)]
    assert order.chunk_starts.tolist() == [*begins, starts[-1]]
    records_of = [range(*each) for each in itertools.pairwise(order.chunk_starts.tolist())]
    chunks, records = order.chunks(4).tolist(), everything(order, 4).tolist()
    assert sorted(chunks) == list(range(len(begins)))
    assert order.mix_chunks == min(mix_chunks, len(chunks))
    for first in range(0, len(chunks), order.mix_chunks):
        mixed = [record for chunk in chunks[first : first + order.mix_chunks] for record in records_of[chunk]]
        assert sorted(records[: len(mixed)]) == sorted(mixed)
        records = records[len(mixed) :]
    assert not records


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    chunk_size=st.integers(1, 25),
    mix_chunks=st.integers(1, 8),
    lanes=st.integers(1, 9),
    lane_ranks=st.integers(1, 9) | st.just(2**62),
)
def test_a_lane_is_a_part_of_the_order_without_lanes_and_says_when_it_reads_a_chunk(
    sizes, chunk_size, mix_chunks, lanes, lane_ranks
):
    plain = Chunked(np.cumsum([0, *sizes]), chunk_size, mix_chunks=mix_chunks)
    assume(lanes < len(plain.chunk_starts))
    order = Chunked(np.cumsum([0, *sizes]), chunk_size, mix_chunks=mix_chunks, lanes=lanes, lane_ranks=lane_ranks)
    positions, records = np.arange(len(order)), everything(order, 4)
    lane_of = order.lanes_at(positions)
    assert np.concatenate([records[lane_of == lane] for lane in range(lanes)]).tolist() == everything(plain, 4).tolist()
    assert np.ptp(np.bincount(lane_of, minlength=lanes)) <= order.lane_ranks
    for lane in range(lanes):
        read = dict(zip(positions[lane_of == lane].tolist(), records[lane_of == lane].tolist(), strict=True))
        spans = order.spans(4, lane).tolist()
        assert [first for *_, first, _ in spans] == sorted(first for *_, first, _ in spans)
        found = {position: [span for span in spans if span[0] <= record < span[1]] for position, record in read.items()}
        assert all(len(of) == 1 and of[0][2] <= position < of[0][3] for position, of in found.items())
        assert {each for _, _, first, stop in spans for each in (first, stop - 1)} <= read.keys()
        bounds = sorted({(first, stop) for *_, first, stop in spans})
        assert [sum(first <= p < stop for p in read) for first, stop in bounds] == np.diff(
            [0, *(sum(p < stop for p in read) for _, stop in bounds)]
        ).tolist(), "mixes follow one another"


def test_chunks_need_no_table_of_records():
    order = Chunked(10**12, 1000, mix_chunks=16, seed=1)
    records = order.at(3, np.arange(16_000) + 10**11 // 16_000 * 16_000)
    assert (len(np.unique(records // 1000)), len(np.unique(records))) == (16, 16_000)
    assert Chunked([0, 10, 30], 4).describe() != Chunked([0, 20, 30], 4).describe(), "other sources, another order"
    laned = Chunked(10**12, 1000, mix_chunks=16, seed=1, lanes=64, lane_ranks=8)
    last = np.arange(10**12 - 8, 10**12)
    assert np.array_equal(laned.at(3, last), order.at(3, last)), "the end of the last lane"
    for position in (-1, 10**12):
        for each in (order, laned):
            with pytest.raises(IndexError, match=f"position {position} is out of range for an epoch of 1000000000000"):
                each.at(0, [3, position])


def test_resampled_is_uniform():
    assert is_uniform(np.bincount(everything(Resampled(50, 100_000, seed=1)), minlength=50), 2000, 49)
    assert everything(Resampled(2**62, 1000)).max() > 2**61


@given(weights=st.lists(st.floats(0, 1e6) | st.integers(0, 20).map(float), min_size=1, max_size=9).filter(any))
def test_every_prefix_has_its_shares_to_within_one(weights):
    assume(sum(weights) > 1e-300)
    order = Mixture([10] * len(weights), weights, epoch_size=70_000)
    members = order.members_at(np.arange(70_000))
    counts = np.cumsum(members[:, None] == np.arange(len(weights)), axis=0)
    shares = np.arange(1, 70_001)[:, None] * (np.array(order.weights) / sum(order.weights))
    assert np.abs(counts - shares).max() < 1
    wanted = np.array(weights) / sum(weights)
    assert np.abs(np.array(order.weights) / sum(order.weights) - wanted).max() < 2 * len(weights) / 65_536


def test_simple_weights_are_exact_on_any_scale():
    for weights, scale in itertools.product(([3, 1], [7, 2, 1], [1, 0], [123, 877]), (1e-3, 2.5e9, 1e-300)):
        assert Mixture([10] * len(weights), [scale * each for each in weights]).weights == weights


@pytest.mark.parametrize("count", [1, 5, 3000])
def test_an_epoch_ends_with_the_first_dataset_or_with_the_longest(count):
    rng = np.random.default_rng(count)
    sizes, weights = rng.integers(1, 50, count), rng.lognormal(size=count)
    weights[1::5] = 0
    for stop in ("first", "longest"):
        order = Mixture(sizes.tolist(), weights.tolist(), stop=stop)
        members = order.members_at(np.arange(len(order)))
        left = sizes - np.bincount(members, minlength=count)
        assert left[members[-1]] == 0
        assert (left >= 0).all() if stop == "first" else (left[weights > 0] <= 0).all()


def test_a_dataset_is_seen_whole_before_any_of_it_again_in_another_order_or_in_its_own():
    records = everything(Mixture([1000, 20], [0.5, 0.5], seed=1, epoch_size=200), 7)
    passes = records[records >= 1000].reshape(5, 20) - 1000
    assert (np.sort(passes) == np.arange(20)).all()
    assert len(np.unique(passes, axis=0)) == 5
    assert len(np.unique(records[records < 1000])) == 100
    records = everything(Mixture([4, 4], [1, 1], shuffle=False, epoch_size=8))
    assert (records[records < 4].tolist(), records[records >= 4].tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    weights=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    more=st.sampled_from([None, 0, 0, 1, -1]),
)
def test_a_mixture_knows_whether_every_record_comes_once(sizes, weights, more):
    weights = [weight if size else 0 for size, weight in zip(sizes, weights, strict=False)]
    for chosen in filter(any, (weights, sizes)):
        order = Mixture(sizes, chosen, epoch_size=None if more is None else max(sum(sizes) + more, 1))
        records = order.at(0, np.arange(len(order))).tolist()
        assert order.is_bijection == (sorted(records) == list(range(sum(sizes))))


REFUSED = [
    (lambda: Shuffled(2**63), r"n = 9223372036854775808, expected an integer of 1 or more, below 2\*\*63"),
    (lambda: Chunked(10, 0), "chunk_size = 0"),
    (lambda: Chunked([0, 5, 3], 2), r"n = \[0, 5, 3\], expected starts of sources: 0, then numbers that never fall"),
    (lambda: Chunked([0.5, 3], 2), "n: expected integers of shape .*, found float64"),
    (lambda: Chunked(9, "block"), "chunk_size = 'block', expected a dataset of mmapds, found int"),
    (lambda: Chunked(9, 3, lanes=0), "lanes = 0, expected an integer of 1 or more"),
    (lambda: Chunked(9, 3, lanes=4), "lanes = 4, expected at most 3, the number of chunks"),
    (lambda: Mixture([1], [1, 2]), r"weights = \[1, 2\], expected one number for each of 1 datasets"),
    (lambda: Mixture([None, 5], [1, 1]), r"sizes\[0\] = None, expected an integer of 0 or more"),
    (lambda: Mixture([1, 1], [1, -2]), r"weights = \[1, -2\], expected finite numbers of 0 or more"),
    (lambda: Mixture([1, 1], [0, 0]), "not all 0"),
    (lambda: Mixture([1, 0], [1, 1]), r"sizes\[1\] = 0"),
    (lambda: Mixture([2**50, 10], [1, 65535], stop="longest"), "epoch_size = 73786976294838206463, expected an int"),
    (lambda: Mixture([1, 1], [1, 1], stop="last"), "stop = 'last', expected 'first' or 'longest'"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_arguments_that_make_no_order_are_named(make, message):
    with pytest.raises(OrderError, match=f"^{message}" if "=" in message else message) as raised:
        make()
    check(str(raised.value))
