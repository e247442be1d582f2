"""Which epoch the next pass is of, and where it begins: what a loop chooses, what it loaded, and what it has read.

Loops choose an epoch before a state is loaded, after that, or never, and loaders draw steps ahead that no trainer gets.
The rest of an epoch is what a state leaves of it. A look is a pass that begins before an epoch was chosen since the
sampler was made or a state was loaded: a loop that chooses epochs does so before its passes. A pass was read if the
trainer had all of it, as our own loader knows; with others, if all of it was drawn. Of these rows the first that fits
holds:

| event | the epoch | the pass that comes |
|---|---|---|
| a sampler is made | 0 | begins at start_step, whichever epoch is chosen for it before it begins |
| a state is loaded | that of the state | its rest |
| one whose rest has no step, an end | the one after, or a later one if that was chosen | all of it |
| the same, where its epoch was chosen | that of the state | has no step, twice; then the next epoch comes |
| one of an epoch before the chosen one | that of the state | its rest; then, read or not, the chosen epoch comes |
| another epoch is chosen | that one | all of it; an end stays one until a pass begins that is no look |
| the same epoch is chosen after looks | the same | begins where the first look began |
| a pass was not read, and the same epoch is chosen, or none | the same | begins where that pass began |
| a pass was read, and the same epoch is chosen | the same | all of it |
| a pass was read, and none is chosen | the same | all of it, but the first time after a loaded end, as that pass |

Steps that are left out once, of the epoch after the loaded one, wait for the first later epoch that the loop reads.
"""

from typing import NamedTuple

from .exclusions import Ranges
from .passes import Pass, ResumePoint


class Left(NamedTuple):
    """What is left of an epoch, and for the next one."""

    rest: ResumePoint | None = None
    """Where the loaded epoch goes on, or, if it names no epoch, whichever comes first. None for no such place: epochs
    begin at their beginning."""
    is_end: bool = False
    """Whether no step follows there."""
    next: ResumePoint | None = None
    """The beginning of a later epoch, with what waits to be left out of it: of the first one that the loop reads."""


class Agenda:
    """The epoch, the pass under way, and what is left for the next one.

    Args:
      first: where the first pass begins, whichever epoch is chosen for it.
      records: what every epoch leaves out.
    Attributes:
      under_way: the pass that began last, unless a choice or a load has ended it.
      choices: how many times an epoch was chosen or loaded.
      chosen: the epoch that was chosen after the last pass began, if one was.
      is_look: whether the pass under way is one.
    """

    def __init__(self, first: ResumePoint, records: Ranges) -> None:
        self.epoch = 0
        self.under_way: Pass | None = None
        self.left = Left(first)
        self.choices = 0
        self.chosen: int | None = None
        self._whole = ResumePoint(new_records=records)
        self._as_loaded = self.left  # which looks ahead do not change
        self._first_later = 0  # the first epoch after the loaded one
        self._if_chosen_again: Left | None = None  # what is left where the loop chooses the loaded epoch after all
        self._after_rest: int | None = None  # the epoch after the rest of the loaded one
        self._begun = 0  # passes since the last choice or load
        self._spare = 0  # of them, those that may be followed by the same again
        self._is_loop = False  # whether an epoch was chosen since the last load, or before it the one that came then
        self.is_look = False
        self._chosen_at: int | None = None  # what was delivered of the pass under way when its epoch was chosen again

    def start(self) -> ResumePoint:
        """Return where the next pass begins, and what it leaves out."""
        if self.left.rest is not None and self.left.rest.epoch in (None, self.epoch):
            return self.left.rest
        if self.left.next is not None and self.left.next.epoch == self.epoch:
            return self.left.next
        return self._whole

    @property
    def current(self) -> Pass | None:
        """The pass under way; not once its epoch is chosen again, until a trainer goes on with it as Lightning does."""
        if self.under_way is not None and self.under_way.delivered == self._chosen_at:
            return None
        return self.under_way

    def choose(self, epoch: int) -> Pass | None:
        """Choose the epoch of the next pass.

        Returns:
          A pass of it whose rest will not come again, as all of that was read; usually None.
        """
        before, start = self.under_way, self.start()
        if before is not None and self.is_look:
            self.left = self._as_loaded
        if self._if_chosen_again is not None and epoch == self.loaded_epoch:
            self.left = self._if_chosen_again
        is_again = before is not None and epoch == before.epoch and (self.is_look or not before.was_read)
        self.left = Left(*self._rest_at(epoch, is_again=is_again), self._next_at(epoch, is_again=is_again))
        is_other = epoch != self.epoch
        self.epoch = epoch
        self._if_chosen_again = self._after_rest = None
        self._begun, self._spare = 0, self._spare if before is None or self.is_look else 0
        self.choices += 1
        self.chosen, self._is_loop = epoch, True
        if is_other or self.start() != start:
            self.under_way = None
            return None if is_other else before
        self._chosen_at = None if before is None else before.delivered
        return None

    def _rest_at(self, epoch: int, is_again: bool) -> tuple[ResumePoint | None, bool]:
        """Return what a choice leaves of the rest, and whether that is an end."""
        before, (rest, is_end, _) = self.under_way, self.left
        if rest is None:
            keeps = False
        elif is_end:
            # The loop has come to the end that was loaded, or past it.
            keeps = before is None or (self.is_look and epoch <= before.epoch)
        elif before is None:
            keeps = rest.epoch in (None, epoch)
        else:
            keeps = is_again
        return (rest, is_end) if keeps else (None, False)

    def _next_at(self, epoch: int, is_again: bool) -> ResumePoint | None:
        """Return what a choice leaves for a later epoch."""
        before, waiting = self.under_way, self.left.next
        if waiting is None or waiting.epoch is None:
            return None
        if is_again and waiting.epoch == epoch:
            return waiting
        if before is not None and before.epoch == waiting.epoch and (before.was_read or not self.is_look):
            return waiting if self.is_look and epoch < waiting.epoch else None  # it came in that pass
        return waiting._replace(epoch=max(epoch, self._first_later))

    @property
    def loaded_epoch(self) -> int | None:
        """The loaded epoch; None where nothing of it is kept."""
        return None if self.left.rest is None else self.left.rest.epoch

    def load(self, epoch: int, left: Left, otherwise: Left | None = None) -> None:
        """Go on in the epoch of a state, or after it.

        Args:
          left: of that epoch.
          otherwise: where a later epoch is chosen now, and the loop chooses that of the state after all.
        """
        later = max(epoch + 1, self.chosen or 0)
        if left.next is not None:
            left = left._replace(next=left.next._replace(epoch=later))
        self.left = self._as_loaded = left
        self._if_chosen_again, self._first_later = otherwise, epoch + 1
        self._after_rest = None if left.is_end or otherwise is None else later
        self.epoch = later if left.is_end and self.chosen != epoch else epoch
        self.under_way = None
        # At the end of an epoch, StatefulDataLoader reads ahead in a pass, which may be short, and begins another one.
        self._begun, self._spare = 0, int(left.is_end)
        self.choices += 1
        self._is_loop = self.chosen == self.epoch

    def begin(self, begun: Pass) -> None:
        """Take note of a pass that begins where `start` says."""
        self.under_way, self.is_look, self.chosen = begun, not self._is_loop, None
        self._chosen_at = None
        self._begun += 1

    def end_pass(self) -> Pass | None:
        """Let the pass under way end, before another one begins.

        Returns:
          The pass that is repeated, as no epoch was chosen; usually None.
        """
        goes_on = self._chosen_at is not None and self.current is not None  # with a pass from before the choice
        begun = self._begun + goes_on
        if begun and self._after_rest is not None:
            self._begin_epoch(self._after_rest)
        elif begun > self._spare:
            if self.left.is_end and self.loaded_epoch == self.epoch:
                self._begin_epoch(self.epoch + 1)
            elif self.under_way is not None and self.under_way.was_read:
                start = self.start()
                rest, is_end, waiting = self.left
                self.left = Left(
                    None if rest is start else rest, is_end and rest is not start, None if waiting is start else waiting
                )
                return self.under_way
        return None

    def _begin_epoch(self, epoch: int) -> None:
        """Begin an epoch that follows the loaded one."""
        self.epoch, self.left = epoch, Left(next=self.left.next)
        self.under_way = self._after_rest = self._if_chosen_again = None
        self._begun = self._spare = 0
        self._is_loop = True  # this epoch was chosen, or follows one that was

    def take_over(self, other: "Agenda") -> None:
        """Take over what was chosen, before a state is loaded."""
        self.epoch, self.choices, self.chosen = other.epoch, other.choices, other.chosen

    def forget_choice(self) -> None:
        """Take a choice back that no loop made."""
        self.chosen, self._is_loop = None, False
