"""Which data a sampler is of: states and ranks compare it."""

import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from numpy.typing import NDArray
from xxhash import xxh3_64

from ..errors import StateError

_NAMED = 3  # sources that a state names


class SampledData:
    """What identifies the data that a sampler is of, computed when it is first asked for.

    Args:
      datasets: a dataset or a list of datasets. Those of mmapds have fingerprints; others are not told apart.
      lengths: of all samples, where they come from elsewhere than a dataset.
    """

    def __init__(self, datasets: Any, lengths: NDArray[Any] | None = None) -> None:
        self._datasets = datasets if isinstance(datasets, list | tuple) else [datasets]
        self._lengths = lengths

    @cached_property
    def described(self) -> dict[str, str] | None:
        """A small dict for states, or None where nothing is known: fingerprints, names of sources, a hash of lengths.

        The names are for messages alone, so that sources may be moved and renamed.
        """
        known: dict[str, str] = {}
        if self._datasets and all(_has_fingerprint(each) for each in self._datasets):
            known["fingerprint"] = " ".join(each.fingerprint for each in self._datasets)
            known["sources"] = _names([path for each in self._datasets for path in each.sources])
        if self._lengths is not None:
            known["lengths"] = xxh3_64(self._lengths.data).hexdigest()
        return known or None

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
            raise StateError(f"state['dataset'] = {saved!r}, expected a dict or None")
        own = self.described or {}
        if _differ(own, saved, "fingerprint"):
            raise StateError(_other_records(own, saved))
        if _differ(own, saved, "lengths"):
            raise StateError(
                f"state: of other lengths: expected those with hash {own['lengths']}, found {saved['lengths']}; give "
                "the lengths that the sampler had when the state was saved"
            )


def _has_fingerprint(dataset: Any) -> bool:
    """Whether a dataset is one of mmapds; libraries of others have fingerprints of another kind."""
    return hasattr(dataset, "source_starts") and isinstance(dataset.fingerprint, str)


def _names(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED:,} more" if len(paths) > _NAMED else ""
    return ", ".join(os.path.basename(path) for path in paths[:_NAMED]) + more


def _differ(own: Mapping[str, str], saved: Mapping[str, Any], key: str) -> bool:
    return key in own and key in saved and own[key] != saved[key]


def _other_records(own: Mapping[str, str], saved: Mapping[str, Any]) -> str:
    """Return the message for a state whose records are others."""
    names, found = own["sources"], saved.get("sources")
    if names == found:
        what = f"expected the records of {names} that this sampler is of, found others of the same names"
        remark = " (another view, another order of the files, or other content)"
    else:
        what, remark = f"expected those of {names}, found those of {found}", ""
    return (
        f"state: of other records: {what}; make the sampler of the files, in the order, and of the view that it was of "
        f"when the state was saved{remark}"
    )
