"""Batches of several samplers, mixed: shares, every sample once in each round of its dataset, resume in any world."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from torch.utils.data import ConcatDataset

import mmapds
from mmapds import MixtureBatchSampler, PackingBatchSampler, TokenBudgetBatchSampler
from mmapds.errors import OrderError, StateError

LENGTHS = [np.random.default_rng(seed).integers(1, 60, n).astype(np.uint32) for seed, n in ((1, 400), (2, 150))]
FIRST = len(LENGTHS[0])


def budget(lengths, **options):
    return TokenBudgetBatchSampler(lengths, 300, seed=5, **options)


def window(lengths, **options):
    return budget(lengths, planner="window", sort_window=32, **options)


def packs(lengths, **options):
    return PackingBatchSampler(lengths, 128, seed=5, **options)


def mixed(make=budget, weights=(0.7, 0.3), **options):
    return MixtureBatchSampler([make(each) for each in LENGTHS], weights, **options)


def of(*samplers):
    return MixtureBatchSampler(samplers, [1, 1])


def member(batch):
    (found,) = {int(record >= FIRST) for record in batch}
    return found


@pytest.mark.parametrize("make", [budget, window, packs])
def test_batches_are_those_of_each_sampler_in_turn(make):
    batches = mixed(make, stop="longest")
    for epoch in range(2):
        batches.set_epoch(epoch)
        drawn = list(batches)
        parts = [make(each, num_replicas=1, rank=0, group_size=None if make is window else 1) for each in LENGTHS]
        for d, part in enumerate(parts):
            own = [[record - d * FIRST for record in batch] for batch in drawn if member(batch) == d]
            rounds = -(-len(own) // len(part))
            expected = []
            for each in range(rounds):
                part.set_epoch(epoch * rounds + each)
                expected += list(part)
            assert own == expected[: len(own)]
        assert Counter(itertools.chain(*drawn)).keys() == set(range(sum(map(len, LENGTHS))))


@pytest.mark.parametrize("make", [budget, window, packs])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_with_groups_all_ranks_of_a_step_have_one_dataset(make, world):
    batches = mixed(make, stop="longest", group_size=6, num_replicas=world, rank=0)
    assert len(batches) % (6 // world) == 0
    for epoch in range(2):
        batches.set_epoch(epoch)
        steps = [batches.indices_at(step) for step in range(len(batches))]
        together = 6 // world
        for first in range(0, len(steps), together):
            assert len({member(batch) for step in steps[first : first + together] for batch in step}) == 1
        read = Counter(int(record) for step in steps for batch in step for record in batch)
        assert read.keys() == set(range(sum(map(len, LENGTHS))))
        groups = [member(step[0]) for step in steps[::together]]
        assert abs(np.mean(groups) - np.mean(groups[: len(groups) // 2])) < 0.1
    with pytest.raises(OrderError, match=r"group_size = 1000, expected \d+ or less, the batches of samplers\[0\]"):
        mixed(make, group_size=1000)


@pytest.mark.parametrize("group_size", [None, 4])
def test_weights_of_batches_change_by_a_schedule(group_size):
    schedule = [(0, [1, 0]), (40, [1, 1]), (80, [0, 1])]
    batches = mixed(weights=schedule, epoch_size=120, share="batches", group_size=group_size, num_replicas=2, rank=0)
    read = [batch for step in range(60) for batch in batches.indices_at(step)]
    members = [member(batch) for batch in read]
    assert (sum(members[:40]), sum(members[40:80]), sum(members[80:])) == (0, 20, 40)
    for d, lengths in enumerate(LENGTHS):
        own = [record for batch in read if member(batch) == d for record in batch.tolist()]
        assert max(Counter(own[: len(lengths)]).values()) == 1, "no record twice before all came"
    other = mixed(weights=schedule, epoch_size=120, share="batches", group_size=group_size, num_replicas=3, rank=0)
    other.load_state_dict(json.loads(json.dumps(batches.state_dict(step=30))))
    assert [b.tolist() for s in range(20, 40) for b in other.indices_at(s)] == [each.tolist() for each in read[60:]]
    with pytest.raises(OrderError, match="epoch_size = None, expected a number of batches with a schedule"):
        mixed(weights=schedule)


@pytest.mark.parametrize("share", ["batches", "samples", "tokens"])
def test_shares_are_those_of_the_weights(share):
    parts = [TokenBudgetBatchSampler(LENGTHS[0], 300), TokenBudgetBatchSampler(LENGTHS[1] * 3, 900)]
    batches = MixtureBatchSampler(parts, [3, 1], share=share, epoch_size=4000)
    lengths = np.concatenate([LENGTHS[0], LENGTHS[1] * 3])
    size = {"batches": lambda _: 1, "samples": len, "tokens": lambda batch: int(lengths[batch].sum())}[share]
    sizes = [0, 0]
    for batch in batches:
        sizes[member(batch)] += size(batch)
    assert sizes[0] / sum(sizes) == pytest.approx(0.75, abs=0.004)


@pytest.mark.parametrize("drop_last", [False, True])
def test_a_state_goes_on_in_another_world(drop_last):
    epoch = [set(batch) for batch in mixed(packs)]
    for before, after in ((1, 3), (4, 2)):
        ranks = [mixed(packs, num_replicas=before, rank=rank, drop_last=drop_last) for rank in range(before)]
        read = [[next(it) for _ in range(5)] for it in map(iter, ranks)]
        state = json.loads(json.dumps(ranks[0].state_dict()))
        others = [mixed(packs, num_replicas=after, rank=rank, drop_last=drop_last) for rank in range(after)]
        for other in others:
            other.load_state_dict(state)
        rest = [list(other) for other in others]
        assert len(set(map(len, rest))) == 1
        given = [set(batch) for step in zip(*read, strict=True) for batch in step]
        given += [set(batch) for step in zip(*rest, strict=True) for batch in step]
        whole = len(epoch) - (len(epoch) - 5 * before) % after
        assert given[:whole] == epoch[:whole]
        last = set().union(*epoch[whole:])
        assert set().union(*given[whole:]) == (set() if drop_last else last)


def test_excluded_records_stay_out_and_a_loader_reads_the_concatenation(tmp_path):
    opened = []
    for name, lengths in zip("ab", LENGTHS, strict=True):
        path = tmp_path / f"{name}.jsonl"
        path.write_text("".join(f'{{"n": {[name] * int(n)}}}\n'.replace("'", '"') for n in lengths))
        mmapds.build(path, length="items(n)")
        opened.append(mmapds.open(path))
    parts = [budget(opened[0], exclude=[(0, 100)]), budget(opened[1])]
    drawn, batches = list(MixtureBatchSampler(parts, [1, 1])), MixtureBatchSampler(parts, [1, 1])
    loader = mmapds.DataLoader(mmapds.concat(opened), batch_sampler=batches, collate_fn=list)
    assert not {record for batch in drawn for record in batch} & set(range(100))
    read = [{sample["n"][0] for sample in batch} for batch in loader]
    assert read == [{"ab"[member(batch)]} for batch in drawn]
    for join in (mmapds.concat, ConcatDataset):
        with pytest.raises(OrderError, match="found one of"):
            mmapds.DataLoader(join(opened[::-1]), batch_sampler=batches)
    others = [opened[0], mmapds.open(opened[1].sources, decode="text")]  # which concat refuses
    mixture = mmapds.MixtureSampler(others, [1, 1])
    assert len(list(mmapds.DataLoader(ConcatDataset(others), sampler=mixture, batch_size=None))) == len(mixture)
    with pytest.raises(OrderError, match=r"sampler: datasets\[0\]: expected a sampler of the "):
        mmapds.DataLoader(ConcatDataset(others[::-1]), sampler=mixture)
    states = [mmapds.DistributedSampler(ConcatDataset(each)).state_dict() for each in (opened, others, others[::-1])]
    assert states[0] == mmapds.DistributedSampler(mmapds.concat(opened)).state_dict()
    assert len({state["dataset"]["fingerprint"] for state in states}) == 3
    saved = batches.state_dict()
    with pytest.raises(StateError, match=r"expected samplers\[0\].max_tokens = 299, found 300"):
        MixtureBatchSampler([TokenBudgetBatchSampler(opened[0], 299, seed=5), parts[1]], [1, 1]).load_state_dict(saved)


@pytest.mark.parametrize("make", [budget, window, packs])
def test_a_summary_is_of_all_batches_of_the_mixture(make):
    batches, lengths = mixed(make, stop="longest", num_replicas=2, rank=0), np.concatenate(LENGTHS)
    found, steps = batches.summary(), [batches.indices_at(step) for step in range(len(batches))]
    read = [lengths[batch] for step in steps for batch in step]
    sizes, tokens, limit = list(map(len, read)), sum(map(sum, read)), 128 if make is packs else 300
    assert (found.steps, found.batches, found.largest) == (len(steps), len(read), max(sizes))
    assert found.samples + found.repeated == pytest.approx(sum(sizes), rel=0.02)
    assert found.fill == pytest.approx(tokens / limit / len(read), rel=0.03)
    spaces = [limit if make is packs else len(each) * max(each) for each in read]
    assert found.padding == pytest.approx(1 - tokens / sum(spaces), abs=0.01)


@pytest.mark.parametrize("make", [budget, packs])
def test_records_are_excluded_by_their_numbers_in_the_mixture(make):
    batches, numbers = list(mixed(make, stop="longest")), {5, *range(390, 440)}
    others = list(mixed(make, stop="longest", exclude=[5, (390, 440)]))
    assert {record for batch in others for record in batch} == set(range(550)) - numbers
    assert len(others) == len(batches)
    kept = [batch for batch in batches if not numbers & set(batch)]
    assert [batch for batch in others if batch in kept] == kept


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: of(LENGTHS[0], LENGTHS[1]), r"samplers\[0\]: expected a TokenBudget.*found ndarray"),
        (lambda: mixed(weights=[1]), "expected one number for each of 2 datasets"),
        (
            lambda: of(packs([1]), budget([1])),
            r"samplers\[1\]: expected a PackingBatchSampler, as samplers\[0\], found",
        ),
        (
            lambda: of(budget([1]), budget([1], round_to=8)),
            r"samplers\[1\].round_to = 8, expected 1, as in samplers\[0",
        ),
        (lambda: of(budget([1]), budget([1], group_size=2)), r"samplers\[1\].group_size = 2, expected None: a mixture"),
        (lambda: mixed(num_replicas=500, rank=0, drop_last=True), "give a smaller num_replicas"),
    ],
)
def test_what_is_no_mixture_is_refused(make, expected):
    with pytest.raises(OrderError, match=expected):
        make()
