"""Packs of all samples or of mixes of chunks: as best-fit decreasing makes them, every sample once, of equal cost."""

import re
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import OrderError, PackingBatchSampler, StateError, orders
from mmapds.samplers import packing as pack_plan
from mmapds.storage.index_file import Index
from tests.support.budgets import log_normal
from tests.support.files import patched
from tests.support.messages import check
from tests.support.packs import best_fit_decreasing, bimodal, flat, in_chunks, problems, steps_of

ALONE = {"num_replicas": 1, "rank": 0}


# ---- the packs -----------------------------------------------------------------------------------------------


@given(problems(), st.integers(0, 3))
def test_packs_are_those_of_best_fit_decreasing_over_all_samples_or_over_each_mix_of_chunks(problem, epoch):
    lengths, pack_length, options, taken, _ = problem

    def kinds(packs):
        """Which of two packs with the same space and as many samples gets the next one is the same to others."""
        return Counter((sum(taken[record] for record in pack), len(pack)) for pack in packs)

    def wanted(records):
        found = best_fit_decreasing([taken[record] for record in records], pack_length, options["max_sequences"])
        return kinds([records[place] for place in pack] for pack in found)

    sampler = PackingBatchSampler(lengths, pack_length, **options, **ALONE, drop_last=True)
    sampler.set_epoch(epoch)
    packs = list(sampler)
    assert len(sampler) == len(packs)
    for mix in problem.mixes(epoch):
        alone, together = [wanted(chunk) for chunk in mix], wanted(flat(mix))
        most = sum(each.total() for each in alone)
        if together.total() > most:  # best-fit decreasing is not always better with more to choose from
            together = sum(alone, Counter())
        own, packs = packs[:most], packs[most:]
        assert sorted(flat(own)) == sorted(flat(mix))  # each mix is read as a whole, and then no more
        assert (together - kinds(own)).total() <= most - together.total()  # the others were halved
        assert len(own) == most
        assert all(total <= pack_length for total, _ in kinds(own))
    assert not packs


@given(problems(), st.integers(0, 2), st.data())
def test_every_sample_once_in_packs_that_hold_it_at_any_world_that_goes_on_from_any_step(problem, epoch, data):
    lengths, pack_length, options, taken, chunks = problem
    kept, most = flat(chunks), options["max_sequences"] or len(lengths)
    seen, state = [], None
    for _ in range(3):
        world, packs = data.draw(st.integers(1, min(len(kept), 7))), data.draw(st.integers(1, 3))
        own = {**options, "packs_per_batch": packs, "num_replicas": world}
        samplers = [PackingBatchSampler(lengths, pack_length, rank=rank, **own) for rank in range(world)]
        for sampler in samplers:
            sampler.set_epoch(epoch) if state is None else sampler.load_state_dict(state)
            assert sampler.epoch == epoch
        first, steps = samplers[0].first_step, list(zip(*samplers, strict=True))
        assert len(samplers[0]) == first + len(steps)
        for step, batches in enumerate(steps, first):
            assert [batch.tolist() for batch in samplers[0].indices_at(step)] == list(batches)
            assert all(1 <= len(batch) <= most * packs for batch in batches)
            assert all(sum(taken[record] for record in batch) <= pack_length * packs for batch in batches)
        if state is None:
            summary, repeated = samplers[0].summary(), len(flat(steps)) - len(kept)
            assert 0 <= repeated < world  # only a last step fills up
            assert (summary.samples, summary.repeated) == (len(kept), repeated)
            assert (summary.steps, summary.batches) == (len(steps), world * len(steps))
            assert packs > 1 or summary.largest == max(len(batch) for step in steps for batch in step)
        stop = data.draw(st.integers(0, max(len(steps) - 1, 0)))
        state = samplers[0].state_dict(step=first + stop)
        seen, rest = seen + flat(steps[:stop]), flat(steps[stop:])
    assert len(seen) == len(set(seen))
    assert set(seen) | set(rest) == set(kept)
    assert not set(seen) & set(rest)


def test_a_mix_that_best_fit_decreasing_would_put_into_more_packs_than_its_chunks():
    lengths = [5, 3, 4, 12, 4, 3, 5, 12]
    assert len(best_fit_decreasing(lengths, 12)) == 5
    sampler = PackingBatchSampler(lengths, 12, **in_chunks(8, 4, 2), **ALONE)
    for epoch in range(5):
        sampler.set_epoch(epoch)
        packs = sorted(sorted(lengths[record] for record in pack) for pack in sampler)
        assert packs == [[3, 4, 5], [3, 4, 5], [12], [12]]


# ---- what it is for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chunks", "imbalance"), [(None, 1.005), ((2000, 8), 1.015)])
def test_packs_are_full_and_when_one_comes_and_to_which_rank_says_nothing_of_its_cost(chunks, imbalance):
    n, lengths = 50_000, log_normal(50_000)
    options = in_chunks(n, *chunks) if chunks else {}
    summary = PackingBatchSampler(lengths, 2048, num_replicas=8, rank=0, **options).summary()
    steps = steps_of(lengths, 2048, 8, **options)
    costs = np.array([[(lengths[pack] ** 2).sum() for pack in step] for step in steps])
    assert (summary.samples, summary.planned) == (n, costs.size)
    assert summary.largest == max(len(pack) for step in steps for pack in step)
    assert summary.fill >= 0.995
    assert summary.padding == pytest.approx(1 - summary.fill)
    assert summary.imbalance == pytest.approx((costs.max(axis=1) / costs.mean(axis=1)).mean())
    assert summary.imbalance <= imbalance
    assert np.ptp(costs.mean(axis=0)) < 0.02 * costs.mean()
    for each in costs.T:
        assert abs(np.corrcoef(each[1:], each[:-1])[0, 1]) < 0.1
        assert abs(np.corrcoef(each, np.arange(len(each)))[0, 1]) < 0.1


@pytest.mark.parametrize("options", [{}, in_chunks(20_000, 1000, 8)])
def test_mates_and_order_differ_from_epoch_to_epoch(options):
    sampler, epochs = PackingBatchSampler(log_normal(20_000), 2048, **options, **ALONE), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    mates = [{frozenset(pair) for batch in epoch for pair in pairwise(batch)} for epoch in epochs]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(mates[one] & mates[other]) < 0.1 * len(mates[one])
        assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < 0.01 * len(epochs[one])


def test_without_shuffling_the_largest_cost_comes_first_in_every_epoch():
    lengths = log_normal(5000)
    sampler = PackingBatchSampler(lengths, 2048, shuffle=False, **ALONE)
    costs = [(lengths[pack] ** 2).sum() for pack in sampler]
    assert costs == sorted(costs, reverse=True)
    sampler.set_epoch(1)
    assert [(lengths[pack] ** 2).sum() for pack in sampler] == costs


# ---- options -------------------------------------------------------------------------------------------------


def test_samples_that_are_longer_than_a_pack_are_dropped_or_cut():
    lengths = [5, 1, 2000, 30, 100, 7, 1500]
    for options, packs, counts, fill in (
        ({"oversize": "drop"}, [[0, 1, 3, 4, 5]], (0, 2, 3500, 0, 0), 143 / 1000),
        ({"oversize": "truncate"}, [[0, 1, 3, 4, 5], [2], [6]], (0, 0, 0, 2, 1500), 2143 / 3000),
        ({"oversize": "truncate", "max_length": 1500}, [[0, 1, 3, 4, 5], [6]], (0, 1, 2000, 1, 500), 1143 / 2000),
        ({"min_length": 5, "max_length": 100}, [[0, 3, 4, 5]], (1, 2, 3500, 0, 0), 142 / 1000),
    ):
        sampler = PackingBatchSampler(lengths, 1000, **options, **ALONE)
        assert sorted(map(sorted, sampler)) == packs
        found = sampler.summary()
        assert (found.too_short, found.too_long, found.too_long_tokens, found.over, found.cut_tokens) == counts
        assert found.fill == fill


@pytest.mark.parametrize("options", [{"packs_per_batch": 4}, {"packs_per_batch": 5, **in_chunks(5000, 300, 4)}])
def test_a_step_that_is_not_full_is_left_out_with_drop_last(options):
    lengths, whole = bimodal(5000), PackingBatchSampler(bimodal(5000), 2048, num_replicas=3, rank=0, **options)
    sampler = PackingBatchSampler(lengths, 2048, num_replicas=3, rank=0, drop_last=True, **options)
    assert len(sampler) == len(whole) - 1
    for epoch in range(3):
        sampler.set_epoch(epoch)
        found = steps_of(lengths, 2048, 3, epoch, drop_last=True, **options)
        assert len(set(flat(found))) == len(flat(found)) == sampler.summary().samples
        assert 0 < sampler.summary().dropped == 5000 - len(flat(found))


# ---- states and loaders --------------------------------------------------------------------------------------


def test_a_state_of_other_packs_is_refused():
    lengths, chunks = log_normal(500), in_chunks(500, 50, 4)
    for own, other, message in [
        ({}, {"pack_length": 4096}, "pack_length = 4096, found 2048"),
        (chunks, in_chunks(500, 51, 4), "of.chunk_size = 51, found 50; make "),
        ({}, chunks, "order = "),
    ]:
        state = PackingBatchSampler(lengths, 2048, **ALONE, **own).state_dict(step=3)
        sampler = PackingBatchSampler(lengths, **{"pack_length": 2048, **ALONE, **own, **other})
        with pytest.raises(StateError, match=f"^state: of another order: expected {message}"):
            sampler.load_state_dict(state)


@pytest.mark.parametrize("collate", [mmapds.pack_collate, mmapds.pad_collate])
def test_a_loader_wants_longer_samples_to_be_cut(collate):
    rows = [{"input_ids": list(range(length))} for length in (5, 20, 3, 12)]
    sampler = PackingBatchSampler([5, 20, 3, 12], 10, oversize="truncate", **ALONE)
    for lost, found in [(collate, None), (partial(collate, pad_value=1), None), (partial(collate, max_length=11), 11)]:
        with pytest.raises(OrderError) as refused:
            mmapds.DataLoader(rows, batch_sampler=sampler, collate_fn=lost)
        assert str(refused.value) == (
            "collate_fn: expected max_length = 10 or less, for a sampler with oversize='truncate', found max_length = "
            f"{found}; give partial(mmapds.{collate.__name__}, max_length=10)"
        )
    for cut in (partial(collate, max_length=10), lambda samples: collate(samples, max_length=10)):
        batches = list(mmapds.DataLoader(rows, batch_sampler=sampler, collate_fn=cut))
        assert max(batch["input_ids"].shape[-1] for batch in batches) == 10
    whole = PackingBatchSampler([5, 20, 3, 12], 20, **ALONE)
    assert len(list(mmapds.DataLoader(rows, batch_sampler=whole, collate_fn=collate)))


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pack_length": 2}, "pack_length = 2, expected 4 or more, the cost of lengths[1] = 4; drop such samples with"),
        ({"round_to": 3}, "round_to = 3, expected a divisor of pack_length = 10"),
        ({"oversize": "single"}, "oversize = 'single', expected 'error' or 'drop' or 'truncate'"),
        ({"num_replicas": 2, "drop_last": True}, "drop_last: expected 2 packs or more, 1 for each replica, found 1; g"),
        ({"order": orders.Chunked(2, 2)}, "order: expected None with planner='global', found an order; give planner='"),
        ({"planner": "window", "order": orders.Chunked(2, 1, lanes=2)}, "order: expected lanes = 1 with a planner, f"),
        ({"planner": "window"}, "order: expected an mmapds.orders.Chunked with planner='window', found NoneType; give"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(OrderError, match=f"^{re.escape(message)}") as raised:
        PackingBatchSampler([3, 4], **{"pack_length": 10, **ALONE, **options})
    check(str(raised.value))


def test_too_many_patterns_of_packs_are_refused(monkeypatch):
    monkeypatch.setattr(pack_plan, "_ROWS", 50)
    with pytest.raises(
        OrderError, match=r"round_to = 1: expected up to 50 patterns .* more for 100 different lengths; give"
    ):
        PackingBatchSampler(range(1, 101), 128, **ALONE)
    assert sorted(flat(PackingBatchSampler(range(1, 101), 128, round_to=8, **ALONE))) == list(range(100))


def test_a_damaged_length_order_is_an_error_and_no_record(write):
    paths = [write([{"n": 1 + i % 7} for i in range(100)], name) for name in ("a.jsonl", "b.jsonl")]
    for path in paths:
        mmapds.build(path, length="n")
    patched(f"{path}.mmx", Index(f"{path}.mmx").sections["length_order"].offset + 12, (100).to_bytes(4, "little"))
    with pytest.raises(
        mmapds.FormatError, match=r"/b.jsonl.mmx: DAMAGED: .*expected record numbers below 100.*run: pyt"
    ):
        list(PackingBatchSampler(mmapds.open(paths), 30, **ALONE))
