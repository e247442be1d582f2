"""Reading by pread: the same results as by maps, and no maps."""

import gzip
import os
import pickle
import struct
import sys
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


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("suffix", ["bin", "dat", "dat.zst", "dat.gz"])
def test_batches_of_records_of_no_bytes(tmp_path, suffix, io):
    path, texts = tmp_path / f"a.{suffix}", [b"", b"abcd", b"", b"", b"ef"]
    if suffix == "bin":
        options = {}
        write_pair(path, [np.frombuffer(text, np.uint16) for text in texts])
    else:
        options = {"format": "prefixed", "prefix": "u32le"}
        content = b"".join(struct.pack("<I", len(text)) + text for text in texts)
        path.write_bytes({"dat": bytes, "zst": one_frame, "gz": gzip.compress}[suffix.rpartition(".")[2]](content))
    mmapds.build(path, **options)
    for decode in ("bytes", mmapds.takes_view(lambda view: bytes(view)), bytes):
        dataset = mmapds.open(path, io=io, decode=decode)
        for positions in ([0], [2, 3, 0], [0, 1], [3, 4, 2], list(range(5))):
            assert list(dataset.take(positions)) == [texts[position] for position in positions]
        assert list(dataset[[0, 2, 3]]) == [b""] * 3
    if suffix == "bin":
        dataset = mmapds.open(path, io=io)
        assert [array.tolist() for array in dataset.take([2, 0])] == [dataset[0].tolist(), []] == [[], []]


@pytest.mark.parametrize("name", FORMATS)
def test_pread_gives_what_a_map_gives(sources, name):
    mapped, read = mmapds.open(sources[name]), mmapds.open(sources[name], io="pread")
    positions = np.random.default_rng(1).integers(-len(mapped), len(mapped), 500)
    assert len(read) == len(mapped)
    assert [plain(read[i]) for i in range(0, len(read), 7)] == [plain(mapped[i]) for i in range(0, len(mapped), 7)]
    assert list(map(plain, read.take(positions))) == list(map(plain, mapped.take(positions)))
    assert list(map(plain, read[::-3].take([0, 1]))) == list(map(plain, mapped[::-3].take([0, 1])))
    assert [read.raw(i) for i in (0, -1)] == [mapped.raw(i) for i in (0, -1)]
    assert [read.where(i) for i in (0, 9, -1)] == [mapped.where(i) for i in (0, 9, -1)]
    assert [read.place(i) for i in (0, 9, -1)] == [mapped.place(i) for i in (0, 9, -1)]
    for column in mapped.columns:
        assert (read.column(column) == mapped.column(column)).all()
    if mapped.length_order is not None:
        for one, other in zip(arrays(read.length_order), arrays(mapped.length_order), strict=True):
            assert (one == other).all()
    again = pickle.loads(pickle.dumps(read[3:9]))
    assert list(map(plain, again)) == list(map(plain, mapped[3:9]))
    if name == "tar":
        assert read.find("s0017") == mapped.find("s0017")


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
    workers = pickle.loads(pickle.dumps(mmapds.open(sources[name], io={"*": "pread"})))
    assert mapped(workers) == []


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_read_by_pread(sources, context):
    ds = mmapds.open(sources["jsonl"], io="pread")
    loader = DataLoader(ds, 32, num_workers=2, multiprocessing_context=context, collate_fn=identity)
    assert [sample["id"] for batch in loader for sample in batch] == list(range(len(ds)))


def test_padded_batches_are_the_same(sources):
    mapped, read = (mmapds.open(sources["arrays"], io=io) for io in ("mmap", "pread"))
    one, other = (mmapds.pad_collate(ds.take([5, 0, 299])) for ds in (mapped, read))
    assert (one["tokens"] == other["tokens"]).all()
    assert one["name"] == other["name"]


@pytest.mark.parametrize("io", ["map", None, {"*": "read"}, 3])
def test_io_is_one_of_two(sources, io):
    with pytest.raises(mmapds.Error, match=r"io = .*, expected 'mmap' or 'pread', or a dict of path pattern to one of"):
        mmapds.open(sources["jsonl"], io=io)


def test_concat_takes_datasets_that_read_alike(sources):
    ds = mmapds.open(sources["jsonl"])
    with pytest.raises(
        mmapds.Error, match=r"datasets\[1\]: expected decode, access, io, .* as of datasets\[0\], found others"
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
    found = ran.stdout.splitlines()
    assert found[:2] == [f"{1 << 20} b'a' True", "True"]
    assert len(found) == 3
    assert found[2] == (
        f"{paths[0]}: cannot be mapped (cannot allocate memory); reading it by pread, which is slower; other files may "
        "follow"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_an_index_is_built_where_nothing_can_be_mapped(sources):
    code = """
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
    IO_PREAD, IO_COPY = _native.IO_PREAD, _native.IO_COPY

sources._native = Native
import mmapds
warnings.simplefilter("ignore")
for path in sys.argv[1:]:
    format, _, rest = path.partition("=")
    before = open(rest + ".mmx", "rb").read()
    mmapds.build(rest, force=True)
    assert open(rest + ".mmx", "rb").read() == before, rest
    print(format, len(mmapds.open(rest)))
"""
    ran = run("-c", code, *(f"{name}={path}" for name, path in sources.items()))
    assert ran.stdout.split() == [word for name in sources for word in (name, "300")], ran.stderr
