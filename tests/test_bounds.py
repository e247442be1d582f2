"""Bounds in groups: what the writer writes is what docs/index-file.md says, and every reader finds the same records."""

import os
from itertools import accumulate, pairwise
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.write import BoundsWriter
from mmapds.storage import numbers
from mmapds.storage.index_file import Index
from mmapds.storage.sections import IndexedSource
from mmapds.storage.writer import IndexWriter
from tests.support.bounds import bounds_of, narrowest, records_in
from tests.support.index_file import verify

SIZES = st.lists(
    st.one_of(
        st.integers(0, 9),
        st.sampled_from([*(2**bits + more for bits in (8, 11, 16, 19, 24, 27, 32, 35) for more in (-1, 0, 1))]),
        st.integers(0, 2**40),
    ),
    max_size=90,
)


def words(numbers):
    return memoryview(b"".join(number.to_bytes(8, "little") for number in numbers)).cast("Q")


def bounds_from(sizes, first=0):
    return [*accumulate(sizes, initial=first)]


def write(path, sources, cuts=(1,)):
    """Write an index of sources with these bounds, appended in pieces of these sizes, over and over."""
    described = []
    with IndexWriter(str(path)) as writer:
        section = BoundsWriter(writer)
        for bounds in sources:
            starts, at, turn = bounds[:-1], 0, 0
            while at < len(starts):
                section.append(words(starts[at : at + cuts[turn % len(cuts)]]))
                at, turn = at + cuts[turn % len(cuts)], turn + 1
            width, smallest, largest = section.finish(bounds[-1])
            sizes = [end - begin for begin, end in pairwise(bounds)]
            assert not sizes or min(sizes) < 0 or (smallest, largest) == (min(sizes), max(sizes))
            described.append(IndexedSource("a", bounds[-1], 0, "", len(starts), len(starts), 0, 0, 0, 0, width=width))
        metadata = {"format": "jsonl", "sources": [source.describe() for source in described]}
        writer.commit(metadata, sum(source.records for source in described))
    return Index(str(path))


def at_limit(width, more, behind):
    """Bounds whose longest distance in a group is the longest that this width holds, or one more."""
    each = records_in(width)
    return bounds_from([3] * each * 2 + [1] * (each - 1) + [256**width - each + more] + [3] * behind)


LIMITS = st.builds(at_limit, st.sampled_from([2, 3, 4]), st.integers(0, 1), st.sampled_from([0, 1, 200]))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sources=st.lists(st.builds(bounds_from, SIZES, st.integers(0, 2**40)) | LIMITS, min_size=1, max_size=4),
    cuts=st.lists(st.sampled_from([1, 2, 7, 27, 28, 29, 56, 57, 1000]), min_size=1, max_size=5),
    in_memory=st.sampled_from([1, 1 << 20]),
)
def test_groups_are_those_of_the_specification(tmp_path, sources, cuts, in_memory):
    with patch.object(numbers, "_IN_MEMORY", in_memory):
        index = write(tmp_path / "a.mmx", sources, cuts)
    assert os.listdir(tmp_path) == ["a.mmx"]
    expected = [narrowest(bounds) for bounds in sources]
    assert [source.width for source in index.sources] == [width for width, _ in expected]
    assert bytes(index.section("offsets")) == b"".join(groups for _, groups in expected)
    index.verify_sections()
    for number, bounds in enumerate(sources):
        last = len(bounds)
        assert bounds_of(index.path, number) == bounds
        assert index.end(number) == bounds[-1]
        for begin, end in ((0, last), (last // 3, last - 1), (last - 1, last), (2, 2)):
            assert list(index.bounds(number, begin, end)) == bounds[begin:end]


PREFIXED = {"format": "prefixed", "prefix": "u64le"}


def sparse(path, sizes):
    """Write records of these sizes behind a u64, of which only the first byte is on the disk; return their bounds."""
    bounds = bounds_from(sizes)
    with open(path, "wb") as file:
        for number, size in enumerate(sizes):
            file.seek(bounds[number])
            file.write((size - 8).to_bytes(8, "little") + bytes([number % 251 + 1])[: size - 8])
        file.truncate(bounds[-1])
    return bounds


@pytest.mark.parametrize("records", [1, 7, 8, 14, 15, 18, 19, 28, 29, 57])
@pytest.mark.parametrize(("long", "width"), [(10, 2), (2**16, 3), (2**24, 4), (2**32, 8)])
def test_every_reader_finds_every_record(tmp_path, records, long, width):
    path = tmp_path / "a.dat"
    sizes = [9 + number % 3 for number in range(records - 1)] + [long]
    bounds = sparse(path, sizes)
    mmapds.build(path, **PREFIXED)
    assert Index(f"{path}.mmx").sources[0].width == narrowest(bounds)[0] == width
    assert bounds_of(f"{path}.mmx") == bounds
    short = [i for i in range(records) if sizes[i] < 2**25]
    expected = [bytes([i % 251 + 1])[: sizes[i] - 8].ljust(sizes[i] - 8, b"\0") for i in short]
    for io in ("mmap", "pread"):
        ds = mmapds.open(path, io=io)
        near = range(records) if io == "mmap" else short  # without a map, the place of a record is read with it
        assert [ds.where(i)[1:] for i in near] == [(bounds[i] + 8, sizes[i] - 8) for i in near]
        assert [ds[i] for i in short] == [bytes(ds.raw(i)) for i in short] == expected
        assert list(ds.take(short[::-1])) == expected[::-1]
    if long < 2**32:
        verify(Index(f"{path}.mmx"))
