"""Compressed files: every record is that of the plain file, whatever wrote the file and however it is read."""

import gzip
import itertools
import os
import pickle
import random
import shutil
import struct
import subprocess
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import mmapds
from mmapds import orders
from mmapds.compression import blocks, content, reader, zstd
from mmapds.compression import gzip as gzip_codec
from mmapds.compression.reader import BlockReader
from mmapds.dataset import catalog
from mmapds.samplers import sampled
from mmapds.storage.index_file import Index
from mmapds.storage.sections import LARGEST_BLOCK
from tests.support import oracle
from tests.support.compressed import NO_SIZE, WRITERS, codec, frames, one_block, one_frame, streamed, text
from tests.support.index_file import verify
from tests.support.samples import framed
from tests.support.tars import DIALECTS, archive, members_of, special

# ---- files ----------------------------------------------------------------------------------------------------------


def by(command):
    def write(data):
        program, *arguments = command.split()
        if not shutil.which(program):
            pytest.skip(f"no {program} here; apt-get install -y zstd pigz tabix")
        return subprocess.run([program, *arguments, "-c"], input=data, capture_output=True, check=True).stdout

    return write


ALL = {
    **WRITERS,
    **{command: (".zst", by(command)) for command in ("zstd -q", "zstd -q -T0 --long=27", "pzstd -q -p 2")},
    **{command: (".gz", by(command)) for command in ("gzip", "pigz -p 2 -i", "bgzip")},
}


NAMES = {"jsonl": "train.jsonl", "tar": "a.tar", "tfrecord": "a.tfrecord"}
BAD_LINES = text(900).splitlines(keepends=True)
BAD_LINES[5::18] = [b'{"id": oh\n'] * len(BAD_LINES[5::18])
BAD_LINES[7::18] = [b'{"text":"none"}\n'] * len(BAD_LINES[7::18])


def made(kind, count=60, seed=0):
    """A plain file of some records, of all sizes."""
    random_ = random.Random(seed)
    if kind == "tar":
        more = [special("d", b"5"), ("__note__", b"has no key"), (f"{seed}/z.bin", bytes(90_000))]
        return archive([*members_of(count, f"{seed}/"), *more], "gnu")
    if kind == "jsonl":
        return text(count, seed)
    return b"".join(framed(random_.randbytes(random_.choice([0, 1, 7, 100, 40_000])), kind) for _ in range(count))


def written(write, kind, data, writer=None):
    """Write a file, compressed by a writer; return its path."""
    suffix, compress = ALL[writer] if writer else ("", bytes)
    return write(compress(data), NAMES.get(kind, "a.bin") + suffix)


def as_format(kind):
    return {} if kind in NAMES else {"format": "prefixed", "prefix": kind}


# ---- the records of the plain file ----------------------------------------------------------------------------------


def answers(path, kind, **options):
    """All that can be asked of a file that is indexed, but where its bytes lie; or the error without its name."""
    try:
        Path(f"{path}.mmx").unlink(missing_ok=True)  # whose options would be kept
        ds = mmapds.open(mmapds.build(path, **as_format(kind), **options))
        verify(Index(ds.indexes[0]))
    except mmapds.Error as error:
        return str(error).partition(": ")[2]
    samples, rows = without_source(ds), random.Random(3).sample(range(len(ds)), len(ds))
    assert without_source(ds.take(rows)) == [samples[row] for row in rows]
    source = Index(ds.indexes[0]).sources[0]._asdict()
    return {
        "samples": samples,
        "records": [(*ds.where(i)[1:], ds.place(i).partition(":")[2], ds.raw(i)) for i in range(len(ds))],
        "keys": [ds.find(each["__key__"]) for each in samples] if kind == "tar" else [],
        "columns": {name: (ds.column(name).dtype, ds.column(name).tolist()) for name in ds.columns},
        "source": [source[each] for each in ("records", "lines", "smallest", "largest", "skipped", "first", "bad")],
    }


def without_source(samples):
    return [{**each, "__url__": ""} if isinstance(each, dict) and "__url__" in each else each for each in samples]


ID = {"length": "chars(text)", "columns": {"id": "id"}}
SAME = [  # the writer, the format, the plain file, and options
    *((writer, "jsonl", text(1500), ID) for writer in ALL),
    *((writer, "jsonl", text(1) * count, ID) for writer in ("many", "gzip") for count in (0, 1)),
    ("mixed", "jsonl", b"".join(BAD_LINES), {"columns": {"id": "id"}, "missing": "skip", "bad": "skip"}),
    *((writer, "tar", made("tar"), {}) for writer in ("gzip", "mixed", "bgzf")),
    ("members", "tfrecord", made("tfrecord"), {"length": "bytes()"}),
    ("pzstd", "varint", made("varint"), {"length": "bytes()"}),
]


@pytest.mark.filterwarnings("ignore:.*left out of")
@pytest.mark.parametrize(("writer", "kind", "data", "options"), SAME, ids=lambda it: it if type(it) is str else "")
def test_every_record_is_that_of_the_plain_file(write, writer, kind, data, options):
    plain, packed = (answers(written(write, kind, data, each), kind, **options) for each in (None, writer))
    assert packed == plain


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
SIZE = st.sampled_from([0, 1, 2, 9, 127, 128, 400, 511, 512, 513, 2000])
LINE = st.sampled_from([b"{}", b"", b" ", b"\r", b"[1]\r", b"\t", b"[1, 2]", b'"' + b"x" * 300 + b'"'])
NAME = st.sampled_from(["a.x", "a.y", "b.x", "b.Y", "no", "d/b.x", "d" * 120 + "/c.x", "é" * 200 + ".x", "__m__/a.x"])
MARK = st.sampled_from([b"", b"\xef\xbb\xbf"])
CONTENT = {
    "jsonl": st.builds(lambda mark, lines: mark + b"\n".join(lines), MARK, st.lists(LINE, max_size=13)),
    "tar": st.builds(archive, st.lists(st.tuples(NAME, SIZE.map(bytes)), max_size=8), st.sampled_from(["pax", "gnu"])),
    **{
        kind: st.lists(SIZE.map(bytes).map(partial(framed, name=kind)), max_size=12).map(b"".join)
        for kind in ("varint", "tfrecord")
    },
}


@pytest.fixture
def tiny(monkeypatch):
    """Let blocks, pieces of large ones, and what is read of them at once have a few bytes."""
    for module, name in ((zstd, "SMALLEST"), (gzip_codec, "SMALLEST"), (zstd, "_PIECE"), (reader, "PIECE")):
        monkeypatch.setattr(module, name, 16 if "PIECE" in name else 4)
    monkeypatch.setattr(blocks, "_PAGE", 3)
    for function in (content.parts_of, content.content_of):
        monkeypatch.setattr(function, "__defaults__", (3,))  # `least`


@pytest.mark.usefixtures("tiny")
@pytest.mark.filterwarnings("ignore:.*ignored")
@pytest.mark.parametrize("kind", CONTENT)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.data(),
    st.lists(st.sampled_from([1, 2, 3, 50, 200, 3000]), min_size=1, max_size=8),
    st.sampled_from(sorted(PACKS)),
    st.sampled_from([100, LARGEST_BLOCK]),
    st.sampled_from(["error", "drop"]),
    st.none() | st.integers(0, 9000),
    st.none() | st.integers(0, 9000),
)
def test_content_that_blocks_cut_anywhere_is_that_of_the_plain_file(
    tmp_path, kind, data, sizes, pack, largest, truncated, end, damaged
):
    """Also where it ends early, or has a wrong bit."""
    whole = bytearray(data.draw(CONTENT[kind]))
    if kind != "jsonl":
        whole = whole[:end]
        if damaged is not None and damaged < len(whole):
            whole[damaged] ^= 1
    suffix, compress = PACKS[pack]
    plain, path = (tmp_path / f"{NAMES.get(kind, 'a.bin')}{each}" for each in ("", suffix))
    plain.write_bytes(whole)
    path.write_bytes(cut(bytes(whole), sizes if kind == "jsonl" else [100, *sizes], compress))
    options = {"columns": {"size": "bytes()"} if largest == 100 else {}}  # another scan measures
    options |= {} if kind == "jsonl" else {"truncated": truncated}
    with ExitStack() as stack:
        for module in (zstd, content, reader):
            stack.enter_context(patch.object(module, "LARGEST_BLOCK", largest))
        found = answers(path, kind, workers=1 + len(whole) % 3, **options)
        assert found == answers(plain, kind, **options)
    if kind == "jsonl":
        assert [(offset, raw) for offset, *_, raw in found["records"]] == oracle.records(bytes(whole))
    if "records" in found and whole:
        table = blocks.BlockTable(Index(f"{path}.mmx"), 0)
        begins = [start.content for start in table.starts()]
        assert [table.find(begin) for begin in begins] == [*range(table.count), table.count - 1]
        assert pack != "sizes" or max(100, *sizes) > largest or max(np.diff(begins)) <= largest


def test_what_lies_within_a_block_may_be_larger_than_what_is_read_at_once(write):
    """As the seek table of a file that another was appended to."""
    lines = text(100).splitlines(keepends=True)
    for suffix, compress, between in (
        (".zst", codec.compress, b"\x50\x2a\x4d\x18" + (2 << 20).to_bytes(4, "little") + bytes(2 << 20)),
        (".gz", gzip.compress, gzip.compress(b"") * 14_000),
    ):
        parts = [compress(b"".join(lines[begin:end])) for begin, end in ((0, 60), (60, 70), (70, 100))]
        path = write(parts[0] + between + parts[1] + parts[2] + between, f"train.jsonl{suffix}")
        assert [line + b"\n" for line in mmapds.open(path, build=True, decode="bytes")] == lines


# ---- blocks that are too large, which are read in order -------------------------------------------------------------


LONG = text(400)[:80_000].split(b"\n")


@pytest.fixture
def large(write, monkeypatch):
    """Files of one block that is too large, of 19 pieces and a smaller one."""
    for module in (reader, catalog):
        monkeypatch.setattr(module, "PIECE", 4096)
    for module in (zstd, content, reader, catalog):
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


def test_large_blocks_that_fit_the_cache_one_by_one_are_decoded_again(large, monkeypatch):
    """Where a mix of chunks ends and the next one begins, more blocks are in use than a mix has."""
    for cache, mix in ((100_000, 1), (180_000, 2)):  # the second one is too small at the edge of a mix
        ds = mmapds.open(large, decode="bytes", block_cache=cache)
        sampler = mmapds.ChunkedSampler(ds, 10**9, mix_chunks=mix)
        loader = mmapds.DataLoader(ds, 8, sampler=sampler, num_workers=2, collate_fn=list)
        assert sorted(line for batch in loader for line in batch) == sorted(LONG * len(large))
    monkeypatch.setattr(sampled, "_MUCH", 5000)
    monkeypatch.setattr(sampled, "_TOO_MUCH", 5000)
    ds = mmapds.open(large, decode="bytes", block_cache=100_000)
    with pytest.raises(
        mmapds.Error, match=r"would be decoded about .*; give block_cache=200000 or more to mmapds.open"
    ):
        next(iter(mmapds.ChunkedSampler(ds, 10**9, mix_chunks=2)))
    ds = mmapds.open(large, decode="bytes", block_cache=79_999)
    with pytest.raises(mmapds.Error, match=r"80000 bytes .* more than block_cache = 79999, .*; give block_cache=80000"):
        next(iter(mmapds.ChunkedSampler(ds, 10**9, mix_chunks=2)))


@pytest.mark.parametrize("writer", ["many", "one", "gzip"])
def test_a_sample_may_be_larger_than_a_block_may_be(write, writer):
    """It lies in many blocks; or in one that is too large to be decoded at once, which `seekable` makes small ones."""
    big = random.Random(0).randbytes(9 << 20)
    data = archive([("a.txt", bytes(2 << 20)), ("b.txt", bytes(2 << 20)), ("c.bin", big), ("c.txt", b"3")])
    packed = b"".join(frames(data, 1 << 20)) if writer == "many" else WRITERS[writer][1](data)
    path = write(packed, "a.tgz" if writer == "gzip" else "a.tzst")
    with pytest.warns(match="a block of over 8 MiB .*; to shuffle, run: ") if writer == "one" else nullcontext():
        mmapds.build(path)
    ds = mmapds.open(path, block_cache=0)
    assert [sample["__key__"] for sample in ds] == ["a", "b", "c"]
    if writer == "one":
        with pytest.raises(mmapds.Error, match=r"expected records in the order of the file.*; run: .* seekable"):
            ds[1]
        done = mmapds.seekable(ds.sources[0])
        assert done.path == ds.sources[0].replace(".tzst", ".tar.zst")
        ds = mmapds.open(done.path, build=True)
    assert (ds[1]["txt"], ds[2]["bin"], ds[2]["txt"]) == (bytes(2 << 20), big, b"3")


# ---- what is wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", [None, "many", "gzip"])
def test_a_line_that_is_not_json_is_named_when_it_is_read_or_measured(write, writer):
    """While threads decode what lies behind it, too."""
    path = written(write, "jsonl", text(500) + b'\n\n{"id": oh}\n' + text(9000), writer)
    for options, read in (({}, lambda ds: ds[500]), ({"length": "id", "workers": 2}, len)):
        with pytest.raises(mmapds.DecodeError, match=rf"^{path}:503 \(byte {len(text(500)) + 2}\): not JSON: "):
            read(mmapds.open(mmapds.build(path, force=True, **options)))


TAR, TFRECORDS, PREFIXED = archive([("a.txt", b"1")], "gnu")[:1024], made("tfrecord"), made("u64le")
HUGE = special("a.x", b"x", size=2**32).tobuf(DIALECTS["ustar"]) + bytes(3 << 20)
REFUSED = [
    ("tar", TAR + b"x" * 2000, r"record 0 \(byte 1024\): .*expected a tar header, found a wrong header checksum"),
    ("tar", HUGE, r"record 0 \(byte 0\): expected extended headers of up to 16777216 bytes"),
    ("tar", special("a.x", b"0", size=2**40).tobuf(DIALECTS["gnu"]) + bytes(3 << 20), "expected a whole sample, found"),
    ("u64le", PREFIXED + struct.pack("<Q", 2**64 - 5) + bytes(3 << 20), f"expected a payload of {2**64 - 5} bytes"),
    ("tfrecord", TFRECORDS + b"not a record" * 9, rf"record 60 \(byte {len(TFRECORDS)}\): .* CRC of the length"),
]


@pytest.mark.parametrize(("kind", "data", "message"), REFUSED, ids=range(len(REFUSED)))
def test_a_size_that_lies_takes_no_memory_and_is_named_by_its_byte_of_the_content(write, kind, data, message):
    """4 GiB of headers, 1 TiB of a member, 16 EiB of a record."""
    for writer in ("gzip", "many"):
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(written(write, kind, data, writer), truncated="error", **as_format(kind))


# ---- datasets of them -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", NAMES)
def test_an_index_of_many_files_is_built_or_merged(write, tmp_path, kind):
    """Of gzip with access points, of members, which have none, of zstd, and plain."""
    paths, expected = [], []
    with patch.object(gzip_codec, "SPACING", 20_000):
        for number, writer in enumerate([None, "gzip", "many", "members", None]):
            data = made(kind, 700 if kind == "jsonl" else 40, number)
            suffix, compress = ALL[writer] if writer else ("", bytes)
            expected += mmapds.open(written(write, kind, data), decode="bytes", build=True)
            paths.append(write(compress(data), f"{number}.{kind}{suffix}"))
        for workers, order in ((1, slice(None, None, -1)), (3, slice(None))):
            built = mmapds.build(paths[order], out=tmp_path / "all.mmx", workers=workers, force=True)
            merged = mmapds.merge([mmapds.build(path) for path in paths[order]], out=tmp_path / f"{workers}.mmx")
            assert merged.read_bytes() == built.read_bytes()
        verify(Index(str(merged)))
    assert list(mmapds.open(merged, decode="bytes")) == expected


def test_names_and_first_bytes_say_what_files_are(write, tmp_path):
    names = ["a.tar.gz", "b.TGZ", "c.tar.zst", "d.tzst", "e.tar.bgz"]
    for name in [*names, "f"]:
        write(WRITERS["one" if "zst" in name else "gzip"][1](archive(members_of(5))), name)
        assert len(mmapds.open(tmp_path / name, build=True)) == 5
    with pytest.warns(UserWarning, match=r"ignored f\b|: f\b"):
        assert [os.path.basename(path) for path in mmapds.open(tmp_path).sources] == names


# ---- chunks of blocks -----------------------------------------------------------------------------------------------


@pytest.fixture
def packed(write, monkeypatch):
    """Two sources of many blocks, in one of which a record lies in several."""
    monkeypatch.setattr("mmapds.dataset.saving._PIECE", 100)  # records whose bounds are looked at at a time
    data = text(600) + b'{"id":600,"text":"%s"}\n' % (b"x" * 200_000)
    return mmapds.open([write(WRITERS["many"][1](data), f"{k}.jsonl.zst") for k in range(2)], build=True)


def test_blocks_start_with_the_first_record_that_begins_in_them(packed, write):
    where = [packed.where(i) for i in range(1202)]
    assert pickle.loads(pickle.dumps(where[700])).block == where[700].block
    assert not hasattr(mmapds.open(write(text(1)), build=True).where(0), "block")
    begins, starts = [(each.source, each.block) for each in where], packed.block_starts
    assert begins == sorted(begins)
    assert len(starts) > len(np.unique(starts)), "some have no record that begins there"
    assert mmapds.zip(a=packed.map(len), b=packed).block_starts.tolist() == starts.tolist()
    for rows in (range(1202), range(100, 1000), range(0, 1202, 2), [700, 3, 3, 5, 800], []):
        seen = [begins[i] for i in rows]
        changes = [k for k in range(len(seen)) if not k or seen[k] != seen[k - 1]]
        view = packed[rows.start : rows.stop : rows.step] if isinstance(rows, range) else packed[rows]
        assert np.unique(view.block_starts).tolist() == np.unique([*changes, len(seen)]).tolist()


def test_chunks_end_with_blocks_and_sources(packed):
    starts = packed.block_starts
    for size in ("block", 100):
        order = orders.Chunked(packed, size, mix_chunks=4, seed=3)
        sampler = mmapds.ChunkedSampler(packed, size, num_replicas=1, rank=0, mix_chunks=4, seed=3)
        assert order.at(0, np.arange(1202)).tolist() == list(sampler)
        assert set(packed.source_starts.tolist()) <= set(order.chunk_starts.tolist())
    assert np.diff(order.chunk_starts).max() == 100
    assert orders.Chunked(packed, "block").chunk_starts.tolist() == np.unique(starts).tolist()
    assert set(starts.tolist()) < set(orders.Chunked(starts, 100).chunk_starts.tolist())
    with pytest.raises(mmapds.Error, match=r"chunk_size = 'block', expected a dataset .*, found list"):
        mmapds.ChunkedSampler([1, 2, 3], "block")


def test_an_epoch_in_chunks_of_blocks_decodes_a_block_about_once(packed, monkeypatch):
    ds = mmapds.open(packed.sources, decode="bytes", block_cache=6 * 100_000)
    decoded, decode = [], BlockReader._decode
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    rows = list(mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0, mix_chunks=4, seed=3))
    assert sorted(rows) == list(range(len(ds))) != rows
    for at in range(0, len(rows), 64):
        assert ds.take(rows[at : at + 64]) == [packed.raw(row) for row in rows[at : at + 64]]
    assert len(decoded) <= 2 * len(packed.block_starts), "a record over two blocks has both decoded"
