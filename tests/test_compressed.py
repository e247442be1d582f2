"""Compressed JSON Lines: every record is that of the plain file, whatever wrote the file and however it is read."""

import gzip
import io
import itertools
import os
import pickle
import random
import shutil
import subprocess
import warnings
from contextlib import ExitStack
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pyarrow
import pytest
from fsspec.compression import compr
from hypothesis import HealthCheck, example, given, settings

import mmapds
from mmapds import orders
from mmapds.compression import content, reader, zstd
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.reader import BlockReader
from mmapds.errors import OrderError
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK
from tests.support import oracle
from tests.support.compressed import NO_SIZE, WRITERS, codec, frames, one_block, one_frame, streamed, text
from tests.support.messages import check


def by_fsspec(data):
    """As datatrove and others write: record by record, into one frame without its size."""
    out = io.BytesIO()
    with compr["zstd"](out, mode="wb") as file:
        for line in data.splitlines(keepends=True):
            file.write(line)
    return out.getvalue()


def by_pyarrow(data):
    out = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(out, "zstd") as file:
        for at in range(0, len(data), 9999):
            file.write(data[at : at + 9999])
    return out.getvalue().to_pybytes()


def flushed(data):
    """As a logger writes: blocks that are flushed, in one frame."""
    out = io.BytesIO()
    with codec.ZstdFile(out, "wb") as file:
        for at in range(0, len(data), 5000):
            file.write(data[at : at + 5000])
            file.flush(codec.ZstdFile.FLUSH_BLOCK)
    return out.getvalue()


def with_long_windows(data):
    name = codec.CompressionParameter
    return codec.compress(data, options={name.window_log: 27, name.enable_long_distance_matching: 1})


def by(command):
    def write(data):
        program, *arguments = command.split()
        if not shutil.which(program):
            pytest.skip(f"no {program} here; apt-get install -y zstd pigz tabix")
        return subprocess.run([program, *arguments, "-c"], input=data, capture_output=True, check=True).stdout

    return write


ALL = {
    **WRITERS,
    "fsspec": (".zst", by_fsspec),
    "pyarrow": (".zst", by_pyarrow),
    "flushed": (".zst", flushed),
    "long windows": (".zst", with_long_windows),
    **{command: (".zst", by(command)) for command in ("zstd -q", "zstd -q -T0 --long=27", "pzstd -q -p 2")},
    **{command: (".gz", by(command)) for command in ("gzip", "pigz -p 2", "pigz -p 2 -i", "bgzip")},
}


def both(write, data, writer="many", **options):
    """The dataset of a plain file, and that of the same in a compressed one."""
    suffix, compress = ALL[writer]
    paths = [write(data, "train.jsonl"), write(compress(data), f"train.jsonl{suffix}")]
    return [mmapds.open(mmapds.build(path, force=True, **options)) for path in paths]


def assert_same(plain, packed):
    """That all that can be asked of two datasets is the same, but where they lie."""
    rows = list(range(len(plain)))
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
    assert summary(packed) == summary(plain)
    verify(Index(packed.indexes[0]))


def summary(ds):
    """What an index says of its source, but how its bytes lie."""
    source = Index(ds.indexes[0]).sources[0]._asdict()
    return [source[each] for each in ("records", "lines", "smallest", "largest", "skipped", "first", "bad", "width")]


@pytest.mark.parametrize("writer", ALL)
def test_every_record_is_that_of_the_plain_file(write, writer):
    for records in (0, 1, 1500) if writer in WRITERS else (1500,):
        assert_same(*both(write, text(records), writer, length="chars(text)", columns={"id": "id"}))


@pytest.mark.parametrize("option", ["missing", "bad"])
def test_lines_that_are_left_out_are_those_of_the_plain_file(write, option):
    lines = text(900).splitlines(keepends=True)
    lines[5::9] = [b'{"id": oh\n' if option == "bad" else b'{"text":"none"}\n'] * len(lines[5::9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that lines are left out
        assert_same(*both(write, b"".join(lines), "mixed", columns={"id": "id"}, **{option: "skip"}))


# ---- blocks of a few bytes ------------------------------------------------------------------------------------------


def cut(data, sizes, pack):
    """Frames or members of content of these sizes, again and again."""
    ends = itertools.takewhile(lambda end: end < len(data), itertools.accumulate(itertools.cycle(sizes)))
    return b"".join(pack(data[begin:end]) for begin, end in itertools.pairwise([0, *ends, len(data)]))


PACKS = {
    "sizes": (".zst", codec.compress),
    "no sizes": (".zst", lambda data: codec.compress(data, options=NO_SIZE)),
    "members": (".gz", gzip.compress),
}
LINES = [b"{}", b"", b" ", b"\r", b"[1]\r", b"\t", b"[1, 2]", b'"' + b"x" * 300 + b'"']


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from(LINES), max_size=12),
    st.lists(st.sampled_from([1, 2, 3, 4, 7, 50, 200]), min_size=1, max_size=8),
    st.sampled_from(sorted(PACKS)),
    st.sampled_from([100, LARGEST_BLOCK]),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@example([b"[1]"] * 49, [1, 200], "sizes", 200, (True, True, False))
@example([b"[1]"] * 49, [2, 100], "no sizes", 100, (True, True, True))
def test_lines_that_blocks_cut_anywhere(tmp_path, lines, sizes, pack, largest, switches):
    has_mark, is_ended, is_measured = switches
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    suffix, compress = PACKS[pack]
    plain, path = tmp_path / "a.jsonl", tmp_path / f"a.jsonl{suffix}"
    plain.write_bytes(data)
    path.write_bytes(cut(data, sizes, compress))
    options = {"columns": {"size": "bytes()"} if is_measured else None, "force": True}
    with ExitStack() as stack:
        smallest, places = (4, (zstd, gzip_codec)), (largest, (zstd, content, reader))
        for name, (value, modules) in {"SMALLEST": smallest, "LARGEST_BLOCK": places, "PIECE": (16, [reader])}.items():
            for module in modules:
                stack.enter_context(patch.object(module, name, value))
        for function in (content.parts_of, content.content_of):
            stack.enter_context(patch.object(function, "__defaults__", (3,)))  # `least`
        one, other = (mmapds.open(mmapds.build(each, workers=1 + 2 * is_ended, **options)) for each in (plain, path))
        expected = oracle.records(data)
        assert [(other.where(i).offset, other.raw(i)) for i in range(len(other))] == expected
        found = mmapds.open(path, decode="bytes").take(range(len(expected)))
        assert [bytes(record) for record in found] == [record for _, record in expected]
        assert summary(other) == summary(one)
        assert not is_measured or other.column("size").tolist() == [len(record) for _, record in expected]
        verify(Index(f"{path}.mmx"))


def test_what_lies_within_a_block_may_be_larger_than_what_is_read_at_once(write):
    """As the seek table of a file that another was appended to."""
    lines = text(100).splitlines(keepends=True)
    for suffix, compress, between in (
        (".zst", codec.compress, b"\x50\x2a\x4d\x18" + (2 << 20).to_bytes(4, "little") + bytes(2 << 20)),
        (".zst", codec.compress, codec.compress(b"") * 40_000),
        (".gz", gzip.compress, gzip.compress(b"") * 20_000),
    ):
        parts = [compress(b"".join(lines[begin:end])) for begin, end in ((0, 60), (60, 70), (70, 100))]
        data = parts[0] + between + parts[1] + parts[2] + between
        ds = mmapds.open(write(data, f"train.jsonl{suffix}"), build=True, decode="bytes")
        assert [line + b"\n" for line in ds] == lines


# ---- lines that are wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_bad_line_is_named_while_a_thread_decodes_on(write, suffix):
    """With content behind the lines that threads hold when they meet it."""
    rest = b"".join(b'{"id":%d,"h":"%s"}\n' % (n, os.urandom(32).hex().encode()) for n in range(30_000))
    data = text(2400) + b'{"id":1, oops\n' + rest
    path = write(gzip.compress(data, 1) if suffix == "gz" else b"".join(frames(data, 50_000)), f"a.jsonl.{suffix}")
    for _ in range(3):
        with pytest.raises(mmapds.DecodeError, match=r"a\.jsonl\.\w+:2401 "):
            mmapds.build(path, length="id", workers=2)


@pytest.mark.parametrize("writer", ["many", "gzip"])
def test_a_line_that_is_not_json_is_named_when_it_is_read(write, writer):
    data = text(500) + b'\n\n{"id": oh}\n' + text(10)
    messages = []
    for ds in both(write, data, writer):
        with pytest.raises(mmapds.DecodeError) as error:
            ds[500]
        messages.append(str(error.value).partition("; leave")[0].removeprefix(ds.sources[0]))
    assert messages[0] == messages[1]
    assert messages[0].startswith(f":503 (byte {len(text(500)) + 2}): not JSON")


# ---- datasets of them -----------------------------------------------------------------------------------------------


def test_where_has_the_place_in_the_content_and_the_block_in_the_file(write):
    plain, packed = both(write, text(3000))
    where = packed.where(2000)
    assert where == (packed.sources[0], *plain.where(2000)[1:])
    assert pickle.loads(pickle.dumps(where)).block == where.block
    assert not hasattr(plain.where(2000), "block")
    blocks = [packed.where(i).block for i in range(3000)]
    assert blocks == sorted(blocks)
    assert (blocks[0], len(set(blocks))) == (0, Index(packed.indexes[0]).sources[0].compression.blocks)


def test_views_concatenations_maps_and_fields(write):
    plain, packed = both(write, text(900))
    more = mmapds.build(write(text(10), "more.jsonl"))
    for make in (
        lambda ds: ds[100:800:3],
        lambda ds: ds[np.arange(len(ds)) % 5 == 0],
        lambda ds: mmapds.concat([ds, plain, ds[5:10]]),
        lambda ds: ds.map(len),
        lambda ds: mmapds.zip(a=ds, b=ds),
        lambda ds: mmapds.open(ds.sources, io="pread"),
        lambda ds: mmapds.open([*ds.sources, more]),
        lambda ds: mmapds.open(ds.sources, block_cache=0),
        lambda ds: pickle.loads(pickle.dumps(ds)),
    ):
        one, other = make(plain), make(packed)
        rows = list(range(0, len(one), 7))[::-1]
        assert list(other.take(rows)) == list(one.take(rows))
        assert [other[i] for i in rows[:9]] == [one[i] for i in rows[:9]]
    fields = mmapds.Fields({"id": "int64", "n": ("int64", (2,))})
    rows = np.random.default_rng(0).integers(0, 900, 500)
    one, other = (mmapds.pad_collate(mmapds.open(ds.sources, decode=fields).take(rows)) for ds in (plain, packed))
    assert all((one[name] == other[name]).all() for name in ("id", "n"))


def test_a_merged_index_is_what_is_built_of_its_sources(write, tmp_path):
    """Of gzip with access points, of members, which have none, of zstd, and plain."""
    made = {"a.jsonl.gz": gzip.compress, "b.jsonl": bytes, "c.jsonl.gz": WRITERS["members"][1]}
    made |= {"d.jsonl.zst": WRITERS["many"][1]}
    with patch.object(gzip_codec, "SPACING", 20_000):
        paths = [write(make(text(700, k)), name) for k, (name, make) in enumerate(made.items())]
        parts = [mmapds.build(path, length="chars(text)") for path in paths]
        for order in (slice(None), slice(None, None, -1)):
            built = mmapds.build(paths[order], out=tmp_path / "built.mmx", length="chars(text)", force=True)
            merged = mmapds.merge(parts[order], out=tmp_path / f"{order.step}.mmx")
            assert merged.read_bytes() == built.read_bytes()
        verify(Index(str(merged)))
    ds = mmapds.open(merged, decode="bytes")
    assert [line + b"\n" for line in ds] == b"".join(text(700, k) for k in (3, 2, 1, 0)).splitlines(keepends=True)
    ds[::3].save(tmp_path / "v.mmx")
    assert list(mmapds.open(tmp_path / "v.mmx", decode="bytes")) == list(ds[::3])


def test_a_source_that_grew_is_scanned_again(write):
    parts = frames(text(900), 4000)
    path = write(b"".join(parts[:10]), "a.jsonl.zst")
    mmapds.build(path)
    write(b"".join(parts), "a.jsonl.zst")
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(path)
    assert len(mmapds.open(mmapds.build(path))) == 900


def test_a_directory_has_compressed_files_too_and_warns_of_two_forms_of_one(write, tmp_path):
    write(text(10), "d/a.jsonl")
    write(one_frame(text(10)), "d/b.jsonl.zst")
    ds = mmapds.open(tmp_path / "d", build=True)
    assert [os.path.basename(path) for path in ds.sources] == ["a.jsonl", "b.jsonl.zst"]
    write(one_frame(text(10)), "d/a.jsonl.zst")
    with pytest.warns(UserWarning, match=r"a\.jsonl\.zst: its records come twice, as .*a\.jsonl is given, too"):
        assert len(mmapds.open(tmp_path / "d", build=True)) == 30


# ---- blocks that are too large, which are read in order -------------------------------------------------------------


LONG = text(400)[:80_000].split(b"\n")


@pytest.fixture
def large(write, monkeypatch):
    """Files of one block that is too large, of 19 pieces and a smaller one."""
    monkeypatch.setattr(reader, "PIECE", 4096)
    for module in (zstd, content, reader):
        monkeypatch.setattr(module, "LARGEST_BLOCK", 20_000)
    made = {"one.jsonl.zst": one_frame, "streamed.jsonl.zst": streamed, "block.jsonl.gz": one_block}
    paths = [write(make(b"\n".join(LONG)), name) for name, make in made.items()]
    for path in paths:
        mmapds.build(path)
    return paths


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 10**6), max_size=8), st.booleans())
def test_a_large_block_is_read_forward_and_from_its_beginning(large, rows, is_kept):
    """What is decoded may be passed over, and read again while it is the last piece or the cache has it."""
    for path in large:
        ds = mmapds.open(path, decode="bytes", block_cache=80_000 if is_kept else 0)
        done = 0  # pieces that are decoded
        for row in (each % len(LONG) for each in rows):
            begin = sum(map(len, LONG[:row])) + row
            pieces = range(begin // 4096, (begin + len(LONG[row]) - 1) // 4096 + 1)
            done = done if pieces[0] or is_kept else 0
            if pieces[0] >= done - 1 or is_kept:
                assert ds[row] == LONG[row]
                done = max(done, pieces[-1] + 1)
                continue
            message = r"expected records in the order of the file, as block 0 has 80000 bytes .*run: .*seekable "
            with pytest.raises(mmapds.Error, match=message):
                ds[row]


def test_passes_over_a_large_block_are_those_of_the_plain_file(large):
    for path in large:
        ds = mmapds.open(path, decode="bytes", block_cache=8192)
        for _ in range(2):
            assert list(ds) == LONG
            assert [ds.take(range(row, row + 9))[0] for row in range(0, 300, 9)] == LONG[:300:9]
        assert list(ds.stream()) == LONG
        rows = random.Random(0).sample(range(len(ds)), len(ds))
        assert mmapds.open(path, decode="bytes").take(rows) == [LONG[row] for row in rows]
        verify(Index(f"{path}.mmx"))


# ---- chunks of blocks -----------------------------------------------------------------------------------------------


@pytest.fixture
def packed(write):
    """Two sources of many blocks, in one of which a record lies in several."""
    data = text(600) + b'{"id":600,"text":"%s"}\n' % (b"x" * 200_000)
    return mmapds.open([write(WRITERS["many"][1](data), f"{k}.jsonl.zst") for k in range(2)], build=True)


def test_blocks_start_with_the_first_record_that_begins_in_them(packed):
    blocks = [packed.where(i)[0] + str(packed.where(i).block) for i in range(len(packed))]
    starts = packed.block_starts
    assert np.unique(starts).tolist() == [*(i for i in range(1202) if not i or blocks[i] != blocks[i - 1]), 1202]
    assert len(starts) > len(np.unique(starts)), "some have no record that begins there"
    assert mmapds.zip(a=packed.map(len), b=packed).block_starts.tolist() == starts.tolist()
    inside = starts[(starts > 100) & (starts < 1000)] - 100
    assert packed[100:1000].block_starts.tolist() == [0, *inside.tolist(), 900]


def test_what_has_no_blocks_is_refused(packed, write):
    plain = mmapds.open(write(text(10)), build=True)
    for ask, message in {
        lambda: packed[::2].block_starts: "expected all records or a slice of neighbours, found another view",
        lambda: mmapds.ChunkedSampler(plain, "block"): r"train.jsonl: expected a compressed source, .*, found another",
        lambda: mmapds.ChunkedSampler([1, 2, 3], "block"): r"chunk_size = 'block', expected a dataset .*, found list",
        lambda: orders.Chunked([1, 2, 3], "block"): r"chunk_size = 'block', expected a dataset .*, found list",
    }.items():
        with pytest.raises((OrderError, mmapds.Error), match=message) as error:
            ask()
        check(str(error.value).removeprefix(os.path.dirname(plain.sources[0])))


def test_chunks_end_with_blocks_and_sources(packed):
    starts = packed.block_starts
    for size, most in (("block", None), (100, 100)):
        order = orders.Chunked(packed, size, mix_chunks=4, seed=3)
        sampler = mmapds.ChunkedSampler(packed, size, num_replicas=1, rank=0, mix_chunks=4, seed=3)
        assert order.at(0, np.arange(1202)).tolist() == list(sampler)
        assert set(packed.source_starts.tolist()) <= set(order.chunk_starts.tolist())
        assert most is None or np.diff(order.chunk_starts).max() == most
    assert orders.Chunked(packed, "block").chunk_starts.tolist() == np.unique(starts).tolist()
    assert set(starts.tolist()) < set(orders.Chunked(starts, 100).chunk_starts.tolist())
    assert orders.Chunked(1202, 1000).chunk_starts.tolist() == [0, 1000, 1202]


def test_an_epoch_in_chunks_of_blocks_decodes_a_block_about_once(packed, monkeypatch):
    ds = mmapds.open(packed.sources, decode="bytes", block_cache=6 * 100_000)
    decoded, decode = [], BlockReader._decode
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    rows = list(mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0, mix_chunks=4, seed=3))
    assert sorted(rows) == list(range(len(ds)))
    assert rows != sorted(rows)
    for at in range(0, len(rows), 64):
        assert ds.take(rows[at : at + 64]) == [packed.raw(row) for row in rows[at : at + 64]]
    assert len(decoded) <= 2 * len(packed.block_starts), "a record over two blocks has both decoded"
