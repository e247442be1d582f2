"""Arrays of NumPy with a mask, whose entries behind it are no values."""

from typing import Any


def masked_count(value: Any) -> int:
    """Return how many entries of a value are behind its mask; 0 for what has none.

    NumPy loads the module of masked arrays when it is first named. That may wait for a lock, for ever in a process that
    was forked while another thread held it. So it is named here only where there is such an array.
    """
    if not (hasattr(value, "mask") and hasattr(value, "filled")):
        return 0
    import numpy as np  # start-up time: records without arrays do without

    if not isinstance(value, np.ma.MaskedArray):
        return 0
    mask = np.ascontiguousarray(np.ma.getmaskarray(value))
    return int(mask.reshape(-1).view(bool).sum())  # of records, one for each field
