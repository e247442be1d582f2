"""Threads that share datasets, and children forked beside them, get what each would get alone; `make test-tsan`."""

import gzip
import json
import pickle
import random
import sysconfig
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch  # noqa: F401 - here, as torch fails where several threads are the first to import it

import mmapds
from mmapds.storage.index_file import Index
from mmapds.storage.workers import in_order
from tests.support.forks import fork_beside_threads
from tests.support.index_file import verify

THREADS = 8
OPERATIONS = 150  # of each thread
RECORDS = 400


def make(folder):
    """A dataset of lines in several sources, and one of arrays; and what they hold."""
    lines = [{"n": n, "text": "x" * (n % 37)} for n in range(RECORDS)]
    paths = [folder / f"{k}.jsonl" for k in range(5)]
    for k, path in enumerate(paths):
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[k::5]))
    mmapds.build(paths, out=folder / "all.mmx", length="n", columns={"size": "bytes()"})
    with mmapds.Writer(folder / "a.mma", {"n": "int64", "x": ("float32", (None, 2))}, length="x") as writer:
        for n in range(RECORDS):
            writer.write({"n": n, "x": np.full((n % 9, 2), n, np.float32)})
    return {folder / "all.mmx": [line for k in range(5) for line in lines[k::5]], folder / "a.mma": range(RECORDS)}


def same(sample, wanted):
    """Whether a sample is the one that was written."""
    if isinstance(wanted, dict):
        return sample == wanted
    return sample["n"] == wanted and sample["x"].shape == (wanted % 9, 2) and (sample["x"] == wanted).all()


def work(datasets, wanted, folder, seed):
    """Do anything with datasets that other threads use too."""
    chance = random.Random(seed)
    for step in range(OPERATIONS):
        path = chance.choice(sorted(datasets))
        ds, records = datasets[path], wanted[path]
        at = [chance.randrange(RECORDS) for _ in range(20)]
        action = chance.randrange(6)
        if action == 0:
            assert all(same(*pair) for pair in zip(ds.take(at), (records[i] for i in at), strict=True))
        elif action == 1:
            view = ds[at][::-1]
            assert all(same(view[k], records[i]) for k, i in enumerate(at[::-1]))
        elif action == 2:
            assert same(pickle.loads(pickle.dumps(ds))[at[0]], records[at[0]])
        elif action == 3:
            assert same(mmapds.open(path)[at[0]], records[at[0]])
        elif action == 4:
            batches = mmapds.TokenBudgetBatchSampler(ds, 5000, seed=seed, num_replicas=1, rank=0, min_length=1)
            assert len({i for batch in batches for i in batch}) == (ds.lengths > 0).sum()
        elif step % 10 == 0:
            out = folder / f"{seed}.mmx"
            mmapds.build(sorted(folder.glob("?.jsonl")), out=out, length="n", force=True)
            verify(Index(str(out)))
    return seed


def test_threads_share_datasets(tmp_path):
    wanted = make(tmp_path)
    datasets = {path: mmapds.open(path) for path in wanted}
    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(work, datasets, wanted, tmp_path, seed) for seed in range(THREADS)]
        assert [each.result() for each in done] == list(range(THREADS))


def test_threads_view_records_of_one_source(tmp_path):
    make(tmp_path)
    ds = mmapds.open(tmp_path / "a.mma")
    with ThreadPoolExecutor(THREADS) as pool:
        for found in pool.map(
            lambda _: [same(ds[i % RECORDS], i % RECORDS) for i in range(10 * RECORDS)], range(THREADS)
        ):
            assert all(found)


def test_threads_read_while_another_one_forgets_all_sources(tmp_path):
    wanted = make(tmp_path)
    datasets = [(mmapds.open(path, io=io), wanted[path]) for path in wanted for io in ("mmap", "pread")]
    with gzip.open(tmp_path / "0.jsonl.gz", "wb") as file:
        file.write((tmp_path / "0.jsonl").read_bytes() * 5)
    (path, *_), done = wanted, threading.Event()
    datasets.append((mmapds.open(tmp_path / "0.jsonl.gz", build=True), wanted[path][: RECORDS // 5] * 5))
    datasets.append((mmapds.open(path, decode=mmapds.Fields({"n": "int64", "text": "str"})), wanted[path]))

    def read(seed):
        chance = random.Random(seed)
        while not done.is_set():
            for ds, records in datasets:
                at = [chance.randrange(RECORDS) for _ in range(20)]
                for found in (ds.take(at), [ds[i] for i in at]):
                    assert all(same(*pair) for pair in zip(found, (records[i] for i in at), strict=True))
        return seed

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, seed) for seed in range(4)]
        for ds, _ in datasets * 50:
            ds._records.forget()
            ds.take([0])  # lets other threads go on
        done.set()
        assert [each.result() for each in readers] == list(range(4))


@pytest.mark.skipif(
    sysconfig.get_config_var("Py_GIL_DISABLED") == 1, reason="a dict stays locked if a thread used it at the fork"
)
def test_a_child_forked_beside_reading_threads_reads(tmp_path):
    failed, errors = fork_beside_threads(make(tmp_path), forks=30)
    assert failed == 0, errors


@pytest.mark.parametrize("workers", [1, 5])
@pytest.mark.parametrize(("bad", "error", "wanted"), [(None, OSError, 100), (7, ValueError, 7)])
def test_results_come_in_the_order_of_tasks_and_a_failure_in_its_turn(workers, bad, error, wanted):
    def tasks():
        yield from range(100)
        raise OSError("of tasks")

    def work(task, _):
        if task == bad:
            raise ValueError("of seven")
        return task

    before, seen = set(threading.enumerate()), []  # libraries of other tests may have some threads
    with pytest.raises(error, match="of "):
        seen.extend(in_order(work, tasks(), workers=workers, slots=[object() for _ in range(workers + 2)]))
    assert seen == list(range(wanted))
    assert set(threading.enumerate()) <= before
