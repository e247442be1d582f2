"""The window planner: batches of records that are near one another in an order."""

from bisect import bisect_left
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _native
from ..errors import OrderError
from ..orders.basic import Int64s, Order, records_at
from ..orders.permutation import Permutation, word
from .bucket import Budget, BudgetPlan, Cut, batches_in
from .plan import Reader, Selection, Uint64s, pieces

_MIXED = 1 << 32  # stream of the first permutation of ready batches; later ones have the streams after it
_HALVINGS = 24  # of the part of the budget that makes a whole last step
_TABLE = 1 << 20  # lengths below this are looked up in a table
_CHUNK = 65_536  # positions of an order that are read at a time


class WindowPlan(BudgetPlan):
    """Follows an order of records: for chunked orders, and for fully random batches.

    Lengths are cut into buckets. Each record of the order joins the open batch of its bucket, and a batch is ready when
    it is full. Buckets are so wide that a record waits `sort_window` positions for its batch, on average. The batches
    are like those of sorting windows and cutting them, but there are no edges, and every epoch has the same number of
    batches whatever its order, since a bucket always has the same number of records.

    A last step that has fewer samples than ranks needs more batches. A part of the budget makes about as many, and the
    first large batches that are ready are split for those that are still missing.

    A reader goes through the order from its beginning to the batch that is asked for, at about 10^7 records a second.

    Args:
      order: a bijection of the records.
    """

    kind = "token budget, windows"

    def __init__(self, selection: Selection, budget: Budget, *, order: Order, sort_window: int, **shape: Any) -> None:
        super().__init__(selection, budget, **shape)
        self.order = order
        self._sort_window = sort_window
        # A bucket of this many batches fills one in 2 * sort_window positions, so a record waits half of that. A bucket
        # of one batch would have the same records in it every epoch.
        wanted = min(max(selection.records // (2 * sort_window), 2), 2**32)
        self._cut = Cut(wanted, wanted, 0)
        buckets, self.more = self._with_a_last_step()
        self._batches = batches_in(buckets) + self.more
        self.most = _most_unsplit(buckets, self.more)
        self.multiple = budget.batch_size_multiple
        self.buckets = _for_a_stream(buckets, budget.batch_size_multiple)
        self.tables = _tables(selection, self.buckets)

    def _with_a_last_step(self) -> tuple[Uint64s, int]:
        """Return buckets, and how many more batches than theirs give each rank a sample in the last step.

        If each batch holds one sample and the last step still lacks some, that is all there is.
        """
        buckets, budget = self._cut_buckets(self._cut), self.limits
        if self._has_whole_steps(buckets):
            return buckets, 0
        wanted = min(-(-batches_in(buckets) // self.ranks) * self.ranks, self.selection.records)
        largest = int(buckets[:, 3].max())
        # The number of batches rises as the budget falls, but by more than one at times, past what is wanted.
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

    def _has_whole_steps(self, buckets: Uint64s) -> bool:
        """Whether the last step has a sample for each rank, whichever batches are in it."""
        rest = batches_in(buckets) % self.ranks
        smallest = np.sort(np.repeat(buckets[:, 3], np.minimum(buckets[:, 2], rest).astype(np.int64)))[:rest]
        return not rest or int(smallest.sum()) >= self.ranks

    def __len__(self) -> int:
        return self._batches

    def _shape(self) -> dict[str, Any]:
        return {"sort_window": self._sort_window, "of": self.order.describe()}

    def reader(self, epoch: int) -> Reader:
        """Return what reads the batches of an epoch in ascending order; to go back it begins again."""
        return _WindowReader(self, epoch).read


def _most_unsplit(buckets: Uint64s, more: int) -> int:
    """Return how many records a batch may hold unsplit: the most that leaves so many more batches than there were."""
    batches, sizes = buckets[:, 2].astype(np.int64), buckets[:, 3].astype(np.int64)

    def is_too_large(most: int) -> bool:
        return int((batches * ((sizes - 1) // most)).sum()) < more

    return 1 + bisect_left(range(2, int(sizes.max()) + 1), True, key=is_too_large)


def _for_a_stream(buckets: Uint64s, multiple: int) -> Uint64s:
    """Return buckets in which the records of one length lie in two at most.

    The last records do not fill a batch. They become a last, smaller batch of the bucket before. If they are more than
    a multiple, the reader cuts that batch into one of a multiple and one of the rest.
    """
    buckets = buckets.copy()
    if (
        len(buckets) > 1
        and (buckets[-2:, 2] == 1).all()
        and buckets[-1, 3] < multiple
        and not buckets[-2, 3] % multiple
    ):
        buckets[-2, 3] += buckets[-1, 3]
        buckets = buckets[:-1]
    if len(buckets) > 1 and buckets[-1, 2] == 1 and buckets[-1, 3] <= buckets[-2, 3]:
        buckets[-2, 2] += 1
        buckets = buckets[:-1]
    return buckets


def _tables(selection: Selection, buckets: Uint64s) -> dict[str, NDArray[Any]]:
    """Return how to find the bucket of a record by its length: see mds_stream in csrc/sampling.h."""
    values, starts = np.ascontiguousarray(selection.values), selection.starts
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


class _WindowReader:
    """Reads the order until some batches are ready, and yields these in keyed order.

    In the order in which they become ready, lengths would rise and fall: all buckets begin empty, and those of small
    batches fill up first.
    """

    def __init__(self, plan: WindowPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        self._together = 4 * len(plan.buckets)  # batches that are mixed: about four of each bucket
        self._begin()

    def _begin(self) -> None:
        plan = self._plan
        self._block = -1  # the number of the block of batches that is read
        self._batches: list[Int64s] = []
        self._position = 0  # in the order
        self._records = np.empty(0, np.int64)  # of the order, not yet in a batch
        self._lengths = np.empty(0, np.uint64)  # of these
        self._rest: list[Int64s] = []  # batches that are ready, of the next block
        self._more = plan.more  # batches that are still to be made by splitting others
        self._native = _native.Stream(
            buckets=plan.buckets,
            ranks=plan.selection.records,
            records=plan.records,
            **plan.tables,
        )

    def read(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        blocks, places = np.divmod(positions, self._together)
        if len(blocks) and blocks[0] < self._block:
            self._begin()
        found: list[Int64s] = []
        for block in np.unique(blocks).tolist():
            while self._block < block:
                self._block += 1
                size = min(self._together, len(self._plan) - self._block * self._together)
                self._batches = self._stream(size)
            here = places[blocks == block]
            if self._plan.shuffle:
                here = Permutation(len(self._batches), self._plan.seed, self._epoch, stream=_MIXED + block)[here]
            found += [self._batches[place] for place in here.tolist()]
        return np.concatenate(found), np.cumsum([len(batch) for batch in found])

    def _stream(self, count: int) -> list[Int64s]:
        """Read on in the order until `count` batches are ready."""
        plan, order = self._plan, self._plan.order
        largest = int(plan.buckets[:, 3].max())
        batches = self._rest
        while len(batches) < count:
            if not len(self._records):
                stop = min(self._position + _CHUNK, len(order))
                if stop == self._position:
                    raise OrderError(f"order: expected each of {plan.records} records once, found only some of them")
                positions = np.arange(self._position, stop, dtype=np.int64)
                self._records = np.ascontiguousarray(records_at(order, self._epoch, positions))
                try:
                    self._lengths = plan.selection.by_length.lengths.at(self._records)
                except IndexError:
                    raise self._not_a_bijection() from None
                self._position = stop
            out = np.empty(len(self._records) + largest, np.int64)
            ends = np.empty(count - len(batches), np.int64)
            try:
                consumed, ready = self._native.push(self._records, self._lengths, out, ends)
            except ValueError:
                raise self._not_a_bijection() from None
            self._records, self._lengths = self._records[consumed:], self._lengths[consumed:]
            found = [out[begin:end] for begin, end in pairwise([0, *ends[:ready].tolist()])]
            batches += self._split(found if plan.multiple == 1 else _cut_to_multiples(found, plan.multiple))
        self._rest = batches[count:]
        return batches[:count]

    def _split(self, batches: list[Int64s]) -> list[Int64s]:
        """Return batches of which large ones are split, while more are wanted."""
        found: list[Int64s] = []
        for number, batch in enumerate(batches):
            if not self._more:
                return found + batches[number:]
            parts = min(-(-len(batch) // self._plan.most), self._more + 1)
            found += pieces(batch, parts, self._plan.multiple)
            self._more -= parts - 1
        return found

    def _not_a_bijection(self) -> OrderError:
        return OrderError(f"order: expected each of {self._plan.records} records once, found one twice or out of range")


def _cut_to_multiples(batches: list[Int64s], multiple: int) -> list[Int64s]:
    """Return batches that are multiples or smaller than one: the last batch of the last bucket may have to be cut."""
    ends = [len(batch) - len(batch) % multiple for batch in batches]
    pieces = [(batch[:end], batch[end:]) for batch, end in zip(batches, ends, strict=True)]
    return [piece for pair in pieces for piece in pair if len(piece)]
