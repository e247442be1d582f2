"""mmapds: a keyed permutation, computed as it is asked for."""

import mmapds

TITLE = "mmapds DistributedSampler"
PACKAGE = "mmapds"


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank."""
    sampler = mmapds.DistributedSampler(range(n), replicas, rank)
    sampler.set_epoch(epoch)
    return iter(sampler)
