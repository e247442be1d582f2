"""Fetch the objects that an order reads next, and say when it needs each one again.

An order is a function of the epoch and the position, so both are known exactly: an object is fetched before its first
record is read, and the cache evicts what is needed last. That is Belady's rule, which no other can beat.
"""

import math
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..dataset.dataset import Dataset
from ..errors import Error, OrderError
from ..orders.basic import Chunked, Int64s, Order, Resampled, Sequential, Shuffled
from ..orders.drawn import Parts, ResampledChunks, Sorted, Weighted
from ..remote.cache import Item
from ..remote.objects import Objects, item_of
from ..remote.uses import Uses
from .cursor import Iteration, Span
from .plan import PartPlan

_SHARDS, _BYTES = 4, 2 << 30  # the most to fetch ahead: whichever is less
_UNDERSTOOD = (Chunked, Sequential, Shuffled, Resampled, ResampledChunks, Sorted, Weighted, type(None))
_TRANSFERS, _FLIGHT = 16, 32 << 20  # objects, and bytes, under way; a larger object has the line for itself


_known: "weakref.WeakKeyDictionary[Any, Uses]" = weakref.WeakKeyDictionary()
"""What each sampler's latest loop needs, until its next loop, or as long as the sampler lives."""


class Reads:
    """When an order reads each object, over this epoch and the next one.

    Args:
      members: the object of each read, in reading order.
      mixes: when its records are read: those of the same number are mixed. Ascending, from 0.
      items: the objects.
      epoch: mixes in this epoch.
    """

    def __init__(self, members: Int64s, mixes: Int64s, items: Sequence[Item], epoch: int) -> None:
        self.members, self.mixes, self.items, self.epoch = members, mixes, items, epoch
        pairs = np.unique(np.stack([mixes, members]), axis=1)
        sizes = np.array([item.size for item in items], np.float64)
        of_mixes = np.bincount(pairs[0], sizes[pairs[1]])
        self.largest = int(of_mixes.max())
        """Bytes of the objects that the order needs at the same time."""
        self.before = np.append(0, np.cumsum(of_mixes))
        """Bytes that are read before each mix."""

    def published(self, objects: Objects) -> Uses:
        """Let all processes of the node know these reads."""
        names = [item.name for item in self.items]
        times = self.before[self.mixes]
        return Uses(objects.cache.directory, [names[each] for each in self.members.tolist()], times, objects.indexes)


class Ahead:
    """Fetches ahead of a loop, in threads.

    Args:
      mix_of: returns when the record at a position of the dataset is read in this epoch, from a mix on; -1 for never.
      uses: tells all processes of the node how far the loop is; None for a cache without a limit.
    """

    def __init__(self, objects: Objects, reads: Reads, mix_of: Callable[[int, int], int], uses: Uses | None) -> None:
        self._objects, self._reads, self._mix_of, self._uses = objects, reads, mix_of, uses
        self._now = self._reached = -1  # the mix whose batches the loop has, and the one that it is about to read
        self._next = 0  # the first use that no thread has fetched
        self._running = self._urgent = self._flight = 0  # threads; those for the present mix; the bytes of all
        self._has_ended = False
        self._lock = threading.Lock()
        mean = sum(item.size for item in reads.items) / len(reads.items)
        self._most = min(_SHARDS * mean, _BYTES, objects.cache.limit - reads.largest)

    def reach(self, position: int) -> None:
        """Note that the loop is about to read a record; fetch what comes next."""
        mix = self._mix_of(position, self._reached)
        if mix > self._reached:
            with self._lock:
                self._next = max(self._next, int(np.searchsorted(self._reads.mixes, mix)))
                if self._reached < 0:
                    self._advance(mix)
                self._reached = mix
                self._start()

    def leave(self, position: int) -> None:
        """Note that the loop has read a record: nothing before it is needed any more."""
        mix = self._mix_of(position, self._now)
        if mix > self._now:
            with self._lock:
                self._advance(mix)
                self._start()

    def _advance(self, mix: int) -> None:
        self._now = mix
        if self._uses is not None:
            self._uses.reach(float(self._reads.before[mix]))

    def end(self) -> None:
        """Fetch no more; transfers under way complete."""
        self._has_ended = True
        if self._uses is not None:
            if self._now + 1 == self._reads.epoch:  # after a whole epoch, the next one is needed
                self._uses.reach(float(self._reads.before[self._reads.epoch]))
            self._uses.end()

    @property
    def bytes(self) -> int:
        """Bytes of the objects that are fetched, or under way, before their time."""
        first = int(np.searchsorted(self._reads.mixes, self._reached, side="right"))
        return sum(self._reads.items[member].size for member in set(self._reads.members[first : self._next].tolist()))

    def _start(self) -> None:
        """Start threads for the present mix and, once all of that is there, for later ones: the first batch is near."""
        reads = self._reads
        while self._next < len(reads.members) and self._running < _TRANSFERS and not self._has_ended:
            if self._running and self._flight + reads.items[reads.members[self._next]].size > _FLIGHT:
                return
            item, is_urgent = reads.items[reads.members[self._next]], bool(reads.mixes[self._next] <= self._now)
            is_ahead = reads.mixes[self._next] > self._reached
            if not is_urgent and (self._urgent or (is_ahead and self.bytes + item.size > self._most)):
                return
            self._next += 1
            self._running += 1
            self._flight += item.size
            self._urgent += is_urgent
            threading.Thread(target=self._fetch, args=(item, is_urgent), name="mmapds-ahead", daemon=True).start()

    def _fetch(self, item: Item, is_urgent: bool) -> None:
        try:
            with suppress(Error, OSError):  # whoever reads the object meets the error
                self._objects.fetch(item, gives_up=lambda: self._has_ended)
        finally:
            with self._lock:
                self._running -= 1
                self._flight -= item.size
                self._urgent -= is_urgent
                self._start()


# ---- when an order reads each object --------------------------------------------------------------------------------


def ahead_of(store: Objects, dataset: Any, sampler: Any, span: Span) -> Ahead | None:
    """Return what fetches the objects of a dataset ahead of a sampler; None for an order that is not understood.

    Args:
      store: the place of the objects.
      dataset: an IndexedDataset of objects.
      sampler: a sampler of mmapds.
      span: the steps of the loop.
    Raises:
      OrderError: the limit of the cache is too small for the order.
    """
    order = getattr(sampler, "_order", None) or getattr(sampler._contents, "order", None)
    if not isinstance(getattr(order, "order", order), _UNDERSTOOD) or isinstance(sampler._contents, PartPlan):
        return None
    now, later = (_chunks(dataset, order, span._replace(epoch=epoch)) for epoch in (span.epoch, span.epoch + 1))
    found = [_members(dataset, now), _members(dataset, np.add(later, [0, 0, now[-1, 2] + 1]))]
    by_begin = now[np.lexsort((now[:, 2], now[:, 0]))]

    def mix_of(position: int, least: int) -> int:
        """A chunk that is drawn twice is read in the next mix from `least` on that has it."""
        last = int(np.searchsorted(by_begin[:, 0], position, side="right"))
        first = int(np.searchsorted(by_begin[:, 0], by_begin[max(last - 1, 0), 0]))
        own = by_begin[first:last]
        rows = own[own[:, 2] >= least]
        return int(rows[0, 2]) if len(rows) and rows[0, 0] <= position < rows[0, 1] else -1

    members, mixes = np.concatenate(found, axis=1)
    reads = Reads(members, mixes, list(map(item_of, dataset._described())), int(now[-1, 2]) + 1)
    limit = store.cache.limit
    if reads.largest > limit:
        raise OrderError(
            f"cache_bytes = {limit:,.0f}, expected {reads.largest:,} or more: the order reads objects of so many bytes "
            "at the same time; give more, or a ChunkedSampler that mixes fewer chunks"
        )
    if before := _known.pop(sampler, None):
        before.remove()
    if limit < math.inf:
        _known[sampler] = reads.published(store)
    return Ahead(store, reads, mix_of, _known.get(sampler))


def _chunks(dataset: Any, order: Order | None, span: Span) -> Int64s:
    """Return rows (begin, end, mix), shape (chunks, 3), in reading order: mixes count what is read at the same time."""
    if isinstance(order, Chunked):
        block, ranks = order.lanes * order.lane_ranks, span.sharding.num_replicas
        own = span.start + span.sharding.rank + ranks * np.arange(block // math.gcd(block, ranks))
        lanes = [order.spans(span.epoch, lane)[:, :3] for lane in np.unique(order.lanes_at(own)).tolist()]
        for rows in lanes:  # which advance together
            rows[:, 2] = np.unique(rows[:, 2], return_inverse=True)[1]
        found = np.concatenate(lanes)
        return found[np.argsort(found[:, 2], kind="stable")]
    if isinstance(order, ResampledChunks | Parts) and hasattr(getattr(order, "order", order), "spans"):
        found = order.spans(span.epoch)[:, :3]
        found[:, 2] = np.unique(found[:, 2], return_inverse=True)[1]
        return found
    if isinstance(order, Sequential):
        starts = np.unique(dataset.source_starts)
        return np.stack([starts[:-1], starts[1:], np.arange(len(starts) - 1)], axis=1)
    return np.array([[0, len(dataset), 0]])


def _members(dataset: Any, chunks: Int64s) -> Int64s:
    """Return the source and the mix of each chunk, or of each source in it; shape (2, uses)."""
    one, other = dataset._sources_at(chunks[:, 0]), dataset._sources_at(chunks[:, 1] - 1)
    first, counts = np.minimum(one, other), np.abs(one - other) + 1
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.stack([np.repeat(first, counts) + within, np.repeat(chunks[:, 2], counts)])


# ---- a loop ---------------------------------------------------------------------------------------------------------


def fetching_of(dataset: Dataset, sampler: Any) -> "Fetching | None":
    """Return what fetches ahead of a loop over a dataset; None without objects, or without a cache for them."""
    indexed = dataset._indexed
    store = indexed._place
    return Fetching(store, indexed, sampler) if isinstance(store, Objects) and store.has_cache else None


class Fetching:
    """Fetches the objects of a dataset ahead of the batches of one loop."""

    def __init__(self, store: Objects, dataset: Any, sampler: Any) -> None:
        self._store, self._dataset, self._sampler = store, dataset, sampler
        self.ahead: Ahead | None = None
        self._has_begun = False

    def drawn(self, iteration: Iteration | None, indices: Any) -> None:
        """Note that a batch will be made; fetch what comes next."""
        if not self._has_begun and iteration is not None and iteration.span is not None:
            self._has_begun = True
            self.ahead = ahead_of(self._store, self._dataset, self._sampler, iteration.span)
            if self.ahead is not None:
                weakref.finalize(self, self.ahead.end)
        if self.ahead is not None and (position := _first(indices)) is not None:
            self.ahead.reach(position)

    def delivered(self, indices: Any) -> None:
        """Note that a batch was made; the cache need not hold what came before it."""
        if self.ahead is not None and (position := _first(indices)) is not None:
            self.ahead.leave(position)


def _first(indices: Any) -> int | None:
    """Return the first position of a batch; None for an empty batch."""
    while isinstance(indices, list | tuple):
        if not indices:
            return None
        indices = indices[0]
    return int(indices)
