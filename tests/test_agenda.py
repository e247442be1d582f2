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

from tests.support.sampler_kinds import KINDS

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
