"""Orders map a position in an epoch to a record number. They compute it when asked, and store nothing per record.

An order is a pure function of (seed, epoch, position). That is why a sampler resumes at any step at once, and with
another number of replicas: its only state is the position.

Write your own with three methods and pass it to any sampler as `order=`:

  len(order)                    positions in an epoch
  order.at(epoch, positions)    int64 record numbers at an int64 array of positions, each in [0, len(order))
  order.describe()              a dict that JSON can hold, different for orders that differ

It may have an attribute `records`: how many records the dataset has that it is for. Samplers refuse another dataset.
An order that repeats records may have `is_bijection = False`: planners that read every record once refuse it before an
epoch begins.
"""

from .basic import VERSION, Chunked, Mixture, Order, Resampled, Sequential, Shuffled

__all__ = ["VERSION", "Chunked", "Mixture", "Order", "Resampled", "Sequential", "Shuffled"]
