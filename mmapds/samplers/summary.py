"""Statistics of an epoch of planned batches: what is left out, how much is padding, how equal the ranks are."""

from typing import NamedTuple

import numpy as np

from ..errors import counted
from ..orders.basic import Int64s
from .cursor import Sharding
from .packing import PackLimits, PackWindowPlan
from .plan import LeftOut, Plan
from .window import WindowPlan

_BLOCK = 256  # batches read at a time
_MEASURED = 100_000  # batches measured at most


class PlanSummary(NamedTuple):
    """Statistics of an epoch, over all ranks. A plan has batches, or packs, of which a batch may have several.

    Attributes:
      samples: in an epoch, each counted once.
      too_short: left out because they are shorter than `min_length`.
      too_long: left out because they are longer than `max_length`, or than the limit with `oversize="drop"`.
      too_long_tokens: how many tokens these have.
      over: over the limit by themselves, with `oversize="single"` or `"truncate"`.
      cut_tokens: how many tokens `pack_collate(max_length=pack_length)` cuts off with `oversize="truncate"`.
      dropped: left out at the end of an epoch by `drop_last`.
      repeated: given twice, so that every rank has a last batch.
      planned: batches or packs in the plan.
      batches: of all ranks.
      steps: of the epoch.
      mean_size: samples in a batch or pack of the plan.
      largest: most samples in one, of those that were measured.
      fill: tokens of samples as a share of the limit of all batches or packs.
      padding: share of a padded batch that is padding; of packs, the share that is not filled.
      imbalance: largest cost of a batch in a step, divided by the mean; the mean over the steps that were measured.
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
    fill: float
    padding: float
    imbalance: float

    def __str__(self) -> str:
        skipped = self.too_short + self.too_long + self.dropped
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        return (
            f"{counted(self.samples, 'sample')} in {batches}, {counted(self.steps, 'step')}\n"
            f"{self.fill:.2%} full with {self.mean_size:.1f} samples on average, {self.largest:,} at most; "
            f"{self.padding:.2%} padding, imbalance {self.imbalance:.4f}\n"
            f"skipped {skipped:,}: too short {self.too_short:,}, too long {self.too_long:,} "
            f"({counted(self.too_long_tokens, 'token')}), last step {self.dropped:,}; over the limit {self.over:,} "
            f"({counted(self.cut_tokens, 'token')} to cut); repeated {self.repeated:,}"
        )


def summarise(
    plan: Plan, left_out: LeftOut, sharding: Sharding, epoch: int, dropped: int, repeated: int
) -> PlanSummary:
    """Return the statistics of an epoch of a plan.

    Args:
      dropped, repeated: samples of the last step.
    """
    values, counts = plan.selection.values.astype(object), plan.selection.counts.astype(object)
    is_cut = isinstance(plan.limits, PackLimits)
    cut_tokens = left_out.over_tokens - left_out.over * plan.limits.limit[1] if is_cut else 0
    steps = sharding.steps(len(plan))
    return PlanSummary(
        plan.selection.records - dropped,
        left_out.too_short,
        left_out.too_long,
        left_out.too_long_tokens,
        left_out.over,
        cut_tokens,
        dropped,
        repeated,
        len(plan),
        steps * sharding.num_replicas,
        steps,
        plan.selection.records / len(plan),
        *_measured(plan, sharding, epoch, (int((values * counts).sum()) - cut_tokens) / len(plan)),
    )


def _measured(plan: Plan, sharding: Sharding, epoch: int, tokens: float) -> tuple[int, float, float, float]:
    """Measure the full steps of an epoch; in a long epoch, some of them, spread evenly.

    Args:
      tokens: in a batch or pack of the plan, on average.
    Returns:
      The last four figures of a summary. Without a full step, they are of all batches, and the imbalance is 1.
    """
    read, positions = plan.reader(epoch), _some_positions(plan, sharding)
    sizes, costs, real, space = [], [], 0, 0
    for begin in range(0, len(positions), _BLOCK):
        out, ends = read(positions[begin : begin + _BLOCK])
        sizes.append(np.diff(ends, prepend=0))
        lengths = plan.selection.by_length.lengths.at(out)
        tokens_in, places, cost = plan.measured(lengths, ends - sizes[-1], sizes[-1])
        costs.append(cost)
        real, space = real + int(tokens_in.sum()), space + int(places.sum())
    imbalance = 1.0
    if len(plan) >= sharding.stride:
        of_ranks = np.concatenate(costs).reshape(-1, sharding.batch_size, sharding.num_replicas).sum(axis=1)
        imbalance = float((of_ranks.max(axis=1) / of_ranks.mean(axis=1)).mean())
    return int(np.concatenate(sizes).max()), tokens / plan.limits.limit[1], 1 - real / space, imbalance


def _some_positions(plan: Plan, sharding: Sharding) -> Int64s:
    steps, stride = len(plan) // sharding.stride, sharding.stride
    if not steps:
        return np.arange(len(plan))
    count = min(steps, max(_MEASURED // stride, 1))
    # Windows between steps would have to be read, too.
    last = count - 1 if isinstance(plan, WindowPlan | PackWindowPlan) else steps - 1
    first = np.linspace(0, last, count).astype(np.int64) * stride
    found: Int64s = (first[:, None] + np.arange(stride)).ravel()
    return found
