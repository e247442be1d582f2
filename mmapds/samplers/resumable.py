"""The base of all samplers: iterators, epochs, states, and the comparison of ranks."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

import numpy as np
import torch.utils.data
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..dataset.dataset import Dataset
from ..errors import OrderError, StateError, counted, shortened, warn
from ..integrations import refuse_second_sharding
from ..orders.basic import Int64s, integer, is_same
from .cursor import Cursor, Iteration, Make, Sharding, Span, Steps
from .ordered import Excluded, OrderedRecords
from .plan import Plan
from .ranks import World, compare_before_first_batch
from .sampled import LOOKED_AT, are_ours, check_decoding, members_of

_NAMED = 3  # sources that a state names
_SHOWN = 200  # characters of a dataset's identity in a message
STATE_VERSION = 2
_STATE_KEYS = {"version", "epoch", "position", "epoch_size", "order", "dataset"}

Contents = OrderedRecords | Plan
"""What stands at the positions of every epoch: records in an order, or the batches of a plan."""


class ResumableSampler(ABC):
    """Gives a sampler its iterators, epochs and states. List it before torch's class among the bases."""

    sampled: Any
    """The dataset, its lengths, or anything of the same length."""
    _contents: Contents
    _exclude: Excluded
    _sharding: Sharding
    _world: World
    _lengths: NDArray[Any] | None = None
    """The lengths of all samples, unless a dataset has them."""
    _cursor: Cursor
    _known: dict[str, str] | None = None
    _is_compared = False
    _has_equal_batches = True
    _way_on = (
        "a file that grew is another; load no state and call loader.set_epoch(state['epoch'] + 1) for the next epoch "
        "on it"
    )
    _way_out = ""
    _block = 8192  # positions computed at a time: enough to hide the cost of a call, but the first batch comes fast
    loader_options: Mapping[str, Any] = {}
    """Batch size and `drop_last` of a loader over single samples; ranks compare them."""

    def _new_cursor(self, start_step: int) -> Cursor:
        """Return a cursor at `start_step`."""
        start_step, total = integer("start_step", start_step), len(self._contents)
        steps = self._sharding.steps(total)
        if not 0 <= start_step <= steps:
            raise OrderError(f"start_step = {shortened(start_step)}, expected 0 to {steps}, the steps of an epoch")
        return Cursor(total, Span(self._sharding, total, 0, 0).position_after(start_step) if start_step else 0)

    # ---- iterators ---------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch; it reads epoch and position at the first `next()`."""
        refuse_second_sharding(self, self._sharding.num_replicas, cuts=self._has_equal_batches)
        return Steps.of(self)

    def _start_iterator(self, iteration: Iteration) -> tuple[Span, Iterator[tuple[int, Int64s]], Make]:
        """Return the span of an iterator, its blocks, and the function that makes steps of blocks."""
        self._world.check()
        if not self._is_compared and torch.utils.data.get_worker_info() is None:
            compare_before_first_batch(self._shared_by_ranks(), self._world)
            self._is_compared = True
            self._check_decoding()
        span = self._next_span()
        make = self._maker(span)
        self._warn_of_unknown_position()
        self._cursor.begin(iteration, span.steps)
        iteration.is_drawn_ahead = _is_drawn_ahead()
        return span, span.blocks(self._block), make

    def _warn_of_unknown_position(self) -> None:
        """Warn if an iterator follows a broken loop of torch's workers, which have drawn more than the trainer got."""
        latest = self._cursor.latest
        if latest is not None and latest.is_ahead and not latest.is_over and self._cursor.chosen is None:
            warn(
                f"epoch = {self.epoch}, expected set_epoch(), load_state_dict() or a whole loop before this one, found "
                "a broken loop of torch's workers, which prefetch; to resume behind it, load "
                "sampler.state_dict(step=...)"
            )

    def _next_span(self) -> Span:
        """Return the span of the next iterator."""
        return Span(self._sharding, len(self._contents), *self._cursor.next())

    def _check_decoding(self) -> None:
        """Warn of an order that would decode many blocks; raise Error if it would decode too many."""
        if not are_ours([self.sampled]) or self.sampled._decodes(np.zeros(1, np.int64), 0) == (0, 0):
            return
        span = self._next_span()
        make, found = self._maker(span), list[Int64s]()
        for first, positions in span.blocks(min(self._block, LOOKED_AT)):
            found += (np.sort(np.atleast_1d(each)) for each in make(first, positions))  # as `take` reads them
            if sum(map(len, found)) >= LOOKED_AT:
                break
        if found:
            check_decoding(self.sampled, np.concatenate(found)[:LOOKED_AT])

    @abstractmethod
    def _maker(self, span: Span) -> Make:
        """Return the function that makes the steps of one iterator from positions."""

    def _shared_by_ranks(self) -> dict[str, Any]:
        """Return the values that must be equal on all ranks, causes before consequences: a message names the first."""
        span, sharding = self._cursor.span(self._sharding), self._sharding
        return {
            "sampler": type(self).__name__,
            **dict(sorted(self._contents.describe().items(), key=lambda each: isinstance(each[1], Mapping))),
            "epoch": span.epoch,
            "num_replicas": sharding.num_replicas,
            "batch_size": sharding.batch_size,
            "drop_last": sharding.drop_last,
            "pad": sharding.pad,
            **self.loader_options,
            "epoch_size": span.total,
            "first_step": span.first_step,
            "steps": span.steps,
            "position": span.start,
            "exclude": self._exclude.describe(),
            "dataset": " ".join(value for key, value in self._identity.items() if key != "sources") or None,
        }

    # ---- epochs ------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        """The epoch of the next iterator."""
        return self._cursor.next()[0]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator: the current epoch keeps its position, any other starts at 0."""
        self._cursor.set_epoch(integer("epoch", epoch))

    def skip(self, steps: int) -> None:
        """Skip steps of the epoch, on every rank.

        Beyond the last step, the next epoch follows. After a loss spike, load the checkpoint before it and skip the
        steps that caused it:

            sampler.load_state_dict(checkpoint)
            sampler.skip(100)

        Raises:
          OrderError: `steps` is not an integer of 0 or more.
        """
        steps, span = integer("steps", steps, 0), self._next_span()
        self._cursor.load(span.epoch, span.position_after(steps))

    def __len__(self) -> int:
        """Return the steps of a whole epoch, even after a resume: the same on every rank, unless `pad` is False."""
        return self._sharding.own_steps(len(self._contents))

    def __repr__(self) -> str:
        world = f"rank {self._sharding.rank} of {self._sharding.num_replicas}"
        epoch, position = self._cursor.next()
        where = f"epoch {epoch}, position {position:,} of {len(self._contents):,}"
        return f"<{type(self).__name__}: {self._what()}, {world}, {where}, {counted(len(self), 'step')}>"

    @abstractmethod
    def _what(self) -> str:
        """Return the samples and the arguments as text for the repr."""

    @property
    def first_step(self) -> int:
        """The step where the current iterator began; between two iterators, where the next one begins.

        It is 0 without a resume. Count steps from here, as in `enumerate(loader, sampler.first_step)`, for the numbers
        that `state_dict(step=...)` takes.
        """
        latest = self._cursor.latest
        is_between = latest is not None and latest.is_over and not latest.is_ahead
        return (self._next_span() if is_between else self._cursor.span(self._sharding)).first_step

    @abstractmethod
    def indices_at(self, step: int) -> Any:
        """Return the records of a step of this epoch, for each rank."""

    def total_at(self, step: int, steps: int = 1, column: str = "length") -> int | float:
        """Return the sum of a column over some steps of this epoch, on all ranks: the tokens of an optimizer step.

            tokens = sampler.total_at(step, 4)  # of four batches on each rank

        It is exact, without communication: the index has the numbers. Samples count as often as they come.

        Args:
          step, steps: the first step, and how many; those after the end of the epoch do not count.
          column: a column of the dataset. The "length" of a plan is that of its planner, cut to the pack length.
        Raises:
          IndexError: the epoch does not have the first step.
          ColumnError, OrderError: the samples have no such column.
        """
        span, steps = self._span_at(step), integer("steps", steps, 1)
        first = int(step) - span.first_step
        found = self._sum(*self._batches_in(span, range(first, min(first + steps, span.steps))), column)
        return found.item() if isinstance(found, np.generic) else found  # type: ignore[no-any-return]

    @abstractmethod
    def _batches_in(self, span: Span, steps: range) -> tuple[Int64s, Int64s]:
        """Return the records of some steps on all ranks, concatenated, and where each batch begins."""

    def _sum(self, records: Int64s, begins: Int64s, column: str) -> Any:
        """Return the sum of a column over the records of some batches."""
        if not isinstance(self.sampled, Dataset):
            raise OrderError(f"column = {column!r}: expected a sampler of a dataset, found one of other samples")
        return self.sampled[records].column(column).sum()

    @abstractmethod
    def summary(self) -> Any:
        """Return statistics of this epoch."""

    def _span_at(self, step: int) -> Span:
        """Return the span that contains a step: the iterator's, or the whole epoch for an earlier step."""
        step, span = integer("step", step), self._cursor.span(self._sharding)
        steps = self._sharding.steps(span.total)
        if not 0 <= step < steps:
            raise IndexError(f"step {shortened(step)} is out of range for the {steps} steps of an epoch")
        return span if step >= span.first_step else span._replace(start=0)

    # ---- states ------------------------------------------------------------------------------------------------

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the state after some steps: a small dict for JSON, the same on every rank.

        Args:
          step: steps of the epoch that the trainer has finished, including those before `first_step`. The default
            counts all yielded steps, prefetched ones included. A step is one index of an index sampler, or one batch
            of a batch sampler.
        """
        if step is None:
            latest = self._cursor.latest
            if latest is not None and latest.is_ahead and not latest.is_over:
                warn(
                    "step = None, expected the steps that the trainer finished, as torch's workers prefetch; call "
                    "state_dict(step=...), or use mmapds.DataLoader, which counts them"
                )
            return self._state_at(*(self._cursor.next() if latest is None else latest.at))
        span = self._cursor.span(self._sharding)
        done = integer("step", step) - span.first_step
        if not 0 <= done <= span.steps:
            last = span.first_step + span.steps
            raise StateError(f"step = {step}, expected {span.first_step} to {last}, the steps of this epoch")
        return self._state_at(span.epoch, span.position_after(done))

    @property
    def _identity(self) -> dict[str, str]:
        """The identity of the dataset in states: fingerprint, names of sources, and a hash of lengths, if known.

        States do not compare the names, so sources may be moved and renamed; messages show them.
        """
        if self._known is not None:  # not a cached_property: see `Index.home`
            return self._known
        known: dict[str, str] = {}
        parts = members_of(self.sampled)
        if are_ours(parts):
            paths, marks = [path for part in parts for path in part.sources], [part.fingerprint for part in parts]
            more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
            known["fingerprint"] = marks[0] if len(marks) == 1 else xxh3_64(" ".join(marks).encode()).hexdigest()
            known["sources"] = ", ".join(os.path.basename(path) for path in paths[:_NAMED]) + more
        if members := getattr(self._contents, "members", None):
            known["members"] = " ".join(members)
        if self._lengths is not None:
            known["lengths"] = xxh3_64(self._lengths.data).hexdigest()
        self._known = known
        return known

    def _state_at(self, epoch: int, position: int) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "epoch": epoch,
            "position": position,
            "epoch_size": len(self._contents),
            "order": self._contents.describe(),
            "dataset": dict(self._identity) or None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state, at any number of ranks and any batch size.

        The state after the last step of an epoch resumes with the next epoch.

        Raises:
          StateError: the state belongs to other files or another view of them, to another seed, order or version, or
            is not a state.
        """
        self._load(state_dict, self._contents)

    def _load(self, state: Mapping[str, Any], contents: Contents) -> None:
        """Check a state against `contents`, then load it; the sampler keeps these contents."""
        self._check_state(state, contents)
        total = len(contents)
        try:
            epoch, position = (integer(f"state[{key!r}]", state[key]) for key in ("epoch", "position"))
        except OrderError as error:
            raise StateError(str(error)) from None
        if not 0 <= position <= total:
            raise StateError(f"state['position'] = {shortened(position)}, expected an integer from 0 to {total}")
        self._contents, self._cursor.total = contents, total
        self._cursor.load(epoch, position if Span(self._sharding, total, epoch, position).steps else total)

    def _check_state(self, state: Mapping[str, Any], contents: Contents) -> None:
        """Raise StateError unless a state has the right keys, version, dataset and contents."""
        expected = "state: expected the dict that state_dict() returned, found"
        if not isinstance(state, Mapping):
            raise StateError(f"{expected} {type(state).__name__}")
        if not is_same(state.get("version", STATE_VERSION), STATE_VERSION):
            found = f"state['version'] = {shortened(state['version'])}"
            raise StateError(f"{found}, expected {STATE_VERSION}; use the mmapds that saved it")
        missing = _STATE_KEYS - set(state)
        if missing:
            raise StateError(f"{expected} one without {', '.join(sorted(missing))}")
        if not isinstance(state["order"], Mapping):
            raise StateError(f"state['order'] = {shortened(state['order'])}, expected a dict")
        self._check_dataset(state["dataset"])
        saved = {**dict(_named(state["order"])), "epoch_size": state["epoch_size"]}
        own = {**dict(_named(contents.describe())), "epoch_size": len(contents)}
        for key in [*own, *saved]:
            if not is_same(saved.get(key), own.get(key)):
                raise StateError(
                    f"state: of another order: expected {key} = {own.get(key)!r}, found {shortened(saved.get(key))}; "
                    f"make the sampler with the lengths and arguments it had when the state was saved{self._way_out}"
                )

    def _check_dataset(self, saved: Any) -> None:
        """Raise StateError for a state of other data; values that state or sampler lack are not compared."""
        if saved is None:
            return
        if not isinstance(saved, Mapping):
            raise StateError(f"state['dataset'] = {shortened(saved)}, expected a dict or None")
        own = self._identity
        if any(key in own and not is_same(saved.get(key, own[key]), own[key]) for key in ("fingerprint", "lengths")):
            raise StateError(
                f"state: of another dataset: expected {own}, found {shortened(saved, _SHOWN)}; make the sampler of the "
                f"same files, in the same order, and of the same view or lengths ({self._way_on})"
            )


def _is_drawn_ahead() -> bool:
    """Return whether torch's loader with worker processes calls this; it prefetches steps."""
    torchs = torch.utils.data.dataloader
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        # Read f_locals of torch's frame only: it keeps the variables of a frame alive as long as the frame.
        is_torchs = frame.f_globals.get("__name__") == torchs.__name__
        if is_torchs and isinstance(frame.f_locals.get("self"), torchs._MultiProcessingDataLoaderIter):
            return True
        frame = frame.f_back
    return False


def refuse_injected(sampler: object) -> None:
    """Raise OrderError for a sampler that a trainer passes to a batch sampler."""
    if sampler is not None:
        raise OrderError(
            f"sampler: expected None, found {type(sampler).__name__}; make Lightning's Trainer with "
            "use_distributed_sampler=False, or give its loader sampler=DistributedSampler(...) (this batch sampler "
            "shares the samples among ranks by itself)"
        )


def _named(described: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the parts of a description by name; those of an order inside another one as `inner.seed`."""
    for name, value in described.items():
        if isinstance(value, Mapping) and value:
            yield from _named(value, f"{within}{name}.")
        else:
            yield f"{within}{name}", value
