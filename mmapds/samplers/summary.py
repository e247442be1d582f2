"""Statistics of an epoch of planned batches: how much of it is padding, and how equal the ranks are."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import counted
from .bucket import BucketPlan
from .pack_plan import PackPlan
from .pack_windows import PackWindowPlan
from .window import WindowPlan

_BLOCK = 256  # batches read at a time
_MEASURED = 100_000  # batches measured at most


class BudgetSummary(NamedTuple):
    """Statistics of an epoch, over all ranks."""

    samples: int
    """Samples in an epoch, each counted once."""
    too_short: int
    """Left out because they are shorter than `min_length`."""
    too_long: int
    """Left out because they are longer than `max_length`, or over the budget with `oversize="drop"`."""
    single: int
    """Over the budget, and a batch each with `oversize="single"`."""
    dropped: int
    """Left out at the end of an epoch by `drop_last`."""
    repeated: int
    """Given twice, so that every rank has a last batch."""
    batches: int
    steps: int
    mean_batch_size: float
    padding: float
    """Share of a padded batch that is padding."""
    fill: float
    """Tokens of samples as a share of the budget of all batches."""
    imbalance: float
    """Largest padded size of the batches of a step, divided by their mean; the mean over steps."""

    def __str__(self) -> str:
        left_out = self.too_short + self.too_long + self.dropped
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        return (
            f"{counted(self.samples, 'sample')} in {batches} of {self.mean_batch_size:.1f}, "
            f"{counted(self.steps, 'step')}\n"
            f"{self.padding:.2%} padding, {self.fill:.1%} of the budget used, imbalance {self.imbalance:.4f}\n"
            f"left out {left_out:,}: too short {self.too_short:,}, too long {self.too_long:,}, last step "
            f"{self.dropped:,}; over-long on their own {self.single:,}; repeated {self.repeated:,}"
        )


def padding_and_imbalance(plan: BucketPlan | WindowPlan, epoch: int, replicas: int) -> tuple[float, float]:
    """Measure these two over the full steps of an epoch; in a long epoch, over some steps, spread evenly.

    Returns:
      See `BudgetSummary`; (0, 1) if there is no full step.
    """
    reader = plan.reader(epoch)
    real = padded = 0
    imbalances: list[NDArray[np.float64]] = []
    steps = min(len(plan) // replicas, max(_MEASURED // replicas, 1))
    count = max(_BLOCK // replicas, 1)  # steps in a block
    blocks = -(-steps // count)
    every = max(len(plan) // replicas - count, 0) / max(blocks - 1, 1)  # steps from one block to the next
    if steps == len(plan) // replicas or isinstance(plan, WindowPlan):
        every = count  # all steps, each once; or a reader that reads what lies between blocks anyway
    for block in range(blocks):
        first = int(block * every) * replicas
        positions = np.arange(first, min(first + count * replicas, len(plan)), dtype=np.int64)
        positions = positions[: len(positions) // replicas * replicas]
        if not len(positions):
            continue
        out, ends = reader.read(positions)
        begins = np.concatenate([[0], ends[:-1]])
        found = plan.selection.by_length.lengths.at(out)
        widths = plan.widths(np.maximum.reduceat(found, begins).astype(np.uint64))
        sizes = widths.astype(np.int64) * (ends - begins)
        real += int(found.sum(dtype=np.int64))
        padded += int(sizes.sum())
        by_step = sizes.reshape(-1, replicas)
        imbalances.append(by_step.max(axis=1) / by_step.mean(axis=1))
    if not imbalances:
        return 0.0, 1.0
    return 1 - real / padded, float(np.concatenate(imbalances).mean())


class PackingSummary(NamedTuple):
    """Statistics of an epoch of packs, over all ranks."""

    samples: int
    """Samples in an epoch, each counted once."""
    too_short: int
    """Left out because they are shorter than `min_length`."""
    too_long: int
    """Left out because they are longer than `max_length`, or than a pack with `oversize="drop"`."""
    too_long_tokens: int
    """How many tokens these have."""
    truncated: int
    """Longer than a pack with `oversize="truncate"`."""
    truncated_tokens: int
    """How many tokens `pack_collate(max_length=pack_length)` cuts off these."""
    dropped: int
    """Left out at the end of an epoch by `drop_last`."""
    repeated: int
    """Given twice, so that every rank has a last batch."""
    packs: int
    batches: int
    steps: int
    fill: float
    """Tokens as a share of the length of all packs."""
    mean_sequences: float
    """Samples in a pack."""
    most_sequences: int
    """In one; in windows, of those that were measured for the imbalance."""
    imbalance: float
    """Largest cost of the batches of a step, the sum of their squared lengths, by the mean; over many steps or all."""

    def __str__(self) -> str:
        left_out = self.too_short + self.too_long + self.dropped
        batches = f"{self.batches:,} batch{'es' * (self.batches != 1)}"
        return (
            f"{counted(self.samples, 'sample')} in {counted(self.packs, 'pack')}, {batches}, "
            f"{counted(self.steps, 'step')}\n"
            f"{self.fill:.2%} filled, {self.mean_sequences:.1f} samples in a pack, {self.most_sequences:,} at most, "
            f"imbalance {self.imbalance:.4f}\n"
            f"left out {left_out:,}: too short {self.too_short:,}, too long {self.too_long:,} "
            f"({counted(self.too_long_tokens, 'token')}), last step {self.dropped:,}; left to the collate function to "
            f"truncate {self.truncated:,} ({counted(self.truncated_tokens, 'token')}); repeated {self.repeated:,}"
        )


def fullest_and_imbalance(
    plan: PackPlan | PackWindowPlan, epoch: int, packs_per_batch: int, replicas: int
) -> tuple[int, float]:
    """Measure them over the full steps of an epoch; in a long epoch, over some steps, spread evenly.

    Returns:
      The sequences of the fullest pack, and the imbalance, which is 1 if there is no full step; see `PackingSummary`.
    """
    stride = packs_per_batch * replicas
    steps = len(plan) // stride
    if not steps:
        return plan.most_sequences(epoch, np.arange(len(plan))), 1.0
    count = min(steps, max(_MEASURED // stride, 1))
    last = count - 1 if isinstance(plan, PackWindowPlan) else steps - 1  # windows between steps would be planned, too
    first = np.linspace(0, last, count).astype(np.int64) * stride
    positions = (first[:, None] + np.arange(stride)).ravel()
    costs = plan.costs_at(epoch, positions).reshape(count, packs_per_batch, replicas).sum(axis=1)
    return plan.most_sequences(epoch, positions), float((costs.max(axis=1) / costs.mean(axis=1)).mean())
