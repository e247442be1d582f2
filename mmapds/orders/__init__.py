"""Orders: from a position in an epoch to a record number, computed where it is asked for and stored nowhere.

An order is a pure function of (seed, epoch, position). That is why a sampler can resume at any step at once, and go on
with another number of replicas: there is no state but the position.

Write your own with three methods and pass it to any sampler as `order=`:

  len(order)                    positions in an epoch
  order.at(epoch, positions)    int64 record numbers at an int64 array of positions, each in [0, len(order))
  order.describe()              what tells it from other orders: a dict that JSON can hold

An order may also have `positions_of(epoch, records)`, the positions of some records in no particular order; samplers
that are told to exclude records then need not search the epoch for them.
"""

from .basic import VERSION, Order, Resampled, Sequential, Shuffled
from .chunked import Chunked
from .mixture import Mixture

__all__ = ["VERSION", "Chunked", "Mixture", "Order", "Resampled", "Sequential", "Shuffled"]
