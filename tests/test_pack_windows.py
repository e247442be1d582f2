"""Packs inside mixes of chunks: those of best-fit decreasing, as many in every epoch, each of one mix."""

import copy
import json
import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import OrderError, PackingBatchSampler, StateError, orders
from tests.support.budgets import log_normal
from tests.support.files import ROOT
from tests.support.packs import best_fit_decreasing, bimodal, flat, packing_options, steps_of

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

GOLDEN = ROOT / "tests" / "data" / "pack-windows-v1.json"
ALONE = {"num_replicas": 1, "rank": 0}


def in_windows(order, **options):
    return {"planner": "window", "order": order, **options}


def chunked(lengths, chunk_size=500, mix_chunks=4):
    return orders.Chunked(len(lengths), chunk_size, mix_chunks=mix_chunks)


@st.composite
def problems(draw):
    """Lengths, the pack length, an order, the records of each chunk that are packed, and options."""
    pack_length = draw(st.sampled_from([1, 12, 48, 1000]))
    lengths = draw(
        st.one_of(
            st.lists(st.integers(1, pack_length), min_size=1, max_size=150),
            st.lists(st.sampled_from([1, 2, pack_length // 2 + 1, pack_length]), min_size=1, max_size=200),
            st.lists(st.integers(1, 2 * pack_length), min_size=1, max_size=80),
        )
    )
    cut = draw(st.integers(0, len(lengths)))
    chunk_size, mix_chunks = draw(st.integers(1, 40)), draw(st.integers(1, 5))
    order = orders.Chunked([0, cut, len(lengths)], chunk_size, mix_chunks=mix_chunks, seed=draw(st.integers(0, 3)))
    options = draw(packing_options(lengths, pack_length))
    kept = [options["oversize"] != "drop" or length <= pack_length for length in lengths]
    chunks = [
        [record for record in range(begin, min(begin + chunk_size, end)) if kept[record]]
        for first, end in ((0, cut), (cut, len(lengths)))
        for begin in range(first, end, chunk_size)
    ]
    return lengths, pack_length, order, chunks, options


def taken_by(lengths, pack_length, round_to):
    return [-(-min(length, pack_length) // round_to) * round_to for length in lengths]


def best_fit(records, taken, pack_length, options):
    packs = best_fit_decreasing([taken[record] for record in records], pack_length, options["max_sequences"])
    return Counter((sum(taken[records[i]] for i in pack), len(pack)) for pack in packs)


@settings(max_examples=150)
@given(problems(), st.integers(0, 3))
def test_the_packs_of_a_mix_are_those_of_best_fit_decreasing(problem, epoch):
    lengths, pack_length, order, chunks, options = problem
    taken = taken_by(lengths, pack_length, options["round_to"])
    sampler = PackingBatchSampler(
        lengths, pack_length, **in_windows(order, **{**options, "packs_per_batch": 1}), **ALONE
    )
    sampler.set_epoch(epoch)
    packs = list(sampler)
    alone = [best_fit(chunk, taken, pack_length, options) for chunk in chunks]
    assert len(sampler) == len(packs) == sum(each.total() for each in alone)
    order_of_chunks = order.chunks(epoch).tolist()
    for first in range(0, len(chunks), order.mix_chunks):
        mixed = order_of_chunks[first : first + order.mix_chunks]
        most = sum(alone[chunk].total() for chunk in mixed)
        own, packs = packs[:most], packs[most:]
        records = [record for chunk in mixed for record in chunks[chunk]]
        assert sorted(flat([own])) == sorted(records)  # a window has all samples of its chunks, and no others
        found = Counter((sum(taken[record] for record in pack), len(pack)) for pack in own)
        wanted = best_fit(records, taken, pack_length, options)
        if wanted.total() > most:  # then the packs are those of each chunk
            wanted = sum((alone[chunk] for chunk in mixed), Counter())
        assert (wanted - found).total() <= most - wanted.total()  # the others were halved
        assert all(total <= pack_length for total, _ in found)


@settings(max_examples=60)
@given(problems(), st.data())
def test_every_sample_once_at_any_world_that_goes_on_from_any_step(problem, data):
    lengths, pack_length, order, chunks, options = problem
    kept, most = flat([chunks]), options["max_sequences"] or 2**63
    epoch, seen, state = data.draw(st.integers(0, 2)), [], None
    for _ in range(3):
        world = data.draw(st.integers(1, min(len(kept), 7)))
        own = in_windows(order, **{**options, "packs_per_batch": data.draw(st.integers(1, 3))})
        samplers = [
            PackingBatchSampler(lengths, pack_length, num_replicas=world, rank=rank, **own) for rank in range(world)
        ]
        for sampler in samplers:
            if state is None:
                sampler.set_epoch(epoch)
            else:
                sampler.load_state_dict(json.loads(json.dumps(state)))
                assert sampler.epoch == epoch
        steps = list(zip(*samplers, strict=True))
        first = samplers[0].first_step
        assert [[batch.tolist() for batch in samplers[0].indices_at(first + i)] for i in range(len(steps))] == [
            list(step) for step in steps
        ]
        taken = taken_by(lengths, pack_length, options["round_to"])
        for batch in (batch for step in steps for batch in step):
            assert 1 <= len(batch) <= most * own["packs_per_batch"]
            assert sum(taken[record] for record in batch) <= pack_length * own["packs_per_batch"]
        stop = data.draw(st.integers(0, max(len(steps) - 1, 0)))
        state = samplers[0].state_dict(step=first + stop)
        seen += flat(steps[:stop])
        rest = flat(steps[stop:])
    assert set(seen + rest) == set(kept)
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(rest)


@pytest.mark.parametrize("world", [1, 3, 8])
@pytest.mark.parametrize("drop_last", [False, True])
def test_as_many_packs_in_every_epoch(world, drop_last):
    lengths = bimodal(5000)
    options = in_windows(chunked(lengths, 300), drop_last=drop_last)
    samplers = [PackingBatchSampler(lengths, 2048, num_replicas=world, rank=rank, **options) for rank in range(world)]
    for epoch in range(4):
        steps = steps_of(lengths, 2048, world, epoch, **options)
        assert len(steps) == len(samplers[0])
        assert len(set(flat(steps))) == len(flat(steps)) == 5000 - samplers[0].summary().dropped


def test_a_mix_that_best_fit_decreasing_would_put_into_more_packs_than_its_chunks():
    lengths = [5, 3, 4, 4, 3, 5]
    assert len(best_fit_decreasing(lengths, 12)) == 3
    order = orders.Chunked(6, 3, mix_chunks=2)
    sampler = PackingBatchSampler(lengths, 12, **in_windows(order), **ALONE)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        assert [sorted(lengths[record] for record in pack) for pack in sampler] == [[3, 4, 5]] * 2


def test_chunks_without_samples():
    lengths = [9] * 10 + [3] * 10 + [9] * 10
    sampler = PackingBatchSampler(lengths, 10, max_length=5, **in_windows(chunked(lengths, 5, 1)), **ALONE)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert sorted(flat([sampler])) == list(range(10, 20))


def test_the_packs_of_a_version_stay_what_they_are():
    for case in json.loads(GOLDEN.read_text()):
        lengths = [1 + i * i % case["modulus"] for i in range(case["n"])]
        order = orders.Chunked(case["starts"], case["chunk_size"], mix_chunks=case["mix_chunks"], seed=3)
        sampler = PackingBatchSampler(lengths, case["pack_length"], **in_windows(order, **case["options"]), **ALONE)
        sampler.set_epoch(case["epoch"])
        assert len(sampler) == case["packs"], case
        assert [sampler.indices_at(step)[0].tolist() for step in case["steps"]] == case["records"], case


# ---- what it is for ------------------------------------------------------------------------------------------


def test_full_packs_of_equal_cost():
    lengths = log_normal(100_000)
    options = in_windows(chunked(lengths, 2000, 8))
    sampler = PackingBatchSampler(lengths, 2048, num_replicas=8, rank=0, **options)
    summary = sampler.summary()
    assert summary.fill >= 0.995
    assert summary.imbalance <= 1.01
    assert summary.samples == 100_000
    packs = [batch for step in steps_of(lengths, 2048, 8, **options) for batch in step]
    costs = np.array([(lengths[pack] ** 2).sum() for pack in packs]).reshape(-1, 8)
    assert summary.imbalance == pytest.approx((costs.max(axis=1) / costs.mean(axis=1)).mean())
    assert summary.most_sequences == max(map(len, packs))
    assert summary.packs == len(packs)
    assert abs(np.corrcoef(costs.mean(axis=1)[1:], costs.mean(axis=1)[:-1])[0, 1]) < 0.1


def test_mates_and_order_differ_from_epoch_to_epoch():
    lengths = log_normal(50_000)
    sampler = PackingBatchSampler(lengths, 2048, **in_windows(chunked(lengths, 1000, 8)), **ALONE)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    mates = [{frozenset(pair) for batch in epoch for pair in pairwise(batch)} for epoch in epochs]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(mates[one] & mates[other]) < 0.1 * len(mates[one])
        assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < 0.01 * len(epochs[one])
    again = PackingBatchSampler(lengths, 2048, **in_windows(chunked(lengths, 1000, 8)), **ALONE)
    again.set_epoch(1)
    assert list(again) == epochs[1]


def test_reads_stay_within_the_chunks_of_a_mix():
    lengths = log_normal(20_000)
    order = orders.Chunked(len(lengths), 500, mix_chunks=4, seed=2)
    sampler = PackingBatchSampler(lengths, 2048, **in_windows(order), **ALONE)
    seen = [sorted({record // 500 for record in pack}) for pack in sampler]
    begins = np.flatnonzero([chunk not in seen[i - 1] for i, (chunk, *_) in enumerate(seen) if i])
    assert len(begins)
    mixes = {tuple(sorted(order.chunks(0)[i : i + 4].tolist())) for i in range(0, 40, 4)}
    assert all(any(set(chunks) <= set(mix) for mix in mixes) for chunks in seen)
    changes = sum(
        next(mix for mix in mixes if one[0] in mix) != next(mix for mix in mixes if other[0] in mix)
        for one, other in pairwise(seen)
    )
    assert changes == len(mixes) - 1  # each mix is read once, and then no more


def test_the_same_records_as_the_order_in_every_window():
    lengths = [1] * 100
    order = orders.Chunked([0, 37, 100], 7, mix_chunks=3, seed=5)
    sampler = PackingBatchSampler(lengths, 1, **in_windows(order), **ALONE)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        ours, theirs = flat([sampler]), order.at(epoch, np.arange(100)).tolist()
        sizes = np.diff(order.chunk_starts)[order.chunks(epoch)]
        for begin, end in pairwise([0, *np.cumsum(sizes)[2::3].tolist(), 100]):
            assert sorted(ours[begin:end]) == sorted(theirs[begin:end])


# ---- options -------------------------------------------------------------------------------------------------


def test_exclusions():
    lengths = log_normal(3000)
    common = {"num_replicas": 2, "rank": 0, **in_windows(chunked(lengths, 200))}
    whole = PackingBatchSampler(lengths, 2048, **common)
    steps = [[batch.tolist() for batch in whole.indices_at(step)] for step in range(len(whole))]
    options = in_windows(chunked(lengths, 200))
    rest = steps_of(lengths, 2048, 2, exclude={"steps": [(5, 7)]}, **options)
    assert rest == [tuple(step) for step in steps[:5] + steps[7:]]
    batch = steps[3][0]
    records = steps_of(lengths, 2048, 2, exclude={"records": [*batch, (0, 100)]}, **options)
    assert set(flat(records)) == set(range(100, 3000)) - set(batch)
    assert all(each for step in records for each in step)


def test_a_pack_that_is_wholly_excluded_is_not_in_the_pass():
    lengths = bimodal(1000)
    options = {**in_windows(chunked(lengths, 100)), **ALONE}
    sampler = PackingBatchSampler(lengths, 2048, **options)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        packs = list(sampler)
        for pack in packs[::29]:
            other = PackingBatchSampler(lengths, 2048, exclude={"records": pack}, **options)
            other.set_epoch(epoch)
            assert list(other) == [each for each in packs if each != pack]


def test_samplers_can_be_copied():
    lengths = bimodal(500)
    options = in_windows(chunked(lengths, 50), start_step=3, **ALONE)
    wanted = list(PackingBatchSampler(lengths, 2048, **options))
    for each in (copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))):
        assert list(each(PackingBatchSampler(lengths, 2048, **options))) == wanted


def test_datasets_and_views(write):
    path = write([{"n": 1 + i % 70} for i in range(300)])
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    for view in (ds, ds[::2], ds[ds.lengths < 20], ds[[5, 5, 3]]):
        options = in_windows(orders.Chunked(len(view), 20, mix_chunks=2), **ALONE)
        wanted = list(PackingBatchSampler(view.lengths.tolist(), 100, **options))
        assert list(PackingBatchSampler(view, 100, **options)) == wanted
        assert sorted(flat([wanted])) == list(range(len(view)))


def test_states_that_do_not_belong():
    lengths = log_normal(500)
    order = chunked(lengths, 50)
    state = PackingBatchSampler(lengths, 2048, **in_windows(order), **ALONE).state_dict(step=3)
    for other, pack_length, options in (
        (log_normal(500, seed=1), 2048, in_windows(order)),
        (lengths[::-1], 2048, in_windows(order)),
        (lengths, 4096, in_windows(order)),
        (lengths, 2048, in_windows(order, seed=1)),
        (lengths, 2048, in_windows(order, max_sequences=5)),
        (lengths, 2048, in_windows(order, round_to=8)),
        (lengths, 2048, in_windows(order, shuffle=False)),
        (lengths, 2048, in_windows(order, group_size=3)),
        (lengths, 2048, in_windows(chunked(lengths, 51))),
        (lengths, 2048, in_windows(chunked(lengths, 50, 5))),
        (lengths, 2048, {}),
    ):
        sampler = PackingBatchSampler(other, pack_length, **ALONE, **options)
        with pytest.raises(StateError, match=r"state: of (another order|other lengths): expected"):
            sampler.load_state_dict(state)
    with pytest.raises(StateError, match="expected pack_length = 4096, found 2048"):
        PackingBatchSampler(lengths, 4096, **in_windows(order), **ALONE).load_state_dict(state)
    with pytest.raises(StateError, match="expected order = 'packs', found 'packs, windows'"):
        PackingBatchSampler(lengths, 2048, **ALONE).load_state_dict(state)


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"planner": "windows"}, "planner = 'windows', expected 'global' or 'window'"),
        ({"order": orders.Chunked(3, 2)}, "order: expected None with planner='global', found an order; give planner='"),
        (
            {"planner": "window"},
            r"order: expected an mmapds.orders.Chunked with planner='window', found None; give order=mmapds.orders.Ch",
        ),
        (
            {"planner": "window", "order": orders.Shuffled(3)},
            "order: expected an mmapds.orders.Chunked.*found Shuffled",
        ),
        (in_windows(orders.Chunked(4, 2)), "order: expected 3 positions, one for each record, found 4"),
        (in_windows(orders.Chunked(3, 2), pack_length=4), r"pack_length = 4, expected 5 or more, that of lengths\[1\]"),
        (in_windows(orders.Chunked(3, 2), num_replicas=4), "num_replicas = 4, expected 1 to 3, the number of samples"),
        (
            in_windows(orders.Chunked(3, 2), num_replicas=3, drop_last=True),
            "drop_last: expected 3 packs or more, 1 for each replica, found 2",
        ),
    ],
)
def test_bad_arguments(options, message):
    with pytest.raises(OrderError, match=message):
        PackingBatchSampler([3, 5, 4], **{"pack_length": 10, **ALONE, **options})


def test_bad_lengths_in_windows():
    with pytest.raises(OrderError, match=r"lengths\[1\] = 0, expected 1 or more; leave .* min_length=1"):
        PackingBatchSampler([3, 0, 0], 10, **in_windows(orders.Chunked(3, 2)), **ALONE)
