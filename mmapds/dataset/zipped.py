"""Zipped datasets: datasets of equal length side by side, `mmapds.zip`."""

from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import ColumnError, Error
from ..storage.runs import LengthOrder
from .batch import LazyBatch, ZippedBatch
from .dataset import Dataset, concat
from .views import Rows, is_position


class ZippedDataset(Dataset):
    """Datasets of equal length side by side: sample i is a dict of sample i of each. `mmapds.zip` returns it.

    Args:
      members: the datasets by name, one or more.
    """

    _MADE_BY = "mmapds.zip"

    def __init__(self, members: Mapping[str, Dataset]) -> None:
        self._members = dict(members)
        self._inner = next(iter(self._members.values()))  # whose sources a `ChunkedSampler` keeps together

    def __getitem__(self, key: Any) -> Any:
        if not is_position(key):
            return self._view(key)
        return {name: member[key] for name, member in self._members.items()}

    def take(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> Sequence[Any]:
        if self._on_error == "skip":
            samples, _ = self.take_kept(positions)
            return samples if len(samples) or not len(positions) else [self[positions[0]]]  # which raises
        parts = {name: member.take(positions) for name, member in self._members.items()}
        if any(isinstance(part, LazyBatch) for part in parts.values()):
            return ZippedBatch(parts)
        named = list(parts.items())
        return [{name: part[k] for name, part in named} for k in range(len(named[0][1]))]

    __getitems__ = take

    def take_kept(self, positions: Sequence[int] | NDArray[np.integer[Any]]) -> tuple[Sequence[Any], NDArray[np.int64]]:
        if self._on_error == "raise":
            return super().take_kept(positions)
        found = {name: member.take_kept(positions) for name, member in self._members.items()}
        kept = np.arange(len(positions), dtype=np.int64)
        for _, each in found.values():
            kept = np.intersect1d(kept, each, assume_unique=True)
        rows = {name: (samples, np.searchsorted(each, kept)) for name, (samples, each) in found.items()}
        return [{name: samples[at[k]] for name, (samples, at) in rows.items()} for k in range(len(kept))], kept

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
        """Return where the records at a position lie, by the name of their dataset."""
        return {name: member.where(position) for name, member in self._members.items()}

    def place(self, position: SupportsIndex) -> str:
        return " and ".join(member.place(position) for member in self._members.values())

    def find(self, key: str) -> int:
        """Return the position of the record with a key, in the first dataset whose records have keys.

        Raises:
          KeyMissingError: it has no record with the key.
          FormatError: no dataset has records with keys.
        """
        return next((member for member in self._members.values() if member._has_keys), self._inner).find(key)

    @property
    def _has_keys(self) -> bool:
        return any(member._has_keys for member in self._members.values())

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

    @property
    def block_starts(self) -> NDArray[np.int64]:
        raise Error(f"block_starts: expected a dataset of mmapds.open, found one of {self._MADE_BY}")

    @property
    def columns(self) -> list[str]:
        return [f"{name}.{column}" for name, member in self._members.items() for column in member.columns]

    def column(self, name: str) -> NDArray[Any]:
        """Return a column of one of the datasets, a number for each sample: shape (len(self),), read-only.

        Args:
          name: that of the dataset and that of its column, as "a.length"; or that of a column that one dataset has
            alone.
        Raises:
          ColumnError: no dataset has it, or several have.
        """
        found = self._owners(name)
        if len(found) > 1:
            several = ", ".join(repr(f"{key}.{own}") for key, own in found)
            raise ColumnError(f"column {name!r}: expected one column of that name, found {len(found)}; use {several}")
        if not found:
            known = ", ".join(map(repr, self.columns)) or "those of the datasets, which have none"
            raise ColumnError(f"column {name!r}: expected one of {known}; add it to a dataset with mmapds.add_column")
        key, own = found[0]
        return self._members[key].column(own)

    def _owners(self, name: str) -> list[tuple[str, str]]:
        """Return the columns that a name may mean: the name of the dataset, and that of the column there."""
        exact = [(key, own) for key, each in self._members.items() for own in each.columns if f"{key}.{own}" == name]
        return exact or [(key, own) for key, each in self._members.items() for own in each._columns_named(name)]

    def _columns_named(self, name: str) -> list[str]:
        return [f"{key}.{own}" for key, own in self._owners(name)]

    @property
    def length_order(self) -> LengthOrder | None:
        """That of the one dataset that has lengths."""
        having = self._owners("length")
        return self._members[having[0][0]].length_order if len(having) == 1 else None

    def _select(self, rows: Rows) -> "ZippedDataset":
        return ZippedDataset({name: member._select(rows) for name, member in self._members.items()})

    @classmethod
    def _chained(cls, parts: Sequence["ZippedDataset"]) -> "ZippedDataset":
        names = parts[0]._members
        for k, part in enumerate(parts):
            if part._members.keys() != names.keys():
                raise Error(
                    f"datasets[{k}]: expected datasets by the names {', '.join(map(repr, names))}, as in datasets[0], "
                    f"found {', '.join(map(repr, part._members))}"
                )
        return ZippedDataset({name: concat(part._members[name] for part in parts) for name in names})

    def __repr__(self) -> str:
        return f"<mmapds.zip {', '.join(f'{name}={member!r}' for name, member in self._members.items())}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return ZippedDataset, (self._members,)


def zip(*unnamed: Dataset, **datasets: Dataset) -> Dataset:  # noqa: A001 - mmapds.zip is the public name
    """Return datasets of equal length side by side: sample i is `{"a": a[i], "b": b[i]}` for `zip(a=a, b=b)`.

    It is a dataset: views, batches, samplers, workers, `map` and `concat` work as with any other. `raw` and `where`
    return dicts too. Columns are those of all datasets, by names as "a.length"; a column that one dataset has alone
    needs no more than its own name, so that `lengths` are those of the one dataset that has them. `source_starts` are
    those of the first dataset.

    Args:
      unnamed: none; a dataset has to have a name.
      datasets: one or more datasets of mmapds, by the name that they have in samples.
    Raises:
      Error: no dataset is given, one has no name or is not of mmapds, or their lengths differ.
    """
    if unnamed:
        raise Error(f"datasets: expected a name for each, as in zip(a=..., b=...), found {len(unnamed)} without one")
    if not datasets:
        raise Error("datasets: expected one dataset or more, found 0")
    first = next(iter(datasets))
    for name, member in datasets.items():
        if not isinstance(member, Dataset):
            raise Error(f"datasets[{name!r}]: expected a dataset of mmapds.open, found {type(member).__name__}")
        if len(member) != len(datasets[first]):
            raise Error(
                f"datasets[{name!r}]: expected {len(datasets[first])} records, as in datasets[{first!r}], found "
                f"{len(member)}; {_lined_up(first, name, datasets)}"
            )
    return ZippedDataset(datasets)


def _lined_up(one: str, other: str, datasets: Mapping[str, Dataset]) -> str:
    """Return how to put the records of two datasets side by side that belong together, by a column of both."""
    shared = [name for name in datasets[one].columns if name in datasets[other].columns and name != "length"]
    column = repr(shared[0] if shared else "id")
    needs = "" if shared else " (with that column in both, as mmapds.build(source, columns={'id': 'id'}) adds it)"
    return (
        f"give views of the records that belong together: _, i, j = numpy.intersect1d({one}.column({column}), "
        f"{other}.column({column}), return_indices=True), then mmapds.zip({one}={one}[i], {other}={other}[j]){needs}"
    )
