"""Statistics of an epoch of a sampler."""

from typing import Any, NamedTuple

import numpy as np

from ..errors import counted
from .cursor import Sharding, Span
from .plan import Plan

_BLOCK = 256  # batches read at a time
_MEASURED = 100_000  # batches measured at most


class Summary(NamedTuple):
    """Statistics of an epoch, over all ranks. A plan consists of batches or packs; a batch may have several packs.

    Attributes:
      samples: samples of an epoch; estimated if a mixture reads a part of a dataset.
      too_short: samples skipped because they are shorter than `min_length`.
      too_long: samples skipped because they exceed `max_length`, or the limit with `oversize="drop"`.
      too_long_tokens: tokens of the samples in `too_long`.
      over: samples that exceed the limit, with `oversize="single"` or `"truncate"`.
      cut_tokens: tokens that `pack_collate(max_length=pack_length)` cuts off with `oversize="truncate"`.
      dropped: samples that `drop_last` drops at the end of the epoch.
      repeated: samples that come twice, so that every rank has a last batch.
      planned: batches or packs in the plan; without a plan, those of the epoch.
      batches: batches of all ranks; single samples, if the sampler yields these.
      steps: steps of the epoch.
      mean_size: mean number of samples in a batch or pack.
      largest: most samples in a measured batch or pack.
      fill: tokens of samples divided by the limit of all batches or packs; None without a limit.
      padding: share of a padded batch that is padding; for packs, the unfilled share; None without lengths.
      imbalance: largest cost of a batch in a step, divided by the mean cost; averaged over the measured steps; None
        without lengths.
      tokens: of the samples of an epoch, in the unit of the lengths; None without a plan.
    """

    samples: int
    too_short: int
    too_long: int
    too_long_tokens: int
    over: int
    cut_tokens: int
    dropped: int
    repeated: int
    planned: int
    batches: int
    steps: int
    mean_size: float
    largest: int
    fill: float | None
    padding: float | None
    imbalance: float | None
    tokens: int | None

    def __str__(self) -> str:
        skipped = self.too_short + self.too_long + self.dropped
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        full = "" if self.fill is None else f"{self.fill:.2%} full with "
        costs = "" if self.padding is None else f"; {self.padding:.2%} padding, imbalance {self.imbalance:.4f}"
        tokens = "" if self.tokens is None else f" of {counted(self.tokens, 'token')}"
        return (
            f"{counted(self.samples, 'sample')}{tokens} in {batches}, {counted(self.steps, 'step')}\n"
            f"{full}{self.mean_size:.1f} samples on average of {self.planned:,} planned, {self.largest:,} at "
            f"most{costs}\n"
            f"skipped {skipped:,}: too short {self.too_short:,}, too long {self.too_long:,} "
            f"({counted(self.too_long_tokens, 'token')}), last step {self.dropped:,}; over the limit {self.over:,} "
            f"({counted(self.cut_tokens, 'token')} to cut); repeated {self.repeated:,}"
        )


# ---- of plans --------------------------------------------------------------------------------------------------------


def of_plan(plan: Plan, sharding: Sharding, epoch: int, dropped: int, dropped_tokens: int, repeated: int) -> Summary:
    """Return the statistics of an epoch of a plan.

    Args:
      dropped, dropped_tokens, repeated: samples of the last step, and their tokens.
    """
    totals, steps = plan.totals(), sharding.steps(len(plan))
    largest, padding, imbalance = _measured(plan, sharding, epoch)
    return Summary(
        samples=totals.samples - dropped,
        too_short=totals.too_short,
        too_long=totals.too_long,
        too_long_tokens=totals.too_long_tokens,
        over=totals.over,
        cut_tokens=totals.cut_tokens,
        dropped=dropped,
        repeated=repeated,
        planned=len(plan),
        batches=steps * sharding.num_replicas,
        steps=steps,
        mean_size=totals.samples / len(plan),
        largest=largest,
        fill=totals.fill,
        padding=padding,
        imbalance=imbalance,
        tokens=totals.tokens - dropped_tokens,
    )


def _measured(plan: Plan, sharding: Sharding, epoch: int) -> tuple[int, float, float]:
    """Measure the full steps of an epoch: most samples in a batch, padding, imbalance.

    In a long epoch it measures the first steps only. Without a full step, it measures all batches; imbalance is then 1.
    """
    read, stride = plan.reader(epoch), sharding.stride
    steps = min(len(plan) // stride, max(_MEASURED // stride, 1))
    count = steps * stride or len(plan)
    largest, costs, real, space = 0, [], 0, 0
    for begin in range(0, count, _BLOCK):
        out, ends = read(np.arange(begin, min(begin + _BLOCK, count)))
        sizes = np.diff(ends, prepend=0)
        tokens, places, cost = plan.measured(out, ends - sizes, sizes)
        costs.append(cost)
        largest, real, space = max(largest, int(sizes.max())), real + int(tokens.sum()), space + int(places.sum())
    if not steps:
        return largest, 1 - real / space, 1.0
    of_ranks = np.concatenate(costs).reshape(-1, sharding.batch_size, sharding.num_replicas).sum(axis=1)
    return largest, 1 - real / space, float((of_ranks.max(axis=1) / of_ranks.mean(axis=1)).mean())


# ---- of orders -------------------------------------------------------------------------------------------------------


def of_order(records: Any, span: Span, lengths: Any) -> Summary:
    """Return the statistics of an epoch of an order.

    Args:
      records: the records of the order, `ordered.OrderedRecords`.
      span: the epoch.
      lengths: of all records, `index.lengths.Numbers`; None if they are not known, or steps are no batches.
    """
    sharding, steps, padding, imbalance = span.sharding, span.steps, None, None
    whole, rest = divmod(span.total, sharding.stride)
    dropped = rest if sharding.drop_last else 0
    repeated = -rest % sharding.num_replicas if sharding.pad and not sharding.drop_last else 0
    batches = steps * sharding.num_replicas
    if lengths is not None and whole:
        count = min(whole, max(_MEASURED // sharding.num_replicas, 1))
        costs, tokens, many = [], 0, max(_BLOCK // sharding.num_replicas, 1)
        for first in range(0, count, many):
            positions = span.positions(first, min(many, count - first), range(sharding.num_replicas))
            found = lengths.at(records.at(span.epoch, positions.ravel())).reshape(positions.shape)
            costs.append(found.max(axis=1).astype(np.int64) * sharding.batch_size)
            tokens += int(found.sum())
        of_ranks = np.concatenate(costs)
        padding = 1 - tokens / max(int(of_ranks.sum()), 1)
        imbalance = float((of_ranks.max(axis=1) / np.maximum(of_ranks.mean(axis=1), 1)).mean())
    return Summary(
        samples=span.total - dropped,
        too_short=0,
        too_long=0,
        too_long_tokens=0,
        over=0,
        cut_tokens=0,
        dropped=dropped,
        repeated=repeated,
        planned=batches,
        batches=batches,
        steps=steps,
        mean_size=(span.total - dropped + repeated) / max(batches, 1),
        largest=sharding.batch_size if whole else -(-rest // sharding.num_replicas) * (not sharding.drop_last),
        fill=None,
        padding=padding,
        imbalance=imbalance,
        tokens=None,
    )
