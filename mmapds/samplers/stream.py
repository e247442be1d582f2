"""Streams: the samples or batches of a sampler as an IterableDataset, for code that needs one."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import torch.utils.data

from ..errors import OrderError, StateError, shortened
from ..orders.basic import is_same
from .cursor import Iteration
from .resumable import ResumableSampler
from .sampled import check_same_samples
from .samplers import DistributedBatchSampler, DistributedSampler

_AHEAD = 64  # samples read at a time, so that a stream is as fast as batches
_KEYS = {"sampler", "worker", "num_workers", "num_replicas", "batch_size", "given"}


class Stream(torch.utils.data.IterableDataset[Any]):
    """Yields the samples or the batches of this rank, in the order of a sampler; `ds.stream` makes it.

    With n workers in a DataLoader, each worker reads every n-th batch, or every n-th block of 64 samples. Epochs and
    states are those of the sampler, its attribute `sampler`.
    """

    def __init__(self, dataset: Any, sampler: ResumableSampler) -> None:
        self.dataset = dataset._with_own_epoch()
        self.sampler = sampler
        self._in_batches = isinstance(sampler, torch.utils.data.BatchSampler)
        self._is_fresh = True  # the last iterator has yielded nothing
        self._begin: dict[str, Any] = {}  # with several workers: the sampler's state at the start of the worker's shard
        self._given = 0  # yielded items of that shard, including skipped records
        self._is_loaded = False  # whether the next iterator resumes in that shard

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the rest of the epoch for this rank, and for this worker."""
        worker = torch.utils.data.get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._is_fresh = True
        self.dataset.set_epoch(self.sampler.epoch)
        if workers > 1 and not self._is_loaded:
            self._begin, self._given = self.sampler._state_at(*self.sampler._cursor.next()), 0
        self._is_loaded = False
        return self._items(number, workers)

    def _items(self, worker: int, workers: int) -> Iterator[Any]:
        """Yield the items of every `workers`-th block; with several workers, skip those that were yielded before."""
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
            iteration.delivered = iteration.span.steps  # even if the last step belongs to other ranks alone

    def _note(self, iteration: Iteration | None, given: int) -> None:
        """Record the number of yielded items; the sampler itself is a block ahead."""
        self._given, self._is_fresh = given, False
        if iteration is not None:
            iteration.delivered = given

    def _blocks(self) -> Iterator[list[Any]]:
        """Yield the records to read together: those of one batch, or of 64 samples."""
        steps = iter(self.sampler)
        while block := list(islice(steps, 1 if self._in_batches else _AHEAD)):
            yield block

    def _read(self, block: list[Any]) -> Iterable[tuple[int, Any]]:
        """Return the items of a block, each with its place there; skipped records count as places."""
        if self._in_batches:
            return enumerate([self.dataset.take(batch) for batch in block])
        samples, kept = self.dataset.take_kept(block)
        return zip(map(int, kept), samples, strict=True)

    def __len__(self) -> int:
        """Return the number of samples or batches of this rank in a whole epoch, over all workers."""
        return len(self.sampler)

    @property
    def epoch(self) -> int:
        """The epoch of the next iterator."""
        return self.sampler.epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator, as with a sampler.

        It does not reach persistent workers of torch's DataLoader; after a whole epoch, these go on to the next one.
        """
        self.sampler.set_epoch(epoch)

    @property
    def first_step(self) -> int:
        """The step of the epoch at which the iterator begins; see `DistributedSampler`."""
        return self.sampler.first_step

    def _shared_by_ranks(self) -> dict[str, Any]:
        return self.sampler._shared_by_ranks()

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return the state of the sampler, for any number of ranks and workers.

        Inside one of several workers, return the state of that worker for torchdata's StatefulDataLoader. Only the same
        number of workers and ranks can load it.

        Args:
          step: batches of the epoch that the trainer has finished, including those before `first_step`. Give it for a
            DataLoader with workers. By default it is the number of items that this object yielded.
        Raises:
          StateError: `step` is given for a stream of samples: several workers yield these out of order.
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
        """Resume from a state in the next iterator.

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
        """Return the values that must match the state of a worker."""
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        sharding = self.sampler._sharding
        sizes = {"num_replicas": sharding.num_replicas, "batch_size": sharding.batch_size}
        return {"worker": number, "num_workers": workers, **sizes}

    def __repr__(self) -> str:
        return f"<mmapds stream of {'batches' if self._in_batches else 'samples'}: {self.sampler!r}>"


def make_stream(dataset: Any, sampler: Any, batch_size: int | None, options: dict[str, Any]) -> Stream:
    """Return a stream of a dataset, with the given sampler or a new one.

    Raises:
      OrderError: a sampler is given together with other arguments, or belongs to other samples.
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
