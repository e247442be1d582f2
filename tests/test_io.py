"""How a dataset is read and travels: by maps or by pread, by pickles, to workers and threads, with few descriptors."""

import gc
import gzip
import hashlib
import os
import pickle
import resource
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from tests.support.commands import run
from tests.support.compressed import one_frame
from tests.support.formats import write_all
from tests.support.index_file import arrays
from tests.support.samples import write_pair
from tests.support.sanitizers import limits_memory


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("io"))


FORMATS = ("jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays")


def plain(sample):
    """Return a sample in a form that == compares."""
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    return sample.tolist() if isinstance(sample, np.ndarray) else sample


def identity(samples):
    return samples


def ids(dataset):
    return [sample["id"] for sample in dataset]


# ---- maps and pread --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_pread_gives_what_a_map_gives(sources, name):
    mapped, read = mmapds.open(sources[name]), mmapds.open(sources[name], io="pread")
    positions = np.random.default_rng(1).integers(-len(mapped), len(mapped), 500)
    for seen in (
        lambda ds: [plain(ds[i]) for i in range(0, len(ds), 7)],
        lambda ds: list(map(plain, ds.take(positions))),
        lambda ds: list(map(plain, ds[::-3].take([0, 1]))),
        lambda ds: [(ds.raw(i), ds.where(i), ds.place(i)) for i in (0, 9, -1)],
        lambda ds: [ds.column(column).tolist() for column in ds.columns],
        lambda ds: None if ds.length_order is None else [each.tolist() for each in arrays(ds.length_order)],
        lambda ds: list(map(plain, pickle.loads(pickle.dumps(ds[3:9])))),
        lambda ds: ds.find("s0017") if name == "tar" else None,
        lambda ds: mmapds.pad_collate(ds.take([5, 0, 299]))["tokens"].tolist() if name == "arrays" else None,
    ):
        assert seen(read) == seen(mapped)


@pytest.mark.parametrize("suffix", ["bin", "dat", "dat.zst", "dat.gz"])
def test_batches_of_records_of_no_bytes(tmp_path, suffix):
    path, texts = tmp_path / f"a.{suffix}", [b"", b"abcd", b"", b"", b"ef"]
    if suffix == "bin":
        options = {}
        write_pair(path, [np.frombuffer(text, np.uint16) for text in texts])
    else:
        options = {"format": "prefixed", "prefix": "u32le"}
        content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        path.write_bytes({"dat": bytes, "zst": one_frame, "gz": gzip.compress}[suffix.rpartition(".")[2]](content))
    mmapds.build(path, **options)
    for io in ("mmap", "pread"):
        for decode in ("bytes", mmapds.takes_view(lambda view: bytes(view)), bytes):
            dataset = mmapds.open(path, io=io, decode=decode)
            for positions in ([0], [2, 3, 0], [0, 1], [3, 4, 2], list(range(5))):
                assert list(dataset.take(positions)) == [texts[position] for position in positions]
        if suffix == "bin":
            dataset = mmapds.open(path, io=io)
            assert [array.tolist() for array in dataset.take([2, 0])] == [dataset[0].tolist(), []] == [[], []]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not list maps")
@pytest.mark.parametrize("name", ["jsonl", "arrays"])
def test_nothing_is_mapped_and_patterns_say_which(sources, name):
    def mapped(ds):
        ds.take(range(20))
        ds.lengths.sum()
        maps = Path("/proc/self/maps").read_text()
        return [path for path in (sources[name], f"{sources[name]}.mmx") if f"{path}\n" in maps]

    assert mapped(mmapds.open(sources[name], io="pread")) == []
    assert mapped(mmapds.open(sources[name], io={"*.mmx": "pread"})) == [sources[name]]
    assert mapped(mmapds.open(sources[name], io={"*/a.*": "pread", "*": "mmap"})) == []
    assert len(mapped(mmapds.open(sources[name], io={"*.other": "pread"}))) == 2
    assert mapped(pickle.loads(pickle.dumps(mmapds.open(sources[name], io={"*": "pread"})))) == []


def test_io_is_one_of_two_and_the_same_for_all_datasets_that_are_joined(sources):
    for io in ("map", None, {"*": "read"}, 3):
        with pytest.raises(mmapds.Error, match=r"io = .*, expected 'mmap' or 'pread', or a dict of path pattern to on"):
            mmapds.open(sources["jsonl"], io=io)
    ds = mmapds.open(sources["jsonl"])
    with pytest.raises(
        mmapds.Error, match=r"datasets\[1\]: expected decode, access, io, .* as of datasets\[0\], found"
    ):
        mmapds.concat([ds, mmapds.open(sources["jsonl"], io="pread")])


LIMITED = """
import resource, sys, warnings
import numpy, mmapds
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    ds = mmapds.open(sys.argv[1])
    print(len(ds), ds[0][:1], ds.take([1, -1]) == [bytes(1 << 20)] * 2)
    other = mmapds.open(sys.argv[2])
    print(other[-1] == bytes(1 << 20))
print(*[str(each.message) for each in caught], sep="\\n")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@limits_memory
def test_what_cannot_be_mapped_is_read_with_one_warning(tmp_path):
    paths = [tmp_path / name for name in ("a.bin", "b.bin")]
    for path in paths:
        with open(path, "wb") as file:
            file.write(b"a")
            file.truncate(1 << 40)
        mmapds.build(path, format="fixed", record_bytes=1 << 20)
    ran = run("-c", LIMITED, *paths, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    why = "cannot be mapped (cannot allocate memory); reading it by pread, which is slower; other files may follow"
    assert ran.stdout.splitlines() == [f"{1 << 20} b'a' True", "True", f"{paths[0]}: {why}"]


UNMAPPED = """
import sys, warnings
from mmapds import _native
from mmapds.storage import sources

class Unmapped:
    def __new__(cls, path, io=_native.IO_MAP):
        if io == _native.IO_MAP:
            raise OSError(19, "No such device", path)
        return _native.Map(path, io)

class Native:
    Map = Unmapped
    IO_MAP, IO_PREAD, IO_COPY = _native.IO_MAP, _native.IO_PREAD, _native.IO_COPY

sources._native = Native
import mmapds
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    before = open(path + ".mmx", "rb").read()
    mmapds.build(path, force=True)
    assert open(path + ".mmx", "rb").read() == before, path
    print(len(mmapds.open(path)))
"""


def test_an_index_is_built_where_nothing_can_be_mapped(sources):
    ran = run("-c", UNMAPPED, *sources.values())
    assert ran.stdout.split() == ["300"] * len(sources), ran.stderr


# ---- pickles, workers and threads ------------------------------------------------------------------------------------


@pytest.fixture
def many(write, tmp_path):
    """A directory of sources with long names that differ, and one of them."""
    names = [write([shard], f"d/{hashlib.sha256(b'%d' % shard).hexdigest()}.jsonl") for shard in range(20)]
    mmapds.build(tmp_path / "d")
    return tmp_path / "d", names[7]


def test_joined_datasets_travel_where_they_share_sources(many):
    folder, one = many
    ds = mmapds.open(folder)
    mmapds.build([one], out=f"{folder}/all.mmx")
    again = mmapds.open(f"{folder}/all.mmx")
    for parts in ([mmapds.open(one), ds, again], [ds, ds], [ds[::2], mmapds.concat([again, ds])]):
        joined = mmapds.concat(parts)
        assert list(pickle.loads(pickle.dumps(joined))) == list(joined)
        again_joined = mmapds.concat([joined, joined])
        assert list(pickle.loads(pickle.dumps(again_joined))) == list(joined) * 2


def test_a_pickle_is_small_and_of_the_same_indexes(write, tmp_path):
    for shard in range(100):
        write(b"1\n" * 100, f"d/part-{shard:05}.jsonl")
    ds = mmapds.open(tmp_path / "d" / "*", build=True)
    pickled = pickle.dumps(ds)
    assert len(pickled) < 500 + 100 * 3, "paths are compressed"
    mmapds.build(write([3], "d/part-later.jsonl"))  # which the pattern matches
    assert list(pickle.loads(pickled)) == [1] * 10_000
    mmapds.build(write([3], "d/part-00007.jsonl"))
    with pytest.raises(mmapds.StaleIndexError, match="not the indexes of the pickled dataset; open"):
        pickle.loads(pickled)


@pytest.mark.parametrize(("context", "io"), [("fork", "mmap"), ("spawn", "pread")])
def test_workers_read_what_the_dataset_has(opened, context, io):
    ds = opened([{"id": i} for i in range(1000)], io=io)
    for data in (ds, ds[::-1]) if context == "fork" else (ds[::-1],):
        loader = DataLoader(data, 64, num_workers=2, multiprocessing_context=context, collate_fn=identity)
        assert ids(chain.from_iterable(loader)) == ids(data)


def test_a_decode_error_in_a_worker_reaches_the_trainer(opened):
    loader = DataLoader(opened(b"{}\n{\n"), batch_size=2, num_workers=1, collate_fn=identity)
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:2 \(byte 3\): not JSON"):
        list(loader)


def test_threads_share_a_dataset(write, tmp_path):
    for shard in range(20):
        write([{"id": shard * 50 + i} for i in range(50)], f"d/{shard:02}.jsonl")
    ds = mmapds.open(tmp_path / "d", build=True)

    def read(seed):
        for i in np.random.default_rng(seed).integers(0, 1000, 300).tolist():
            assert [ds[i]["id"], *ids(ds.__getitems__([i, -1 - i]))] == [i, i, 999 - i]
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(4)))


def test_many_shards_open_with_a_quarter_of_the_descriptors(tmp_path):
    for shard in range(3000):
        (tmp_path / f"part-{shard:05}.jsonl").write_bytes(b'{"id": %d}\n' % shard)
    mmapds.build(tmp_path, out=tmp_path / "all.mmx")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    few = max(int(name) for name in os.listdir("/dev/fd")) + 50
    assert 4 * few < 3000
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * few, limits[1]))
    try:
        before = len(os.listdir("/dev/fd"))
        for io in ("mmap", "pread"):
            ds = mmapds.open(tmp_path / "all.mmx", io=io)
            assert ids(ds) == list(range(3000))
            assert before < len(os.listdir("/dev/fd")) <= before + few
            del ds
            gc.collect()
            assert len(os.listdir("/dev/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
