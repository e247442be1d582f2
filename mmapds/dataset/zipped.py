"""Datasets side by side: what `mmapds.zip` returns."""

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import ColumnError, Error
from ..index.lengths import LengthOrder
from .batch import LazyBatch, ZippedBatch
from .dataset import Dataset, concat
from .views import Rows, is_position


class ZippedDataset(Dataset):
    """Datasets of equal length side by side: what `mmapds.zip` returns."""

    def __init__(self, members: Mapping[str, Dataset]) -> None:
        self._members = dict(members)
        self._inner = next(iter(self._members.values()))  # `ChunkedSampler` uses its sources

    def set_epoch(self, epoch: int) -> None:
        for member in self._members.values():
            member.set_epoch(epoch)

    def _with_own_epoch(self) -> Dataset:
        return ZippedDataset({name: member._with_own_epoch() for name, member in self._members.items()})

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        return {name: member[key] for name, member in self._members.items()}

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        found = [(name, *member.take_kept(positions)) for name, member in self._members.items()]
        kept = np.arange(len(positions), dtype=np.int64)
        if all(len(each) == len(positions) for *_, each in found):
            if any(isinstance(samples, LazyBatch) for _, samples, _ in found):
                return ZippedBatch({name: samples for name, samples, _ in found}), kept
            return [{name: samples[k] for name, samples, _ in found} for k in range(len(kept))], kept
        kept = reduce(np.intersect1d, (each for *_, each in found))
        rows = [(name, samples, np.searchsorted(each, kept)) for name, samples, each in found]
        return [{name: samples[at[k]] for name, samples, at in rows} for k in range(len(kept))], kept

    @property
    def skipped(self) -> list[int]:
        return sorted({position for member in self._members.values() for position in member.skipped})

    @property
    def _on_error(self) -> str:
        return "skip" if any(member._on_error == "skip" for member in self._members.values()) else "raise"

    def raw(self, position: SupportsIndex) -> dict[str, Any]:  # type: ignore[override]
        """Return the bytes of the records at a position, by the name of their dataset."""
        return {name: member.raw(position) for name, member in self._members.items()}

    def where(self, position: SupportsIndex) -> dict[str, Any]:  # type: ignore[override]
        """Return the locations of the records at a position, by the name of their dataset."""
        return {name: member.where(position) for name, member in self._members.items()}

    def place(self, position: SupportsIndex) -> str:
        return " and ".join(member.place(position) for member in self._members.values())

    @property
    def sources(self) -> list[str]:
        return [path for member in self._members.values() for path in member.sources]

    @property
    def indexes(self) -> list[str]:
        return [path for member in self._members.values() for path in member.indexes]

    @property
    def fingerprint(self) -> str:
        named = [f"{name!r} {member.fingerprint}" for name, member in self._members.items()]
        return xxh3_64(" ".join(named).encode(errors="surrogatepass")).hexdigest()

    def _decodes(self, positions: NDArray[np.int64], limit: int | None = None) -> tuple[float, float]:
        return max(member._decodes(positions, limit) for member in self._members.values())

    @property
    def columns(self) -> list[str]:
        return [f"{name}.{column}" for name, member in self._members.items() for column in member.columns]

    def column(self, name: str) -> NDArray[Any]:
        """Return a column by a name such as "a.length", or "length" if only one dataset has it; see `Dataset`."""
        found = self._owners(name)
        if len(found) != 1:
            known, hint = ", ".join(map(repr, self.columns)), "add it to one of the datasets, with mmapds.add_column"
            if found:
                hint = f"choose one, and give a sampler its numbers, as ds.column({'.'.join(found[0])!r})"
            raise ColumnError(f"column {name!r}: expected one of [{known}], found {len(found)} of that name; {hint}")
        key, own = found[0]
        return self._members[key].column(own)

    def _owners(self, name: str) -> list[tuple[str, str]]:
        """Return the columns that match a name, as pairs of dataset and column."""
        every = [(key, own) for key, each in self._members.items() for own in each.columns]
        exact = [pair for pair in every if ".".join(pair) == name]
        return exact or [(key, own) for key, each in self._members.items() for own in each._columns_named(name)]

    def _columns_named(self, name: str) -> list[str]:
        return [".".join(pair) for pair in self._owners(name)]

    @property
    def length_order(self) -> LengthOrder | None:
        """The length order of the only dataset with lengths; None if several or no datasets have lengths."""
        having = self._owners("length")
        return self._members[having[0][0]].length_order if len(having) == 1 else None

    def _select(self, rows: Rows) -> "ZippedDataset":
        return ZippedDataset({name: member._select(rows) for name, member in self._members.items()})

    @classmethod
    def _chained(cls, parts: Sequence["ZippedDataset"]) -> "ZippedDataset":
        names = parts[0]._members
        for k, part in enumerate(parts):
            if part._members.keys() != names.keys():
                raise Error(f"datasets[{k}]: expected names {[*names]}, as in datasets[0], found {[*part._members]}")
        return ZippedDataset({name: concat(part._members[name] for part in parts) for name in names})

    def __repr__(self) -> str:
        return f"<mmapds.zip {', '.join(f'{name}={member!r}' for name, member in self._members.items())}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ZippedDataset, (self._members,)


def zip(**datasets: Dataset) -> Dataset:  # noqa: A001 - mmapds.zip is the public name
    """Return datasets of equal length side by side: sample i is `{"a": a[i], "b": b[i]}` for `zip(a=a, b=b)`.

        pairs = mmapds.zip(question=ds, answer=mmapds.open("train.jsonl", decode="text"))

    `raw` and `where` return dicts too. Columns of all datasets have names such as "a.length"; the plain name is enough
    if only one dataset has the column, so `lengths` works if only one has lengths. `source_starts`, `block_starts` and
    `find` use the first dataset.

    Args:
      datasets: one or more datasets of mmapds; the keywords become the names in samples.
    Raises:
      Error: no dataset is given, one is not of mmapds, or their lengths differ.
    """
    if not datasets:
        raise Error("datasets: expected one or more by name, as in zip(a=..., b=...), found 0")
    first = next(iter(datasets))
    for name, member in datasets.items():
        if not isinstance(member, Dataset):
            raise Error(f"datasets[{name!r}]: expected a dataset of mmapds.open, found {type(member).__name__}")
        if len(member) != len(datasets[first]):
            what = f"expected {len(datasets[first])} records, as in datasets[{first!r}], found {len(member)}"
            raise Error(f"datasets[{name!r}]: {what}")
    return ZippedDataset(datasets)
