"""Which data a sampler is of: states, ranks, loaders and streams compare it."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import UNPRINTABLE, OrderError, StateError, shortened

_NAMED = 3  # sources that a state names
_LONGEST = 300 * _NAMED  # characters of their names: a file system takes 255
_COMPARED = 64  # positions of two datasets of the same sources


class SampledData:
    """What identifies the data that a sampler is of, computed when it is first asked for.

    Args:
      datasets: a dataset or a list of datasets. Those of mmapds have fingerprints; others are not told apart.
      lengths: of all samples, where they come from elsewhere than a dataset.
    """

    def __init__(self, datasets: Any, lengths: NDArray[Any] | None = None) -> None:
        self._datasets = datasets if isinstance(datasets, list | tuple) else [datasets]
        self._lengths = lengths
        self._known: dict[str, str] | None = None

    @property
    def described(self) -> dict[str, str] | None:
        """A small dict for states, or None where nothing is known: fingerprints, names of sources, a hash of lengths.

        The names are for messages alone, so that sources may be moved and renamed.
        """
        if self._known is None:  # not a cached_property: see `Index.bounds_at`
            self._known = self._describe()
        return dict(self._known) or None

    def _describe(self) -> dict[str, str]:
        known: dict[str, str] = {}
        if self._datasets and all(_has_fingerprint(each) for each in self._datasets):
            known["fingerprint"] = " ".join(each.fingerprint for each in self._datasets)
            known["sources"] = _names([path for each in self._datasets for path in each.sources])
        if self._lengths is not None:
            known["lengths"] = xxh3_64(self._lengths.data).hexdigest()
        return known

    @property
    def mark(self) -> str | None:
        """What ranks compare."""
        return " ".join(value for key, value in (self.described or {}).items() if key != "sources") or None

    def check(self, saved: Any) -> None:
        """Compare with what a state has; what one of the two does not know is not compared.

        Raises:
          StateError: the state is of other data, or malformed.
        """
        if saved is None:
            return
        if not isinstance(saved, Mapping):
            raise StateError(f"state['dataset'] = {shortened(saved)}, expected a dict or None")
        own = self.described or {}
        if _differ(own, saved, "fingerprint"):
            raise StateError(_other_records(own, saved))
        if _differ(own, saved, "lengths"):
            raise StateError(
                f"state: of other lengths: expected those with hash {own['lengths']}, found "
                f"{_shown(saved['lengths'])}; give the lengths that the sampler had when the state was saved"
            )


class Chain:
    """Datasets one after another, as far as a loader compares them with its own.

    Args:
      datasets: of mmapds or of others, or anything in the place of those that are known by their sizes alone.
      sizes: how many samples each has.
    """

    def __init__(self, datasets: Sequence[Any], sizes: Sequence[int]) -> None:
        self._datasets = datasets
        self._ends = np.cumsum(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def sources(self) -> list[str]:
        """Paths of the files behind the datasets of mmapds."""
        return [path for each in self._datasets if _has_places(each) for path in each.sources]

    @property
    def source_starts(self) -> NDArray[np.int64]:
        """Where each dataset begins, and the length."""
        return np.concatenate([[0], self._ends]).astype(np.int64)

    def where(self, position: int) -> Any:
        """Return where a sample lies; None if its dataset is not one of mmapds."""
        number = int(np.searchsorted(self._ends, position, side="right"))
        dataset = self._datasets[number]
        begin = int(self.source_starts[number])
        return dataset.where(position - begin) if _has_places(dataset) else None


def _has_places(dataset: Any) -> bool:
    """Whether a dataset knows where its samples lie, as those of mmapds do."""
    return hasattr(dataset, "source_starts") and hasattr(dataset, "where")


def _has_fingerprint(dataset: Any) -> bool:
    """Whether a dataset is one of mmapds; libraries of others have fingerprints of another kind."""
    return hasattr(dataset, "source_starts") and isinstance(dataset.fingerprint, str)


def _names(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(os.path.basename(path) for path in paths[:_NAMED]) + more


def _differ(own: Mapping[str, str], saved: Mapping[str, Any], key: str) -> bool:
    return key in own and key in saved and not (type(saved[key]) is str and own[key] == saved[key])


def _shown(saved: Any) -> str:
    """Return what a state has as the hash of lengths or as the names of sources; what cannot be one is quoted."""
    is_sound = type(saved) is str and len(saved) <= _LONGEST and not UNPRINTABLE.search(saved)
    return saved if is_sound else shortened(saved)


def _other_records(own: Mapping[str, str], saved: Mapping[str, Any]) -> str:
    """Return the message for a state whose records are others."""
    names, found = own["sources"], _shown(saved.get("sources"))
    if names == found:
        what = f"expected the records of {names} that this sampler is of, found others of the same names"
        remark = (
            " (another view, another order of the files, or other content; where a file grew at its end, finish the "
            "epoch over ds[:n], the n records that it had: a sampler of the array ds[:n].lengths, or of range(n), "
            "takes the state)"
        )
    else:
        what, remark = f"expected those of {names}, found those of {found}", ""
    return (
        f"state: of other records: {what}; make the sampler of the files, in the order, and of the view that it was of "
        f"when the state was saved{remark}"
    )


def check_same_samples(dataset: Any, name: str, sampled: Any) -> None:
    """Refuse a sampler over a dataset that has other samples than those that it is of.

    Args:
      name: of the argument that the sampler is.
      sampled: what the sampler is of.
    Raises:
      OrderError: there are more or fewer; or both are of mmapds, have a source in common, and differ somewhere.
    """
    if sampled is dataset:
        return
    try:
        expected = len(dataset)
    except TypeError:  # a dataset of others may have dataset[i] alone
        return
    if len(sampled) != expected:
        raise OrderError(
            f"{name}: expected one of the {expected} samples of the dataset, found one of {len(sampled)}; make both of "
            "the same view"
        )
    if _has_places(dataset) and _has_places(sampled) and _are_other_rows(dataset, sampled):
        remedy = "the same datasets, in the same order" if isinstance(sampled, Chain) else "the same view"
        raise OrderError(
            f"{name}: expected one of the {expected} samples of the dataset, found one of {len(sampled)} other samples "
            f"of its sources; make both of {remedy}"
        )


def _are_other_rows(one: Any, other: Any) -> bool:
    """Return whether two datasets of equal length have a source in common, but not the record at each position.

    Sources that are parallel, such as texts and their translations, may have nothing in common.
    """
    if not len(one) or not set(one.sources) & set(other.sources):
        return False
    spread = np.linspace(0, len(one) - 1, min(len(one), _COMPARED)).astype(np.int64)
    firsts = other.source_starts[:_COMPARED]
    positions = np.union1d(spread, firsts[firsts < len(one)]).tolist()
    return any(not _locations(found) & _locations(one.where(i)) for i in positions if (found := other.where(i)))


def _locations(where: Any) -> set[Any]:
    """Return where a sample lies: in one place, or in one for each member of a zip."""
    return set().union(*map(_locations, where.values())) if isinstance(where, Mapping) else {where}
