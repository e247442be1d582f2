"""When an order reads each object of a dataset, so that a loop can fetch objects ahead."""

from typing import Any

import numpy as np

from ..orders.basic import Chunked, Int64s, Order, Sequential
from ..remote.ahead import Ahead, Uses


def ahead_of(dataset: Any, sampler: Any, epoch: int) -> Ahead:
    """Return what fetches the objects of a dataset ahead of a sampler.

    Args:
      dataset: an IndexedDataset of objects.
      sampler: a sampler of mmapds.
    Raises:
      OrderError: the limit of the cache is too small for the order.
    """
    order = getattr(sampler, "_order", None) or getattr(sampler._contents, "order", None)
    now, later = (_spans(dataset, order, each, sampler._sharding.rank) for each in (epoch, epoch + 1))
    mixes, later_mixes = (np.unique(spans[:, 2], return_inverse=True)[1] for spans in (now, later))
    found = [_members(dataset, *each) for each in ((now, mixes), (later, later_mixes + mixes[-1] + 1))]
    members, times = (np.concatenate(each) for each in zip(*found, strict=True))
    by_begin = np.argsort(now[:, 0])
    begins, ends, mix = now[by_begin, 0], now[by_begin, 1], mixes[by_begin]

    def mix_of(position: int) -> int:
        row = int(np.searchsorted(begins, position, side="right")) - 1
        return int(mix[row]) if row >= 0 and position < ends[row] else -1

    items = [index.item(number) for index, number in dataset._catalog.members]
    return Ahead(dataset._objects(), Uses(members, times, items), mix_of)


def _spans(dataset: Any, order: Order | None, epoch: int, rank: int) -> Int64s:
    """Return rows (begin, end, first position, ...): records that are read at about the same time, in reading order."""
    if isinstance(order, Chunked):
        return order.spans(epoch, int(order.lanes_at(np.array([rank]))[0]))
    if isinstance(order, Sequential):
        starts = dataset.source_starts
        starts = starts[:-1][np.diff(starts) > 0], starts[1:][np.diff(starts) > 0]
        return np.stack([*starts, starts[0]], axis=1)
    return np.array([[0, len(dataset), 0]])


def _members(dataset: Any, spans: Int64s, mixes: Int64s) -> tuple[Int64s, Int64s]:
    """Return the sources of spans, and the mix of each."""
    one, other = dataset._sources_at(spans[:, 0]), dataset._sources_at(spans[:, 1] - 1)
    first, counts = np.minimum(one, other), np.abs(one - other) + 1
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(first, counts) + within, np.repeat(mixes, counts)
