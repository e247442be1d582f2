"""Which samplers a loader takes: of its dataset, in the right argument, and with a collate function that suits them."""

from functools import partial
from typing import Any

import torch.utils.data

from ..dataset.collate import pad_collate
from ..dataset.pack import pack_collate
from ..errors import OrderError, warn
from ..samplers.data import check_same_samples
from ..samplers.resumable import ResumableSampler


def check_samplers(dataset: Any, sampler: Any, batch_sampler: Any, *, batched: bool) -> None:
    """Refuse samplers of mmapds that yield batches where indices are drawn, or the reverse, or indices of other data.

    Args:
      batched: whether indices of the sampler are made into batches.
    Raises:
      OrderError: it is such a sampler.
    """
    if batched and isinstance(sampler, ResumableSampler) and _yields_batches(sampler):
        raise OrderError(
            f"sampler: expected one of single samples, found {type(sampler).__name__}, which yields batches; give it "
            "as batch_sampler="
        )
    if isinstance(batch_sampler, ResumableSampler) and not _yields_batches(batch_sampler):
        raise OrderError(
            f"batch_sampler: expected one of batches, found {type(batch_sampler).__name__}, which yields single "
            "samples; give it as sampler=, with a batch_size="
        )
    name, given = ("sampler", sampler) if batch_sampler is None else ("batch_sampler", batch_sampler)
    if type(given) is torch.utils.data.BatchSampler:
        given = given.sampler
    if isinstance(given, ResumableSampler):
        check_same_samples(dataset, name, given.sampled)


def _yields_batches(sampler: ResumableSampler) -> bool:
    return isinstance(sampler, torch.utils.data.BatchSampler)


def check_cut(batch_sampler: Any, collate_fn: Any) -> None:
    """Refuse collate functions of mmapds that leave samples as long as they are, where a sampler counts on a cut.

    Raises:
      OrderError: a packing sampler has `oversize="truncate"`, and the function has no `max_length`, or a longer one.
    """
    limit = getattr(batch_sampler, "cut_length", None)
    function, options = _options_of(collate_fn)
    if limit is None or function not in (pack_collate, pad_collate):
        return
    found = options.get("max_length")
    if found is None or found > limit:
        raise OrderError(
            f"collate_fn: expected max_length = {limit} or less, for a sampler with oversize='truncate', which leaves "
            f"the cut to it, found max_length = {found}; give partial(mmapds.{function.__name__}, max_length={limit})"
        )


def warn_of_collating(batch_sampler: Any, collate_fn: Any) -> None:
    """Warn of collate functions of mmapds that make batches other than the sampler planned them."""
    function, options = _options_of(collate_fn)
    _warn_of_rounding(batch_sampler, function, options)
    _warn_of_fuller_rows(batch_sampler, function, options)


def _warn_of_rounding(batch_sampler: Any, function: Any, options: dict[str, Any]) -> None:
    """Warn of samples that are padded further than a sampler counts on.

    Lengths may be in another unit than what is padded, so it is not an error.
    """
    counted = getattr(batch_sampler, "round_to", None)
    name = {pad_collate: "pad_to_multiple_of", pack_collate: "round_to"}.get(function)
    found = options.get(name) if name is not None else None
    if counted is None or type(found) is not int or found < 1 or counted % found == 0:
        return
    warn(
        f"collate_fn: expected {name} to divide {counted}, the round_to of the sampler, found {found}; give the "
        f"sampler round_to={found} (else batches may be larger than it plans)",
    )


def _warn_of_fuller_rows(batch_sampler: Any, function: Any, options: dict[str, Any]) -> None:
    """Warn of `pack_collate` that may put more samples into a row than the sampler put into a pack."""
    limit = getattr(batch_sampler, "max_sequences", None)
    if limit is None or function is not pack_collate or options.get("packs", 1) == 1:
        return  # a row has all samples of the batch, which are those of its packs
    found = options.get("max_sequences")
    if found is None or found > limit:
        warn(
            f"collate_fn: expected max_sequences = {limit}, that of the sampler, as packs = {options['packs']} makes "
            f"rows anew, found {found}; give partial(mmapds.pack_collate, max_sequences={limit}, ...)",
        )


def _options_of(collate_fn: Any) -> tuple[Any, dict[str, Any]]:
    """Return a function, and the arguments that a partial gives it."""
    return (collate_fn.func, collate_fn.keywords) if isinstance(collate_fn, partial) else (collate_fn, {})
