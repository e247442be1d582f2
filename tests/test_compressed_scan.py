"""Scans of compressed lines: blocks that cut lines anywhere, shared out by threads, come to what a plain scan finds."""

import itertools
import random
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

import mmapds
from mmapds.compression import content, zstd
from mmapds.index.verify import verify
from mmapds.storage import blocks
from mmapds.storage.index_file import Index
from tests.support import oracle
from tests.support.compressed import NO_SIZE, codec

LINES = st.lists(st.sampled_from([b"{}", b"", b" ", b"\r", b"[1]\r", b"\t", b"[1, 2]"]), max_size=12)
SIZES = st.lists(st.sampled_from([1, 2, 3, 4, 7, 50]), min_size=1, max_size=8)


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
@given(
    LINES,
    SIZES,
    st.booleans(),
    st.booleans(),
    st.sampled_from([None, NO_SIZE]),
    st.sampled_from([1, 3]),
    st.sampled_from([{}, {"columns": {"size": "bytes()"}}]),
)
def test_lines_that_blocks_cut_anywhere(tmp_path, lines, sizes, has_mark, is_ended, options, workers, measured):
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    path, plain = tmp_path / "a.jsonl.zst", tmp_path / "b.jsonl"
    path.write_bytes(framed(data, sizes, options))
    plain.write_bytes(data)
    for each in (path, plain):
        Path(f"{each}.mmx").unlink(missing_ok=True)
        mmapds.build(each, workers=workers, **measured)
    ds = mmapds.open(path)
    assert [(ds.where(i).offset, ds.raw(i)) for i in range(len(ds))] == oracle.records(data)
    one, other = (Index(f"{each}.mmx").sources[0] for each in (path, plain))
    assert (one.lines, one.records, one.largest) == (other.lines, other.records, other.largest)
    if measured:
        assert ds.column("size").tolist() == mmapds.open(plain).column("size").tolist()
    verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_a_byte_order_mark_that_a_block_as_large_as_may_be_cuts(write, monkeypatch, cut):
    monkeypatch.setattr(zstd, "LARGEST_BLOCK", 200)
    data = (b"\xef\xbb\xbf" + b"[1]\n" * 49).ljust(200 + cut)
    path = write(framed(data, [cut, 200]), "a.jsonl.zst")
    assert list(mmapds.open(path, build=True)) == [[1]] * 49


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("near", [1, 5, 1000])
def test_places_of_blocks_near_each_other_and_far_apart(write, monkeypatch, near):
    monkeypatch.setattr(blocks, "_NEAR", near)
    path = write(framed(b"[1, 2]\n" * 300, [7, 50, 4]), "a.jsonl.zst")
    table = blocks.BlockTable(Index(str(mmapds.build(path))), 0)
    bounds = list(itertools.pairwise(table.starts()))
    assert len(bounds) == table.count > 90
    generator = random.Random(near)
    for count in (1, 2, 9, table.count):
        chosen = sorted(generator.sample(range(table.count), count))
        expected = [
            (begin.file, end.file, begin.content, end.content) for begin, end in map(bounds.__getitem__, chosen)
        ]
        assert list(table.places(chosen)) == expected
