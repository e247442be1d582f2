"""docs/elastic.md: the samples of an optimizer step at any number of ranks, and the tokens of it."""

from math import lcm

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import OrderError, PackingBatchSampler, TokenBudgetBatchSampler, orders
from tests.support.sampler_kinds import KINDS, LENGTHS, N

WORLDS = (1, 2, 3, 4, 6, 8, 12)
WHOLE = 2 * lcm(*WORLDS)  # ranks times batch size times accumulation
NEEDED = {"group_size": WHOLE}
BUDGETS = {
    name: lambda name=name, **options: KINDS[name](**NEEDED, **options)
    for name in ("bucket", "window", "packs", "packs in windows")
}
PADDED = ("index", "chunked", "mixture", "batch")
MIXED = [TokenBudgetBatchSampler(LENGTHS[:80], 40), TokenBudgetBatchSampler(LENGTHS[80:], 40)]
ELASTIC = {
    **{name: KINDS[name] for name in ("index", "chunked", "mixture")},
    "batch": lambda **options: KINDS["batch"](size=2, **options),
    "whole": lambda **options: KINDS["batch"](size=1, epoch_size=N // WHOLE * WHOLE, **options),
    **BUDGETS,
    "mixed": lambda **options: mmapds.MixtureBatchSampler(MIXED, [3, 2], stop="longest", **options),
}


def read_as(make, world, state, stop):
    """The records of optimizer steps, read by some ranks from a state to a step; and the state there."""
    samplers = [make(num_replicas=world, rank=rank) for rank in range(world)]
    size = 2 if make is ELASTIC["batch"] else 1
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(state)
    together, steps, begin = WHOLE // world // size, [], samplers[0].first_step
    batches = list(zip(*samplers, strict=True))
    for first in range(0, len(batches), together):
        flat = [each for ranks in batches[first : first + together] for each in ranks]
        steps.append(np.concatenate([np.atleast_1d(each) for each in flat]).tolist())
    steps, end = steps[:stop], min(stop * together, len(batches))
    return steps, samplers[0].state_dict(step=begin + end)


@pytest.mark.parametrize("name", ELASTIC)
@given(st.lists(st.tuples(st.sampled_from(WORLDS), st.integers(1, 3)), min_size=1, max_size=4))
def test_optimizer_steps_have_the_same_samples_at_any_world_that_changes_within_the_epoch(name, parts):
    make = ELASTIC[name]
    expected, _ = read_as(make, 1, None, 10**9)
    found, state = [], None
    for world, stop in [*parts, (WORLDS[len(parts)], 10**9)]:
        if len(found) == len(expected):
            break
        steps, state = read_as(make, world, state, stop)
        found += steps
    if name in PADDED:  # the last step has repeats from the beginning of the epoch: see the next test
        found[-1] = [record for record in found[-1] if record not in expected[0]]
    assert list(map(set, found)) == list(map(set, expected))
    if name in ("whole", *BUDGETS):
        assert [sorted(each) for each in found] == [sorted(each) for each in expected], "nothing repeats"
    if name in BUDGETS:
        assert sorted(record for step in found for record in step) == list(range(N))


def test_a_padded_last_step_repeats_the_beginning_of_the_epoch():
    """At most one sample for each rank: those of docs/elastic.md."""
    for world in WORLDS:
        _, last = read_as(ELASTIC["index"], 1, None, 10**9), read_as(ELASTIC["index"], world, None, 10**9)[0][-1]
        assert len(last) == -(-(N % WHOLE) // world) * world


# ---- tokens of a step ------------------------------------------------------------------------------------------


def test_the_total_of_steps_is_that_of_their_records(write):
    path = write([{"n": i, "text": "x" * (i % 13 + 1)} for i in range(N)])
    mmapds.build(path, length="chars(text)", columns={"half": "n"})
    ds = mmapds.open(path)
    half, cut = ds.column("half"), np.minimum(ds.lengths, 9)
    mixed = [TokenBudgetBatchSampler(part, 40) for part in (ds[:80], ds[80:])]
    world = {"num_replicas": 3, "rank": 1}
    in_order = mmapds.DistributedSampler(ds, **world)
    chunks = {"planner": "window", "order": orders.Chunked(N, 7, mix_chunks=3)}
    for sampler, lengths in (
        (in_order, ds.lengths),
        (mmapds.MixtureSampler([ds[:80], ds[80:]], [1, 2], **world), ds.lengths),
        (mmapds.DistributedBatchSampler(ds, 7, **world), ds.lengths),
        (mmapds.DistributedBatchSampler(ds, 7, pad=False, **world), ds.lengths),
        (mmapds.DistributedBatchSampler(ds, 7, exclude=[3], **world), ds.lengths),
        (TokenBudgetBatchSampler(ds, 40, **world), ds.lengths),
        (TokenBudgetBatchSampler(ds, 40, planner="window", exclude=[3], **world), ds.lengths),
        (PackingBatchSampler(ds, 40, packs_per_batch=2, **world), ds.lengths),
        (PackingBatchSampler(ds, 9, oversize="truncate", **chunks, **world), cut),
        (mmapds.MixtureBatchSampler(mixed, [1, 2], **world), ds.lengths),
    ):
        sampler.load_state_dict({**sampler.state_dict(step=2), "epoch": 1})
        first, steps = sampler.first_step, range(len(sampler))
        records = [np.concatenate([np.atleast_1d(each) for each in sampler.indices_at(step)]) for step in steps]
        assert [sampler.total_at(step) for step in steps] == [lengths[each].sum() for each in records], sampler
        assert [sampler.total_at(step, column="half") for step in steps[::5]] == [
            half[each].sum() for each in records[::5]
        ]
        rest = sampler.total_at(first, 10**9)
        assert rest == sum(lengths[each].sum() for each in records[first:])
        assert type(rest) is int
        with pytest.raises(IndexError):
            sampler.total_at(len(sampler))
    with pytest.raises(mmapds.ColumnError, match="labels"):
        in_order.total_at(0, column="labels")
    with pytest.raises(OrderError, match="column = 'length': expected a sampler of a dataset, found one of other"):
        mmapds.DistributedSampler(range(9)).total_at(0)
    with pytest.raises(OrderError, match="steps = 0, expected an integer of 1 or more"):
        in_order.total_at(0, 0)


@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"batches": True}])
def test_a_loader_yields_the_total_of_each_step(write, options):
    path = write([{"n": i, "text": "x" * (i % 13 + 1)} for i in range(N)])
    mmapds.build(path, length="chars(text)")
    ds = mmapds.open(path)
    in_batches, given = options.get("batches"), {name: each for name, each in options.items() if name != "batches"}
    batches = mmapds.DistributedBatchSampler(ds, 7, num_replicas=1, rank=0)
    sampled = {"batch_sampler": batches} if in_batches else {"batch_size": 7, "shuffle": True, **given}
    loader = mmapds.DataLoader(ds, num_workers=1, collate_fn=list, **sampled)

    def tokens(samples):
        return sum(len(each["text"]) for each in samples)

    for stop in (2, None):  # the second time resumes behind two lists
        for step, lists, total in loader.steps(accumulate=3, total="length"):
            assert total == sum(map(tokens, lists)) == loader.total_at(3 * step, 3)
            state = loader.state_dict()
            if step + 1 == stop:
                break
        loader.load_state_dict(state)
    loader.set_epoch(1)
    for _, batch, total in loader.steps(total="length"):
        assert total == tokens(batch)
