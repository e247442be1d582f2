"""Batches of variable-length samples under a budget of tokens or frames: planned once, nothing to do per epoch."""

import operator
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sized
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch.utils.data
from numpy.typing import ArrayLike, NDArray

from ..errors import ColumnError, FormatError, OrderError
from ..orders.basic import Order, Sequential, Shuffled, integer
from ..storage.numbers import as_numbers
from ..storage.sources import build_command
from .bucket import BucketPlan
from .distributed import Exclude
from .epoch import Deal, Progress, Run, world
from .lengths import Int64s, LengthOrder, Selection
from .plan import Budget, Reader
from .window import WindowPlan

_BLOCK = 256  # batches of a rank that are made at a time
_MEASURED = 100_000  # batches that a summary looks at


class BudgetSummary(NamedTuple):
    """What an epoch comes to, over all ranks."""

    samples: int
    """That an epoch has, each once."""
    too_short: int
    """Left out because they are shorter than `min_length`."""
    too_long: int
    """Left out because they are longer than `max_length`, or than the budget with `oversize="drop"`."""
    single: int
    """Longer than the budget, and batches of their own with `oversize="single"`."""
    dropped: int
    """Left out at the end of an epoch with `drop_last`."""
    repeated: int
    """Given twice so that every rank has a last batch."""
    batches: int
    steps: int
    mean_batch_size: float
    padding: float
    """Share of a padded batch that is padding."""
    fill: float
    """Tokens of samples as a share of the budget of all batches."""
    imbalance: float
    """Largest padded size of the batches of a step, as a multiple of their mean, in the mean over steps."""

    def __str__(self) -> str:
        left_out = self.too_short + self.too_long + self.dropped
        return (
            f"{self.samples:,} samples in {self.batches:,} batches of {self.mean_batch_size:.1f}, {self.steps:,} "
            "steps\n"
            f"{self.padding:.2%} padding, {self.fill:.1%} of the budget used, imbalance {self.imbalance:.4f}\n"
            f"left out {left_out:,}: too short {self.too_short:,}, too long {self.too_long:,}, last step "
            f"{self.dropped:,}; over-long on their own {self.single:,}; repeated {self.repeated:,}"
        )


class TokenBudgetBatchSampler(torch.utils.data.BatchSampler):
    """Batches of samples of similar length that together stay within a budget, as many on every rank.

    With an index that has a length column it starts at once, at any step. Every sample comes exactly once an epoch; no
    batch is empty or over the budget; `len()` is exact and the same in every epoch. The batches of a step cost about
    the same on all ranks. Both planners are described in docs/samplers.md.

    Args:
      dataset_or_lengths: an mmapds dataset with a column "length", or the lengths: an array or list of integers.
      max_tokens: the budget of a batch of one rank, in the unit of the lengths.
      target_lengths: second lengths, of the targets of encoder-decoder data; the budget holds for both.
      max_batch_size: most samples in a batch.
      batch_size_multiple: batches of at least this many samples have a multiple of it.
      cost: "padded" counts the longest length times the number of samples, as a padded tensor takes; "sum" is for
        models that pack samples without padding, and is bounded in the same way.
      quadratic_length: a sample of length L costs L + L^2 / quadratic_length, for attention that is quadratic.
      min_length, max_length: samples outside are left out.
      oversize: what to do with a sample that exceeds the budget on its own: "error", "drop" it, or make it a "single"
        batch over the budget.
      planner: "bucket" plans by length alone; "window" follows an order, for chunked reads or fully random mates.
      sort_window: positions of the order that a record waits for its batch, in the mean; for "window".
      group_size: neighbouring batches that stay together through shuffling, by default the number of replicas; it
        travels in the state, so that a resumed job of another size keeps the same sequence. For "bucket".
      num_replicas, rank: default to those of torch.distributed, else of the environment, else to 1 and 0.
      shuffle: other batches in another order every epoch (see `set_epoch`); else from the longest to the shortest.
      seed: chooses the orders; the same on all ranks.
      drop_last: leave out a last step for which there are not as many batches as ranks; else those are split up.
      start_step: where the first pass begins, in batches.
      order: the order to follow, a bijection of the records (see `mmapds.orders`); for "window".
      exclude: steps and records that the first pass leaves out; see `DistributedSampler`.
      order_cache: a file that holds the sorted order of lengths that are not an index's, for all ranks of a machine.
    Raises:
      OrderError: an argument or a length is out of range, or nothing is left; it is also a ValueError.
      ColumnError: the dataset has no lengths; the message has the command that adds them.
    """

    batch_size: int | None  # type: ignore[assignment]

    def __init__(
        self,
        dataset_or_lengths: Sized | ArrayLike,
        max_tokens: int,
        *,
        target_lengths: ArrayLike | None = None,
        max_batch_size: int | None = None,
        batch_size_multiple: int = 1,
        cost: str = "padded",
        quadratic_length: int | None = None,
        min_length: int | None = None,
        max_length: int | None = None,
        oversize: str = "error",
        planner: str = "bucket",
        sort_window: int = 8192,
        group_size: int | None = None,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        start_step: int = 0,
        order: Order | None = None,
        exclude: Exclude | None = None,
        order_cache: str | None = None,
    ) -> None:
        self.num_replicas, self.rank = world(num_replicas, rank)
        self.batch_size = None
        self.drop_last = drop_last
        self.shuffle = shuffle
        self.seed = integer("seed", seed)
        _one_of("cost", cost, ("padded", "sum"))
        _one_of("oversize", oversize, ("error", "drop", "single"))
        _one_of("planner", planner, ("bucket", "window"))
        if planner == "bucket" and order is not None:
            raise OrderError('order: the planner "bucket" makes its own; expected planner="window" with an order')
        if planner == "window" and group_size is not None:
            raise OrderError('group_size: the planner "window" has no groups; expected none')
        self._budget = Budget(
            _count("max_tokens", max_tokens),
            min(2**31 if max_batch_size is None else _count("max_batch_size", max_batch_size), 2**31),
            _count("batch_size_multiple", batch_size_multiple),
            0 if quadratic_length is None else _count("quadratic_length", quadratic_length),
        )
        self._lengths, by_length = _read_lengths(dataset_or_lengths, target_lengths, order_cache)
        self._indexes: list[str] = getattr(dataset_or_lengths, "indexes", [])  # for messages
        low = 0 if min_length is None else _count("min_length", min_length, 0)
        high = 2**64 - 1 if max_length is None else _count("max_length", max_length)
        self._selection, self._left_out = _select(by_length, self._budget, low, high, oversize)
        if self._selection.records < self.num_replicas:
            raise OrderError(
                f"num_replicas = {self.num_replicas}, more than the {self._selection.records} samples there are; "
                "every rank needs one"
            )
        self._group_size = None if group_size is None else _count("group_size", group_size)
        self._plan: BucketPlan | WindowPlan
        if planner == "bucket":
            self._plan = self._bucket_plan(self._group_size or self.num_replicas)
        else:
            if order is None:
                order = Shuffled(len(self._lengths), seed) if shuffle else Sequential(len(self._lengths))
            if len(order) != len(self._lengths):
                raise OrderError(f"the order has {len(order)} positions, expected each of {len(self._lengths)} records")
            self._plan = WindowPlan(
                self._selection,
                self._lengths,
                self._budget,
                order=order,
                sort_window=_count("sort_window", sort_window),
                seed=self.seed,
                shuffle=shuffle,
            )
        if drop_last and len(self._plan) < self.num_replicas:
            raise OrderError(
                f"drop_last: {len(self._plan)} batches for num_replicas = {self.num_replicas} leave no step; "
                "expected drop_last=False or a smaller max_tokens"
            )
        self._exclude = {kind: list(ranges) for kind, ranges in (exclude or {}).items()}
        self._progress = self._new_progress(self._plan, start_step, self._exclude)
        self.sampler = _Samples(self)

    def _bucket_plan(self, group_size: int) -> BucketPlan:
        return BucketPlan(
            self._selection,
            self._lengths,
            self._budget,
            group_size=group_size,
            seed=self.seed,
            shuffle=self.shuffle,
        )

    def _new_progress(self, plan: BucketPlan | WindowPlan, start_step: int, exclude: Exclude | None) -> Progress:
        deal = Deal(self.num_replicas, self.rank, 1, self.drop_last)
        return Progress(plan, deal, epoch_size=None, start_step=start_step, exclude=exclude, block=_BLOCK)

    @property
    def epoch(self) -> int:
        """The epoch that the next pass is of."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next pass; any but a restored state's own clears the position it restored."""
        self._progress.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of a rank in a whole epoch: the same on every rank, in every epoch, and wherever a pass begins."""
        return len(self._progress)

    def __iter__(self) -> Iterator[list[int]]:
        """Return a pass that begins, and reads the epoch, when its first batch is asked for."""
        run = self._progress.begin()
        reader = self._plan.reader(run.epoch)
        hidden = _Hidden(run)

        def make(first: int, positions: Int64s) -> list[list[int]]:
            last = run.remainder(first)
            if len(last) and not self.drop_last:
                return [self._shared(self._read(reader, last), hidden)[self.rank].tolist()]
            out, ends = self._read(reader, positions.ravel())
            if hidden:
                return [batch.tolist() for batch in hidden.filter(_cut(out, ends))]
            records = out.tolist()  # at once, and not batch by batch: twice as fast
            return [records[begin:end] for begin, end in pairwise([0, *ends.tolist()])]

        yield from run.deliver(make)

    def indices_at(self, step: int) -> list[NDArray[np.int64]]:
        """Return the records that make up a step of this epoch: the batch of each rank, in order of ranks."""
        run = self._progress.run_at(step)
        reader, hidden = self._plan.reader(run.epoch), _Hidden(run)
        last = run.remainder(step - run.first_step)
        if len(last):
            return self._shared(self._read(reader, last), hidden)
        positions = run.records(step - run.first_step, 1, range(self.num_replicas)).ravel()
        return hidden.filter(_cut(*self._read(reader, positions)))

    def _read(self, reader: Reader, positions: Int64s) -> tuple[Int64s, Int64s]:
        try:
            return reader.read(positions)
        except OrderError:
            raise
        except ValueError as error:
            if not self._indexes:
                raise FormatError(f"order_cache: DAMAGED: {error}; delete it") from None
            command = build_command(self._indexes, "--force")
            raise FormatError(f"{self._indexes[0]}: DAMAGED: {error}; run: {command}") from None

    def _shared(self, read: tuple[Int64s, Int64s], hidden: "_Hidden") -> list[Int64s]:
        """The batches of a last step that does not go round, split up so that every rank has one.

        Batches with many samples are split most. Where there are fewer samples than ranks, some come twice.
        """
        batches = hidden.filter(_cut(*read))
        parts = [1] * len(batches)
        for _ in range(self.num_replicas - len(batches)):
            sizes = [len(batch) / part if part < len(batch) else 0 for batch, part in zip(batches, parts, strict=True)]
            largest = int(np.argmax(sizes))
            if not sizes[largest]:
                break
            parts[largest] += 1
        found = [piece for batch, part in zip(batches, parts, strict=True) for piece in np.array_split(batch, part)]
        return [found[rank % len(found)] for rank in range(self.num_replicas)]

    def state_dict(self, step: int | None = None) -> dict[str, Any]:
        """Return where the epoch is; see `DistributedSampler.state_dict`. Steps are batches."""
        return self._progress.state_dict(step)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state, whatever the number of replicas it was saved with: the same batches go on.

        Raises:
          StateError: the state is of other lengths, another budget, seed, planner or version, or none at all.
        """
        plan, progress = self._plan, self._progress
        if isinstance(plan, BucketPlan) and self._group_size is None and isinstance(state_dict, Mapping):
            order = state_dict.get("order")
            saved = order.get("group_size") if isinstance(order, Mapping) else None
            if type(saved) is int and 1 <= saved < 2**31 and saved != plan.group_size:
                plan = self._bucket_plan(saved)
                progress = self._new_progress(plan, 0, self._exclude)
        progress.load_state_dict(state_dict)  # which may refuse; nothing has changed then
        self._plan, self._progress = plan, progress

    def summary(self) -> BudgetSummary:
        """Print and return what this epoch comes to. Of long epochs, shares are measured over some of the steps."""
        values, counts = self._selection.values.astype(object), self._selection.counts.astype(object)
        tokens = int((values * counts).sum())
        whole, rest = divmod(len(self._plan), self.num_replicas)
        measured = self._measure(min(whole, max(_MEASURED // self.num_replicas, 1)))
        repeated = dropped = 0
        batches = whole * self.num_replicas
        if rest and self.drop_last:
            dropped = sum(len(batch) for batch in self._tail(whole, rest))
        elif rest:
            found = [len(batch) for batch in self._shared(self._tail_read(whole, rest), _Hidden())]
            repeated = sum(found) - sum(len(batch) for batch in self._tail(whole, rest))
            batches += self.num_replicas
        samples = self._selection.records - dropped
        summary = BudgetSummary(
            samples=samples,
            **self._left_out,
            dropped=dropped,
            repeated=repeated,
            batches=batches,
            steps=len(self),
            mean_batch_size=(samples + repeated) / batches,
            padding=measured[0],
            fill=tokens / (len(self._plan) * self._budget.max_tokens),
            imbalance=measured[1],
        )
        print(summary)
        return summary

    def _tail_read(self, whole: int, rest: int) -> tuple[Int64s, Int64s]:
        positions = np.arange(whole * self.num_replicas, whole * self.num_replicas + rest, dtype=np.int64)
        return self._plan.reader(self.epoch).read(positions)

    def _tail(self, whole: int, rest: int) -> list[Int64s]:
        return _cut(*self._tail_read(whole, rest))

    def _measure(self, steps: int) -> tuple[float, float]:
        """The share of padding, and the imbalance, in some whole steps; (0, 1) if there are none."""
        reader, replicas = self._plan.reader(self.epoch), self.num_replicas
        real = padded = 0
        imbalances: list[NDArray[np.float64]] = []
        count = max(_BLOCK // replicas, 1)
        blocks = -(-steps // count)
        every = max(len(self._plan) // replicas - count, 0) / max(blocks - 1, 1)
        if isinstance(self._plan, WindowPlan):
            every = count  # a reader of windows goes through what lies between anyway
        for block in range(blocks):
            first = int(block * every) * replicas
            positions = np.arange(first, min(first + count * replicas, len(self._plan)), dtype=np.int64)
            positions = positions[: len(positions) // replicas * replicas]
            if not len(positions):
                continue
            out, ends = reader.read(positions)
            begins = np.concatenate([[0], ends[:-1]])
            lengths = self._lengths[out]
            sizes = np.maximum.reduceat(lengths, begins).astype(np.int64) * (ends - begins)
            real += int(lengths.sum(dtype=np.int64))
            padded += int(sizes.sum())
            by_step = sizes.reshape(-1, replicas)
            imbalances.append(by_step.max(axis=1) / by_step.mean(axis=1))
        if not imbalances:
            return 0.0, 1.0
        return 1 - real / padded, float(np.concatenate(imbalances).mean())


class _Samples(torch.utils.data.Sampler[int]):
    """What trainers look for as a batch sampler's sampler: `set_epoch`, and the samples of this rank one by one."""

    def __init__(self, batches: TokenBudgetBatchSampler) -> None:
        self._batches = batches

    @property
    def epoch(self) -> int:
        return self._batches.epoch

    def set_epoch(self, epoch: int) -> None:
        self._batches.set_epoch(epoch)

    def __len__(self) -> int:
        """About how many samples a rank has in an epoch: how many exactly depends on which batches it gets."""
        return -(-self._batches._selection.records // self._batches.num_replicas)

    def __iter__(self) -> Iterator[int]:
        for batch in self._batches:
            yield from batch


class _Hidden:
    """Records that a run leaves out. Batches of nothing else are left out by the run itself."""

    def __init__(self, run: Run | None = None) -> None:
        self._ranges = run.start.records if run else ()

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def filter(self, batches: list[Int64s]) -> list[Int64s]:
        for begin, end in self._ranges:
            batches = [batch[(batch < begin) | (batch >= end)] for batch in batches]
        return batches


def _cut(out: Int64s, ends: Int64s) -> list[Int64s]:
    return [out[begin:end] for begin, end in pairwise([0, *ends.tolist()])]


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OrderError(f"{name} = {value!r}, expected {' or '.join(map(repr, known))}")


def _count(name: str, value: int, least: int = 1) -> int:
    count = operator.index(value) if hasattr(value, "__index__") else -1
    if not least <= count < 2**63:
        raise OrderError(f"{name} = {value!r}, expected an integer of {least} or more")
    return count


def _read_lengths(given: Any, targets: Any, cache: str | None) -> tuple[NDArray[Any], LengthOrder]:
    """The lengths as u32 or u64, and their order; both are the index's own where it has them."""
    if hasattr(given, "length_order"):
        lengths, stored = given.lengths, given.length_order
        if lengths.dtype.kind != "u":
            raise ColumnError(f"lengths are integers of 0 or more, the column 'length' has type {lengths.dtype}")
    else:
        lengths, stored = _checked("lengths", given), None
    if len(lengths) == 0:
        raise OrderError("there are no samples")
    if targets is not None:
        second = _checked("target_lengths", targets)
        if len(second) != len(lengths):
            raise OrderError(f"{len(second)} target_lengths for {len(lengths)} lengths, expected one for each")
        lengths, stored = np.maximum(lengths, second), None
    if stored is not None:
        return lengths, LengthOrder(*stored)
    lengths = np.ascontiguousarray(lengths)
    return lengths, LengthOrder.of(lengths, cache)


def _checked(name: str, given: Any) -> NDArray[Any]:
    """Lengths as u32, or u64 where one needs it."""
    if not isinstance(given, list | tuple | np.ndarray) and not hasattr(given, "__array__"):
        raise OrderError(
            f"{name}: expected an mmapds dataset, or an array or list of integers, found {type(given).__name__}"
        )
    values = as_numbers(given)
    if values.ndim != 1:
        raise OrderError(f"{name} have shape {values.shape}, expected one dimension")
    if not values.size:
        return values.astype(np.uint32)
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise OrderError(f"{name}[{int(np.argmax(np.isnan(values)))}] is NaN, expected integers of 1 or more")
    if values.dtype.kind not in "iu":
        raise OrderError(f"{name} have type {values.dtype}, expected integers of 1 or more")
    if values.min() < 0:
        at = int(np.argmax(values < 0))
        raise OrderError(f"{name}[{at}] = {values[at]}, expected 1 or more")
    return np.ascontiguousarray(values, np.uint32 if int(values.max()) < 2**32 else np.uint64)


def _select(
    by_length: LengthOrder, budget: Budget, low: int, high: int, oversize: str
) -> tuple[Selection, dict[str, int]]:
    """The samples that are planned, and how many are not, or are over the budget."""
    values, counts = by_length.values, by_length.counts
    begin = int((values > np.uint64(high)).sum())
    end = max(int((values >= np.uint64(low)).sum()), begin)
    if end > begin and values[end - 1] == 0:
        record = int(by_length.order[int(counts[:end].sum()) - 1])
        raise OrderError(
            f"lengths[{record}] = 0, and {int(counts[end - 1]) - 1:,} more; expected 1 or more, or min_length=1"
        )
    fits = bisect_left(range(end), True, begin, key=lambda i: budget.cost(int(values[i])) <= budget.max_tokens)
    over = int(counts[begin:fits].sum())
    if over and oversize == "error":
        record = int(by_length.order[int(counts[:begin].sum())])
        raise OrderError(
            f"{over:,} samples exceed max_tokens = {budget.max_tokens} on their own, the longest is lengths[{record}] "
            f'= {int(values[begin])}; expected a larger max_tokens, a max_length, or oversize="drop" or "single"'
        )
    if oversize == "drop":
        begin = fits
    if begin == end:
        raise OrderError(
            f"no sample is left of {int(counts.sum()):,}, whose lengths are {int(values[-1])} to {int(values[0])}: "
            f"min_length = {low}, max_length = {high if high < 2**63 else None}, max_tokens = {budget.max_tokens}"
        )
    left_out = {
        "too_short": int(counts[end:].sum()),
        "too_long": int(counts[:begin].sum()),
        "single": over if oversize == "single" else 0,
    }
    return Selection(by_length, int(counts[:begin].sum()), slice(begin, end)), left_out
