"""Which epoch the next pass is of, and where it begins: what a loop chooses, what it loaded, and what it has read.

Loops choose an epoch before a state is loaded, after that, or never, and loaders draw passes ahead that nobody has:

| event | the epoch | what is left of it, and of the next one |
|---|---|---|
| a sampler is made | 0 | the first pass, of whichever epoch, begins at start_step |
| a state is loaded | that of the state | its rest |
| one whose rest has no step | the one after | all of that; nothing of the finished one |
| the same, in the chosen epoch | that of the state | nothing; after two passes, the next epoch |
| one of an epoch before the chosen one | that of the state | its rest in one pass, then the chosen epoch |
| another epoch is chosen | that one | all of it; what waited for the next epoch is for it |
| the same epoch is chosen, and its pass was a look, or was not read | the same | what was left before that pass |
| the same epoch is chosen, and its pass was read | the same | all of it |
| a pass begins, and no epoch was chosen since another began | the same | all of it |

A loop that chooses epochs does so before its passes. So those that begin after a load and before a choice are looks.
"Read" means that the trainer has all of a pass, as our own loader knows; with others, that all of it was drawn.
"""

from typing import NamedTuple

from .exclusions import Ranges
from .passes import Pass, ResumePoint


class Left(NamedTuple):
    """What is left of an epoch, and for the next one."""

    rest: ResumePoint | None = None
    """Where the epoch goes on; of any epoch, where it names none. None if all of it is left."""
    is_end: bool = False
    """Whether that has no step."""
    next: ResumePoint | None = None
    """The beginning of a later epoch, with what waits to be left out there: of the first one that is chosen."""


class Agenda:
    """The epoch, the pass under way, and what is left for the next one.

    Args:
      first: where the first pass begins, whichever epoch is chosen for it.
      records: what every epoch leaves out.
    Attributes:
      under_way: the pass that began last, unless a choice or a load has ended it.
      choices: how many times an epoch was chosen or loaded.
      is_chosen: whether the epoch was chosen after the last pass began and the last state was loaded.
    """

    def __init__(self, first: ResumePoint, records: Ranges) -> None:
        self.epoch = 0
        self.under_way: Pass | None = None
        self.left = Left(first)
        self.choices = 0
        self.is_chosen = False
        self._whole = ResumePoint(new_records=records)
        self._otherwise: Left | None = None  # instead, where the loop chooses the loaded epoch after all
        self._then: int | None = None  # the epoch after the rest of the loaded one
        self._begun = 0  # passes since the last choice or load
        self._spare = 0  # of them, those that may be followed by the same again
        self._is_loop = False  # whether an epoch was chosen since the last load, or the loaded one before it
        self._is_look = False  # whether the pass under way began before that

    def start(self) -> ResumePoint:
        """Return where the next pass begins, and what it leaves out."""
        if self.left.rest is not None and self.left.rest.epoch in (None, self.epoch):
            return self.left.rest
        if self.left.next is not None and self.left.next.epoch == self.epoch:
            return self.left.next
        return self._whole

    def choose(self, epoch: int) -> Pass | None:
        """Choose the epoch of the next pass.

        Returns:
          A pass of it whose rest will not come again, as all of that was read; usually None.
        """
        before, start = self.under_way, self.start()
        if self._otherwise is not None and epoch == self.left_of:
            self.left = self._otherwise
        is_again = before is not None and epoch == before.epoch and (self._is_look or not before.was_read)
        self.left = Left(*self._rest_at(epoch, is_again=is_again), self._next_at(epoch, is_again=is_again))
        is_other = epoch != self.epoch
        self.epoch = epoch
        self._otherwise = self._then = None
        self._begun, self._spare = 0, self._spare if before is None or self._is_look else 0
        self.choices += 1
        self.is_chosen = self._is_loop = True
        if is_other or self.start() != start:
            self.under_way = None
            return None if is_other else before
        return None

    def _rest_at(self, epoch: int, is_again: bool) -> tuple[ResumePoint | None, bool]:
        """Return what a choice leaves of the rest, and whether that is an end."""
        before, (rest, is_end, _) = self.under_way, self.left
        if rest is None:
            keeps = False
        elif is_end:
            # The loop has come to the end that was loaded, or past it.
            keeps = before is None or (self._is_look and epoch <= before.epoch)
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
        if before is not None and before.epoch == waiting.epoch:  # it came in that pass
            return waiting if is_again or (self._is_look and epoch < waiting.epoch) else None
        return waiting._replace(epoch=max(epoch, waiting.epoch))

    @property
    def left_of(self) -> int | None:
        """The loaded epoch; None where none is."""
        return None if self.left.rest is None else self.left.rest.epoch

    def load(self, epoch: int, left: Left, otherwise: Left | None = None) -> None:
        """Go on in the epoch of a state, or after it.

        Args:
          left: of that epoch.
          otherwise: where a later epoch is chosen now, and the loop chooses that of the state after all.
        """
        is_chosen = self.is_chosen and self.epoch == epoch
        self._then = None
        if otherwise is not None and not left.is_end and left.next is not None:
            self._then, left = self.epoch, left._replace(next=left.next._replace(epoch=self.epoch))
        self.left, self._otherwise = left, otherwise
        self.epoch = epoch + (left.is_end and not is_chosen)
        self.under_way = None
        # At the end of an epoch, StatefulDataLoader reads ahead in a pass, which may be short, and begins another one.
        self._begun, self._spare = 0, int(left.is_end)
        self.choices += 1
        self.is_chosen, self._is_loop = False, is_chosen

    def begin(self, begun: Pass) -> None:
        """Take note of a pass that begins where `start` says."""
        self.under_way, self._is_look, self.is_chosen = begun, not self._is_loop, False
        self._begun += 1

    def go_on(self) -> Pass | None:
        """Let the pass under way end, before another one begins.

        Returns:
          The pass that is repeated, as no epoch was chosen; usually None.
        """
        if self._begun and self._then is not None:
            self._begin_epoch(self._then)
        elif self._begun > self._spare:
            if self.left.is_end and self.left_of == self.epoch:
                self._begin_epoch(self.epoch + 1)
            else:
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
        self.under_way = self._then = self._otherwise = None
        self._begun = self._spare = 0

    def go_on_from(self, other: "Agenda") -> None:
        """Take over what was chosen and read."""
        self.epoch, self.choices, self.is_chosen = other.epoch, other.choices, other.is_chosen

    def unchoose(self) -> None:
        """Forget that an epoch was chosen: the class of a base did that."""
        self.is_chosen = self._is_loop = False
