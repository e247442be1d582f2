"""Streams: the samples or batches of a sampler as an iterable, for code that takes nothing else."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch.utils.data

from ..errors import OrderError, StateError, shortened
from ..orders.basic import is_same
from .cursor import Iteration
from .resumable import ResumableSampler, check_same_samples
from .samplers import DistributedBatchSampler, DistributedSampler

_AHEAD = 64  # samples read at a time, so that a stream costs what batches do
_KEYS = {"sampler", "worker", "num_workers", "num_replicas", "batch_size", "given"}


class Stream(torch.utils.data.IterableDataset[Any]):
    """An iterable over a dataset in the order of a sampler: the samples of this rank, or its batches.

    Made by `ds.stream`. Worker k of n of a DataLoader reads every n-th batch, or every n-th block of 64 samples. Epochs
    and states are those of the sampler, its attribute `sampler`.
    """

    def __init__(self, dataset: Any, sampler: ResumableSampler) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self._in_batches = isinstance(sampler, torch.utils.data.BatchSampler)
        self._is_fresh = True  # no item of the last iterator was given
        self._begin: dict[str, Any] = {}  # in one of several workers: the state of the sampler where its share begins
        self._given = 0  # items of that share, with records that the dataset left out
        self._is_loaded = False  # whether the next iterator goes on in that share

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch for this rank, and for this worker."""
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._is_fresh = True
        if workers > 1 and not self._is_loaded:
            self._begin, self._given = self.sampler._state_at(*self.sampler._cursor.next()), 0
        self._is_loaded = False
        return self._items(number, workers)

    def _items(self, worker: int, workers: int) -> Iterator[Any]:
        """Yield the items of every `workers`-th block; one of several workers begins after those that were given."""
        skip = done = self._given if workers > 1 else 0
        iteration = None
        for block in islice(self._blocks(), worker, None, workers):
            rest = block[skip:]
            skip -= len(block) - len(rest)
            if workers == 1:
                iteration = iteration or self.sampler._cursor.latest
            self._note(iteration, done)
            for k, item in self._read(rest) if rest else ():
                self._note(iteration, done + k + 1)
                yield item
            done += len(rest)
            self._note(iteration, done)
        if iteration is not None and iteration.span is not None:
            iteration.delivered = iteration.span.steps  # also where the last step is of other ranks alone

    def _note(self, iteration: Iteration | None, given: int) -> None:
        """Take note of how many items were given; the sampler itself is a block ahead."""
        self._given, self._is_fresh = given, False
        if iteration is not None:
            iteration.delivered = given

    def _blocks(self) -> Iterator[list[Any]]:
        """Yield what is read at a time: the records of one batch, or of some samples."""
        steps = iter(self.sampler)
        while block := list(islice(steps, 1 if self._in_batches else _AHEAD)):
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
        """The epoch of the next iterator."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator, as with a sampler; persistent workers do not learn of it."""
        self.sampler.set_epoch(epoch)

    @property
    def first_step(self) -> int:
        """The step of the epoch at which the iterator begins; see `DistributedSampler`."""
        return self.sampler.first_step

    def _shared_by_ranks(self) -> dict[str, Any]:
        return self.sampler._shared_by_ranks()

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is: the state of the sampler, for any number of ranks and workers.

        In one of several workers it is the state of that worker, as torchdata's StatefulDataLoader wants it, for as
        many workers and ranks.

        Args:
          step: batches of the epoch that the trainer has finished, those before `first_step` included. Give it over a
            DataLoader with workers. By default the items that this object yielded count.
        Raises:
          StateError: the stream yields samples, of which several workers do not read the first ones first.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.num_workers > 1:
            begin = self._begin or self.sampler._state_at(*self.sampler._cursor.next())
            return {"sampler": begin, **self._own(worker), "given": self._given}
        if step is not None and not self._in_batches:
            raise StateError(
                f"step = {shortened(step)}, expected a stream of batches, found one of samples; give "
                "ds.stream(batch_size=...), or use StatefulDataLoader (several workers do not read the first samples "
                "first)"
            )
        if step is None and self._is_fresh:
            return self.sampler._state_at(*self.sampler._cursor.next())
        return self.sampler.state_dict(step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next iterator where a state was saved.

        Raises:
          StateError: the state belongs to another order, or to another worker.
        """
        if not isinstance(state_dict, Mapping) or set(state_dict) != _KEYS:
            self.sampler.load_state_dict(state_dict)
            return
        own = self._own(torch.utils.data.get_worker_info())
        saved = {key: state_dict[key] for key in own}
        if not all(is_same(saved[key], own[key]) for key in own):
            raise StateError(
                f"state: expected one of {own}, found one of {shortened(saved)}; make stream and loader alike"
            )
        given = state_dict["given"]
        if type(given) is not int or given < 0:
            raise StateError(f"state['given'] = {shortened(given)}, expected an integer of 0 or more")
        self.sampler.load_state_dict(state_dict["sampler"])
        self._begin, self._given, self._is_loaded = dict(state_dict["sampler"]), given, True

    def _own(self, worker: Any) -> dict[str, int]:
        """Return what must be alike where a worker goes on with the state of one."""
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        sharding = self.sampler._sharding
        sizes = {"num_replicas": sharding.num_replicas, "batch_size": sharding.batch_size}
        return {"worker": number, "num_workers": workers, **sizes}

    def __repr__(self) -> str:
        return f"<mmapds stream of {'batches' if self._in_batches else 'samples'}: {self.sampler!r}>"


def make_stream(dataset: Any, sampler: Any, batch_size: int | None, options: dict[str, Any]) -> Stream:
    """Return the stream of a dataset by a sampler, or by one that is made for it.

    Raises:
      OrderError: there are both a sampler and arguments of one; or the sampler is of other samples.
      TypeError: an argument is unknown.
    """
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
