"""Packs: as many as best-fit decreasing makes, every sample once, equal costs, at any step of any world."""

import copy
import json
import pickle
import re
from collections import Counter
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import OrderError, PackingBatchSampler, StateError
from mmapds.samplers import pack_plan
from mmapds.storage.index_file import Index
from tests.support.budgets import log_normal
from tests.support.files import ROOT, patched
from tests.support.packs import best_fit_decreasing, bimodal, flat, packing_options, steps_of

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

GOLDEN = ROOT / "tests" / "data" / "packs-v1.json"
ALONE = {"num_replicas": 1, "rank": 0}


def real(longest):
    """Lengths of paragraphs of this project's own texts."""
    texts = [path.read_text() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])]
    return np.array([min(len(each), longest) for text in texts for each in text.split("\n\n") if each])


@st.composite
def problems(draw):
    pack_length = draw(st.sampled_from([1, 7, 12, 48, 1000]))
    lengths = draw(
        st.one_of(
            st.lists(st.integers(1, pack_length), min_size=1, max_size=200),
            st.lists(st.sampled_from([1, 2, pack_length // 2 + 1, pack_length]), min_size=1, max_size=300),
            st.lists(st.integers(1, 2 * pack_length), min_size=1, max_size=100),
        )
    )
    options = draw(packing_options(lengths, pack_length))
    kept = [i for i, length in enumerate(lengths) if options["oversize"] != "drop" or length <= pack_length]
    return lengths, pack_length, kept, options


def check(lengths, pack_length, steps, options):
    """Every batch holds something, and fits its packs, however these are cut apart."""
    packs, most = options["packs_per_batch"], options["max_sequences"] or 2**63
    for step in steps:
        for batch in step:
            taken = [-(-min(lengths[i], pack_length) // options["round_to"]) * options["round_to"] for i in batch]
            assert 1 <= len(batch) <= most * packs
            assert sum(taken) <= pack_length * packs


@settings(max_examples=300)
@given(problems(), st.integers(0, 3), st.data())
def test_every_sample_once_in_packs_that_hold_it_and_as_many_steps_everywhere(problem, epoch, data):
    lengths, pack_length, kept, options = problem
    world = data.draw(st.integers(1, min(len(kept), 7)))
    steps = steps_of(lengths, pack_length, world, epoch, **options)
    check(lengths, pack_length, steps, options)
    seen = flat(steps)
    assert set(seen) == set(kept)
    assert len(seen) == len(kept) or len(seen) - len(kept) < world  # only a last step fills up
    other = PackingBatchSampler(lengths, pack_length, num_replicas=world, rank=0, **options)
    other.set_epoch(epoch)
    assert [[batch.tolist() for batch in other.indices_at(step)] for step in range(len(steps))] == [
        list(step) for step in steps
    ]
    summary = other.summary()
    assert summary.samples + summary.repeated == len(seen)
    assert summary.steps == len(steps)
    assert summary.batches == world * len(steps)
    assert summary.most_sequences >= summary.mean_sequences


@settings(max_examples=300)
@given(problems())
def test_as_many_packs_as_best_fit_decreasing(problem):
    lengths, pack_length, kept, options = problem
    own = options["round_to"]
    taken = [-(-min(lengths[i], pack_length) // own) * own for i in kept]
    wanted = best_fit_decreasing(taken, pack_length, options["max_sequences"])
    sampler = PackingBatchSampler(lengths, pack_length, **ALONE, **{**options, "packs_per_batch": 1})
    packs = list(sampler)
    assert len(sampler) == len(packs) == len(wanted)
    step = [-(-min(length, pack_length) // own) * own for length in lengths]
    # Which of two packs with the same space and as many sequences gets the next one makes no difference to others.
    alike = Counter((sum(step[i] for i in pack), len(pack)) for pack in packs)
    assert alike == Counter((sum(taken[i] for i in pack), len(pack)) for pack in wanted)


@pytest.mark.parametrize("max_sequences", [None, 4])
@pytest.mark.parametrize(
    ("make", "pack_length"),
    [(log_normal, 2048), (bimodal, 2048), (log_normal, 8192)],
    ids=["log-normal", "two", "wide"],
)
@pytest.mark.parametrize("seed", range(3))
def test_as_many_packs_of_lengths_as_data_have_them(make, pack_length, seed, max_sequences):
    lengths = make(20_000, pack_length, seed)
    wanted = best_fit_decreasing(lengths.tolist(), pack_length, max_sequences)
    sampler = PackingBatchSampler(lengths, pack_length, max_sequences=max_sequences, **ALONE)
    assert len(sampler) == len(wanted)
    if max_sequences is None:
        assert sampler.summary().fill >= 0.995


@pytest.mark.parametrize("pack_length", [500, 2000, 5000])
def test_as_many_packs_of_real_lengths(pack_length):
    lengths = real(pack_length)
    assert len(lengths) > 500
    sampler = PackingBatchSampler(lengths, pack_length, **ALONE)
    assert len(sampler) == len(best_fit_decreasing(lengths.tolist(), pack_length))


@settings(max_examples=200)
@given(problems(), st.data())
def test_any_world_goes_on_from_any_step(problem, data):
    lengths, pack_length, kept, options = problem
    epoch, seen, state = data.draw(st.integers(0, 2)), [], None
    for _ in range(3):
        world = data.draw(st.integers(1, min(len(kept), 7)))
        own = {**options, "packs_per_batch": data.draw(st.integers(1, 3))}
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
        stop = data.draw(st.integers(0, max(len(steps) - 1, 0)))
        check(lengths, pack_length, steps, own)
        state = samplers[0].state_dict(step=samplers[0].first_step + stop)
        seen += flat(steps[:stop])
        rest = flat(steps[stop:])
    assert set(seen + rest) == set(kept)
    assert len(seen) == len(set(seen))
    assert not set(seen) & set(rest)


def test_the_packs_of_a_version_stay_what_they_are():
    for case in json.loads(GOLDEN.read_text()):
        lengths = [1 + i * i % case["modulus"] for i in range(case["n"])]
        sampler = PackingBatchSampler(lengths, case["pack_length"], **ALONE, **case["options"])
        sampler.set_epoch(case["epoch"])
        assert len(sampler) == case["packs"], case
        assert [sampler.indices_at(step)[0].tolist() for step in case["steps"]] == case["records"], case


# ---- what it is for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "imbalance"), [(500_000, 1.001), (100_000, 1.003), (20_000, 1.01)])
def test_full_packs_of_equal_cost(n, imbalance):
    lengths = log_normal(n)
    sampler = PackingBatchSampler(lengths, 2048, num_replicas=8, rank=0)
    summary = sampler.summary()
    assert summary.fill >= 0.995
    assert summary.imbalance <= imbalance
    if n == 20_000:
        costs = np.array(
            [[(lengths[batch] ** 2).sum() for batch in sampler.indices_at(step)] for step in range(len(sampler))]
        )
        assert summary.imbalance == pytest.approx((costs.max(axis=1) / costs.mean(axis=1)).mean())


@pytest.mark.parametrize("packs_per_batch", [1, 4])
def test_mates_and_order_differ_from_epoch_to_epoch(packs_per_batch):
    sampler = PackingBatchSampler(log_normal(50_000), 2048, packs_per_batch=packs_per_batch, **ALONE)
    epochs = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    mates = [{frozenset(pair) for batch in epoch for pair in pairwise(batch)} for epoch in epochs]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert len(mates[one] & mates[other]) < 0.1 * len(mates[one])
        assert sum(a == b for a, b in zip(epochs[one], epochs[other], strict=True)) < 0.01 * len(epochs[one])
    again = PackingBatchSampler(log_normal(50_000), 2048, packs_per_batch=packs_per_batch, **ALONE)
    again.set_epoch(1)
    assert list(again) == epochs[1]
    again = PackingBatchSampler(log_normal(50_000), 2048, packs_per_batch=packs_per_batch, seed=1, **ALONE)
    assert list(again) != epochs[0]
    fixed = PackingBatchSampler(log_normal(5000), 2048, shuffle=False, **ALONE)
    before = list(fixed)
    fixed.set_epoch(1)
    assert list(fixed) == before


def test_when_a_pack_comes_says_nothing_of_its_cost():
    lengths = log_normal(100_000)
    sampler = PackingBatchSampler(lengths, 2048, num_replicas=4, rank=1)
    means = []
    for epoch in range(4):
        sampler.set_epoch(epoch)
        costs = [(lengths[batch] ** 2).sum() for batch in sampler]
        assert abs(np.corrcoef(costs[1:], costs[:-1])[0, 1]) < 0.1
        assert abs(np.corrcoef(costs, np.arange(len(costs)))[0, 1]) < 0.1
        means.append(np.mean(costs))
    ranks = [PackingBatchSampler(lengths, 2048, num_replicas=4, rank=rank) for rank in range(4)]
    means += [np.mean([(lengths[batch] ** 2).sum() for batch in sampler]) for sampler in ranks]
    assert np.ptp(means) < 0.01 * np.mean(means)


# ---- options -------------------------------------------------------------------------------------------------


def test_samples_that_are_longer_than_a_pack():
    lengths = [5, 1, 2000, 30, 100, 7, 1500]
    with pytest.raises(OrderError) as over:
        PackingBatchSampler(lengths, 1000, **ALONE)
    assert str(over.value) == (
        "pack_length = 1000, expected 2000 or more, that of lengths[2] = 2000; leave such samples out with "
        "oversize='drop' or max_length=N, or cut them with oversize='truncate' and pack_collate(max_length=1000) "
        "(samples over the pack length: 2)"
    )
    dropped = PackingBatchSampler(lengths, 1000, oversize="drop", **ALONE)
    assert sorted(flat([dropped])) == [0, 1, 3, 4, 5]
    summary = dropped.summary()
    assert (summary.too_long, summary.too_long_tokens, summary.truncated) == (2, 3500, 0)
    assert summary.fill == 143 / 1000
    cut = PackingBatchSampler(lengths, 1000, oversize="truncate", **ALONE)
    assert sorted(cut, key=len)[:2] in ([[2], [6]], [[6], [2]])
    assert sorted(flat([cut])) == list(range(7))
    summary = cut.summary()
    assert (summary.too_long, summary.truncated, summary.truncated_tokens) == (0, 2, 1500)
    assert summary.fill == 2143 / 3000
    some = PackingBatchSampler(lengths, 1000, min_length=5, max_length=100, **ALONE)
    assert sorted(flat([some])) == [0, 3, 4, 5]
    assert (some.summary().too_short, some.summary().too_long) == (1, 2)


@pytest.mark.parametrize("collate", [mmapds.pack_collate, mmapds.pad_collate])
def test_a_loader_wants_longer_samples_to_be_cut(collate):
    rows = [{"input_ids": list(range(length))} for length in (5, 20, 3, 12)]
    sampler = PackingBatchSampler([5, 20, 3, 12], 10, oversize="truncate", **ALONE)
    message = (
        "collate_fn: expected max_length = 10 or less, for a sampler with oversize='truncate', which leaves the cut to "
        f"it, found max_length = {{}}; give partial(mmapds.{collate.__name__}, max_length=10)"
    )
    for lost, found in [(collate, None), (partial(collate, pad_value=1), None), (partial(collate, max_length=11), 11)]:
        with pytest.raises(OrderError, match=f"^{re.escape(message.format(found))}$"):
            mmapds.DataLoader(rows, batch_sampler=sampler, collate_fn=lost)
    cut = mmapds.DataLoader(rows, batch_sampler=sampler, collate_fn=partial(partial(collate, max_length=10)))
    assert all(batch["input_ids"].shape[-1] <= 10 for batch in cut)
    own = mmapds.DataLoader(rows, batch_sampler=sampler, collate_fn=lambda samples: collate(samples, max_length=10))
    assert len(list(own)) == len(list(cut)) == len(sampler)
    whole = PackingBatchSampler([5, 20, 3, 12], 20, **ALONE)
    assert len(list(mmapds.DataLoader(rows, batch_sampler=whole, collate_fn=collate)))


def test_drop_last_and_packs_per_batch():
    lengths = log_normal(3000)
    packs = len(PackingBatchSampler(lengths, 2048, **ALONE))
    options = {"packs_per_batch": 4, "drop_last": True}
    steps = steps_of(lengths, 2048, 3, **options)
    sampler = PackingBatchSampler(lengths, 2048, num_replicas=3, rank=0, **options)
    assert len(steps) == packs // 12
    assert len(set(flat(steps))) == len(flat(steps)) == 3000 - sampler.summary().dropped
    whole = steps_of(lengths, 2048, 3, packs_per_batch=4)
    assert len(whole) == -(-packs // 12)
    assert sorted(flat(whole)) == list(range(3000))


def test_more_ranks_than_packs_halve_packs():
    lengths = [1] * 50
    for world in (2, 7, 50):
        steps = steps_of(lengths, 100, world)
        assert len(steps) == 1
        assert sorted(flat(steps)) == list(range(50))
        sizes = [len(batch) for batch in steps[0]]
        assert min(sizes) >= 1
        assert max(sizes) <= 4 * 50 / world


def test_exclusions():
    lengths = log_normal(3000)
    common = {"num_replicas": 2, "rank": 0}
    whole = PackingBatchSampler(lengths, 2048, **common)
    steps = [[batch.tolist() for batch in whole.indices_at(step)] for step in range(len(whole))]
    gone = set(flat(steps[5:7]))
    rest = steps_of(lengths, 2048, 2, exclude={"steps": [(5, 7)]})
    assert rest == [tuple(step) for step in steps[:5] + steps[7:]]
    batch = steps[3][0]
    records = steps_of(lengths, 2048, 2, exclude={"records": [*batch, (0, 100)]})
    assert set(flat(records)) == set(range(100, 3000)) - set(batch)
    assert all(each for step in records for each in step)
    sampler = PackingBatchSampler(lengths, 2048, exclude={"steps": [(5, 7)], "records": [(0, 10)]}, **common)
    again = PackingBatchSampler(lengths, 2048, **common)
    again.load_state_dict(sampler.state_dict(step=2))
    assert not set(flat([again])) & (set(range(10)) | gone)


def test_a_pack_that_is_wholly_excluded_is_not_in_the_pass():
    lengths = bimodal(2000)
    sampler = PackingBatchSampler(lengths, 2048, **ALONE)
    for epoch in (0, 3):
        sampler.set_epoch(epoch)
        packs = list(sampler)
        for pack in packs[::17]:
            other = PackingBatchSampler(lengths, 2048, exclude={"records": pack}, **ALONE)
            other.set_epoch(epoch)
            assert list(other) == [each for each in packs if each != pack]


# ---- as trainers use it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_goes_on(workers):
    lengths = log_normal(2000)

    def loader():
        sampler = PackingBatchSampler(lengths, 2048, **ALONE)
        return StatefulDataLoader(range(2000), batch_sampler=sampler, num_workers=workers, collate_fn=list)

    whole = list(loader())
    first = loader()
    begun = iter(first)
    head = [next(begun) for _ in range(5)]
    state = copy.deepcopy(first.state_dict())
    second = loader()
    second.load_state_dict(state)
    assert head + list(second) == whole


def test_samplers_can_be_copied():
    sampler = PackingBatchSampler(bimodal(500), 2048, start_step=3, **ALONE)
    wanted = list(sampler)
    for each in (copy.deepcopy, lambda given: pickle.loads(pickle.dumps(given))):
        assert list(each(PackingBatchSampler(bimodal(500), 2048, start_step=3, **ALONE))) == wanted


def test_datasets_views_and_several_of_them(write):
    path = write([{"n": 1 + i % 70} for i in range(300)])
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    wanted = list(PackingBatchSampler(ds.lengths, 100, **ALONE))
    assert list(PackingBatchSampler(ds, 100, **ALONE)) == wanted
    assert list(PackingBatchSampler(ds.lengths.tolist(), 100, **ALONE)) == wanted
    for view in (ds[::2], ds[ds.lengths < 20], ds[[5, 5, 3]], mmapds.concat([ds, ds[:7]])):
        assert sorted(flat([PackingBatchSampler(view, 100, **ALONE)])) == list(range(len(view)))


def test_an_order_cache_gives_the_same_packs(tmp_path):
    lengths = log_normal(3000)
    cache = str(tmp_path / "order")
    wanted = list(PackingBatchSampler(lengths, 2048, **ALONE))
    for _ in range(2):
        assert list(PackingBatchSampler(lengths, 2048, order_cache=cache, **ALONE)) == wanted


def test_states_that_do_not_belong():
    lengths = log_normal(500)
    state = PackingBatchSampler(lengths, 2048, **ALONE).state_dict(step=3)
    for other, pack_length, options in (
        (log_normal(500, seed=1), 2048, {}),
        (lengths[:-1], 2048, {}),
        (lengths, 4096, {}),
        (lengths, 2048, {"seed": 1}),
        (lengths, 2048, {"max_sequences": 5}),
        (lengths, 2048, {"round_to": 8}),
        (lengths, 2048, {"shuffle": False}),
        (lengths, 2048, {"group_size": 3}),
    ):
        sampler = PackingBatchSampler(other, pack_length, **ALONE, **options)
        with pytest.raises(StateError, match=r"state: of (another order|other lengths): expected"):
            sampler.load_state_dict(state)
    with pytest.raises(StateError, match="expected pack_length = 4096, found 2048"):
        PackingBatchSampler(lengths, 4096, **ALONE).load_state_dict(state)
    tokens = mmapds.TokenBudgetBatchSampler(lengths, 2048, **ALONE)
    with pytest.raises(StateError, match="expected order = 'token budget, buckets', found 'packs'"):
        tokens.load_state_dict(state)


# ---- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lengths", "options", "message"),
    [
        ([3, -1], {}, r"lengths\[1\] = -1, expected 1 or more"),
        ([3, 0, 0], {}, r"lengths\[1\] = 0, expected 1 or more; leave .* min_length=1 \(samples of length 0: 2\)"),
        ([], {}, "lengths: expected one sample or more, found 0"),
        ("34", {}, r"dataset_or_lengths = '34', expected a dataset; open it first: mmapds.open\('34'\)"),
        ([3, 4], {"pack_length": 0}, "pack_length = 0, expected an integer of 1 or more"),
        ([3, 4], {"pack_length": -5}, "pack_length = -5, expected an integer of 1 or more"),
        ([3, 4], {"pack_length": 9.5}, "pack_length = 9.5, expected an integer"),
        ([3, 4], {"pack_length": 2}, r"pack_length = 2, expected 4 or more, that of lengths\[1\] = 4; .*: 2\)"),
        ([3, 4], {"pack_length": 2, "oversize": "drop"}, "pack_length = 2, found 2 samples of lengths 3 to 4"),
        ([3, 4], {"min_length": 9}, "lengths: expected samples within min_length = 9, .*found 2 samples"),
        ([3, 4], {"max_sequences": 0}, "max_sequences = 0, expected an integer of 1 or more"),
        ([3, 4], {"max_sequences": 1}, "max_sequences = 1, expected 2 or more; use DistributedSampler for single"),
        ([3, 4], {"round_to": 0}, "round_to = 0, expected an integer of 1 or more"),
        ([3, 4], {"round_to": 3}, "round_to = 3, expected a divisor of pack_length = 10"),
        ([3, 4], {"packs_per_batch": 0}, "packs_per_batch = 0, expected an integer of 1 or more"),
        ([3, 4], {"group_size": 0}, "group_size = 0"),
        ([3, 4], {"oversize": "single"}, "oversize = 'single', expected 'error' or 'drop' or 'truncate'"),
        ([3, 4], {"num_replicas": 3, "rank": 0}, "num_replicas = 3, expected 1 to 2, the number of samples"),
        (
            [3, 4],
            {"num_replicas": 2, "rank": 0, "drop_last": True},
            "drop_last: expected 2 packs or more, 1 for each replica, found 1; give a smaller pack_length",
        ),
        ([3, 4], {"num_replicas": 2, "rank": 2}, "rank = 2, expected 0 to 1"),
        ([3, 4], {"start_step": 2}, "start_step = 2, expected 0 to 1"),
        ([3, 4], {"sampler": range(2)}, "sampler: expected None, found range"),
        ([3, 4], {"seed": 1.5}, "seed"),
    ],
)
def test_bad_input_is_named(lengths, options, message):
    with pytest.raises(OrderError, match=message):
        PackingBatchSampler(lengths, **{"pack_length": 10, **ALONE, **options})


def test_too_many_kinds_of_packs_are_refused(monkeypatch):
    monkeypatch.setattr(pack_plan, "_ROWS", 50)
    with pytest.raises(
        OrderError, match=r"round_to = 1: expected up to 50 kinds .* more for 100 different lengths; give"
    ):
        PackingBatchSampler(range(1, 101), 128, **ALONE)
    assert sorted(flat([PackingBatchSampler(range(1, 101), 128, round_to=8, **ALONE)])) == list(range(100))


def test_a_damaged_length_order_is_an_error_and_no_record(write):
    path = write([{"n": 1 + i % 7} for i in range(100)])
    mmapds.build(path, length="n")
    patched(f"{path}.mmx", Index(f"{path}.mmx").sections["length_order"].offset + 12, b"\xff\xff\xff\xff")
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: .*expected record numbers below 100.*run: python -m"):
        list(PackingBatchSampler(mmapds.open(path), 30, **ALONE))


def test_a_loader_warns_where_rows_may_have_more_samples_than_packs(recwarn):
    lengths = np.random.default_rng(0).integers(1, 60, 500)
    samples = [{"input_ids": [1] * int(length)} for length in lengths]
    limited = PackingBatchSampler(lengths, 256, max_sequences=6, packs_per_batch=4, num_replicas=1, rank=0)
    free = PackingBatchSampler(lengths, 256, packs_per_batch=4, num_replicas=1, rank=0)

    def loaded(sampler, **options):
        collate = partial(mmapds.pack_collate, layout="segments", packs=4, pad_to=256, **options)
        loader = mmapds.DataLoader(samples, batch_sampler=sampler, collate_fn=collate)
        return max(len(set(row.tolist()) - {0}) for batch in loader for row in batch["segment_ids"])

    assert loaded(limited, max_sequences=6) == 6
    assert loaded(free) > 6
    mmapds.DataLoader(samples, batch_sampler=limited, collate_fn=mmapds.pack_collate)
    assert not recwarn.list
    for options, found in (({}, "found None"), ({"max_sequences": 7}, "found 7")):
        with pytest.warns(
            UserWarning, match="^collate_fn: expected max_sequences = 6, that of the sampler, "
        ) as warned:
            assert loaded(limited, **options) > 6
        assert found in str(warned[0].message)
        assert warned[0].filename == __file__
