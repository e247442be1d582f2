"""docs/drawn.md: how often, and when, a record comes. Each order beside a plain one; exact counts over any ranks."""

import json
import math
import pickle
from bisect import bisect_right
from collections import Counter
from fractions import Fraction
from itertools import accumulate, chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    Error,
    OrderError,
    Permutation,
    _native,
    orders,
)
from tests.support.messages import check

SEEDS = st.integers(0, 3)
POSITIONS = st.randoms(use_true_random=False)


def drawn(n, seed, epoch, positions):
    out = np.empty(len(positions), np.int64)
    _native.draw(n, seed % 2**64, epoch, np.array(positions, np.int64), out)
    return out.tolist()


def same(order, epoch, expected):
    """Hold that an order has the records, read whole, in any order of positions, and from its pickle."""
    n = len(order)
    assert order.at(epoch, np.arange(n)).tolist() == expected
    mixed = np.random.default_rng(0).permutation(n)
    assert pickle.loads(pickle.dumps(order)).at(epoch, mixed).tolist() == [expected[place] for place in mixed]


# ---- by weight -------------------------------------------------------------------------------------------------


weights_of = st.lists(st.integers(0, 9) | st.integers(0, 2**40), min_size=1, max_size=40).filter(any)


def rounded(weights, draws, seed, epoch):
    """How often each record comes: a tree that halves the records gives each half its number, rounded up or down."""
    total = sum(weights)

    def give(first, last, number):
        if last - first == 1:
            return [number]
        middle = first + (last - first) // 2
        left, right = (Fraction(sum(weights[b:e]) * draws, total) for b, e in ((first, middle), (middle, last)))
        up = number - math.floor(left) - math.floor(right)
        if up == 1:
            parts = [(each % 1) * total for each in (left, right)]
            if sum(parts) < total:
                up = int(drawn(int(sum(parts)), seed, epoch, [middle])[0] < parts[0])
            else:
                up = int(drawn(int(2 * total - sum(parts)), seed, epoch, [middle])[0] < total - parts[1])
        else:
            up //= 2
        mine = math.floor(left) + up
        return give(first, middle, mine) + give(middle, last, number - mine)

    return give(0, len(weights), draws)


@given(weights_of, st.integers(1, 200), SEEDS, st.integers(0, 3))
def test_draws_by_weight(weights, size, seed, epoch):
    sums = list(accumulate(weights))
    expected = [bisect_right(sums, each) for each in drawn(sums[-1], seed, epoch, range(size))]
    same(orders.Weighted(weights, size, seed=seed), epoch, expected)

    counts = rounded(weights, size, seed ^ 0x5DEECE66D2B79F8B, epoch)
    for count, weight in zip(counts, weights, strict=True):
        exact = Fraction(weight * size, sums[-1])
        assert math.floor(exact) <= count <= math.ceil(exact)
    in_order = list(chain.from_iterable([record] * count for record, count in enumerate(counts)))
    places = Permutation(size, seed, epoch)[np.arange(size)]
    same(orders.Weighted(weights, size, replacement=False, seed=seed), epoch, [in_order[place] for place in places])


@pytest.mark.parametrize("replacement", [True, False])
@pytest.mark.parametrize("scale", [1, 0.1, 1e-300, 1e300])
def test_a_million_draws_follow_the_weights(replacement, scale):
    """Chi-square below its 99.99 % quantile; without replacement, over the rounding of many epochs."""
    weights = np.random.default_rng(0).integers(0, 100, 9000) * scale
    weights[5000:5100] = 0
    size, epochs = (10**6, 1) if replacement else (4500, 222)
    order = orders.Weighted(weights, size, replacement=replacement, seed=5)
    found = sum(np.bincount(order.at(epoch, np.arange(size)), minlength=9000) for epoch in range(epochs))
    expected = weights / weights.sum() * size * epochs
    assert not found[weights == 0].any()
    likely = weights > 0
    if not replacement:
        per_epoch = weights / weights.sum() * size
        assert (found >= np.floor(per_epoch) * epochs).all()
        assert (found <= np.ceil(per_epoch) * epochs).all()
        part = per_epoch % 1
        likely = (part > 1e-6) & (part < 1 - 1e-6)
        spread = epochs * part * (1 - part)
    else:
        spread = expected
    chi = ((found - expected)[likely] ** 2 / spread[likely]).sum()
    degrees = likely.sum() - 1
    assert abs(chi - degrees) < 4 * math.sqrt(2 * degrees)


def test_weights_in_a_file_are_those_in_memory(tmp_path):
    weights = np.random.default_rng(0).random(3_000_000)  # more than are held in memory
    path = tmp_path / "quality.mmw"
    orders.save_weights(path, weights)
    given, read = (orders.Weighted(each, 5000, seed=3) for each in (weights, path))
    assert given.describe() == read.describe()
    places = np.arange(5000)
    assert given.at(1, places).tolist() == read.at(1, places).tolist()
    assert len(pickle.dumps(read)) < 2000
    assert pickle.loads(pickle.dumps(read)).at(1, places).tolist() == read.at(1, places).tolist()
    sums = np.cumsum(weights)
    near = np.searchsorted(sums, np.array(drawn(2**61, 3, 1, range(5000))) / 2**61 * sums[-1], side="right")
    assert np.abs(near - given.at(1, places)).mean() < 1500, "the same draws, but for the scale"


# ---- parts, scores, chunks -----------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 70), SEEDS)
def test_parts_go_on_where_the_last_one_ended(n, size, seed):
    order, passes = orders.Shuffled(n, seed), 12
    whole = np.concatenate([order.at(each, np.arange(n)) for each in range(passes)]).tolist()
    for epoch in range(passes * n // size):
        same(orders.Parts(order, size), epoch, whole[epoch * size : (epoch + 1) * size])


@given(
    st.lists(st.integers(-5, 5), min_size=1, max_size=60),
    st.integers(1, 20),
    st.booleans(),
    st.none() | st.just(1),
    SEEDS,
)
def test_a_curriculum(scores, window, reverse, epochs, seed):
    ranked = sorted(range(len(scores)), key=lambda record: scores[record])
    ranked = ranked[::-1] if reverse else ranked
    expected, window = [], min(window, len(scores))
    for number, begin in enumerate(range(0, len(scores), window)):
        own = ranked[begin : begin + window]
        mixed = Permutation(len(own), seed, 0, stream=(1 << 61) + number)
        expected += [own[mixed[place]] for place in range(len(own))]
    order = orders.Sorted(scores, window, reverse=reverse, epochs=epochs, seed=seed)
    same(order, 0, expected)
    if epochs:
        same(order, 1, orders.Shuffled(len(scores), seed).at(1, np.arange(len(scores))).tolist())


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5).filter(any), st.integers(1, 20), st.integers(0, 3), SEEDS)
def test_chunks_with_replacement(sizes, chunk_size, mix, seed):
    bounds = [0, *accumulate(sizes)]
    chunks = orders.Chunked(bounds, chunk_size).chunk_starts.tolist()
    width, total = max(b - a for a, b in pairwise(chunks)), 3 * bounds[-1]
    order = orders.ResampledChunks(bounds, chunk_size, mix_chunks=mix, epoch_size=total, seed=seed)
    together, expected = max(mix, 1), []
    for number in range(-(-total // (width * together))):
        draws = drawn(bounds[-1], seed, 2, range(number * together, (number + 1) * together))
        own = []
        for record in draws:
            chunk = bisect_right(chunks, record) - 1
            begin, size = chunks[chunk], chunks[chunk + 1] - chunks[chunk]
            own += [begin + place % size for place in range(width)]
        if mix:
            mixed = Permutation(len(own), seed, 2, stream=(1 << 61) + number)
            own = [own[mixed[place]] for place in range(len(own))]
        expected += own
    same(order, 2, expected[:total])
    for begin, end, first, stop in order.spans(2).tolist():
        assert first < stop <= total
        assert stop - first < (mix or 1) * width or set(expected[first:stop]) & set(range(begin, end))


# ---- samplers ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ds(write):
    path = write([{"id": i, "length": 1 + i % 13, "often": i % 4, "score": -i} for i in range(240)])
    mmapds.build(path, length="length", columns={"often": "often", "score": "score"})
    return mmapds.open(path)


def killed(make, state=None, epochs=1):
    """What all ranks read of some epochs, at other worlds after each of three kills."""
    read = []
    worlds = [1, 2, 3, 8]
    for number, world in enumerate(worlds):
        samplers = [make(num_replicas=world, rank=rank) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(json.loads(json.dumps(state)))
        while samplers[0].epoch < epochs:
            epoch, first, last = samplers[0].epoch, samplers[0].first_step, len(samplers[0])
            stop = (
                first + 24 // samplers[0]._sharding.stride if number < 3 and epoch == min(number, epochs - 1) else last
            )
            for step in range(first, min(stop, last)):
                found = samplers[0].indices_at(step)
                parts = found.T.ravel() if isinstance(found, np.ndarray) else np.concatenate(list(found))
                read += parts.tolist()
            state = samplers[0].state_dict(step=min(stop, last))
            for sampler in samplers:
                sampler.load_state_dict(state)
            if stop < last:
                break
    return read


def test_every_record_comes_as_often_as_it_should_over_worlds_with_three_kills(ds):
    often = np.arange(240) % 4
    repeated = ds.repeat("often")
    counts = Counter(repeated[place]["id"] for place in range(len(repeated)))
    assert counts == Counter({i: int(often[i]) for i in range(240) if often[i]})
    by_weight = orders.Weighted(often, int(often.sum()), replacement=False, seed=1)
    whole = {"pad": False}
    for make in (
        lambda **world: DistributedSampler(repeated, **whole, **world),
        lambda **world: DistributedBatchSampler(repeated, 2, **whole, **world),
        lambda **world: ChunkedSampler(repeated, 10, epoch_size=len(repeated), **world),
        lambda **world: mmapds.TokenBudgetBatchSampler(repeated, 20, group_size=24, **world),
        lambda **world: mmapds.TokenBudgetBatchSampler(repeated, 20, group_size=24, planner="window", **world),
        lambda **world: mmapds.PackingBatchSampler(repeated, 20, group_size=24, **world),
    ):
        read = killed(make)
        assert Counter(read) == dict.fromkeys(range(len(repeated)), 1)
    read = killed(lambda **world: DistributedBatchSampler(ds, 2, order=by_weight, **whole, **world))
    assert Counter(read) == Counter({i: int(often[i]) for i in range(240) if often[i]})


@pytest.mark.parametrize("kind", ["samples", "batches", "chunks", "budget", "window", "packs", "mixture"])
def test_every_record_once_a_pass_in_parts(ds, kind):
    """The parts are no divisor of a pass; five passes, with kills."""
    parts = [mmapds.TokenBudgetBatchSampler(half, 20) for half in (ds[:120], ds[120:])]
    make = {
        "samples": lambda **own: DistributedSampler(ds, part_size=72, **own),
        "batches": lambda **own: DistributedBatchSampler(ds, 1, part_size=72, **own),
        "chunks": lambda **own: ChunkedSampler(ds, 10, mix_chunks=3, part_size=72, **own),
        "budget": lambda **own: mmapds.TokenBudgetBatchSampler(ds, 20, part_size=48, group_size=24, **own),
        "window": lambda **own: mmapds.TokenBudgetBatchSampler(
            ds, 20, part_size=48, group_size=24, planner="window", **own
        ),
        "packs": lambda **own: mmapds.PackingBatchSampler(ds, 20, part_size=48, group_size=24, **own),
        "mixture": lambda **own: mmapds.MixtureBatchSampler(
            parts, [1, 1], part_size=48, stop="longest", share="samples", **own
        ),
    }[kind]
    alone = make(num_replicas=1, rank=0)
    if kind in ("samples", "batches", "chunks"):
        epochs, per_pass = 20, 240
        assert len(alone) == 72
    else:
        per_pass, epochs = len(alone._contents.plan), 15
        assert len(alone) == 48
    read = killed(make, epochs=epochs)
    if kind in ("samples", "batches", "chunks"):
        for begin in range(0, 5 * 240, 240):
            assert sorted(read[begin : begin + per_pass]) == list(range(240))
    else:
        whole = killed(make, epochs=per_pass // math.gcd(per_pass, 48))
        counts = set(Counter(whole).values())
        assert len(counts) == (1 if kind != "mixture" else len(counts))
        assert set(whole) == set(range(240))


def test_a_sampler_draws_by_a_column_and_refuses_a_state_of_other_weights(ds):
    sampler = DistributedBatchSampler(ds, 4, 2, 0, weights="often", epoch_size=1000, seed=3)
    assert len(sampler) == 125
    read = killed(lambda **own: DistributedBatchSampler(ds, 1, weights="often", epoch_size=960, seed=3, **own))
    assert {record % 4 for record in read} == {1, 2, 3}
    assert len(read) == 960
    assert list(ds.stream(batch_size=4, weights="often", epoch_size=8, shuffle=True))
    other = DistributedBatchSampler(ds, 4, 2, 0, weights=np.ones(240), epoch_size=1000, seed=3)
    mine, theirs = (each.state_dict()["order"]["weights"] for each in (sampler, other))
    with pytest.raises(mmapds.StateError, match=rf"expected weights = '{theirs}', found '{mine}'"):
        other.load_state_dict(sampler.state_dict())


def test_resampled_chunks_come_from_few_chunks_at_a_time(ds):
    sampler = ChunkedSampler(ds, 20, 1, 0, resample=True, mix_chunks=0, epoch_size=2400)
    read = np.array(list(sampler)).reshape(-1, 20)
    assert (np.diff(read) == 1).all()
    assert set(read[:, 0] % 20) == {0}
    assert len(np.unique(read[:3, 0])) > 1
    assert len(killed(lambda **own: ChunkedSampler(ds, 20, resample=True, epoch_size=2400, **own))) == 2400


# ---- kinds -----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.tuples(st.sampled_from([3, 3, 3, 7, 7, 9]), st.integers(1, 30)), min_size=12, max_size=150),
    st.sampled_from(["budget", "packs"]),
    st.sampled_from([1, 2, 3, 4]),
    SEEDS,
)
def test_batches_hold_one_kind_and_so_do_steps(samples, sampler, ranks, seed):
    kinds, lengths = map(np.array, zip(*samples, strict=True))
    limits = {3: 60, 7: 40, 9: 30}
    if sampler == "budget":
        made = mmapds.TokenBudgetBatchSampler(
            lengths, limits, kind=kinds, num_replicas=ranks, rank=0, group_size=12, seed=seed
        )
    else:
        made = mmapds.PackingBatchSampler(lengths, 60, kind=kinds, num_replicas=ranks, rank=0, group_size=12, seed=seed)
        limits = dict.fromkeys(limits, 60)
    for epoch in (0, 1):
        made.set_epoch(epoch)
        read = []
        for step in range(len(made)):
            batches = made.indices_at(step)
            (kind,) = {int(kinds[record]) for batch in batches for record in batch}
            for batch in batches:
                used = lengths[batch].max() * len(batch) if sampler == "budget" else lengths[batch].sum()
                assert used <= limits[kind] == made.limit_of(batch)[1]
            read += np.concatenate(batches).tolist()
        again = Counter(read) - Counter(range(len(samples)))
        assert set(read) == set(range(len(samples))), "small kinds are kept"
        assert made.summary().repeated == again.total()
        assert again.total() < 12 * len(set(kinds.tolist())), "kinds repeat only to fill a step"
    assert made.summary().samples == len(samples)


def test_kinds_over_worlds_with_three_kills(ds):
    for make in (
        lambda **own: mmapds.TokenBudgetBatchSampler(
            ds, dict.fromkeys(range(4), 26), kind="often", group_size=24, **own
        ),
        lambda **own: mmapds.PackingBatchSampler(ds, 20, kind="often", group_size=24, **own),
        lambda **own: mmapds.TokenBudgetBatchSampler([1] * 240, 2, kind=np.arange(240) % 4, group_size=24, **own),
    ):
        assert Counter(killed(make)) == dict.fromkeys(range(240), 1)


# ---- mixtures that change ------------------------------------------------------------------------------------------


def draws_of(size, d, sizes, seed, epoch, count):
    """The records of the first draws of a dataset, in passes."""
    weights = [0] * len(sizes)
    weights[d] = 1
    order = orders.Mixture([*sizes[:d], size, *sizes[d + 1 :]], weights, epoch_size=max(count, 1), seed=seed)
    return order.at(epoch, np.arange(count)).tolist()


@given(
    st.lists(st.integers(1, 20), min_size=2, max_size=3),
    st.lists(
        st.tuples(st.integers(1, 60), st.lists(st.integers(1, 5), min_size=3, max_size=3)), min_size=1, max_size=4
    ),
    SEEDS,
)
def test_a_mixture_that_changes(sizes, changes, seed):
    begins = [0, *accumulate(gap for gap, _ in changes)]
    schedule = [(begin, weights[: len(sizes)]) for begin, (_, weights) in zip(begins, changes, strict=False)]
    total, expected, done = begins[-1], [], [0] * len(sizes)
    draws = [draws_of(size, d, sizes, seed, 3, total) for d, size in enumerate(sizes)]
    for (begin, weights), end in zip(schedule, begins[1:], strict=True):
        for d in orders.Mixture(sizes, weights, epoch_size=total).members_at(np.arange(end - begin)).tolist():
            expected.append(draws[d][done[d]])
            done[d] += 1
        part = np.searchsorted(np.cumsum(sizes), expected[begin:end], side="right")
        for d, weight in enumerate(weights):
            assert abs((part == d).sum() - (end - begin) * weight / sum(weights)) < len(sizes), "exact in a segment"
    same(orders.Changing(sizes, schedule, epoch_size=total, seed=seed), 3, expected)
    constant = orders.Mixture(sizes, schedule[0][1], epoch_size=total, seed=seed)
    same(
        orders.Changing(sizes, schedule[:1], epoch_size=total, seed=seed), 3, constant.at(3, np.arange(total)).tolist()
    )


def test_a_ramp_is_linear():
    order = orders.Changing([10, 10], [(0, [1, 0]), (64_000, [0, 1])], epoch_size=70_000, ramps=True)
    first = order.at(0, np.arange(70_000)) < 10
    shares = [first[begin : begin + 7000].mean() for begin in range(0, 70_000, 7000)]
    middles = [1 - (begin + 3500) / 64_000 for begin in range(0, 63_000, 7000)]
    assert np.abs(np.array(shares[:9]) - middles).max() < 0.02
    assert not first[64_000:].any()


def test_a_job_goes_on_with_other_weights_another_dataset_and_a_grown_one():
    """What was drawn stays drawn: of datasets that stay, every record comes once a pass over all changes."""

    def of(sizes, weights):
        return lambda **own: mmapds.MixtureSampler(sizes, weights, epoch_size=480, seed=3, **own)

    first, second, third = of([100, 60], [3, 1]), of([100, 60], [1, 1]), of([100, 60, 40], [1, 1, 2])
    one = first(num_replicas=2, rank=0)
    read = np.concatenate([one.indices_at(step) for step in range(60)]).tolist()  # 120 samples
    two = second(num_replicas=3, rank=0)
    with pytest.raises(mmapds.StateError):
        two.load_state_dict(one.state_dict(step=60))
    two.continue_from(json.loads(json.dumps(one.state_dict(step=60))))
    assert two.first_step == 40
    read += np.concatenate([two.indices_at(step) for step in range(40, 80)]).tolist()  # 120 more
    again = second(num_replicas=1, rank=0)
    again.load_state_dict(json.loads(json.dumps(two.state_dict(step=80))))
    assert again.indices_at(240) == two.indices_at(80)[0], "a state keeps the change"
    again.continue_from(two.state_dict(step=80))
    assert again.indices_at(240) == two.indices_at(80)[0], "and nothing changes twice"
    three = third(num_replicas=4, rank=0)
    three.continue_from(two.state_dict(step=80))
    read += np.concatenate([three.indices_at(step) for step in range(60, 120)]).tolist()
    member = np.searchsorted([100, 160], read, side="right")
    assert np.bincount(member[:120]).tolist() == [90, 30]
    assert np.bincount(member[120:240]).tolist() == [60, 60]
    assert np.bincount(member[240:]).tolist() == [60, 60, 120]
    for d, (begin, size) in enumerate([(0, 100), (100, 60), (160, 40)]):
        own = np.array(read)[member == d]
        for at in range(0, len(own) - size + 1, size):
            assert sorted(own[at : at + size]) == list(range(begin, begin + size))
    three.set_epoch(1)
    assert (np.concatenate([three.indices_at(step) for step in range(10)]) >= 160).sum() == 20, (
        "the next epoch has none"
    )
    grown = of([100, 90], [1, 1])(num_replicas=1, rank=0)
    grown.continue_from(one.state_dict(step=60))
    rest = np.concatenate([grown.indices_at(step) for step in range(120, 480)])
    more = rest[rest >= 100]
    assert sorted(more[:90]) == list(range(100, 190))
    kept = [record for record in read[:120] if record < 100] + rest[rest < 100].tolist()
    assert sorted(kept[:100]) == list(range(100))
    at_end = first(num_replicas=1, rank=0)
    two.continue_from(at_end.state_dict(step=480))
    assert (two.epoch, two.first_step) == (1, 0)
    assert Counter(killed(of([120, 120], [(0, [1, 0]), (120, [0, 1]), (240, [1, 1])]))) == dict.fromkeys(range(240), 2)


def test_another_dataset_in_the_place_of_one_is_refused_and_parts_of_a_pass_go_on(ds):
    one, two = ds[:120], ds[120:]
    first = mmapds.MixtureSampler([one, two], [3, 1], num_replicas=1, rank=0, epoch_size=400)
    state = json.loads(json.dumps(first.state_dict(step=100)))

    def of(*datasets, **options):
        own = {"num_replicas": 1, "rank": 0, "epoch_size": 400, **options}
        return mmapds.MixtureSampler(datasets, [1] * len(datasets), **own)

    of(one, two).continue_from(state)
    of(one, two, ds[:5]).continue_from(state)
    for wrong in ((two, one), (one[::-1], two), (ds[:5], one, two), (one[:50], two)):
        with pytest.raises(mmapds.StateError, match=r"datasets\[\d\]: expected .*"):
            of(*wrong).continue_from(state)
    for other in (of(one, two), of(one, two, ds[:5])):
        with pytest.raises(mmapds.StateError, match=r"call sampler.continue_from\(state\)"):
            other.load_state_dict(state)
    with pytest.raises(
        mmapds.StateError, match="epoch_size = 90, expected more than 100, the position of the state; give"
    ):
        of(one, two, epoch_size=90).continue_from(state)

    whole, parts = of(one, two), of(one, two, part_size=80)
    for each in (whole, parts):
        each.continue_from(state)
    assert (parts.epoch, parts.first_step, whole.first_step) == (1, 20, 100)
    read = []
    for epoch in range(1, 5):
        parts.set_epoch(epoch)
        read += [int(parts.indices_at(step)[0]) for step in range(20 if epoch == 1 else 0, 80)]
    assert read == [int(whole.indices_at(step)[0]) for step in range(100, 400)]
    later = of(one, two, part_size=80)
    later.load_state_dict(parts.state_dict(step=40))
    assert later.indices_at(40) == parts.indices_at(40)
    again = of(one, two)
    again.continue_from(parts.state_dict(step=40))
    assert (again.first_step, again.indices_at(360)) == (360, parts.indices_at(40))


def test_batches_of_a_curriculum_come_in_its_order(ds):
    order = orders.Sorted(ds.lengths, window=10, epochs=1, seed=3)
    sampler = mmapds.TokenBudgetBatchSampler(ds, 30, planner="window", order=order, num_replicas=1, rank=0)
    means = [
        np.mean([ds.lengths[batch].mean() for batch in part])
        for part in np.array_split(np.array([*sampler], object), 6)
    ]
    assert means == sorted(means)
    assert Counter(record for batch in sampler for record in batch) == dict.fromkeys(range(240), 1)


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda _: orders.Weighted([1, -1, 2]), "weights[1] = -1, expected a finite number of 0 or more"),
        (lambda _: orders.Weighted([1, math.nan]), "weights[1] = nan, expected a finite number"),
        (lambda _: orders.Weighted([math.inf, 1]), "weights[0] = inf, expected a finite number"),
        (lambda _: orders.Weighted([0.0, 0.0]), "weights: expected a finite sum above 0, found 0.0"),
        (lambda _: orders.Weighted([1e308] * 9), "weights: expected a finite sum above 0, found inf"),
        (lambda _: orders.Weighted([[1.0]]), "weights: expected one number or more, of one axis, found float64"),
        (lambda _: orders.Weighted("nowhere.mmw"), "weights = 'nowhere.mmw', expected a file of save_weights"),
        (lambda ds: DistributedSampler(ds, weights=[1, 2]), "weights: expected 240, one for each record, found 2"),
        (lambda _: DistributedSampler(range(9), weights="a"), "weights = 'a', expected numbers, or a column"),
        (lambda ds: DistributedSampler(ds, weights="nothing"), "expected column 'nothing'"),
        (lambda ds: DistributedSampler(ds, weights="often", shuffle=False), "shuffle = False, expected True with weig"),
        (
            lambda ds: DistributedSampler(ds, weights="often", order=orders.Shuffled(240)),
            "weights = 'often', expected None together with order=",
        ),
        (
            lambda ds: DistributedSampler(ds, part_size=9, epoch_size=20),
            "epoch_size = 20, expected None with part_size",
        ),
        (lambda ds: DistributedSampler(ds, part_size=9, drop_last=True), "drop_last = True, expected False with part_"),
        (lambda ds: mmapds.PackingBatchSampler(ds, 20, part_size=2, drop_last=True), "drop_last = True, expected Fal"),
        (lambda ds: DistributedSampler(ds, part_size=0), "part_size = 0, expected an integer of 1 or more"),
        (lambda ds: ChunkedSampler(ds, 9, lanes=2, part_size=9), "lanes = 2, expected 1 with resample=True or part_"),
        (lambda ds: ChunkedSampler(ds, 9, shuffle=False, resample=True), "shuffle = False, expected True with resam"),
        (lambda _: orders.Sorted([1.0, math.nan]), "key[1] = nan, expected a number"),
        (lambda _: orders.Sorted([]), "key: expected one number or more, of one axis"),
        (
            lambda ds: mmapds.TokenBudgetBatchSampler(ds, {0: 20, 1: 20}, kind="often"),
            "max_tokens: expected one for kind 2, found those of [0, 1]",
        ),
        (
            lambda ds: mmapds.TokenBudgetBatchSampler(ds, {0: 20, 1: 20, 2: 20, 3: 9}, kind="often"),
            "max_tokens = 9, expected 13 or more, the cost of lengths[",
        ),
        (
            lambda ds: mmapds.PackingBatchSampler(ds, 20, kind=[0.5] * 240),
            "kind: expected integers, one for each of 240",
        ),
        (
            lambda ds: mmapds.PackingBatchSampler(ds, 20, kind=[1]),
            "kind: expected integers, one for each of 240 records",
        ),
        (
            lambda ds: mmapds.PackingBatchSampler(ds, 20, kind="often", drop_last=True),
            "drop_last = True, expected False",
        ),
        (
            lambda ds: mmapds.TokenBudgetBatchSampler(ds, 20, kind="often", planner="window"),
            "planner = 'window', expected the other one with kind=",
        ),
        (
            lambda _: mmapds.TokenBudgetBatchSampler([1, 2], 20, kind="often"),
            "kind = 'often', expected integers, or a",
        ),
        (
            lambda _: mmapds.MixtureSampler([5, 5], [(5, [1, 1])], epoch_size=9),
            "weights: expected positions that rise from 0, found [5]",
        ),
        (
            lambda _: mmapds.MixtureSampler([5, 5], [(0, [1, 1]), (0, [1, 2])], epoch_size=9),
            "weights: expected positions that rise from 0, found [0, 0]",
        ),
        (
            lambda _: mmapds.MixtureSampler([5, 5], [(0, [1, 1])]),
            "epoch_size = None, expected a number of samples with",
        ),
        (
            lambda _: mmapds.MixtureSampler([5, 5], [(0, [1])], epoch_size=9),
            "weights = [1], expected one number for each",
        ),
        (
            lambda _: mmapds.MixtureSampler([5, 5], [1, 1], ramps=True),
            "ramps = True, expected False without a schedule",
        ),
        (
            lambda ds: DistributedSampler(ds).continue_from(DistributedSampler(ds).state_dict()),
            "continue_from: expected a mixture, found Shuffled",
        ),
        (
            lambda ds: mmapds.MixtureSampler([5, 5], [1, 1]).continue_from(DistributedSampler(ds).state_dict()),
            "state['order']: expected a mixture of samples, found 'shuffled'",
        ),
        (lambda ds: ds.repeat([-1] * 240), "counts[0] = -1, expected 0 to "),
        (lambda ds: ds.repeat([1.5] * 240), "counts: expected integers, one for each of 240 records, found float64"),
        (
            lambda ds: ds.repeat([1, 2]),
            "counts: expected integers, one for each of 240 records, found int64 of shape (2,)",
        ),
    ],
)
def test_bad_arguments_are_named(ds, make, expected):
    with pytest.raises(Error) as error:
        make(ds)
    assert expected in str(error.value)
    check(str(error.value))
    assert isinstance(error.value, OrderError | Error)
