"""Shuffled by chunks of neighbours."""

from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import _native
from ..errors import OrderError
from .basic import _WORD, VERSION, Int64s, as_positions, integer
from .permutation import Permutation


class Chunked:
    """Shuffled enough for training, near enough in the file for disks: chunks of neighbours, mixed some at a time.

    An epoch takes the chunks in keyed order, `mix_chunks` of them together, and the records of each such mix in keyed
    order. While a mix lasts, reads stay within `mix_chunks * chunk_size` records. Every record comes once an epoch; a
    chunk holds records of one source only, so the last chunk of a source may be short.

    Args:
      n: number of records, or the record numbers at which sources begin followed by the number of records
        (`Dataset.source_starts`); pass a plain number to let chunks cross sources.
      chunk_size: consecutive records in a chunk.
      mix_chunks: chunks that are mixed; 1 shuffles inside each chunk alone.
      seed: chooses the orders.
    """

    def __init__(self, n: int | ArrayLike, chunk_size: int, *, mix_chunks: int = 16, seed: int = 0) -> None:
        starts: Int64s = np.asarray([0, n] if np.ndim(n) == 0 else n).astype(np.int64)
        if starts.ndim != 1 or len(starts) < 2 or starts[0] != 0 or (starts[1:] < starts[:-1]).any():
            raise OrderError("expected record numbers that begin with 0 and never fall")
        self._n = integer("n", int(starts[-1]), 1)
        sizes = starts[1:] - starts[:-1]
        # A chunk is never larger than a source, and a mix has no more chunks than there are.
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

    def __len__(self) -> int:
        return self._n

    def at(self, epoch: int, positions: Int64s) -> Int64s:
        """Return the records at `positions`."""
        positions = as_positions(positions)
        out = np.empty_like(positions)
        self._chunks(epoch).at(positions, out)
        return out

    def _chunks(self, epoch: int) -> _native.Chunks:
        """One epoch: where its short chunks stand, at most one for each source, and the order of all chunks."""
        if self._epoch is None or self._epoch[0] != epoch:
            order = Permutation(int(self._first_chunk[-1]), self._seed, epoch, stream=1)
            slots = order.inverse(self._short)
            by_slot = np.argsort(slots)
            slots = slots[by_slot]
            missing = np.concatenate([[0], np.cumsum(self._missing[by_slot])]).astype(np.int64)
            ends = (slots + 1) * self._chunk_size - missing[1:]
            chunks = _native.Chunks(
                chunk_size=self._chunk_size,
                mix_chunks=self._mix_chunks,
                seed=self._seed & _WORD,
                epoch=epoch & _WORD,
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
        """Return what tells this order from others."""
        return {
            "order": "chunked",
            "version": VERSION,
            "n": self._n,
            "sources": len(self._first_record) - 1,
            "starts": blake2b(self._first_record.tobytes(), digest_size=8).hexdigest(),
            "chunk_size": self._chunk_size,
            "mix_chunks": self._mix_chunks,
            "seed": self._seed,
        }
