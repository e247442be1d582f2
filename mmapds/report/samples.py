"""The section of samples: some at random, the longest and the shortest, and those that cannot be decoded."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from ..command.render import Renderer
from ..command.screen import Screen
from ..dataset.dataset import Dataset
from ..errors import DecodeError, Error
from ..orders.permutation import Permutation
from ..storage.runs import LengthOrder

_RANDOM, _EXTREMES, _UNDECODABLE = 6, 3, 3
_TRIED = 1000  # records that are decoded to find some that cannot be
_LARGE = 1 << 24  # bytes of a record that is not decoded
_LINES, _COLUMNS, _WIDTH = 24, 400, 76


class _Page(Screen):
    """The page as a renderer sees it: no colours, all characters."""

    def __init__(self) -> None:
        self.width, self.has_colours, self.is_unicode, self.ellipsis = _WIDTH, False, True, "…"


def sample_facts(dataset: Dataset, by_length: LengthOrder | None, seed: int) -> dict[str, Any]:
    """Return samples as lines of text, in which nothing is marked up yet.

    Args:
      by_length: None where records have no lengths; there are no longest and shortest ones then.
      seed: chooses the random ones.
    """
    records = len(dataset)
    at_random = Permutation(records, seed)[np.arange(min(_TRIED, records))].tolist()
    groups = {"random": at_random[:_RANDOM]}
    if by_length is not None:
        count = min(_EXTREMES, records)
        groups["longest"] = by_length.at(np.arange(count)).tolist()
        groups["shortest"] = by_length.at(np.arange(records - 1, records - 1 - count, -1)).tolist()
    found = {name: [_shown(dataset, by_length, each) for each in positions] for name, positions in groups.items()}
    found["undecodable"] = list(islice(_undecodable(dataset, at_random), _UNDECODABLE))
    return {**found, "tried": len(at_random)}


def _shown(dataset: Dataset, by_length: LengthOrder | None, position: int) -> dict[str, Any]:
    size = dataset.where(position).size
    shown: dict[str, Any] = {"position": position, "place": dataset.place(position), "bytes": size}
    if by_length is not None:
        shown["length"] = int(by_length.lengths.at(np.array([position]))[0])
    if size > _LARGE:
        return {**shown, "error": f"{size:,} bytes, too many to be shown"}
    try:
        return {**shown, "lines": _lines(dataset[position])}
    except DecodeError as error:
        return {**shown, "error": str(error), "lines": _lines(dataset.raw(position))}
    except Error as error:
        return {**shown, "error": str(error)}


def _lines(sample: Any) -> list[str]:
    """Return the first lines of a sample as `mmapds show` has them, each cut to the width of a page."""
    lines = list(islice(Renderer(_Page(), full=False).lines(sample), _LINES + 1))
    more = ["…"] if len(lines) > _LINES else []
    return [line if len(line) <= _COLUMNS else f"{line[:_COLUMNS]}…" for line in lines[:_LINES]] + more


def _undecodable(dataset: Dataset, positions: list[int]) -> Iterator[dict[str, Any]]:
    """Yield those of some samples that cannot be decoded."""
    for position in positions:
        if dataset.where(position).size > _LARGE:
            continue
        try:
            dataset[position]
        except DecodeError:
            yield _shown(dataset, None, position)
