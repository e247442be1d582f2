"""Columns of Arrow go into array files without a row being looked at, byte for byte as row by row."""

import hashlib

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.arrays.schema import Schema
from mmapds.convert import arrow, convert
from mmapds.convert import records as packing
from mmapds.convert.reader import Values
from tests.support.conversions import WAYS, every_type, save

N = 500
TYPES = every_type(N) | {
    "image": pa.array([{"bytes": b"ab" * i, "size": i} for i in range(N)]),
    "at": pa.array(range(N), pa.timestamp("us")),
    "price": pa.array([f"{i}.5" for i in range(N)]).cast(pa.decimal128(9, 2)),
    "tags": pa.array([[{"a": i}, None] for i in range(N)]),
    "clocks": pa.array([[i, None] for i in range(N)], pa.list_(pa.int64())).view(pa.list_(pa.time64("ns"))),
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(N * 6, dtype=np.float32).reshape(N, 2, 3)),
}


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Both:
    """Converts twice: by columns where that is possible, and row by row; and compares what was written."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def __call__(self, source, **options):
        """Return how many blocks were columns, and how many there were."""
        found, outcomes = [], []
        ways = {"columns": watched(arrow._columns_of, found), "rows": lambda *_: None}
        for name, columns_of in ways.items():
            with self.monkeypatch.context() as patch:
                patch.setattr(arrow, "_columns_of", columns_of)
                try:
                    done = convert(source, self.folder / f"{name}.mma", **options)
                    outcomes.append((done.records, done.skipped, digest(self.folder / f"{name}.mma")))
                except mmapds.FormatError as error:
                    outcomes.append(str(error).replace(f"{name}.mma", ""))
        assert outcomes[0] == outcomes[1]
        return sum(each is not None for each in found), len(found)


def watched(function, found):
    """A function that keeps what it returned."""

    def call(*arguments):
        found.append(function(*arguments))
        return found[-1]

    return call


@pytest.fixture
def both(tmp_path, monkeypatch):
    monkeypatch.setattr(arrow, "_ROWS", 100)
    return Both(tmp_path, monkeypatch)


@pytest.mark.parametrize("way", WAYS)
def test_all_types_beside_each_other(tmp_path, both, way):
    path = save(pa.table(TYPES), tmp_path / "a", way, rows=170)
    by_columns, blocks = both(path, format=way.replace("stream", "arrow"), length="many")
    assert by_columns == blocks >= 5


EDGES = {
    "bool": [True, False],
    "int8": [-128, 127, 0],
    "int64": [-(2**63), 2**53 + 1, 2**31, 300, 1],
    "uint64": [2**64 - 1, 2**63, 65504, 1],
    "float32": [float("nan"), float("-inf"), -0.0, 16777217.0, 1e-40],
    "float64": [float("nan"), float("inf"), 1e300, 0.1, -0.0, 65520.0, 1e-320],
}
TARGETS = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"]


@pytest.mark.parametrize("kind", EDGES)
def test_other_types_that_are_asked_for_are_the_same_both_ways(tmp_path, both, kind):
    """Numbers and lists of each value alone, and of all together, become another dtype or the same error."""
    values = pa.array(EDGES[kind], pa.type_for_alias(kind))
    is_columns = set()
    for begin, size in [(0, len(values)), *((row, 1) for row in range(len(values)))]:
        some = values.slice(begin, size)
        lists = pa.ListArray.from_arrays(pa.array([0, *[size] * size], pa.int32()), some)
        path = save(pa.table({"x": some, "list": lists}), tmp_path / "a.arrow", "arrow")
        for target in TARGETS:
            for types in ({"x": target}, {"list": [target, [None]]}, {"list": [target, [size]]}):
                by_columns, _ = both(path, fields=[*types], types=types)
                is_columns |= {target} if by_columns else set()
    assert kind in is_columns


def test_blocks_with_nulls_are_read_row_by_row_and_others_are_not(tmp_path, both):
    table = pa.table({"id": [None if i == 250 else i for i in range(N)]})
    path = save(table, tmp_path / "a.arrow", "arrow")
    assert both(path, missing="skip") == (4, 5)
    assert both(path)[1] == 3  # the error has the place of the row


def test_lengths_below_zero_are_found_in_columns(tmp_path, both):
    path = save(pa.table({"n": [*range(N - 1), -1]}), tmp_path / "a.arrow", "arrow")
    both(path, length="n")
    with pytest.raises(mmapds.FormatError, match=rf"a\.arrow: row {N - 1}: field 'n': expected a length of 0 or more"):
        convert(path, length="n")


def test_text_that_is_not_utf8_is_refused_as_in_rows(tmp_path, both):
    bad = pa.array([b"ok", b"\xff"]).view(pa.string())
    path = save(pa.table({"text": bad}), tmp_path / "a.parquet")
    both(path)
    with pytest.raises(mmapds.FormatError, match=r"a\.parquet: not a readable Parquet file: .*utf-8"):
        convert(path)


SMALL = st.integers(-9, 9)
LISTS = st.one_of(st.none(), st.lists(st.one_of(SMALL, SMALL, st.none()), max_size=3))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.tuples(st.one_of(st.none(), SMALL), st.text(max_size=3), LISTS, st.lists(LISTS, max_size=3)), max_size=12
    ),
    begin=st.integers(0, 5),
    skip=st.booleans(),
)
def test_slices_with_nulls_and_jagged_lists_are_the_same_both_ways(tmp_path, both, rows, begin, skip):
    number, text, flat, nested = zip(*rows, strict=True) if rows else ((), (), (), ())
    table = pa.table(
        {
            "number": pa.array(number, pa.int16()),
            "text": pa.array(text, pa.string()).dictionary_encode(),
            "flat": pa.array(flat, pa.list_(pa.int32())),
            "nested": pa.array(nested, pa.list_(pa.list_(pa.int64()))),
            "whole": pa.array(flat, pa.list_(pa.int32())),
        }
    ).slice(begin)
    path = save(table, tmp_path / "a.arrow", "arrow", rows=4)
    types = dict.fromkeys(("number", "text", "flat", "nested"), "json")
    for name in (*types, "whole"):
        both(path, fields=[name], missing="skip" if skip else "error")
    both(path, schema=types)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    records=st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=99), st.binary(max_size=70)), min_size=1
    ),
    room=st.integers(0, 600),
)
def test_columns_are_packed_as_records_are(tmp_path, records, room):
    schema = {"id": "int64", "raw": "bytes", "array": ("uint8", (None,))}
    with mmapds.Writer(tmp_path / "a.mma", schema, index=False) as writer:
        for number, raw, array in records:
            writer.write({"id": number, "raw": raw, "array": np.frombuffer(array, np.uint8)})
    raw, arrays = ([len(record[k]) for record in records] for k in (1, 2))
    ends = [np.cumsum([0, *sizes]).astype(np.uint64) for sizes in (raw, arrays)]
    data = [b"".join(record[k] for record in records) for k in (1, 2)]
    number = np.array([record[0] for record in records], np.int64).view(np.uint64)
    sizes = [np.diff(each) for each in ends]
    values = [
        Values([number]),
        Values(data=data[0], begins=ends[0][:-1], sizes=sizes[0]),
        Values([sizes[1]], data[1], ends[1][:-1], sizes[1]),
    ]
    packing._PIECE, before = room, packing._PIECE
    try:
        with mmapds.Writer(tmp_path / "b.mma", schema, index=False) as writer:
            assert packing._append_columns(writer, Schema(schema), values, len(records))
    finally:
        packing._PIECE = before
    assert (tmp_path / "a.mma").read_bytes() == (tmp_path / "b.mma").read_bytes()


def words(*values):
    return np.array(values, np.uint64)


@pytest.mark.parametrize(
    ("begin", "size"), [(0, 5), (5, 0), (2**64 - 1, 1), (1, 2**64 - 1), (4, 1), (2**63, 2**63)], ids=str
)
def test_the_core_refuses_parts_outside_their_data(begin, size):
    out, ends = bytearray(1 << 10), words(0, 0)
    part = (b"abcd", words(0, begin), words(4, size), False)
    with pytest.raises(ValueError, match="record 1: expected parts within their data, found one outside"):
        _native.pack_array_records((), (part,), 0, out, ends)


def test_the_core_refuses_buffers_of_other_lengths():
    out, ends = bytearray(1 << 10), words(0, 0)
    with pytest.raises(ValueError, match="words: expected 2 entries, found 1"):
        _native.pack_array_records((words(1, 2), words(1)), (), 0, out, ends)
    with pytest.raises(ValueError, match="sizes: expected 2 entries, found 3"):
        _native.pack_array_records((), ((b"", words(0, 0), words(0, 0, 0), True),), 0, out, ends)
    with pytest.raises(ValueError, match="ends: expected 2 entries, found 1"):
        _native.pack_array_records((words(1, 2),), (), 0, out, ends[:1])
    with pytest.raises(ValueError, match="first: expected 0 to 2, found 3"):
        _native.pack_array_records((words(1, 2),), (), 3, out, ends)
    with pytest.raises(ValueError, match="ends: expected memory of its own"):
        _native.pack_array_records((ends,), (), 0, out, ends)
    with pytest.raises(ValueError, match="out: expected memory of its own"):
        _native.pack_array_records((words(1, 2),), ((out, words(0, 0), words(1, 1), False),), 0, out, ends)
    with pytest.raises(TypeError):
        _native.pack_array_records((words(1, 2),), ((b"", words(0, 0)),), 0, out, ends)
