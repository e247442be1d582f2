"""What loaders and samplers of others promise at the end of an epoch, and ours hold.

The expectations are those of torchdata's StatefulDataLoader and StatefulDistributedSampler, of lhotse's samplers and of
fairseq's iterators. Where ours differ by intention, docs/samplers.md says so.
"""

import copy
import io
import json
from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import DistributedBatchSampler, StateError
from tests.support.sampler_kinds import (
    BATCH,
    WORLD,
    N,
    batches_of,
    epochs_of,
    every_kind,
    every_pair,
    loader_over,
)

# ---- torchdata: a state in the loop and after it ---------------------------------------------------------------


@every_pair
def test_a_state_saved_at_the_last_batch_replays_nothing(make, load):
    """In the loop nothing is left of the epoch; after it, as in the loop, the next epoch comes whole."""
    first, second = batches_of(make, (0, 1))
    loader = load(make())
    batches = iter(loader)
    assert [next(batches) for _ in first] == first
    in_the_loop = copy.deepcopy(loader.state_dict())
    assert list(batches) == []
    for state in (in_the_loop, loader.state_dict()):
        # Between snapshots, StatefulDataLoader reads on from the last one: it is for the loop to be in the right epoch.
        rare = getattr(loader, "snapshot_every_n_steps", 1) > 1
        for epochs in ((0, 1), (1,)):
            if rare and (0 in epochs) != (state is in_the_loop):
                continue
            sampler = make()
            resumed = load(sampler)
            resumed.load_state_dict(state)
            read = []
            for epoch in epochs:
                sampler.set_epoch(epoch)
                read += list(resumed)
            assert read == second


@every_pair
@pytest.mark.parametrize("finished", [1, 2])
def test_epochs_before_and_after_a_resume_are_those_of_one_job(make, load, finished):
    expected = batches_of(make, range(4))
    sampler = make()
    loader, found = load(sampler), []
    for epoch in range(4):
        if epoch == finished:
            state, sampler = loader.state_dict(), make()
            loader = load(sampler)
            loader.load_state_dict(state)
        sampler.set_epoch(epoch)
        found.append(list(loader))
    assert found == expected


@pytest.mark.filterwarnings("ignore:epoch = ")
@given(st.data())
@settings(max_examples=200)
def test_a_loop_without_epochs_never_stays_empty(data):
    steps = 10
    ranges = st.lists(st.tuples(st.integers(0, steps), st.integers(0, steps)).map(sorted).map(tuple), max_size=2)
    numbers = st.lists(st.integers(0, 39), max_size=12, unique=True)

    def make():
        exclude = {"steps": data.draw(ranges), "records": data.draw(numbers)}
        start_step = data.draw(st.sampled_from([0, 0, 3, steps]))
        return DistributedBatchSampler(range(40), 4, 1, 0, start_step=start_step, exclude=exclude)

    sampler, states = make(), []
    for what in data.draw(st.lists(st.sampled_from(["choose", "save", "load", "read", "restart"]), max_size=12)):
        if what == "choose":
            sampler.set_epoch(data.draw(st.integers(0, 4)))
        elif what == "save":
            states.append(sampler.state_dict())
        elif what == "load" and states:
            sampler.load_state_dict(data.draw(st.sampled_from(states)))
        elif what == "read":
            list(islice(iter(sampler), data.draw(st.integers(0, steps))))
        elif what == "restart":
            sampler = make()
    assert any(list(sampler) for _ in range(4))
    sampler.set_epoch(9)
    assert list(sampler)


@every_kind
def test_a_loop_without_epochs_goes_on_after_a_finished_one_that_was_chosen(make):
    before, sampler = make(), make()
    list(before)
    sampler.set_epoch(0)
    sampler.load_state_dict(before.state_dict())
    assert list(sampler) == list(sampler) == [], "StatefulDataLoader begins two passes"
    assert list(sampler) == epochs_of(make, [1])[0]
    assert sampler.epoch == 1


@every_kind
@pytest.mark.parametrize("chosen", [1, 2], ids=["chosen once", "chosen twice"])
def test_a_finished_epoch_that_is_chosen_after_the_load_is_not_read_again(make, chosen):
    before, sampler = make(), make()
    list(before)
    sampler.load_state_dict(before.state_dict())
    for _ in range(chosen):
        sampler.set_epoch(0)
    assert list(sampler) == list(sampler) == []
    assert list(sampler) == epochs_of(make, [1])[0]
    sampler.set_epoch(0)
    assert list(sampler) == epochs_of(make, [0])[0], "now by choice"


@every_kind
def test_what_a_loader_reads_ahead_before_the_epoch_is_chosen_changes_nothing(make):
    before, exclude = make(), {"steps": [(2, 5)]}
    list(before)
    sampler = make(exclude=exclude)
    sampler.load_state_dict(before.state_dict())
    list(islice(iter(sampler), 2))
    sampler.set_epoch(0)
    assert list(sampler) == []
    sampler.set_epoch(1)
    whole = epochs_of(make, [1])[0]
    assert list(sampler) == whole[:2] + whole[5:]
    sampler.set_epoch(0)
    assert list(sampler) == epochs_of(make, [0])[0], "now by choice"


@every_kind
def test_a_finished_epoch_may_be_chosen_again_after_the_next_one(make):
    before = make()
    list(before)
    sampler = make(exclude={"steps": [(2, 5)]})
    sampler.load_state_dict(before.state_dict())
    whole = epochs_of(make, [0, 1])
    found = []
    for epoch in (1, 0, 0, 1):
        sampler.set_epoch(epoch)
        found.append(list(sampler))
    assert found == [whole[1][:2] + whole[1][5:], whole[0], whole[0], whole[1]]


@every_kind
def test_a_loop_that_begins_before_a_loaded_end_is_warned(make):
    before, sampler = make(), make()
    before.set_epoch(3)
    list(before)
    sampler.load_state_dict(before.state_dict())
    with pytest.warns(UserWarning, match=r"^epoch = 0, expected 4, that of the loaded state, which is an end; make"):
        sampler.set_epoch(0)
    assert list(sampler) == epochs_of(make, [0])[0]


@every_kind
def test_nothing_is_left_of_an_epoch_that_others_ended_at_another_number_of_ranks(make):
    before = make(num_replicas=2, rank=0)
    before.set_epoch(3)
    list(before)
    sampler = make(num_replicas=1, rank=0)
    sampler.set_epoch(3)
    sampler.load_state_dict(before.state_dict())
    assert (sampler.epoch, list(sampler)) == (3, [])
    sampler.set_epoch(4)
    assert list(sampler)


# ---- torchdata: states loaded into the loader that has them ----------------------------------------------------


@every_pair
def test_a_state_from_before_the_first_batch_begins_the_epoch(make, load):
    (expected,) = batches_of(make, (3,))
    sampler = make()
    sampler.set_epoch(3)
    loader = load(sampler)
    batches = iter(loader)
    state = copy.deepcopy(loader.state_dict())
    assert list(batches) == expected
    loader.load_state_dict(state)
    assert list(loader) == expected


@every_pair
def test_a_loader_under_way_takes_an_earlier_and_a_later_state(make, load):
    (expected,) = batches_of(make, (0,))
    loader = load(make())
    batches = iter(loader)
    start = copy.deepcopy(loader.state_dict())
    read = list(islice(batches, 4))
    middle = copy.deepcopy(loader.state_dict())
    loader.load_state_dict(middle)
    assert read + list(loader) == expected
    loader.load_state_dict(start)
    assert list(loader) == expected


@every_pair
def test_a_loader_under_way_takes_the_state_of_an_end(make, load):
    first, second = batches_of(make, (0, 1))
    ended = load(make())
    assert list(ended) == first
    sampler = make()
    loader = load(sampler)
    list(islice(iter(loader), 2))
    loader.load_state_dict(ended.state_dict())
    sampler.set_epoch(1)
    assert list(loader) == second


@every_pair
def test_a_state_saved_right_after_a_resume_is_as_good(make, load):
    """Before every worker has delivered a batch of the resumed epoch."""
    (expected,) = batches_of(make, (0,))
    state, read = None, []
    for count in (11, 1, 0, 2, None):
        loader = load(make())
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        read += list(islice(batches, count))
        state = copy.deepcopy(loader.state_dict())
    assert read == expected


@every_pair
def test_a_state_goes_through_json(make, load):
    (expected,) = batches_of(make, (0,))
    loader = load(make())
    read = list(islice(iter(loader), 5))
    resumed = load(make())
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert read + list(resumed) == expected


# ---- torchdata: samplers ---------------------------------------------------------------------------------------


@every_kind
def test_a_loaded_state_is_the_samplers_state(make):
    """Also where it is asked for before the first index."""
    sampler = make(**WORLD)
    for epoch in (0, 1, 2):
        sampler.set_epoch(epoch)
        list(sampler)
    sampler.set_epoch(3)
    list(islice(iter(sampler), 5))
    state = sampler.state_dict()
    resumed = make(**WORLD)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    resumed.load_state_dict(resumed.state_dict())
    assert list(resumed) == epochs_of(make, (3,), **WORLD)[0][5:]


@every_kind
def test_an_end_that_was_loaded_may_be_loaded_again(make):
    sampler = make()
    list(sampler)
    state = sampler.state_dict()
    (second,) = epochs_of(make, (1,))
    for _ in range(3):
        sampler.load_state_dict(state)
        assert sampler.state_dict()["epoch"] == 1
        assert list(sampler) == second


@every_kind
def test_a_state_knows_its_epoch(make):
    """A loop that begins before it is told the epoch reads the right one."""
    sampler = make()
    sampler.set_epoch(5)
    list(islice(iter(sampler), 9))
    resumed = make()
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == epochs_of(make, (5,))[0][9:]


@every_kind
@pytest.mark.parametrize("position", [-1, 10**9])
def test_a_state_outside_the_epoch_is_refused(make, position):
    with pytest.raises(StateError, match=f"position'\\] = {position}, expected 0 to"):
        make().load_state_dict({**make().state_dict(), "position": position})


# ---- torchdata: iterables --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("ends") / "train.jsonl"
    path.write_text("".join(f"{i}\n" for i in range(N)))
    return mmapds.open(path, build=True)


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 2}])
@pytest.mark.parametrize("batch_size", [None, BATCH])
def test_a_stream_goes_on_with_the_next_epochs(ds, batch_size, workers):
    def make():
        stream = ds.stream(batch_size=batch_size, shuffle=True)
        return stream, StatefulDataLoader(stream, batch_size=None, **workers)

    stream, loader = make()
    expected = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        expected.append(list(loader))
        if epoch == 0:
            state = copy.deepcopy(loader.state_dict())
    stream, loader = make()
    list(islice(iter(loader), 2))
    loader.load_state_dict(state)
    found = []
    for epoch in (1, 2):
        stream.set_epoch(epoch)
        found.append(list(loader))
    assert found == expected[1:]


@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_stream_ends_with_those_of_the_ranks_that_have_a_share_of_the_last_step(ds, batch_size):
    """5 samples on 2 ranks: the second one has a sample less, and no batch more."""

    def make(rank):
        return ds[:5].stream(batch_size=batch_size, num_replicas=2, rank=rank, pad=False)

    states = []
    for rank in range(2):
        stream = make(rank)
        list(stream)
        states.append(stream.state_dict())
        assert states[-1] == stream.sampler.state_dict()
    assert states[0] == states[1]
    for rank in range(2):
        stream = make(rank)
        stream.load_state_dict(states[1])
        assert stream.epoch == 1
        assert list(stream) == list(make(rank))


def test_a_stream_refuses_the_state_of_another_number_of_workers(ds):
    def make(workers):
        return StatefulDataLoader(ds.stream(batch_size=BATCH), batch_size=None, num_workers=workers)

    for before, after in ((0, 2), (2, 0), (2, 1)):
        loader = make(before)
        list(islice(iter(loader), 3))
        resumed = make(after)
        resumed.load_state_dict(loader.state_dict())
        with pytest.raises((AssertionError, StateError)):  # torchdata's own, or ours
            list(resumed)


# ---- lhotse ----------------------------------------------------------------------------------------------------


@every_kind
def test_an_epoch_may_be_read_again_after_its_resumed_rest(make):
    (whole,) = epochs_of(make, (3,))
    sampler = make()
    sampler.set_epoch(3)
    list(islice(iter(sampler), 5))
    resumed = make()
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == whole[5:]
    resumed.set_epoch(3)
    assert list(resumed) == whole[5:], "passes before the first choice are taken for looks ahead"
    with pytest.warns(UserWarning, match=r"^epoch = 3, expected a new one where the rest .* from step 5, was"):
        resumed.set_epoch(3)
    assert list(resumed) == whole


@every_kind
def test_a_resume_point_may_be_discarded_by_another_epoch(make):
    sampler = make()
    sampler.set_epoch(3)
    list(islice(iter(sampler), 5))
    resumed = make()
    resumed.load_state_dict(sampler.state_dict())
    with pytest.warns(UserWarning, match="epoch = 0, expected 3"):
        resumed.set_epoch(0)
    resumed.set_epoch(3)
    assert list(resumed) == epochs_of(make, (3,))[0]


@every_kind
def test_a_state_goes_through_torch_save(make):
    sampler = make()
    list(islice(iter(sampler), 5))
    file = io.BytesIO()
    torch.save(sampler.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == sampler.state_dict()


@every_kind
@pytest.mark.parametrize("workers", [0, 1])
def test_workers_that_run_ahead_skew_no_state(make, workers):
    """lhotse loses what its workers have prefetched."""
    sampler = make()
    copied = copy.deepcopy(sampler)
    loader = loader_over(sampler, mmapds.DataLoader, num_workers=workers)
    for epoch in (0, 1):
        loader.set_epoch(epoch)
        read = []
        for batch in loader:
            read.append(batch)
            if len(read) == 5:
                state = loader.state_dict()
    resumed = loader_over(copied, mmapds.DataLoader, num_workers=workers)
    resumed.load_state_dict(state)
    assert list(resumed) == read[5:]


@every_kind
def test_another_sampler_refuses_a_state(make):
    """lhotse's samplers take their arguments from the state; ours compare them."""
    state = make(seed=1).state_dict(step=5)
    with pytest.raises(StateError, match=r"of another order: expected .*seed = 0, found .*1|expected .*, found"):
        make().load_state_dict(state)


# ---- fairseq ---------------------------------------------------------------------------------------------------


@every_kind
def test_steps_count_on_from_a_partial_epoch_and_from_zero_after_it(make):
    sampler = make()
    steps = len(sampler)
    resumed = make()
    sampler.set_epoch(2)
    resumed.load_state_dict(sampler.state_dict(step=steps // 3))
    assert (resumed.epoch, resumed.first_step) == (2, steps // 3)
    counted = []
    for step, _ in enumerate(resumed, resumed.first_step):
        counted.append(step)
    assert counted == list(range(steps // 3, steps))
    assert resumed.state_dict()["position"] == len(resumed._progress.contents)
    resumed.set_epoch(3)
    assert (resumed.epoch, resumed.first_step) == (3, 0)
    assert list(resumed) == epochs_of(make, (3,))[0]


@every_kind
def test_a_full_epoch_is_followed_by_the_next_from_zero(make):
    sampler = make()
    sampler.set_epoch(2)
    resumed = make()
    resumed.load_state_dict(sampler.state_dict(step=len(sampler)))
    assert (resumed.epoch, resumed.first_step) == (3, 0)
    assert list(resumed) == epochs_of(make, (3,))[0]


@every_kind
def test_without_a_checkpoint_the_first_epoch_begins_at_zero(make):
    assert (make().epoch, make().first_step) == (0, 0)
    assert list(make()) == epochs_of(make, (0,))[0]


@every_kind
@pytest.mark.parametrize("world", [1, 2, 3])
def test_ranks_end_an_epoch_with_the_same_step(make, world):
    """fairseq fills up the last step with None, which trainers turn into an empty batch; ours with samples."""
    ranks = [epochs_of(make, (0, 1), num_replicas=world, rank=rank) for rank in range(world)]
    for epoch in range(2):
        assert len({len(rank[epoch]) for rank in ranks}) == 1
        assert all(each is not None for rank in ranks for each in rank[epoch])
