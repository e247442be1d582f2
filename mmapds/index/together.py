"""An array file and its index, which are put into their places one right after the other."""

from collections.abc import Callable

from ..formats.mma import ArrayFiles
from ..storage.sources import INDEX_SUFFIX, inspect
from ..storage.threads import cores
from .build import ColumnRequest
from .write import Job, Scan, write


def write_index(target: str, unplaced: str, place: Callable[[], object]) -> None:
    """Index an array file that is complete, but lies beside its place; the caller holds the lock of the index.

    Args:
      target: where the array file will be.
      unplaced: where it is.
      place: called once the index is on the disk; it moves the array file, and the index follows at once.
    """
    chosen, source = ArrayFiles(), inspect(unplaced)
    parameters = chosen.parameters({}, [unplaced])
    measuring = ColumnRequest().measuring(None, parameters["columns"])
    job = Job(target + INDEX_SUFFIX, [source], chosen, parameters, measuring, before=None, hashes=False)
    job.names, job.place = {unplaced: target}, place
    write(job, [Scan([source])], cores(), lambda _: None)
