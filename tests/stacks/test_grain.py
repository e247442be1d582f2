"""Grain: our orders in its loader, whose checkpoints go on exactly, also where the dataset was moved."""

import pickle
import shutil
import subprocess
import sys
from collections import Counter
from itertools import islice

import grain
import numpy as np
import pytest

import mmapds
from mmapds import orders
from mmapds.integrations.grain import DataSource, OrderSampler
from tests.support.stacks import BATCH, EPOCHS, N

ORDERS = {
    "sequential": lambda: orders.Sequential(N),
    "shuffled": lambda: orders.Shuffled(N, seed=3),
    "chunked": lambda: orders.Chunked(N, 10, mix_chunks=4, seed=3),
    "mixture": lambda: orders.Mixture([150, N - 150], [0.8, 0.2], seed=3, epoch_size=N),
    "resampled": lambda: orders.Resampled(N, N // 2, seed=3),
}


class Backwards:
    """An order of a user's own."""

    def __len__(self):
        return N

    def at(self, epoch, positions):
        return N - 1 - positions

    def describe(self):
        return {"order": "backwards", "n": N}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Records that grain itself can batch: worker processes then import nothing of these tests."""
    path = tmp_path_factory.mktemp("grain") / "ids.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(N)))
    mmapds.build(path)
    return path


@pytest.fixture
def ds(path):
    return mmapds.open(path)


def loader_of(ds, workers=0, *, shard=None, epochs=EPOCHS, order=None):
    sampler = OrderSampler(order or orders.Shuffled(len(ds), seed=3), shard, num_epochs=epochs)
    operations = [grain.transforms.Batch(BATCH)]
    return grain.DataLoader(
        data_source=DataSource(ds), sampler=sampler, operations=operations, worker_count=workers, worker_buffer_size=2
    )


def read(batches, count=None):
    """Return ids of some batches, or of all that are left."""
    return [each["id"].tolist() for each in islice(batches, count)]


def interrupted(datasets, workers, stops, **options):
    """Read from each dataset by a new loader that goes on where the one before stopped, at last to the end."""
    found, state = [], None
    for ds, stop in zip(datasets, [*stops, None], strict=True):
        batches = iter(loader_of(ds, workers, **options))
        if state is not None:
            batches.set_state(state)
        found += read(batches, stop)
        state = batches.get_state()
    return found


# ---- the sampler -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ORDERS)
@pytest.mark.parametrize("shards", [1, 2, 3])
def test_shards_read_what_ranks_of_our_sampler_read(kind, shards):
    order = ORDERS[kind]()
    sampler = OrderSampler(order, grain.sharding.ShardOptions(0, shards), num_epochs=1)
    places = range(len(sampler))
    for rank in range(shards):
        ours = mmapds.DistributedSampler(range(N), shards, rank, order=order)
        assert [sampler[place].record_key for place in places[rank::shards]] == list(ours)


@pytest.mark.parametrize("kind", ORDERS)
def test_epochs_come_one_after_another(kind):
    order = ORDERS[kind]()
    sampler = OrderSampler(order)
    assert len(sampler) == sys.maxsize
    for epoch in (0, 1, 7, 10**6):
        found = [sampler[epoch * len(order) + position].record_key for position in range(len(order))]
        assert found == order.at(epoch, np.arange(len(order))).tolist()


def test_an_order_of_ones_own():
    sampler = OrderSampler(Backwards(), num_epochs=2)
    assert [sampler[place].record_key for place in range(2 * N)] == [*range(N - 1, -1, -1)] * 2


def test_shards_have_as_many_records_with_a_last_step_filled_up_or_left_out():
    order = orders.Shuffled(N, seed=3)
    filled = OrderSampler(order, grain.sharding.ShardOptions(0, 4), num_epochs=3)
    short = OrderSampler(order, grain.sharding.ShardOptions(0, 4, drop_remainder=True), num_epochs=3)
    assert (len(filled), len(short)) == (612, 608)  # 609 records
    assert [filled[place].record_key for place in range(609, 612)] == order.at(2, np.arange(3)).tolist()


def test_more_shards_than_records():
    sampler = OrderSampler(orders.Sequential(3), grain.sharding.ShardOptions(0, 8), num_epochs=1)
    assert [sampler[place].record_key for place in range(len(sampler))] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_epochs_can_be_shorter_than_the_order():
    sampler = OrderSampler(orders.Shuffled(N), num_epochs=2, epoch_size=10)
    expected = [*orders.Shuffled(N).at(0, np.arange(10)), *orders.Shuffled(N).at(1, np.arange(10))]
    assert [sampler[place].record_key for place in range(len(sampler))] == expected


def test_random_numbers_are_of_the_place_as_grain_makes_them():
    ours = OrderSampler(orders.Sequential(N), seed=5)
    grains = grain.samplers.IndexSampler(N, shuffle=False, seed=5)
    for place in (0, 17, N - 1):
        assert ours[place].index == grains[place].index == place
        assert ours[place].rng.random(4).tolist() == grains[place].rng.random(4).tolist()
    assert OrderSampler(orders.Sequential(N))[0].rng is None


@pytest.mark.parametrize("place", [-1, N, 10**12])
def test_a_place_outside_is_an_error(place):
    with pytest.raises(IndexError, match=f"index {place} is out of range for {N} places"):
        OrderSampler(orders.Sequential(N), num_epochs=1)[place]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": range(N)}, "order: expected an order with at(), describe() and a length, found range"),
        ({"num_epochs": 0}, "num_epochs = 0, expected an integer of 1 or more"),
        ({"epoch_size": N + 1}, f"epoch_size = {N + 1}, expected 1 to {N}; use orders.Resampled for longer epochs"),
        ({"seed": -1}, "seed = -1, expected an integer of 0 or more"),
    ],
)
def test_arguments_out_of_range(arguments, message):
    with pytest.raises(mmapds.OrderError) as raised:
        OrderSampler(**{"order": orders.Sequential(N), **arguments})
    assert str(raised.value).startswith(message)


def test_the_repr_tells_samplers_apart():
    made = [
        OrderSampler(orders.Sequential(N)),
        OrderSampler(orders.Shuffled(N)),
        OrderSampler(orders.Shuffled(N, seed=1)),
        OrderSampler(orders.Shuffled(N), seed=1),
        OrderSampler(orders.Shuffled(N), num_epochs=1),
        OrderSampler(orders.Shuffled(N), epoch_size=10),
        OrderSampler(orders.Shuffled(N), grain.sharding.ShardOptions(0, 2)),
        OrderSampler(orders.Shuffled(N), grain.sharding.ShardOptions(1, 2)),
    ]
    assert len({repr(each) for each in made}) == len(made)
    assert all(repr(pickle.loads(pickle.dumps(each))) == repr(each) for each in made)


# ---- the source ------------------------------------------------------------------------------------------------


def test_a_source_is_one_of_grain(ds):
    source = DataSource(ds)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == N
    assert source[np.int64(7)] == ds[7]
    assert repr(source) == f"DataSource(records={N}, fingerprint={ds.fingerprint})"
    copy = pickle.loads(pickle.dumps(source))
    assert (copy[7], repr(copy)) == (ds[7], repr(source))
    assert repr(DataSource(ds[:100])) != repr(DataSource(ds[1:101]))


def test_torch_is_not_loaded():
    code = "import sys, mmapds.integrations.grain; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_dataset_with_a_function_is_a_source(ds):
    source = DataSource(ds.map(lambda sample: -sample["id"]))
    assert (len(source), source[7], source._getitems([1, 2])) == (N, -7, [-1, -2])
    assert repr(source) == repr(DataSource(ds))


def test_a_source_of_something_else_is_an_error():
    with pytest.raises(mmapds.Error, match=r"dataset: expected a dataset of mmapds.open, found list"):
        DataSource([1, 2])


def test_a_source_leaves_no_record_out(path):
    skipping = mmapds.open(path, on_error="skip")
    for dataset in (skipping, skipping[5:], skipping.map(dict), mmapds.zip(a=skipping)):
        with pytest.raises(mmapds.Error, match="dataset: expected a sample at every position, found on_error='skip'"):
            DataSource(dataset)


def test_a_source_reads_batches_at_once(ds):
    source = grain.MapDataset.source(DataSource(ds))
    assert source._getitems([7, N + 3, -1]) == ds.take([7, 3, N - 1])


# ---- loaders and checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "stops"),
    [("shuffled", [7]), ("shuffled", [1, 2, 40, 5, 26]), *((kind, [3, 30]) for kind in ORDERS)],
)
def test_an_interrupted_loader_goes_on_exactly(ds, kind, stops):
    order = ORDERS[kind]()
    found = interrupted([ds] * (len(stops) + 1), 0, stops, order=order)
    assert found == read(loader_of(ds, order=order))
    whole = np.concatenate([order.at(epoch, np.arange(len(order))) for epoch in range(EPOCHS)])
    assert [each for batch in found for each in batch] == whole.tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_was_moved_goes_on_with_every_record_once(path, tmp_path, workers):
    datasets = []
    for place in "ab":
        copy = tmp_path / place
        copy.mkdir()
        for each in (path, f"{path}.mmx"):
            shutil.copy2(each, copy)
        datasets.append(mmapds.open(copy / path.name))
    found = interrupted(datasets, workers, [60])
    counts = Counter(each for batch in found for each in batch)
    assert counts == dict.fromkeys(range(N), EPOCHS)
    if not workers:
        assert found == read(loader_of(datasets[0]))


def test_a_checkpoint_of_other_data_or_another_order_is_refused(ds):
    batches = iter(loader_of(ds))
    next(batches)
    state = batches.get_state()
    assert b"/" not in state  # no path
    with pytest.raises(ValueError, match="Sampler in checkpoint does not match"):
        iter(loader_of(ds, order=orders.Shuffled(N, seed=4))).set_state(state)
    other = ds[np.arange(N)[::-1]]
    with pytest.raises(ValueError, match="DataSource in checkpoint does not match"):
        iter(loader_of(other)).set_state(state)


@pytest.mark.parametrize("stops", [[7], [3, 11, 2, 26, 9]])
def test_shards_share_out_every_record_once(ds, stops):
    shards = [grain.sharding.ShardOptions(each, 2) for each in range(2)]
    found = [interrupted([ds] * (len(stops) + 1), 0, stops, shard=shard) for shard in shards]
    assert len(found[0]) == len(found[1])
    counts = Counter(each for batches in found for batch in batches for each in batch)
    assert set(counts) == set(range(N))
    assert counts.total() == EPOCHS * N + 1  # 609 records, and one that fills up the last step


def pipeline(ds, workers):
    """Grain's own pipeline, with grain's own order."""
    mapped = grain.MapDataset.source(DataSource(ds)).shuffle(seed=3).repeat(EPOCHS).batch(BATCH)
    batches = mapped.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    return batches.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else batches


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_over_a_source_goes_on_exactly(ds, workers):
    batches = iter(pipeline(ds, workers))
    found = read(batches, 60)
    state = batches.get_state()
    batches = iter(pipeline(ds, workers))
    batches.set_state(state)
    found += read(batches)
    assert Counter(each for batch in found for each in batch) == dict.fromkeys(range(N), EPOCHS)
