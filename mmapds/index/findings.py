"""What --verify finds: problems, each with its place, and what it could not check."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ..errors import Error, counted
from ..storage.index_file import Index
from ..storage.numbers import BY_DTYPE
from ..storage.view_file import SavedView

LISTED = 20
"""Problems of a kind that are listed; the others are counted."""


class Problem(NamedTuple):
    """Something that is wrong with an index or its sources."""

    check: str
    """What was compared; docs/checks.md lists the names."""
    error: Error
    """Its text is the message."""
    source: str | None = None
    """The path of the source, if it is about one."""
    record: int | None = None
    """The number of the record, in the source or else in the index, if it is about one."""

    def describe(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"check": self.check, "source": self.source, "record": self.record, "message": str(self.error)}


class Findings:
    """The problems of an index or a saved view, of each kind the first `LISTED`, as they are found."""

    def __init__(self, index: Index | SavedView) -> None:
        self.index: Any = index
        self.problems: list[Problem] = []
        self.counts: dict[str, int] = {}
        """How many problems there are, by `Problem.check`."""
        self.not_checked: list[str] = []
        """What was left out, a sentence each."""

    @property
    def count(self) -> int:
        """How many problems there are."""
        return sum(self.counts.values())

    def add(self, check: str, error: Error, source: str | None = None, record: int | None = None) -> None:
        """Take in one problem."""
        self.counts[check] = self.counts.get(check, 0) + 1
        if self.counts[check] <= LISTED:
            self.problems.append(Problem(check, error, source, record))

    def add_each(
        self, check: str, places: Sequence[int], describe: Callable[[int], tuple[str, int]], source: str | None = None
    ) -> None:
        """Take in a problem for each place: `describe(place)` gives what is damaged there, and the record."""
        room = max(LISTED - self.counts.get(check, 0), 0)
        for place in places[:room]:
            what, record = describe(int(place))
            self.add(check, self.index.damaged(what), source, record)
        if len(places) > room:
            self.counts[check] = self.counts.get(check, 0) + len(places) - room

    def compare(self, check: str, name: str, dtype: str, items: int, expected: Iterable[bytes | memoryview]) -> None:
        """Take in the first number of a section that is not the expected one.

        Args:
          dtype: of the section.
          items: how many numbers it has.
          expected: these, as bytes in pieces.
        """
        section, number_type, at = self.index.sections.get(name), BY_DTYPE[dtype], 0
        if section is None or section.dtype != dtype or section.items != items:
            found = "none" if section is None else f"{section.items} of type {section.dtype}"
            what = f"section {name!r}: expected {items} numbers of type {dtype}, found {found}"
            self.add(check, self.index.damaged(what))
            return
        for piece in expected:
            stored = self.index.read(section.offset + at, len(piece))
            if stored != piece:
                pairs = zip(
                    *(memoryview(each).cast("B").cast(number_type.code) for each in (stored, piece)), strict=True
                )
                place, found, wanted = next((k, *pair) for k, pair in enumerate(pairs) if pair[0] != pair[1])
                what = f"{name}[{at // number_type.width + place}] = {found}, expected {wanted}"
                self.add(check, self.index.damaged(what))
                return
            at += len(piece)

    @contextmanager
    def catching(self, check: str, source: str | None = None) -> Iterator[None]:
        """Take in what the block raises as a problem."""
        try:
            with self.index.reporting_malformed_metadata():
                yield
        except Error as error:
            self.add(check, error, source)

    def lines(self) -> list[str]:
        """Return the messages, one a line, and for each kind how many are not listed."""
        unlisted = {check: count - LISTED for check, count in self.counts.items() if count > LISTED}
        more = [
            str(self.index.damaged(f"{counted(count, 'more problem')} like the {LISTED} listed ({check})"))
            for check, count in unlisted.items()
        ]
        return [" ".join(str(problem.error).splitlines()) for problem in self.problems] + more

    def describe(self) -> dict[str, Any]:
        """Return them as JSON."""
        return {
            "verified": not self.count,
            "problems": [problem.describe() for problem in self.problems],
            "counts": self.counts,
            "not_checked": self.not_checked,
        }
