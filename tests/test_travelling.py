"""How a dataset travels: by pickles, to workers and threads, and with how many descriptors."""

import gc
import hashlib
import multiprocessing
import os
import pickle
import resource
import threading
from itertools import chain

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds


def identity(samples):
    return samples


def ids(dataset):
    return [sample["id"] for sample in dataset]


def test_a_pickle_is_small_whatever_the_size(write, tmp_path):
    for shard in range(300):
        write(b"1\n" * 100, f"d/part-{shard:05}.jsonl")
    ds = mmapds.open(tmp_path / "d", build=True)
    assert len(ds) == 30_000
    pickled = pickle.dumps(ds)
    assert len(pickled) < 500 + 300 * 3, "paths are compressed"
    assert list(pickle.loads(pickled)) == [1] * 30_000


@pytest.fixture
def many(write, tmp_path):
    """A directory of sources with long names that differ, and one of them."""
    names = [write([shard], f"d/{hashlib.sha256(b'%d' % shard).hexdigest()}.jsonl") for shard in range(60)]
    mmapds.build(tmp_path / "d")
    return tmp_path / "d", names[7]


def test_joined_datasets_travel_where_they_share_sources(many):
    folder, one = many
    ds = mmapds.open(folder)
    mmapds.build([one], out=f"{folder}/all.mmx")
    again = mmapds.open(f"{folder}/all.mmx")
    for parts in (
        [ds, mmapds.open(one)],
        [mmapds.open(one), ds, again],
        [ds, ds],
        [ds[::2], mmapds.concat([again, ds])],
    ):
        joined = mmapds.concat(parts)
        assert list(pickle.loads(pickle.dumps(joined))) == list(joined)
        again_joined = mmapds.concat([joined, joined])
        assert list(pickle.loads(pickle.dumps(again_joined))) == list(joined) * 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("view", [False, True])
def test_data_loader_workers(opened, method, view):
    ds = opened([{"id": i} for i in range(1000)])
    data = ds[::-1] if view else ds
    loader = DataLoader(
        data,
        batch_size=64,
        num_workers=2,
        collate_fn=identity,
        multiprocessing_context=multiprocessing.get_context(method),
    )
    assert ids(chain.from_iterable(loader)) == ids(data)


def test_a_decode_error_in_a_worker_reaches_the_trainer(opened):
    loader = DataLoader(opened(b"{}\n{\n"), batch_size=2, num_workers=1, collate_fn=identity)
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:2 \(byte 3\): not JSON"):
        list(loader)


def test_threads_share_a_dataset(write):
    for shard in range(20):
        write([{"id": shard * 50 + i} for i in range(50)], f"d/{shard:02}.jsonl")
    path = os.path.dirname(write(b"", "d/20.jsonl"))
    mmapds.build(path)
    ds = mmapds.open(path)
    wrong = []

    def read(seed):
        for i in np.random.default_rng(seed).integers(0, 1000, 500).tolist():
            if ds[i]["id"] != i or ids(ds.__getitems__([i, -1 - i])) != [i, 999 - i]:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_ten_thousand_shards_open_with_a_quarter_of_the_descriptors(tmp_path):
    for shard in range(10_000):
        (tmp_path / f"part-{shard:05}.jsonl").write_bytes(b'{"id": %d}\n' % shard)
    mmapds.build(tmp_path, out=tmp_path / "all.mmx")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(int(name) for name in os.listdir("/dev/fd")) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * few, limits[1]))
    gc.collect()
    try:
        before = len(os.listdir("/dev/fd"))
        for io in ("mmap", "pread"):
            ds = mmapds.open(tmp_path / "all.mmx", io=io)
            assert ids(ds) == list(range(10_000))
            assert before < len(os.listdir("/dev/fd")) <= before + few
            del ds
            gc.collect()
            assert len(os.listdir("/dev/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_pickle_does_not_open_other_indexes(write):
    path = write([1, 2])
    pickled = pickle.dumps(mmapds.open(path, build=True))
    write([3])
    mmapds.build(path)
    with pytest.raises(mmapds.StaleIndexError, match="not the indexes of the pickled dataset; open"):
        pickle.loads(pickled)


def test_a_pickle_is_of_the_indexes_and_not_of_the_pattern(write, tmp_path):
    write([1], "a.jsonl")
    write([2], "b.jsonl")
    ds = mmapds.open(tmp_path / "{a,b}.jsonl", build=True)
    every = mmapds.open(tmp_path / "*.jsonl")
    pickled = pickle.dumps((ds, every, mmapds.concat([ds, every])))
    mmapds.build(write([3], "c.jsonl"))
    assert [list(each) for each in pickle.loads(pickled)] == [[1, 2], [1, 2], [1, 2, 1, 2]]
