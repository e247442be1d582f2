"""What every planner answers."""

from abc import ABC, abstractmethod
from itertools import islice

BUDGET = 16_384  # tokens of a padded batch
PACK = 2_048  # tokens of a pack


class Planner(ABC):
    """Batches of record numbers under a budget, for one process.

    Args:
      lengths: of the records, a NumPy array.
      folder: where `prepare` wrote, for libraries that take no array.
    """

    title = ""
    package: str | None = None
    cannot: dict[str, str] = {}
    """Why there is no "resume"."""

    def __init__(self, lengths, folder):
        self.lengths, self.folder = lengths, folder

    def prepare(self):
        """Write what the library reads, before anything is timed."""
        return

    @abstractmethod
    def batches(self):
        """Return an iterator over the batches of an epoch."""

    def state(self, step):
        """Return what a checkpoint holds after some batches."""
        return step

    def resumed(self, state):
        """Return an iterator over the batches that remain after a state: here, all are planned again and skipped."""
        return islice(self.batches(), state, None)
