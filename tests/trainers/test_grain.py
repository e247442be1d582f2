"""Grain: our orders in its loader, whose checkpoints go on exactly, also where the dataset was moved."""

import pickle
import shutil
import sys
from collections import Counter
from itertools import islice

import grain
import numpy as np
import pytest
from grain.sharding import ShardOptions

import mmapds
from mmapds import orders
from mmapds.integrations.grain import DataSource, OrderSampler
from tests.support.docs import blocks
from tests.support.trainers import BATCH, EPOCHS, N

SHUFFLED = orders.Shuffled(N, seed=3)
ORDERS = {"shuffled": SHUFFLED, "short": orders.Resampled(N, N // 2, seed=3)}
every_order = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


@pytest.fixture
def ds(opened):
    """Records that grain itself can batch: worker processes then import nothing of these tests."""
    return opened([{"id": i} for i in range(N)])


# ---- the sampler -----------------------------------------------------------------------------------------------


def keys(sampler, *places):
    """The records at a range of places, all by default."""
    return [sampler[place].record_key for place in range(*places or (len(sampler),))]


@every_order
def test_epochs_come_one_after_another_and_shards_read_what_our_ranks_read(order):
    endless, size = OrderSampler(order), len(order)
    assert len(endless) == sys.maxsize
    for epoch in (0, 1, 7, 10**6):
        assert keys(endless, epoch * size, (epoch + 1) * size) == order.at(epoch, np.arange(size)).tolist()
    for shards in (1, 2, 3):
        sampler = OrderSampler(order, ShardOptions(0, shards), num_epochs=1)
        for rank in range(shards):
            ours = mmapds.DistributedSampler(range(N), shards, rank, order=order)
            assert keys(sampler, rank, len(sampler), shards) == list(ours)


def test_all_shards_have_as_many_records_and_random_numbers_are_as_grain_makes_them():
    filled = OrderSampler(SHUFFLED, ShardOptions(0, 4), num_epochs=3)
    short = OrderSampler(SHUFFLED, ShardOptions(0, 4, drop_remainder=True), num_epochs=3)
    assert (len(filled), len(short)) == (612, 608)  # 609 records
    assert keys(filled, 609, 612) == SHUFFLED.at(2, np.arange(3)).tolist()
    assert keys(OrderSampler(orders.Sequential(3), ShardOptions(0, 8), num_epochs=1)) == [0, 1, 2, 0, 1, 2, 0, 1]
    ours, grains = OrderSampler(SHUFFLED, seed=5)[17], grain.samplers.IndexSampler(N, shuffle=False, seed=5)[17]
    assert (ours.index, ours.rng.random(4).tolist()) == (grains.index, grains.rng.random(4).tolist())
    assert OrderSampler(SHUFFLED)[0].rng is None


# ---- the source ------------------------------------------------------------------------------------------------


def test_a_source_is_one_of_grain_and_reads_batches_at_once(ds):
    source = DataSource(ds)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert (len(source), source[np.int64(7)]) == (N, ds[7])
    assert grain.MapDataset.source(source)._getitems([7, N + 3, -1]) == ds.take([7, 3, N - 1])
    copy = pickle.loads(pickle.dumps(source))
    assert repr(source) == repr(copy) == f"DataSource(records={N}, fingerprint={ds.fingerprint})"
    assert copy[7] == ds[7]
    assert repr(DataSource(ds[:100])) != repr(DataSource(ds[1:101]))


def test_what_is_refused(ds):
    for refused, error, message in [
        (lambda: OrderSampler(SHUFFLED, num_epochs=1)[N], IndexError, f"index {N} is out of range for {N} places"),
        (lambda: OrderSampler(range(N)), mmapds.Error, r"order: expected an order with at\(\), .* found range"),
        (lambda: DataSource([1, 2]), mmapds.Error, r"dataset: expected a dataset of mmapds.open, found list"),
        (
            lambda: DataSource(mmapds.open(ds.sources[0], on_error="skip")[5:]),
            mmapds.Error,
            "a sample at every position",
        ),
    ]:
        with pytest.raises(error, match=message):
            refused()


# ---- loaders and checkpoints -----------------------------------------------------------------------------------


def loader_of(ds, workers=0, *, shard=None, order=SHUFFLED):
    sampler = OrderSampler(order, shard, num_epochs=EPOCHS)
    options = {"operations": [grain.transforms.Batch(BATCH)], "worker_count": workers, "worker_buffer_size": 2}
    return grain.DataLoader(data_source=DataSource(ds), sampler=sampler, **options)


def interrupted(datasets, stops, *arguments, **options):
    """Read from each dataset by a new loader that goes on where the one before stopped, at last to the end."""
    found, state = [], None
    for ds, stop in zip(datasets, [*stops, None], strict=True):
        batches = iter(loader_of(ds, *arguments, **options))
        if state is not None:
            batches.set_state(state)
        found += [each["id"].tolist() for each in islice(batches, stop)]
        state = batches.get_state()
    return found


@every_order
def test_interrupted_loaders_of_shards_go_on_exactly(ds, order):
    whole = np.concatenate([order.at(epoch, np.arange(len(order))) for epoch in range(EPOCHS)])
    for rank in range(2):
        shard = ShardOptions(rank, 2, drop_remainder=True)
        found = interrupted([ds] * 6, [1, 2, 20, 5, 9], order=order, shard=shard)
        assert [each for batch in found for each in batch] == whole[: len(whole) // 2 * 2][rank::2].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_was_moved_goes_on_with_every_record_once(ds, tmp_path, workers):
    path, copy = ds.sources[0], tmp_path / "copy"
    copy.mkdir()
    for each in (path, f"{path}.mmx"):
        shutil.copy2(each, copy)
    found = interrupted([ds, mmapds.open(copy / "train.jsonl")], [60], workers)
    assert Counter(each for batch in found for each in batch) == dict.fromkeys(range(N), EPOCHS)


def test_a_checkpoint_of_other_data_or_another_order_is_refused(ds):
    batches = iter(loader_of(ds))
    next(batches)
    state = batches.get_state()
    assert b"/" not in state  # no path
    others = {"Sampler": loader_of(ds, order=orders.Shuffled(N, seed=4)), "DataSource": loader_of(ds[::-1])}
    for what, other in others.items():
        with pytest.raises(ValueError, match=f"{what} in checkpoint does not match"):
            iter(other).set_state(state)


def test_the_example_of_the_training_page(ds):
    (code,) = [text for text in blocks("docs/training.md", "py") if "import grain\n" in text]
    names = {"ds": ds}
    exec(code, names)
    assert next(names["batches"]).shape == (32,)
