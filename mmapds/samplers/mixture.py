"""Batches of several planned samplers, in fixed proportions."""

from __future__ import annotations  # help() shows them as they are written

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import OrderError, counted, shortened
from ..orders.basic import VERSION, Int64s, Mixture, integer
from ..orders.schedule import Course, Segment, checked_schedule, is_schedule
from .kinds import KindsPlan
from .ordered import Exclude
from .plan import Reader, Totals
from .planned import Lengths, PlannedBatchSampler, cut, one_of
from .ranks import World
from .resumable import refuse_injected
from .sampled import are_ours, joined

_ALIKE = ("round_to", "cut_length", "max_sequences")
"""Attributes that collate functions read; all samplers of a mixture must have equal ones."""


class MixtureBatchSampler(PlannedBatchSampler):
    """Mixes batches of token budgets or packs over several datasets, by weights.

        parts = [mmapds.TokenBudgetBatchSampler(each, max_tokens=16_384) for each in (ds, more)]
        batches = mmapds.MixtureBatchSampler(parts, weights=[0.7, 0.3], stop="longest")
        loader = mmapds.DataLoader(mmapds.concat([ds, more]), batch_sampler=batches)

    Each sampler plans batches of its own dataset, with its own arguments. A dataset that has been read whole starts
    again, with other batches. At any position of the epoch, each dataset has its share of batches to within one; or of
    groups, with `group_size`, so that all ranks of a step have batches of one dataset, which cost about the same.
    Indices count through the datasets in order, like those of `mmapds.concat`.

    Every epoch starts each dataset anew: records that `first` or `epoch_size` left unread are not carried over. To read
    each sample once before it repeats, use `stop="longest"`, or one long epoch.

    Args:
      samplers: each a `TokenBudgetBatchSampler` or a `PackingBatchSampler` of one dataset.
      weights: share of each, on any scale. Or a schedule, with an `epoch_size`: pairs of a number of batches, over all
        ranks, and the weights from there on.
      share: the unit of the weights: "tokens", "samples" or "batches". The first two hold on average: they use the mean
        of a batch of each sampler.
      num_replicas, rank, mesh: as in `DistributedSampler`; those of `samplers` do not matter.
      group_size: batches of an optimizer step, to be of one dataset; by default, batches are drawn one by one.
      drop_last: drop a last step that has fewer batches than ranks, instead of splitting its batches.
      stop: "first" ends an epoch when one dataset has been read whole, "longest" when all have.
      epoch_size: batches in an epoch over all ranks, instead of `stop`.
      start_step: where the first iterator begins, in batches.
      exclude: numbers and ranges of records to skip, counted through the datasets; as in `samplers`.
      part_size: batches of an epoch, which begins where the last one ended.
    The warnings and the errors are those of `TokenBudgetBatchSampler`.
    """

    _contents: Any
    _unit, _limit = "batches", "num_replicas"

    def __init__(
        self,
        samplers: Sequence[PlannedBatchSampler],
        weights: Sequence[float] | Sequence[tuple[int, Sequence[float]]],
        *,
        share: str = "tokens",
        num_replicas: int | None = None,
        rank: int | None = None,
        drop_last: bool = False,
        stop: str = "first",
        epoch_size: int | None = None,
        start_step: int = 0,
        exclude: Exclude | None = None,
        mesh: Any = None,
        part_size: int | None = None,
        group_size: int | None = None,
        sampler: None = None,
    ) -> None:
        one_of("share", share, "tokens", "samples", "batches")
        parts = _checked(samplers)
        for name in _ALIKE:
            setattr(self, name, getattr(parts[0], name, None))
        refuse_injected(sampler)
        self._weights = weights
        self._parts, self._refills = parts, parts[0]._refills
        self._multiple = lcm(*(part._multiple for part in parts))
        together = 1 if group_size is None else integer("group_size", group_size, 1)
        plan = MixedPlan(parts, weights, share, stop, epoch_size, together)
        sampled: Any = [part.sampled for part in parts]
        sampled = joined(sampled) if are_ours(sampled) else range(plan.records)
        super().__init__(
            World.of(num_replicas, rank, mesh),
            Lengths(plan, sampled, None),  # type: ignore[arg-type]
            plan.of_any_group,
            exclude,
            any(part.shuffle for part in parts),
            parts[0].seed,
            drop_last,
            together,
            parts[0].packs_per_batch,
            start_step,
            part_size,
        )

    def limit_of(self, records: Sequence[int]) -> tuple[str, int]:
        """Return the argument that limits the batch of these records, and its most tokens."""
        return self._part_of(records)[0].limit_of(records)

    def lengths_of(self, records: Sequence[int]) -> NDArray[Any]:
        """Return the lengths of the records of a batch, as planned."""
        part, first = self._part_of(records)
        return part.lengths_of([record - first for record in records])

    def _part_of(self, records: Sequence[int]) -> tuple[PlannedBatchSampler, int]:
        """Return the sampler of a batch, and the number of its first record."""
        firsts = self._contents.firsts
        part = bisect_right(firsts, records[0]) - 1
        return self._parts[part], firsts[part]

    def _shared_by_ranks(self) -> dict[str, Any]:
        own = super()._shared_by_ranks()
        return {**own, "exclude": [*(part._exclude.describe() for part in self._parts), own["exclude"]]}

    def _what(self) -> str:
        return f"{counted(len(self._parts), 'sampler')}, weights {shortened(self._weights)}"


def _checked(samplers: Sequence[Any]) -> list[PlannedBatchSampler]:
    """Return the samplers of a mixture as a list; raise OrderError unless they are of one type and fit together."""
    parts = list(samplers)
    for d, part in enumerate(parts):
        if not isinstance(part, PlannedBatchSampler) or isinstance(part, MixtureBatchSampler):
            raise OrderError(
                f"samplers[{d}]: expected a TokenBudgetBatchSampler or a PackingBatchSampler, found "
                f"{type(part).__name__}; mix other datasets with MixtureSampler"
            )
        if type(part) is not type(parts[0]):
            raise OrderError(
                f"samplers[{d}]: expected a {type(parts[0]).__name__}, as samplers[0], found a {type(part).__name__}"
            )
        if isinstance(part._contents, KindsPlan):
            raise OrderError(f"samplers[{d}].kind: expected None in a mixture, whose datasets are its kinds")
        for name in ("group_size", "part_size"):
            if (given := getattr(part, f"_{name}")) is not None:
                raise OrderError(
                    f"samplers[{d}].{name} = {given}, expected None: a mixture has no groups, and own parts"
                )
        for name in (*_ALIKE, "packs_per_batch"):
            if (found := getattr(part, name, None)) != (expected := getattr(parts[0], name, None)):
                raise OrderError(f"samplers[{d}].{name} = {found}, expected {expected}, as in samplers[0]")
    if not parts:
        raise OrderError("samplers: expected one sampler or more, found 0")
    return parts


class MixedPlan:
    """The batches of several plans: each position of an epoch has a batch of one plan.

    A plan that has been read whole starts its next epoch. The last of its epochs in an epoch of the mixture may end
    early; its remaining batches are not read.

    Args:
      group_size: neighbouring batches that are of one plan; each plan makes whole groups.
    """

    fills = False

    def __init__(
        self,
        parts: list[PlannedBatchSampler],
        weights: Any,
        share: str = "tokens",
        stop: str = "first",
        epoch_size: int | None = None,
        group_size: int = 1,
    ) -> None:
        self._parts, self.group_size = parts, group_size
        self._plans = [part._new_plan(group_size, group_size > 1) for part in parts]
        for d, plan in enumerate(self._plans):
            if len(plan) % group_size:
                raise OrderError(
                    f"group_size = {group_size}, expected {len(plan)} or less, the batches of samplers[{d}]"
                )
        sizes = [len(plan) // group_size for plan in self._plans]  # here and below, in groups
        groups = None if epoch_size is None else -(-epoch_size // group_size)

        def of_groups(given: Sequence[float]) -> Mixture:
            shares = Mixture(sizes, given, epoch_size=1).weights
            of_batches = [weight / _mean(plan, share) for weight, plan in zip(shares, self._plans, strict=True)]
            return Mixture(sizes, of_batches, stop=stop, epoch_size=groups, shuffle=False)

        if is_schedule(weights):
            if groups is None:
                raise OrderError("epoch_size = None, expected a number of batches with a schedule of weights")
            entries = [(-(-begin // group_size), of_groups(each)) for begin, each in checked_schedule(weights)]
        else:
            entries = [(0, of_groups(weights))]
        self._groups = len(entries[0][1])
        begun = [(begin, order) for begin, order in entries if begin < self._groups]
        self._course = Course([Segment(begin, order.weights, sizes) for begin, order in begun])
        self._sizes = np.array(sizes)
        self._read = self._course.counts(self._groups)
        self.passes: Any = self._read / self._sizes
        """How often an epoch reads each dataset; a part of a pass is a fraction."""
        self._epochs = np.maximum(-(-self._read // self._sizes), 1)
        *self.firsts, self.records = accumulate((plan.records for plan in self._plans), initial=0)

    def __len__(self) -> int:
        return self._groups * self.group_size

    @property
    def selections(self) -> list[Any]:
        """The planned records of each dataset in order of length."""
        return [plan.selection for plan in self._plans]

    def of_any_group(self, **_: Any) -> MixedPlan:
        """Return this plan, whose groups are its own."""
        return self

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch, fastest in ascending order."""
        readers: dict[int, tuple[int, Reader]] = {}

        def read_of(member: int, part_epoch: int, batches: Int64s) -> Iterable[Int64s]:
            if readers.get(member, (None,))[0] != part_epoch:
                readers[member] = part_epoch, self._parts[member].reader(part_epoch, self._plans[member])
            return (batch + self.firsts[member] for batch in cut(*readers[member][1](batches)))

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            groups, within = np.divmod(positions, self.group_size)
            found: list[Any] = [None] * len(positions)
            for places, member, size, draws in self._course.drawn(groups):
                begun, batches = np.divmod(draws, size)
                batches = batches * self.group_size + within[places]
                for each in np.unique(begun).tolist():
                    own, part_epoch = begun == each, epoch * int(self._epochs[member]) + each
                    read_batches = read_of(member, part_epoch, batches[own])
                    for place, batch in zip(places[own].tolist(), read_batches, strict=True):
                        found[place] = batch
            return np.concatenate(found), np.cumsum([len(batch) for batch in found])

        return read

    def measured(self, records: Int64s, begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Measure batches; see `Plan.measured`."""
        members = np.searchsorted(self.firsts, records[begins], side="right") - 1
        found = np.empty((3, len(sizes)))
        for member in np.unique(members).tolist():
            is_own = members == member
            own = records[np.repeat(is_own, sizes)] - self.firsts[member]
            firsts = np.cumsum(sizes[is_own]) - sizes[is_own]
            found[:, is_own] = self._plans[member].measured(own, firsts, sizes[is_own])
        return found[0], found[1], found[2]

    def totals(self) -> Totals:
        """Return what an epoch reads, and what a pass over each dataset leaves out."""
        found = [plan.totals() for plan in self._plans]
        passes, rooms = self.passes, self._read * [float(plan.limits[0]) for plan in self._plans]
        return Totals(
            samples=round(passes @ [each.samples for each in found]),
            too_short=sum(each.too_short for each in found),
            too_long=sum(each.too_long for each in found),
            too_long_tokens=sum(each.too_long_tokens for each in found),
            over=sum(each.over for each in found),
            cut_tokens=sum(each.cut_tokens for each in found),
            tokens=round(passes @ [float(each.tokens) for each in found]),
            fill=float(rooms @ [each.fill for each in found] / rooms.sum()),
        )

    def describe(self) -> dict[str, Any]:
        """Return the identity of this plan for states."""
        described: dict[str, Any] = {"order": "mixture of batches", "version": VERSION}
        described["group_size"] = self.group_size
        for d, (part, plan) in enumerate(zip(self._parts, self._plans, strict=True)):
            known = {key: value for key, value in part._identity.items() if key != "sources"}
            described |= {f"samplers[{d}].{key}": value for key, value in {**plan.describe(), **known}.items()}
        weights = [[begin, each] for begin, each, _ in self._course.segments]
        return {**described, "weights": weights}  # which follow from all the rest: compared last


def _mean(plan: Any, share: str) -> float:
    """Return the mean number of tokens or samples in the batches of a plan; 1 for shares of batches."""
    counts, lengths = (each.astype(float) for each in (plan.selection.counts, plan.selection.values))
    if plan.cuts:
        lengths = np.minimum(lengths, plan.limits[0])
    totals = {"tokens": lengths @ counts, "samples": counts.sum(), "batches": len(plan)}
    return float(totals[share]) / len(plan)
