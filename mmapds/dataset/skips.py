"""Records that a dataset leaves out because they cannot be decoded: counted, and named in warnings."""

from collections.abc import Callable

from ..errors import warn

_NAMED = 10  # records that a process warns of, one by one

_ENOUGH = 100  # records, of which none was decoded, that make an error


class Skips:
    """The records that were left out in this process, each once. Views of a dataset share it, and so do threads."""

    def __init__(self) -> None:
        self._records: dict[int, object] = {}
        self.any_kept = False
        """Whether a record was ever decoded; those who read `Fields` set it."""

    def add(self, record: int, what: Callable[[], str]) -> None:
        """Take in a record that was left out; warn, if it is the first time.

        Args:
          what: returns the place of the record, and what is wrong with it. It is called only where that is shown, as
            it may read the source up to the record to count its lines.
        """
        mark = object()
        if self._records.setdefault(record, mark) is not mark:  # one step, so that threads need no lock
            return
        if len(self._records) <= _NAMED:
            warn(f"{what()}; left out", RuntimeWarning)
        elif len(self._records) == _NAMED + 1:
            warn(
                f"{what()}; left out, the {_NAMED + 1}th record in this process; ds.skipped has all, and the next ones "
                "are left out without a warning",
                RuntimeWarning,
            )

    def are_all(self, total: int) -> bool:
        """Whether nothing was ever decoded, of enough records to say that the decoder fits none of `total`."""
        return not self.any_kept and len(self._records) >= min(total, _ENOUGH)

    @property
    def records(self) -> list[int]:
        """The numbers of the records, ascending."""
        return sorted(self._records)
