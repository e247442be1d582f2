"""Plans of batches under a token budget: buckets of similar lengths, and windows along an order."""

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import OrderError
from ..orders.basic import Int64s, Order, integer, records_at
from ..orders.permutation import Permutation, word
from .plan import Groups, Plan, Reader, Selection, Uint64s, classes, pieces, rounded_up

_REGION = 4  # batches that shrink to make one more
_MIXED = 1 << 32  # stream of the first permutation of ready batches; later ones have the streams after it
_HALVINGS = 24  # bisection steps for the budget that fills the last step
_TABLE = 1 << 20  # lengths below this are looked up in a table
_CHUNK = 65_536  # positions of an order read at a time
_MOST = 2**31  # samples in a batch without a limit


class Budget(NamedTuple):
    """The limits of a batch. Its longest record decides its size: see mds_batch_size in csrc/plan.c."""

    max_tokens: int
    """Largest cost of the longest record times the number of records, in the unit of the lengths."""
    max_batch_size: int
    batch_size_multiple: int
    """Batches of at least this many records have a multiple of it."""
    quadratic_length: int
    """A record of length L costs L + L^2 / quadratic_length; with 0, it costs L."""
    round_to: int = 1
    """Lengths L are rounded up to a multiple of this."""

    @classmethod
    def of(
        cls, max_tokens: int, max_batch_size: int | None, multiple: int, quadratic_length: int | None, round_to: int
    ) -> "Budget":
        """Return the limits that a user gave; raise OrderError for one that is out of range."""
        return cls(
            max_tokens,
            _MOST if max_batch_size is None else min(integer("max_batch_size", max_batch_size, 1), _MOST),
            integer("batch_size_multiple", multiple, 1),
            0 if quadratic_length is None else integer("quadratic_length", quadratic_length, 1),
            integer("round_to", round_to, 1),
        )

    def cost(self, length: int) -> int:
        """Return what one record costs; the same rule as in mds_batch_size, and a test compares them."""
        width = -(-length // self.round_to) * self.round_to
        return width + (-(-width * width // self.quadratic_length) if self.quadratic_length else 0)


Cut = tuple[int, int, int]
"""Least and most batches of a bucket, and how many thousandths shorter its lengths may become: see mds_cut in csrc."""


def batches_in(buckets: Uint64s) -> int:
    """Return the number of batches in `buckets`."""
    return int(buckets[-1, 1] + buckets[-1, 2])


class BudgetPlan(Plan):
    """The base of both planners of token budgets."""

    limits: Budget

    def _cut_buckets(self, cut: Cut, *, between: bool = False, budget: Budget | None = None) -> Uint64s:
        """Return buckets as rows of (first rank, first batch, batches, size); `between` shifts them by half."""
        values, counts = classes(rounded_up(self.selection.values, self.limits.round_to), self.selection.counts)
        # The core expects rounded lengths.
        found = _native.plan_buckets((budget or self.limits)[:4], values, counts, cut, between)
        return np.frombuffer(found, np.uint64).reshape(-1, 4)

    def measured(self, records: Int64s, begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s, NDArray[Any]]:
        """Measure batches; see `Plan.measured`. The cost of a batch is its padded size, and what is quadratic in it."""
        lengths = self.selection.by_length.lengths.at(records)
        widths = rounded_up(np.maximum.reduceat(lengths, begins).astype(np.uint64), self.limits.round_to)
        spaces = widths.astype(np.int64) * sizes
        attention = widths.astype(np.float64) * spaces / (self.limits.quadratic_length or np.inf)
        return np.add.reduceat(lengths.astype(np.int64), begins), spaces, spaces + attention


# ---- by length alone: buckets ---------------------------------------------------------------------------------------


# A bucket of one batch would hold the same records in every epoch, which is worse than some padding. Eight batches are
# enough; in buckets of more than two, lengths differ by up to 0.8 %: see bench/results/bench_planners.md.
_CUT = (2, 8, 8)


class BucketPlan(BudgetPlan):
    """Cuts records in order of length into buckets of whole batches, once.

    Every epoch permutes the records inside each bucket, and the groups of neighbouring batches. Odd epochs shift the
    buckets by half, so that records meet others even in buckets of few batches. All epochs have the same number of
    batches, whole groups of them: if a set of buckets has fewer, batches of short records shrink to make more. Only the
    buckets are stored.
    """

    kind = "token budget, buckets"

    def __init__(self, selection: Selection, budget: Budget, **shape: Any) -> None:
        super().__init__(selection, budget, **shape)
        cut = [self._cut_buckets(_CUT, between=between) for between in ((False, True) if self.shuffle else (False,))]
        wanted = self.filled(max(map(batches_in, cut)))
        self._tables = [_with_more_batches(each, wanted, budget.batch_size_multiple) for each in cut]
        self._groups = Groups(len(self), self.group_size, self.seed, self.shuffle)

    def __len__(self) -> int:
        return batches_in(self._tables[0])

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch; positions may come in any order."""
        buckets = self._tables[epoch % len(self._tables)]
        first_batches, sizes = buckets[:, 1].astype(np.int64), buckets[:, 3].astype(np.int64)
        native = _native.Plan(
            buckets=buckets,
            first_rank=self.selection.first,
            seed=word(self.seed),
            epoch=word(epoch),
            shuffle=self.shuffle,
        )

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            batches = self._groups.batches_at(epoch, positions)
            of_batches = sizes[np.searchsorted(first_batches, batches, side="right") - 1]
            out, ends = np.empty(int(of_batches.sum()), np.int64), np.empty_like(batches)
            native.batches(batches, out, ends)
            return self.selection.by_length.at(out), ends

        return read


def _with_more_batches(buckets: Uint64s, wanted: int, multiple: int) -> Uint64s:
    """Return buckets of the same records with `wanted` batches, at most one for each record.

    Batches of the shortest records shrink: up to `_REGION` of them for each new batch, so that they still cost about
    the same.
    """
    more = wanted - batches_in(buckets)
    if not more:
        return buckets
    before = np.maximum(batches_in(buckets) - _REGION * more, 0)
    first = int(np.searchsorted(buckets[:, 1].astype(np.int64), before, side="right")) - 1
    batches, sizes = buckets[first:, 2].astype(np.int64), buckets[first:, 3].astype(np.int64)
    room = batches * (sizes - 1)
    share = np.minimum(np.diff(np.cumsum(batches) * more // batches.sum(), prepend=0), room)
    spare = np.cumsum((room - share)[::-1])[::-1]  # the shortest records give the missing batches
    missing = int(more - share.sum())
    share += np.minimum(room - share, np.maximum(missing - (spare - (room - share)), 0))
    rows = [(int(m), int(size)) for m, size in buckets[:first, 2:]]
    for m, size, extra in zip(batches.tolist(), sizes.tolist(), share.tolist(), strict=True):
        parts, records = m + extra, m * size
        unit = multiple if size % multiple == 0 and records // multiple >= parts else 1
        each, larger = divmod(records // unit, parts)
        rows += [(larger, (each + 1) * unit)] * (larger > 0) + [(parts - larger, each * unit)]
    made = np.array(rows, np.uint64).reshape(-1, 2)
    records_of, batches_of = made[:, 0] * made[:, 1], made[:, 0]
    return np.stack([np.cumsum(records_of) - records_of, np.cumsum(batches_of) - batches_of, *made.T], axis=1)


# ---- along an order: windows ----------------------------------------------------------------------------------------


class WindowPlan(BudgetPlan):
    """Follows an order of records: for chunked orders, and for fully random batches.

    The plan cuts lengths into buckets. Each record of the order joins the open batch of its bucket; a full batch is
    ready. Buckets are so wide that a record waits `sort_window` positions for its batch, on average. The batches are
    like those of sorted windows, but without window edges. A bucket always has the same number of records, so every
    epoch has the same number of batches in any order.

    More batches fill the last group. A smaller budget makes most of them; the first large batches that are ready are
    split for the rest.

    A reader reads the order from its beginning to the requested batch, at about 10^7 records a second.

    Args:
      order: a bijection of the records.
    """

    kind = "token budget, windows"

    def __init__(self, selection: Selection, budget: Budget, *, order: Order, sort_window: int, **shape: Any) -> None:
        super().__init__(selection, budget, **shape)
        self.order, self._sort_window = order, sort_window
        # A bucket of this many batches fills one every 2 * sort_window positions, so a record waits half of that. A
        # bucket of one batch would hold the same records in every epoch.
        wanted = min(max(selection.records // (2 * sort_window), 2), 2**32)
        self._cut = (wanted, wanted, 0)
        buckets, self._more = self._with_whole_groups()
        self._batches = batches_in(buckets) + self._more
        self._most = _most_unsplit(buckets, self._more)
        self.buckets = _for_a_stream(buckets, budget.batch_size_multiple)
        self.tables = _tables(selection, self.buckets)

    def _with_whole_groups(self) -> tuple[Uint64s, int]:
        """Return buckets, and how many batches to add."""
        buckets, budget = self._cut_buckets(self._cut), self.limits
        wanted = self.filled(batches_in(buckets))
        if batches_in(buckets) == wanted:
            return buckets, 0
        largest = int(buckets[:, 3].max())
        # The number of batches rises as the budget falls, but sometimes by more than one, so it may miss `wanted`.
        low, high = 0.0, 1.0
        for _ in range(_HALVINGS):
            part = (low + high) / 2
            smaller = (max(int(budget.max_tokens * part), 1), max(int(largest * part), 1))
            found = self._cut_buckets(self._cut, budget=Budget(*smaller, *budget[2:]))
            if batches_in(found) > wanted:
                low = part
            else:
                high, buckets = part, found
            if batches_in(buckets) == wanted:
                break
        return buckets, wanted - batches_in(buckets)

    def __len__(self) -> int:
        return self._batches

    def _shape(self) -> dict[str, Any]:
        return {"sort_window": self._sort_window, "of": self.order.describe()}

    def reader(self, epoch: int) -> Reader:
        """Return a reader of the batches of an epoch in ascending order; an earlier position restarts it."""
        batches, position = self._mixed(epoch), 0

        def read(positions: Int64s) -> tuple[Int64s, Int64s]:
            nonlocal batches, position
            found: list[Int64s] = []
            for wanted in positions.tolist():
                if wanted < position:
                    batches, position = self._mixed(epoch), 0
                found.append(next(islice(batches, wanted - position, None)))
                position = wanted + 1
            return np.concatenate(found), np.cumsum([len(batch) for batch in found])

        return read

    def _mixed(self, epoch: int) -> Iterator[Int64s]:
        """Yield the batches of an epoch, shuffled in blocks of about four batches of each bucket.

        Unshuffled, lengths would rise and fall: all buckets begin empty, and those of small batches fill first.
        """
        ready, together = self._ready(epoch), 4 * len(self.buckets)
        for block, first in enumerate(range(0, len(self), together)):
            size = min(together, len(self) - first)
            batches = list(islice(ready, size))
            if len(batches) < size:
                raise OrderError(f"order: expected each of {self.records} records once, found only some of them")
            if self.shuffle:
                mixed = Permutation(size, self.seed, epoch, stream=_MIXED + block).range(range(size))
                batches = [batches[place] for place in mixed.tolist()]
            yield from batches

    def _ready(self, epoch: int) -> Iterator[Int64s]:
        """Yield the batches of an epoch as they become ready; split large ones until there are enough batches."""
        more, multiple = self._more, self.limits.batch_size_multiple
        for batches in self._filled(epoch):
            if multiple > 1:
                # The last batch of the last bucket may have to be cut into a multiple and a rest.
                ends = [len(batch) // multiple * multiple for batch in batches]
                pairs = [(batch[:end], batch[end:]) for batch, end in zip(batches, ends, strict=True)]
                batches = [piece for pair in pairs for piece in pair if len(piece)]
            if not more:
                yield from batches
                continue
            for batch in batches:
                parts = min(-(-len(batch) // self._most), more + 1)
                more -= parts - 1
                yield from pieces(batch, parts, multiple)

    def _filled(self, epoch: int) -> Iterator[list[Int64s]]:
        """Read the order in chunks, and yield lists of full batches."""
        native = _native.Stream(buckets=self.buckets, ranks=self.selection.records, records=self.records, **self.tables)
        largest = int(self.buckets[:, 3].max())
        for first in range(0, len(self.order), _CHUNK):
            positions = np.arange(first, min(first + _CHUNK, len(self.order)), dtype=np.int64)
            records = np.ascontiguousarray(records_at(self.order, epoch, positions))
            try:
                lengths = self.selection.by_length.lengths.at(records)
                while len(records):
                    out, ends = np.empty(len(records) + largest, np.int64), np.empty(len(records), np.int64)
                    consumed, count = native.push(records, lengths, out, ends)
                    records, lengths = records[consumed:], lengths[consumed:]
                    yield [out[begin:end] for begin, end in pairwise([0, *ends[:count].tolist()])]
            except (IndexError, ValueError):
                raise OrderError(
                    f"order: expected each of {self.records} records once, found one twice or out of range"
                ) from None


def _most_unsplit(buckets: Uint64s, more: int) -> int:
    """Return the largest batch size that stays unsplit, such that splits give `more` more batches."""
    batches, sizes = buckets[:, 2].astype(np.int64), buckets[:, 3].astype(np.int64)
    ends = range(2, int(sizes.max()) + 1)
    return 1 + bisect_left(ends, True, key=lambda most: int((batches * ((sizes - 1) // most)).sum()) < more)


def _for_a_stream(buckets: Uint64s, multiple: int) -> Uint64s:
    """Return buckets such that the records of one length lie in at most two of them.

    The last records, which do not fill a batch, become a last, smaller batch of the bucket before. If their number is
    not a multiple, the reader cuts that batch into a multiple and a rest.
    """
    buckets = buckets.copy()
    has_rest = len(buckets) > 1 and buckets[-1, 3] < multiple and not buckets[-2, 3] % multiple
    if has_rest and (buckets[-2:, 2] == 1).all():
        buckets[-2, 3] += buckets[-1, 3]
        buckets = buckets[:-1]
    if len(buckets) > 1 and buckets[-1, 2] == 1 and buckets[-1, 3] <= buckets[-2, 3]:
        buckets[-2, 2] += 1
        buckets = buckets[:-1]
    return buckets


def _tables(selection: Selection, buckets: Uint64s) -> dict[str, NDArray[Any]]:
    """Return the tables that map the length of a record to its bucket: see mds_stream in csrc/sampling.h."""
    values, starts = np.ascontiguousarray(selection.values), np.cumsum(np.append(0, selection.counts)).astype(np.int64)
    firsts = buckets[:, 0].astype(np.int64)
    first_buckets = np.searchsorted(firsts, starts[:-1], side="right") - 1
    splits = np.full(len(values), word(-1), np.uint64)
    runs = np.searchsorted(starts, firsts, side="right") - 1
    within = firsts > starts[runs]
    splits[runs[within]] = selection.by_length.at(selection.first + firsts[within])
    table = np.full(min(int(values[0]) + 1, _TABLE), 2**32 - 1, np.uint32)
    short = values < len(table)
    table[values[short]] = np.flatnonzero(short)
    return {"values": values, "first_buckets": first_buckets.astype(np.uint32), "splits": splits, "table": table}
