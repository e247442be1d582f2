"""Ways to shuffle an epoch for several ranks: a module each, with `indices(n, replicas, rank, epoch)`."""

NAMES = ("mmapds", "torch", "numpy", "plain", "grain", "streaming")
"""The modules, in the order of the tables."""
