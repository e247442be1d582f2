"""Orders: pure functions of (seed, epoch, position)."""

import json
import pickle
import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapds import DistributedBatchSampler, OrderError, TokenBudgetBatchSampler
from mmapds.orders.basic import Order, Resampled, Sequential, Shuffled
from mmapds.orders.chunked import Chunked
from mmapds.orders.mixture import Mixture

ORDERS = [
    Sequential(100),
    Shuffled(100, seed=3),
    Chunked([0, 33, 33, 100], 7, mix_chunks=3, seed=3),
    Resampled(100, 250, seed=3),
    Mixture([50, 30, 20], [0.5, 0.4, 0.1], seed=3, epoch_size=300),
]


def everything(order, epoch=0):
    return order.at(epoch, np.arange(len(order)))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.describe()["order"])
def test_what_every_order_is(order):
    assert isinstance(order, Order)
    records = everything(order, 5)
    assert records.dtype == np.int64
    assert ((records >= 0) & (records < 100)).all()
    assert json.loads(json.dumps(order.describe())) == order.describe()
    assert len(pickle.dumps(order)) < 10_000
    again = pickle.loads(pickle.dumps(order))
    assert again.describe() == order.describe()
    some = np.random.default_rng(0).permutation(len(order))
    assert np.array_equal(again.at(5, some), records[some]), "positions may be asked for in any order"
    assert everything(order, 5).tolist() == records.tolist(), "and again, after other epochs"
    if order.describe()["order"] != "sequential":
        assert everything(order, 6).tolist() != records.tolist()
        assert everything(order, 0).tolist() != sorted(everything(order, 0)), "epoch 0 is shuffled too"


@pytest.mark.parametrize("order", ORDERS[:2])
def test_positions_of_is_the_inverse(order):
    records = np.arange(100)
    assert np.array_equal(order.at(2, order.positions_of(2, records)), records)


# ---- chunks -------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=6).filter(any),
    chunk_size=st.integers(1, 25),
    mix_chunks=st.integers(1, 8),
    seed=st.integers(0, 2**64),
)
def test_chunks_cover_each_record_once_and_stay_together(sizes, chunk_size, mix_chunks, seed):
    starts = np.cumsum([0, *sizes])
    order = Chunked(starts, chunk_size, mix_chunks=mix_chunks, seed=seed)
    records = everything(order, 4)
    assert sorted(records.tolist()) == list(range(starts[-1]))
    # Number the chunks, source by source; each mix holds whole chunks, mix_chunks of them, and no chunk comes again.
    source = np.searchsorted(starts, records, side="right") - 1
    chunk = [(int(s), int(r - starts[s]) // chunk_size) for s, r in zip(source, records, strict=True)]
    size_of = {}
    for each in chunk:
        size_of[each] = size_of.get(each, 0) + 1
    at, mixes = 0, []
    while at < len(chunk):
        mixes.append(set())
        while len(mixes[-1]) < mix_chunks and at < len(chunk):
            # Go on until every chunk that was met is used up and there are as many as a mix has.
            mixes[-1].add(chunk[at])
            at += 1
        total = sum(size_of[each] for each in mixes[-1])
        begin = sum(size_of[each] for mix in mixes[:-1] for each in mix)
        assert set(chunk[begin : begin + total]) == mixes[-1]
        at = begin + total
    assert sum(map(len, mixes)) == len(size_of)
    bounds = order.chunk_starts.tolist()
    assert bounds == [
        *(begin for s, end in pairwise(starts.tolist()) for begin in range(s, end, chunk_size)),
        starts[-1],
    ]
    of = [int(np.searchsorted(bounds, record, side="right")) - 1 for record in records]
    chunks, mixed = order.chunks(4).tolist(), order.mix_chunks
    for at, mix in zip(range(0, len(chunks), mixed), mixes, strict=True):
        assert {of[i] for i, each in enumerate(chunk) if each in mix} == set(chunks[at : at + mixed])


def test_chunks_need_no_table_of_records():
    order = Chunked(10**12, 1000, mix_chunks=16, seed=1)
    records = order.at(3, np.arange(16_000) + 10**11 // 16_000 * 16_000)
    assert len(np.unique(records // 1000)) == 16
    assert len(np.unique(records)) == 16_000
    assert len(pickle.dumps(order)) < 2000


def test_chunks_are_mixed_well():
    records = everything(Chunked(100_000, 100, mix_chunks=10, seed=0))
    first = records[:1000]
    assert abs(np.corrcoef(np.arange(1000), first)[0, 1]) < 0.15
    assert len(np.unique(first // 100)) == 10
    assert abs(np.corrcoef(np.arange(100_000), records)[0, 1]) < 0.1


# ---- with replacement ----------------------------------------------------------------------------------------


def test_resampled_is_uniform():
    drawn = everything(Resampled(50, 100_000, seed=1))
    expected = 2000
    chi = ((np.bincount(drawn, minlength=50) - expected) ** 2 / expected).sum()
    assert chi < 49 + 5 * np.sqrt(2 * 49)
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.015
    assert everything(Resampled(2**62, 1000)).max() > 2**61


# ---- mixtures -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(weights=st.lists(st.floats(0, 1e6) | st.integers(0, 20).map(float), min_size=1, max_size=9).filter(any))
def test_every_prefix_has_its_shares_to_within_one(weights):
    if sum(weights) < 1e-300:
        return
    order = Mixture([10] * len(weights), weights, epoch_size=70_000)
    members = order.members_at(np.arange(70_000))
    counts = np.cumsum(members[:, None] == np.arange(len(weights)), axis=0)
    shares = np.arange(1, 70_001)[:, None] * (np.array(order.weights) / sum(order.weights))
    assert np.abs(counts - shares).max() < 1
    wanted = np.array(weights) / sum(weights)
    assert np.abs(np.array(order.weights) / sum(order.weights) - wanted).max() < 2 * len(weights) / 65_536


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([3, 1], [3, 1]),
        ([0.7, 0.2, 0.1], [7, 2, 1]),
        ([1 / 3, 2 / 3], [1, 2]),
        ([5, 0], [1, 0]),
        ([1e-300, 1e-300], [1, 1]),
        ([0.123, 0.877], [123, 877]),
        ([2.5e9, 7.5e9], [1, 3]),
    ],
)
def test_simple_weights_are_exact(weights, expected):
    assert Mixture([10] * len(weights), weights).weights == expected


@settings(max_examples=100)
@given(weights=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(any))
def test_each_position_goes_to_the_dataset_that_must_have_it_soonest(weights):
    order = Mixture([10] * len(weights), weights, epoch_size=1)
    weights, total, given = order.weights, sum(order.weights), [0] * len(weights)
    for position, member in enumerate(order.members_at(np.arange(total))):
        deserving = [d for d, weight in enumerate(weights) if given[d] * total < (position + 1) * weight]
        assert member == min(deserving, key=lambda d: (-(-(given[d] + 1) * total // weights[d]), d))
        given[member] += 1


@pytest.mark.parametrize("count", [10, 1000, 20_000])
def test_many_small_datasets_leave_a_large_one_its_share(count):
    order = Mixture([10] * (count + 1), [0.9, *[0.1 / count] * count], epoch_size=1)
    assert order.weights == [9 * count, *[1] * count]
    uneven = 0.1 * np.arange(1, count + 1) / np.arange(1, count + 1).sum()
    order = Mixture([10] * (count + 1), [0.9, *uneven], epoch_size=1)
    shares = np.array(order.weights) / sum(order.weights)
    assert shares.min() > 0
    assert abs(shares[0] - 0.9) < 0.001
    assert abs(shares[1:] - uneven).max() <= 1 / sum(order.weights)


def test_many_tiny_datasets_take_a_64th_at_most():
    count = 20_000
    order = Mixture([10] * (count + 2), [0.6, 0.4, *[1e-12] * count], epoch_size=1)
    period = sum(order.weights)
    assert order.weights[2:] == [1] * count
    assert period == 64 * (count + 2)
    assert abs(np.array(order.weights[:2]) / (period - count) - [0.6, 0.4]).max() <= 1 / (period - count)


def test_epochs_of_many_datasets_end_with_the_first_or_the_longest():
    rng = np.random.default_rng(0)
    sizes, weights = rng.integers(1, 50, 3000).tolist(), rng.lognormal(size=3000).tolist()
    members = Mixture(sizes, weights, epoch_size=1).members_at(np.arange(3_000_000))
    counts, ended = [0] * len(sizes), []
    for position, member in enumerate(members.tolist(), 1):
        counts[member] += 1
        if counts[member] == sizes[member]:
            ended.append(position)
    assert len(Mixture(sizes, weights, stop="first")) == ended[0]
    assert len(ended) < len(sizes) or len(Mixture(sizes, weights, stop="longest")) == ended[-1]


def test_a_dataset_is_seen_whole_before_any_of_it_again_and_then_in_another_order():
    order = Mixture([1000, 20], [0.5, 0.5], seed=1, epoch_size=200)
    records = everything(order, 7)
    small = records[records >= 1000] - 1000
    passes = small.reshape(5, 20)
    assert all(sorted(each.tolist()) == list(range(20)) for each in passes)
    assert len({tuple(each.tolist()) for each in passes}) == 5
    assert len(np.unique(records[records < 1000])) == 100


def test_stop_at_the_first_or_the_longest():
    first = Mixture([100, 10], [1, 1], stop="first")
    longest = Mixture([100, 10], [1, 1], stop="longest")
    assert len(first) in (19, 20)
    assert len(longest) in (199, 200)
    assert len(np.unique(everything(first)[everything(first) >= 100])) == 10
    assert len(np.unique(everything(longest)[everything(longest) < 100])) == 100
    assert len(Mixture([100, 10], [1, 0], stop="longest")) == 100


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any),
    weights=st.lists(st.integers(0, 9), min_size=4, max_size=4),
    epoch_size=st.none() | st.integers(1, 36),
)
def test_a_mixture_knows_whether_every_record_comes_once(sizes, weights, epoch_size):
    weights = [weight if size else 0 for size, weight in zip(sizes, weights, strict=False)]
    if not any(weights):
        weights = sizes
    for given_weights in (weights, sizes):
        order = Mixture(sizes, given_weights, epoch_size=epoch_size)
        records = order.at(0, np.arange(len(order))).tolist()
        assert order.is_bijection == (sorted(records) == list(range(sum(sizes))))


def test_a_mixture_in_the_datasets_own_order():
    order = Mixture([4, 4], [1, 1], shuffle=False, epoch_size=8)
    records = everything(order)
    assert records[records < 4].tolist() == [0, 1, 2, 3]
    assert records[records >= 4].tolist() == [4, 5, 6, 7]


# ---- bad arguments --------------------------------------------------------------------------------------------


class Unreadable:
    """As a tensor of torch that requires gradients."""

    def __len__(self):
        return 2

    def __array__(self, *_, **__):
        raise RuntimeError("there is no array of it")

    def __repr__(self):
        return "Unreadable"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sequential(0), "n = 0, expected an integer of 1 or more"),
        (lambda: Shuffled(-1), "n = -1"),
        (lambda: Shuffled(2**63), "n = 9223372036854775808"),
        (lambda: Chunked(10, 0), "chunk_size = 0"),
        (lambda: Chunked(10, 2.5), "chunk_size = 2.5"),
        (lambda: Chunked(10, 2, mix_chunks=0), "mix_chunks = 0"),
        (lambda: Chunked([0, 5, 3], 2), "never fall"),
        (lambda: Chunked([1, 5], 2), "begin with 0"),
        (lambda: Chunked([0, 0], 2), "n = 0"),
        (lambda: Chunked([0.5, 3], 2), "n: expected integers, found an array of type float64"),
        (lambda: Chunked([[0], [1, 2]], 2), r"n: expected integers, found list \(setting an array element"),
        (lambda: Chunked(Unreadable(), 2), "n: expected integers, found Unreadable"),
        (lambda: Chunked(range(9), 2), r"n = range\(0, 9\), expected an integer of 1 or more"),
        (lambda: Chunked(9, "blocks"), "chunk_size = 'blocks', expected an integer of 1 or more"),
        (lambda: Chunked(9, "block"), "chunk_size = 'block', expected a dataset of mmapds beside it, found int"),
        (lambda: Resampled(10, 0), "epoch_size = 0"),
        (lambda: Mixture([], []), r"weights = \[\], expected one number for each dataset"),
        (lambda: Mixture([5, 5], [[1], 0.5]), r"weights = \[\[1\], 0.5\], expected one number for each dataset"),
        (lambda: Mixture([5, 5], Unreadable()), "weights = Unreadable, expected one number for each"),
        (lambda: Mixture([5, 5], [None, "x"]), r"weights = \[None, 'x'\], expected one number for each dataset"),
        (lambda: Mixture([None, 5], [1, 1]), r"sizes\[0\] = None, expected an integer of 0 or more"),
        (lambda: Mixture([1], [1, 2]), "weights: expected 1, one for each dataset, found 2"),
        (lambda: Mixture([1, 1], [1, -2]), r"weights = \[1, -2\], expected finite numbers of 0 or more"),
        (lambda: Mixture([1, 1], [1, float("nan")]), "expected finite numbers"),
        (lambda: Mixture([1, 1], [0, 0]), "not all 0"),
        (lambda: Mixture([1, 0], [1, 1]), r"sizes\[1\] = 0"),
        (lambda: Mixture([2**62, 2**62], [1, 1]), r"sizes: expected fewer than 2\*\*63 records together, found 9223"),
        (
            lambda: Mixture([2**50, 10], [1, 65535], stop="longest"),
            "epoch_size: expected .* of fewer than 2",
        ),
        (lambda: Mixture([1, 1], [1, 1], epoch_size=2**63), r"epoch_size = 9\d+, expected an integer below 2\*\*63"),
        (lambda: Mixture([1, 1], [1, 1], stop="last"), "stop = 'last', expected 'first' or 'longest'"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(OrderError, match=message):
        make()


@pytest.mark.parametrize("order", ORDERS[2:3], ids=["chunked"])
def test_positions_out_of_range_are_refused(order):
    with pytest.raises(IndexError, match="position 100 is out of range for an epoch of 100"):
        order.at(0, np.array([3, 100]))
    with pytest.raises(IndexError):
        order.at(0, np.array([-1]))


def test_sources_of_other_sizes_are_another_order():
    one, other = Chunked([0, 10, 30], 4), Chunked([0, 20, 30], 4)
    assert one.describe() != other.describe()


def test_a_chunk_may_be_as_large_as_one_likes():
    order = Chunked([0, 10, 31], 2**62, mix_chunks=2**62)
    assert sorted(order.at(0, np.arange(31)).tolist()) == list(range(31))


class Answering:
    """An order of a user's own, whose `at` returns what it was given."""

    def __init__(self, answer):
        self.answer = answer

    def __len__(self):
        return 6

    def at(self, epoch, positions):
        return self.answer(positions)

    def describe(self):
        return {"order": "answering"}


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        (lambda positions: positions.tolist(), "list"),
        (lambda _: None, "NoneType"),
        (lambda positions: positions / 1, "one of float64 and shape (6,)"),
        (lambda positions: positions[:3], "one of int64 and shape (3,)"),
        (lambda positions: positions[:, None], "one of int64 and shape (6, 1)"),
    ],
    ids=["list", "None", "floats", "too few", "two axes"],
)
def test_what_an_order_of_a_users_own_returns_is_checked(answer, found):
    message = f"order: expected at() of Answering to return an int64 array of shape (6,), found {found}"
    order = Answering(answer)
    for sampler in (
        DistributedBatchSampler(range(6), 6, 1, 0, order=order),
        TokenBudgetBatchSampler([3] * 6, 100, num_replicas=1, rank=0, planner="window", order=order),
    ):
        with pytest.raises(OrderError, match=f"^{re.escape(message)}$"):
            list(sampler)


@pytest.mark.parametrize("dtype", [np.int32, np.uint64])
def test_an_order_of_a_users_own_may_return_other_integers(dtype):
    order = Answering(lambda positions: positions[::-1].astype(dtype))
    assert list(DistributedBatchSampler(range(6), 3, 1, 0, order=order)) == [[5, 4, 3], [2, 1, 0]]
