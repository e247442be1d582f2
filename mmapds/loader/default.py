"""What a loader makes of samples by default: torch's own batches, without its warning of arrays that are read-only."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ..dataset.tensors import refuse_masked

Table = Mapping[Any, Callable[..., Any]] | None
"""How torch collates each type."""


def default_collate(samples: Any) -> Any:
    """Return the batch that torch's `default_collate` makes.

    Arrays that share memory with a file are read-only. torch would warn that tensors over them can be written to,
    though a batch is a copy; so here they are copied before.
    """
    return collate(samples, collate_fn_map=_TABLE)


def _arrays(batch: Any, *, collate_fn_map: Table = None) -> Any:
    """Return the tensor of some arrays of one shape.

    Raises:
      CollateError: a number is behind a mask.
    """
    for i, array in enumerate(batch):
        refuse_masked(array, f"samples[{i}]")
    own = [array if array.flags.writeable else array.copy() for array in batch]
    return default_collate_fn_map[np.ndarray](own, collate_fn_map=collate_fn_map)


_TABLE = {**default_collate_fn_map, np.ndarray: _arrays}
