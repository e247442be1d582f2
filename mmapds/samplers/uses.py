"""When an order reads each object of a dataset, so that a loop can fetch objects ahead."""

from math import gcd
from typing import Any

import numpy as np

from ..orders.basic import Chunked, Int64s, Order, Resampled, Sequential, Shuffled
from ..remote.ahead import Ahead, Uses
from .cursor import Span


def ahead_of(dataset: Any, sampler: Any, span: Span) -> Ahead | None:
    """Return what fetches the objects of a dataset ahead of a sampler; None for an order that is not understood.

    Args:
      dataset: an IndexedDataset of objects.
      sampler: a sampler of mmapds.
      span: the steps of the loop.
    Raises:
      OrderError: the limit of the cache is too small for the order.
    """
    order = getattr(sampler, "_order", None) or getattr(sampler._contents, "order", None)
    if not isinstance(order, Chunked | Sequential | Shuffled | Resampled | None):
        return None
    now, later = (_chunks(dataset, order, span._replace(epoch=epoch)) for epoch in (span.epoch, span.epoch + 1))
    found = [_members(dataset, now), _members(dataset, np.add(later, [0, 0, now[-1, 2] + 1]))]
    by_begin = now[np.argsort(now[:, 0])]

    def mix_of(position: int) -> int:
        row = by_begin[max(int(np.searchsorted(by_begin[:, 0], position, side="right")) - 1, 0)]
        return int(row[2]) if row[0] <= position < row[1] else -1

    items = [index.item(number) for index, number in dataset._catalog.members]
    members, mixes = np.concatenate(found, axis=1)
    return Ahead(dataset._objects(), Uses(members, mixes, items), mix_of)


def _chunks(dataset: Any, order: Order | None, span: Span) -> Int64s:
    """Return rows (begin, end, mix), shape (chunks, 3), in reading order: mixes count what is read at the same time."""
    if isinstance(order, Chunked):
        block, ranks = order.lanes * order.lane_ranks, span.sharding.num_replicas
        own = span.start + span.sharding.rank + ranks * np.arange(block // gcd(block, ranks))
        lanes = [order.spans(span.epoch, lane)[:, :3] for lane in np.unique(order.lanes_at(own)).tolist()]
        for rows in lanes:  # which advance together
            rows[:, 2] = np.unique(rows[:, 2], return_inverse=True)[1]
        found = np.concatenate(lanes)
        return found[np.argsort(found[:, 2], kind="stable")]
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
