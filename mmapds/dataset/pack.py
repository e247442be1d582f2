"""Collating into packs: samples one after another in a row, with the bounds that attention needs."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from .. import _native
from ..errors import CollateError, OrderError, listed
from .collate import check_arguments, pad_collate, pad_values, positive
from .gather import Arrays, Number, Path, empty, gather

Int64s = NDArray[np.int64]
_OPTIONAL = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
_LAYOUTS = ("flash", "hf", "megatron", "segments")
_IGNORED = -100  # the label that losses ignore
_MOST = 2**31 - 1  # tokens in a batch, as cu_seqlens is int32


class _Options(NamedTuple):
    layout: str
    pad_to: int | None
    packs: int | None
    max_sequences: int | None
    round_to: int
    max_length: int
    left: bool
    labels: str | None
    wanted: tuple[str, ...]
    """The optional keys to add to the fields."""

    def check(self) -> None:
        """Raise CollateError for an option that is out of range, or contradicts another one."""
        if self.layout not in _LAYOUTS:
            raise CollateError(f"layout = {self.layout!r}, expected {' or '.join(map(repr, _LAYOUTS))}")
        for name in ("pad_to", "packs", "max_sequences", "round_to"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        for name, value, layouts in (
            ("packs", self.packs, ("hf", "segments")),
            ("round_to", self.round_to != 1, ("megatron",)),
            ("flash_attn_kwargs and seq_idx", self.wanted, ("hf",)),
        ):
            if value and self.layout not in layouts:
                raise CollateError(f"layout = {self.layout!r}, expected {' or '.join(map(repr, layouts))} for {name}")
        if self.packs is not None and self.pad_to is None:
            raise CollateError(f"packs = {self.packs!r}, expected pad_to beside it, the length of a pack")


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
    """Collate samples into one packed row, for models that keep them apart.

        row = mmapds.pack_collate(tokens.take([0, 1, 2]))

    Samples are dicts, or arrays alone, which become the field "tokens" ("input_ids" for "hf"). Fields of arrays,
    tensors or lists of numbers are joined along their first axis. Other fields are collated as by `pad_collate`; so is
    a field of empty lists only, if other fields have entries. The layout adds keys; T is the number of all tokens:

    - "flash", for flash-attn and torch's varlen attention: fields of shape (T, ...); "cu_seqlens", where samples begin,
      then T, int32 of shape (samples + 1,); "max_seqlen", an int.
    - "hf", for Hugging Face's models: fields of shape (1, T, ...); "position_ids", int64, from 0 in each sample;
      "labels", int64, -100 at the first token of each sample, from the field "labels", or else "input_ids". The field
      "attention_mask" is dropped.
    - "megatron", for Megatron's "thd": like "flash", with samples padded to `round_to`; "cu_seqlens" counts tokens
      only, "cu_seqlens_padded" also padding; "position_ids".
    - "segments", for JAX: fields of shape (T, ...); "segment_ids", int32, from 1, 0 in padding; "positions", int32.

    Args:
      samples: one or more, with the same fields.
      pad_to: pad the end so that T is this. For attention the padding is one more sample, except for "megatron".
      packs: for batches of several packs, in the layouts "hf" and "segments": fields of shape (packs, pad_to, ...). A
        sample that does not fit its row begins the next. In the other layouts, several packs are one longer row.
      max_sequences: most samples in a pack. "cu_seqlens" then has a fixed size, padded with T: `max_sequences` + 1, and
        one more with `pad_to`.
      round_to: for "megatron": pad each sample to a multiple of this.
      max_length: cut longer samples to this length, as `oversize="truncate"` of the sampler needs.
      truncate: cut off the end ("right") or the start ("left").
      pad_value: a number that every padded dtype can hold, or a dict of field name to such a number.
      labels: the field of the labels, separate from the inputs: the first token of each sample becomes -100. It is
        "labels" by default for "hf".
      lists: fields to return as lists of one value for each sample, without joining: ["embedding"]. Dots name a field
        of a nested dict.
      flash_attn_kwargs: for "hf": add "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q" and "max_length_k".
      seq_idx: for "hf": add "seq_idx", the number of each token's sample, int32, for Mamba.
    Raises:
      CollateError: there is no sample; samples differ in fields, or the fields of one in length; they do not fit
        `pad_to`, `packs` or `max_sequences`; an argument does not fit. It is also a ValueError.
    """
    limit = check_arguments(samples, truncate, max_length)
    wanted = _OPTIONAL[:4] * flash_attn_kwargs + _OPTIONAL[4:] * seq_idx
    labels = "labels" if labels is None and layout == "hf" else labels
    options = _Options(layout, pad_to, packs, max_sequences, round_to, limit, truncate == "left", labels, wanted)
    options.check()
    return _packed(samples, options, pad_value, lists)


def _packed(samples: Sequence[Any], options: _Options, pad_value: Any, lists: Iterable[Any]) -> dict[Any, Any]:
    is_hf, name = options.layout == "hf", options.labels
    fields = gather(samples, lists, ("attention_mask",) if is_hf else ())
    if isinstance(fields, Arrays):
        fields = {"input_ids" if is_hf else "tokens": fields}
    if not isinstance(fields, dict):
        raise CollateError(f"samples[0]: expected a dict of fields, or an array, found {type(samples[0]).__name__}")
    sequences = list(_sequences(fields))
    if any(field.lengths.any() for field in sequences):  # then fields of empty lists only stay lists
        sequences = [field for field in sequences if not field.are_empty_lists]
    if not sequences:
        raise CollateError(f"samples[0]: expected a field of arrays to pack, found {listed(fields)}")
    places = _Places.of(np.minimum(_shared_lengths(sequences), options.max_length), options)
    batch = _joined(fields, places, pad_value, options, Path())
    if name is not None:
        source = "input_ids" if is_hf and name not in fields else name
        field = next((each for each in sequences if each is fields.get(source)), None)
        if field is None or field.dtype.is_floating_point:
            raise CollateError(f"samples[0]: expected arrays of integers as field {source!r}, found {listed(fields)}")
        if source == name != "labels" and (name in ("tokens", "input_ids") or len(sequences) == 1):
            raise CollateError(f"labels = {name!r}, expected a field beside the inputs, found the inputs")
        batch[name] = batch[source].to(torch.int64, copy=source != name)
        _ignore(batch[name].view(places.total, *field.tail), places)
    beside = _beside(places, options)
    clash = next((key for key in beside if key in batch), None)
    if clash is not None:
        raise CollateError(f"samples[0]: expected another name than {clash!r}, which layout={options.layout!r} adds")
    return batch | beside


def _sequences(fields: Mapping[Any, Any]) -> Iterator[Arrays]:
    """Yield the fields of arrays."""
    for field in fields.values():
        if isinstance(field, Arrays):
            yield field
        elif isinstance(field, dict):
            yield from _sequences(field)


def _shared_lengths(fields: Sequence[Arrays]) -> Int64s:
    """Return the length of each sample; raise CollateError if its fields differ in length."""
    first = fields[0]
    for field in fields:
        differs = field.lengths != first.lengths
        if differs.any():
            i = int(differs.argmax())
            raise CollateError(
                f"samples[{i}]{field.path}: expected {first.lengths[i]} entries, as in samples[{i}]{first.path}, "
                f"found {field.lengths[i]}; give lists=[...] with the names of fields that have no entry for each token"
            )
    return first.lengths


# ---- where samples stand --------------------------------------------------------------------------------------


class _Places(NamedTuple):
    """The place of each sample among all tokens of the batch."""

    begins: Int64s
    lengths: Int64s  # after the cut
    rows: int
    row: int  # tokens in a row

    @property
    def total(self) -> int:
        return self.rows * self.row

    @classmethod
    def of(cls, lengths: Int64s, options: _Options) -> _Places:
        """Place samples one after another, in rows if there are several."""
        taken = -(-lengths // options.round_to) * options.round_to
        if options.packs is None:
            begins, rows, row = np.cumsum(taken) - taken, 1, int(taken.sum())
            most, room = options.max_sequences or len(lengths), options.pad_to or row
            if len(lengths) > most:
                raise CollateError(f"max_sequences = {most}, expected {len(lengths)} or more, the number of samples")
            if row > room:
                raise CollateError(f"pad_to = {room}, expected {row} or more, the tokens of the samples")
            row = room
        else:
            rows, row = options.packs, options.pad_to or 0
            begins = _begins_in_rows(taken.tolist(), row, rows, options.max_sequences or len(taken))
        if rows * row > _MOST:
            raise CollateError(f"samples: expected up to {_MOST} tokens in a batch, found {rows * row}")
        return cls(begins, lengths, rows, row)

    def bounds(self) -> tuple[Int64s, NDArray[np.int32]]:
        """Return where samples and padding begin, then `total`; and the number of each sample, -1 for padding."""
        ends = self.begins + self.lengths
        used = min(int(self.begins[-1]) // max(self.row, 1) + 1, self.rows)  # rows
        following = np.append(self.begins[1:], used * self.row)
        edges = np.stack([self.begins, ends], axis=1).ravel()
        numbers = np.stack([np.arange(len(ends)), np.full(len(ends), -1)], axis=1).ravel()
        kept = np.stack([np.ones(len(ends), np.bool_), following > ends], axis=1).ravel()
        empty_rows = np.arange(used, self.rows) * self.row
        bounds = np.concatenate([edges[kept], empty_rows, [self.total]])
        return bounds, np.concatenate([numbers[kept], np.full(len(empty_rows), -1)]).astype(np.int32)


def _begins_in_rows(taken: list[int], row: int, rows: int, most: int) -> Int64s:
    """Place samples in rows of at most `row` tokens and `most` samples; return where each sample begins."""
    begins, at, count, used = [], 0, 0, 0  # count and used: samples and tokens in the row that begins at `at`
    for i, tokens in enumerate(taken):
        if tokens > row:
            raise CollateError(f"samples[{i}]: expected up to pad_to = {row} tokens, found {tokens}")
        if used + tokens > row or count == most:
            at, count, used = at + row, 0, 0
        begins.append(at + used)
        count, used = count + 1, used + tokens
    if at >= rows * row:
        raise CollateError(f"packs = {rows}, expected {at // row + 1} or more, the rows of {row} tokens")
    return np.array(begins, np.int64)


# ---- the batch ------------------------------------------------------------------------------------------------


def _joined(fields: Mapping[Any, Any], places: _Places, pad: Any, options: _Options, path: Path) -> dict[Any, Any]:
    """Return the fields, with those of arrays joined."""
    batch: dict[Any, Any] = {}
    for name, own in pad_values(fields, path, pad):
        field = fields[name]
        if isinstance(field, dict):
            batch[name] = _joined(field, places, own, options, path.to(name))
        elif isinstance(field, Arrays) and field.are_empty_lists and places.lengths.any():
            batch[name] = [[] for _ in field.lengths]
        elif isinstance(field, Arrays):
            joined = field.joined((places.total,), places.begins, own, options.max_length, left=options.left)
            batch[name] = _in_rows(joined, places, options)
        else:
            batch[name] = field
    return batch


def _in_rows(tensor: torch.Tensor, places: _Places, options: _Options) -> torch.Tensor:
    """Return all tokens in the shape of the layout."""
    if options.layout == "hf" or options.packs is not None:
        return tensor.view(places.rows, places.row, *tensor.shape[1:])
    return tensor


def _ignore(labels: torch.Tensor, places: _Places) -> None:
    """Set the labels to -100 that losses must ignore: the first of each sample, and padding."""
    labels[torch.from_numpy(places.begins[places.lengths > 0])] = _IGNORED
    bounds, numbers = places.bounds()
    for k in np.flatnonzero(numbers < 0).tolist():
        labels[bounds[k] : bounds[k + 1]] = _IGNORED


def _beside(places: _Places, options: _Options) -> dict[str, Any]:
    """Return the keys that a layout adds to the fields; of optional ones, those in `options.wanted`."""
    bounds, numbers = places.bounds()
    longest = int(np.diff(bounds).max())
    if options.layout == "flash":
        return {"cu_seqlens": _int32(bounds, places, options), "max_seqlen": longest}
    if options.layout == "hf":
        positions, ids = _numbered(bounds, torch.int64, np.arange(len(numbers), dtype=np.int32), places)
        cu = _int32(bounds, places, options)
        optional = dict(zip(_OPTIONAL, (cu, cu, longest, longest, _in_rows(ids, places, options)), strict=True))
        wanted = {key: optional[key] for key in options.wanted}
        return {"position_ids": _in_rows(positions, places, options), **wanted}
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
    """Return bounds as int32; with `max_sequences`, pad to a fixed size with the last bound."""
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
    """Return the position of each token after the last bound, and the number of its sample or padding."""
    positions, ids = empty((places.total,), dtype), empty((places.total,), torch.int32)
    out = positions.numpy()
    _native.number_tokens(bounds.astype(np.uint64), out.itemsize, out, numbers, ids.numpy())
    return positions, ids


def check_plan(batch_sampler: Any, collate_fn: Any) -> None:
    """Raise OrderError if a sampler needs long samples cut, but the collate function does not cut them."""
    function, options = (collate_fn.func, collate_fn.keywords) if isinstance(collate_fn, partial) else (collate_fn, {})
    limit, found = getattr(batch_sampler, "cut_length", None), options.get("max_length")
    if function in (pad_collate, pack_collate) and limit is not None and (found is None or found > limit):
        raise OrderError(
            f"collate_fn: expected max_length = {limit} or less, for a sampler with oversize='truncate', found "
            f"max_length = {found}; give partial(mmapds.{function.__name__}, max_length={limit})"
        )
