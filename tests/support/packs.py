"""Packs by plain best-fit decreasing, sequence by sequence, and what samplers give."""

from bisect import bisect_left, insort
from functools import partial

import numpy as np
from hypothesis import strategies as st

from mmapds import PackingBatchSampler
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


@st.composite
def packing_options(draw, lengths, pack_length):
    """Arguments of PackingBatchSampler that fit some lengths."""
    options = {
        "max_sequences": draw(st.sampled_from([None, 2, 3, 8])),
        "round_to": draw(st.sampled_from([each for each in (1, 2, 3, 8) if pack_length % each == 0])),
        "shuffle": draw(st.booleans()),
        "seed": draw(st.integers(0, 5)),
        "group_size": draw(st.sampled_from([None, 1, 2, 5])),
        "packs_per_batch": draw(st.sampled_from([1, 1, 2, 3])),
    }
    options["oversize"] = draw(st.sampled_from(["drop", "truncate"])) if max(lengths) > pack_length else "error"
    if options["oversize"] == "drop" and min(lengths) > pack_length:
        options["oversize"] = "truncate"
    return options
