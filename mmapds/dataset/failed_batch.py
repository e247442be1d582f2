"""Batches of which a worker process of torch could not make the samples."""

from collections.abc import Sequence
from typing import Any, NoReturn

from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info

from ..storage.processes import sendable


class FailedBatch(ExceptionWrapper, Sequence[Any]):
    """An error in the place of a batch, which is sent to the trainer like a batch.

    A DataLoader of torch raises it when it is the batch's turn, and can go on with the next. Where a `collate_fn` put
    it into something else, it raises the error for whoever looks for its samples.

    Args:
      error: as `wrapped` returns it.
    """

    def __init__(self, error: ExceptionWrapper) -> None:
        self.__dict__.update(error.__dict__)

    def __len__(self) -> int:
        self.reraise()

    def __getitem__(self, key: Any) -> Any:
        self.reraise()

    def __iter__(self) -> NoReturn:  # that of sequences takes an IndexError for the end
        self.reraise()

    def reraise(self) -> NoReturn:
        super().reraise()  # type: ignore[no-untyped-call]
        raise AssertionError("expected it to raise")


def wrapped(error: Exception) -> ExceptionWrapper:
    """Return an error with its traceback as text, which can be sent."""
    worker = get_worker_info()
    where = "in a process" if worker is None else f"in DataLoader worker process {worker.id}"
    sent = sendable(error)
    return ExceptionWrapper((type(sent), sent, error.__traceback__), where)  # type: ignore[no-untyped-call]
