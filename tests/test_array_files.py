"""Array files: what was written comes back, as views, columns and tensors; damaged ones give errors that say where."""

import os
import pickle
import re
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.utils.data import DataLoader

import mmapds
from mmapds.arrays import array_file
from mmapds.arrays.schema import EXTENDED, ITEM_BYTES
from mmapds.storage.index_file import Index
from tests.support.array_files import store, utterances
from tests.support.files import patched
from tests.support.index_file import forge_section, rewrite, verify
from tests.support.json_records import equal

# ---- there and back ------------------------------------------------------------------------------------------


def test_records_come_back_as_views_of_the_file(tmp_path):
    records = utterances(100)
    path = store(tmp_path, records)
    ds, tensors = mmapds.open(path), pickle.loads(pickle.dumps(mmapds.open(path, decode="torch")))
    assert all(equal(found, wanted) for found, wanted in zip(ds, records, strict=True))
    assert all(equal(found, records[i]) for i, found in zip([7, 3, -1], ds.__getitems__([7, 3, -1]), strict=True))
    feats = ds[50]["feats"]
    assert (feats.flags.writeable, feats.flags.owndata) == (False, False)
    assert np.shares_memory(feats, np.asarray(ds._records[50]))
    assert all(sample["feats"].ctypes.data % 64 == 0 for sample in ds)
    assert tensors[3]["feats"].data_ptr() == tensors[3]["feats"].data_ptr()
    batch = ds.take([0, 1])
    os.unlink(path)
    del ds
    assert equal(batch[1], records[1])
    np.testing.assert_array_equal(feats, records[50]["feats"])  # a sample keeps its file alive, as a batch does


DTYPES = [name for name in ITEM_BYTES if name not in EXTENDED]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(), some, max_size=3),
)
RUNS = {"bytes": st.binary(max_size=100), "str": st.text(max_size=50), "json": JSON}


@st.composite
def schemas_and_records(draw):
    """A schema, and records that fit it."""
    schema, values = {}, {}
    for name in draw(st.lists(st.sampled_from(["a", "b.c", "été", "x y", "#", "length_"]), max_size=6, unique=True)):
        kind = draw(st.sampled_from([*RUNS, "number", "array"]))
        dtype, shape = draw(st.sampled_from(DTYPES)), draw(st.lists(st.none() | st.integers(0, 4), max_size=3))
        if kind in RUNS:
            schema[name], values[name] = kind, RUNS[kind]
        elif kind == "number" and not dtype.startswith("complex"):
            schema[name], values[name] = dtype, hnp.from_dtype(np.dtype(dtype))
        else:
            sizes = st.tuples(*(st.integers(0, 5) if axis is None else st.just(axis) for axis in shape))
            schema[name], values[name] = (dtype, tuple(shape)), hnp.arrays(np.dtype(dtype), sizes)
    return schema, draw(st.lists(st.fixed_dictionaries(values), max_size=5))


def of_torch(value):
    """An array as a tensor."""
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


@given(schemas_and_records(), st.booleans())
def test_round_trips(tmp_path_factory, given, are_tensors):
    schema, records = given
    written = [{name: of_torch(value) if are_tensors else value for name, value in each.items()} for each in records]
    path = store(tmp_path_factory.mktemp("round"), written, schema)
    ds, tensors = mmapds.open(path), mmapds.open(path, decode="torch")
    assert len(ds) == len(records)
    for found, tensor, wanted in zip(ds, tensors, records, strict=True):
        assert list(found) == list(tensor) == list(schema)
        for name, value in wanted.items():
            np.testing.assert_equal(found[name], value)
            if isinstance(value, np.ndarray):
                assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape)
                assert torch.is_tensor(tensor[name])
                np.testing.assert_equal(tensor[name].numpy(), value)
    for name, kind in schema.items():
        if kind in DTYPES:
            np.testing.assert_equal(ds.column(name).astype(float), np.array([float(r[name]) for r in records]))
        elif isinstance(kind, tuple) and kind[1][:1] == (None,):
            assert ds.column(f"{name}_length").tolist() == [len(record[name]) for record in records]


def test_files_whose_fields_lie_in_another_order_are_not_alike(tmp_path):
    """Their records would be read as those of the first file, each field as another one."""
    record, schema = {"x": "a", "y": "b"}, {"x": "str", "y": "str"}
    paths = [store(tmp_path, [record], schema), store(tmp_path, [record], dict(reversed(schema.items())), "yx.mma")]
    for message, join in (
        (r"yx\.mma\.mmx: expected records ", mmapds.open),
        (r"datasets\[1\]: expected ", lambda paths: mmapds.concat(list(map(mmapds.open, paths)))),
        (r"yx\.mma\.mmx: schema: expected ", lambda paths: mmapds.merge(paths, out=tmp_path / "all.mmx")),
    ):
        with pytest.raises(mmapds.Error, match=message):
            join(paths)
    turned = {"schema": dict(reversed(schema.items()))}
    rewrite(f"{paths[0]}.mmx", metadata=lambda old: old | {"parameters": old["parameters"] | turned})
    with pytest.raises(mmapds.FormatError, match=r"a\.mma\.mmx: DAMAGED: schema = \{'y': .*, expected \{'x': "):
        verify(Index(f"{paths[0]}.mmx"))


@pytest.mark.parametrize("decode", [None, "torch"])
def test_an_error_of_concat_names_the_field_of_another_type(tmp_path, decode):
    kinds = {"id": "int32", "x": ("float32", (None,))}, {"id": "int32", "x": ("float32", (None, 2))}
    paths = [store(tmp_path, [], kind, f"{number}.mma") for number, kind in enumerate(kinds)]
    message = r"datasets\[1\]: expected 'x' = \['float32', \[None\]\] as of datasets\[0\], found \['float32', \[None, 2"
    with pytest.raises(mmapds.Error, match=message):
        mmapds.concat([mmapds.open(path, decode=decode) for path in paths])


# ---- the index of an array file ------------------------------------------------------------------------------


def test_columns_beside_those_of_the_file(tmp_path):
    names = [f"c{i}" for i in range(100)]  # more than JSON may have
    path = store(tmp_path, [dict.fromkeys(names, i) for i in range(3)], length="c99")
    mmapds.build(path, columns={"size": "bytes()"})
    with pytest.raises(mmapds.ColumnError, match=r"column 'n': expected one of bytes\(\), c0.*, found 'bytes\(text\)'"):
        mmapds.build(path, columns={"n": "bytes(text)"})
    with pytest.raises(mmapds.ColumnError, match="column 'c1' comes from the sources; give the new column another"):
        mmapds.add_column(path, "c1", [3, 4, 5])
    mmapds.add_column(path, "y", [3, 4, 5])
    ds = mmapds.open(path)
    assert (ds.column("c98").tolist(), ds.column("y").tolist()) == ([0, 1, 2], [3, 4, 5])
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(3)]
    verify(Index(f"{path}.mmx"))


# ---- tensors and batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", sorted(EXTENDED))
def test_numbers_that_numpy_lacks(tmp_path, monkeypatch, dtype):
    tensor = torch.randn(5, 3).to(getattr(torch, dtype))
    array = tensor.float().numpy().astype(getattr(ml_dtypes, dtype))
    path = store(tmp_path, [{"x": tensor}, {"x": array}])
    for found, made in zip(mmapds.open(path), mmapds.open(path, decode="torch"), strict=True):
        assert (found["x"].dtype, made["x"].dtype) == (array.dtype, tensor.dtype)
        assert found["x"].tobytes() == made["x"].view(torch.uint8).numpy().tobytes() == array.tobytes()
    with pytest.raises(mmapds.FormatError, match=f"expected {dtype} of shape .*, found float32 of shape"):
        store(tmp_path, [{"x": tensor}, {"x": tensor.float()}])
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(mmapds.Error, match=f"^arrays of {dtype} need ml_dtypes; run: pip install ml_dtypes$"):
        mmapds.open(path)


# ---- damaged records -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "value", "message"),  # of a record of x, t, j: its size, the axes of x, then the sizes of t and j
    [
        (0, 2**64 - 1, "its size does not fit its fields"),
        (0, 33, "field 't' does not fit"),
        (1, 6, "field 'x' does not fit"),
        (1, 4, "its size does not fit its fields"),
        (1, 2**62, "field 'x' does not fit"),
        (1, 2**64 - 1, "field 'x' does not fit"),
        (2, 2**63 - 1, "field 't' does not fit"),
        (3, 2, "field 'j' does not fit|field 'j': expected JSON|its size"),
    ],
)
def test_a_damaged_record_is_named(tmp_path, word, value, message):
    path = store(tmp_path, [{"x": np.ones((5, 3)), "t": "text", "j": {"a": 1}}] * 3)
    at = mmapds.open(path).where(1).offset
    patched(path, at + 8 * word, value.to_bytes(8, "little"))
    for decode in (None, "torch"):
        ds = mmapds.open(path, decode=decode)
        assert ds[0]["t"] == ds[2]["t"] == "text"
        for read in (
            lambda ds=ds: ds[1],
            lambda ds=ds: list(ds.take([0, 1])),
            lambda ds=ds: mmapds.pad_collate(ds.take([0, 1])),
            lambda ds=ds: list(ds[::-1].take([0, -2])),
        ):
            with pytest.raises(mmapds.FormatError, match=message) as damaged:
                read()
            assert str(damaged.value).startswith(f"{path}: record 1 (byte {at}): ")


def within_a_dict(batch):
    return {"samples": batch}


def test_a_batch_that_a_worker_sends_as_it_is_raises_where_it_is_read(tmp_path):
    """A batch makes its samples when it is sent, by a thread that drops what it can't send."""
    path = store(tmp_path, [{"n": n, "j": {"n": n}} for n in range(10)])
    patched(path, Path(path).read_bytes().index(b'{"n":7}'), b"(")
    for dataset in (mmapds.open(path), mmapds.zip(a=mmapds.open(path))):
        loader = DataLoader(dataset, 2, collate_fn=within_a_dict, num_workers=1, timeout=60)
        batches = [each["samples"] for each in loader]
        assert [len(list(batch)) for number, batch in enumerate(batches) if number != 3] == [2, 2, 2, 2]
        for batch in (batches[3], pickle.loads(pickle.dumps(dataset.take([6, 7])))):
            for read in (len, list, lambda batch: batch[0]):
                with pytest.raises(mmapds.FormatError, match=r"record 7 \(byte \d+\): field 'j': expected JSON, found"):
                    read(batch)


@pytest.mark.parametrize(
    ("place", "text", "wanted", "message"),
    [
        (0, b"\xff", "t", r"field 't': expected UTF-8, found damaged bytes \('utf-8' codec .*\)"),
        (4, b'7,"b":456', "j", "field 'j': expected JSON"),
        (4, b"1}     \n", "j", "field 'j': expected JSON"),
        (4, b'{"a":124]', "j.a", "field 'j': expected JSON"),
        (4, b'["\xff", 1', "j.a", "field 'j': expected JSON"),
    ],
)
def test_damaged_text_and_json(tmp_path, place, text, wanted, message):
    """Text that ends the object around it, and begins another field of it, is not JSON either."""
    path = store(tmp_path, [{"t": "text", "j": {"a": k}, "u": "more"} for k in (123, 124)])
    patched(path, mmapds.open(path).where(1).offset + 32 + place, text)
    what = {"t": "str"}.get(wanted, "int64")
    for decode in (None, mmapds.Fields({wanted: what}, defaults={} if what == "str" else {wanted: 0})):
        ds = mmapds.open(path, decode=decode)
        skipping = mmapds.open(path, decode=decode, on_error="skip" if what == "str" else "raise")
        for read in (
            lambda ds=ds: ds[1],
            lambda ds=ds: ds.take([0, 1])[1],
            lambda ds=ds: mmapds.pad_collate(ds.take([1])),
            lambda ds=skipping: list(ds.take([1])),  # a damaged file is not skipped
        ):
            with pytest.raises(mmapds.FormatError, match=rf"a\.mma: record 1 \(byte \d+\): {message}"):
                read()
    assert mmapds.open(path, decode=mmapds.Fields({"u": "str"}))[1] == {"u": "more"}


# ---- damaged files -------------------------------------------------------------------------------------------


def byte(at, data):
    """Damage at a byte, or where other bytes are."""

    def damage(path):
        good = Path(path).read_bytes()
        patched(path, good.rindex(at) if isinstance(at, bytes) else at % len(good), data)

    return damage


def section(name, change):
    """Another description of a section, or none."""

    def changed(metadata):
        described = metadata["sections"].pop(name)
        return metadata | {"sections": metadata["sections"] | ({name: described | change} if change else {})}

    return lambda path: rewrite(path, metadata=changed)


NUMBERS = "DAMAGED: section '{}': expected 20 numbers of type <u4 or <u8{}, found {}$"
DAMAGE = [
    (byte(0, b"x"), r"NOT AN ARRAY FILE: expected b.* at byte 0 of 80 bytes or more, found b"),
    (byte(8, b"\2"), "VERSION: expected format 1, found 2; upgrade mmapds"),
    (byte(16, b"\1"), "DAMAGED: header and metadata do not match their checksum"),
    (byte(40, b"\1"), r"DAMAGED: expected \d+ bytes, as the header says, found \d+"),
    (byte(64, b"\xff" * 8), rf"DAMAGED: expected a schema of {2**64 - 1} bytes .*, found \d+ bytes"),
    (byte(90, b"\xff"), "DAMAGED: expected a schema .* checksum 0x[0-9a-f]{16}, found .* 0x[0-9a-f]{16}; copy or"),
    (byte(-3, b"x"), "DAMAGED: header and metadata do not match"),
    (byte(b'"offsets"', b"x"), "DAMAGED: header and metadata do not match"),
    (byte(struct.pack("<3I", 256, 320, 384), b"\7"), "DAMAGED: section 'offsets' does not match its checksum"),
    (section("records", None), "DAMAGED: expected a section 'records', found none$"),
    (section("offsets", None), NUMBERS.format("offsets", "", "none")),
    (section("column:n", None), NUMBERS.format("column:n", " or <i8", "none")),
    (section("offsets", {"shape": [2]}), NUMBERS.format("offsets", "", "2 of type <u4")),
    (section("offsets", {"dtype": "|u1"}), NUMBERS.format("offsets", "", r"20 of type \|u1")),
    (section("column:n", {"xxh3": "0"}), "DAMAGED: section 'column:n' does not .*: expected 0, found [0-9a-f]{16}$"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGE)
def test_damage_outside_the_records_is_found_when_indexing(tmp_path, damage, message):
    path = store(tmp_path, [{"n": n} for n in range(20)], index=False)
    damage(path)
    with pytest.raises(mmapds.FormatError, match=f"^{re.escape(path)}: {message}"):
        mmapds.build(path)


def test_records_are_checked_by_verify_and_where_they_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(array_file, "_AT_ONCE", 2)
    path = store(tmp_path, [{"x": np.full(70_000, i)} for i in range(3)])  # the fingerprint does not see the middle
    good, places = Path(path).read_bytes(), [mmapds.open(path).where(i) for i in range(3)]
    first, second, third = (place.offset for place in places)
    end = third + places[2].size

    def refused(message):
        with (
            mmapds.Writer(tmp_path / "b.mma", index=False, force=True) as writer,
            pytest.raises(mmapds.FormatError, match=message),
        ):
            writer.append_file(path)
        with pytest.raises(mmapds.FormatError, match=f"{message}|expected records one after another"):
            verify(Index(str(mmapds.build(path, force=True))))

    patched(path, third - 8, b"\7")
    refused(r"DAMAGED: section 'records' does not match its checksum: expected \w{16}, found \w{16}")
    for starts in ([second, first, third], [first, third, second], [first - 64, second, third], [first, second, end]):
        Path(path).write_bytes(good)
        numbers = np.array(starts, "<u4")
        forge_section(path, "offsets", numbers)
        section("offsets", {"xxh3": xxhash.xxh3_64(numbers.tobytes()).hexdigest()})(path)
        refused("section 'offsets': expected numbers that ascend within 'records', found others")


def test_a_file_that_is_cut_short(tmp_path):
    path = store(tmp_path, utterances(20), index=False)
    size, short = os.path.getsize(path), r"NOT AN ARRAY FILE: expected .* of 80 bytes or more, found .* of 70"
    for cut, message in (size - 1, f"expected a file of {size} bytes, found {size - 1}$"), (70, short):
        os.truncate(path, cut)
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(path)
