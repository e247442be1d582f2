"""Packs by plain best-fit decreasing, sequence by sequence, and problems for samplers of packs."""

from bisect import bisect_left, insort
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st

from mmapds import PackingBatchSampler, orders
from tests.support import budgets
from tests.support.budgets import log_normal


def best_fit_decreasing(lengths, pack_length, max_sequences=None):
    """The packs of plain best-fit decreasing: lists of places in `lengths`."""
    packs, open_packs = [], []  # (space, sequences that still fit, pack), in that order
    most = max_sequences or len(lengths)
    for place in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        length = lengths[place]
        found = bisect_left(open_packs, (length, 0, 0))
        if found < len(open_packs):
            space, left, pack = open_packs.pop(found)
        else:
            space, left, pack = pack_length, most, len(packs)
            packs.append([])
        packs[pack].append(place)
        if left > 1 and space > length:
            insort(open_packs, (space - length, left - 1, pack))
    return packs


def bimodal(n, longest=2048, seed=0):
    """Short questions and long documents."""
    short = log_normal(n - n // 3, longest, seed, 3.5, 0.5)
    return np.random.default_rng(seed).permutation([*short, *log_normal(n // 3, longest, seed + 1, 7.0, 0.4)])


steps_of = partial(budgets.steps_of, PackingBatchSampler)


def flat(steps):
    """The records of steps of batches, or of batches."""
    found = [each for step in steps for each in step]
    return flat(found) if found and not isinstance(found[0], int | np.integer) else found


def in_chunks(records, chunk_size, mix_chunks, seed=0):
    """Arguments of PackingBatchSampler, to pack inside mixes of chunks."""
    return {"planner": "window", "order": orders.Chunked(records, chunk_size, mix_chunks=mix_chunks, seed=seed)}


class Problem(NamedTuple):
    """What a sampler is given, what each sample takes, and the samples that are packed of each chunk, or of all."""

    lengths: list
    pack_length: int
    options: dict
    taken: list
    chunks: list

    def mixes(self, epoch):
        """The chunks that an epoch packs together, in order: for each mix of them, their samples."""
        order = self.options.get("order")
        chunks = self.chunks if order is None else [self.chunks[chunk] for chunk in order.chunks(epoch)]
        size = 1 if order is None else order.mix_chunks
        return [chunks[first : first + size] for first in range(0, len(chunks), size)]


@st.composite
def problems(draw):
    pack_length = draw(st.sampled_from([1, 7, 12, 48, 1000]))
    kinds = [
        st.lists(st.integers(1, pack_length), min_size=1, max_size=200),
        st.lists(st.sampled_from([1, 2, pack_length // 2 + 1, pack_length]), min_size=1, max_size=250),
        st.lists(st.integers(1, 2 * pack_length), min_size=1, max_size=100),
    ]
    lengths = draw(st.one_of(kinds))
    over = ["error"] if max(lengths) <= pack_length else ["truncate", "drop"][: 1 + (min(lengths) <= pack_length)]
    oversize = draw(st.sampled_from(over))
    longest = pack_length if oversize == "drop" else max(lengths)
    shortest = draw(st.sampled_from([0, 0, *sorted({length for length in lengths if length <= longest})[:2]]))
    options = {
        "max_sequences": draw(st.sampled_from([None, 2, 3, 8])),
        "round_to": draw(st.sampled_from([each for each in (1, 2, 3, 8) if pack_length % each == 0])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
        "group_size": draw(st.sampled_from([None, 1, 2, 5])),
        "oversize": oversize,
        "min_length": shortest,
    }
    bounds = [0, len(lengths)]
    if draw(st.booleans()):
        sources = [0, draw(st.integers(0, len(lengths))), len(lengths)]
        options |= in_chunks(sources, draw(st.integers(1, 40)), draw(st.integers(1, 5)), draw(st.integers(0, 3)))
        bounds = options["order"].chunk_starts.tolist()
    taken = [-(-min(length, pack_length) // options["round_to"]) * options["round_to"] for length in lengths]
    chunks = [[i for i in range(begin, end) if shortest <= lengths[i] <= longest] for begin, end in pairwise(bounds)]
    return Problem(lengths, pack_length, options, taken, chunks)
