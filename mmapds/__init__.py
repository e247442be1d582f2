"""Memory-mapped random-access datasets and resumable samplers for Python and PyTorch.

Build an index once with `python -m mmapds.index train.jsonl`, then:

    ds = mmapds.open("train.jsonl")
    ds[123_456]

Names load when they are first used, so that indexing imports neither numpy nor torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

try:
    import_module("._native", __name__)
except ModuleNotFoundError:
    _package = os.path.dirname(__file__)
    raise ImportError(
        f"{_package}: the core is not built here; run: pip install -e {os.path.dirname(_package)} (or install mmapds "
        "and leave the source tree)"
    ) from None

from .errors import (
    CollateError,
    ColumnError,
    DecodeError,
    Error,
    FormatError,
    IndexMissingError,
    KeyMissingError,
    OrderError,
    SourceError,
    StaleIndexError,
    StateError,
)

if TYPE_CHECKING:
    from . import bench as bench
    from . import convert as convert
    from . import index as index
    from . import integrations as integrations
    from . import orders as orders
    from . import report as report
    from .build_index import build, merge
    from .computed_columns import add_column
    from .convert.recompress import seekable as seekable
    from .convert.writer import Writer
    from .dataset.catalog import Location
    from .dataset.collate import pad_collate
    from .dataset.dataset import Dataset, concat
    from .dataset.decode import takes_location, takes_view
    from .dataset.fields import Fields
    from .dataset.opening import open as open  # noqa: A004 - mmapds.open is the public name
    from .dataset.pack import pack_collate
    from .dataset.zipped import zip as zip  # noqa: A004 - the same
    from .index import executors as executors
    from .loader import DataLoader
    from .orders.permutation import Permutation
    from .samplers.mixture import MixtureBatchSampler
    from .samplers.planned import PackingBatchSampler, TokenBudgetBatchSampler
    from .samplers.ranks import check_ranks
    from .samplers.samplers import ChunkedSampler, DistributedBatchSampler, DistributedSampler, MixtureSampler

__version__ = "0.1.0"

__all__ = [
    "ChunkedSampler",
    "CollateError",
    "ColumnError",
    "DataLoader",
    "Dataset",
    "DecodeError",
    "DistributedBatchSampler",
    "DistributedSampler",
    "Error",
    "Fields",
    "FormatError",
    "IndexMissingError",
    "KeyMissingError",
    "Location",
    "MixtureBatchSampler",
    "MixtureSampler",
    "OrderError",
    "PackingBatchSampler",
    "Permutation",
    "SourceError",
    "StaleIndexError",
    "StateError",
    "TokenBudgetBatchSampler",
    "Writer",
    "add_column",
    "build",
    "check_ranks",
    "concat",
    "merge",
    "pack_collate",
    "pad_collate",
    "seekable",
    "takes_location",
    "takes_view",
]
"""All public names except `open` and `zip`, because `from mmapds import *` would hide the builtins."""

_LAZY = {
    name: module
    for module, names in {
        "build_index": ["build", "merge"],
        "computed_columns": ["add_column"],
        "convert.recompress": ["seekable"],
        "convert.writer": ["Writer"],
        "dataset.catalog": ["Location"],
        "dataset.collate": ["pad_collate"],
        "dataset.dataset": ["Dataset", "concat"],
        "dataset.zipped": ["zip"],
        "dataset.decode": ["takes_location", "takes_view"],
        "dataset.fields": ["Fields"],
        "dataset.opening": ["open"],
        "dataset.pack": ["pack_collate"],
        "loader": ["DataLoader"],
        "orders.permutation": ["Permutation"],
        "samplers.mixture": ["MixtureBatchSampler"],
        "samplers.planned": ["PackingBatchSampler", "TokenBudgetBatchSampler"],
        "samplers.ranks": ["check_ranks"],
        "samplers.samplers": ["ChunkedSampler", "DistributedBatchSampler", "DistributedSampler", "MixtureSampler"],
    }.items()
    for name in names
}

_MODULES = {name: name for name in ("bench", "convert", "index", "integrations", "orders", "report")}
_MODULES["executors"] = "index.executors"
"""Public modules, which load when they are first used: `mmapds.convert.convert(...)`."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        if name in _MODULES:
            return import_module(f".{_MODULES[name]}", __name__)
        value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        value = _without_torch(name)
    globals()[name] = value
    return value


def _without_torch(name: str) -> type:
    """Return a stand-in, so that `import *`, `hasattr` and `help` work without torch. Calling it raises an error."""

    def refuse(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError(f"mmapds.{name} needs torch; run: pip install torch", name="torch")

    return type(name, (), {"__init__": refuse, "__module__": __name__, "__doc__": "Needs torch: mmapds[torch]."})


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
