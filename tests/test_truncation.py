"""Files that are cut short while they are mapped: an error, never a dead process, never zeros."""

import os
import re
import shutil
import signal
from functools import partial

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds.dataset.decode import ArrayDecoder
from mmapds.formats import tar
from mmapds.index.build import Request
from mmapds.index.each import build_each
from tests.support.array_files import store
from tests.support.commands import run
from tests.support.compressed import codec
from tests.support.formats import write_all
from tests.support.sanitizers import raises_sigbus
from tests.support.tars import archive

STALE = r"[ab]\.\w+\.mmx: STALE: [ab]\.\w+ was \d+ bytes when indexed and is \d+ now; run: python -m mmapds.index "
FORMATS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "mds", "megatron", "arrays"]


def stale(*reads):
    """Each of these reads is an error."""
    for read in reads:
        with pytest.raises(mmapds.StaleIndexError, match=STALE):
            read()


def value_or_error(read):
    try:
        return read()
    except mmapds.Error as error:
        return str(error)


@pytest.fixture
def sources(tmp_path):
    return write_all(tmp_path)


# ---- sources -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", FORMATS)
def test_records_beyond_the_new_end_are_an_error(sources, name, io):
    """Also those in the rest of the last page, which is zeros; and any others, once the size is looked at."""
    ds, path = mmapds.open(sources[name], io=io, decode="bytes"), sources[name]
    whole, ends = [ds.raw(i) for i in range(len(ds))], [sum(ds.where(i)[1:]) for i in range(len(ds))]
    for left in (os.path.getsize(path) - 1, os.path.getsize(path) // 2, 4100):
        os.truncate(path, left)
        for i, end in enumerate(ends):
            for read in (lambda i=i: ds[i], lambda i=i: ds.raw(i), lambda i=i: ds.take([0, i, 1])[1]):
                found = value_or_error(read)
                assert (found == whole[i] and end <= left) or re.search(STALE, found)


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
    path.write_bytes(archive([(f"{n}.txt", b"%d" % n * 3000) for n in range(9)]))
    ds = mmapds.open(path, build=True, decode=decode)
    expected, third = ds.take(range(9)), ds.where(2).offset
    found = tar.members
    monkeypatch.setattr(tar, "members", lambda *given: os.truncate(path, third + 600) or found(*given))
    assert ds.take(range(9)) == expected
    stale(lambda: ds.take([8]), lambda: ds[2], lambda: ds.raw(2), lambda: ds.find("2"))


# ---- fields of arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["first", "last"])
@pytest.mark.parametrize(
    ("stored", "wanted", "value"),
    [
        ("str", None, "x" * 20_000),
        (("int64", (9_000,)), ("int32", (None,)), np.ones(9_000, "i8")),
        (("float32", (None,)), "bfloat16", np.ones(9_000, "f4")),
        (("float64", (None, 100)), ("float32", "ragged"), np.ones((90, 100))),
    ],
)
def test_a_field_that_is_cut_off_while_it_is_read_is_an_error(tmp_path, monkeypatch, stored, wanted, value, end):
    """Also where records that cannot be decoded are skipped."""
    path, schema = tmp_path / "a.mma", {"n": "int64", "x": stored}
    store(tmp_path, [{"n": 1, "x": value}] * 2, schema)
    decode, whole = mmapds.Fields({"x": wanted}) if wanted else None, path.read_bytes()
    where = mmapds.open(path).where(1)
    size = where.offset + (4096 if end == "first" else where.size - 100)  # zeros follow in the last page that is left
    batch = mmapds.open(path, decode=decode).take([0, 1])
    assert len(batch.values("x")) == 2
    os.truncate(path, size)
    stale(lambda: batch.values("x"), lambda: mmapds.pad_collate(batch), lambda: list(batch))
    read = ArrayDecoder.__call__
    monkeypatch.setattr(ArrayDecoder, "__call__", lambda self, record: os.truncate(path, size) or read(self, record))
    by_a_function = mmapds.takes_location(mmapds.takes_view(lambda record, _: ArrayDecoder(schema)(record)))
    for options in ({"decode": decode}, {"decode": by_a_function}, {"decode": decode, "on_error": "skip"}):
        for way in (lambda ds: ds[1], lambda ds: ds.take([0, 1])[1], lambda ds: ds[::-1][0]):
            path.write_bytes(whole)
            ds = mmapds.open(path, build=True, **options)
            stale(lambda way=way, ds=ds: way(ds))
            assert not ds.skipped


# ---- indexes and saved views ---------------------------------------------------------------------------------------


def bounds(path, sizes):
    with open(path, "wb") as file:
        for size in sizes * (120 // len(sizes)):
            file.write(size.to_bytes(4, "little"))
            file.seek(size, os.SEEK_CUR)  # sparse
        file.truncate(file.tell())
    return mmapds.build(path, format="prefixed")


def blocks(path):
    lines = [b'{"n": %d, "text": "%s"}\n' % (n, b"a" * 70_000) for n in range(5000)]
    path.write_bytes(b"".join(map(codec.compress, lines)))
    return mmapds.build(path)


def keys(path):
    path.write_bytes(archive([(f"{n}.txt", b"") for n in range(300)]))
    return mmapds.build(path)


def view(path, rows):
    path.with_name("a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(60_000)))
    mmapds.open(path.with_name("a.jsonl"), build=True)[rows].save(path)
    return path


ARRAY, BITS = np.random.default_rng(0).permutation(60_000), np.flatnonzero(np.arange(60_000) % 5)
INDEXES = {
    "bounds of 2 bytes": ("a.dat", partial(bounds, sizes=[1, 300])),
    "bounds of 4 bytes": ("a.dat", partial(bounds, sizes=[5] * 119 + [17_000_000])),
    "blocks": ("a.jsonl.zst", blocks),
    "keys": ("a.tar", keys),
    "a view as an array": ("v.mmx", partial(view, rows=ARRAY)),
    "a view as bits": ("v.mmx", partial(view, rows=BITS)),
}


def reads_of(ds):
    """How to learn where some records lie, what they are, and which record has a key."""
    rows = range(0, len(ds), 1 + len(ds) // 60)
    reads = [lambda i=i: ds.where(i)[1:] for i in rows] + [lambda: list(ds.take([3, 5]))]
    return reads + [lambda key=key: ds.find(key) for key in ("7", "299")] * ds.sources[0].endswith("tar")


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("what", INDEXES)
def test_an_index_or_a_view_that_is_cut_anywhere_gives_what_it_gave_or_an_error(tmp_path, what, io):
    """Nothing comes out of the rest of its last page, which is zeros."""
    name, make = INDEXES[what]
    path, index = tmp_path / name, make(tmp_path / name)
    ds, size = mmapds.open(path, io=io, decode="bytes"), os.path.getsize(index)
    reads, errors = reads_of(ds), []
    expected = [read() for read in reads]
    for left in sorted({*range(max(size - 3000, 0), size, 31), *range(0, size, 1 + size // 50)}, reverse=True):
        os.truncate(index, left)
        found = [value_or_error(read) for read in reads]
        errors += [one for one, wanted in zip(found, expected, strict=True) if one != wanted]
    assert len(errors) > 100 or (io == "pread" and "view" in what)  # which has the rows in memory
    assert all(re.search(rf"\.mmx: DAMAGED: expected {size} bytes, as .*, found fewer$", str(each)) for each in errors)
    with pytest.raises(mmapds.FormatError, match="expected"):
        mmapds.open(path)


# ---- workers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "v.mmx"])
def test_the_error_of_a_worker_reaches_the_trainer(tmp_path, name):
    view(tmp_path / "v.mmx", BITS)
    path, rows = tmp_path / name, BITS if name == "v.mmx" else np.arange(60_000)
    ds = mmapds.open(path)
    order = np.random.default_rng(1).integers(0, len(ds), 60_000).tolist()
    loader = DataLoader(ds, 16, sampler=order, num_workers=2, multiprocessing_context="fork", collate_fn=list)
    batches = iter(loader)
    found = [sample["n"] for _ in range(4) for sample in next(batches)]
    os.truncate(path, 4096)  # while the workers read
    with pytest.raises(mmapds.Error, match=r"is 4096 now|v\.mmx: DAMAGED: .* found fewer"):  # noqa: PT012
        for batch in batches:
            found += [sample["n"] for sample in batch]
    assert found == rows[order[: len(found)]].tolist()


# ---- while a source is indexed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jsonl", "prefixed", "tfrecord", "tar", "megatron", "arrays"])
def test_a_source_cut_short_while_it_is_indexed_is_an_error(tmp_path, sources, name):
    """The second source is cut once the first is reported; threads may have begun with it."""
    first, suffix = os.path.splitext(sources[name])
    second = tmp_path / f"z{suffix}"
    options = {"prefixed": {"prefix": "u32le"}}.get(name, {})
    for workers in (1, 2):
        for each in {suffix, ".idx"} if name == "megatron" else {suffix}:
            shutil.copy(first + each, second.with_suffix(each))
        half = os.path.getsize(second) // 2

        def report(_, half=half):
            if os.path.getsize(second) > half:
                os.truncate(second, half)

        request = Request(name, options, workers=workers, report=report)
        with pytest.raises(mmapds.SourceError, match=r"z\.\w+: (changed while|expected \d+ bytes, found \d+ while)"):
            list(build_each([sources[name], str(second)], request, tmp_path / "z.mmx"))
        assert not (tmp_path / "z.mmx").exists()


# ---- who handles a bus error: the guard of the core, and whoever did so before it ----------------------------------

BUS_ERRORS = """
import faulthandler, os, sys, time
import mmapds
ours, others = map(mmapds.open, sys.argv[1:])
view = others.take([len(others) - 1])[0]
ours[0]
faulthandler.enable()
end = time.monotonic() + 0.05
while time.monotonic() < end:
    ours[0]
for _ in range(16):  # one of which looks at the clock, and sets our handler again
    ours[0]
for path in sys.argv[1:]:
    os.truncate(path, 8192)
try:
    ours[len(ours) - 1]
except mmapds.StaleIndexError as error:
    print(error, flush=True)
print(view.sum())
"""


@raises_sigbus
def test_reads_take_the_handler_back_that_another_library_has_set_and_leave_it_all_others(sources):
    ran = run("-c", BUS_ERRORS, sources["arrays"], sources["fixed"])
    assert re.search(STALE, ran.stdout)
    assert (ran.returncode, "Fatal Python error: Bus error" in ran.stderr) == (-signal.SIGBUS, True)
