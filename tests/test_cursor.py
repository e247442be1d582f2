"""The rules of the cursor, as samplers show them: where iterators begin, what ends an epoch, what a state holds."""

import copy
import functools
import json
import pickle
from itertools import islice

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import mmapds
from mmapds import DistributedBatchSampler, DistributedSampler, StateError, TokenBudgetBatchSampler
from tests.support.messages import check
from tests.support.sampler_kinds import KINDS, LENGTHS, WORLD, N, epoch_of, every_kind, records_in

whole = functools.cache(lambda make, epoch: epoch_of(make, epoch, **WORLD))


def taken(sampler, steps):
    """Take some steps, as a loop does that is then dropped."""
    return list(islice(sampler, steps))


@every_kind
def test_an_iterator_takes_its_epoch_and_position_with_its_first_step(make):
    sampler = make(**WORLD)
    first, second, third = iter(sampler), iter(sampler), iter(sampler)
    sampler.set_epoch(3)
    assert list(zip(first, second, strict=True)) == [(each, each) for each in whole(make, 3)]
    sampler.load_state_dict(sampler.state_dict(step=2))
    assert list(third) == whole(make, 3)[2:]


@every_kind
def test_an_epoch_follows_a_whole_one_without_set_epoch(make):
    sampler = make(**WORLD)
    sampler.load_state_dict(sampler.state_dict(step=2))
    numbered = [list(enumerate(sampler, sampler.first_step)) for _ in range(3)]
    first, *later = ([*enumerate(whole(make, epoch))] for epoch in range(3))
    assert numbered == [first[2:], *later]
    assert (sampler.epoch, sampler.state_dict()["epoch"]) == (3, 2), "the state is the end of the last loop"


class Rules:
    """The rules of docs/samplers.md, under "Resume": where the next iterator begins, in steps of epochs of `steps`."""

    def __init__(self, steps, start):
        self.steps = steps
        self.epoch, self.step = 0, start
        self.is_known = False  # the epoch was set, loaded or begun; else the first one that is set has `start`
        self.chosen = None  # by set_epoch, since an iterator began
        self.over = None  # the epoch of a state of its end

    def set_epoch(self, epoch):
        if epoch != self.epoch and self.is_known:
            self.step, self.over = self.steps if epoch == self.over else 0, None
        self.epoch = self.chosen = epoch
        self.is_known = True

    def load(self, epoch, step):
        self.is_known = True
        if step == self.steps and epoch != self.chosen:
            self.epoch, self.step, self.over = epoch + 1, 0, epoch
        else:
            self.epoch, self.step, self.over = epoch, step, None

    def skip(self, steps):
        self.load(self.epoch, min(self.step + steps, self.steps))

    def take(self, steps):
        if steps and self.step < self.steps:
            self.chosen = self.over = None
            if steps >= self.steps - self.step:  # an iterator that is dropped before its last step changes nothing
                self.epoch, self.step = self.epoch + 1, 0
        self.is_known |= steps > 0


PLACES = st.sampled_from([0, 1, 3, "half", "end"])
CALLS = st.one_of(
    st.tuples(st.just("set_epoch"), st.integers(0, 3)),
    st.tuples(st.just("load"), PLACES, st.integers(0, 2)),
    st.tuples(st.sampled_from(["take", "skip"]), PLACES),
    st.tuples(st.sampled_from([copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])),
)


@every_kind
@pytest.mark.filterwarnings("ignore:epoch = .*, that of the loaded state, whose position is dropped")
@hypothesis.given(start=PLACES, calls=st.lists(CALLS, min_size=4, max_size=12))
@hypothesis.example(3, [("load", "end", 2), ("set_epoch", 2), ("take", 1), ("set_epoch", 3), ("take", 1)])
@hypothesis.example(0, [("set_epoch", 2), ("load", "end", 2), ("take", 1), ("set_epoch", 1), ("take", "end")])
@hypothesis.example(0, [("set_epoch", 3), ("load", 3, 1), ("take", "end"), ("take", 1)])
def test_any_calls_in_any_order_follow_the_rules(make, start, calls):
    places = {"half": len(whole(make, 0)) // 2, "end": len(whole(make, 0))}
    start = places.get(start, start)
    sampler, rules = make(start_step=start, **WORLD), Rules(places["end"], start)
    for call, *arguments in calls:
        number = places.get(arguments[0], arguments[0]) if arguments else None
        if call == "set_epoch":
            sampler.set_epoch(number)
            rules.set_epoch(number)
        elif call == "skip":
            sampler.skip(number)
            rules.skip(number)
        elif call == "load":
            saved = make(**WORLD)
            saved.set_epoch(arguments[1])
            sampler.load_state_dict(json.loads(json.dumps(saved.state_dict(step=number))))
            rules.load(arguments[1], number)
        elif call == "take":
            assert taken(sampler, number) == whole(make, rules.epoch)[rules.step :][:number]
            rules.take(number)
        else:
            sampler = call(sampler)
        assert sampler.epoch == rules.epoch
    assert list(sampler) == whole(make, rules.epoch)[rules.step :]


@pytest.mark.parametrize(("step", "expected"), [(3, 2), (9, 3)])
def test_a_loop_that_starts_over_before_the_loaded_epoch_is_warned(step, expected):
    saved, sampler = DistributedSampler(range(9)), DistributedSampler(range(9))
    saved.set_epoch(2)
    sampler.load_state_dict(saved.state_dict(step=step))
    with pytest.warns(UserWarning, match=f"epoch = 0, expected {expected}, that of the loaded state"):
        sampler.set_epoch(0)
    assert sampler.epoch == 0
    with pytest.warns(UserWarning, match=f"epoch = 0, expected {expected}, that of the loaded state; begin the loop"):
        iter(sampler).load_state_dict(saved.state_dict(step=step))  # as torchdata does, after `set_epoch`
    assert sampler.epoch == expected


def test_the_sampler_of_a_batch_sampler_is_a_face_of_the_same_cursor():
    """Lightning and accelerate reach a batch sampler only there."""
    budget = TokenBudgetBatchSampler(LENGTHS, 40)
    budget.sampler.set_epoch(3)
    assert budget.epoch == budget.sampler.epoch == 3
    inner = DistributedSampler(range(N), 2, 1, seed=1)
    batches = DistributedBatchSampler(inner, 6)
    inner.set_epoch(2)
    inner.load_state_dict(inner.state_dict(step=12))
    assert (batches.epoch, batches.first_step) == (2, 2)
    assert list(batches) == epoch_of(DistributedBatchSampler, 2, dataset=range(N), batch_size=6, seed=1, **WORLD)[2:]


@every_kind
def test_steps_are_fresh_and_of_python_ints_and_a_state_is_a_small_fresh_dict_of_json(make):
    sampler = make(**WORLD)
    steps = taken(sampler, 3)
    assert {type(record) for record in records_in(steps)} == {int}
    state = sampler.state_dict()
    assert set(state) == {"version", "epoch", "position", "epoch_size", "order", "dataset"}
    text = json.dumps(state)
    assert len(text) < 700
    for each in (state["order"], state, *(step for step in steps if isinstance(step, list))):
        each.clear()
    assert taken(sampler, 3) == whole(make, 0)[:3]
    sampler.load_state_dict(json.loads(text))
    assert json.dumps(sampler.state_dict()) == text
    assert f"rank 1 of 2, epoch 0, position {json.loads(text)['position']} of " in repr(sampler)


def test_too_little_left_for_a_step_of_a_larger_world_is_the_end():
    sampler = DistributedBatchSampler(range(20), 4, 2, 1, drop_last=True)
    sampler.load_state_dict(DistributedBatchSampler(range(20), 4, 1, 0).state_dict(step=4))
    assert (sampler.epoch, sampler.first_step) == (1, 0)


def test_steps_outside_the_epoch_have_no_state():
    sampler = DistributedSampler(range(N), start_step=2, **WORLD)
    steps = len(sampler)
    for step in (1, steps + 1, -1):
        with pytest.raises(StateError, match=rf"^step = {step}, expected 2 to {steps}, the steps of this epoch$"):
            sampler.state_dict(step=step)
    with pytest.raises(mmapds.OrderError, match=r"^step = 1\.5, expected an integer"):
        sampler.state_dict(1.5)


REFUSED = [
    (lambda s: s | {"version": 1}, r"^state\['version'\] = 1, expected 2; use the mmapds that saved it$"),
    (lambda _: {}, "found one without dataset, epoch, epoch_size, order, position, version"),
    (lambda _: None, "^state: expected the dict that state_dict.. returned, found NoneType$"),
    (lambda s: s | {"order": s["order"] | {"seed": 7}}, "expected seed = 0, found 7; make the sampler with the l"),
    (lambda s: s | {"order": s["order"] | {"ranks": 0}}, r"expected ranks = (None|2), found 0"),
    (lambda s: s | {"order": 3}, r"^state\['order'\] = 3, expected a dict$"),
    (lambda s: s | {"position": 10**9}, r"^state\['position'\] = 1000000000, expected an integer from 0 to"),
    (lambda s: s | {"position": True}, r"^state\['position'\] = True, expected an integer"),
    (lambda s: s | {"epoch": np.arange(3)}, r"^state\['epoch'\] = array.*, expected an integer$"),
    (lambda s: s | {"dataset": 5}, r"^state\['dataset'\] = 5, expected a dict or None$"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_state_of_something_else_is_refused_and_changes_nothing(change, message):
    for kind in ("mixture", "window"):
        sampler = KINDS[kind](**WORLD)
        sampler.set_epoch(2)
        taken(sampler, 3)
        before = sampler.state_dict()
        with pytest.raises(StateError, match=message) as raised:
            sampler.load_state_dict(change(sampler.state_dict()))
        check(str(raised.value))
        assert sampler.state_dict() == before


OF_A_DATASET = {
    "index": lambda ds: DistributedSampler(ds, 2, 0),
    "mixture": lambda ds: mmapds.MixtureSampler([ds, ds], [1, 2], 2, 0),
    "bucket": lambda ds: TokenBudgetBatchSampler(ds, 60, num_replicas=2, rank=0),
    "stream": lambda ds: ds.stream(shuffle=True, num_replicas=2, rank=0),
    "loader": lambda ds: mmapds.DataLoader(ds, batch_size=4, sampler=DistributedSampler(ds, 2, 0)),
    "shuffled loader": lambda ds: mmapds.DataLoader(ds, batch_size=4, shuffle=True),
}


@pytest.fixture
def made(write):
    def made(name, first=0):
        path = write([{"id": first + i, "n": 1 + i % 4} for i in range(40)], name)
        mmapds.build(path, length="n")
        return mmapds.open(path)

    return made


def test_a_state_is_of_its_records_wherever_they_lie(made):
    ds = made("a.jsonl")
    alike = [ds[:], ds.map(str), ds[np.ones(len(ds), bool)], made("elsewhere/renamed.jsonl")]
    others = [ds[::-1], ds[np.roll(np.arange(40), 1)], made("c/a.jsonl", first=7)]
    for make in OF_A_DATASET.values():
        state = json.loads(json.dumps(make(ds).state_dict()))
        for same in alike:
            make(same).load_state_dict(state)
        forged = [{"fingerprint": "0", "sources": odd} for odd in ("x" * 5000, "\x1b[2J", 7)]
        for of, given in [*((other, state) for other in others), *((ds, state | {"dataset": odd}) for odd in forged)]:
            with pytest.raises(StateError, match=r"^state: of another dataset: expected ") as raised:
                make(of).load_state_dict(given)
            check(str(raised.value))


def test_data_without_a_fingerprint_are_not_compared_but_lengths_are(made):
    ds = made("a.jsonl")
    sampler = DistributedSampler(range(40), 1, 0)
    assert sampler.state_dict()["dataset"] is None
    sampler.load_state_dict(DistributedSampler(ds, 1, 0).state_dict())
    state = TokenBudgetBatchSampler(ds.lengths, 60).state_dict()
    TokenBudgetBatchSampler(ds, 60).load_state_dict(state)
    with pytest.raises(StateError, match=r"of another dataset: expected {'lengths': '\w+'}, found {'lengths': '\w+'}"):
        TokenBudgetBatchSampler(ds.lengths[::-1], 60).load_state_dict(state)
