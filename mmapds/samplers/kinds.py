"""Batches of one kind: a plan for each kind of samples, whose groups of batches are shuffled together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import OrderError, shortened
from ..orders.basic import VERSION, Int64s
from ..orders.permutation import Permutation
from .plan import Reader, Totals

_GROUPS = 1 << 62  # stream of the permutation of groups


class Kind(NamedTuple):
    """The samples of one kind.

    Attributes:
      value: its number in the column.
      records: ascending, shape (n,).
    """

    value: int
    records: NDArray[np.int64]


def kinds_of(given: Any, records: int) -> list[Kind]:
    """Return the kinds of samples, by rising value.

    Args:
      given: an integer for each record.
    Raises:
      OrderError: they are not integers, or not so many.
    """
    values = np.asarray(given)
    if values.dtype.kind not in "biu" or values.shape != (records,):
        found = f"{values.dtype} of shape {values.shape}"
        raise OrderError(f"kind: expected integers, one for each of {records:,} records, found {found}")
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    begins = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    return [Kind(int(ordered[begin]), own) for begin, own in zip(begins, np.split(order, begins[1:]), strict=True)]


def limits_of_kind(limits: Any, name: str, given: Any, kind: int) -> Any:
    """Return the limits of a kind, with its own number in a dict; raise OrderError if it has none there."""
    if not isinstance(given, Mapping):
        return limits
    if kind not in given:
        raise OrderError(f"{name}: expected one for kind {kind}, found those of {shortened(sorted(given))}")
    return limits._replace(**{name: given[kind]})


class KindsPlan:
    """Batches of one kind each: all batches of a group have the same one.

    Every epoch shuffles the groups of all kinds. A kind of fewer samples than a group has batches repeats its batches,
    so that every rank has one.

    Args:
      kinds: the samples of each plan.
      plans: makes the plan of each kind.
      options: of every plan; see `Plan`.
    """

    cuts = False

    def __init__(self, kinds: list[Kind], plans: Sequence[Callable[..., Any]], *, records: int, **options: Any) -> None:
        self._kinds, self._plans = kinds, [make(**options) for make in plans]
        self.records, self.cuts = records, self._plans[0].cuts
        self.group_size, self.fills = options["group_size"], options["fills"]
        self.seed, self.shuffle = options["seed"], options["shuffle"]
        self._ends = np.cumsum([-(-len(plan) // self.group_size) for plan in self._plans])  # groups, kind by kind
        self.limits = max((plan.limits for plan in self._plans), key=lambda limits: limits[0])

    def __len__(self) -> int:
        return int(self._ends[-1] * self.group_size)

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch; positions may come in any order."""
        groups_of = Permutation(int(self._ends[-1]), self.seed, epoch, stream=_GROUPS)
        readers = [plan.reader(epoch) for plan in self._plans]

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            groups, places = np.divmod(positions, self.group_size)
            groups = groups_of[groups] if self.shuffle else groups
            members = np.searchsorted(self._ends, groups, side="right")
            found: list[Any] = [None] * len(positions)
            for member in np.unique(members).tolist():
                own = np.flatnonzero(members == member)
                first = int(self._ends[member - 1]) if member else 0
                batches = ((groups[own] - first) * self.group_size + places[own]) % len(self._plans[member])
                out, ends = readers[member](batches)
                for place, batch in zip(own.tolist(), np.split(out, ends[:-1]), strict=True):
                    found[place] = self._kinds[member].records[batch]
            return np.concatenate(found), np.cumsum([len(batch) for batch in found])

        return read

    def member_of(self, record: int) -> int:
        """Return the number of the kind of a record."""
        for number, (_, records) in enumerate(self._kinds):
            place = int(np.searchsorted(records, record))
            if place < len(records) and int(records[place]) == record:
                return number
        raise IndexError(f"record {record}: expected one of {self.records} records")

    def limits_of(self, records: Any) -> Any:
        """Return the limits of the batch of these records."""
        return self._plans[self.member_of(records[0])].limits

    def measured(self, records: Int64s, begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Measure batches; see `Plan.measured`."""
        members = np.array([self.member_of(record) for record in records[begins].tolist()])
        found = np.empty((3, len(sizes)))
        for member in np.unique(members).tolist():
            is_own = members == member
            own = np.searchsorted(self._kinds[member].records, records[np.repeat(is_own, sizes)])
            firsts = np.cumsum(sizes[is_own]) - sizes[is_own]
            found[:, is_own] = self._plans[member].measured(own, firsts, sizes[is_own])
        return found[0], found[1], found[2]

    def totals(self) -> Totals:
        """Return what an epoch reads and leaves out."""
        every = [plan.totals() for plan in self._plans]
        rooms = np.array([len(plan) * plan.limits[0] for plan in self._plans], float)
        sums = {name: sum(getattr(each, name) for each in every) for name in Totals._fields if name != "fill"}
        return Totals(**sums, fill=float(rooms @ [each.fill for each in every] / rooms.sum()))

    def repeated(self, epoch: int) -> int:
        """Return how many samples come again, since their kind has fewer batches than a group."""
        again = 0
        for plan in self._plans:
            if more := -len(plan) % self.group_size:
                _, ends = plan.reader(epoch)(np.arange(len(plan), dtype=np.int64))
                sizes = np.diff(ends, prepend=0)
                again += int(np.resize(sizes, len(plan) + more)[len(plan) :].sum())
        return again

    def describe(self) -> dict[str, Any]:
        """Return the identity of this plan for states."""
        described: dict[str, Any] = {"order": "kinds", "version": VERSION}
        described |= {"group_size": self.group_size, "fills": self.fills}
        for kind, plan in zip(self._kinds, self._plans, strict=True):
            own = plan.describe() | {"of": xxh3_64(kind.records.data).hexdigest()}
            described |= {f"kind[{kind.value}].{key}": value for key, value in own.items()}
        return described
