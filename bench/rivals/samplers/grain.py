"""Grain: a permutation computed index by index."""

import grain

TITLE = "Grain MapDataset.shuffle"
PACKAGE = "grain"


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank."""
    order = grain.MapDataset.range(n).shuffle(seed=epoch)[rank::replicas]
    return (order[position] for position in range(len(order)))
