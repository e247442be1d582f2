"""How an order is dealt out to replicas step by step, how far that has come, and how it goes on elsewhere.

All bookkeeping is in positions of the order. A position means the same whatever the number of replicas and the size of
batches, so a state is a position and little else, and any world can continue from it.
"""

import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError, StateError
from ..orders.basic import Order

Int64s = NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]
STATE_VERSION = 1
_BLOCK = 8192  # positions computed at a time: enough to hide the call, few enough for the first to come at once
_SEARCH = 1 << 20  # positions looked through at a time for excluded records


def world(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """Return (num_replicas, rank) as given, else from torch.distributed, else from the environment, else (1, 0).

    Raises:
      OrderError: rank is outside [0, num_replicas).
    """
    distributed = sys.modules.get("torch.distributed")
    initialised = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if num_replicas is None:
        num_replicas = distributed.get_world_size() if initialised else int(os.environ.get("WORLD_SIZE", "1"))  # type: ignore[union-attr]
    if rank is None:
        if num_replicas > 1 and not initialised and "RANK" not in os.environ:
            raise OrderError(
                f"num_replicas = {num_replicas} but there is no rank: give rank=, set RANK, or begin torch.distributed"
            )
        rank = distributed.get_rank() if initialised else int(os.environ.get("RANK", "0"))  # type: ignore[union-attr]
    if num_replicas < 1:
        raise OrderError(f"num_replicas = {num_replicas}, expected 1 or more")
    if not 0 <= rank < num_replicas:
        raise OrderError(f"Invalid rank {rank}, rank should be in the interval [0, {num_replicas - 1}]")
    return num_replicas, rank


class Deal(NamedTuple):
    """Who gets what: a step takes the next `num_replicas * batch_size` positions, dealt out one by one in turn."""

    num_replicas: int
    rank: int
    batch_size: int
    drop_last: bool

    @property
    def stride(self) -> int:
        """Positions that a step takes, all replicas together."""
        return self.num_replicas * self.batch_size

    def steps(self, positions: int) -> int:
        """Steps that some positions make, the same on every replica."""
        if self.drop_last:
            return positions // self.stride
        return -(-positions // self.stride)


class Gaps:
    """Positions to leave out: what is left is numbered through without them."""

    def __init__(self, ranges: Iterable[Sequence[int]], total: int, positions: Int64s | None = None) -> None:
        given = np.array([(max(begin, 0), min(end, total)) for begin, end in ranges], np.int64).reshape(-1, 2)
        if positions is not None:
            given = np.concatenate([given, np.stack([positions, positions + 1], axis=1)])
        given = given[given[:, 0] < given[:, 1]]
        given = given[np.argsort(given[:, 0], kind="stable")]
        reach = np.maximum.accumulate(given[:, 1])  # how far the ranges up to each go
        first = np.concatenate([[True], given[1:, 0] > reach[:-1]])[: len(given)]
        last = np.concatenate([first[1:], [True]])[: len(given)]
        bounds = np.stack([given[first, 0], reach[last]], axis=1)
        self._begins = bounds[:, 0]
        sizes = bounds[:, 1] - bounds[:, 0]
        self._before = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self._numbers = self._begins - self._before[:-1]
        self.left = total - int(self._before[-1])

    def number(self, position: int) -> int:
        """How many positions are left before one."""
        gap = int(np.searchsorted(self._begins, position, side="left"))
        if gap == 0:
            return position
        inside = min(position - int(self._begins[gap - 1]), int(self._before[gap] - self._before[gap - 1]))
        return position - int(self._before[gap - 1]) - inside

    def positions(self, numbers: Int64s) -> Int64s:
        """The positions that have these numbers."""
        if not len(self._begins):
            return numbers
        return numbers + self._before[np.searchsorted(self._numbers, numbers, side="right")]


class Start(NamedTuple):
    """Where an epoch is to begin, or to go on."""

    position: int = 0
    epoch: int | None = None
    """The epoch that the position is of; None for whichever comes first."""
    positions: Ranges = ()
    """Ranges of positions to leave out."""
    records: Ranges = ()
    """Ranges of record numbers to leave out."""
    steps: Ranges = ()
    """Ranges of steps to leave out, counted as the epoch's steps are at this number of replicas."""


class Run:
    """One pass over an epoch, from where it begins to its end."""

    def __init__(self, order: Order, total: int, deal: Deal, epoch: int, start: Start, block: int) -> None:
        self.epoch = epoch
        self.start = start._replace(positions=start.positions + self._step_positions(start, deal.stride), steps=())
        self._order = order
        self._total = total
        self._deal = deal
        self._gaps = Gaps(self.start.positions, total, _stand(order, epoch, total, start.records))
        self._block_size = block
        self._begin = self._gaps.number(start.position)
        self.first_step = self._begin // deal.stride
        self.steps = deal.steps(self._gaps.left - self._begin)
        self._block: Iterator[Any] = iter(())
        self._block_end = 0

    def _step_positions(self, start: Start, stride: int) -> Ranges:
        origin = start.position % stride  # where step 0 would have begun
        return tuple((origin + begin * stride, origin + end * stride) for begin, end in start.steps)

    @property
    def done(self) -> int:
        """Steps that were handed out."""
        return self._block_end - operator.length_hint(self._block)

    def position(self, step: int) -> int:
        """The position after some steps of this run."""
        number = self._begin + step * self._deal.stride
        if number >= self._gaps.left:
            return self._total
        return int(self._gaps.positions(np.array([number]))[0])

    def records(self, first: int, steps: int, ranks: Sequence[int]) -> Int64s:
        """The records of some steps that are alike in size, shape (steps, batch, ranks).

        Positions beyond the end are filled from the beginning, as torch's own sampler does.
        """
        replicas, _, batch, _ = self._deal
        left = -(-(self._gaps.left - self._begin) // replicas) - first * batch
        columns = min(batch, left)
        column = np.arange(steps * columns, dtype=np.int64).reshape(steps, columns, 1)
        numbers = self._begin + (first * batch + column) * replicas + np.asarray(ranks, np.int64)
        if numbers.size and numbers[-1, -1, -1] >= self._gaps.left:
            numbers %= self._gaps.left
        return self._order.at(self.epoch, self._gaps.positions(numbers).ravel()).reshape(numbers.shape)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the batches of this rank as fresh lists, one a step.

        The place in the epoch is read off the iterator over a block, so that nothing is counted sample by sample.
        """
        return self.deliver(lambda _, records: records[:, :, 0].tolist())

    def samples(self) -> Iterator[int]:
        """Yield the records of this rank one by one, where a step is a single one."""
        return self.deliver(lambda _, records: records[:, 0, 0].tolist())

    def deliver(self, make: Callable[[int, Int64s], list[Any]]) -> Iterator[Any]:
        """Yield what `make` makes of the steps from a number on, given the records of this rank in them."""
        for first, records in self._blocks():
            self._block = iter(make(first, records))
            self._block_end = first + len(records)
            yield from self._block

    def remainder(self, step: int) -> Int64s:
        """The positions of a last step that does not go round, without what would fill it up; else none."""
        begin = self._begin + step * self._deal.stride
        if begin + self._deal.stride <= self._gaps.left:
            return np.empty(0, np.int64)
        return self._gaps.positions(np.arange(begin, self._gaps.left, dtype=np.int64))

    def _blocks(self) -> Iterator[tuple[int, Int64s]]:
        ranks, batch = [self._deal.rank], self._deal.batch_size
        # The last step may be smaller than the others, so it stands alone.
        whole = self.steps if (self._gaps.left - self._begin) % self._deal.stride == 0 else max(self.steps - 1, 0)
        if self._deal.drop_last:
            whole = self.steps
        size = max(self._block_size // batch, 1)
        for first in range(0, whole, size):
            yield first, self.records(first, min(size, whole - first), ranks)
        if whole < self.steps:
            yield whole, self.records(whole, 1, ranks)


def _stand(order: Order, epoch: int, total: int, records: Ranges) -> Int64s:
    """The positions in an epoch of the records in some ranges."""
    limit = getattr(order, "records", len(order))
    pieces = [np.arange(begin, min(end, limit), dtype=np.int64) for begin, end in records if begin < limit]
    wanted = np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)
    if not len(wanted):
        return wanted
    if hasattr(order, "positions_of"):
        found: Int64s = order.positions_of(epoch, wanted)
        return found
    parts = []
    for first in range(0, total, _SEARCH):
        positions = np.arange(first, min(first + _SEARCH, total), dtype=np.int64)
        parts.append(positions[np.isin(order.at(epoch, positions), wanted)])
    return np.concatenate(parts)


class Progress:
    """The epoch, where in it to begin, and the run that is under way; what samplers of every kind share."""

    def __init__(
        self,
        order: Order,
        deal: Deal,
        *,
        epoch_size: int | None,
        start_step: int,
        exclude: Mapping[str, Iterable[Any]] | None,
        block: int = _BLOCK,
    ) -> None:
        if not isinstance(order, Order):
            raise OrderError(f"order={order!r} has no at(), describe() or length; see mmapds.orders")
        self.order = order
        self.deal = deal
        self.total = len(order) if epoch_size is None else operator.index(epoch_size)
        if not 1 <= self.total <= len(order):
            hint = "; orders.Resampled may be longer" if self.total > len(order) else ""
            raise OrderError(f"epoch_size = {self.total}, expected 1 to {len(order)}{hint}")
        self.epoch = 0
        self._block = block
        start_step = operator.index(start_step)
        if not 0 <= start_step <= len(self):
            raise OrderError(f"start_step = {start_step}, expected 0 to {len(self)}, the steps of an epoch")
        self._exclude = _parse_exclude(exclude)
        # Not bound to an epoch: a trainer that passes start_step chooses the epoch only afterwards.
        self._next: Start | None = Start(start_step * deal.stride, None, **self._exclude)
        self._run: Run | None = None
        self._coming: Run | None = None  # made of _next when somebody asked

    def __len__(self) -> int:
        return self.deal.steps(self.total)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; one that is new clears a restored position, which was another epoch's."""
        epoch = operator.index(epoch)
        if epoch == self.epoch:
            return
        self.epoch = epoch
        self._run = self._coming = None
        if self._next is not None and self._next.epoch is not None:
            self._next = None

    def begin(self) -> Run:
        """Begin the next pass; the one after it begins at the start of its epoch."""
        self._run = self._next_run()
        self._next = self._coming = None
        return self._run

    def current(self) -> Run:
        """The pass under way, or the one that would begin now."""
        return self._run if self._run is not None and self._next is None else self._next_run()

    def _next_run(self) -> Run:
        if self._coming is None:
            self._coming = self._new_run()
        return self._coming

    def _new_run(self) -> Run:
        return Run(self.order, self.total, self.deal, self.epoch, self._next or Start(), self._block)

    def run_at(self, step: int) -> Run:
        """The run in which a step of the epoch falls: the current one, or the part before it began."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} is out of range for the {len(self)} steps of an epoch")
        run = self.current()
        if step < run.first_step:
            run = Run(self.order, self.total, self.deal, self.epoch, Start(), self._block)
        if step - run.first_step >= run.steps:
            raise IndexError(f"step {step} is out of range: this pass ends after step {run.first_step + run.steps - 1}")
        return run

    def records_at(self, step: int) -> Int64s:
        """The records of all replicas in a step, shape (num_replicas, batch)."""
        run = self.run_at(step)
        found = run.records(step - run.first_step, 1, range(self.deal.num_replicas))
        return np.ascontiguousarray(found[0].T)

    def state_dict(self, step: int | None) -> dict[str, Any]:
        """Return the state after the last step that was handed out, or after `step` steps of the epoch."""
        run = self.current()
        done = run.done if step is None else operator.index(step) - run.first_step
        if not 0 <= done <= run.steps:
            last = run.first_step + run.steps
            raise StateError(f"step = {step}, expected {run.first_step} to {last}, the steps of this pass")
        return {
            "version": STATE_VERSION,
            "epoch": run.epoch,
            # A tail that drop_last leaves out is no place to go on from.
            "position": run.start.position if not done else self.total if done == run.steps else run.position(done),
            "epoch_size": self.total,
            "order": self.order.describe(),
            "exclude": {
                "positions": [list(each) for each in run.start.positions],
                "records": [list(each) for each in run.start.records],
                "given": {kind: [list(each) for each in ranges] for kind, ranges in self._exclude.items()},
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, whatever the number of replicas it was saved with.

        Raises:
          StateError: it is no state, or one of another dataset size, seed, order or version.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"expected the dict that state_dict() returned, found {type(state).__name__}")
        missing = {"version", "epoch", "position", "epoch_size", "order", "exclude"} - set(state)
        if missing:
            raise StateError(f"not a sampler's state: it has no {', '.join(sorted(missing))}")
        if state["version"] != STATE_VERSION:
            raise StateError(f"the state is of version {state['version']}, this mmapds reads {STATE_VERSION}")
        if not isinstance(state["order"], Mapping):
            raise StateError(f"not a sampler's state: order = {state['order']!r}, expected a dict")
        saved, mine = dict(state["order"]), self.order.describe()
        saved, mine = saved | {"epoch_size": state["epoch_size"]}, mine | {"epoch_size": self.total}
        for key in [*mine, *saved]:
            if saved.get(key) != mine.get(key):
                raise StateError(
                    f"the state is of another order: it has {key} = {saved.get(key)!r}, this sampler {mine.get(key)!r}"
                )
        try:
            exclude = state["exclude"]
            # What the state's own sampler was told to exclude is in it, or behind it.
            new = self._exclude if _parse_exclude(exclude["given"]) != self._exclude else _parse_exclude(None)
            start = Start(
                operator.index(state["position"]),
                operator.index(state["epoch"]),
                positions=_ranges(exclude["positions"]),
                records=_ranges(exclude["records"]) + new["records"],
                steps=new["steps"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"not a sampler's state: {error!r} in {dict(state)}") from None
        if not 0 <= start.position <= self.total:
            raise StateError(f"position = {start.position}, expected 0 to {self.total}")
        self.epoch = operator.index(state["epoch"])
        self._run = self._coming = None
        # Exhausted, or too little left for a step of this world: the next pass is a full one.
        self._next = start if self.deal.steps(self.total - start.position) else None


def _ranges(pairs: Iterable[Sequence[Any]]) -> Ranges:
    return tuple((operator.index(begin), operator.index(end)) for begin, end in pairs)


def _parse_exclude(exclude: Mapping[str, Iterable[Any]] | None) -> dict[str, Ranges]:
    parsed: dict[str, Ranges] = {"steps": (), "records": ()}
    for kind, given in (exclude or {}).items():
        if kind not in parsed:
            raise OrderError(f"exclude has {kind!r}, expected 'steps' or 'records'")
        ranges = _ranges((each, each + 1) if hasattr(each, "__index__") else each for each in given)
        for begin, end in ranges:
            if not 0 <= begin <= end:
                raise OrderError(f"exclude: {kind} ({begin}, {end}), expected 0 <= begin <= end")
        parsed[kind] = ranges
    return parsed
