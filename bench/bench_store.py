"""The array store: reading a record, padding a batch straight from the map, writing, and what 90 GB cost in memory."""

import multiprocessing
import os
import statistics

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

import mmapds
from bench.support.data import DATA, features, sparse_array_file
from bench.support.memory import READS, anonymous, worker_memory
from bench.support.timing import timed
from mmapds import pad_collate

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = 64
BATCHES = 10


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "features.mma"
    with mmapds.Writer(path, length="feats") as writer:
        for number, feats in enumerate(features(BATCH * BATCHES)):
            writer.write({"feats": feats, "id": number})
    return str(path)


@pytest.mark.parametrize("decode", [None, "torch"])
def test_one_record(row, stored, decode):
    ds = mmapds.open(stored, decode=decode)
    order = np.random.default_rng(0).permutation(len(ds)).tolist()
    assert mmapds.open(stored)[order[0]]["feats"].base is not None

    def read():
        for i in order:
            ds[i]

    read()
    figure = statistics.median(timed(read) for _ in range(21)) / len(ds) * 1e6
    target = "" if decode else "<= 2 us"  # torch.from_numpy alone takes 1 us
    row(f"`ds[i]`: an array and an integer, decode={decode!r}, warm, random", "", f"{figure:.2f} us", target)


@pytest.mark.parametrize("against", ["memcpy to a new tensor", "memcpy over a tensor in memory"])
def test_padded_batches(compare, stored, against):
    ds = mmapds.open(stored)
    order = np.random.default_rng(0).permutation(len(ds)).tolist()
    rows = [order[k : k + BATCH] for k in range(0, len(order), BATCH)]
    batches = [pad_collate(ds.take(each))["feats"] for each in rows]
    samples = features(BATCH * BATCHES)
    assert all(
        torch.equal(batches[0][k, : len(samples[i])], torch.from_numpy(samples[i])) for k, i in enumerate(rows[0])
    )
    into = [batch.clone() for batch in batches]

    def ours():
        for each in rows:
            pad_collate(ds.take(each))

    def copy_new():
        for batch in batches:
            batch.clone()

    def copy_over():
        for batch, target in zip(batches, into, strict=True):
            target.copy_(batch)

    size = sum(batch.nbytes for batch in batches) / BATCHES / 1e6
    what = f"`take` and pad_collate, {BATCH} arrays of (200 to 1600, 80) float32, {size:.0f} MB padded"
    compare(what, ours, f"{against}, as many bytes", copy_new if "new" in against else copy_over, "<= 2x")


def test_batches_of_tokens(compare, row, tmp_path):
    """Where arrays are small, what costs is Python objects."""
    generator = np.random.default_rng(0)
    path = tmp_path / "tokens.mma"
    with mmapds.Writer(path, length="tokens") as writer:
        for number, count in enumerate(generator.integers(50, 500, 20_000)):
            writer.write({"tokens": generator.integers(0, 50_000, count, np.int32), "id": number})
    ds = mmapds.open(path)
    order = generator.permutation(len(ds)).tolist()
    rows = [order[k : k + BATCH] for k in range(0, len(order) - BATCH, BATCH)]

    def ours():
        for each in rows:
            pad_collate(ds.take(each))

    def of_samples():
        for each in rows:
            pad_collate(list(ds.take(each)))

    what = f"`take` and pad_collate, {BATCH} arrays of 50 to 500 int32 and an integer"
    compare(what, ours, "the same from a list of samples", of_samples, "")
    row(what, "", f"{min(timed(ours) for _ in range(9)) / len(rows) * 1e6:.0f} us a batch", "")


def test_write(compare, tmp_path):
    arrays = features(1000)
    numbers = iter(range(10**6))

    def ours():
        with mmapds.Writer(tmp_path / f"{next(numbers)}.mma", length="feats") as writer:
            for number, feats in enumerate(arrays):
                writer.write({"feats": feats, "id": number})
        os.unlink(writer.path)

    def plain():
        path = tmp_path / f"{next(numbers)}.bin"
        with open(path, "wb") as file:
            for feats in arrays:
                file.write(feats.data)
            file.flush()
            os.fsync(file.fileno())
        os.unlink(path)

    size = sum(feats.nbytes for feats in arrays) / 1e6
    compare(f"write 1000 arrays, {size:.0f} MB, with their index", ours, "`file.write` of them, and fsync", plain, "")


def test_index(row, tmp_path):
    path = tmp_path / "small.mma"
    with mmapds.Writer(path, {"x": ("int16", (None,)), "id": "int64"}, length="x") as writer:
        record = {"x": np.arange(10, dtype=np.int16), "id": 1}
        writing = timed(lambda: [writer.write(record) for _ in range(10**6)])
    figure = statistics.median(timed(lambda: mmapds.build(path, force=True)) for _ in range(5))
    row("write 10^6 small records", "", f"{writing:.2f} us a record", "")
    row("index them again, with three columns and the length order", "", f"{1 / figure:.1f} M records/s", ">= 5 M")


RECORDS, FRAMES = 22_000, 12_800  # 4 MB each, 90 GB in all


def sparse():
    """90 GB of which only the tables of the records are there."""
    path = DATA / "sparse.mma"
    if not path.exists():
        sparse_array_file(path, RECORDS, FRAMES)
        mmapds.build(path)
    return str(path)


class Rows(Dataset):
    """The first and the last row of records, or of an array in memory."""

    def __init__(self, samples):
        self.samples = samples

    def __getitem__(self, i):
        sample = self.samples[i % RECORDS] if self.samples is not None else {"feats": np.zeros((2, 80), np.float32)}
        feats = sample["feats"]
        return feats[0].sum() + feats[-1].sum()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_memory(row, method):
    ds = mmapds.open(sparse())
    assert ds[7]["feats"].shape == (FRAMES, 80)
    assert ds[7]["id"] == 7
    plain = worker_memory(Rows(None), RECORDS, method)
    ours = worker_memory(Rows(ds), RECORDS, method)
    difference = max(ours) - max(plain)
    row(
        f"anonymous memory of a worker after {READS:,} reads of 90 GB (sparse) in {len(ours)} workers, {method}",
        "the same workers without data",
        f"{difference / 1e6:+.2f} MB (of {max(plain) / 1e6:.0f} MB)",
        "within 2 MB",
    )


def rank_memory(path, out):
    """The most that a rank or one of its two workers holds after reading, with data or without."""
    samples = Rows(mmapds.open(path) if path else None)
    out.put(max(*worker_memory(samples, RECORDS, "fork", workers=2), anonymous()))


def test_ranks(row):
    context = multiprocessing.get_context("spawn")
    most = []
    for path in (None, sparse()):
        out = context.SimpleQueue()
        ranks = [context.Process(target=rank_memory, args=(path, out)) for _ in range(4)]
        for rank in ranks:
            rank.start()
        most.append(max(out.get() for _ in ranks))
        for rank in ranks:
            rank.join()
    row(
        "anonymous memory of a process, 4 ranks with 2 workers each over 90 GB (sparse)",
        "the same processes without data",
        f"{(most[1] - most[0]) / 1e6:+.2f} MB (of {most[0] / 1e6:.0f} MB)",
        "within 2 MB",
    )
