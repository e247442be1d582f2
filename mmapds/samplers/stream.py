"""Streams: the samples or batches of a pass as an iterable, for code that takes nothing else."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import torch.utils.data

from ..errors import OrderError, StateError, arguments_of, names_its_arguments, refuse_unknown, shortened
from ..orders.basic import is_same
from .data import check_same_samples
from .distributed import DistributedBatchSampler, DistributedSampler
from .epoch import number_in
from .passes import Pass
from .resumable import ResumableSampler
from .stream_ranks import StreamCheck
from .stream_shares import Share, has_more, last_read

_AHEAD = 64  # samples read at a time, so that a stream costs what batches do
_OWN = ("dataset", "sampler", "batch_size", "shuffle")  # arguments of streams, after the dataset
_KEYS = {"sampler", "worker", "num_workers", "num_replicas", "batch_size", "given"}


class Readable(Protocol):
    """What a stream reads."""

    def __len__(self) -> int: ...
    def take(self, positions: Sequence[int], /) -> Sequence[Any]: ...
    def take_kept(self, positions: Sequence[int], /) -> tuple[Sequence[Any], Iterable[Any]]: ...


@dataclass
class _Part:
    """What one of several workers has of a pass."""

    begin: dict[str, Any]
    """The state of the sampler where the pass begins."""
    given: int = 0
    """Items that were yielded, and records before the last of them that were left out."""
    begun: bool = False
    ended: dict[str, Any] | None = None
    """Where nothing is left of it for this worker: the state of the sampler at the end of the pass, as it was saved."""
    is_over: bool | None = None
    """Whether that is so for all workers, once it is known."""


class Stream(torch.utils.data.IterableDataset[Any]):
    """An iterable over a dataset in the order of a sampler: the samples of this rank, or its batches.

    Made by `ds.stream`. In a worker process of a DataLoader it is the part of that worker. Epochs and states are those
    of the sampler, its attribute `sampler`.
    """

    def __init__(self, dataset: Readable, sampler: ResumableSampler) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self._in_batches = isinstance(sampler, torch.utils.data.BatchSampler)
        self._pass: Pass | None = None  # the pass that this object yields
        self._beginning: Pass | None = None  # the pass of which nothing was yielded yet; the sampler may be ahead
        self._part: _Part | None = None  # of one of several workers
        self._notice = sampler._listen_to_workers()
        self._is_new = True  # no state was loaded and no pass begun with this copy
        self._check = StreamCheck() if sampler._synchronised().sharding.num_replicas > 1 else None

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over what is left of the epoch for this rank, and for this worker.

        Raises:
          OrderError: another rank has another pass, or none; with the first item.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return self._items()
        if self._is_new:
            # StatefulDataLoader ends the workers that it has loaded a state into, if that was saved after a loop.
            self.sampler._follow(self._notice.own_news())
            self._is_new = False
        # StatefulDataLoader asks a worker for a state before the first item: it is of this pass, not of the last one.
        if worker.num_workers == 1:
            self._beginning = self.sampler._synchronised().next_pass()
            has_steps = self._beginning.steps > 0
            items = self._items()
        else:
            if self._part is None or self._part.begun:
                self._part = self._new_part()
            # A long state is not told, so the end of its epoch must not count as the pass that waits for the next one.
            is_told = self._part.ended is None or self._notice.is_told()
            has_steps = is_told and self.sampler._synchronised().coming().steps > 0
            items = self._worker_items(self._part, worker.id, worker.num_workers)
        self._notice.begun(has_steps=has_steps)
        return items if worker.id or self._check is None else self._checked(items, self._check)

    def _checked(self, items: Iterator[Any], check: StreamCheck) -> Iterator[Any]:
        """Yield items after a comparison with other ranks."""
        check.before(self.sampler._synchronised(), self._shared_by_ranks)
        yield from items

    def _items(self) -> Iterator[Any]:
        """Yield all items of this rank."""
        begun = self._beginning = self.sampler._synchronised().next_pass()
        begun.had = 0  # blocks are drawn ahead
        for block in self._blocks():
            if self._beginning is begun:
                self._pass, self._beginning = begun, None
            begin = begun.had
            for k, item in self._read(block):
                begun.had = begin + k + 1  # with records before this one that the dataset leaves out
                yield item
            begun.had = begin + len(block)
        # It is over, also for a rank without a share of the last step: the sampler knows.
        begun.had = begun.steps
        self._pass = None if self._pass is begun else self._pass
        self._beginning = None if self._beginning is begun else self._beginning

    def _shared_by_ranks(self) -> dict[str, Any]:
        """Return what must be alike on all ranks: see `ResumableSampler`."""
        return self.sampler._shared_by_ranks()

    def _new_part(self) -> _Part:
        """Return a part of the next pass, of which nothing was yielded."""
        return _Part(self.sampler._state_before(self.sampler._synchronised().next_pass()))

    def _is_over(self, part: _Part, workers: int) -> bool:
        """Return whether nothing is left of a part for any worker: asked once, as another loop may load a state."""
        if part.is_over is None:
            part.is_over = self._notice.is_end_for(workers)
        return part.is_over

    def _worker_items(self, part: _Part, number: int, workers: int) -> Iterator[Any]:
        """Yield the items of every `workers`-th block, so that a DataLoader, which asks workers in turn, has all."""
        if part.ended is not None and self._is_over(part, workers):
            # All that was left has been read, so what is excluded anew is of the next epoch.
            self.sampler.load_state_dict(part.ended)
            part = self._part = self._new_part()
            self._notice.begun(has_steps=self.sampler._synchronised().coming().steps > 0, instead=True)
        part.begun = True
        skip = part.given
        for block in islice(self._blocks(), number, None, workers):
            kept = block[skip:]
            skip -= len(block) - len(kept)
            begin = part.given
            for k, item in self._read(kept) if kept else ():
                part.given = begin + k + 1
                yield item
            part.given = begin + len(kept)

    @property
    def _block_size(self) -> int:
        """Steps that are read at a time: a batch, or some samples."""
        return 1 if self._in_batches else _AHEAD

    def _blocks(self) -> Iterator[list[Any]]:
        """Yield what is read at a time."""
        steps = iter(self.sampler)  # type: ignore[call-overload]
        while block := list(islice(steps, self._block_size)):
            yield block

    def _read(self, block: list[Any]) -> Iterable[tuple[int, Any]]:
        """Return the items of a block, each with its number there: records that a dataset leaves out have one, too."""
        if self._in_batches:
            return enumerate([self.dataset.take(batch) for batch in block])
        samples, kept = self.dataset.take_kept(block)
        return zip(map(int, kept), samples, strict=True)

    def __len__(self) -> int:
        """Return the samples or batches of this rank in a whole epoch, those of all workers together."""
        return len(self.sampler)

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or, before one begins, of the next one."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass, as with a sampler; persistent workers do not learn of it."""
        self.sampler.set_epoch(epoch)

    @property
    def first_step(self) -> int:
        """The step of the epoch at which the pass under way, or else the next one, begins; see `DistributedSampler`."""
        return self.sampler.first_step

    @names_its_arguments("stream.state_dict")
    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is: the state of the sampler, which any number of ranks and workers can load.

        In one of several workers it is the state of that worker, as torchdata's StatefulDataLoader wants it: it belongs
        to that worker, and to as many of them.

        Args:
          step: samples or batches of the epoch that the trainer has finished, those before `first_step` included; by
            default those yielded by this object. Over a DataLoader with workers, give it.
        Raises:
          StateError: several workers read samples, which are no first ones of the epoch then; stream batches.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            part = self._part or self._new_part()
            if part.ended is not None and self._is_over(part, worker.num_workers):
                part = _Part(part.ended)
            return {"sampler": part.begin, **self._own(worker.id, worker.num_workers), "given": part.given}
        if step is not None:
            self._refuse_blocks(step)
        elif self._beginning is not None:  # also where a signal raised while it drew the first block
            progress = self.sampler._synchronised()
            if self._beginning is progress.current() or self._beginning is progress.coming():  # none was chosen since
                return self.sampler._state_before(self._beginning)
        if step is None and self._pass is not None and self._pass is self.sampler.current_pass:
            step = self._pass.first_step + self._pass.delivered  # the sampler itself is a block ahead
        return self.sampler.state_dict(step)

    def _refuse_blocks(self, step: int) -> None:
        """Raise StateError for a number of samples of which nobody knows which ones they are."""
        current = self.sampler.current_pass
        if self._in_batches or self._notice.readers() < 2:
            return
        if step not in (current.first_step + done for done in (0, current.own_steps, current.steps)):
            raise StateError(
                f"step = {shortened(step)}, expected a stream of batches where several workers read it, found one of "
                "samples; give ds.stream(batch_size=...), or use StatefulDataLoader (they read "
                f"{_AHEAD} samples at a time, in turn); for what this process reads itself, call set_epoch before it"
            )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved.

        Raises:
          StateError: the state belongs to another order, or to another worker.
        """
        worker = torch.utils.data.get_worker_info()
        if not isinstance(state_dict, Mapping) or set(state_dict) != _KEYS:
            self.sampler.load_state_dict(state_dict)
            if worker is not None:
                self._notice.loads(state_dict, is_end=False, given=0, block_size=self._block_size)
                self._tell_of(state_dict, is_end=False)
            return
        own = self._own(0, 1) if worker is None else self._own(worker.id, worker.num_workers)
        saved = {key: state_dict[key] for key in own}
        if not all(is_same(saved[key], own[key]) for key in own):
            raise StateError(
                f"state: expected one of {_described(own)}, found one of {_described(saved)}; make stream and loader "
                "as then"
            )
        given = number_in("state['given']", state_dict["given"], 2**63 - 1)
        self.sampler.load_state_dict(state_dict["sampler"])
        progress, share = self.sampler._synchronised(), Share(own["worker"], own["num_workers"], self._block_size)
        before, following = progress.as_saved(), share.step_of(given)
        # A rank without a share of the last step waits for those that have one: all of them are at the end, or none.
        is_end = following >= before.steps
        read = min(given, share.steps_of(before.steps))
        if worker is not None:
            self._notice.loads(state_dict["sampler"], is_end=is_end, given=read, block_size=self._block_size)
        if before.steps and not progress.keeps(before.steps - 1):
            self._refuse_what_was_read([read] if worker is None else self._notice.items_of(worker.num_workers))
        begin, now = dict(state_dict["sampler"]), progress.coming()
        ended = {**begin, "position": begin["epoch_size"]} if is_end else None
        if now.epoch == begin["epoch"]:  # with what is excluded now, for the state of a later job
            begin = self.sampler._state_before(now)
        self._part = _Part(begin, given, ended=ended)
        if worker is not None:
            self._tell_of(state_dict["sampler"], is_end=is_end)

    def _refuse_what_was_read(self, items: list[int]) -> None:
        """Raise StateError where something is excluded of what workers have read, or before it.

        Args:
          items: how many each of them has read of the pass that was loaded.
        """
        progress, size = self.sampler._synchronised(), self._block_size
        is_under_way = has_more(items, size, progress.as_saved().own_steps)
        if is_under_way and not progress.keeps(last_read(items, size)):
            raise StateError(
                "state: of the middle of a pass that several workers share; expected exclude= to leave out what "
                "follows alone, found something before that; give it from the next epoch on"
            )

    def _own(self, worker: int, workers: int) -> dict[str, int]:
        """Return what must be alike where a worker goes on with the state of one."""
        sharding = self.sampler._synchronised().sharding
        return {
            "worker": worker,
            "num_workers": workers,
            "num_replicas": sharding.num_replicas,
            "batch_size": sharding.batch_size,
        }

    def _tell_of(self, state: Mapping[str, Any], *, is_end: bool) -> None:
        """Say in a worker which state of the sampler was loaded, and whether that is all of it for this worker."""
        self._is_new = False
        self._notice.loaded(state, is_end=is_end)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pass": None, "_part": None, "_beginning": None}

    def __repr__(self) -> str:
        return f"<mmapds stream of {'batches' if self._in_batches else 'samples'}: {self.sampler!r}>"


def _described(own: Mapping[str, Any]) -> str:
    """Return in words which worker of which stream a state is of."""
    worker, workers, replicas, batch = map(shortened, own.values())
    return f"worker {worker} of {workers}, with num_replicas = {replicas} and batch_size = {batch}"


def make_stream(dataset: Readable, sampler: Any, batch_size: int | None, options: dict[str, Any]) -> Stream:
    """Return the stream of a dataset by a sampler, or by one that is made for it.

    Raises:
      OrderError: there are both a sampler and arguments of one; or the sampler is of other samples.
      TypeError: an argument is unknown.
    """
    known = [name for name in arguments_of(DistributedSampler.__init__) if name not in _OWN]
    refuse_unknown("Dataset.stream", options, (*_OWN[1:], *known))
    if sampler is None:
        if batch_size is None:
            return Stream(dataset, DistributedSampler(dataset, **options))
        return Stream(dataset, DistributedBatchSampler(dataset, batch_size, **options))
    if not isinstance(sampler, ResumableSampler):
        raise OrderError(f"sampler: expected a sampler of mmapds, found {type(sampler).__name__}")
    if batch_size is not None or options:
        given = ", ".join([*options, *([] if batch_size is None else ["batch_size"])])
        raise OrderError(f"sampler: expected no other arguments beside it, found {given}; give them to the sampler")
    check_same_samples(dataset, "sampler", sampler.sampled)
    return Stream(dataset, sampler)
