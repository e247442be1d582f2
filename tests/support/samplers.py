"""A sampler of each kind, and what they give."""

import pytest

from mmapds import ChunkedSampler, DistributedBatchSampler, DistributedSampler, MixtureSampler


def union(samplers):
    """What all ranks get, in the order of the steps."""
    return [record for step in zip(*samplers, strict=True) for record in step]


def flat(batches):
    """The records of batches."""
    return [record for batch in batches for record in batch]


def make_samplers(**options):
    """A sampler of each kind, over 100 samples."""
    mixture = {key: value for key, value in options.items() if key != "n"}
    return [
        DistributedSampler(range(100), **options),
        ChunkedSampler(range(100), 7, **options),
        MixtureSampler([60, 40], [3, 2], **mixture),
        DistributedBatchSampler(range(100), 6, **options),
    ]


every_sampler = pytest.mark.parametrize("kind", range(4), ids=["index", "chunked", "mixture", "batch"])
