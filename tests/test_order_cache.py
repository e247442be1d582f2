"""The file that keeps the order of lengths for all ranks of a machine: sorted once, and never believed when damaged."""

import multiprocessing
import os
import random
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64

from mmapds import Error, OrderError, PackingBatchSampler, TokenBudgetBatchSampler
from mmapds.index.lengths import _CacheWriter, sorted_lengths
from mmapds.storage.index_file import LENGTH_SECTIONS
from tests.support.index_file import arrays

LENGTHS = np.random.default_rng(0).lognormal(5, 1, 1_000).astype(np.int64) + 1


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lengths.order")


def batches(path, lengths=LENGTHS):
    return list(TokenBudgetBatchSampler(lengths, 16_384, oversize="single", num_replicas=1, rank=0, order_cache=path))


WANTED = batches(None)


def first(path, out):
    sampler = TokenBudgetBatchSampler(LENGTHS, 16_384, num_replicas=1, rank=0, order_cache=path)
    out.put((list(sampler), sampler._by_length._parts[0].order.flags.writeable))  # a map cannot be written to


def test_an_order_is_sorted_once_for_all_processes(path):
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    for _ in range(4):
        context.Process(target=first, args=(path, out), daemon=True).start()
    assert [out.get() for _ in range(4)] == [(WANTED, False)] * 4
    assert os.listdir(os.path.dirname(path)) == ["lengths.order"]
    before = os.stat(path).st_ino
    assert batches(path) == WANTED
    assert os.stat(path).st_ino == before


def test_a_damaged_cache_is_made_again(path):
    batches(path)
    whole = Path(path).read_bytes()
    chance, damaged = random.Random(0), [whole[:kept] for kept in (8, 63, 64, len(whole) // 2, len(whole) - 1)]
    for at in (8 + chance.randrange(most) for most in (700, len(whole) - 8) for _ in range(75)):
        damaged.append(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
    for content in damaged:
        Path(path).write_bytes(content)
        assert batches(path) == WANTED


def test_a_cache_of_other_numbers_than_an_order_has_is_made_again(path):
    """Its checksums hold, as anybody can write them."""
    lengths = LENGTHS.astype(np.uint32)
    order, values, counts = map(np.array, arrays(sorted_lengths(lengths, path)))
    small = order.astype(np.uint32)
    for numbers in [
        (order.astype(np.float64), values, counts),
        (small, values.astype(np.uint32), counts),
        (small[:1], values[:1], counts[:1] * 0 + 1),
        (small, values[1:], counts),
    ]:
        with _CacheWriter(path) as writer:
            for name, each in zip(LENGTH_SECTIONS, numbers, strict=True):
                writer.write_array(name, each.dtype.str, np.ascontiguousarray(each).data.cast("B"))
            writer.commit({"lengths": xxh3_64(lengths.data).hexdigest()}, len(lengths))
        assert batches(path) == WANTED


def test_what_is_not_a_cache_is_left_alone(path, tmp_path):
    for content in (b"", b"\x09MMO\r\n\x1a\n", bytes(1000)):
        (tmp_path / "lengths.order").write_bytes(content)
        with pytest.raises(OrderError, match="expected an order cache or a new path, found another file"):
            batches(path)
        assert (tmp_path / "lengths.order").read_bytes() == content
    os.mkfifo(tmp_path / "fifo")
    for other, message in [
        (tmp_path / "fifo", "', expected a regular file, found another"),
        (tmp_path, "', expected a regular file, found another"),
        (tmp_path / "no" / "x", r"no/x: cannot write the order cache here \(no such file or directory\)"),
        (b"order", r"order_cache = b'order', expected the path of a file"),
    ]:
        with pytest.raises(Error, match=message):
            batches(other)


def test_a_cache_of_other_lengths_is_replaced_whatever_is_planned(path, tmp_path):
    for other in (LENGTHS[::-1], LENGTHS[:-1], LENGTHS + 2**40, LENGTHS):
        assert batches(path, other) == batches(path, other) == batches(None, other)
    values = np.array([2**63, 5, 2**63, 0], np.uint64)
    for _ in range(2):
        found = [each.tolist() for each in arrays(sorted_lengths(values, path))]
        assert found == [[0, 2, 1, 3], [2**63, 5, 0], [2, 1, 1]]
        packs = PackingBatchSampler(LENGTHS, 16_384, order_cache=tmp_path / "order")
        assert list(packs) == list(PackingBatchSampler(LENGTHS, 16_384))
