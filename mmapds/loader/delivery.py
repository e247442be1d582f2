"""What of an epoch the trainer has: passes over a sampler, and the states of a loader.

Workers run ahead of the trainer, and so does the sampler. A state therefore counts batches that were delivered.
"""

import base64
import contextlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, NamedTuple

import torch.utils.data
from torch.utils.data.distributed import DistributedSampler as TorchDistributedSampler

from ..errors import StateError, shortened
from ..orders.basic import is_same
from ..samplers.data import SampledData
from ..samplers.epoch import number_in
from ..samplers.passes import Pass
from ..samplers.resumable import ResumableSampler

_VERSION = 1
_KEYS = {"version", "sampler", "size", "batch_size", "dataset", "epoch", "batches", "random"}
_REPLAYED = (
    torch.utils.data.SequentialSampler,
    torch.utils.data.RandomSampler,
    torch.utils.data.SubsetRandomSampler,
    torch.utils.data.WeightedRandomSampler,
    TorchDistributedSampler,
)
"""Samplers of torch: their order follows from the epoch and from random numbers drawn with the first index."""


class Delivery(Iterator[Any]):
    """One pass of a loader: draws the indices of its batches, and counts those that were delivered.

    Attributes:
      exhausted: the sampler has no more indices.
      ended: the trainer asked for more, and was told that there is none.
      steps: steps of the sampler in the batches up to the one delivered last.
      counted: the pass of a sampler of mmapds, whose `had` is set here.
      shares_last: whether this rank has a share of its last batch.
    """

    def __init__(self, position: "Position") -> None:
        self._position = position
        self._indices: Iterator[Any] | None = None
        self._drawn: deque[int] = deque()  # steps in each batch that was drawn and not yet settled
        self._settled = 0
        self.exhausted = self.ended = False
        self.steps = 0
        self.counted: Pass | None = None
        self.shares_last = True

    def expect_pass(self) -> None:
        """Take note, before random numbers are drawn for the pass, that it begins."""
        self._position.expect_pass()

    def __next__(self) -> Any:
        """Return the indices of the next batch; the pass begins with the first of them."""
        try:
            if self._indices is None:
                self._indices = self._position.indices(self)
                try:
                    indices = next(self._indices)
                finally:
                    self._position.begin(self)
            else:
                indices = next(self._indices)
        except StopIteration:
            self.exhausted = True
            self._count()
            raise
        self._drawn.append(self._position.steps_in(indices))
        return indices

    def settle(self, delivered: bool) -> None:
        """Count the oldest batch that was drawn; one that raised an error counts once a later one is delivered."""
        self._settled += self._drawn.popleft()
        if delivered:
            self.steps = self._settled
            self._count()

    def end(self) -> None:
        """Take note that the trainer was told that there is no more."""
        self.ended = True
        self._count()

    def _count(self) -> None:
        """Tell the pass what the trainer has of it."""
        if self.counted is not None:
            # At the end of its loop the trainer has had all of it, also where the last batches were errors.
            self.counted.had = self.counted.steps if self.is_over or self.ended else self.steps

    @property
    def is_over(self) -> bool:
        """Whether the pass is over for all ranks."""
        # A rank without a share of the last batch has passed it only when its loop is over: other ranks still have it.
        return self.complete and (self.ended or self.shares_last)

    @property
    def complete(self) -> bool:
        """Whether every batch of the pass was delivered."""
        return self.exhausted and not self._drawn and self.steps == self._settled


class Position:
    """Where a loader is in its epoch.

    Args:
      index_sampler: yields the indices of a batch, or of a sample where a loader makes no batches.
    Attributes:
      draws_base_seed: whether the next pass of the loader begins with one; none does over workers that wait for it.
    """

    draws_base_seed = True

    def __init__(self, index_sampler: Iterable[Any]) -> None:
        self._index_sampler = index_sampler

    def expect_pass(self) -> None:
        """Take note that a pass begins: random numbers are drawn for it, and then its first indices."""

    def indices(self, delivery: Delivery) -> Iterator[Any]:
        """Return an iterator over the indices of the next pass.

        Signals may come at any time from now on, also while the first indices are drawn: a handler that saves a state
        then saves the one before them.
        """
        return iter(self._index_sampler)

    def begin(self, delivery: Delivery) -> None:
        """Take note of a pass whose first indices were drawn; states count from now on what it delivers."""

    def steps_in(self, indices: Any) -> int:
        """Return how many steps of the sampler some indices are."""
        return 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch that was delivered last."""
        raise self._refusal()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved."""
        raise self._refusal()

    def _refusal(self) -> StateError:
        sampler = self._index_sampler
        inner = sampler.sampler if type(sampler) is torch.utils.data.BatchSampler else sampler
        return StateError(
            f"sampler: expected one of mmapds or of torch's own, found {type(inner).__name__}, which has no state; "
            "give sampler=mmapds.DistributedSampler(dataset, order=...) for an order of your own"
        )


class SamplerPosition(Position):
    """The position of a loader over a sampler of mmapds: states are the sampler's, for the step that was delivered.

    Args:
      sampler: what yields `index_sampler`'s indices: itself, or the sampler in a BatchSampler of torch.
    """

    def __init__(self, index_sampler: Iterable[Any], sampler: ResumableSampler) -> None:
        super().__init__(index_sampler)
        self._sampler = sampler
        self._is_batched = index_sampler is not sampler  # type: ignore[comparison-overlap] # samplers are iterable
        self._pass: Pass | None = None
        self._delivery: Delivery | None = None

    def indices(self, delivery: Delivery) -> Iterator[Any]:
        indices = super().indices(delivery)  # which may be refused
        self._sampler._synchronised().is_counted = True
        return indices

    def begin(self, delivery: Delivery) -> None:
        self._sampler._synchronised().is_counted = False
        begun = self._sampler._pass_under_way
        if begun is None or begun is self._pass:
            return  # no pass began: the ranks differ, or a signal came first
        self._delivery, self._pass = delivery, begun
        delivery.counted = begun
        delivery.shares_last = self._batches_of(begun.own_steps) == self._batches_of(begun.steps)

    def steps_in(self, indices: Any) -> int:
        return len(indices) if self._is_batched else 1

    def state_dict(self) -> dict[str, Any]:
        delivery, sampler = self._delivery, self._sampler
        current = sampler.current_pass
        # set_epoch and load_state_dict of the sampler end its pass, and with it what was delivered of it.
        if delivery is None or self._pass is not current:
            return sampler.state_dict(None if current.had is None else current.first_step + current.had)
        return sampler.state_dict(None if delivery.is_over else current.first_step + delivery.steps)

    def _batches_of(self, steps: int) -> int:
        """Return how many batches some steps of the sampler make."""
        if not self._is_batched:
            return steps
        batches: Any = self._index_sampler
        size: int = batches.batch_size
        return steps // size if batches.drop_last else -(-steps // size)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._sampler.load_state_dict(state)
        self._delivery = None


class _ReplayedPass(NamedTuple):
    """A pass over a sampler of torch's."""

    delivery: Delivery
    epoch: int | None
    first: int
    """Batches that were delivered before it."""
    random: str
    """The state of the random numbers before its first index."""


class ReplayedPosition(Position):
    """The position of a loader over a sampler of torch's: a pass that resumes draws again what was delivered before.

    A state has the number of batches, the epoch of samplers that have one, and the state of the random numbers that the
    first index is drawn with; not that of the process's own, where they will be drawn for a pass to come.

    Args:
      generator: the loader's.
      data: what the indices are of.
    """

    def __init__(
        self, index_sampler: Iterable[Any], sampler: Any, generator: torch.Generator | None, data: SampledData
    ) -> None:
        super().__init__(index_sampler)
        self._data = data
        self._sampler = sampler
        self._loaders_generator = generator
        self._loaded: dict[str, Any] | None = None
        self._pass: _ReplayedPass | None = None
        self._expected: torch.Tensor | None = None  # the generator's state as the next pass draws its first index

    def expect_pass(self) -> None:
        if self._generator is not None:
            self._expected = self._before_the_next_pass()

    @property
    def _generator(self) -> torch.Generator | None:
        return getattr(self._sampler, "generator", None)

    @property
    def _batch_size(self) -> int | None:
        """Indices in a batch, which batches that were delivered are counted in; None if it is not known."""
        return getattr(self._index_sampler, "batch_size", None)

    def indices(self, delivery: Delivery) -> Iterator[Any]:
        loaded, epoch = self._loaded, self._epoch
        if loaded is None or loaded["epoch"] != epoch or loaded["random"] is None:  # nothing of it was drawn yet
            self._pass = _ReplayedPass(delivery, epoch, 0, _encoded(self._random_state()))
            self._loaded = self._expected = None
            return iter(self._index_sampler)
        with self._begun_with(_decoded(loaded["random"])):
            rest = islice(iter(self._index_sampler), loaded["batches"], None)
            indices = chain(list(islice(rest, 1)), rest)  # random numbers are drawn with the first index
        # Only now: where that was interrupted, the loaded state is still the one to save, and to begin with.
        self._pass = _ReplayedPass(delivery, epoch, loaded["batches"], loaded["random"])
        self._loaded = self._expected = None
        return indices

    @property
    def _epoch(self) -> int | None:
        """The epoch of the next pass; None for samplers that have none."""
        epoch: int | None = getattr(self._sampler, "epoch", None)
        return epoch

    def state_dict(self) -> dict[str, Any]:
        epoch, batches, random = self._epoch, 0, None
        if self._loaded is not None and self._loaded["epoch"] == epoch:
            return {**self._loaded, "dataset": self._data.described}
        begun = self._pass
        if begun is not None and begun.epoch == epoch:
            if not begun.delivery.complete:
                batches, random = begun.first + begun.delivery.steps, begun.random
            elif epoch is not None:
                epoch += 1
        if random is None and self._generator is not None:
            random = _encoded(self._before_the_next_pass() if self._expected is None else self._expected)
        return {
            "version": _VERSION,
            "sampler": type(self._sampler).__name__,
            "size": len(self._sampler),
            "batch_size": self._batch_size,
            "dataset": self._data.described,
            "epoch": epoch,
            "batches": batches,
            "random": random,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not isinstance(state, Mapping) or set(state) != _KEYS:
            found = ", ".join(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise StateError(f"state: expected the dict that state_dict() returned, found {found}")
        self._data.check(state["dataset"])
        own = {"version": _VERSION, "sampler": type(self._sampler).__name__, "size": len(self._sampler)}
        for key, value in {**own, "batch_size": self._batch_size}.items():
            if not is_same(state[key], value):
                raise StateError(f"state[{key!r}] = {shortened(state[key])}, expected {value!r}")
        epoch, batches = self._place(state["epoch"], state["batches"], state["random"])
        self._loaded = {**state, **own, "batch_size": self._batch_size, "epoch": epoch, "batches": batches}
        self._pass = self._expected = None
        if epoch is not None:
            self._sampler.set_epoch(epoch)

    def _place(self, epoch: Any, batches: Any, random: Any) -> tuple[int | None, int]:
        """Return epoch and batches of a state; raise StateError unless a pass of this sampler may go on there."""
        if self._epoch is not None:
            epoch = number_in("state['epoch']", epoch, 2**63 - 1)
        elif epoch is not None:
            raise StateError(f"state['epoch'] = {shortened(epoch)}, expected None, as the sampler has no epochs")
        begun = number_in("state['batches']", batches, len(self._index_sampler))  # type: ignore[arg-type]
        if random is None and not begun:
            return epoch, begun
        try:
            state = _decoded(random)
            torch.Generator(self._generator.device if self._generator else "cpu").set_state(state)
        except (TypeError, ValueError, RuntimeError):
            raise StateError(
                f"state['random'] = {shortened(random, 40)}, expected the state of a generator, in base64"
            ) from None
        return epoch, begun

    def _before_the_next_pass(self) -> torch.Tensor:
        """Return the state of the generator when a pass that begins now draws its first index."""
        assert self._generator is not None
        later = torch.Generator()
        later.set_state(self._generator.get_state())
        if self._generator is self._loaders_generator and self.draws_base_seed:
            draw_base_seed(later)
        return later.get_state()

    def _random_state(self) -> torch.Tensor:
        return torch.get_rng_state() if self._generator is None else self._generator.get_state()

    @contextlib.contextmanager
    def _begun_with(self, random: torch.Tensor) -> Iterator[None]:
        """Draw from random numbers as they were; the process's own are afterwards what they were before."""
        if self._generator is not None:
            self._generator.set_state(random)
            yield
        else:
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(random)
                yield


def draw_base_seed(generator: torch.Generator | None) -> None:
    """Draw the number that torch's loader draws at the start of a pass, so that shuffles are the same ones."""
    torch.empty((), dtype=torch.int64).random_(generator=generator)


def position_of(index_sampler: Iterable[Any], generator: torch.Generator | None, dataset: Any) -> Position:
    """Return the position of a loader over a sampler, which makes states if the sampler's kind allows it.

    Args:
      generator: the loader's.
      dataset: what the sampler's indices are of.
    """
    batched = type(index_sampler) is torch.utils.data.BatchSampler
    inner: Any = index_sampler.sampler if batched else index_sampler  # type: ignore[attr-defined]
    if isinstance(inner, ResumableSampler):
        return SamplerPosition(index_sampler, inner)
    if any(type(inner).__iter__ is known.__iter__ for known in _REPLAYED):
        return ReplayedPosition(index_sampler, inner, generator, SampledData(dataset))
    return Position(index_sampler)


def _encoded(random: torch.Tensor) -> str:
    return base64.b64encode(random.numpy().tobytes()).decode()


def _decoded(random: str) -> torch.Tensor:
    return torch.frombuffer(bytearray(base64.b64decode(random, validate=True)), dtype=torch.uint8)
