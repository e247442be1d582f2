"""The file that keeps the order of lengths for all ranks of a machine: sorted once, and never believed when damaged."""

import multiprocessing
import os
import random

import numpy as np
import pytest
from xxhash import xxh3_64

from mmapds import Error, OrderError, PackingBatchSampler, TokenBudgetBatchSampler
from mmapds.index.lengths import _CacheWriter, sorted_lengths
from mmapds.storage.index_file import LENGTH_SECTIONS
from tests.support.index_file import arrays

LENGTHS = np.random.default_rng(0).lognormal(5, 1, 4_000).astype(np.int64) + 1


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lengths.order")


def batches(path, lengths=LENGTHS):
    return list(TokenBudgetBatchSampler(lengths, 16_384, num_replicas=1, rank=0, order_cache=path))


@pytest.fixture(scope="module")
def wanted():
    return batches(None)


def first(path, out):
    sampler = TokenBudgetBatchSampler(LENGTHS, 16_384, num_replicas=1, rank=0, order_cache=path)
    order = sampler._contents.selection.by_length._parts[0].order
    out.put((list(sampler), order.flags.writeable))  # a map cannot be written to


@pytest.mark.parametrize("before", ["nothing", "a damaged cache", "a cache of other lengths"])
def test_an_order_is_sorted_once_for_all_processes(path, wanted, before):
    if before != "nothing":
        batches(path, LENGTHS if before == "a damaged cache" else LENGTHS[::-1])
    if before == "a damaged cache":
        os.truncate(path, os.path.getsize(path) // 2)
    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    processes = [context.Process(target=first, args=(path, out)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [out.get() for _ in processes] == [(wanted, False)] * 4
    for process in processes:
        process.join()
    assert os.listdir(os.path.dirname(path)) == ["lengths.order"]
    inode = os.stat(path).st_ino
    assert batches(path) == wanted
    assert os.stat(path).st_ino == inode


def test_a_flipped_bit_never_changes_the_batches(path, wanted):
    batches(path)
    with open(path, "rb") as file:
        whole = file.read()
    chance = random.Random(0)
    for _ in range(300):
        at = chance.randrange(len(whole)) if chance.random() < 0.8 else chance.randrange(700)
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 1 << chance.randrange(8)]) + whole[at + 1 :])
        if at < 8:
            with pytest.raises(OrderError, match="expected an order cache or a new path, found another file"):
                batches(path)
        else:
            assert batches(path) == wanted


@pytest.mark.parametrize("kept", [8, 63, 64, 0.1, 0.5, 0.99])
def test_a_cache_that_is_cut_short_is_made_again(path, wanted, kept):
    batches(path)
    os.truncate(path, kept if isinstance(kept, int) else int(os.path.getsize(path) * kept))
    assert batches(path) == wanted


@pytest.mark.parametrize("change", ["type of the order", "type of lengths", "too few records", "too few lengths"])
def test_a_cache_of_other_numbers_than_an_order_has_is_made_again(path, wanted, change):
    """Its checksums hold, as anybody can write them."""
    batches(path)
    lengths = LENGTHS.astype(np.uint32)
    order, values, counts = map(np.array, arrays(sorted_lengths(lengths, path)))
    order = order.astype(np.uint32)
    if change == "type of the order":
        order = order.astype(np.float64)
    elif change == "type of lengths":
        values = values.astype(np.uint32)
    elif change == "too few records":
        order, values, counts = order[:1], values[:1], counts[:1] * 0 + 1
    else:
        values = values[1:]
    with _CacheWriter(path) as writer:
        for name, numbers in zip(LENGTH_SECTIONS, (order, values, counts), strict=True):
            writer.write_array(name, numbers.dtype.str, np.ascontiguousarray(numbers).data.cast("B"))
        writer.commit({"lengths": xxh3_64(lengths.data).hexdigest()}, len(lengths))
    assert batches(path) == wanted


@pytest.mark.parametrize("other", [LENGTHS[:-1], LENGTHS + 2**40])
def test_a_cache_of_other_lengths_is_replaced(path, wanted, other):
    budget = int(other.max())
    batches(path)
    found = list(TokenBudgetBatchSampler(other, budget, num_replicas=1, rank=0, order_cache=path))
    assert found == list(TokenBudgetBatchSampler(other, budget, num_replicas=1, rank=0))
    assert batches(path) == wanted


def test_what_is_not_a_cache_is_left_alone(path, tmp_path):
    for content in (b"", b"not a cache", bytes(1000)):
        (tmp_path / "lengths.order").write_bytes(content)
        with pytest.raises(OrderError, match="expected an order cache or a new path, found another file"):
            batches(path)
        assert (tmp_path / "lengths.order").read_bytes() == content
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(OrderError, match="fifo', expected a regular file, found another"):
        batches(str(tmp_path / "fifo"))
    with pytest.raises(OrderError, match="expected a regular file, found another"):
        batches(str(tmp_path))
    with pytest.raises(Error, match=r"no/x: cannot write the order cache here \(no such file or directory\)"):
        batches(str(tmp_path / "no" / "x"))


def test_an_order_of_wide_lengths_is_cached(path):
    values = np.array([2**63, 5, 2**63, 0], np.uint64)
    for _ in range(2):
        order, lengths, counts = arrays(sorted_lengths(values, path))
        assert order.tolist() == [0, 2, 1, 3]
        assert lengths.tolist() == [2**63, 5, 0]
        assert counts.tolist() == [2, 1, 1]


@pytest.mark.parametrize("sampler", [TokenBudgetBatchSampler, PackingBatchSampler])
def test_a_cache_may_be_given_as_a_path_object(sampler, tmp_path):
    for path in (tmp_path / "order", tmp_path / "order", str(tmp_path / "order")):
        assert list(sampler(LENGTHS, 16_384, order_cache=path)) == list(sampler(LENGTHS, 16_384))
    assert os.listdir(tmp_path) == ["order"]


@pytest.mark.parametrize("path", [b"order", 5, False])
def test_a_cache_that_is_not_a_path_is_refused(path):
    with pytest.raises(OrderError, match=r"order_cache = .*, expected the path of a file"):
        TokenBudgetBatchSampler([3, 4], 10, order_cache=path)
