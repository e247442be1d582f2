"""Blocks of tokens and windows: the first batch, tokens a second beside slices of a memory map, and memory."""

import time

import numpy as np
import orjson
import pytest

import mmapds
from bench.support.memory import anonymous

TOKENS, SIZE, BATCH = 10**9, 2048, 8
DOCUMENTS = 400_000


@pytest.fixture(scope="module")
def flat(tmp_path_factory):
    """A file that is only tokens, and one of documents with as many of them as fit 400,000 documents."""
    folder = tmp_path_factory.mktemp("tokens")
    part = np.random.default_rng(0).integers(0, 50_000, 10**7).astype(np.uint16)
    with (folder / "tokens.bin").open("wb") as file:
        for _ in range(TOKENS // len(part)):
            file.write(part.tobytes())
        file.write(bytes(-TOKENS * 2 % (SIZE * 2)))
    lengths = np.random.default_rng(1).geometric(1 / 500, DOCUMENTS)
    with mmapds.Writer(folder / "documents.mma", {"tokens": ("uint16", (None,))}, length="tokens") as writer:
        for length in lengths.tolist():
            writer.write({"tokens": part[:length]})
    return folder


def rate(make, positions):
    """Return tokens a second of batches of blocks."""
    batches = np.array_split(positions, len(positions) // BATCH)
    begin = time.perf_counter()
    for batch in batches:
        make(batch)
    return len(positions) * SIZE / (time.perf_counter() - begin)


def compared(row, what, blocks, whole):
    """Compare random blocks with slices of a memory map of the same file, of one call each."""
    positions = np.random.default_rng(2).permutation(len(blocks))[:8000]
    for position in positions[:50].tolist():
        expected = whole[position * SIZE : (position + 1) * SIZE + 1]
        assert (blocks[position]["tokens"] == expected[:-1]).all()
        assert (blocks[position]["labels"] == expected[1:]).all()

    def plain(batch):
        return [whole[k * SIZE : (k + 1) * SIZE + 1].astype(np.int64) for k in batch.tolist()]

    both = [(rate(blocks.take, positions), rate(plain, positions)) for _ in range(5)]
    ours, limit = np.median([a for a, _ in both]), np.median([b for _, b in both])
    row(
        f"{what}: random blocks of {SIZE:,} tokens with labels, in batches of {BATCH}",
        f"slices of one np.memmap: {limit / 1e6:,.0f} million tokens/s",
        f"{ours / 1e6:,.0f} million tokens/s: {ours / limit:.2f}x",
        "",
    )


def test_a_file_that_is_only_tokens(row, flat):
    path = flat / "tokens.bin"
    begin = time.perf_counter()
    mmapds.build(path, format="fixed", dtype="uint16", shape=SIZE)
    built = time.perf_counter() - begin
    small = flat / "small.bin"
    small.write_bytes(bytes(2 * SIZE * 4))
    mmapds.build(small, format="fixed", dtype="uint16", shape=SIZE)
    mmapds.open(small).blocks(SIZE, column=None).take([0])  # imports
    next(iter(mmapds.DistributedBatchSampler(range(9), 2, num_replicas=1, rank=0)))
    before, begin = anonymous(), time.perf_counter()
    ds = mmapds.open(path)
    blocks = ds.blocks(SIZE, column=None)
    sampler = mmapds.DistributedBatchSampler(blocks, BATCH, num_replicas=1, rank=0, seed=7)
    blocks.take(next(iter(sampler)))
    first = time.perf_counter() - begin
    row(f"{TOKENS:,} tokens of 2 bytes: the index", "", f"{built * 1e3:.1f} ms", "")
    row(f"{TOKENS:,} tokens: open, and the first shuffled batch", "", f"{first * 1e3:.1f} ms", "<= 10 ms")
    row(f"{TOKENS:,} tokens: growth of a process's own memory", "", f"{(anonymous() - before) / 1e6:.1f} MB", "<= 5 MB")
    compared(row, "one file of tokens", blocks, np.memmap(path, np.uint16, "r"))


def test_windows_of_json(row, tmp_path):
    """Windows of long lists, beside all of the record parsed by orjson, and cut."""
    random, path = np.random.default_rng(0), tmp_path / "long.jsonl"
    with path.open("wb") as file:
        for number in range(200):
            file.write(orjson.dumps({"id": number, "tokens": random.integers(0, 50_000, 20_000).tolist()}) + b"\n")
    mmapds.build(path, length="items(tokens)")
    ds = mmapds.open(path, decode="bytes")
    windows, per_record = mmapds.open(path).windows(512, fields="tokens"), -(-20_000 // 512)
    batches = np.array_split(random.permutation(len(windows))[:1600], 100)

    def whole(batch):
        texts = zip(ds.take(batch // per_record), (batch % per_record * 512).tolist(), strict=True)
        parsed = [(orjson.loads(text), begin) for text, begin in texts]
        return [each | {"tokens": each["tokens"][begin : begin + 512]} for each, begin in parsed]

    assert windows.take(batches[0]) == whole(batches[0])

    def seconds(make):
        begin = time.perf_counter()
        for batch in batches:
            make(batch)
        return time.perf_counter() - begin

    ratio = np.median([seconds(whole) / seconds(windows.take) for _ in range(5)])
    row("windows of 512 of JSON lists of 20,000 numbers", "orjson on the record, and a slice", f"{ratio:.1f}x", "")


def test_documents(row, flat):
    ds = mmapds.open(flat / "documents.mma")
    begin = time.perf_counter()
    blocks = ds.blocks(SIZE, field="tokens", position_ids=True)
    blocks.take(np.arange(BATCH))
    first = time.perf_counter() - begin
    total = int(ds.lengths.sum(dtype=np.int64))
    row(
        f"{len(ds):,} documents of {total:,} tokens: blocks, and the first batch",
        "",
        f"{first * 1e3:.1f} ms",
        "<= 10 ms",
    )
    whole = np.concatenate([each["tokens"] for each in ds])
    compared(row, f"{len(ds):,} documents", blocks, whole)
    windows = ds.windows(512, fields="tokens")
    packs = mmapds.PackingBatchSampler(windows, SIZE, num_replicas=1, rank=0)
    found = packs.summary()
    row(f"packs of windows of 512: tokens of {total:,}", "", f"{found.tokens:,}, {found.fill:.2%} full", "all")
