"""MosaicML Streaming: what a StreamingDataset computes when an epoch begins, by its default algorithm py1e."""

import numpy as np

from ..mds import streaming

TITLE = "MosaicML Streaming py1e"
PACKAGE = "mosaicml-streaming"
SHARD = 1 << 16  # samples


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank, one of as many ranks on one node, with one worker each."""
    sizes = np.full(-(-n // SHARD), SHARD, np.int64)
    sizes[-1] = n - SHARD * (len(sizes) - 1)
    positions = streaming.base.partition.get_partitions("relaxed", n, 1, 1, replicas, 1, 1, 0)
    order = streaming.base.shuffle.get_shuffle("py1e", sizes, 1, 0, epoch, 1 << 18)
    mine = positions[0, rank, 0].ravel()
    return (int(order[position]) for position in mine if position >= 0)
