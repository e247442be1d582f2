"""Memory-mapped random-access datasets and resumable samplers for Python and PyTorch.

Build an index once with `python -m mmapds.index train.jsonl`, then:

    ds = mmapds.open("train.jsonl")
    ds[123_456]

Names load when first used, so that indexing never imports numpy's or torch's machinery.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .errors import (
    DecodeError,
    Error,
    FormatError,
    IndexMissingError,
    OrderError,
    SourceError,
    StaleIndexError,
    StateError,
)

if TYPE_CHECKING:
    from .dataset import Dataset, Location, concat, open  # noqa: A004 - mmapds.open is the public name
    from .index import build
    from .permutation import Permutation
    from .samplers import ChunkedSampler, DistributedBatchSampler, DistributedSampler, MixtureSampler

__version__ = "0.1.0"

__all__ = [
    "ChunkedSampler",
    "Dataset",
    "DecodeError",
    "DistributedBatchSampler",
    "DistributedSampler",
    "Error",
    "FormatError",
    "IndexMissingError",
    "Location",
    "MixtureSampler",
    "OrderError",
    "Permutation",
    "SourceError",
    "StaleIndexError",
    "StateError",
    "build",
    "concat",
    "open",
]

_LAZY = {
    "ChunkedSampler": "samplers",
    "Dataset": "dataset",
    "DistributedBatchSampler": "samplers",
    "DistributedSampler": "samplers",
    "Location": "dataset",
    "MixtureSampler": "samplers",
    "Permutation": "permutation",
    "build": "index",
    "concat": "dataset",
    "open": "dataset",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
