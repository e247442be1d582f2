"""Collating into packs: samples one after another in a row, and what keeps attention inside each of them."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .. import _native
from ..errors import CollateError, OrderError, listed, warn
from .batch import LazyBatch
from .collate import (
    ANY_LENGTH,
    LONGEST_EMPTY,
    check_lists,
    check_samples,
    check_truncate,
    names_of_lists,
    pad_collate,
    pad_values,
    paths_of,
    positive,
)
from .gather import Arrays, Number, Path, as_arrays, empty, gathered, kind_of

Int64s = NDArray[np.int64]
_KEYS = {
    "flash": ("cu_seqlens", "max_seqlen"),
    "hf": ("position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx"),
    "megatron": ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "position_ids"),
    "segments": ("segment_ids", "positions"),
}
"""The layouts, and what stands beside the fields of the samples."""
_INPUTS = ("tokens", "input_ids")
"""Fields that models read, which are never labels."""
_IGNORED = -100  # the label that losses leave out
_MOST = 2**31 - 1  # tokens, which cu_seqlens counts in int32


class _Options(NamedTuple):
    layout: str
    pad_to: int | None
    packs: int | None
    max_sequences: int | None
    round_to: int
    max_length: int
    left: bool
    labels: str | None
    wanted: set[str]
    """The keys beside the fields that are only there if they are asked for."""


def pack_collate(
    samples: Sequence[Any],
    *,
    layout: Literal["flash", "hf", "megatron", "segments"] = "flash",
    pad_to: int | None = None,
    packs: int | None = None,
    max_sequences: int | None = None,
    round_to: int = 1,
    max_length: int | None = None,
    truncate: Literal["right", "left"] = "right",
    pad_value: Number | Mapping[Any, Any] = 0,
    labels: str | None = None,
    lists: Iterable[Any] = (),
    flash_attn_kwargs: bool = False,
    seq_idx: bool = False,
) -> dict[Any, Any]:
    """Return some samples one after another as one row, for models that keep them apart; for `collate_fn`.

    Samples are dicts, or arrays alone, which count as "tokens" ("input_ids" for "hf"). Fields of arrays, tensors or
    lists of numbers are joined along their first axis; other fields become what `pad_collate` makes of them, one value
    a sample, and so do lists that are all empty beside others that are not. What stands beside them depends on the
    layout, T being all tokens:

    - "flash", for flash-attn and torch's varlen attention: fields of shape (T, ...); "cu_seqlens", where samples begin,
      then T, int32 of shape (samples + 1,); "max_seqlen", an int.
    - "hf", for Hugging Face's models: fields of shape (1, T, ...); "position_ids", int64, from 0 in each sample;
      "labels", int64, -100 at the first token of each sample, from the field of that name, else "input_ids". An
      "attention_mask" is left out.
    - "megatron", for Megatron's "thd": as "flash", with samples padded to `round_to`; "cu_seqlens" is of tokens alone,
      "cu_seqlens_padded" with padding; "position_ids".
    - "segments", for JAX: fields of shape (T, ...); "segment_ids", int32, from 1, 0 in padding; "positions", int32.

    Args:
      samples: one or more, with the same fields.
      pad_to: make T this, with padding at the end, which is one more sample for attention (none for "megatron").
      packs: for batches of several packs, in the layouts "hf" and "segments": fields of shape (packs, pad_to, ...). A
        sample that does not fit its row begins the next. In the other layouts, several packs are one longer row.
      max_sequences: most samples in a pack. "cu_seqlens" has one size then, filled up with T: `max_sequences` + 1, and
        one more with `pad_to`.
      round_to: for "megatron": samples take a multiple of this.
      max_length: cut longer samples to this length, as `oversize="truncate"` of the sampler needs.
      truncate: cut off the end ("right") or the start ("left").
      pad_value: a number that every padded dtype can hold, or a dict of field name to such a number.
      labels: the field whose first token of each sample becomes -100, as for "hf", where it is "labels"; one beside the
        inputs, which stay as they are.
      lists: fields that are not joined, whatever they hold, and become lists of a value for each sample: ["embedding"].
        A field of a nested dict is named with dots.
      flash_attn_kwargs: for "hf": add "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q" and "max_length_k".
      seq_idx: for "hf": add "seq_idx", the number of each token's sample, int32, for Mamba.
    Raises:
      CollateError: there is no sample; samples differ in fields, or the fields of one in length; they do not fit
        `pad_to`, `packs` or `max_sequences`; an argument does not fit. It is also a ValueError.
    """
    check_samples(samples)
    check_truncate(truncate)
    cut, lists = (max_length, truncate == "left"), names_of_lists(lists)
    options = _options(layout, pad_to, packs, max_sequences, round_to, cut, labels, flash_attn_kwargs, seq_idx)
    batch = _packed(samples, options, pad_value, lists)
    check_lists(batch, lists)
    return batch


def _options(
    layout: str,
    pad_to: int | None,
    packs: int | None,
    max_sequences: int | None,
    round_to: int,
    cut: tuple[int | None, bool],
    labels: str | None,
    flash_attn_kwargs: bool,
    seq_idx: bool,
) -> _Options:
    """Return the arguments, checked.

    Raises:
      CollateError: one is out of range, or does not fit the others.
    """
    if layout not in _KEYS:
        raise CollateError(f"layout = {layout!r}, expected {' or '.join(map(repr, _KEYS))}")
    if packs is not None and layout not in ("hf", "segments"):
        raise CollateError(
            f"packs = {packs!r}, expected None with layout={layout!r}, where several packs are one longer row"
        )
    if packs is not None and pad_to is None:
        raise CollateError(f"packs = {packs!r}, expected pad_to beside it, the length of a pack; give pad_to=N")
    if round_to != 1 and layout != "megatron":
        raise CollateError(f"round_to = {round_to!r}, expected 1 with layout={layout!r}, which has no padding inside")
    if layout != "hf" and (flash_attn_kwargs or seq_idx):
        name = "flash_attn_kwargs" if flash_attn_kwargs else "seq_idx"
        raise CollateError(f"{name} = True, expected False with layout={layout!r}; choose layout='hf'")
    optional = {"cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k"} if flash_attn_kwargs else set()
    max_length, left = cut
    return _Options(
        layout,
        None if pad_to is None else positive("pad_to", pad_to),
        None if packs is None else positive("packs", packs),
        None if max_sequences is None else positive("max_sequences", max_sequences),
        positive("round_to", round_to),
        ANY_LENGTH if max_length is None else min(positive("max_length", max_length), ANY_LENGTH),
        left,
        "labels" if labels is None and layout == "hf" else labels,
        optional | ({"seq_idx"} if seq_idx else set()),
    )


def _packed(samples: Sequence[Any], options: _Options, pad_value: Any, lists: list[Any]) -> dict[Any, Any]:
    omitted = ("attention_mask",) if options.layout == "hf" else ()
    fields = gathered(_named(samples, options), Path(), paths_of(lists), omitted)
    if any(field.lengths.any() for field in _sequences(fields)):
        fields = _without_empty_lists(fields)
    lengths = np.minimum(_shared_lengths(fields), options.max_length)
    _check_size(fields, lengths)
    places = _Places.of(lengths, options)
    batch = _joined(fields, places, pad_value, options, Path())
    if options.labels is not None:
        _set_labels(batch, fields, places, options)
    clash = next((key for key in _KEYS[options.layout] if key in batch), None)
    if clash is not None:
        raise CollateError(f"samples[0]: field {clash!r} clashes with that of layout={options.layout!r}; rename it")
    return batch | _beside(places, options)


# ---- the fields of samples ------------------------------------------------------------------------------------


def _named(samples: Sequence[Any], options: _Options) -> Sequence[Any]:
    """Return samples that are dicts; those that are arrays alone get a name."""
    if isinstance(samples, LazyBatch):
        return samples
    samples = as_arrays(samples, Path())
    kinds = set(map(kind_of, samples))
    if kinds <= {"array", "empty"}:
        return [{"input_ids" if options.layout == "hf" else "tokens": sample} for sample in samples]
    if kinds != {"fields"}:
        i = next(i for i, sample in enumerate(samples) if kind_of(sample) != "fields")
        raise CollateError(f"samples[{i}]: expected a dict of fields, or an array, found {type(samples[i]).__name__}")
    return samples


def _without_empty_lists(fields: dict[Any, Any]) -> dict[Any, Any]:
    """Return fields, of which those whose lists are all empty are lists: they cannot be as long as the others."""
    left = {}
    for name, field in fields.items():
        if isinstance(field, dict):
            field = _without_empty_lists(field)
        elif isinstance(field, Arrays) and field.are_empty_lists:
            field = [[] for _ in field.lengths]
        left[name] = field
    return left


def _sequences(fields: Mapping[Any, Any]) -> Iterator[Arrays]:
    """Yield the fields that are to be joined."""
    for field in fields.values():
        if isinstance(field, Arrays):
            yield field
        elif isinstance(field, dict):
            yield from _sequences(field)


def _shared_lengths(fields: Mapping[Any, Any]) -> Int64s:
    """Return the length of each sample.

    Raises:
      CollateError: no field has one, or those of a sample differ.
    """
    found = list(_sequences(fields))
    if not found:
        raise CollateError(f"samples[0]: expected a field of arrays to pack, found {listed(fields)}")
    for field in found[1:]:
        differs = field.lengths != found[0].lengths
        if differs.any():
            i = int(differs.argmax())
            raise CollateError(
                f"samples[{i}]{field.path}: expected {found[0].lengths[i]} entries, as in samples[{i}]{found[0].path}, "
                f"found {field.lengths[i]}; give lists=[...] with the names of fields that have no entry for each token"
            )
    return found[0].lengths


def _check_size(fields: Mapping[Any, Any], lengths: Int64s) -> None:
    """Raise CollateError for samples that are too long to be counted, or long though they hold nothing."""
    longest = int(lengths.argmax())
    if lengths[longest] > _MOST:
        raise CollateError(
            f"samples[{longest}]: expected up to {_MOST} tokens, found {lengths[longest]}; give max_length=N to cut it"
        )
    first, *others = _sequences(fields)
    if all(0 in field.tail for field in (first, *others)) and lengths.sum() > LONGEST_EMPTY:
        raise CollateError(
            f"samples[{longest}]{first.path}: expected an array with items, or one of up to {LONGEST_EMPTY} entries in "
            f"a batch, found shape {(int(lengths[longest]), *first.tail)}; give max_length=N to cut it"
        )


# ---- where samples stand --------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """Where each sample stands among all tokens of the batch."""

    begins: Int64s
    lengths: Int64s
    """Without what is cut off."""
    rows: int
    row: int
    """Tokens in a row."""

    @property
    def total(self) -> int:
        return self.rows * self.row

    @classmethod
    def of(cls, lengths: Int64s, options: _Options) -> _Places:
        """Place samples one after another, in rows if there are several.

        Raises:
          CollateError: they do not fit.
        """
        taken = -(-lengths // options.round_to) * options.round_to
        if options.packs is None:
            begins, rows, row = np.cumsum(taken) - taken, 1, int(taken.sum())
            _check_fit(len(lengths), row, options)
            row = options.pad_to or row
        else:
            rows, row = options.packs, options.pad_to or 0
            begins = _begins_in_rows(taken.tolist(), row, rows, options.max_sequences or len(taken))
        if rows * row > _MOST:
            raise CollateError(f"samples: expected up to {_MOST} tokens in a batch, found {rows * row}")
        return cls(begins, lengths, rows, row)

    def bounds(self) -> tuple[Int64s, NDArray[np.int32]]:
        """Return where samples and paddings begin, then `total`; and the number of each sample, -1 for a padding."""
        ends = self.begins + self.lengths
        used = min(int(self.begins[-1]) // max(self.row, 1) + 1, self.rows)  # rows
        following = np.append(self.begins[1:], used * self.row)
        edges = np.stack([self.begins, ends], axis=1).ravel()
        numbers = np.stack([np.arange(len(ends)), np.full(len(ends), -1)], axis=1).ravel()
        kept = np.stack([np.ones(len(ends), np.bool_), following > ends], axis=1).ravel()
        empty_rows = np.arange(used, self.rows) * self.row
        bounds = np.concatenate([edges[kept], empty_rows, [self.total]])
        return bounds, np.concatenate([numbers[kept], np.full(len(empty_rows), -1)]).astype(np.int32)


def _check_fit(samples: int, tokens: int, options: _Options) -> None:
    most = options.max_sequences
    if most is not None and samples > most:
        raise CollateError(f"max_sequences = {most}, expected {samples} or more, the number of samples")
    if options.pad_to is not None and tokens > options.pad_to:
        raise CollateError(
            f"pad_to = {options.pad_to}, expected {tokens} or more, the tokens of {samples} samples; give max_length=N "
            "to cut longer samples"
        )


def _begins_in_rows(taken: list[int], row: int, rows: int, most: int) -> Int64s:
    """Place samples in rows; one that does not fit a row, or is one too many for it, begins the next."""
    begins, at, count, used = [], 0, 0, 0  # count and used: samples and tokens in the row that begins at `at`
    for i, tokens in enumerate(taken):
        if tokens > row:
            raise CollateError(
                f"samples[{i}]: expected up to pad_to = {row} tokens, found {tokens}; give max_length={row} to cut it"
            )
        if used + tokens > row or count == most:
            at, count, used = at + row, 0, 0
        begins.append(at + used)
        count, used = count + 1, used + tokens
    if at >= rows * row:
        raise CollateError(
            f"packs = {rows}, expected {at // row + 1} or more, the rows of {row} tokens that are needed"
        )
    return np.array(begins, np.int64)


# ---- the batch ------------------------------------------------------------------------------------------------


def _joined(fields: Mapping[Any, Any], places: _Places, pad: Any, options: _Options, path: Path) -> dict[Any, Any]:
    """Return fields, those of arrays joined."""
    batch: dict[Any, Any] = {}
    for name, own in pad_values(fields, path, pad):
        field = fields[name]
        if isinstance(field, dict):
            batch[name] = _joined(field, places, own, options, path.to(name))
        elif isinstance(field, Arrays):
            joined = field.joined((places.total,), places.begins, own, options.max_length, left=options.left)
            batch[name] = _in_rows(joined, places, options)
        else:
            batch[name] = field
    return batch


def _in_rows(tensor: torch.Tensor, places: _Places, options: _Options) -> torch.Tensor:
    """Return all tokens in the shape that the layout gives them."""
    if options.layout == "hf" or options.packs is not None:
        return tensor.view(places.rows, places.row, *tensor.shape[1:])
    return tensor


def _set_labels(batch: dict[Any, Any], fields: Mapping[Any, Any], places: _Places, options: _Options) -> None:
    """Make labels int64, and those that losses must leave out -100: the first of each sample, and padding.

    Raises:
      CollateError: there is no such field, or it does not hold integers.
    """
    name = options.labels
    source = "input_ids" if options.layout == "hf" and name not in fields else name
    field = fields.get(source)
    others = [each for each in _sequences(fields) if each is not field]
    if source == name != "labels" and field is not None and (name in _INPUTS or not others):
        raise CollateError(
            f"labels = {name!r}, expected a field beside the inputs, found the inputs, whose first tokens would become "
            f"{_IGNORED}; give samples a field of labels, with ds.map(f) whose f returns {{{name!r}: tokens, 'labels': "
            "tokens}, and labels='labels' (layout='hf' makes labels of input_ids by itself)"
        )
    if not isinstance(field, Arrays) or field.dtype.is_floating_point:
        known = ", ".join(map(repr, fields))
        raise CollateError(f"samples[0]: expected arrays of integers as field {source!r}, for labels, found {known}")
    made = batch[source].to(torch.int64, copy=source != name)
    flat = made.view(places.total, *field.tail)
    flat[torch.from_numpy(places.begins[places.lengths > 0])] = _IGNORED
    bounds, numbers = places.bounds()
    for k in np.flatnonzero(numbers < 0).tolist():
        flat[bounds[k] : bounds[k + 1]] = _IGNORED
    batch[name] = made


def _beside(places: _Places, options: _Options) -> dict[str, Any]:
    """Return what a layout has beside the fields; of the optional part, what is wanted."""
    bounds, numbers = places.bounds()
    longest = int(np.diff(bounds).max())
    if options.layout == "flash":
        return {"cu_seqlens": _int32(bounds, places, options), "max_seqlen": longest}
    if options.layout == "hf":
        positions, ids = _numbered(bounds, torch.int64, np.arange(len(numbers), dtype=np.int32), places)
        cu = _int32(bounds, places, options)
        every = {"cu_seq_lens_q": cu, "cu_seq_lens_k": cu, "max_length_q": longest, "max_length_k": longest}
        every["seq_idx"] = _in_rows(ids, places, options)
        found = {"position_ids": _in_rows(positions, places, options)}
        return found | {key: value for key, value in every.items() if key in options.wanted}
    if options.layout == "segments":
        positions, ids = _numbered(bounds, torch.int32, numbers + np.int32(1), places)
        return {key: _in_rows(each, places, options) for key, each in (("segment_ids", ids), ("positions", positions))}
    taken = -(-places.lengths // options.round_to) * options.round_to
    used = int(taken.sum())
    rest = [places.total] if places.total > used else []
    real = np.concatenate([[0], np.cumsum(places.lengths)])
    return {
        "cu_seqlens": _int32(np.append(real, real[-1:] if rest else []), places, options),
        "cu_seqlens_padded": _int32(np.concatenate([places.begins, [used], rest]), places, options),
        "max_seqlen": int(taken.max()),
        "position_ids": _numbered(bounds, torch.int64, numbers, places)[0],
    }


def _int32(bounds: NDArray[Any], places: _Places, options: _Options) -> torch.Tensor:
    """Return bounds as int32; of one size if a pack has so many samples at most, filled up with the last."""
    size = len(bounds)
    if options.max_sequences is not None:
        size = places.rows * (options.max_sequences + (options.pad_to is not None)) + 1
    tensor = empty((size,), torch.int32)
    tensor.numpy()[: len(bounds)] = bounds
    tensor.numpy()[len(bounds) :] = bounds[-1]
    return tensor


def _numbered(
    bounds: Int64s, dtype: torch.dtype, numbers: NDArray[np.int32], places: _Places
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the position of each token after the last bound, and the number of what it belongs to."""
    positions, ids = empty((places.total,), dtype), empty((places.total,), torch.int32)
    out = positions.numpy()
    _native.number_tokens(bounds.astype(np.uint64), out.itemsize, out, numbers, ids.numpy())
    return positions, ids


def check_plan(batch_sampler: Any, collate_fn: Any) -> None:
    """Compare a collate function of mmapds with what the sampler counts on, and warn where they differ.

    Lengths may be in another unit than what is padded, so most differences are no errors.

    Raises:
      OrderError: the sampler leaves the cut of long samples to the function, which does not cut them.
    """
    is_partial = isinstance(collate_fn, partial)
    function, options = (collate_fn.func, collate_fn.keywords) if is_partial else (collate_fn, {})
    if function not in (pad_collate, pack_collate):
        return
    limit, found = getattr(batch_sampler, "cut_length", None), options.get("max_length")
    if limit is not None and (found is None or found > limit):
        raise OrderError(
            f"collate_fn: expected max_length = {limit} or less, for a sampler with oversize='truncate', which leaves "
            f"the cut to it, found max_length = {found}; give partial(mmapds.{function.__name__}, max_length={limit})"
        )
    counted = getattr(batch_sampler, "round_to", None)
    name = "pad_to_multiple_of" if function is pad_collate else "round_to"
    found = options.get(name)
    if counted is not None and type(found) is int and found >= 1 and counted % found:
        warn(
            f"collate_fn: expected {name} to divide {counted}, the round_to of the sampler, found {found}; give the "
            f"sampler round_to={found} (else batches may be larger than it plans)",
        )
    limit, found = getattr(batch_sampler, "max_sequences", None), options.get("max_sequences")
    makes_rows_anew = function is pack_collate and options.get("packs", 1) != 1
    if makes_rows_anew and limit is not None and (found is None or found > limit):
        warn(
            f"collate_fn: expected max_sequences = {limit}, that of the sampler, as packs = {options['packs']} makes "
            f"rows anew, found {found}; give partial(mmapds.pack_collate, max_sequences={limit}, ...)",
        )
