"""What all samplers share: the epoch, the length, and states."""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch.utils.data

from ..errors import OrderError, counted, names_its_arguments
from .data import SampledData
from .epoch import EpochProgress
from .notice import News, Notice
from .passes import Pass
from .ranks import PassCheck
from .world import refuse_second_sharding


def refuse_injected(sampler: object) -> None:
    """Refuse the sampler that a trainer wants a batch sampler to take its samples from.

    Raises:
      OrderError: it is one.
    """
    if sampler is not None:
        raise OrderError(
            f"sampler: expected None, found {type(sampler).__name__}; make Lightning's Trainer with "
            "use_distributed_sampler=False, or give its loader sampler=DistributedSampler(...) (this batch sampler "
            "shares the samples among ranks by itself)"
        )


def refuse_injected_dataset(dataset: object) -> None:
    """Refuse a torch sampler in place of a dataset: Lightning makes a batch sampler again over its own one.

    Raises:
      OrderError: it is one.
    """
    if isinstance(dataset, torch.utils.data.Sampler):
        refuse_injected(dataset)


def refuse_path(name: str, dataset: object) -> None:
    """Refuse a path in place of a dataset: a string has a length too.

    Args:
      name: of the argument.
    Raises:
      OrderError: it is one.
    """
    if isinstance(dataset, str | bytes | os.PathLike):
        shown = os.fspath(dataset)
        raise OrderError(f"{name} = {shown!r}, expected a dataset; open it first: mmapds.open({shown!r})")


class ResumableSampler(ABC):
    """Gives a sampler its epoch, length and states. It stands before torch's class among the bases."""

    _progress: EpochProgress
    _data: SampledData
    _ranks: PassCheck | None = None  # made for the first pass
    _notice: Notice | None = None  # of workers, where a stream has some
    _has_equal_batches = True
    batching: tuple[int, bool] | None = None
    """Batch size and `drop_last` of the loader that makes batches of the next pass, where it says so."""

    def _synchronised(self) -> EpochProgress:
        """Return the progress, at the epoch chosen last."""
        return self._progress

    def _choose_epoch(self, epoch: int) -> None:
        self._follow_workers()
        self._progress.set_epoch(epoch)

    def _listen_to_workers(self) -> Notice:
        """Be told of what workers do with copies of this: follow them before another epoch or state."""
        self._notice = self._notice or Notice()
        return self._notice

    def _follow_workers(self) -> None:
        """Load what workers have loaded, and begin the pass that they have begun."""
        if self._notice is not None:
            self._follow(self._notice.news())

    def _follow(self, news: News) -> None:
        if news.state is not None:
            self.load_state_dict(news.state)
            rest = self._progress.without(news.read, self._data)
            if rest is not None:
                self.load_state_dict(rest)
        self._progress.follow(news.passes)

    def _compare_ranks(self) -> None:
        """Compare the pass that begins next with those of other ranks.

        Raises:
          OrderError: another rank has another pass, or none; or batches of this rank would be shared out again.
        """
        self._refuse_second_sharding()
        if self._ranks is None:
            self._ranks = PassCheck()
        progress = self._synchronised()
        progress.next_pass()  # which may be of another epoch
        self._ranks.before(progress, self._shared_by_ranks)

    def _refuse_second_sharding(self) -> None:
        """Refuse a trainer's loader that shares out batches once more; batch samplers also before a pass begins.

        A loader may ask one rank alone for batches, while the others wait for it.

        Raises:
          OrderError: it is such a loader.
        """
        refuse_second_sharding(self._progress.sharding.num_replicas, cuts=self._has_equal_batches)

    def _shared_by_ranks(self) -> dict[str, Any]:
        """Return all that must be alike on ranks that share an epoch, for messages: causes before what follows."""
        progress = self._synchronised()
        coming, sharding = progress.coming(), progress.sharding
        loader = {} if self.batching is None else {"batch_size": self.batching[0], "loader.drop_last": self.batching[1]}
        return {
            "sampler": type(self).__name__,
            "order": progress.contents.describe(),
            "epoch": coming.epoch,
            "num_replicas": sharding.num_replicas,
            "batch_size": sharding.batch_size,
            "drop_last": sharding.drop_last,
            "pad": sharding.pad,
            **loader,
            "epoch_size": len(progress.contents),
            "first_step": coming.first_step,
            "steps": coming.steps,
            "position": coming.start.position,
            "exclude": (coming.start.positions, coming.start.records),
            "dataset": self._data.mark,
        }

    @property
    @abstractmethod
    def sampled(self) -> Any:
        """What has a sample for each index that may be yielded: a dataset, its lengths, or anything with its length."""

    @property
    def epoch(self) -> int:
        """The epoch of the pass under way, or, before one begins, of the next one."""
        return self._synchronised().epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self._choose_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass.

        That of a loaded state keeps the state's position, whatever was looked at since; another one clears it. The
        epoch under way begins where its pass began, or as a whole once that was read to its end.
        """
        self._choose_epoch(epoch)

    def __len__(self) -> int:
        """Return the steps in a whole epoch: the same on every rank, in every epoch, and wherever a pass begins."""
        return len(self._progress)

    def __repr__(self) -> str:
        progress = self._synchronised()
        world = f"rank {progress.sharding.rank} of {progress.sharding.num_replicas}"
        where = f"epoch {progress.epoch}, position {progress.position:,} of {len(progress.contents):,}"
        return f"<{type(self).__name__}: {self._what()}, {world}, {where}, {counted(len(self), 'step')}>"

    @abstractmethod
    def _what(self) -> str:
        """Return what is sampled and how, for the repr."""

    @property
    def first_step(self) -> int:
        """The step of the epoch at which the pass under way began, or, before one begins, at which the next one does.

        0, except where a pass resumes. A loop that counts its steps from here, as in
        `enumerate(loader, sampler.first_step)`, has the numbers that `state_dict(step=...)` takes. `set_epoch` and
        `load_state_dict` end the pass under way.
        """
        return self._synchronised().current().first_step

    @names_its_arguments("sampler.state_dict")
    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is: a small dict that JSON can hold, the same on every rank.

        Args:
          step: steps of the epoch that the trainer has finished, those before `first_step` included; by default those
            yielded, which may be more, since workers prefetch. A step is one index of an index sampler, and one batch
            of a batch sampler.
        """
        return self._synchronised().state_dict(step, self._data)

    def _state_before(self, of: Pass) -> dict[str, Any]:
        """Return the state before the first step of a pass: the current one, or the next one."""
        return self._synchronised().state_dict(of.first_step, self._data, of)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin the next pass where a state was saved, at any number of replicas.

        A state from the end of an epoch begins the next epoch; of the finished one, `set_epoch` finds nothing left.

        Raises:
          StateError: the state belongs to other files or another view of them, to another seed, order or version, or
            is not a state.
        """
        self._follow_workers()
        self._progress.load_state_dict(state_dict, self._data)

    @property
    def current_pass(self) -> Pass:
        """The pass under way, or the one that would begin now: an object of its own for each pass."""
        return self._synchronised().current()

    @property
    def _pass_under_way(self) -> Pass | None:
        """The pass that began last, as long as a loop may go on with it."""
        return self._synchronised().agenda.under_way
