"""Where a pass over an epoch begins and resumes, and the state that says so.

All bookkeeping is in positions. A position means the same for any number of replicas and any batch size, so a state is
little more than one position, and any world can continue from it.
"""

import operator
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np

from ..errors import OrderError, StateError, shortened, warn
from ..orders.basic import Int64s, integer, is_same
from .agenda import Agenda, Left
from .contents import EpochContents
from .data import SampledData
from .exclusions import (
    LARGEST,
    Exclude,
    Ranges,
    as_ranges,
    beyond,
    check_excluded,
    clipped,
    merged,
    parse_exclude,
    ranges_of,
)
from .passes import Pass, ResumePoint, Sharding
from .world import warn_if_others

STATE_VERSION = 1
_STATE_KEYS = {"version", "epoch", "position", "epoch_size", "order", "dataset", "exclude"}
_BLOCK = 8192  # positions computed at a time: enough to hide the cost of a call, few enough for a quick first one


class EpochProgress:
    """The epoch, the pass under way, and where the next one begins."""

    def __init__(
        self,
        contents: EpochContents,
        sharding: Sharding,
        *,
        start_step: int,
        exclude: Exclude | None,
        assumed: bool = False,
        block_size: int = _BLOCK,
    ) -> None:
        if sharding.drop_last and not sharding.pad:
            raise OrderError("drop_last = True, expected False with pad=False, which leaves no sample out")
        self.contents = contents
        self.sharding = sharding
        self._total = len(contents)
        self._steps = sharding.own_steps(self._total)
        self._assumed = assumed
        self._block_size = block_size
        start_step = integer("start_step", start_step)
        steps = sharding.steps(self._total)  # of all ranks, so that all of them take the same
        if not 0 <= start_step <= steps:
            raise OrderError(f"start_step = {shortened(start_step)}, expected 0 to {steps}, the steps of an epoch")
        self.exclude = parse_exclude(exclude)
        if contents.records is not None:
            check_excluded("records", self.exclude["records"], contents.records, "the dataset")
        self.exclude["records"] = _union(self.exclude["records"])
        """What is left out, by kind: steps as they were given, and records each once."""
        first = ResumePoint(
            start_step * sharding.stride, new_steps=self.exclude["steps"], new_records=self.exclude["records"]
        )
        self.agenda = Agenda(first, self.exclude["records"])
        self._coming: tuple[int, ResumePoint, Pass] | None = None  # made when first asked for: its epoch and start
        self._saved = first  # where the loaded state goes on, without what is excluded anew
        self._warned = False
        self.is_counted = False
        """Whether a loader counts what the trainer has of the next pass."""

    def __len__(self) -> int:
        return self._steps

    @property
    def epoch(self) -> int:
        """The epoch of the next pass."""
        return self.agenda.epoch

    def take_over(self, other: "EpochProgress") -> None:
        """Take over what was chosen with other contents, in whose place these are."""
        self.agenda.take_over(other.agenda)
        self._assumed, self._warned = other._assumed, other._warned

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; `agenda` says where that begins."""
        epoch = integer("epoch", epoch)
        dropped = self._dropped_by(epoch) if epoch != self.epoch else None
        self._warn_of_a_rest_again(epoch)
        before = self.agenda.choose(epoch)
        if dropped is not None:
            warn(dropped)
        if before is not None and before.over and before.first_step and before.had is None:
            self._warn_of_a_rest(before)

    def follow(self, passes: Iterable[bool]) -> None:
        """Begin the passes here that workers have begun, so that the next one follows them.

        Args:
          passes: for each whether it has any steps.
        """
        for has_steps in passes:
            # An empty one may be of a state that was too long to be told, and what waits here then waits on.
            if has_steps or not self.next_pass().steps:
                begun = self.begin()
                begun.had, begun.in_workers = 0, True

    def begin(self) -> Pass:
        """Begin the next pass."""
        if self._assumed:
            self._assumed = False
            warn_if_others()
        begun = self.next_pass()
        self._check_steps(self.agenda.start().new_steps)
        if self.is_counted:
            begun.had = 0
        self.agenda.begin(begun)
        self._coming = None
        return begun

    def next_pass(self) -> Pass:
        """Let the pass under way end, and return the one that begins next."""
        before = self.agenda.end_pass()
        if before is not None and before.over:
            self._warn_of_the_same_epoch(before)
        return self.coming()

    def _check_steps(self, new: Ranges) -> None:
        """Raise OrderError for new steps to exclude that no epoch of this world has; old ones may be of a larger."""
        limit = -(-self._total // self.sharding.stride)
        wrong = tuple(each for each in new if each[1] > limit)
        check_excluded("steps", self.exclude["steps"], limit, "an epoch", wrong)

    def _warn_of_the_same_epoch(self, before: Pass) -> None:
        """Warn, once, where a loop forgets set_epoch and a pass repeats an order, or counts on from a resumed one."""
        if self._warned or not (before.first_step or self.contents.changes_after(self.epoch)):
            return
        self._warned = True
        warn(
            f"epoch = {self.epoch}, expected a new one in a second pass; set it with set_epoch() before each pass (the "
            "same order comes again)",
        )

    def _warn_of_a_rest(self, before: Pass) -> None:
        """Warn, once, where an epoch is chosen whose rest was drawn to its end, perhaps by a loader that ran ahead."""
        if self._warned:
            return
        self._warned = True
        warn(
            f"epoch = {self.epoch}, expected a new one where the rest of this one, from step {before.first_step}, was "
            "drawn to its end; load the state again to begin there (all of the epoch comes)"
        )

    def _warn_of_a_rest_again(self, epoch: int) -> None:
        """Warn, once, where an epoch is chosen whose rest was read by workers, which don't say what the trainer had."""
        before = self.agenda.under_way
        if before is None or before.epoch != epoch or not (before.in_workers and before.first_step):
            return
        if self._warned or self.agenda.is_look:
            return
        self._warned = True
        warn(
            f"epoch = {epoch}, expected a new one after workers have begun the rest of this one, from step "
            f"{before.first_step}; choose the next one where it was read (the same rest comes again)"
        )

    def _dropped_by(self, epoch: int) -> str | None:
        """Return a warning where a loop begins again with a first epoch, before that of the state loaded for it."""
        loaded, is_end, _ = self.agenda.left
        before = self.agenda.under_way
        if before is not None and (before.was_read or not self.agenda.is_look):
            return None
        if loaded is None or loaded.epoch is None or epoch >= loaded.epoch:
            return None
        if not is_end and not loaded.position:
            return None
        expected = loaded.epoch + is_end
        what = "which is an end" if is_end else f"whose position {loaded.position} is dropped"
        return (
            f"epoch = {epoch}, expected {expected}, that of the loaded state, {what}; make the loop "
            "range(sampler.epoch, ...)"
        )

    def current(self) -> Pass:
        """Return the pass under way, or the one that would begin now."""
        return self.agenda.current or self.coming()

    def coming(self) -> Pass:
        """Return the pass that would begin now."""
        epoch, start = self.epoch, self.agenda.start()
        if self._coming is None or self._coming[:2] != (epoch, start):
            self._coming = epoch, start, self._new_pass(start)
        return self._coming[2]

    def keeps(self, step: int) -> bool:
        """Return whether the pass that was loaded has its steps up to this one as it had them; else some are excluded.

        Args:
          step: counted from the begin of the pass; -1 for none.
        """
        before, now = self.as_saved(), self.coming()
        if step < 0:
            return True
        if now.epoch != before.epoch or step >= now.steps:
            return False
        ranks = range(self.sharding.num_replicas)
        return np.array_equal(before.positions(step, 1, ranks), now.positions(step, 1, ranks))

    def without(self, read: tuple[int, Ranges], data: SampledData) -> dict[str, Any] | None:
        """Return the state after what was read of the pass that was loaded; None where that is nothing of it.

        Args:
          read: the first step that is left, counted from the begin of the pass, and later ones that are not.
          data: what the positions are of.
        """
        before, now, (first, later) = self.as_saved(), self.coming(), read
        if now.epoch != before.epoch or not (first or later):
            return None
        state = self.state_dict(now.first_step, data, now)
        more = [[before.position_after(step) for step in steps] for steps in later]
        position = before.position_after(first) if first < before.steps else self._total
        return {
            **state,
            "position": position,
            "exclude": {**state["exclude"], "positions": state["exclude"]["positions"] + more},
        }

    def as_saved(self) -> Pass:
        """Return the pass that was loaded, without what is excluded anew."""
        return self._new_pass(self._saved, self._saved.epoch)

    def repeats_itself(self) -> bool:
        """Return whether the epoch was just read to its end, and another one would have another order."""
        before = self.agenda.under_way
        return before is not None and before.steps > 0 and before.was_read and self.contents.changes_after(self.epoch)

    def _new_pass(self, start: ResumePoint, epoch: int | None = None) -> Pass:
        epoch = self.epoch if epoch is None else epoch
        return Pass(self.contents, self.sharding, epoch, start, self._block_size)

    def pass_at(self, step: int) -> Pass:
        """Return the pass that has a step of the epoch: the current one, or a whole one for steps before it."""
        step, steps = integer("step", step), self.sharding.steps(self._total)
        if not 0 <= step < steps:
            raise IndexError(f"step {shortened(step)} is out of range for the {steps} steps of an epoch")
        found = self.current()
        if step < found.first_step:
            found = self._new_pass(found.start._replace(position=0))
        last = found.first_step + found.steps - 1
        if step > last:
            raise IndexError(f"step {shortened(step)} is out of range for this pass, which ends after step {last}")
        return found

    def positions_at(self, step: int) -> Int64s:
        """Return the positions of all ranks in a step of this epoch: shape (num_replicas, batch), -1 for none."""
        found = self.pass_at(step)
        positions = found.positions(step - found.first_step, 1, range(self.sharding.num_replicas))
        return np.ascontiguousarray(positions[0].T)

    def state_dict(self, step: int | None, data: SampledData, of: Pass | None = None) -> dict[str, Any]:
        """Return the state after the last step that was yielded, or after `step` steps of the epoch.

        Args:
          data: what the positions are of.
          of: the pass that it is in; the current one by default.
        """
        current = self.current() if of is None else of
        done = current.done if step is None else integer("step", step) - current.first_step
        if not 0 <= done <= current.steps:
            last = current.first_step + current.steps
            raise StateError(f"step = {step}, expected {current.first_step} to {last}, the steps of this pass")
        return {
            "version": STATE_VERSION,
            "epoch": current.epoch,
            "position": self._position(current, done),
            "epoch_size": self._total,
            "order": self.contents.describe(),
            "dataset": data.described,
            "exclude": {
                "positions": [list(each) for each in current.start.positions],
                "records": [list(each) for each in current.start.records],
                "given": {kind: [list(each) for each in ranges] for kind, ranges in self._given(current).items()},
            },
        }

    def _given(self, current: Pass) -> dict[str, Ranges]:
        """Return what was excluded up to a pass; what waits for a later epoch is new again to a job that goes on."""
        waiting = self.agenda.left.next
        if waiting is None or waiting.epoch is None or waiting.epoch <= current.epoch:
            return self.exclude
        return {
            "steps": _without(self.exclude["steps"], waiting.new_steps),
            "records": _without(self.exclude["records"], waiting.new_records),
        }

    @property
    def position(self) -> int:
        """The position that comes next."""
        current = self.current()
        return self._position(current, current.done)

    def _position(self, current: Pass, done: int) -> int:
        """Return the position after some steps of a pass."""
        # After the last step, a tail that drop_last leaves out is over too; also where all of the steps are excluded.
        is_emptied = current is self.agenda.under_way and not current.was_over
        if done == current.steps and (done or is_emptied):
            return self._total
        return current.position_after(done) if done else min(current.start.position, self._total)

    def load_state_dict(self, state: Mapping[str, Any], data: SampledData) -> None:
        """Begin the next pass where a state was saved, whatever the number of replicas then.

        Where no step of this world is left, the epoch is over, and the next one begins.

        Raises:
          StateError: it is not a state, or belongs to other data, or to another seed, order or version.
          OrderError: steps are excluded that no epoch of this world has.
        """
        self._check_state(state, data)
        try:
            exclude = state["exclude"]
            given = {kind: ranges_of(exclude["given"][kind]) for kind in self.exclude}
            new = {kind: _without(ranges, given[kind]) for kind, ranges in self.exclude.items()}
            known = _without(self.exclude["records"], new["records"])
            start = ResumePoint(
                operator.index(state["position"]),
                operator.index(state["epoch"]),
                positions=ranges_of(exclude["positions"]),  # those of the steps that were given are among them
                records=_union(ranges_of(exclude["records"]) + known),
                new_records=new["records"],
            )
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise StateError(
                f"state: expected the dict that state_dict() returned, found a malformed one ({error!r})"
            ) from None
        if not 0 <= start.position <= self._total:
            raise StateError(f"state['position'] = {shortened(start.position)}, expected 0 to {self._total}")
        self._check_steps(new["steps"])
        # StatefulDataLoader loads a state when a loop begins, after its set_epoch. So an epoch that was chosen is that
        # of the loop: if its end is loaded, nothing is left of it, and if it is a later one, it follows the rest of the
        # loaded one, which StatefulDataLoader then reads ahead. The new steps are of the epoch that the loop reads.
        epoch = operator.index(state["epoch"])
        left, otherwise = self._left_by(start, known, new["steps"], waits=False), None
        if self.agenda.chosen is not None and self.agenda.chosen > epoch:
            left, otherwise = self._left_by(start, known, new["steps"], waits=True), left
        self.agenda.load(epoch, left, otherwise)
        self._coming, self._warned = None, False
        self._saved = start._replace(new_records=())

    def _left_by(self, start: ResumePoint, known: Ranges, new_steps: Ranges, *, waits: bool) -> Left:
        """Return what a state leaves.

        Args:
          start: where it goes on, without new steps.
          known: records that were excluded before.
          waits: whether new steps wait for a later epoch in any case.
        """
        epoch = start.epoch or 0
        start = start if waits else start._replace(new_steps=new_steps)
        rest = self._new_pass(start, epoch)
        waiting = ResumePoint(
            epoch=epoch + 1,
            records=known,
            new_steps=new_steps if waits or rest.was_over else (),
            new_records=start.new_records,
        )
        if rest.steps:
            return Left(start, is_end=False, next=waiting if waits else None)
        return Left(
            rest.start if rest.was_over else rest.start._replace(position=self._total), is_end=True, next=waiting
        )

    def _check_state(self, state: Mapping[str, Any], data: SampledData) -> None:
        """Raise StateError unless a state has the right keys and version, and is of these data and contents."""
        if not isinstance(state, Mapping):
            raise StateError(f"state: expected the dict that state_dict() returned, found {type(state).__name__}")
        missing = _STATE_KEYS - set(state)
        if missing:
            raise StateError(
                f"state: expected the dict that state_dict() returned, found one without {', '.join(sorted(missing))}"
            )
        if not is_same(state["version"], STATE_VERSION):
            raise StateError(
                f"state['version'] = {shortened(state['version'])}, expected {STATE_VERSION}; use the same mmapds"
            )
        if not isinstance(state["order"], Mapping):
            raise StateError(f"state['order'] = {shortened(state['order'])}, expected a dict")
        data.check(state["dataset"])
        saved = {**state["order"], "epoch_size": state["epoch_size"]}
        own = {**self.contents.describe(), "epoch_size": self._total}
        for key in [*own, *saved]:
            if not is_same(saved.get(key), own.get(key)):
                raise StateError(
                    f"state: of another order: expected {key} = {own.get(key)!r}, found {shortened(saved.get(key))}; "
                    "make the sampler with the arguments it had when the state was saved"
                )


def _union(ranges: Ranges) -> Ranges:
    """Return the same numbers, each once."""
    return as_ranges(merged(clipped(ranges, LARGEST)))


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    """Return the numbers that others do not hold, or as many times more as ranges hold them."""
    return tuple(chain.from_iterable(beyond(ranges, others)))


def number_in(name: str, value: Any, most: int) -> int:
    """Return a value of a state as an int; raise StateError unless it is an integer from 0 to `most`."""
    try:
        number = integer(name, value, 0)
    except OrderError:
        number = -1
    if not 0 <= number <= most:
        raise StateError(f"{name} = {shortened(value)}, expected an integer from 0 to {most}")
    return number
