"""Mixtures whose weights change: by a schedule, or because a job goes on with others."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import OrderError, shortened
from .basic import ComputedOrder, Int64s, Mixture, integer
from .permutation import word

_STEPS = 64  # constant pieces of a ramp
_GROWN = 1 << 20  # passes that are set apart for a dataset of one size


class Segment(NamedTuple):
    """A range of positions with constant weights.

    Attributes:
      begin: its first position.
      weights: integers, one for each dataset.
      sizes: records of each dataset.
    """

    begin: int
    weights: list[int]
    sizes: list[int]


class Changing(ComputedOrder):
    """Mixes datasets by weights that change at some positions of an epoch; they are exact between two changes.

        schedule = [(0, [0.7, 0.3]), (1_000_000, [0.5, 0.5])]
        order = mmapds.orders.Changing([700, 300], schedule, epoch_size=2_000_000, seed=7)

    A dataset that has been read whole begins again, shuffled anew. Positions count the samples of all ranks, so the
    weights change at the same sample with any number of them.

    Args:
      sizes: records in each dataset.
      schedule: pairs of a position and the weights from there on; the first position is 0.
      epoch_size: positions in an epoch.
      ramps: change the weights linearly from each entry to the next one, in 64 steps.
      seed: chooses the orders.
      shuffle: False reads each dataset in its own order.
    Raises:
      OrderError: an argument is out of range, or positions do not rise.
    """

    _name = "changing mixture"
    is_bijection = False

    def __init__(
        self,
        sizes: Sequence[int],
        schedule: Sequence[tuple[int, Sequence[float]]],
        *,
        epoch_size: int,
        ramps: bool = False,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        size, entries = integer("epoch_size", epoch_size, 1), checked_schedule(schedule)
        own = [integer(f"sizes[{d}]", each, 0) for d, each in enumerate(sizes)]
        made = [(begin, Mixture(own, weights, epoch_size=1).weights) for begin, weights in entries]
        if ramps:
            made = [piece for pair in pairwise(entries) for piece in _ramp(own, *pair)] + made[-1:]
        self._take([Segment(begin, weights, own) for begin, weights in made if begin < size], size, seed, shuffle)

    @classmethod
    def _of(cls, mixture: Mixture | Changing) -> Changing:
        """Return the same mixture as one of this class."""
        if isinstance(mixture, Changing):
            return mixture
        found = mixture.describe()
        other: Changing = object.__new__(cls)
        other._take([_first_of(found)], found["epoch_size"], found["seed"], found["shuffle"])
        return other

    def _take(self, segments: list[Segment], epoch_size: int, seed: int, shuffle: bool) -> None:
        self._epoch_size, self._seed, self._shuffle = epoch_size, integer("seed", seed), bool(shuffle)
        self._every, self._one = Course(segments), (-1, Course(segments[:0]))
        self._sizes = segments[-1].sizes
        self._n = integer("records", sum(self._sizes), 1)

    def __len__(self) -> int:
        return self._epoch_size

    def describe(self) -> dict[str, Any]:
        """Return the identity of this order for states: the segments of all epochs, and of one that was changed."""
        epoch, course = self._one
        self._arguments = {
            "segments": [list(segment) for segment in self._every.segments],
            "changed epoch": epoch if course.segments else None,
            "changed segments": [list(segment) for segment in course.segments],
            "epoch_size": self._epoch_size,
            "shuffle": self._shuffle,
            "seed": self._seed,
        }
        return super().describe()

    def _after(self, saved: Mapping[str, Any], epoch: int, position: int) -> Changing:
        """Return this order, but in one epoch with the segments of another mixture before a position.

        Args:
          saved: the description of the other mixture, in a state.
        Raises:
          OrderError: the other one has another seed or shuffle, or more datasets.
        """
        before = _segments_in(saved, epoch)
        for name, own in {"seed": self._seed, "shuffle": self._shuffle}.items():
            if saved.get(name) != own:
                raise OrderError(f"state['order'][{name!r}] = {shortened(saved.get(name))}, expected {own}")
        if len(before[-1].sizes) > len(self._sizes):
            expected = f"those of the state, {len(before[-1].sizes)} or more"
            raise OrderError(f"datasets: expected {expected}, found {len(self._sizes)}")
        for d, (old, new) in enumerate(zip(before[-1].sizes, self._sizes, strict=False)):
            if new < old:
                raise OrderError(f"datasets[{d}]: expected {old:,} records or more, as in the state, found {new:,}")
        if not 0 <= position < self._epoch_size:
            end = f"epoch_size = {self._epoch_size}, expected more than {position}, the position of the state"
            raise OrderError(f"{end}; give epoch_size=")
        now = [segment for segment in self._every.segments if segment.begin > position]
        first = [segment for segment in self._every.segments if segment.begin <= position][-1]
        begun = [segment for segment in before if segment.begin < position]
        if not begun or begun[-1][1:] != first[1:]:
            begun.append(first._replace(begin=position))
        other: Changing = object.__new__(type(self))
        other.__dict__ |= self.__dict__ | {"_one": (epoch, Course(begun + now))}
        return other

    def unchanged(self, saved: Mapping[str, Any]) -> list[bool]:
        """Return whether each dataset has the size that it had in the description of a mixture."""
        last = _segments_in(saved, -1)[-1].sizes
        return [old == new for old, new in zip(last, self._sizes, strict=False)]

    def _of_state(self, saved: Mapping[str, Any]) -> Changing:
        """Return this order with the changed epoch of a state, if the state has the same weights and datasets."""
        other = self
        if saved.get("order") == self._name and saved.get("segments") == self.describe()["segments"]:
            course = Course([Segment(*each) for each in saved["changed segments"]])
            other = object.__new__(type(self))
            other.__dict__ |= self.__dict__ | {"_one": (saved["changed epoch"], course)}
        return other

    def _fill(self, out: Int64s, epoch: int, positions: Int64s) -> None:
        if positions.size and (positions.min() < 0 or positions.max() >= self._epoch_size):
            raise IndexError(f"position is out of range for an epoch of {self._epoch_size}")
        flat, found = positions.ravel(), out.ravel()
        course = self._one[1] if epoch == self._one[0] and self._one[1].segments else self._every
        for own, d, size, draws in course.drawn(flat):
            weights, sizes = np.zeros(len(self._sizes), np.uint64), np.array(self._sizes, np.uint64)
            weights[d], sizes[d] = 1, size
            alone = _native.Mixture(weights=weights, sizes=sizes, seed=word(self._seed), shuffle=self._shuffle)
            records = np.empty_like(draws)
            alone.at(word(epoch), draws, records)
            found[own] = records
        out[...] = found.reshape(out.shape)


class Course:
    """The draws of the segments of an epoch."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments
        self._begins = np.array([segment.begin for segment in segments], np.int64)
        self._tables = [_Table.of(segment) for segment in segments]
        counts = np.zeros(len(segments[-1].sizes) if segments else 0, np.int64)
        self._before: list[Int64s] = []  # how often each dataset was drawn before a segment
        for number, segment in enumerate(segments):
            if number:
                last = segments[number - 1]
                grown = [d for d, size in enumerate(last.sizes) if size != segment.sizes[d]]
                counts[grown] = [number * _GROWN * segment.sizes[d] for d in grown]  # a pass of its own begins
            self._before.append(counts.copy())
            if number + 1 < len(segments):
                drawn = self._tables[number].drawn(segments[number + 1].begin - segment.begin)
                counts[: len(drawn)] += drawn

    def counts(self, positions: int) -> Int64s:
        """Return how often each dataset is drawn in the first positions; their sizes must not change."""
        last = len(self.segments) - 1
        found: Int64s = self._before[last] + self._tables[last].drawn(positions - self.segments[last].begin)
        return found

    def drawn(self, positions: Int64s) -> list[tuple[Any, int, int, Int64s]]:
        """Return groups of positions: where they are, their dataset and its size, and the number of each draw of it."""
        found = []
        numbers = np.searchsorted(self._begins, positions, side="right") - 1
        for number in np.unique(numbers).tolist():
            here = np.flatnonzero(numbers == number)
            members, draws = self._tables[number].at(positions[here] - self._begins[number])
            for d in np.unique(members).tolist():
                own = members == d
                size = self.segments[number].sizes[d]
                found.append((here[own], d, size, draws[own] + self._before[number][d]))
        return found


class _Table(NamedTuple):
    """One period of constant weights: the dataset of each position, and how often it came before."""

    weights: Int64s
    members: Int64s
    before: Int64s

    @classmethod
    def of(cls, segment: Segment) -> _Table:
        mixture = Mixture(segment.sizes, segment.weights, epoch_size=1, shuffle=False)
        weights = np.array(mixture.weights)
        members = mixture.members_at(np.arange(weights.sum()))
        before = np.empty_like(members)
        before[np.argsort(members, kind="stable")] = np.concatenate([np.arange(n) for n in mixture.weights])
        return cls(weights, members, before)

    def at(self, positions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the dataset of each position of the segment, and how often it came before there."""
        periods, places = np.divmod(positions, len(self.members))
        members = self.members[places]
        return members, periods * self.weights[members] + self.before[places]

    def drawn(self, positions: int) -> Int64s:
        """Return how often each dataset comes in the first positions."""
        periods, rest = divmod(positions, len(self.members))
        return periods * self.weights + np.bincount(self.members[:rest], minlength=len(self.weights))


def is_schedule(weights: Any) -> bool:
    """Whether weights are pairs of a position and weights."""
    return isinstance(weights, Sequence) and len(weights) > 0 and isinstance(weights[0], Sequence)


def _first_of(saved: Mapping[str, Any]) -> Segment:
    """Return the only segment of a mixture of constant weights, from its description."""
    return Segment(0, list(saved["weights"]), list(saved["sizes"]))


def _segments_in(saved: Mapping[str, Any], epoch: int) -> list[Segment]:
    """Return the segments of an epoch of a mixture, from its description."""
    if saved.get("order") == Mixture._name:
        return [_first_of(saved)]
    if saved.get("order") != Changing._name:
        raise OrderError(f"state['order']: expected a mixture of samples, found {shortened(saved.get('order'))}")
    return [Segment(*each) for each in saved["changed segments" if saved["changed epoch"] == epoch else "segments"]]


def checked_schedule(schedule: Any) -> list[tuple[int, Sequence[float]]]:
    """Return the entries of a schedule; raise OrderError unless their positions rise from 0."""
    try:
        pairs = [(begin, weights) for begin, weights in schedule]
    except (TypeError, ValueError):
        raise OrderError(f"weights = {shortened(schedule)}, expected pairs of a position and weights") from None
    entries = [(integer(f"weights[{k}][0]", begin, 0), weights) for k, (begin, weights) in enumerate(pairs)]
    begins = [begin for begin, _ in entries]
    if not begins or begins[0] != 0 or any(later <= earlier for earlier, later in pairwise(begins)):
        raise OrderError(f"weights: expected positions that rise from 0, found {shortened(begins)}")
    return entries


def _ramp(sizes: list[int], one: Any, other: Any) -> list[tuple[int, list[int]]]:
    """Return constant pieces between two entries of a schedule; each has the weights of its middle."""
    (begin, first), (end, last) = one, other
    shares = [np.asarray(each, float) / np.sum(each) for each in (first, last)]
    steps = min(_STEPS, end - begin)
    bounds = [begin + (end - begin) * step // steps for step in range(steps)]
    middles = [(step + 0.5) / steps for step in range(steps)]
    return [
        (at, Mixture(sizes, (shares[0] * (1 - part) + shares[1] * part).tolist(), epoch_size=1).weights)
        for at, part in zip(bounds, middles, strict=True)
    ]
