"""Which data a sampler is of: states, ranks, loaders and streams compare it."""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import OrderError, StateError, shortened

_NAMED = 3  # sources that a state names
_COMPARED = 64  # positions of two datasets of the same sources


class SampledData:
    """What identifies the data that a sampler is of, computed when it is first asked for.

    Args:
      dataset: those of mmapds have fingerprints; others are not told apart.
      lengths: of all samples, where they come from elsewhere than a dataset.
    """

    def __init__(self, dataset: Any, lengths: NDArray[Any] | None = None) -> None:
        self._dataset = dataset
        self._lengths = lengths
        self._known: dict[str, str] | None = None

    @property
    def described(self) -> dict[str, str] | None:
        """A small dict for states, or None where nothing is known: fingerprint, names of sources, a hash of lengths.

        The names are for messages alone, so that sources may be moved and renamed.
        """
        if self._known is None:
            self._known = {}
            if is_ours(self._dataset):
                paths = self._dataset.sources
                more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
                self._known["fingerprint"] = self._dataset.fingerprint
                self._known["sources"] = ", ".join(os.path.basename(path) for path in paths[:_NAMED]) + more
            if self._lengths is not None:
                self._known["lengths"] = xxh3_64(self._lengths.data).hexdigest()
        return dict(self._known) or None

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
        differ = [key for key in ("fingerprint", "lengths") if key in own and key in saved and own[key] != saved[key]]
        if "fingerprint" in differ:
            names, found = own["sources"], saved.get("sources")
            what = "others of the same names" if found == names else f"those of {shortened(found)}"
            raise StateError(
                f"state: of other records: expected those of {shortened(names)}, found {what}; make the "
                "sampler of the same files, in the same order, and of the same view (a file that grew or changed is "
                "another)"
            )
        if differ:
            raise StateError(
                f"state: of other lengths: expected those with hash {own['lengths']!r}, found "
                f"{shortened(saved['lengths'])}; give the lengths that the sampler had when the state was saved"
            )


def is_ours(dataset: Any) -> bool:
    """Whether a dataset is one of mmapds; libraries of others have fingerprints of another kind."""
    return hasattr(dataset, "source_starts") and hasattr(dataset, "where")


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
    if is_ours(dataset) and is_ours(sampled) and _are_other_rows(dataset, sampled):
        raise OrderError(
            f"{name}: expected one of the {expected} samples of the dataset, found one of {len(sampled)} other samples "
            "of its sources; make both of the same view, or of the same datasets in the same order"
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
    return any(not _locations(other.where(i)) & _locations(one.where(i)) for i in positions)


def _locations(where: Any) -> set[Any]:
    """Return where a sample lies: in one place, or in one for each member of a zip."""
    return set().union(*map(_locations, where.values())) if isinstance(where, Mapping) else {where}
