"""A list that Python shuffles, of which each rank takes its part."""

import random

TITLE = "random.shuffle of a list"
PACKAGE = None


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank."""
    order = list(range(n))
    random.Random(epoch).shuffle(order)
    return iter(order[rank::replicas])
