"""Files that are cut short while they are mapped: an error, never a dead process, never zeros."""

import os
import pickle
import re
import signal
import subprocess

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds.dataset.decode import ArrayDecoder
from mmapds.formats import tar
from mmapds.index.build import Request, build_each
from mmapds.storage.index_file import Index
from mmapds.storage.sections import BLOCK_SECTIONS
from tests.support.commands import run
from tests.support.compressed import codec
from tests.support.formats import write_all
from tests.support.fuzzing import compiler
from tests.support.sanitizers import raises_sigbus
from tests.support.tars import archive

STALE = r"[ab]\.\w+\.mmx: STALE: [ab]\.\w+ was \d+ bytes when indexed and is \d+ now; run: python -m mmapds.index "
FORMATS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"]


def cut(path, size):
    """Cut a file as its writer would, in place."""
    os.truncate(path, size)


def stale(*reads, match=STALE, kind=mmapds.StaleIndexError):
    """Each of these reads is an error."""
    for read in reads:
        with pytest.raises(kind, match=match):
            read()


@pytest.fixture
def sources(tmp_path):
    return write_all(tmp_path)


def identity(samples):
    return samples


# ---- sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", FORMATS)
def test_records_beyond_the_new_end_are_an_error(sources, name, io):
    ds = mmapds.open(sources[name], io=io)
    last = len(ds) - 1
    ds.take([0, last])
    cut(sources[name], os.path.getsize(sources[name]) // 2)
    stale(lambda: list(ds.take([last])), lambda: list(ds.take([0, last, 1])), lambda: ds[-1], lambda: ds.raw(-2))
    if name == "arrays":
        stale(lambda: mmapds.pad_collate(ds.take([last])))


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_the_rest_of_the_last_page_does_not_come_out_as_zeros(tmp_path, io):
    path = tmp_path / "a.bin"
    np.arange(1, 10_001, dtype=np.uint64).tofile(path)
    mmapds.build(path, format="fixed", record_bytes=8)
    ds = mmapds.open(path, decode="bytes", io=io)
    whole = [ds[i] for i in range(len(ds))]
    for size in (79_993, 40_004, 4_100):
        cut(path, size)
        for i in range(size // 8 - 3, min(size // 8 + 700, 10_000)):
            for read in (lambda i=i: ds[i], lambda i=i: ds.take([i])[0], lambda i=i: ds.take(range(i - 2, i + 1))[2]):
                try:
                    found = read()
                except mmapds.StaleIndexError:
                    continue
                assert found == whole[i], (size, i)
                assert (i + 1) * 8 <= size


def test_a_source_rewritten_shorter_is_noticed_where_its_bytes_still_lie(tmp_path):
    """Bytes within the new end are another file's: no page is missing, and nothing is zero."""
    path = tmp_path / "a.bin"
    np.arange(1, 100_001, dtype=np.uint64).tofile(path)
    mmapds.build(path, format="fixed", record_bytes=8)
    ds = mmapds.open(path)
    ds.take([0])
    with open(path, "r+b") as file:
        file.truncate(8000)
        file.write(b"x" * 8000)
    stale(lambda: [ds.take([0]) for _ in range(10_000_000)])  # some milliseconds may pass


@pytest.mark.parametrize("decode", ["files", "wds"])
def test_samples_of_a_tar_are_whole_though_it_is_cut_short_meanwhile(tmp_path, monkeypatch, decode):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.txt", b"%d" % n * 5000) for n in range(9)]))
    ds = mmapds.open(path, build=True, decode=decode)
    expected = ds.take(range(9))
    found = tar.members
    monkeypatch.setattr(tar, "members", lambda record: cut(path, 1000) or found(record))
    assert ds.take(range(9)) == expected
    stale(lambda: ds.take([8]))


def test_what_is_copied_of_views_has_no_zeros_of_the_last_page(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.txt", b"%d" % n * 3000) for n in range(3)]))
    ds = mmapds.open(path, build=True, decode=mmapds.takes_view(lambda view: len(view)))
    assert ds.raw(2) == mmapds.open(path, decode="bytes")[2]
    assert ds.find("2") == 2
    cut(path, ds.where(2).offset + 600)
    stale(lambda: ds.raw(2), lambda: ds.find("2"), lambda: ds[2])
    assert ds.find("1") == 1


def test_a_file_that_was_replaced_stays_as_it_was(sources, tmp_path):
    for name in ("jsonl", "fixed"):
        ds = mmapds.open(sources[name], decode="bytes")
        expected = ds.take([0, -1])
        other = tmp_path / "other"
        other.write_bytes(b"{}\n")
        os.replace(other, sources[name])
        assert ds.take([0, -1]) == expected
        assert ds[-1] == expected[1]


# ---- fields of arrays ------------------------------------------------------------------------------------------------


def two_arrays(path, schema, sample):
    """Write the same sample twice."""
    with mmapds.Writer(path, schema) as writer:
        for _ in range(2):
            writer.write(sample)


@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [
        ("str", None, "x" * 20_000),
        ("bytes", None, b"x" * 20_000),
        ("json", None, ["x" * 20_000]),
        (("float64", (None,)), "float32", np.ones(9_000)),
        (("int64", (9_000,)), ("int32", (None,)), np.ones(9_000, "i8")),
        (("float32", (None,)), "bfloat16", np.ones(9_000, "f4")),
        (("float64", (None, 100)), ("float32", "ragged"), np.ones((90, 100))),
        (("int32", (None,)), ("int32", (9_000,)), np.ones(9_000, "i4")),
    ],
)
def test_a_field_that_is_cut_off_while_it_is_read_is_an_error(tmp_path, monkeypatch, stored, wanted, value, end):
    path, sample = tmp_path / "a.mma", {"n": 1, "x": value}
    schema, decode = {"n": "int64", "x": stored}, mmapds.Fields({"x": wanted}) if wanted else None
    two_arrays(path, schema, sample)
    where = mmapds.open(path).where(1)
    size = where.offset + (4096 if end == "first" else where.size - 100)  # zeros follow in the last page that is left
    batch = mmapds.open(path, decode=decode).take([0, 1])
    assert len(batch.values("x")) == 2
    cut(path, size)
    stale(lambda: batch.values("x"), lambda: mmapds.pad_collate(batch), lambda: list(batch))
    read = ArrayDecoder.__call__
    monkeypatch.setattr(ArrayDecoder, "__call__", lambda self, record: cut(path, size) or read(self, record))
    by_a_function = mmapds.takes_view(lambda record: ArrayDecoder(schema)(record))
    for options in ({"decode": decode}, {"decode": by_a_function}):
        for way in (lambda ds: ds[1], lambda ds: ds.take([0, 1])[1], lambda ds: ds[::-1][0]):
            two_arrays(path, schema, sample)
            ds = mmapds.open(path, **options)
            stale(lambda way=way, ds=ds: way(ds))


@pytest.mark.parametrize("how", [lambda ds: ds.take([5, 150]), lambda ds: ds[150]], ids=["batch", "sample"])
def test_what_is_cut_while_it_is_decoded_is_not_skipped(tmp_path, monkeypatch, how):
    path, schema = tmp_path / "a.mma", {"a": "int64", "s": "str", "x": "int64"}
    with mmapds.Writer(path, schema) as writer:
        for n in range(200):
            writer.write({"a": 7, "s": "hello", "x": 1000 + n})
    converting = mmapds.Fields({"a": "int64", "s": "str", "x": "float64"})
    with_location = mmapds.takes_location(mmapds.takes_view(lambda record, _: ArrayDecoder(schema)(record)))
    size = mmapds.open(path).where(150).offset + 24  # a number and the length of the text are left; zeros follow
    read, whole = ArrayDecoder.__call__, path.read_bytes()
    monkeypatch.setattr(ArrayDecoder, "__call__", lambda self, record: cut(path, size) or read(self, record))
    for options in ({"decode": converting, "on_error": "skip"}, {"decode": with_location}):
        path.write_bytes(whole)
        mmapds.build(path)
        ds = mmapds.open(path, **options)
        stale(lambda ds=ds: how(ds))
        assert not ds.skipped


# ---- indexes and saved views ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_an_index_cut_short_is_an_error(tmp_path, io):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(20_000)))
    index = mmapds.build(path)
    ds, size = mmapds.open(path, io=io), index.stat().st_size
    assert ds[19_999] == {"id": 19_999}
    cut(index, 40_000)  # 624 groups of 28 records, all of them whole
    reads = (lambda: ds[-1], lambda: ds.take([5, -1]), lambda: ds.take([17_472]), lambda: ds[17_472])
    stale(*reads, match=rf"DAMAGED: expected {size} bytes, as .*, found fewer$", kind=mmapds.FormatError)
    assert (ds[17_471], ds[0]) == ({"id": 17_471}, {"id": 0})
    with pytest.raises(mmapds.FormatError, match="DAMAGED"):
        mmapds.open(path)
    mmapds.build(path)
    assert mmapds.open(path)[-1] == {"id": 19_999}


@pytest.mark.parametrize("sizes", [[1, 300, 2, 40], [1] * 5 + [70_000], [5] * 9 + [17_000_000]])
def test_no_bound_comes_out_of_the_rest_of_the_last_page_of_an_index(tmp_path, sizes):
    """Wherever an index ends in a group: a record is the whole one, or an error."""
    path = tmp_path / "a.dat"
    sizes = sizes * (120 // len(sizes))
    with open(path, "wb") as file:
        for size in sizes:
            file.write(size.to_bytes(4, "little"))
            file.seek(size, os.SEEK_CUR)  # sparse
        file.truncate(file.tell())
    mmapds.build(path, format="prefixed")
    index, ds = Index(f"{path}.mmx"), mmapds.open(path)
    whole = [ds.where(i)[1:] for i in range(len(ds))]
    begin, end = index.bounds_at(0), index.bounds_at(0) + index.sections["offsets"].size
    errors = 0
    for size in range(end, begin - 1, -1):
        cut(index.path, size)
        last = (size - begin) * len(ds) // (end - begin)  # whose bounds lie there
        for i in range(max(last - 30, 0), min(last + 30, len(ds))):
            try:
                assert ds.where(i)[1:] == whole[i], (size, i)
            except mmapds.FormatError:
                errors += 1
                assert i > last - 30, (size, i)  # those before them are there
    assert errors > 1000


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_blocks_and_keys_cut_off_are_an_error(tmp_path, io):
    path = tmp_path / "a.jsonl.zst"
    lines = [b'{"id": %d, "text": "%s"}\n' % (i, b"a" * 70_000) for i in range(5000)]
    path.write_bytes(b"".join(map(codec.compress, lines)))
    index = Index(str(mmapds.build(path)))
    ds = mmapds.open(path, io=io)
    assert ds[-1]["id"] == 4999
    sections = [section for name, section in index.sections.items() if name in BLOCK_SECTIONS]
    assert min(each.size for each in sections) > 4 * 4096, "so that some pages are lost"
    reads = (lambda: ds[-2], lambda: ds.take([5, -3]), lambda: ds.take(range(4000, 4300)))
    for end in sorted((each.offset for each in sections), reverse=True):
        cut(index.path, end + 4096)
        stale(*reads, match="DAMAGED: expected", kind=mmapds.FormatError)
    tarred = tmp_path / "a.tar"
    tarred.write_bytes(archive([(f"{n}.txt", b"") for n in range(300)]))
    index = Index(str(mmapds.build(tarred)))
    keyed = mmapds.open(tarred, io=io)
    for name in ("key_hashes", "key_records"):
        cut(index.path, index.sections[name].offset - 100)  # key_hashes come last
        stale(lambda: keyed.find("none"), lambda: keyed.find("7"), match="DAMAGED: exp", kind=mmapds.FormatError)


def saved_view(folder, kind):
    """A view as an array, of which 0 is a row, or as bits, and the numbers of its records."""
    path = folder / "a.jsonl"
    path.write_text("".join(f'{{"n": {i}}}\n' for i in range(60_000)))
    ds = mmapds.open(path, build=True)
    rows = np.random.default_rng(0).permutation(60_000) if kind == "array" else np.flatnonzero(np.arange(60_000) % 5)
    ds[rows].save(folder / "v.mmx")
    return folder / "v.mmx", rows


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("kind", ["array", "bits"])
def test_a_saved_view_that_is_cut_short_is_an_error(tmp_path, kind, io):
    path, rows = saved_view(tmp_path, kind)
    whole, k, last = path.read_bytes(), 7, len(rows) - 1
    for left in (0, 64, 4096, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole)
        view = mmapds.open(path, io=io)
        view[5]
        cut(path, left)
        for read in (
            lambda view: [view[k]["n"], view[last]["n"]] == rows[[k, last]].tolist(),
            lambda view: [sample["n"] for sample in view.take([k, last, 0])] == rows[[k, last, 0]].tolist(),
            lambda view: view.where(last) == mmapds.open(tmp_path / "a.jsonl").where(int(rows[last])),
            lambda view: view[::-1][0]["n"] == rows[-1],
            lambda view: [sample["n"] for sample in view[[last, 3]]] == rows[[last, 3]].tolist(),
            lambda view: len(view[np.arange(len(view)) % 2 == 0]) == -(-len(rows) // 2),
        ):
            message = ""
            try:
                assert read(view)
            except mmapds.FormatError as error:
                message = str(error)
            if message or io == "mmap":  # pread has the rows of an array, or of bits, in memory
                assert re.search("v.mmx: DAMAGED: expected .* as when it was opened, found fewer", message)


# ---- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["source", "array", "bits"])
def test_the_error_of_a_worker_reaches_the_trainer(tmp_path, kind):
    path, rows = saved_view(tmp_path, "array" if kind == "source" else kind)
    ds = mmapds.open(tmp_path / "a.jsonl") if kind == "source" else mmapds.open(path)
    order = np.random.default_rng(1).integers(0, len(ds), 60_000).tolist()
    loader = DataLoader(ds, 16, sampler=order, num_workers=2, multiprocessing_context="fork", collate_fn=identity)
    batches = iter(loader)
    found = [sample["n"] for _ in range(4) for sample in next(batches)]
    cut(tmp_path / "a.jsonl" if kind == "source" else path, 4096)  # while the workers read
    with pytest.raises(mmapds.Error, match=r"is 4096 now|v\.mmx: DAMAGED: .* found fewer"):  # noqa: PT012
        for batch in batches:
            found += [sample["n"] for sample in batch]
    assert found == [order[k] if kind == "source" else rows[order[k]] for k in range(len(found))]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # torch may report the worker twice
def test_a_worker_that_cannot_open_its_dataset_says_why(tmp_path, capfd):
    """A spawned process ends by it, of which torch says no more than that; stderr says why."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n' * 100)
    index = mmapds.build(path)
    ds = mmapds.open(path)
    pickled = pickle.dumps(ds)
    mmapds.build(path, length="id")
    with pytest.raises(mmapds.Error, match=r"a\.jsonl\.mmx: not the indexes of the pickled dataset"):
        pickle.loads(pickled)
    cut(index, 500)
    loader = DataLoader(ds, 10, num_workers=1, multiprocessing_context="spawn", collate_fn=identity)
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(iter(loader))
    assert re.search(r"a\.jsonl\.mmx: DAMAGED: expected", capfd.readouterr().err)


# ---- while a source is indexed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jsonl", "prefixed", "tfrecord", "tar", "megatron", "arrays"])
def test_a_source_cut_short_while_it_is_indexed_is_an_error(tmp_path, sources, name):
    """The second source is cut once the first is reported; threads may have begun with it."""
    first, suffix = os.path.splitext(sources[name])
    copies = [suffix, ".idx"] if name == "megatron" else [suffix]
    second = tmp_path / f"z{suffix}"
    options = {"prefixed": {"prefix": "u32le"}}.get(name, {})
    for workers in (1, 2):
        for each in copies:
            with open(first + each, "rb") as file:
                second.with_suffix(each).write_bytes(file.read())
        half = os.path.getsize(second) // 2

        def report(_, half=half):
            if os.path.getsize(second) > half:
                cut(second, half)

        request = Request(name, options, workers=workers, report=report)
        with pytest.raises(mmapds.SourceError, match=r"z\.\w+: (changed while|expected \d+ bytes, found \d+ while)"):
            list(build_each([sources[name], str(second)], request, tmp_path / "z.mmx"))
        assert not (tmp_path / "z.mmx").exists()


# ---- who handles the bus error of such a read: the guard of the core, and whoever did so before it -------------------

BLAMED = """
import os, sys
import numpy, mmapds
ds = mmapds.open(sys.argv[1])
view = ds.take([len(ds) - 1])[0]
HANDLED
os.truncate(sys.argv[1], 8192)
print(view.sum())
"""
SIGNALLED = """
import mmapds, os, signal
from mmapds import _native
HANDLED
_native.Map(os.__file__)
os.kill(os.getpid(), signal.SIGBUS)
print("still there")
"""


@raises_sigbus
def test_bus_errors_that_are_not_of_a_read_of_ours_go_to_the_handler_before(sources):
    later = BLAMED.replace("HANDLED", "import faulthandler; faulthandler.enable(); ds.take([0])")
    for ran in (
        run("-X", "faulthandler", "-c", BLAMED.replace("HANDLED", ""), sources["fixed"]),
        run("-c", later, sources["npy"]),
    ):
        assert ran.returncode == -signal.SIGBUS
        assert "Fatal Python error: Bus error" in ran.stderr
    assert run("-c", SIGNALLED.replace("HANDLED", "")).returncode == -signal.SIGBUS
    ran = run("-c", SIGNALLED.replace("HANDLED", "signal.signal(signal.SIGBUS, signal.SIG_IGN)"))
    assert (ran.returncode, ran.stdout) == (0, "still there\n")


LATER = """
import faulthandler, os, sys, time
import mmapds
ds = mmapds.open(sys.argv[1])
ds[0]
faulthandler.enable()
end = time.monotonic() + 0.05
while time.monotonic() < end:
    ds[0]
for _ in range(16):  # one of which looks at the clock
    ds[0]
os.truncate(sys.argv[1], 8192)
try:
    ds[len(ds) - 1]
except mmapds.StaleIndexError as error:
    print(error)
"""


@raises_sigbus
def test_reads_take_the_handler_back_that_another_library_has_set(sources):
    ran = run("-c", LATER, sources["arrays"])
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.search(STALE, ran.stdout)


RECOVERING = r"""
#include <setjmp.h>
#include <signal.h>

static sigjmp_buf jump;
static volatile sig_atomic_t reads;
static struct sigaction before;

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    if (reads) {
        reads = 0;
        siglongjmp(jump, 1);
    }
    before.sa_sigaction(number, info, context);
}

void set_handler(void)
{
    const struct sigaction own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_NODEFER};
    sigaction(SIGBUS, &own, &before);
}

int read_byte(const volatile char *at)
{
    if (sigsetjmp(jump, 1))
        return -1;
    reads = 1;
    const int found = *at;
    reads = 0;
    return found;
}
"""

BESIDE = """
import ctypes, mmap, os, sys
import mmapds
ds = mmapds.open(sys.argv[1])
view = ds.take([len(ds) - 1])[0]
library = ctypes.CDLL(sys.argv[2])
library.read_byte.argtypes = [ctypes.c_void_p]
with open(sys.argv[2] + ".data", "wb+") as file:
    file.truncate(8192)
    mapped = mmap.mmap(file.fileno(), 8192)
    file.truncate(0)
address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
library.set_handler()
for _ in range(6):
    ds.take([0])  # sets our handler again
    print(library.read_byte(address), flush=True)
os.truncate(sys.argv[1], 8192)
print(view.sum())
"""


@raises_sigbus
def test_another_library_recovers_from_its_own_bus_errors_and_passes_others_back(sources, tmp_path):
    """A library whose handler jumps out of the reads that it knows, and passes others on to the handler before."""
    library = tmp_path / "recovering.so"
    command = [compiler(), "-D_GNU_SOURCE", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    subprocess.run(command, input=RECOVERING.encode(), check=True)
    ran = run("-c", BESIDE, sources["fixed"], library)
    assert (ran.returncode, ran.stdout.split()) == (-signal.SIGBUS, ["-1"] * 6)
