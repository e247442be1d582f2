"""torch's own: a permutation as a Python list, of which each rank takes its part."""

from torch.utils.data.distributed import DistributedSampler

TITLE = "torch DistributedSampler"
PACKAGE = "torch"


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank."""
    sampler = DistributedSampler(range(n), replicas, rank)
    sampler.set_epoch(epoch)
    return iter(sampler)
