"""Chunks of consecutive records in shuffled order: random enough to train, nearly sequential for disks."""

from __future__ import annotations  # help() shows them as they are written

from collections.abc import Sized
from hashlib import blake2b
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from .. import _native
from ..errors import OrderError
from .basic import VERSION, Int64s, OfRecords, as_positions, integer
from .permutation import Permutation, word

_CHUNKS = 1  # stream of the permutation of chunks


class Chunked(OfRecords):
    """Shuffles chunks of consecutive records, and the records of `mix_chunks` chunks together.

    An epoch takes the chunks in keyed order, `mix_chunks` at a time, and reads the records of these in keyed order. So
    reads stay within `mix_chunks * chunk_size` records for as many steps. Every record comes once an epoch. A chunk
    holds records of one source only, so the last chunk of a source may be short.

    Args:
      n: a dataset of mmapds, whose sources chunks do not cross; or the number of records; or the records at which no
        chunk goes on, from 0 to the number of records, as `Dataset.source_starts` and `Dataset.block_starts` are.
      chunk_size: consecutive records in a chunk; or "block": a chunk for each block of a dataset of compressed sources.
      mix_chunks: chunks that are mixed; 1 shuffles only inside each chunk.
      seed: chooses the orders.
    Raises:
      OrderError: an argument is out of range.
    """

    def __init__(
        self, n: int | ArrayLike | Sized, chunk_size: int | Literal["block"], *, mix_chunks: int = 16, seed: int = 0
    ) -> None:
        if isinstance(chunk_size, str) and chunk_size == "block":  # an array compares item by item
            starts = _starts(_blocks_of(n))
            chunk_size = int(np.diff(starts).max())
        else:
            starts = _starts(getattr(n, "source_starts", n))
        self._n = integer("n", int(starts[-1]), 1)
        sizes = starts[1:] - starts[:-1]
        # No larger than they can be, so that products of the two fit 64 bits.
        self._chunk_size = min(integer("chunk_size", chunk_size, 1), int(sizes.max()))
        chunks = -(-sizes // self._chunk_size)
        self._mix_chunks = min(integer("mix_chunks", mix_chunks, 1), int(chunks.sum()))
        self._seed = integer("seed", seed)
        self._first_record = starts.astype(np.uint64)
        self._first_chunk = np.concatenate([[0], np.cumsum(chunks)]).astype(np.uint64)
        short = sizes % self._chunk_size != 0
        self._short = self._first_chunk[1:][short].astype(np.int64) - 1
        self._missing = (self._chunk_size - sizes % self._chunk_size)[short]
        self._epoch: tuple[int, _native.Chunks] | None = None

    @property
    def mix_chunks(self) -> int:
        """How many chunks are mixed."""
        return self._mix_chunks

    @property
    def chunk_starts(self) -> Int64s:
        """The record number at which each chunk begins, then the number of records."""
        chunks = self._first_chunk.astype(np.int64)
        source = np.repeat(np.arange(len(chunks) - 1), chunks[1:] - chunks[:-1])
        within = np.arange(chunks[-1]) - chunks[source]
        return np.append(self._first_record.astype(np.int64)[source] + within * self._chunk_size, self._n)

    def chunks(self, epoch: int) -> Int64s:
        """Return the numbers of all chunks, as an epoch takes them; each `mix_chunks` of them are mixed."""
        count = int(self._first_chunk[-1])
        return Permutation(count, self._seed, epoch, stream=_CHUNKS)[np.arange(count)]

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._chunks(epoch).at(positions, out)
        return out

    def _chunks(self, epoch: int) -> _native.Chunks:
        """Return an epoch: where its short chunks stand, at most one for each source, and the order of all chunks."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = Permutation(int(self._first_chunk[-1]), self._seed, epoch, stream=_CHUNKS)
            slots = order.inverse(self._short)
            by_slot = np.argsort(slots)
            slots = slots[by_slot]
            missing = np.concatenate([[0], np.cumsum(self._missing[by_slot])]).astype(np.int64)
            ends = (slots + 1) * self._chunk_size - missing[1:]
            chunks = _native.Chunks(
                chunk_size=self._chunk_size,
                mix_chunks=self._mix_chunks,
                seed=word(self._seed),
                epoch=word(epoch),
                first_chunk=self._first_chunk,
                first_record=self._first_record,
                short_slots=slots.astype(np.uint64),
                short_ends=ends.astype(np.uint64),
                short_missing=missing.astype(np.uint64),
                order=order.native,
            )
            self._epoch = epoch, chunks
            return chunks
        return self._epoch[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_epoch": None}

    def describe(self) -> dict[str, Any]:
        """Return what identifies this order, for states."""
        return {
            "order": "chunked",
            "version": VERSION,
            "records": self._n,
            "sources": len(self._first_record) - 1,
            "starts": blake2b(self._first_record.tobytes(), digest_size=8).hexdigest(),
            "chunk_size": self._chunk_size,
            "mix_chunks": self._mix_chunks,
            "seed": self._seed,
        }


def _blocks_of(dataset: Any) -> Any:
    """Return where the blocks of a dataset begin.

    Raises:
      OrderError: it is not a dataset of mmapds.
      Error: it has no blocks.
    """
    if not hasattr(type(dataset), "block_starts"):
        found = type(dataset).__name__
        raise OrderError(f"chunk_size = 'block', expected a dataset of mmapds beside it, found {found}; give a number")
    return dataset.block_starts


def _starts(n: Any) -> Int64s:
    """The record number at which each source begins, then the number of records."""
    try:
        given = np.asarray(n) if isinstance(n, list | tuple) or hasattr(n, "__array__") else None
    except (TypeError, ValueError, RuntimeError) as error:  # as of lists in the list, or of tensors
        raise OrderError(f"n: expected integers, found {type(n).__name__} ({error})") from None
    if given is None or given.ndim == 0:
        return np.array([0, integer("n", n, 1)], np.int64)
    starts: Int64s = given.astype(np.int64, copy=False) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    if starts.ndim != 1 or len(starts) < 2:
        raise OrderError(f"n: expected integers of shape (sources + 1,), found {given.dtype} of shape {given.shape}")
    if starts[0] != 0:
        raise OrderError(f"n[0] = {starts[0]}, expected 0: starts of sources begin with 0")
    if len(falls := np.flatnonzero(starts[1:] < starts[:-1])):
        i = int(falls[0]) + 1
        raise OrderError(f"n[{i}] = {starts[i]}, expected {starts[i - 1]} or more: starts of sources never fall")
    return starts
