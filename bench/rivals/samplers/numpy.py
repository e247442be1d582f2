"""A permutation by NumPy, of which each rank takes its part."""

import numpy as np

TITLE = "NumPy permutation"
PACKAGE = "numpy"


def indices(n, replicas, rank, epoch):
    """Yield the indices of a rank."""
    return map(int, np.random.default_rng(epoch).permutation(n)[rank::replicas])
