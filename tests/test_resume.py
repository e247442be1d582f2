"""Resuming: a state at any step, in any loader and world, neither repeats nor loses a sample."""

import copy
import itertools
import json
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    OrderError,
    PackingBatchSampler,
    StateError,
    TokenBudgetBatchSampler,
)
from tests.support.samplers import every_sampler, flat, make_samplers

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")

# ---- states --------------------------------------------------------------------------------------------------


@every_sampler
@pytest.mark.parametrize("stop", [0, 1, 7, 16])
def test_save_anywhere_and_get_exactly_the_rest(kind, stop):
    sampler = make_samplers(seed=3)[kind]
    sampler.set_epoch(2)
    iterator = iter(sampler)
    begun = list(islice(iterator, stop))
    state = json.loads(json.dumps(sampler.state_dict()))
    rest = list(iterator)
    other = make_samplers(seed=3)[kind]
    kept = copy.deepcopy(state)
    for _ in range(2):
        other.load_state_dict(state)
    assert state == kept
    assert other.epoch == 2
    assert other.state_dict() == state
    assert begun + list(other) == begun + rest
    assert list(other) == begun + rest, "the pass after it is whole"


@every_sampler
def test_a_second_resume_in_one_epoch(kind):
    whole = list(make_samplers()[kind])
    seen, state = [], None
    while len(seen) < len(whole):
        sampler = make_samplers()[kind]
        if state:
            sampler.load_state_dict(state)
        seen += islice(iter(sampler), 5)
        state = sampler.state_dict()
    assert seen == whole


@every_sampler
def test_the_state_of_a_step_the_trainer_has_finished(kind):
    sampler = make_samplers()[kind]
    whole = list(make_samplers()[kind])
    iterator = iter(sampler)
    list(islice(iterator, 12))  # a loader that prefetches
    state = sampler.state_dict(step=5)
    assert next(iterator) == whole[12]
    other = make_samplers()[kind]
    other.load_state_dict(state)
    assert other.state_dict(step=5) == state, "steps go on counting after a resume"
    resumed = iter(other)
    assert next(resumed) == whole[5]
    list(islice(resumed, 3))
    again = make_samplers()[kind]
    again.load_state_dict(other.state_dict(step=7))
    assert next(iter(again)) == whole[7]
    with pytest.raises(StateError, match=r"step = 4, expected 5 to \d+"):
        other.state_dict(step=4)
    with pytest.raises(StateError, match="step = 1000, expected 5 to"):
        other.state_dict(step=1000)


def test_an_exhausted_pass_that_dropped_its_tail_restores_as_a_full_one():
    sampler = DistributedSampler(range(103), 4, 0, drop_last=True)
    assert len(list(sampler)) == 25
    again = DistributedSampler(range(103), 4, 0, drop_last=True)
    again.load_state_dict(sampler.state_dict())
    assert len(list(again)) == 25


@every_sampler
def test_load_then_set_epoch(kind):
    sampler = make_samplers()[kind]
    sampler.set_epoch(4)
    list(islice(iter(sampler), 6))
    state = sampler.state_dict()
    whole = {}
    for epoch in (4, 5):
        plain = make_samplers()[kind]
        plain.set_epoch(epoch)
        whole[epoch] = list(plain)
    same, other = make_samplers()[kind], make_samplers()[kind]
    same.load_state_dict(state)
    same.set_epoch(4)
    assert list(same) == whole[4][6:]
    other.load_state_dict(state)
    other.set_epoch(5)
    assert list(other) == whole[5]


@every_sampler
@pytest.mark.parametrize("through", ["sampler", "loader", "torch's batches"])
def test_a_loop_that_begins_before_the_loaded_epoch_is_told(kind, through):
    sampler = make_samplers()[kind]
    sampler.set_epoch(4)
    list(islice(iter(sampler), 6))
    state = sampler.state_dict()
    resumed = make_samplers()[kind]
    batched = isinstance(resumed, BatchSampler)
    if through == "sampler" or (batched and through == "torch's batches"):
        chosen = resumed
    elif through == "loader":
        chosen = mmapds.DataLoader(resumed.sampled, **{"batch_sampler" if batched else "sampler": resumed})
    else:
        chosen = mmapds.DataLoader(resumed.sampled, batch_sampler=BatchSampler(resumed, 2, False))
    resumed.load_state_dict(state)
    message = f"^epoch = 2, expected 4, that of the loaded state, whose position {state['position']} is dropped; make"
    with pytest.warns(UserWarning, match=message) as told:
        chosen.set_epoch(2)
    chosen.set_epoch(3)
    assert [warning.filename for warning in told] == [__file__]
    resumed.load_state_dict(state)
    for epoch in range(resumed.epoch, 6):
        chosen.set_epoch(epoch)
        list(resumed)
    for epoch in range(2):
        chosen.set_epoch(epoch)


@every_sampler
def test_a_state_is_small_and_fresh(kind):
    sampler = make_samplers()[kind]
    state = sampler.state_dict()
    state["order"]["seed"] = 99
    state["exclude"]["positions"].append([0, 1])
    assert sampler.state_dict() != state
    assert len(json.dumps(sampler.state_dict())) < 500


def test_numbers_of_numpy_leave_a_state_that_json_holds():
    sampler = DistributedSampler(range(10), 1, 0, seed=np.int64(3))
    sampler.set_epoch(np.int64(2))
    assert json.loads(json.dumps(sampler.state_dict()))["epoch"] == 2
    with pytest.raises(OrderError, match=r"seed = 1.5, expected an integer"):
        DistributedSampler(range(10), 1, 0, seed=1.5)


# ---- data loaders --------------------------------------------------------------------------------------------


def loader_over(kind, workers):
    sampler = make_samplers(seed=1)[kind]
    if kind == 3:
        return StatefulDataLoader(range(100), batch_sampler=sampler, num_workers=workers), sampler
    return StatefulDataLoader(range(100), batch_size=6, sampler=sampler, num_workers=workers), sampler


@every_sampler
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [1, 5, 16])
def test_stateful_data_loader_resumes_exactly(kind, workers, stop):
    loader, _ = loader_over(kind, workers)
    iterator = iter(loader)
    for _ in range(stop):
        next(iterator)
    state = loader.state_dict()
    rest = [batch.tolist() for batch in iterator]
    resumed, _ = loader_over(kind, workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == rest


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_data_loader_with_the_trainers_own_step(workers):
    def loader(sampler):
        return DataLoader(range(100), batch_sampler=sampler, num_workers=workers)

    sampler = DistributedBatchSampler(range(100), 6)
    batches = [batch.tolist() for batch in loader(sampler)]
    iterator = iter(loader(sampler))
    for _ in range(5):
        next(iterator)
    other = DistributedBatchSampler(range(100), 6)
    other.load_state_dict(sampler.state_dict(step=5))
    assert [batch.tolist() for batch in loader(other)] == batches[5:]


# ---- other worlds --------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    n=st.integers(1, 120),
    lives=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(0, 12)), min_size=1, max_size=4),
    kind=st.sampled_from(["index", "chunked", "batch"]),
)
def test_any_world_goes_on_from_any_other(n, lives, kind):
    """W -> W' -> W'' ...: everything exactly once, what is filled up at the end aside."""

    def make(world, rank, batch):
        if kind == "index":
            return DistributedSampler(range(n), world, rank, seed=1)
        if kind == "chunked":
            return ChunkedSampler(range(n), 7, world, rank, seed=1)
        return DistributedBatchSampler(range(n), batch, world, rank, seed=1)

    seen, state = [], None
    for life, (world, batch, steps) in enumerate(lives):
        samplers = [make(world, rank, batch) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        iterators = [iter(sampler) for sampler in samplers]
        last = life == len(lives) - 1
        for step in zip(*(it if last else islice(it, steps) for it in iterators), strict=True):
            if kind == "batch":
                assert len({len(batch) for batch in step}) == 1, "ranks have batches of one size"
                step = [record for row in zip(*step, strict=True) for record in row]
            seen += step
        states = [sampler.state_dict() for sampler in samplers]
        assert all(other == states[0] for other in states), "the state is the same on every rank"
        state = states[0]
        if state["position"] == n:
            break
    if state["position"] == n:
        assert sorted(seen[:n]) == list(range(n))
        assert len(seen) < n + lives[life][0]
    else:
        raise AssertionError("the last life runs to the end")


def test_a_state_may_change_the_batch_size():
    big = DistributedBatchSampler(range(100), 10)
    iterator = iter(big)
    begun = flat(islice(iterator, 3))
    small = DistributedBatchSampler(range(100), 4, 1, 0)
    small.load_state_dict(big.state_dict())
    assert begun + flat(small) == flat(big)


def test_too_little_left_for_a_step_of_the_new_world_is_exhausted():
    one = DistributedSampler(range(103), 1, 0, drop_last=True)
    wide = DistributedSampler(range(103), 50, 0, drop_last=True)
    wide.load_state_dict(one.state_dict(step=60))
    assert len(list(wide)) == 2


# ---- states that are refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: None, "expected the dict that state_dict\\(\\) returned, found NoneType"),
        (lambda _: {}, "found one without dataset, epoch, epoch_size, exclude, order, position, version"),
        (lambda s: s | {"version": 2}, r"state\['version'\] = 2, expected 1"),
        (lambda s: s | {"position": -1}, r"state\['position'\] = -1, expected 0 to 100"),
        (lambda s: s | {"position": 101}, r"state\['position'\] = 101, expected 0 to 100"),
        (lambda s: s | {"order": s["order"] | {"n": 99}}, "state: of another order: expected n = 100, found 99"),
        (lambda s: s | {"order": s["order"] | {"seed": 1}}, "expected seed = 0, found 1"),
        (lambda s: s | {"order": s["order"] | {"version": 9}}, "expected version = 1, found 9"),
        (lambda s: s | {"order": {"order": "sequential"}}, "expected order = 'shuffled', found 'sequential'"),
        (lambda s: s | {"epoch_size": 50}, "expected epoch_size = 100, found 50"),
    ],
)
def test_a_state_that_is_not_this_samplers_is_refused(change, message):
    for sampler in (DistributedSampler(range(100)), DistributedBatchSampler(range(100), 3)):
        state = sampler.state_dict()
        with pytest.raises(StateError, match=message):
            sampler.load_state_dict(change(state))
        assert sampler.state_dict() == state, "a refused state changes nothing"


@pytest.mark.parametrize(("low", "high", "key"), [(2, 9, "shortest"), (1, 8, "longest")])
def test_a_state_of_other_limits_of_length_says_which(low, high, key):
    lengths = np.arange(1, 10)
    saved = TokenBudgetBatchSampler(lengths, 20).state_dict()
    sampler = TokenBudgetBatchSampler(lengths, 20, min_length=low, max_length=high)
    numbers = (low, 1) if key == "shortest" else (high, 9)
    with pytest.raises(
        StateError, match=f"expected {key} planned = {numbers[0]}, found {numbers[1]}; make the sampler"
    ):
        sampler.load_state_dict(saved)


@pytest.mark.parametrize(
    "damage",
    [
        {"position": "7"},
        {"epoch": None},
        {"exclude": []},
        {"exclude": {"positions": [[1]], "records": []}},
        {"order": 3},
        {"position": -1},
    ],
)
def test_a_damaged_state_is_refused(damage):
    sampler = DistributedSampler(range(10), 1, 0)
    with pytest.raises(StateError):
        sampler.load_state_dict(sampler.state_dict(step=3) | damage)


# ---- loops that are interrupted ------------------------------------------------------------------------------


def train(make, state, stop):
    """The loop of docs/samplers.md: what each rank read until step `stop` of this life, and the state saved there."""
    samplers = make()
    for sampler in samplers:
        if state is not None:
            sampler.load_state_dict(json.loads(json.dumps(state)))
        sampler.set_epoch(sampler.epoch)
    read = []
    running = [iter(sampler) for sampler in samplers]
    counts = itertools.count(samplers[0].first_step)
    for count, *batches in zip(counts, *running, strict=False):
        read.append(batches)
        if len(read) == stop:
            for sampler, iterator in zip(samplers, running, strict=True):
                list(islice(iterator, 3))  # workers prefetch
                assert sampler.first_step + stop == count + 1, "it is still that of the pass under way"
            return read, samplers[0].state_dict(step=count + 1)
    return read, None


@settings(max_examples=100)
@given(
    n=st.integers(1, 150),
    lives=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=6),
    kind=st.sampled_from(["index", "batch", "tokens", "packs"]),
)
def test_a_loop_that_counts_from_the_first_step_is_exact_however_often_it_is_interrupted(n, lives, kind):
    def make(world):
        if kind == "index":
            return [DistributedSampler(range(n), world, rank) for rank in range(world)]
        if kind == "batch":
            return [DistributedBatchSampler(range(n), 4, world, rank) for rank in range(world)]
        lengths = np.arange(n) % 7 + 1
        worlds = ({"num_replicas": world, "rank": rank} for rank in range(world))
        made = PackingBatchSampler if kind == "packs" else TokenBudgetBatchSampler
        return [made(lengths, 14, **each) for each in worlds]

    seen, state = [], None
    for world, stop in [*lives, (1, None)]:
        read, state = train(lambda world=world: make(min(world, n)), state, stop)
        seen += flat(read) if kind == "index" else flat(flat(read))
        if state is None:
            break
        if state["position"] == state["epoch_size"]:
            break
    assert set(seen) == set(range(n))
    assert len(seen) - n < 4 * 4, "only a last step fills up"


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_of_a_data_loader_over_batches_and_over_samples(workers):
    for batched in (True, False):
        seen, state = [], None
        for stop in (4, 1, 6, None):
            sampler = (DistributedBatchSampler if batched else DistributedSampler)(
                range(203), **{"batch_size": 8} if batched else {}
            )
            if state is not None:
                sampler.load_state_dict(state)
            options = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 8}
            step = sampler.first_step
            for i, batch in enumerate(DataLoader(range(203), num_workers=workers, **options)):
                seen += batch.tolist()
                step += 1 if batched else len(batch)
                state = sampler.state_dict(step=step)
                if i == stop:
                    break
        assert sorted(seen) == list(range(203))


@every_sampler
def test_the_last_step_of_a_pass_is_that_of_the_epoch(kind):
    """A loop that does something at `step + 1 == len(sampler)` does so, wherever the state is from."""
    alone = make_samplers()[kind]
    for step, replicas, drop_last in itertools.product(range(1, len(alone), 3), (1, 2, 3, 5), (False, True)):
        sampler = make_samplers(num_replicas=replicas, rank=0, drop_last=drop_last)[kind]
        sampler.load_state_dict(make_samplers(drop_last=drop_last)[kind].state_dict(step=step))
        epoch = sampler.epoch  # the next one where too little is left for a step
        steps = [number for number, _ in enumerate(sampler, sampler.first_step)]
        assert steps[-1] == len(sampler) - 1
        sampler.load_state_dict(sampler.state_dict(step=len(sampler)))
        assert sampler.epoch == epoch + 1


@every_sampler
def test_the_first_step_of_a_pass(kind):
    sampler = make_samplers(start_step=5)[kind]
    assert sampler.first_step == 5
    list(islice(iter(sampler), 3))
    assert sampler.first_step == 5, "the pass is under way"
    sampler.set_epoch(1)
    assert sampler.first_step == 0
    sampler.load_state_dict(make_samplers()[kind].state_dict(step=7))
    assert sampler.first_step == 7
    wide = make_samplers(num_replicas=5, rank=2)[kind]
    wide.load_state_dict(make_samplers()[kind].state_dict(step=7))
    assert wide.first_step == (2 if kind == 3 else 1)
    with pytest.raises(AttributeError):
        sampler.first_step = 3
