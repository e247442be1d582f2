"""The rules of the cursor, as samplers show them: where iterators begin, what ends an epoch, what a state holds."""

import copy
import json
import pickle
import warnings
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import DistributedBatchSampler, DistributedSampler, StateError, TokenBudgetBatchSampler
from tests.support.messages import check
from tests.support.sampler_kinds import KINDS, LENGTHS, WORLD, N, epoch_of, every_kind

# Tests read passes of one epoch again, on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:epoch = .*in a second pass")


def given(iterator, steps):
    """Take some steps of an iterator, as a loop does that is then dropped."""
    return list(islice(iterator, steps))


# ---- iterators -------------------------------------------------------------------------------------------------


@every_kind
def test_an_iterator_takes_its_epoch_and_position_with_its_first_step(make):
    sampler = make(**WORLD)
    first, second = iter(sampler), iter(sampler)
    sampler.set_epoch(3)
    assert list(first) == list(second) == epoch_of(make, 3, **WORLD)
    state = sampler.state_dict(step=2)
    third = iter(sampler)
    sampler.load_state_dict(state)
    assert list(third) == epoch_of(make, 3, **WORLD)[2:]


@every_kind
def test_a_dropped_iterator_changes_nothing(make):
    sampler = make(**WORLD)
    sampler.load_state_dict(make(**WORLD).state_dict(step=3))
    rest = epoch_of(make, 0, **WORLD)[3:]
    for steps in (1, 5, len(rest) - 1):
        assert given(iter(sampler), steps) == rest[:steps]
        assert (sampler.epoch, sampler.first_step) == (0, 3)
        sampler.set_epoch(0)  # Lightning and accelerate call it several times
    assert list(sampler) == rest


@every_kind
def test_the_last_step_ends_the_epoch_though_nobody_asks_for_more(make):
    sampler = make(start_step=2, **WORLD)
    whole = epoch_of(make, 0, **WORLD)
    assert given(iter(sampler), len(whole) - 2) == whole[2:]
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (0, sampler.state_dict()["epoch_size"])
    assert list(sampler) == whole


@every_kind
def test_start_step_is_of_the_epoch_that_is_set_first(make):
    for epoch in (0, 2):
        sampler = make(start_step=4, **WORLD)
        sampler.set_epoch(epoch)
        assert (sampler.first_step, list(sampler)) == (4, epoch_of(make, epoch, **WORLD)[4:])
        sampler.set_epoch(epoch + 1)
        assert list(sampler) == epoch_of(make, epoch + 1, **WORLD)


@every_kind
def test_start_step_may_be_the_end(make):
    sampler = make(start_step=len(make(**WORLD)), **WORLD)
    assert list(sampler) == []
    sampler.set_epoch(1)
    assert list(sampler) == epoch_of(make, 1, **WORLD)


@every_kind
def test_steps_are_python_ints_and_fresh_lists(make):
    sampler = make()
    step = next(iter(sampler))
    if isinstance(step, list):
        assert {type(record) for record in step} == {int}
        expected = list(step)
        step.clear()
        assert next(iter(sampler)) == expected
    else:
        assert type(step) is int


@every_kind
def test_a_copy_is_another_sampler_at_the_same_place(make):
    sampler = make(**WORLD)
    sampler.set_epoch(2)
    given(iter(sampler), 3)
    for other in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert list(other) == epoch_of(make, 2, **WORLD)
        other.set_epoch(5)
    assert sampler.epoch == 2


# ---- epochs ----------------------------------------------------------------------------------------------------

END = "end"
LOADED = [  # the epoch set before the load, the loaded position of epoch 3, the epoch set after it; what comes then
    (None, 5, None, 3, 5),
    (3, 5, 3, 3, 5),
    (7, 5, None, 3, 5),
    (None, 5, 4, 4, 0),
    (None, END, None, 4, 0),
    (2, END, None, 4, 0),
    (4, END, 4, 4, 0),
    (7, END, None, 7, 0),
    (3, END, None, 3, END),
    (None, END, 3, 3, END),
    (3, END, 4, 4, 0),
    (None, END, 9, 9, 0),
]


@every_kind
@pytest.mark.parametrize(("before", "position", "after", "epoch", "first"), LOADED)
def test_where_a_loaded_sampler_begins(make, before, position, after, epoch, first):
    saved = make(**WORLD)
    saved.set_epoch(3)
    state = saved.state_dict(step=len(saved) if position is END else position)
    sampler = make(**WORLD)
    if before is not None:
        sampler.set_epoch(before)
    sampler.load_state_dict(state)
    sampler.load_state_dict(state)  # as torchdata does: it saves both a sampler and its iterator
    for _ in range(2):
        if after is not None:
            sampler.set_epoch(after)
        given(iter(sampler), 1)  # a peek changes nothing
    assert sampler.epoch == epoch
    assert list(sampler) == ([] if first is END else epoch_of(make, epoch, **WORLD)[first:])


@every_kind
@pytest.mark.parametrize("chosen", [None, 8])
def test_a_loaded_epoch_is_followed_by_the_next_or_by_one_that_was_set_before(make, chosen):
    sampler = make(**WORLD)
    if chosen is not None:
        sampler.set_epoch(chosen)
    saved = make(**WORLD)
    saved.set_epoch(3)
    sampler.load_state_dict(saved.state_dict(step=4))
    assert list(sampler) == epoch_of(make, 3, **WORLD)[4:]
    following = 4 if chosen is None else chosen
    assert sampler.epoch == following
    assert list(sampler) == epoch_of(make, following, **WORLD)


@every_kind
def test_a_loop_over_epochs_has_no_empty_one_wherever_it_resumes(make):
    for step in range(0, len(make(**WORLD)) + 1, 3):
        sampler, read = make(**WORLD), []
        saved = make(**WORLD)
        saved.set_epoch(1)
        sampler.load_state_dict(saved.state_dict(step=step))
        for epoch in range(sampler.epoch, 3):
            sampler.set_epoch(epoch)
            read.append((epoch, sampler.first_step, len(list(sampler))))
        whole = len(sampler)
        rest = [(1, step, whole - step)] if step < whole else []
        assert read == [*rest, (2, 0, whole)]


@every_kind
def test_a_finished_epoch_may_be_read_again_after_another_one(make):
    sampler = make(**WORLD)
    sampler.load_state_dict(sampler.state_dict(step=len(sampler)))
    for epoch in (1, 0, 0):
        sampler.set_epoch(epoch)
        assert list(sampler) == epoch_of(make, epoch, **WORLD)


def test_a_second_pass_without_set_epoch_warns_once_where_the_order_would_change():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for sampler in (DistributedSampler(range(9)), DistributedSampler(range(9), shuffle=False)):
            list(sampler)
            next(iter(DistributedSampler(range(9))))
            if not sampler.shuffle:
                list(sampler)
            sampler.set_epoch(1)
            list(sampler)
        sampler = DistributedSampler(range(9))
        given(iter(sampler), 3)
        list(sampler)
        with pytest.raises(UserWarning, match="epoch = 0, expected a new one in a second pass; set it with set_epoch"):
            list(sampler)
        list(sampler)


@pytest.mark.parametrize("step", [3, "end"])
def test_a_loop_that_starts_over_before_the_loaded_epoch_is_warned(step):
    saved = DistributedSampler(range(9))
    saved.set_epoch(2)
    sampler = DistributedSampler(range(9))
    sampler.load_state_dict(saved.state_dict(step=9 if step == "end" else step))
    expected = 3 if step == "end" else 2
    with pytest.warns(UserWarning, match=f"epoch = 0, expected {expected}, that of the loaded state") as said:
        sampler.set_epoch(0)
    check(str(said[0].message))
    assert sampler.epoch == 0


def test_the_sampler_of_a_batch_sampler_is_a_face_of_the_same_cursor():
    """Lightning and accelerate reach a batch sampler only there."""
    for batches in (DistributedBatchSampler(range(N), 6), TokenBudgetBatchSampler(LENGTHS, 40)):
        batches.sampler.set_epoch(3)
        batches.sampler.set_epoch(3)
        assert batches.epoch == batches.sampler.epoch == 3
        given(iter(batches), 2)
        state = batches.state_dict()
        batches.set_epoch(0)
        assert batches.sampler.epoch == 0
        batches.load_state_dict(state)
        assert (batches.sampler.epoch, batches.first_step) == (3, 2)
        assert not hasattr(batches, "generator")
    inner = DistributedSampler(range(N), 2, 1, seed=1)
    batches = DistributedBatchSampler(inner, 6)
    inner.set_epoch(2)
    inner.load_state_dict(inner.state_dict(step=12))
    assert (batches.epoch, batches.first_step) == (2, 2)
    assert [record for batch in batches for record in batch] == epoch_of(
        lambda **_: DistributedSampler(range(N), 2, 1, seed=1), 2
    )[12:]


# ---- skip ------------------------------------------------------------------------------------------------------


@every_kind
def test_skip_moves_the_next_iterator_and_stops_at_the_end_of_the_epoch(make):
    whole = epoch_of(make, 0, **WORLD)
    sampler = make(**WORLD)
    sampler.load_state_dict(sampler.state_dict(step=2))
    sampler.skip(3)
    assert (sampler.first_step, list(sampler)) == (5, whole[5:])
    sampler = make(**WORLD)
    sampler.skip(0)
    assert given(iter(sampler), 4) == whole[:4]
    sampler.skip(4)
    sampler.skip(1)
    assert list(sampler) == whole[5:]
    sampler = make(**WORLD)
    sampler.skip(10**6)
    assert (sampler.epoch, sampler.first_step) == (1, 0)
    sampler.set_epoch(0)
    assert list(sampler) == []
    with pytest.raises(mmapds.OrderError, match="steps = -1, expected an integer of 0 or more"):
        sampler.skip(-1)


# ---- states ----------------------------------------------------------------------------------------------------


@every_kind
def test_a_state_is_a_small_fresh_dict_of_json(make):
    sampler = make(**WORLD)
    given(iter(sampler), 3)
    state = sampler.state_dict()
    assert set(state) == {"version", "epoch", "position", "epoch_size", "order", "dataset"}
    assert state["version"] == 2
    text = json.dumps(state)
    assert len(text) < 700
    state["order"].clear()
    state.clear()
    sampler.load_state_dict(json.loads(text))
    assert json.dumps(sampler.state_dict()) == text
    assert repr(sampler).endswith(" steps>")
    assert f"rank 1 of 2, epoch 0, position {json.loads(text)['position']} of " in repr(sampler)


@every_kind
@pytest.mark.parametrize("world", [1, 3, 5])
def test_first_step_counts_so_that_the_last_step_is_that_of_the_epoch(make, world):
    for step in range(1, len(make(num_replicas=2, rank=0)), 5):
        sampler = make(num_replicas=world, rank=0)
        sampler.load_state_dict(make(num_replicas=2, rank=0).state_dict(step=step))
        if sampler.epoch == 0:
            numbers = [number for number, _ in enumerate(sampler, sampler.first_step)]
            assert numbers[-1] == len(sampler) - 1
        assert sampler.state_dict(step=len(sampler))["position"] == sampler.state_dict()["epoch_size"]


@every_kind
def test_steps_outside_the_epoch_have_no_state(make):
    sampler = make(start_step=2, **WORLD)
    steps = len(sampler)
    for step in (1, steps + 1, -1):
        with pytest.raises(StateError, match=rf"^step = {step}, expected 2 to {steps}, the steps of this epoch$"):
            sampler.state_dict(step=step)
    with pytest.raises(mmapds.OrderError, match=r"^step = 1\.5, expected an integer"):
        sampler.state_dict(1.5)


def test_too_little_left_for_a_step_of_a_larger_world_is_the_end():
    state = DistributedBatchSampler(range(20), 4, 1, 0).state_dict(step=4)
    sampler = DistributedBatchSampler(range(20), 4, 2, 1, drop_last=True)
    sampler.load_state_dict(state)
    assert (sampler.epoch, sampler.first_step) == (1, 0)


REFUSED = [
    (lambda s: s | {"version": 1}, r"^state\['version'\] = 1, expected 2; use the mmapds that saved it$"),
    (lambda _: {"version": 1}, r"^state\['version'\] = 1, expected 2"),
    (lambda _: {}, "found one without dataset, epoch, epoch_size, order, position, version"),
    (lambda _: None, "^state: expected the dict that state_dict.. returned, found NoneType$"),
    (lambda s: s | {"order": s["order"] | {"seed": 7}}, "expected seed = 0, found 7; make the sampler with the arg"),
    (lambda s: s | {"order": s["order"] | {"version": 99}}, r"expected version = \d, found 99"),
    (lambda s: s | {"order": s["order"] | {"order": "mine"}}, "expected order = '.*', found 'mine'"),
    (lambda s: s | {"order": s["order"] | {"more": 1}}, "expected more = None, found 1"),
    (lambda s: s | {"order": 3}, r"^state\['order'\] = 3, expected a dict$"),
    (lambda s: s | {"epoch_size": 10**6}, r"expected epoch_size = \d+, found 1000000"),
    (lambda s: s | {"position": "7"}, r"^state\['position'\] = '7', expected an integer$"),
    (lambda s: s | {"position": -1}, r"^state\['position'\] = -1, expected an integer from 0 to"),
    (lambda s: s | {"position": 10**9}, r"^state\['position'\] = 1000000000, expected an integer from 0 to"),
    (lambda s: s | {"position": True}, r"^state\['position'\] = True, expected an integer"),
    (lambda s: s | {"epoch": None}, r"^state\['epoch'\] = None, expected an integer$"),
    (lambda s: s | {"epoch": np.arange(3)}, r"^state\['epoch'\] = array.*, expected an integer$"),
    (lambda s: s | {"dataset": 5}, r"^state\['dataset'\] = 5, expected a dict or None$"),
]


@every_kind
@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_state_of_something_else_is_refused_and_changes_nothing(make, change, message):
    sampler = make(**WORLD)
    sampler.set_epoch(2)
    given(iter(sampler), 3)
    before = sampler.state_dict()
    with pytest.raises(StateError, match=message) as raised:
        sampler.load_state_dict(change(sampler.state_dict()))
    check(str(raised.value))
    assert sampler.state_dict() == before


# ---- the data of a state ---------------------------------------------------------------------------------------

OF_A_DATASET = {
    "index": lambda ds: DistributedSampler(ds, 2, 0),
    "batch": lambda ds: DistributedBatchSampler(ds, 4, 2, 0),
    "mixture": lambda ds: mmapds.MixtureSampler([ds, ds], [1, 2], 2, 0),
    "bucket": lambda ds: TokenBudgetBatchSampler(ds, 60, num_replicas=2, rank=0),
    "packs": lambda ds: mmapds.PackingBatchSampler(ds, 60, num_replicas=2, rank=0),
    "stream": lambda ds: ds.stream(shuffle=True, num_replicas=2, rank=0),
    "loader": lambda ds: mmapds.DataLoader(ds, batch_size=4, sampler=DistributedSampler(ds, 2, 0)),
    "shuffled loader": lambda ds: mmapds.DataLoader(ds, batch_size=4, shuffle=True),
}


@pytest.fixture
def made(write):
    def made(name, first=0, n=40):
        path = write([{"id": first + i, "n": 1 + i % 4} for i in range(n)], name)
        mmapds.build(path, length="n")
        return mmapds.open(path)

    return made


@pytest.mark.parametrize("kind", OF_A_DATASET)
def test_a_state_is_of_its_records_wherever_they_lie(made, kind):
    make, ds = OF_A_DATASET[kind], made("a.jsonl")
    state = json.loads(json.dumps(make(ds).state_dict()))
    for same in (ds[:], ds.map(str), ds[np.ones(len(ds), bool)], made("elsewhere/renamed.jsonl")):
        make(same).load_state_dict(state)
    others = [made("b.jsonl", first=100), ds[::-1], ds[np.roll(np.arange(40), 1)], made("c/a.jsonl", first=7)]
    for other in others:
        with pytest.raises(StateError, match=r"^state: of another dataset: expected ") as raised:
            make(other).load_state_dict(state)
        check(str(raised.value))


def test_data_without_a_fingerprint_are_not_compared_but_lengths_are(made):
    ds = made("a.jsonl")
    state = DistributedSampler(ds, 1, 0).state_dict()
    for same in (range(40), [0] * 40):
        sampler = DistributedSampler(same, 1, 0)
        assert sampler.state_dict()["dataset"] is None
        sampler.load_state_dict(state)
    state = TokenBudgetBatchSampler(ds.lengths, 60).state_dict()
    TokenBudgetBatchSampler(ds, 60).load_state_dict(state)
    with pytest.raises(
        StateError, match=r"^state: of another dataset: expected {'lengths': '\w+'}, found {'lengths': '\w+'}"
    ):
        TokenBudgetBatchSampler(ds.lengths[::-1], 60).load_state_dict(state)


@pytest.mark.parametrize("odd", ["x" * 5000, "\x1b[2J", 7, None, ["a"]])
def test_forged_names_of_sources_are_shown_on_one_short_line(made, odd):
    ds = made("a.jsonl")
    state = DistributedSampler(ds, 1, 0).state_dict()
    state["dataset"] = {"fingerprint": "0", "sources": odd}
    with pytest.raises(StateError) as raised:
        DistributedSampler(ds, 1, 0).load_state_dict(state)
    check(str(raised.value))


# ---- torchdata -------------------------------------------------------------------------------------------------


def stateful(sampler, **options):
    own = {"batch_sampler": sampler} if isinstance(sampler, BatchSampler) else {"sampler": sampler, "batch_size": 6}
    return StatefulDataLoader(range(N), collate_fn=list, **own, **options)


WAYS = {"alone": {}, "2 workers": {"num_workers": 2}, "persistent": {"num_workers": 2, "persistent_workers": True}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["index", "bucket"])
def test_a_stateful_loader_is_exact_at_every_step_and_after_the_loop(kind, way):
    make = KINDS[kind]
    epochs = []
    for epoch in range(3):
        sampler = make()
        sampler.set_epoch(epoch)
        epochs.append(list(stateful(sampler)))
    steps = len(epochs[0])
    stops = range(1, steps + 2, 1 if way == "alone" else steps // 3)  # one more is after the loop
    for stop in [*stops, steps, steps + 1]:
        sampler = make()
        loader = stateful(sampler, **WAYS[way])
        sampler.set_epoch(0)
        for done, _ in enumerate(loader, 1):
            if done == stop:
                break
        state, sampler = loader.state_dict(), make()
        loader = stateful(sampler, **WAYS[way])
        loader.load_state_dict(state)
        read = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            read.append(list(loader))
        assert read == [epochs[0][stop:], *epochs[1:]], stop


def test_rare_snapshots_are_followed_by_the_epoch_that_was_set():
    sampler = KINDS["batch"]()
    loader = stateful(sampler, num_workers=2, snapshot_every_n_steps=7)
    list(loader)
    state, sampler = loader.state_dict(), KINDS["batch"]()
    loader = stateful(sampler, num_workers=2, snapshot_every_n_steps=7)
    loader.load_state_dict(state)
    sampler.set_epoch(1)
    assert list(loader) == epoch_of(KINDS["batch"], 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_loader_counts_its_own_steps(workers):
    read, state = [], None
    for stop in (4, 1, 6, None):
        sampler = DistributedBatchSampler(range(N), 8)
        if state is not None:
            sampler.load_state_dict(state)
        for step, batch in enumerate(
            DataLoader(range(N), batch_sampler=sampler, num_workers=workers), sampler.first_step
        ):
            read += batch.tolist()
            state = sampler.state_dict(step=step + 1)
            if stop is not None and step == sampler.first_step + stop:
                break
    assert sorted(read) == list(range(N))
