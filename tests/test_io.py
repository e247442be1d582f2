"""How a dataset is read and travels: by maps or by pread, by pickles, to workers, with few descriptors."""

import errno
import gc
import os
import pickle
import resource
import struct
import weakref
from itertools import chain, islice, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds import _native
from mmapds.storage import sources as storage_sources
from tests.support.compressed import many_frames
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


# ---- sources that are forgotten ------------------------------------------------------------------------------------

KINDS = {"mapped": ("", bytes, {}), "pread": ("", bytes, {"io": "pread"}), "blocks": (".zst", many_frames, {})}
READS = {  # of Records
    "items": lambda records, rows: [records[row] for row in rows],
    "copies": lambda records, rows: [records.copy(row) for row in rows],
    "checks": lambda records, rows: [records.check(row) for row in rows],
    "places": lambda records, rows: [records.locate(row) for row in rows],
    "many": lambda records, rows: records.many(rows),
    "fitting": lambda records, rows: records.fitting(rows, 300),
    "samples": lambda records, rows: records.decode(rows, bytes, None),
}


class Opener:
    """A catalog that notes which sources it opens, and can forget all whenever it opens one."""

    def __init__(self, ds, views, *, forgets):
        self.catalog, self.opened, self.forgets = ds._catalog, [], forgets
        self.records = _native.Records(self.catalog.starts, self, True, True, views)

    def open(self, member, records):
        opened = self.catalog.open(member, records)
        self.opened.append(member)
        if self.forgets:
            self.records.forget()
        return opened


@pytest.mark.parametrize("views", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_forgotten_sources_are_opened_again_by_the_next_read(tmp_path, kind, views):
    suffix, pack, options = KINDS[kind]
    for shard in range(3):
        lines = b"".join(b"[%d]\n" % number for number in range(shard * 1000, shard * 1000 + 500))
        (tmp_path / f"{shard}.jsonl{suffix}").write_bytes(pack(lines))
    ds = mmapds.open(tmp_path, build=True, **options)
    rows = [7, 1100, 502, 8, 9]
    for name, read in READS.items():
        wanted = read(ds._records, rows)
        opener = Opener(ds, views, forgets=False)
        assert read(opener.records, rows) == wanted == read(opener.records, rows)
        assert opener.opened == [0, 2, 1], "once"
        opener.records.forget()
        assert read(opener.records, rows) == wanted
        assert opener.opened == [0, 2, 1] * 2
        opener = Opener(ds, views, forgets=True)
        assert read(opener.records, rows) == wanted
        each = [0, 2, 1] if name in ("many", "fitting", "samples") else [0, 2, 1, 0, 0]
        assert opener.opened == each, "a batch is one read"
    ds._catalog.records = ds._records  # a cycle, through the readers of blocks too
    alive = weakref.ref(ds._catalog)
    del ds, opener
    gc.collect()
    assert alive() is None


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="the system does not list maps")
def test_what_is_held_of_forgotten_sources_stays_and_nothing_else(tmp_path):
    def is_mapped():
        gc.collect()
        return f"{source}" in Path("/proc/self/maps").read_text().replace(f"{source}.mmx", "")

    def forget():
        ds._records.forget()
        source.unlink()

    held = {
        "array": lambda: np.asarray(ds[7]["x"]),
        "batch": lambda: ds.take([7, 8]),
        "view": lambda: ds._records[7],
        "sample": lambda: ds[7],
    }
    read = {
        "array": np.array,
        "batch": lambda each: each[0]["x"].copy(),
        "view": bytes,
        "sample": lambda s: s["x"].copy(),
    }
    for name, hold in held.items():
        source = tmp_path / f"{name}.mma"
        with mmapds.Writer(source, {"x": ("float32", (None,))}) as writer:
            for number in range(100):
                writer.write({"x": np.full(1000, number, np.float32)})
        ds = mmapds.open(source)
        wanted = read[name](hold())
        assert is_mapped()
        each = hold()
        forget()
        assert is_mapped(), name
        assert np.array_equal(read[name](each), wanted)
        del each
        assert not is_mapped(), name
