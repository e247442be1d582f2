"""How a dataset is read and travels: by maps or by pread, by pickles, to workers, with few descriptors."""

import errno
import gc
import os
import pickle
import resource
import struct
from itertools import chain, islice, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds import _native
from mmapds.storage import sources as storage_sources
from tests.support.formats import write_all
from tests.support.index_file import arrays


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("io"))


def identity(samples):
    return samples


def ids(dataset):
    return [sample["id"] for sample in dataset]


@mmapds.takes_view
def copied(view):
    return bytes(view)


def test_batches_of_records_of_no_bytes(tmp_path):
    texts = [b"", b"abcd", b"", b"", b"ef"]
    (tmp_path / "a.dat").write_bytes(b"".join(struct.pack("<I", len(text)) + text for text in texts))
    mmapds.build(tmp_path / "a.dat", format="prefixed")
    for io, decode in product(("mmap", "pread"), ("bytes", copied, bytes)):
        dataset = mmapds.open(tmp_path / "a.dat", io=io, decode=decode)
        for positions in ([0], [2, 3, 0], [0, 1], [3, 4, 2], list(range(5))):
            assert list(dataset.take(positions)) == [texts[position] for position in positions]


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not list maps")
@pytest.mark.parametrize("name", ["jsonl", "arrays"])
def test_nothing_is_mapped_and_patterns_say_which(sources, name):
    def mapped(ds):
        ds.take(range(20))
        assert arrays(ds.length_order)[0].tolist() == np.argsort(-ds.lengths.astype(int), kind="stable").tolist()
        maps = Path("/proc/self/maps").read_text()
        return [path for path in (sources[name], f"{sources[name]}.mmx") if f"{path}\n" in maps]

    assert mapped(mmapds.open(sources[name], io="pread")) == []
    assert mapped(mmapds.open(sources[name], io={"*.mmx": "pread"})) == [sources[name]]
    assert mapped(mmapds.open(sources[name], io={"*/a.*": "pread", "*": "mmap"})) == []
    assert len(mapped(mmapds.open(sources[name], io={"*.other": "pread"}))) == 2
    assert mapped(pickle.loads(pickle.dumps(mmapds.open(sources[name], io={"*": "pread"})))) == []


def test_io_is_one_of_two(sources):
    for io in ("map", None, {"*": "read"}, 3):
        with pytest.raises(mmapds.Error, match=r"io = .*, expected 'mmap' or 'pread', or a dict of path pattern to on"):
            mmapds.open(sources["jsonl"], io=io)


def test_where_nothing_can_be_mapped_files_are_read_with_one_warning(sources, monkeypatch):
    def unmapped(path, io=_native.IO_MAP):
        if io == _native.IO_MAP:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), path)
        return _native.Map(path, io)

    modes = {name: getattr(_native, name) for name in ("IO_MAP", "IO_PREAD", "IO_COPY")}
    wanted = {path: mmapds.open(path, decode="bytes").take([1, -1]) for path in sources.values()}
    indexes = {path: Path(f"{path}.mmx").read_bytes() for path in sources.values()}
    monkeypatch.setattr(storage_sources, "_warned", [])
    monkeypatch.setattr(storage_sources, "_native", SimpleNamespace(Map=unmapped, **modes))
    with pytest.warns(RuntimeWarning) as caught:
        assert {path: mmapds.open(path, decode="bytes").take([1, -1]) for path in wanted} == wanted
    why = "cannot be mapped (cannot allocate memory); reading it by pread, which is slower; other files may follow"
    assert [str(each.message) for each in caught] == [f"{sources['jsonl']}.mmx: {why}"]
    for path, before in indexes.items():
        mmapds.build(path, force=True)
        assert Path(f"{path}.mmx").read_bytes() == before


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


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_workers_read_what_the_dataset_has_and_send_its_errors(opened, io):
    ds = opened(b"".join(b'{"id": %d}\n' % number for number in range(1000)) + b"{\n", io=io)
    loader = DataLoader(ds, 64, num_workers=2, multiprocessing_context="fork", collate_fn=identity)
    batches = chain.from_iterable(loader)
    assert ids(islice(batches, 960)) == list(range(960))
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:1001 \(byte 11890\): not JSON"):
        list(batches)


def test_many_shards_open_with_a_quarter_of_the_descriptors(tmp_path):
    for shard in range(1500):
        (tmp_path / f"part-{shard:05}.jsonl").write_bytes(b'{"id": %d}\n' % shard)
    mmapds.build(tmp_path, out=tmp_path / "all.mmx")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    before, few = len(os.listdir("/dev/fd")), max(int(name) for name in os.listdir("/dev/fd")) + 50
    assert 4 * few < 1500
    resource.setrlimit(resource.RLIMIT_NOFILE, (4 * few, limits[1]))
    try:
        for io in ("mmap", "pread"):
            ds = mmapds.open(tmp_path / "all.mmx", io=io)
            assert ids(ds) == list(range(1500))
            assert before < len(os.listdir("/dev/fd")) <= before + few
            del ds
            gc.collect()
            assert len(os.listdir("/dev/fd")) == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
