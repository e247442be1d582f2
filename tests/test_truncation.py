"""Files that are cut short while they are mapped: an error, never a dead process, never zeros."""

import os
import pickle
import re

import numpy as np
import pytest
from torch.utils.data import DataLoader

import mmapds
from mmapds.dataset.decode import ArrayDecoder
from mmapds.formats import tar
from mmapds.index.build import Request, build_each
from mmapds.storage.index_file import Index
from mmapds.storage.sections import BLOCK_SECTIONS
from tests.support.array_files import store, utterances
from tests.support.commands import run
from tests.support.compressed import codec
from tests.support.formats import write_all
from tests.support.tars import archive

STALE = r"a\.\w+\.mmx: STALE: a\.\w+ was \d+ bytes when indexed and is \d+ now; run: python -m mmapds.index "


def cut(path, size):
    """Cut a file as its writer would, in place."""
    os.truncate(path, size)


@pytest.fixture
def sources(tmp_path):
    return write_all(tmp_path)


def identity(samples):
    return samples


def check_ids(samples):
    assert all(sample["id"] >= 0 for sample in samples)


def read_on(read, many):
    for each in many:
        read(each)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"])
def test_a_batch_beyond_the_new_end_is_an_error(sources, name, io):
    ds = mmapds.open(sources[name], io=io)
    last = len(ds) - 1
    ds.take([0, last])
    cut(sources[name], os.path.getsize(sources[name]) // 2)
    with pytest.raises(mmapds.StaleIndexError, match=STALE.replace(r"a\.", r"[ab]\.")):
        list(ds.take([last]))
    with pytest.raises(mmapds.StaleIndexError, match=STALE.replace(r"a\.", r"[ab]\.")):
        list(ds.take([0, last, 1]))


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ["jsonl", "arrays"])
def test_one_record_beyond_the_new_end_is_an_error(sources, name, io):
    ds = mmapds.open(sources[name], io=io)
    ds[-1]
    cut(sources[name], 4096)
    for read in (lambda: ds[-1], lambda: ds.raw(-1), lambda: ds.take([-1])[0], lambda: ds.raw(-2)):
        with pytest.raises(mmapds.StaleIndexError, match=STALE):
            read()


@pytest.mark.parametrize("name", ["fixed", "npy"])
def test_every_array_taken_after_the_cut_is_checked(sources, name):
    ds = mmapds.open(sources[name])
    whole = [array.copy() for array in ds]
    cut(sources[name], 16_500)  # in the midst of a page: record 83 begins behind the end, on a page that is left
    for _ in range(40):
        for k in (83, 84, len(ds) - 1):
            with pytest.raises(mmapds.StaleIndexError, match=STALE):
                ds[k]
        assert (ds[40] == whole[40]).all()


@pytest.mark.parametrize("decode", ["files", "wds"])
def test_samples_of_a_tar_are_whole_though_it_is_cut_short_meanwhile(tmp_path, monkeypatch, decode):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.txt", b"%d" % n * 5000) for n in range(9)]))
    ds = mmapds.open(path, build=True, decode=decode)
    expected = ds.take(range(9))
    found = tar.members

    def members(record):
        cut(path, 1000)
        return found(record)

    monkeypatch.setattr(tar, "members", members)
    assert ds.take(range(9)) == expected
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        ds.take([8])


@pytest.mark.parametrize("size", [4096, 60_000])
@pytest.mark.parametrize(
    ("kind", "value"), [("str", "x" * 100_000), ("bytes", b"x" * 100_000), ("json", ["x" * 100_000])]
)
def test_text_of_arrays_that_is_cut_off_before_it_is_decoded_is_an_error(tmp_path, kind, value, size):
    path, schema = tmp_path / "a.mma", {"n": "int64", "text": kind}
    fields = ArrayDecoder(schema)

    def write():
        with mmapds.Writer(path, schema) as writer:
            for n in range(2):
                writer.write({"n": n, "text": value})

    write()

    def decode(record):
        cut(path, size)
        return fields(record)

    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        mmapds.open(path, decode=mmapds.takes_view(decode))[1]
    write()
    batch = mmapds.open(path).take([0, 1])
    cut(path, size)
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        list(batch)


@pytest.mark.parametrize("end", ["table", "array"])
@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        (("float64", (None,)), "float32"),
        (("int64", (100_000,)), ("int32", (None,))),
        (("float32", (None,)), "bfloat16"),
        (("float64", (None, 100)), ("float32", "ragged")),
        (("int32", (None,)), ("int32", (100_000,))),
    ],
)
def test_arrays_that_are_cut_off_before_they_are_converted_are_an_error(tmp_path, monkeypatch, stored, wanted, end):
    path, (dtype, shape) = tmp_path / "a.mma", stored
    value = np.ones(100_000, dtype).reshape([-1, *shape[1:]])

    def write():
        with mmapds.Writer(path, {"x": stored}) as writer:
            for _ in range(2):
                writer.write({"x": value})

    write()
    ds = mmapds.open(path, decode=mmapds.Fields({"x": wanted}))
    where = ds.where(1)
    size = where.offset + (4096 if end == "table" else where.size - 100)  # zeros follow in the last page that is left
    batch = ds.take([0, 1])
    cut(path, size)
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        mmapds.pad_collate(batch)
    decode = ArrayDecoder.__call__
    monkeypatch.setattr(ArrayDecoder, "__call__", lambda self, record: cut(path, size) or decode(self, record))
    for read in (lambda ds: ds[1], lambda ds: ds.take([0, 1])[1]):
        write()
        with pytest.raises(mmapds.StaleIndexError, match=STALE):
            read(mmapds.open(path, decode=mmapds.Fields({"x": wanted})))


def test_samples_of_a_batch_that_are_made_later_have_no_zeros_of_the_last_page(tmp_path):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path, {"text": "str"}) as writer:
        for _ in range(2):
            writer.write({"text": "x" * 5000})
    ds = mmapds.open(path)
    batch = ds.take([0, 1])
    _ = batch[0]  # one of 16 reads looks at the whole file; the next one does not
    cut(path, sum(ds.where(1)[1:]) - 100)
    assert batch[0] == {"text": "x" * 5000}
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        batch[1]


@pytest.mark.parametrize(("kind", "value"), [("str", "x" * 5000), ("bytes", b"x" * 5000), ("json", ["x" * 5000])])
def test_fields_of_a_batch_that_are_made_later_have_no_zeros_of_the_last_page(tmp_path, kind, value):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path, {"text": kind, "n": "int64"}) as writer:
        for n in range(2):
            writer.write({"text": value, "n": n})
    ds = mmapds.open(path)
    batch = ds.take([0, 1])
    assert batch.values("text") == [value, value]
    cut(path, sum(ds.where(1)[1:]) - 100)
    for read in (lambda: batch.values("text"), lambda: mmapds.pad_collate(batch)):
        with pytest.raises(mmapds.StaleIndexError, match=STALE):
            read()


ESCAPES = """
import os, sys, threading, time
import mmapds

path, count = sys.argv[1], 1_000_000
for attempt in range(16):
    with open(path, "wb") as file:
        file.write(b'{"t":"' + rb"\\n" * count + b'"}\\n')
    ds = mmapds.open(path, build=True, decode=mmapds.Fields({"t": "str"}))
    begin = time.perf_counter()
    assert len(ds.take([0]).values("t")[0]) == count
    took = time.perf_counter() - begin
    size = 6 + 2 * (count - 100 - 97 * attempt) + 1  # a backslash is the last byte that is left
    thread = threading.Timer(took * (0.1 + attempt / 20), os.truncate, (path, size))
    thread.start()
    try:
        ds.take([0])
    except mmapds.Error:
        print("refused")
    thread.join()
"""


def test_text_that_is_cut_inside_an_escape_while_it_is_read(tmp_path):
    """It is read twice: once to see that it is text, and once to copy it."""
    ran = run("-c", ESCAPES, tmp_path / "a.jsonl")
    assert (ran.returncode, set(ran.stdout.split()) - {"refused"}) == (0, set()), ran.stderr


STORED = {"a": "int64", "s": "str", "x": "int64"}
CONVERTING = mmapds.Fields({"a": "int64", "s": "str", "x": "float64"})


def by_a_function(record):
    return ArrayDecoder(STORED)(record)


def with_location(record, _):
    return ArrayDecoder(STORED)(record)


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, lambda ds: ds[150]),
        ({}, lambda ds: ds[140:160][10]),
        ({}, lambda ds: ds.take([5, 150])[1]),
        ({"decode": mmapds.takes_view(by_a_function)}, lambda ds: ds.take([5, 150])),
        ({"decode": mmapds.takes_location(mmapds.takes_view(with_location))}, lambda ds: ds.take([5, 150])),
        ({"decode": CONVERTING, "on_error": "skip"}, lambda ds: ds.take([5, 150])),
        ({"decode": CONVERTING, "on_error": "skip"}, lambda ds: ds[150]),
    ],
)
def test_a_view_that_is_cut_while_it_is_decoded_gives_no_zeros(tmp_path, monkeypatch, options, read):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path, STORED) as writer:
        for n in range(200):
            writer.write({"a": 7, "s": "hello", "x": 1000 + n})
    ds, decode = mmapds.open(path, **options), ArrayDecoder.__call__
    size = ds.where(150).offset + 24  # its first number and the length of its text are left, and zeros follow
    monkeypatch.setattr(ArrayDecoder, "__call__", lambda self, record: cut(path, size) or decode(self, record))
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        read(ds)
    assert not ds.skipped


def test_what_is_copied_of_views_has_no_zeros_of_the_last_page(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{n}.txt", b"%d" % n * 3000) for n in range(3)]))
    ds = mmapds.open(path, build=True, decode=mmapds.takes_view(lambda view: len(view)))
    assert ds.raw(2) == mmapds.open(path, decode="bytes")[2]
    assert ds.find("2") == 2
    where = ds.where(2)
    cut(path, where.offset + 600)
    for read in (lambda: ds.raw(2), lambda: ds.find("2"), lambda: ds[2]):
        with pytest.raises(mmapds.StaleIndexError, match=STALE):
            read()
    assert ds.find("1") == 1


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_the_rest_of_the_last_page_does_not_come_out_as_zeros(tmp_path, io):
    path = tmp_path / "a.bin"
    np.arange(1, 10_001, dtype=np.uint64).tofile(path)
    mmapds.build(path, format="fixed", record_bytes=8)
    ds = mmapds.open(path, decode="bytes", io=io)
    whole = [ds[i] for i in range(len(ds))]
    for size in (79_993, 40_004, 40_000, 4_100):
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
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        read_on(ds.take, ([0] for _ in range(10_000_000)))  # some milliseconds may pass


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_an_index_cut_short_is_an_error(tmp_path, io):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(20_000)))
    index = mmapds.build(path)
    ds = mmapds.open(path, io=io)
    size = index.stat().st_size
    assert ds[19_999] == {"id": 19_999}
    cut(index, 40_000)  # 624 groups of 28 records, all of them whole
    for read in (lambda: ds[-1], lambda: ds.take([5, -1]), lambda: ds.take([17_472]), lambda: ds[17_472]):
        with pytest.raises(mmapds.FormatError, match=rf"DAMAGED: expected {size} bytes, as .*, found fewer$"):
            read()
    assert ds[17_471] == {"id": 17_471}
    assert ds[0] == {"id": 0}
    with pytest.raises(mmapds.FormatError, match="DAMAGED"):
        mmapds.open(path)
    ran = run("-m", "mmapds.index", path)
    assert ran.returncode == 0, ran.stderr
    assert mmapds.open(path)[-1] == {"id": 19_999}


@pytest.mark.parametrize("sizes", [[9], [1, 300, 2, 40], [1] * 5 + [70_000], [5] * 9 + [17_000_000]])
def test_no_bound_comes_out_of_the_rest_of_the_last_page_of_an_index(tmp_path, sizes):
    """Wherever an index ends in a group: a record is the whole one, or an error."""
    path = tmp_path / "a.dat"
    sizes = sizes * (300 // len(sizes))
    with open(path, "wb") as file:
        for size in sizes:
            file.write(size.to_bytes(4, "little"))
            file.seek(size, os.SEEK_CUR)  # sparse
        file.truncate(file.tell())
    mmapds.build(path, format="prefixed")
    index = Index(f"{path}.mmx")
    ds = mmapds.open(path)
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
def test_blocks_cut_off_are_an_error(tmp_path, io):
    path = tmp_path / "a.jsonl.zst"
    lines = [b'{"id": %d, "text": "%s"}\n' % (i, b"a" * 70_000) for i in range(5000)]
    path.write_bytes(b"".join(map(codec.compress, lines)))
    index = Index(mmapds.build(path))
    ds = mmapds.open(path, io=io)
    assert ds[-1]["id"] == 4999
    sections = [section for name, section in index.sections.items() if name in BLOCK_SECTIONS]
    assert len(sections) == 2
    assert min(each.size for each in sections) > 4 * 4096, "so that some pages are lost"
    for end in sorted((each.offset for each in sections), reverse=True):
        cut(index.path, end + 4096)
        for read in (lambda: ds[-2], lambda: ds.take([5, -3]), lambda: ds.take(range(4000, 4300))):
            with pytest.raises(mmapds.FormatError, match="DAMAGED: expected"):
                read()


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_keys_cut_off_are_an_error(sources, io):
    ds = mmapds.open(sources["tar"], io=io)
    index = Index(ds.indexes[0])
    keys = ["none", *(record["__key__"] for record in ds.take(range(10)))]
    for name in ("key_hashes", "key_records"):
        cut(ds.indexes[0], index.sections[name].offset - 100)  # key_hashes come last
        for key in keys:
            with pytest.raises(mmapds.FormatError, match="DAMAGED: expected"):
                ds.find(key)


@pytest.mark.parametrize("damage", ["cut", "built again"])
def test_a_worker_that_cannot_open_its_dataset_says_why(tmp_path, damage, capfd):
    """A spawned process ends by it, of which torch says no more than that; stderr says why."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": 1}\n' * 100)
    index = mmapds.build(path)
    loader = DataLoader(mmapds.open(path), 10, num_workers=1, multiprocessing_context="spawn", collate_fn=identity)
    if damage == "cut":
        cut(index, 500)
    else:
        mmapds.build(path, length="id")
    message = {"cut": "DAMAGED: expected", "built again": "not the indexes of the pickled dataset"}[damage]
    with pytest.raises(RuntimeError, match="exited unexpectedly"):
        next(iter(loader))
    assert re.search(rf"a\.jsonl\.mmx: {message}", capfd.readouterr().err)
    with pytest.raises(mmapds.Error, match=rf"a\.jsonl\.mmx: {message}"):
        pickle.loads(pickle.dumps(loader.dataset))


def test_arrays_are_padded_from_whole_files_alone(tmp_path):
    path = store(tmp_path, utterances(2000, shortest=20))
    ds = mmapds.open(path)
    batch = ds.take([1999, 1998, 1997])
    size = os.path.getsize(path)
    cut(path, size // 3)
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        mmapds.pad_collate(batch)
    with pytest.raises(mmapds.StaleIndexError, match=STALE):
        ds.take([1999])


def test_a_file_that_was_replaced_stays_as_it_was(sources, tmp_path):
    for name in ("jsonl", "fixed"):
        ds = mmapds.open(sources[name], decode="bytes")
        expected = ds.take([0, -1])
        other = tmp_path / "other"
        other.write_bytes(b"{}\n")
        os.replace(other, sources[name])
        assert ds.take([0, -1]) == expected
        assert ds[-1] == expected[1]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_error_of_a_worker_reaches_the_trainer(tmp_path, context):
    paths = [tmp_path / f"part-{k}.jsonl" for k in range(2)]
    for path in paths:
        path.write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(60_000)))
    mmapds.build(paths, out=tmp_path / "all.mmx")
    ds = mmapds.open(tmp_path / "all.mmx")
    order = list(range(60_000, 120_000)) * 3
    loader = DataLoader(ds, 64, sampler=order, num_workers=2, multiprocessing_context=context, collate_fn=identity)
    seen = iter(loader)
    assert [sample["id"] for sample in next(seen)] == list(range(64))
    cut(paths[1], 300_000)  # while the workers read
    with pytest.raises(mmapds.StaleIndexError, match=r"part-1\.jsonl was \d+ bytes when indexed and is 300000 now"):
        read_on(check_ids, seen)
    rest = DataLoader(ds[:60_000], 64, num_workers=2, multiprocessing_context=context, collate_fn=identity)
    assert sum(len(batch) for batch in rest) == 60_000


class Cut:
    """Cuts a source as soon as the scan has reported its first bytes."""

    def __init__(self, path, size):
        self.path, self.size = path, size

    def __call__(self, _):
        if os.path.getsize(self.path) > self.size:
            cut(self.path, self.size)


@pytest.mark.parametrize("name", ["jsonl", "prefixed", "tfrecord", "tar", "megatron", "arrays"])
def test_a_source_cut_short_while_it_is_indexed_is_an_error(tmp_path, sources, name):
    """The second source is cut once the first is reported; threads may have begun with it."""
    first, second = sources[name], str(tmp_path / f"z{os.path.splitext(sources[name])[1]}")
    for suffix in ("", ".idx") if name == "megatron" else ("",):
        base = first.removesuffix(".bin") if suffix else first
        target = second.removesuffix(".bin") if suffix else second
        with open(base + suffix, "rb") as file, open(target + suffix, "wb") as out:
            out.write(file.read())
    options = {"prefixed": {"prefix": "u32le"}}.get(name, {})
    for workers in (1, 2):
        size = os.path.getsize(second)
        request = Request(name, options, workers=workers, report=Cut(second, size // 2))
        with pytest.raises(mmapds.SourceError, match=r"z\.\w+: (changed while|expected \d+ bytes, found \d+ while)"):
            list(build_each([first, second], request, tmp_path / "z.mmx"))
        assert not (tmp_path / "z.mmx").exists()
        with open(first, "rb") as file, open(second, "wb") as out:
            out.write(file.read())


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
@pytest.mark.parametrize("left", [0, 64, 4096, 0.5, -1])
def test_a_saved_view_that_is_cut_short_is_an_error(tmp_path, kind, left, io):
    path, rows = saved_view(tmp_path, kind)
    view, size = mmapds.open(path, io=io), os.path.getsize(path)
    view[5]
    cut(path, left if left > 1 else int(size * left) if left >= 0 else size - 1)
    k, last = 7, len(rows) - 1
    for read in (
        lambda: [view[k]["n"], view[last]["n"]] == rows[[k, last]].tolist(),
        lambda: [sample["n"] for sample in view.take([k, last, 0])] == rows[[k, last, 0]].tolist(),
        lambda: view.where(last) == mmapds.open(tmp_path / "a.jsonl").where(int(rows[last])),
        lambda: view[::-1][0]["n"] == rows[-1],
        lambda: [sample["n"] for sample in view[[last, 3]]] == rows[[last, 3]].tolist(),
        lambda: len(view[np.arange(len(view)) % 2 == 0]) == -(-len(rows) // 2),
    ):
        message = ""
        try:
            assert read()
        except mmapds.FormatError as error:
            message = str(error)
        if message or io == "mmap":  # pread has the rows of an array, or of bits, in memory
            assert "v.mmx: DAMAGED: expected" in message
            assert "as when it was opened, found fewer" in message


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("kind", ["array", "bits"])
def test_workers_notice_a_saved_view_that_is_cut_short(tmp_path, kind, context):
    path, rows = saved_view(tmp_path, kind)
    view = mmapds.open(path)
    order = np.random.default_rng(1).integers(0, len(view), 20_000).tolist()
    loader = DataLoader(view, 16, sampler=order, num_workers=2, multiprocessing_context=context, collate_fn=identity)
    batches = iter(loader)
    found = [sample["n"] for _ in range(4) for sample in next(batches)]
    cut(path, 4096)
    with pytest.raises(mmapds.FormatError, match=r"v\.mmx: DAMAGED: expected \d+ bytes, .* found fewer"):  # noqa: PT012
        for batch in batches:
            found += [sample["n"] for sample in batch]
    assert found == rows[order[: len(found)]].tolist()


SHRINKING = """
import os, sys, threading, time
import mmapds
path, size = sys.argv[1], os.path.getsize(sys.argv[1])
def shrink():
    time.sleep(float(sys.argv[2]))
    os.truncate(path, size // 3)
threading.Thread(target=shrink).start()
try:
    mmapds.build(path, length="chars(text)", force=True)
except mmapds.Error as error:
    print(error)
"""


def test_a_source_that_shrinks_under_the_indexer_never_kills_it(tmp_path):
    path = tmp_path / "a.jsonl"
    line = b'{"text": "%s"}\n' % (b"x" * 500)
    for delay in (0.0, 0.02, 0.05, 0.1):
        path.write_bytes(line * 60_000)
        ran = run("-c", SHRINKING, path, delay)
        assert ran.returncode == 0, ran.stderr
        assert not list(tmp_path.glob("*.tmp"))
