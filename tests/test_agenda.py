"""Where passes begin, in whatever order a loop chooses epochs, loads states, looks ahead and reads: a model says where.

The sampler is read as a loader with workers reads it: it draws batches that nobody has. The model knows no passes and
no records; it is the table of `samplers.agenda`, row by row, for a sampler that leaves nothing out.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import mmapds
from mmapds import DistributedBatchSampler
from tests.support.sampler_kinds import KINDS, epochs_of, every_kind, loader_over

EPOCHS = 4


@dataclass
class Model:
    """What a loop expects of the pass that begins next.

    Attributes:
      rest: the epoch that goes on after a load, None for any, and the step where it does.
      ended: an epoch whose end was loaded.
      under_way, is_look, is_read: the epoch and first step of the pass that began last, and what it was.
      begun: how many passes began since the last choice or load.
      then: the epoch after the rest of the loaded one.
      is_loop: the loop has chosen an epoch since the load.
      chosen: the epoch that was chosen since a pass began.
    """

    steps: int
    epoch: int = 0
    rest: tuple[int | None, int] | None = (None, 0)
    ended: int | None = None
    is_loop: bool = False
    chosen: int | None = None
    under_way: tuple[int, int] | None = None
    is_look: bool = False
    is_read: bool = False
    begun: int = 0
    then: int | None = None

    def __post_init__(self):
        self.loaded = self.rest, self.ended

    @property
    def start(self):
        if self.ended == self.epoch:
            return self.epoch, self.steps
        return self.rest if self.rest is not None and self.rest[0] in (None, self.epoch) else None

    @property
    def first_step(self):
        return 0 if self.start is None else self.start[1]

    def choose(self, epoch):
        begun, start, was_look = self.under_way, self.start, self.under_way is not None and self.is_look
        if was_look:
            self.rest, self.ended = self.loaded
        if begun is None:
            if self.rest is not None and self.rest[0] not in (None, epoch):
                self.rest = None
        elif epoch != begun[0] or (self.is_read and not was_look):
            self.rest = None
        if begun is not None and not (was_look and epoch <= begun[0]):
            self.ended = None
        is_other, self.epoch = epoch != self.epoch, epoch
        if is_other or self.start != start:
            self.under_way = None
        self.chosen, self.is_loop, self.begun, self.then = epoch, True, 0, None

    def load(self, epoch, step):
        self.rest, self.ended, self.then = None, None, None
        self.under_way, self.begun = None, 0
        self.epoch = epoch
        if step < self.steps:
            self.rest = epoch, step
            self.then = self.chosen if self.chosen is not None and self.chosen > epoch else None
        else:
            self.ended = epoch
            if self.chosen != epoch:
                self.epoch = max(epoch + 1, self.chosen or 0)
        self.is_loop = self.chosen == self.epoch
        self.loaded = self.rest, self.ended

    def begin(self):
        if self.begun and self.then is not None:
            self.epoch, self.then, self.rest, self.is_loop = self.then, None, None, True
        elif self.begun > (self.ended is not None) and self.ended == self.epoch:
            self.epoch, self.ended = self.epoch + 1, None
        elif self.begun and self.ended is None and self.is_read:
            self.rest = None
        self.under_way = self.epoch, self.first_step
        self.is_look, self.is_read, self.chosen = not self.is_loop, False, None
        self.begun += 1
        return self.first_step


class Loops(RuleBasedStateMachine):
    """Jobs over a sampler that `make` makes: steps that matter are at both ends of an epoch."""

    make: Callable[..., Any]

    @initialize(start=st.sampled_from([0, 0, 3, -2, -1]))
    def start(self, start):
        whole = self.make()
        self.steps, self.whole = len(whole), {}
        self.positions = [whole.state_dict(step=step)["position"] for step in range(self.steps + 1)]
        for epoch in range(4 * EPOCHS):
            whole.set_epoch(epoch)
            self.whole[epoch] = list(whole)
        self.sampler, self.model = (
            self.make(start_step=start % self.steps),
            Model(self.steps, rest=(None, start % self.steps)),
        )

    @invariant()
    def is_where_the_model_is(self):
        if hasattr(self, "model"):
            assert self.sampler.epoch == self.model.epoch
            at = self.model.first_step if self.model.under_way is None else self.model.under_way[1]
            assert self.sampler.first_step == at
            if self.model.begun == 0:
                assert self.sampler.state_dict()["position"] == self.positions[self.model.first_step]

    @rule(ahead=st.sampled_from([0, 0, 1, -1, 2]), times=st.integers(1, 2))
    def choose(self, ahead, times):
        """Choose this epoch or another one; trainers may do so twice."""
        epoch = (self.model.epoch + ahead) % EPOCHS
        for _ in range(times):
            self.sampler.set_epoch(epoch)
            self.model.choose(epoch)

    @rule(drawn=st.sampled_from([1, 2, None]), missing=st.sampled_from([0, 0, 1]))
    def read(self, drawn, missing):
        """Draw some batches of a pass, all, or all but one."""
        first = self.model.begin()
        expected = self.whole[self.model.epoch][first:]
        count = max(len(expected) - missing, 1) if drawn is None else drawn
        assert list(islice(iter(self.sampler), count)) == expected[:count]
        self.model.is_read = count >= len(expected)

    @precondition(lambda self: self.model.under_way is not None)
    @rule(back=st.integers(0, 2))
    def save_and_load(self, back):
        """Go on where a trainer was, in a new job."""
        step = max(self.model.under_way[1], self.steps - back)
        self.load(self.sampler.state_dict(step=step), self.model.under_way[0], step, anew=True)

    @rule(ahead=st.sampled_from([0, 0, -1, 1]), step=st.sampled_from([None, None, 0, 5, -2, -1]), anew=st.booleans())
    def load_another(self, ahead, step, anew):
        """Load a state of this epoch or another one: of its end, or within it."""
        before, epoch = self.make(), (self.model.epoch + ahead) % EPOCHS
        before.set_epoch(epoch)
        step = self.steps if step is None else step % self.steps
        self.load(before.state_dict(step=step), epoch, step, anew=anew)

    def load(self, state, epoch, step, anew):
        if anew:
            self.sampler, self.model = self.make(), Model(self.steps)
        self.sampler.load_state_dict(json.loads(json.dumps(state)))
        self.model.load(epoch, step)


@pytest.mark.filterwarnings("ignore:epoch = ")
@pytest.mark.parametrize("kind", ["batch", "bucket"])
def test_passes_begin_where_the_table_says(kind):
    class Of(Loops):
        make = staticmethod(KINDS[kind])

    run_state_machine_as_test(Of, settings=settings(max_examples=300, stateful_step_count=20))


# ---- single rows ------------------------------------------------------------------------------------------------


@every_kind
def test_a_pass_that_was_not_read_to_its_end_is_begun_again_where_it_began(make):
    before = make()
    list(islice(iter(before), 3))
    sampler = make(exclude={"steps": [(5, 7)]})
    sampler.load_state_dict(before.state_dict())
    whole = epochs_of(make, [0])[0]
    next(iter(sampler))
    for _ in range(2):
        sampler.set_epoch(0)
        assert sampler.first_step == 3
        assert list(islice(iter(sampler), 4)) == [*whole[3:5], *whole[7:9]]
    sampler.set_epoch(0)
    assert list(sampler) == [*whole[3:5], *whole[7:]]
    with pytest.warns(UserWarning, match=r"^epoch = 0, expected a new one where the rest .* from step 3, was"):
        sampler.set_epoch(0)
    assert sampler.first_step == 0
    assert list(sampler) == whole, "by choice, once it was read"


def test_what_the_loop_has_decides_whether_a_rest_was_read():
    """Near the end of an epoch, workers have drawn all of it at the first batch."""
    before = KINDS["batch"]()
    whole = [list(map(int, batch)) for batch in before]
    before.set_epoch(0)
    state = before.state_dict(step=len(whole) - 3)
    sampler = KINDS["batch"]()
    sampler.load_state_dict(state)
    loader = loader_over(sampler, mmapds.DataLoader, num_workers=2)
    for had in (1, 2, 1):
        loader.set_epoch(0)
        assert sampler.first_step == len(whole) - 3
        assert list(islice(loader, had)) == whole[-3:][:had]
    loader.set_epoch(0)
    assert list(loader) == whole[-3:]
    loader.set_epoch(0)
    assert sampler.first_step == 0
    assert list(loader) == whole


def test_a_pass_that_cannot_begin_changes_nothing_of_the_one_before(monkeypatch):
    before, sampler = KINDS["batch"](), KINDS["batch"]()
    loader = loader_over(sampler, mmapds.DataLoader)
    sampler.load_state_dict(before.state_dict(step=30))
    loader.set_epoch(0)
    assert len(list(loader)) == 4
    state = loader.state_dict()

    def refuse():
        raise mmapds.OrderError("ranks differ")

    with monkeypatch.context() as patch:
        patch.setattr(sampler, "_compare_ranks", refuse)
        with pytest.raises(mmapds.OrderError):
            list(loader)
    assert loader.state_dict() == state
    loader.set_epoch(0)
    assert (sampler.first_step, len(list(loader))) == (0, 34)


@every_kind
def test_an_epoch_chosen_before_the_load_of_an_end_follows_it(make):
    before = make()
    before.set_epoch(3)
    sampler = make()
    sampler.set_epoch(5)
    sampler.load_state_dict(before.state_dict(step=len(before)))
    assert (sampler.epoch, list(sampler)) == (5, epochs_of(make, [5])[0])


@every_kind
def test_an_iterator_that_goes_on_after_the_epoch_was_chosen_again_is_the_pass(make):
    """As Lightning's does."""
    before, whole = make(), epochs_of(make, [0])[0]
    sampler = make()
    sampler.load_state_dict(before.state_dict(step=5))
    sampler.set_epoch(0)
    steps = iter(sampler)
    assert next(steps) == whole[5]
    sampler.set_epoch(0)
    assert sampler.state_dict() == {**before.state_dict(step=5), "exclude": sampler.state_dict()["exclude"]}
    assert [next(steps), next(steps)] == whole[6:8]
    assert sampler.state_dict()["position"] == before.state_dict(step=8)["position"]
    list(steps)
    with pytest.warns(UserWarning, match="^epoch = 0, expected a new one in a second pass"):
        assert list(sampler) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_agree_whether_a_pass_was_read(workers):
    def make(rank):
        sampler = DistributedBatchSampler(range(33), 4, 2, rank, pad=False)
        loader = mmapds.DataLoader(range(33), batch_sampler=sampler, collate_fn=list, num_workers=workers)
        sampler.load_state_dict(DistributedBatchSampler(range(33), 4, 2, 0, pad=False).state_dict(step=2))
        loader.set_epoch(0)
        return sampler, loader

    for had in (1, 2, None):
        first = set()
        for rank in range(2):
            sampler, loader = make(rank)
            list(islice(loader, had))
            loader.set_epoch(0)
            first.add(sampler.first_step)
        assert first == {0 if had is None else 2}


def test_a_loop_that_begins_too_early_is_warned_after_a_look():
    sampler = KINDS["batch"]()
    before = KINDS["batch"]()
    before.set_epoch(3)
    sampler.load_state_dict(before.state_dict(step=5))
    next(iter(sampler))
    with pytest.warns(UserWarning, match="^epoch = 0, expected 3, that .* whose position 30 is dropped"):
        sampler.set_epoch(0)


def test_a_batch_sampler_knows_the_epoch_that_was_chosen_for_its_sampler():
    indices = mmapds.DistributedSampler(range(40))
    indices.set_epoch(3)
    sampler = DistributedBatchSampler(indices, 4, start_step=6)
    assert (sampler.epoch, len(list(sampler))) == (3, 4)
    with pytest.warns(UserWarning, match="^epoch = 3, expected a new one"):
        sampler.set_epoch(3)
    assert (sampler.first_step, len(list(sampler))) == (0, 10)
    sampler.load_state_dict(DistributedBatchSampler(range(40), 4).state_dict(step=10))
    other = DistributedBatchSampler(indices, 4)
    other.load_state_dict(sampler.state_dict())
    assert (other.epoch, len(list(other))) == (1, 10)


@every_kind
def test_a_state_that_is_loaded_twice_is_loaded_once(make):
    before = make()
    for loads in (1, 2):
        sampler = make()
        sampler.set_epoch(0)
        for _ in range(loads):
            sampler.load_state_dict(before.state_dict(step=len(before)))
        assert (sampler.epoch, list(sampler)) == (0, [])
        sampler = make()
        sampler.set_epoch(5)
        for _ in range(loads):
            sampler.load_state_dict(before.state_dict(step=2))
        assert list(sampler) == epochs_of(make, [0])[0][2:]
        assert list(sampler) == epochs_of(make, [5])[0]


@every_kind
@pytest.mark.parametrize("chosen", [1, 2], ids=["chosen once", "chosen twice"])
def test_a_look_ahead_to_the_end_of_a_resumed_epoch_moves_nothing(make, chosen):
    (whole,) = epochs_of(make, [0])
    before, sampler = make(), make()
    sampler.load_state_dict(before.state_dict(step=len(whole) - 2))
    assert list(sampler) == whole[-2:], "as workers draw it for one batch"
    for _ in range(chosen):
        sampler.set_epoch(0)
    assert sampler.first_step == len(whole) - 2
    assert list(sampler) == whole[-2:]


@every_kind
def test_a_loop_that_always_chooses_one_epoch_reads_it_whole_after_its_end(make):
    before, sampler = make(), make()
    (whole,) = epochs_of(make, [0])
    list(before)
    sampler.load_state_dict(before.state_dict())
    found = []
    for _ in range(3):
        sampler.set_epoch(0)
        found.append(list(sampler))
    assert found == [[], whole, whole]
