"""Padding batches, against copying as many bytes, and against torch's pad_sequence."""

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from bench.support.data import features
from bench.support.timing import repeated
from mmapds import pad_collate

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = 64
RIVAL = "torch `pad_sequence` and a tensor of the lengths"


def tokens():
    generator = np.random.default_rng(0)
    return [generator.integers(0, 32_000, int(n)) for n in generator.integers(100, 501, BATCH)]


def theirs(samples, pad_value=0):
    """What people write instead."""
    tensors = [torch.as_tensor(sample) for sample in samples]
    lengths = torch.tensor([len(tensor) for tensor in tensors])
    return pad_sequence(tensors, batch_first=True, padding_value=pad_value), lengths


def check(samples, pad_value=0):
    for ours, rival in zip(pad_collate(samples, pad_value=pad_value), theirs(samples, pad_value), strict=True):
        assert ours.dtype == rival.dtype
        assert torch.equal(ours, rival)


@pytest.mark.parametrize("against", ["memcpy to a new tensor", "memcpy over a tensor in memory", "torch"])
def test_features(compare, against):
    samples = features(BATCH)
    check(samples)
    batch, _ = pad_collate(samples)
    source = batch.numpy()
    into = source.copy()
    rivals = {
        "memcpy to a new tensor": batch.clone,
        "memcpy over a tensor in memory": lambda: np.copyto(into, source),
        "torch": lambda: theirs(samples),
    }
    what = f"{BATCH} arrays of (200 to 1600, 80) float32, {batch.nbytes / 1e6:.0f} MB padded"
    name, target = (RIVAL, "< 1x") if against == "torch" else (f"{against}, as many bytes", "<= 2x")
    compare(what, repeated(lambda: pad_collate(samples), 20), name, repeated(rivals[against], 20), target)


@pytest.mark.parametrize("kind", ["arrays", "tensors", "lists"])
def test_tokens(compare, kind):
    arrays = tokens()
    samples = {"arrays": arrays, "tensors": list(map(torch.from_numpy, arrays)), "lists": [a.tolist() for a in arrays]}
    check(samples[kind], -100)
    compare(
        f"{BATCH} {kind} of 100 to 500 int64",
        repeated(lambda: pad_collate(samples[kind], pad_value=-100), 200),
        RIVAL,
        repeated(lambda: theirs(samples[kind], -100), 200),
        "< 1x",
    )
