"""Orders map a position in an epoch to a record number. They compute it when asked, and store nothing per record.

An order is a pure function of (seed, epoch, position). That is why a sampler resumes at any step at once, and with
another number of replicas: its only state is the position.

Write your own with three methods, those of `Order`, and pass it to any sampler as `order=`.
"""

from .basic import VERSION, Chunked, Mixture, Order, Resampled, Sequential, Shuffled
from .drawn import Parts, ResampledChunks, Sorted, Weighted
from .schedule import Changing
from .weights import save_weights

__all__ = [
    "VERSION",
    "Changing",
    "Chunked",
    "Mixture",
    "Order",
    "Parts",
    "Resampled",
    "ResampledChunks",
    "Sequential",
    "Shuffled",
    "Sorted",
    "Weighted",
    "save_weights",
]
