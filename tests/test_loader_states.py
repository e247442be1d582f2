"""States of loaders: however far ahead workers are and however often a job stops, nothing is lost or repeated."""

import json
import re
from itertools import islice

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from mmapds import ChunkedSampler, DataLoader, DistributedBatchSampler, DistributedSampler, Error, StateError
from mmapds import TokenBudgetBatchSampler as TokenBudget
from mmapds.loader.delivery import ReplayedPosition, SamplerPosition
from tests.support.loading import Failing, Numbers, as_list, expect_no_threads, ours
from tests.support.messages import check

N = 103
WORKERS = {
    "alone": {},
    "threads": {"num_workers": 2, "prefetch": 5},
    "processes": {"num_workers": 2, "workers": "processes"},
}
every_kind = pytest.mark.parametrize("workers", WORKERS.values(), ids=WORKERS)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    expect_no_threads()


LENGTHS = [1 + i * 7919 % 50 for i in range(N)]
OURS = {
    "batches": lambda world=1, rank=0: {"batch_sampler": DistributedBatchSampler(range(N), 6, world, rank, seed=1)},
    "samples": lambda world=1, rank=0: {
        "sampler": DistributedSampler(range(N), world, rank, seed=1),
        "batch_size": 6,
    },
    "chunks": lambda world=1, rank=0: {"sampler": ChunkedSampler(range(N), 9, world, rank, seed=1), "batch_size": 6},
    "no batches": lambda world=1, rank=0: {
        "sampler": DistributedSampler(range(N), world, rank, seed=1),
        "batch_size": None,
    },
    "tail dropped": lambda world=1, rank=0: {
        "sampler": DistributedSampler(range(N), world, rank, seed=1),
        "batch_size": 6,
        "drop_last": True,
    },
    "budget": lambda world=1, rank=0: {
        "batch_sampler": TokenBudget(LENGTHS, 200, num_replicas=world, rank=rank, seed=1)
    },
}
TORCHS = {
    "in order": lambda: {"batch_size": 6},
    "shuffled": lambda: {"batch_size": 6, "shuffle": True},
    "shuffled by a generator": lambda: {
        "batch_size": 6,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "weighted": lambda: {"batch_size": 6, "sampler": WeightedRandomSampler([1.0] * N, N)},
    "subset": lambda: {"batch_size": 6, "sampler": SubsetRandomSampler(range(50))},
    "distributed": lambda: {"batch_size": 6, "sampler": TorchDistributedSampler(range(N), 2, 1)},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(N)), 6, True)},
}


def epochs_of(make, epochs, workers=None):
    """The batches of some epochs, one after another."""
    loader = ours(Numbers(N), **make(), **(workers or {}))
    found = []
    for epoch in range(epochs):
        loader.set_epoch(epoch)
        found.append(list(loader))
    return found


def as_json(state):
    return json.loads(json.dumps(state))


# ---- samplers of mmapds --------------------------------------------------------------------------------------


@settings(max_examples=100)
@given(
    kind=st.sampled_from(list(OURS)),
    lives=st.lists(st.integers(0, 25), min_size=1, max_size=5),
    workers=st.integers(0, 2),
    prefetch=st.integers(1, 9),
)
def test_interrupted_at_any_batches_a_job_goes_on_exactly(kind, lives, workers, prefetch):
    """Each life of the job delivers some batches, in one epoch or in several, and leaves a state."""
    expected = [batch for epoch in epochs_of(OURS[kind], 12) for batch in epoch]
    seen, state = [], None
    for life in lives:
        make = OURS[kind]()
        loader = ours(Numbers(N), **make, num_workers=workers, prefetch=prefetch if workers else None)
        if state is not None:
            loader.load_state_dict(state)
        sampler = make.get("batch_sampler", make.get("sampler"))
        left = life
        while left:
            taken = list(islice(loader, left))
            seen += taken
            left -= len(taken)
            state = as_json(loader.state_dict())
            if left:
                loader.set_epoch(sampler.epoch + 1)
        state = as_json(loader.state_dict())
    assert seen == expected[: len(seen)]
    assert len(seen) == sum(lives)


@every_kind
@pytest.mark.parametrize("kind", OURS)
def test_every_kind_of_worker_leaves_the_same_state(kind, workers):
    loader = ours(Numbers(N), **OURS[kind](), **workers)
    alone = ours(Numbers(N), **OURS[kind]())
    assert loader.state_dict() == alone.state_dict(), "before"
    for _ in zip(loader, alone, strict=True):
        assert loader.state_dict() == alone.state_dict()
    assert loader.state_dict() == alone.state_dict(), "after"


@pytest.mark.parametrize("kind", OURS)
def test_a_state_after_the_last_batch_goes_on_with_the_next_epoch(kind):
    first, second = epochs_of(OURS[kind], 2)
    loader = ours(Numbers(N), **OURS[kind](), **WORKERS["threads"])
    batches = iter(loader)
    assert [next(batches) for _ in first] == first
    in_the_loop = loader.state_dict()
    assert next(batches, None) is None
    for state in (in_the_loop, loader.state_dict()):
        for epoch in (None, 1):
            resumed = ours(Numbers(N), **OURS[kind]())
            resumed.load_state_dict(state)
            if epoch is not None:
                resumed.set_epoch(epoch)
            assert list(resumed) == second


@pytest.mark.parametrize("kind", ["batches", "samples"])
def test_another_world_goes_on(kind):
    """2 ranks, then 3: every sample once, but for those that fill up the last step."""
    loaders = [ours(Numbers(N), **OURS[kind](2, rank), **WORKERS["threads"]) for rank in range(2)]
    seen = [index for loader in loaders for batch in islice(loader, 4) for index in batch]
    (state, same) = (loader.state_dict() for loader in loaders)
    assert state == same
    for rank in range(3):
        loader = ours(Numbers(N), **OURS[kind](3, rank), **WORKERS["threads"])
        loader.load_state_dict(state)
        seen += [index for batch in loader for index in batch]
    assert set(seen) == set(range(N))
    assert len(seen) < N + 3


def test_the_state_is_the_samplers():
    whole = list(DistributedBatchSampler(range(N), 6))
    loader = ours(Numbers(N), batch_sampler=DistributedBatchSampler(range(N), 6), **WORKERS["threads"])
    list(islice(loader, 4))
    other = DistributedBatchSampler(range(N), 6)
    other.load_state_dict(loader.state_dict())
    assert list(other) == whole[4:]


def test_the_sampler_may_be_set_without_the_loader():
    sampler = DistributedBatchSampler(range(N), 6)
    loader = ours(Numbers(N), batch_sampler=sampler, **WORKERS["threads"])
    list(islice(loader, 4))
    state = loader.state_dict()
    list(islice(loader, 7))
    sampler.load_state_dict(state)
    assert loader.state_dict() == state
    sampler.set_epoch(5)
    assert loader.state_dict() == sampler.state_dict()
    assert loader.state_dict()["epoch"] == 5
    assert loader.state_dict()["position"] == 0


def test_loading_does_not_disturb_a_loop_under_way():
    (whole,) = epochs_of(OURS["batches"], 1)
    loader = ours(Numbers(N), **OURS["batches"](), **WORKERS["threads"])
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert list(batches) == whole[2:]
    assert loader.state_dict() == state
    assert list(loader) == whole[1:]


@every_kind
def test_a_batch_that_failed_is_not_delivered_until_a_later_one_is(workers):
    loader = DataLoader(
        Numbers(N), batch_size=10, sampler=DistributedSampler(range(N), shuffle=False), collate_fn=fails, **workers
    )
    batches = iter(loader)
    assert next(batches)[0] == 0
    with pytest.raises(ZeroDivisionError):
        next(batches)
    assert loader.state_dict()["position"] == 10
    assert next(batches)[0] == 20
    assert loader.state_dict()["position"] == 30
    assert len(list(batches)) == 8


def fails(samples):
    if samples[0] == 10:
        raise ZeroDivisionError("the second batch")
    return samples


# ---- samplers of torch and of others -------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("kind", TORCHS)
@pytest.mark.parametrize("stop", [0, 1, 5])
def test_samplers_of_torch_go_on(kind, workers, stop):
    torch.manual_seed(5)
    loader = ours(Numbers(N), **TORCHS[kind](), **workers)
    loader.set_epoch(2)
    batches = iter(loader)
    for _ in range(stop):
        next(batches)
    state = as_json(loader.state_dict())
    random = torch.get_rng_state()
    rest = list(batches)
    resumed = ours(Numbers(N), **TORCHS[kind](), **workers)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    if stop == 0:
        torch.set_rng_state(random)  # the pass had not begun: its order follows from what the process draws next
    begun = list(islice(resumed, 1))
    if stop:
        again = ours(Numbers(N), **TORCHS[kind](), **workers)
        again.load_state_dict(as_json(resumed.state_dict()))
        assert begun + list(again) == rest, "interrupted twice"
    else:
        assert begun == rest[:1]


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize("kind", TORCHS)
def test_a_job_that_began_with_a_state_between_epochs_is_interrupted_again(kind, finished):
    loader = ours(Numbers(N), **TORCHS[kind]())
    if finished:
        list(loader)
    resumed = ours(Numbers(N), **TORCHS[kind]())
    resumed.load_state_dict(as_json(loader.state_dict()))
    batches = iter(resumed)
    list(islice(batches, 3))
    state = as_json(resumed.state_dict())
    again = ours(Numbers(N), **TORCHS[kind]())
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert list(again) == list(batches)


@pytest.mark.parametrize("kind", ["distributed", "shuffled by a generator"])
def test_torchs_next_epoch_follows_a_complete_one(kind):
    first, second = epochs_of(TORCHS[kind], 2)
    loader = ours(Numbers(N), **TORCHS[kind](), **WORKERS["threads"])
    assert list(islice(loader, len(first))) == first
    state = as_json(loader.state_dict())
    resumed = ours(Numbers(N), **TORCHS[kind]())
    resumed.load_state_dict(state)
    assert list(resumed) == second


@pytest.mark.parametrize("epochs", [0, 1, 2])
@pytest.mark.parametrize("persistent", [True, False])
def test_processes_go_on_with_the_epochs_of_the_loaders_generator(persistent, epochs):
    """A loader of torch's draws a number of it when it starts workers; those that persist start once."""

    def make():
        options = WORKERS["processes"] | {"persistent_workers": persistent}
        return ours(Numbers(N), **TORCHS["shuffled by a generator"](), **options)

    loader = make()
    for _ in range(epochs):
        list(loader)
    state = as_json(loader.state_dict())
    resumed = make()
    resumed.load_state_dict(state)
    for _ in range(2):
        assert list(resumed) == list(loader)


def test_another_epoch_clears_the_state_of_torchs_sampler():
    loader = ours(Numbers(N), **TORCHS["distributed"]())
    list(islice(loader, 4))
    state = loader.state_dict()
    other = ours(Numbers(N), **TORCHS["distributed"]())
    other.load_state_dict(state)
    other.set_epoch(1)
    assert list(other) == epochs_of(TORCHS["distributed"], 2)[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {**state, "sampler": "Other"}, "state['sampler'] = 'Other', expected 'SequentialSampler'"),
        (lambda state: {**state, "size": 7}, f"state['size'] = 7, expected {N}"),
        (lambda state: {**state, "batch_size": 4}, "state['batch_size'] = 4, expected 5"),
        (lambda state: {**state, "version": 2}, "state['version'] = 2, expected 1"),
        (lambda _: {}, "state: expected the dict that state_dict() returned, found"),
        (lambda _: 3, "state: expected the dict that state_dict() returned, found int"),
    ],
)
def test_a_state_of_another_loader_is_refused(change, message):
    loader = ours(Numbers(N), batch_size=5)
    with pytest.raises(StateError, match=re.escape(message)):
        loader.load_state_dict(change(loader.state_dict()))


def test_samplers_of_others_have_no_state():
    class Mine(torch.utils.data.Sampler):
        def __iter__(self):
            return iter([3, 1, 2])

        def __len__(self):
            return 3

    for options in ({"sampler": Mine()}, {"batch_sampler": [[0]]}, {"sampler": Mine(), "batch_size": None}):
        loader = DataLoader(Numbers(), collate_fn=as_list, **options)
        list(loader)
        with pytest.raises(StateError, match=r"sampler: expected one of mmapds or of torch's own, found (Mine|list)"):
            loader.state_dict()
        with pytest.raises(StateError, match="sampler: expected one of mmapds"):
            loader.load_state_dict({})


def test_batches_in_no_order_have_no_state():
    loader = ours(Numbers(9), num_workers=2, workers="processes", in_order=False)
    assert sorted(index for (index,) in loader) == list(range(9))
    with pytest.raises(StateError, match="in_order = False, expected True"):
        loader.state_dict()


TEXT, ARRAY = "AAAA", np.array([1, 2])


@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for key in ("random", "batches") for value in ("x", TEXT, "", 5000, -1, None, True, b"x", ARRAY, [])]
    + [(key, ARRAY) for key in ("version", "sampler", "size", "batch_size", "dataset", "epoch")]
    + [("epoch", 0), ("epoch", "x"), ("batches", 14), ("batches", 2**70)],
)
def test_a_forged_state_over_a_sampler_of_torch_is_refused_when_it_is_loaded(key, value):
    loader = DataLoader(range(50), batch_size=4, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    other = DataLoader(range(50), batch_size=4, shuffle=True)
    with pytest.raises(StateError, match="state"):
        other.load_state_dict(state | {key: value})
    assert other.state_dict()["batches"] == 0
    assert len(list(other)) == 13
    other.load_state_dict(state)
    assert len(list(other)) == 12


@pytest.mark.parametrize("epoch", ["x", None, -1, 1.5, True, 2**63, ARRAY])
def test_a_forged_epoch_does_not_reach_a_sampler_of_torch(epoch):
    sampler = TorchDistributedSampler(range(50), 2, 0)
    loader = DataLoader(range(50), batch_size=4, sampler=sampler)
    state = loader.state_dict()
    with pytest.raises(StateError, match=r"state\['epoch'\] = .*, expected an integer from 0"):
        loader.load_state_dict(state | {"epoch": epoch})
    assert sampler.epoch == 0
    for odd in (np.int64(3), np.uint8(3), torch.tensor(3)):
        loader.load_state_dict(state | {"epoch": odd, "batches": np.int64(0)})
        assert type(sampler.epoch) is int
        assert as_json(loader.state_dict()) == state | {"epoch": 3}
        assert len(list(loader)) == 7


@every_kind
@pytest.mark.parametrize("batches", ["of the sampler's own", "of torch's"])
def test_ranks_that_lack_the_last_step_save_the_state_of_the_others(workers, batches):
    """An evaluation of every record once: a loader knows early that a rank has no more, but other ranks have."""

    def loader_of(rank, n, world, size):
        options = {**workers, "collate_fn": as_list}
        if batches == "of torch's":
            sampler = DistributedSampler(range(n), world, rank, pad=False)
            return DataLoader(range(n), size, sampler=sampler, **options)
        sampler = DistributedBatchSampler(range(n), size, world, rank, pad=False)
        return DataLoader(range(n), batch_sampler=sampler, **options)

    for n, world, size in [(9, 2, 4), (5, 2, 1), (7, 3, 2), (10, 3, 3), (8, 2, 4), (3, 4, 2), (11, 2, 2), (31, 6, 2)]:
        loaders = [loader_of(rank, n, world, size) for rank in range(world)]
        loops = [iter(loader) for loader in loaders]
        seen = []
        for _ in range(max(map(len, loaders)) + 1):
            states = [loader.state_dict() for loader in loaders]
            assert len({json.dumps(state) for state in states}) == 1, (n, world, size)
            resumed = [loader_of(rank, n, world, size) for rank in range(world)]
            for loader, state in zip(resumed, states, strict=True):
                loader.load_state_dict(state)
            rest = [record for loader in resumed for batch in loader for record in batch]
            whole = states[0]["position"] in (0, n)  # at the end of an epoch, the next one follows
            assert sorted(rest if whole else seen + rest) == list(range(n)), (n, world, size)
            seen += [record for loop in loops for record in next(loop, [])]
        assert sorted(seen) == list(range(n))


@pytest.mark.parametrize("kind", OURS)
def test_a_handler_saves_the_state_before_the_first_batch_while_that_is_drawn(kind, monkeypatch):
    def begin(position, delivery):
        saved.append(loader.state_dict())
        original(position, delivery)
        saved.append(loader.state_dict())

    original, saved = SamplerPosition.begin, []
    loader = ours(Numbers(N), **OURS[kind]())
    expected = loader.state_dict()
    monkeypatch.setattr(SamplerPosition, "begin", begin)
    next(iter(loader))
    assert saved == [expected] * 2
    assert loader.state_dict() != expected


@every_kind
def test_ranks_agree_on_what_was_read_however_far_their_loaders_run_ahead(workers):
    """Else one rank would compare the next pass with others, which do not."""
    sampler = DistributedBatchSampler(range(N), 6, shuffle=True, start_step=14)  # of 18
    loader = ours(Numbers(N), batch_sampler=sampler, **workers)
    for count in (1, 3, 4):
        sampler.set_epoch(0)
        assert len(list(islice(loader, count))) == count
        assert sampler._synchronised().repeats_itself() == (count == 4)


@every_kind
def test_a_pass_whose_last_batch_failed_was_read_to_its_end(workers):
    """As on ranks on which none failed; a state still goes on with that batch."""
    sampler = DistributedBatchSampler(range(N), 6, shuffle=False)
    loader = ours(Failing(N, N - 1, ValueError), batch_sampler=sampler, **workers)
    batches = iter(loader)
    assert len(list(islice(batches, 17))) == 17
    with pytest.raises(ValueError, match="record"):
        next(batches)
    assert list(batches) == []
    assert sampler.current_pass.was_read
    assert loader.state_dict()["position"] == 17 * 6


@every_kind
def test_a_handler_saves_the_order_of_the_pass_that_begins(workers, monkeypatch):
    """The loader's own generator gives a seed first, and then the order."""

    def indices(position, delivery):
        saved.append(loader.state_dict())
        return original(position, delivery)

    loader = ours(Numbers(N), **TORCHS["shuffled by a generator"](), **workers)
    original, saved = ReplayedPosition.indices, [loader.state_dict()]
    monkeypatch.setattr(ReplayedPosition, "indices", indices)
    first = list(loader)
    assert saved[1] == saved[0]
    again = ours(Numbers(N), **TORCHS["shuffled by a generator"]())
    again.load_state_dict(saved[1])
    assert list(again) == first


def test_what_a_handler_raises_is_not_taken_for_an_error_of_a_batch(monkeypatch):
    def raising(*_):
        raise TimeoutError

    loader = ours(Numbers(N), **OURS["batches"](), **WORKERS["processes"])
    batches = iter(loader)
    read = [next(batches)]
    with monkeypatch.context() as patch:
        patch.setattr(torch.utils.data.dataloader._MultiProcessingDataLoaderIter, "_try_get_data", raising)
        with pytest.raises(TimeoutError):
            next(batches)
    with pytest.raises(Error, match="expected a loop that can go on"):
        next(batches)
    again = ours(Numbers(N), **OURS["batches"]())
    again.load_state_dict(loader.state_dict())
    assert read + list(again) == list(ours(Numbers(N), **OURS["batches"]()))


@pytest.mark.parametrize("workers", [WORKERS["alone"], WORKERS["threads"]], ids=["alone", "threads"])
def test_a_loop_that_a_signal_ended_as_it_drew_is_over(workers, monkeypatch):
    class Stop(BaseException):
        pass

    def steps_in(*_):
        raise Stop

    loader = ours(Numbers(N), **OURS["batches"](), **workers)
    batches = iter(loader)
    first = next(batches)
    with monkeypatch.context() as patch:
        patch.setattr(SamplerPosition, "steps_in", steps_in)
        with pytest.raises(Stop):
            list(batches)
    with pytest.raises(
        Error,
        match="expected a loop that can go on, found one that a signal, or an error outside its batches, has ended",
    ) as error:
        list(batches)
    check(str(error.value))
    assert next(iter(loader)) == first
