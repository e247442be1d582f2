"""Compressed JSON Lines, record by record as the plain file has them."""

import gzip
import itertools
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import threading
import warnings
from contextlib import suppress

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import mmapds
from mmapds.compression import blocks, content, zstd
from mmapds.compression.reader import BlockCache, BlockReader
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK
from tests.support import oracle
from tests.support.compressed import NO_SIZE, WRITERS, codec, frames, one_block, one_frame, skippable, streamed, text

LINES = st.lists(
    st.sampled_from([b"{}", b'{"a":1}', b"", b" ", b"\r", b'{"a":1}\r', b"\t", b'"' + b"x" * 3000 + b'"', b"[1,2]"]),
    max_size=60,
)


def both(write, data, name="train.jsonl", writer="many", **options):
    """The dataset of a plain file, and that of the same in a compressed one."""
    suffix, compress = WRITERS[writer]
    paths = [write(data, name), write(compress(data), name + suffix)]
    for path in paths:
        mmapds.build(path, **options)
    return [mmapds.open(path) for path in paths]


def assert_same(plain, packed):
    """That all that can be asked of two datasets is the same, but where they lie."""
    rows = list(range(len(plain)))
    assert len(packed) == len(plain)
    assert list(packed) == list(plain)
    assert [packed.raw(i) for i in rows] == [plain.raw(i) for i in rows]
    assert [packed.where(i)[1:] for i in rows] == [plain.where(i)[1:] for i in rows]
    places = [packed.place(i).partition(":")[2] for i in rows]
    assert places == [plain.place(i).partition(":")[2] for i in rows]
    random.Random(3).shuffle(rows)
    assert packed.take(rows) == plain.take(rows)
    assert packed.take(rows[:3] * 2) == plain.take(rows[:3] * 2)
    assert packed.columns == plain.columns
    for name in plain.columns:
        assert np.array_equal(packed.column(name), plain.column(name))
        assert packed.column(name).dtype == plain.column(name).dtype
    kept = ("records", "lines", "smallest", "largest", "skipped", "first", "bad", "width")
    one, other = (Index(ds.indexes[0]).sources[0]._asdict() for ds in (plain, packed))
    assert {name: other[name] for name in kept} == {name: one[name] for name in kept}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("records", [0, 1, 3000])
def test_every_record_is_that_of_the_plain_file(write, writer, records):
    plain, packed = both(write, text(records), writer=writer, length="chars(text)", columns={"id": "id"})
    assert_same(plain, packed)
    verify(Index(packed.indexes[0]))


@settings(max_examples=60)
@given(LINES, st.sampled_from(sorted(WRITERS)), st.booleans(), st.booleans(), st.booleans())
def test_lines_of_any_kind_in_frames_of_any_kind(tmp_path_factory, lines, writer, has_mark, is_ended, is_measured):
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    suffix, compress = WRITERS[writer]
    path = tmp_path_factory.mktemp("lines") / f"a.jsonl{suffix}"
    path.write_bytes(compress(data))
    mmapds.build(path, columns={"size": "bytes()"} if is_measured else None)
    ds = mmapds.open(path)
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == oracle.records(data)
    assert [bytes(record) for record in mmapds.open(path, decode="bytes").take(range(len(ds)))] == [
        record for _, record in oracle.records(data)
    ]
    plain = path.with_name("b.jsonl")
    plain.write_bytes(data)
    mmapds.build(plain)
    one, other = (Index(f"{each}.mmx").sources[0] for each in (path, plain))
    assert (one.lines, one.smallest, one.largest) == (other.lines, other.smallest, other.largest)
    verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("options", [{"missing": "skip"}, {"missing": 7}, {"bad": "skip"}, {"validate": True}])
def test_lines_that_are_left_out(write, options):
    lines = text(2000).splitlines(keepends=True)
    if "bad" in options:
        lines[5::9] = [b'{"id": oh\n'] * len(lines[5::9])
    elif "validate" not in options:
        lines[5::9] = [b'{"text":"none"}\n'] * len(lines[5::9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lines are left out
        plain, packed = both(write, b"".join(lines), writer="mixed", columns={"id": "id"}, **options)
    assert_same(plain, packed)
    verify(Index(packed.indexes[0]))


@pytest.mark.parametrize("suffix", ["gz", "zst"])
@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_line_is_named_while_a_thread_decodes_on(write, suffix, workers):
    """With content behind the lines that threads hold when they meet it."""
    rest = b"".join(b'{"id":%d,"h":"%s"}\n' % (n, os.urandom(32).hex().encode()) for n in range(30_000))
    data = text(2400) + b'{"id":1, oops\n' + rest
    path = write(gzip.compress(data, 1) if suffix == "gz" else b"".join(frames(data, 50_000)), f"a.jsonl.{suffix}")
    for _ in range(8):
        with pytest.raises(mmapds.DecodeError, match=r"a\.jsonl\.\w+:2401 "):
            mmapds.build(path, length="id", workers=workers)


def test_a_line_that_is_not_json_is_named_when_it_is_read(write):
    data = text(1500) + b'\n\n{"id": oh}\n' + text(10)
    messages = []
    for ds in both(write, data):
        with pytest.raises(mmapds.DecodeError) as error:
            ds[1500]
        messages.append(str(error.value).partition("; leave")[0].partition("jsonl")[2].removeprefix(".zst"))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f":1503 (byte {len(text(1500)) + 2}): not JSON")


def test_where_says_the_place_in_the_content_and_in_the_file(write):
    plain, packed = both(write, text(3000))
    blocks = {packed.where(i).block for i in range(3000)}
    assert len(blocks) > 3
    assert min(blocks) == 0
    where = packed.where(2000)
    assert where == (packed.sources[0], *plain.where(2000)[1:])
    assert pickle.loads(pickle.dumps(where)).block == where.block
    assert not hasattr(plain.where(2000), "block")


# ---- datasets of them -----------------------------------------------------------------------------------------------


def test_views_concatenations_maps_and_fields(write):
    plain, packed = both(write, text(3000), length="chars(text)")
    more = write(text(10), "more.jsonl")
    mmapds.build(more)
    fields = mmapds.Fields({"id": "int64", "n": ("int64", (2,))})
    for make in (
        lambda ds: ds[100:2000:3],
        lambda ds: ds[np.arange(len(ds)) % 5 == 0],
        lambda ds: ds.split([0.5, 0.5])[1],
        lambda ds: mmapds.concat([ds, plain, ds[5:10]]),
        lambda ds: ds.map(len),
        lambda ds: mmapds.zip(a=ds, b=ds),
        lambda ds: mmapds.open(ds.sources, decode="text"),
        lambda ds: mmapds.open(ds.sources, io="pread"),
        lambda ds: mmapds.open([*ds.sources, more]),
    ):
        one, other = make(plain), make(packed)
        rows = list(range(0, len(one), 7))[::-1]
        assert list(other.take(rows)) == list(one.take(rows))
        assert [other[i] for i in rows[:9]] == [one[i] for i in rows[:9]]
    one, other = (mmapds.open(ds.sources, decode=fields) for ds in (plain, packed))
    rows = np.random.default_rng(0).integers(0, 3000, 500)
    batches = [mmapds.pad_collate(ds.take(rows)) for ds in (one, other)]
    assert all((batches[0][name] == batches[1][name]).all() for name in ("id", "n"))


def test_a_saved_view_and_a_merged_index(write, tmp_path):
    plain, packed = both(write, text(2000), length="chars(text)")
    packed[::3].save(tmp_path / "v.mmx")
    assert list(mmapds.open(tmp_path / "v.mmx")) == list(plain[::3])
    other = write(b"".join(frames(text(500, 1), 5000)), "other.jsonl.zst")
    third = write(text(70, 2), "third.jsonl")
    for path in (other, third):
        mmapds.build(path, length="chars(text)")
    paths = [packed.sources[0], third, other]
    merged = mmapds.merge([f"{path}.mmx" for path in paths], out=tmp_path / "all.mmx")
    built = mmapds.build(paths, out=tmp_path / "built.mmx", length="chars(text)", force=True)
    scanned = mmapds.open(mmapds.build(paths[::-1], out=tmp_path / "other.mmx", length="chars(text)"))
    assert merged.read_bytes() == built.read_bytes()
    verify(Index(str(merged)))
    ds = mmapds.open(merged)
    assert list(ds) == [*packed, *mmapds.open(third), *mmapds.open(other)]
    assert sorted(map(str, scanned)) == sorted(map(str, ds))


def test_a_source_that_grew_is_scanned_again(write):
    parts = frames(text(2000), 4000)
    path = write(b"".join(parts[:10]), "a.jsonl.zst")
    mmapds.build(path)
    write(b"".join(parts), "a.jsonl.zst")
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(path)
    mmapds.build(path)
    assert len(mmapds.open(path)) == 2000
    verify(Index(f"{path}.mmx"))


def test_a_directory_has_compressed_files_too_and_warns_of_two_forms_of_one(write, tmp_path):
    write(text(10), "d/a.jsonl")
    write(WRITERS["one"][1](text(10)), "d/b.jsonl.zst")
    ds = mmapds.open(tmp_path / "d", build=True)
    assert [os.path.basename(path) for path in ds.sources] == ["a.jsonl", "b.jsonl.zst"]
    write(WRITERS["one"][1](text(10)), "d/a.jsonl.zst")
    with pytest.warns(UserWarning, match=r"a\.jsonl\.zst: its records come twice, as .*a\.jsonl is given, too"):
        assert len(mmapds.open(tmp_path / "d", build=True)) == 30


# ---- processes and threads ----------------------------------------------------------------------------------------


def _read(ds, rows, found):
    found.put(list(ds.take(rows)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_read_what_their_parent_reads(write, method):
    plain, packed = both(write, text(2000))
    rows = list(range(0, 2000, 11))[::-1]
    packed.take(rows)
    context = multiprocessing.get_context(method)
    found = context.Queue()
    process = context.Process(target=_read, args=(packed, rows, found))
    process.start()
    assert found.get(timeout=60) == plain.take(rows)
    process.join()


def test_threads_read_the_same_and_decode_a_block_once(write, monkeypatch):
    plain, packed = both(write, text(3000))
    decoded, decode = [], BlockReader._decode
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    expected, found = list(plain), []

    def read(seed):
        rows = random.Random(seed).sample(range(3000), 1500)
        found.append(list(packed.take(rows)) == [expected[row] for row in rows])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 6
    assert len(decoded) == Index(packed.indexes[0]).sources[0].compression.blocks


def test_the_cache_keeps_what_was_used_last_within_its_limit():
    cache, made = BlockCache(100), []

    def get(key, size=30):
        return cache.get(key, lambda: (made.append(key), bytes(size))[1], size)

    for key in "abcabd":
        get(key)
    assert made == ["a", "b", "c", "d"]
    assert [block is not None for block in cache.find("abcd")] == [True, True, False, True]
    get("large", 101)
    assert cache.find(["large"]) == [None]
    assert cache.size == 90
    get("all", 100)
    assert (cache.size, cache.find("a")) == (100, [None])


def test_who_waits_for_a_thread_that_is_interrupted_decodes_the_block():
    cache, begun, go_on, found = BlockCache(), threading.Event(), threading.Event(), []

    def interrupted():
        begun.set()
        go_on.wait()
        raise KeyboardInterrupt

    def get():
        with suppress(KeyboardInterrupt):
            found.append(cache.get("a", interrupted if not begun.is_set() else lambda: (b"whole",)))

    threads = [threading.Thread(target=get) for _ in range(2)]
    threads[0].start()
    begun.wait()
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [(b"whole",)]


def test_an_interrupt_at_any_line_leaves_nobody_waiting():
    cache, interrupted = BlockCache(), []

    def interrupt(frame, event, _):
        if frame.f_code is not BlockCache.get.__code__:
            return None
        if event == "line" and frame.f_lineno == line:
            interrupted.append(line)
            sys.settrace(None)
            raise KeyboardInterrupt
        return interrupt

    first = BlockCache.get.__code__.co_firstlineno
    for line in range(first + 1, first + 25):
        traced = sys.gettrace()
        sys.settrace(interrupt)
        try:
            with suppress(KeyboardInterrupt):
                cache.get(line, lambda: (b"block",))
        finally:
            sys.settrace(traced)
        assert cache.get(line, lambda: (b"block",)) == (b"block",)
    assert len(interrupted) > 5


@pytest.mark.parametrize("block_cache", [0, 1 << 16, 1 << 20])
def test_a_small_cache_makes_reads_slower_and_no_other(write, block_cache):
    plain, packed = both(write, text(3000))
    ds = mmapds.open(packed.sources, block_cache=block_cache)
    rows = random.Random(1).sample(range(3000), 1000)
    assert ds.take(rows) == plain.take(rows)
    assert ds._catalog.blocks.size <= block_cache
    assert pickle.loads(pickle.dumps(ds))._catalog.blocks.limit == block_cache


@pytest.mark.parametrize(
    ("suffix", "compress", "between"),
    [
        (".zst", codec.compress, skippable(bytes(2 << 20))),
        (".zst", codec.compress, codec.compress(b"") * 200_000),
        (".gz", gzip.compress, gzip.compress(b"") * 70_000),
    ],
    ids=["skippable frame", "empty frames", "empty members"],
)
def test_what_lies_within_a_block_may_be_large(write, suffix, compress, between):
    """As the seek table of a file that another was appended to."""
    lines = text(100).splitlines(keepends=True)
    parts = [b"".join(lines[begin:end]) for begin, end in ((0, 60), (60, 70), (70, 100))]
    data = compress(parts[0]) + between + compress(parts[1]) + compress(parts[2]) + between
    ds = mmapds.open(write(data, "train.jsonl" + suffix), build=True)
    assert [ds.raw(i) for i in range(100)] == [line.rstrip(b"\n") for line in lines]


# ---- one large frame ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The plain dataset, and that of one frame, or block of deflate, of more than a block may have."""
    folder = tmp_path_factory.mktemp("large")
    data = b"".join(b'{"id":%d,"text":"%s"}\n' % (k, b"word " * (k % 900)) for k in range(5000))
    assert len(data) > LARGEST_BLOCK
    (folder / "a.jsonl").write_bytes(data)
    for name, make in (("one.jsonl.zst", one_frame), ("streamed.jsonl.zst", streamed), ("gzip.jsonl.gz", one_block)):
        (folder / name).write_bytes(make(data))
        mmapds.build(folder / name, length="chars(text)")
    mmapds.build(folder / "a.jsonl", length="chars(text)")
    return folder


@pytest.mark.parametrize("name", ["one.jsonl.zst", "gzip.jsonl.gz"])
def test_a_large_frame_that_was_cut_off_before_its_file_was_opened(large, tmp_path, name):
    for path in (large / name, large / f"{name}.mmx"):
        shutil.copy2(path, tmp_path)
    os.truncate(tmp_path / name, os.path.getsize(large / name) // 2)
    with pytest.raises(mmapds.StaleIndexError, match=f"{name} was "):
        list(mmapds.open(tmp_path / name, check="none"))


@pytest.mark.parametrize("name", ["one.jsonl.zst", "streamed.jsonl.zst", "gzip.jsonl.gz"])
def test_a_large_frame_is_read_in_order(large, name):
    plain, packed = mmapds.open(large / "a.jsonl"), mmapds.open(large / name, block_cache=2 << 20)
    for _ in range(2):
        for begin in range(0, 5000, 100):
            assert packed.take(range(begin, begin + 100)) == plain.take(range(begin, begin + 100))
    assert list(packed) == list(plain)
    assert (packed.lengths == plain.lengths).all()
    assert list(packed.stream()) == list(plain)
    assert packed[4900] == plain[4900], "what is decoded may be passed over"
    verify(Index(packed.indexes[0]))


@pytest.mark.parametrize("name", ["one.jsonl.zst", "gzip.jsonl.gz"])
def test_a_large_frame_is_not_read_out_of_order(large, name):
    packed = mmapds.open(large / name, block_cache=2 << 20)
    assert packed[4900]["id"] == 4900
    with pytest.raises(mmapds.Error, match=r"expected records in the order of the file.*run: .*seekable .*.jsonl"):
        packed[2000]
    assert packed[0]["id"] == 0, "a pass may begin again"
    assert packed[2000]["id"] == 2000


def test_a_large_frame_whose_records_are_kept_is_read_in_any_order(large):
    plain, packed = mmapds.open(large / "a.jsonl"), mmapds.open(large / "one.jsonl.zst")
    rows = random.Random(0).sample(range(5000), 5000)
    assert packed.take(rows) == plain.take(rows), "a batch is read in the order of the file"
    assert [packed[row] for row in rows[:50]] == [plain[row] for row in rows[:50]]


# ---- blocks of a few bytes ------------------------------------------------------------------------------------------

SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 7, 50]), min_size=1, max_size=8)
SHORT = st.lists(st.sampled_from([b"{}", b"", b" ", b"\r", b"[1]\r", b"\t", b"[1, 2]"]), max_size=12)


@pytest.fixture
def small(monkeypatch):
    """Blocks of a few bytes, as many as a byte order mark has and more, and parts of single blocks."""
    monkeypatch.setattr(zstd, "SMALLEST", 4)
    for function in (content.parts_of, content.content_of):
        monkeypatch.setattr(function, "__defaults__", (3,))  # `least`


def framed(data, sizes, options=None):
    """Frames of content of these sizes, again and again."""
    ends = itertools.takewhile(lambda end: end < len(data), itertools.accumulate(itertools.cycle(sizes)))
    bounds = [0, *ends, len(data)]
    return b"".join(codec.compress(data[begin:end], options=options) for begin, end in itertools.pairwise(bounds))


@pytest.mark.usefixtures("small")
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(SHORT, SIZES, st.booleans(), st.booleans(), st.sampled_from([None, NO_SIZE]), st.booleans())
def test_lines_that_blocks_cut_anywhere(tmp_path, lines, sizes, has_mark, is_ended, options, is_measured):
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(framed(data, sizes, options))
    mmapds.build(path, workers=3 if is_ended else 1, columns={"size": "bytes()"} if is_measured else None, force=True)
    ds = mmapds.open(path)
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == oracle.records(data)
    if is_measured:
        assert ds.column("size").tolist() == [len(record) for _, record in oracle.records(data)]
    verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_byte_order_mark_that_a_block_as_large_as_may_be_cuts(write, monkeypatch, cut):
    for module in (zstd, content):
        monkeypatch.setattr(module, "LARGEST_BLOCK", 200)
    data = (b"\xef\xbb\xbf" + b"[1]\n" * 49).ljust(200 + cut)
    path = write(framed(data, [cut, 200]), "a.jsonl.zst")
    assert list(mmapds.open(path, build=True)) == [[1]] * 49


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("page", [1, 5, 1000])
def test_every_block_is_found_in_a_table_of_pages(write, monkeypatch, page):
    monkeypatch.setattr(blocks, "_PAGE", page)
    path = write(framed(b"[1, 2]\n" * 300, [7, 50, 4]), "a.jsonl.zst")
    table = blocks.BlockTable(Index(str(mmapds.build(path))), 0)
    bounds = list(itertools.pairwise(table.starts()))
    assert len(bounds) == table.count > 90
    found = random.Random(page).sample(range(2100), 500)
    for offset in [0, 2099, *found]:
        block = table.find(offset)
        begin, end = bounds[block]
        assert table.place(block) == (begin.file, end.file, begin.content, end.content)
        assert begin.content <= offset < end.content
    for count in (1, 2, 40):
        sizes = itertools.cycle([3, 0, 90, 7])
        ranges = sorted((begin, min(begin + next(sizes), 2100)) for begin in found[:count])
        wanted = b"".join(each.to_bytes(8, "little") for pair in ranges for each in pair)
        contents = [range(begin.content, end.content) for begin, end in bounds]
        wanted_bytes = {byte for each in ranges for byte in range(*each)}
        expected = [block for block, content in enumerate(contents) if not wanted_bytes.isdisjoint(content)]
        assert list(table.find_all(wanted)) == expected
    ds = mmapds.open(path)
    rows = random.Random(page).choices(range(300), k=100)
    assert ds.take(rows) == [[1, 2]] * 100
