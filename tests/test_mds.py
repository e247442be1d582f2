"""Shards of MosaicML's streaming: every encoding, shards that their writer made, and damage to each number."""

import gzip
import io
import json
import pickle
import shutil
import struct
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import mmapds
from mmapds import formats
from mmapds.dataset.payloads import EncodedSample
from mmapds.storage.index_file import Index
from tests.support.compressed import codec
from tests.support.files import DATA
from tests.support.index_file import rewrite, verify
from tests.support.mds import CODES, EVERY, SIZES, columns, framed, shard
from tests.support.messages import check
from tests.support.objects import Server

PIXELS = np.arange(60, dtype=np.uint8).reshape(4, 5, 3) * 4


def same(found, wanted):
    """Whether two values are equal and of the same type."""
    if isinstance(wanted, np.ndarray):
        return found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return type(found) is type(wanted) and found == wanted


# ---- values --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_sample_is_a_dict_of_values_by_their_encodings(write, io):
    samples = [EVERY, dict(reversed(EVERY.items()))]
    encodings = {name: name for name in EVERY}
    path = write(shard(encodings, samples), "a.mds")
    mmapds.build(path, length="bytes()")
    ds = mmapds.open(path, io=io)
    for sample in (*ds, pickle.loads(pickle.dumps(ds))[1], *ds.take([1, 0])):
        assert [*sample] == [*EVERY]
        assert [name for name in EVERY if not same(sample[name], EVERY[name])] == []
        assert not any(
            each.flags.writeable or not each.flags.aligned for each in sample.values() if hasattr(each, "flags")
        )
    assert ds.lengths.tolist() == [len(ds.raw(0))] * 2
    tensors = mmapds.open(path, decode="torch")[0]
    assert torch.equal(tensors["ndarray:int64:2,1"], torch.tensor([[-1], [2**62]]))
    assert tensors["float32"] == 3


arrays = st.tuples(
    st.sampled_from([*CODES.values()]), st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(0, 2)
)
numbers = st.sampled_from([name for name in SIZES if name not in ("int", "float8")])
fields = st.one_of(
    st.tuples(st.just("bytes"), st.binary()),
    st.tuples(st.just("str"), st.text(st.characters(codec="utf-8"))),
    st.tuples(st.just("int"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("str_int"), st.integers()),
    st.tuples(st.just("str_float"), st.floats(allow_nan=False)),
    st.tuples(st.just("str_decimal"), st.decimals(allow_nan=False)),
    st.tuples(st.sampled_from(["jpegarray", "list[png]"]), st.lists(st.binary())),
    st.tuples(st.just("json"), st.recursive(st.integers(-9, 9) | st.text(), lambda each: st.lists(each))),
    numbers.map(lambda name: (name, np.ones(1, name)[0])),
    arrays.map(lambda given: encoded_array(*given)),
)


def encoded_array(dtype, shape, said):
    array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    return ":".join(["ndarray", array.dtype.name, ",".join(map(str, shape))][: 1 + said]), array


@given(rows=st.lists(fields, min_size=1, max_size=6))
def test_values_round_trip(rows):
    encodings = {f"f{number}": encoding for number, (encoding, _) in enumerate(rows)}
    sample = {f"f{number}": value for number, (_, value) in enumerate(rows)}
    data = shard(encodings, [sample])
    (begin, end) = struct.unpack_from("<II", data, 4)
    found = EncodedSample(encodings)(data[begin:end])
    assert all(same(found[name], value) for name, value in sample.items())


def pictures(*kinds):
    for kind in kinds:
        Image.fromarray(PIXELS).save(out := io.BytesIO(), kind)
        yield out.getvalue()


def raw(image):
    return struct.pack("<III", *image.size, len(image.mode)) + image.mode.encode() + image.tobytes()


def test_images_are_decoded_on_demand(write):
    jpeg, png = pictures("jpeg", "png")
    grey = Image.fromarray(PIXELS).convert("L")
    sample = {
        "jpeg": jpeg,
        "png": png,
        "pil": raw(grey),
        "jpegarray": [jpeg, jpeg],
        "list[pil]": [raw(grey)],
        "str": "a",
    }
    path = mmapds.build(write(shard({name: name for name in sample}, [sample]), "a.mds"))
    assert mmapds.open(path)[0] == sample
    found = mmapds.open(path, decode="pil")[0]
    assert (found["png"].tobytes(), found["str"]) == (PIXELS.tobytes(), "a")
    assert [each.size for each in found["jpegarray"]] == [(5, 4)] * 2
    for image in (found["pil"], *found["list[pil]"]):
        assert (image.mode, image.tobytes()) == ("RGB", grey.convert("RGB").tobytes())


def test_shards_that_their_writer_made(tmp_path):
    """tests/data/mds is of MDSWriter of mosaicml-streaming 0.13.0, compressed by zstd:9 and not."""
    for name in (DATA / "mds").iterdir():
        shutil.copy(name, tmp_path)
    plain = mmapds.open(tmp_path / "plain.mds", build=True)
    parts = [mmapds.open(tmp_path / f"shard.0000{number}.mds.zstd", build=True) for number in range(2)]
    both = mmapds.open(mmapds.build(f"{tmp_path}/shard.*.mds.zstd", out=tmp_path / "both.mmx"))
    assert (len(plain), [*map(len, parts)], len(both)) == (5, [3, 2], 5)
    for i, sample in enumerate(plain):
        wanted = {"bytes": bytes([0, 255, i]), "str": f"é {i}", "int": -(2**63) + i, "str_int": 10**30 + i}
        wanted |= {"json": {"i": i, "a": [None, True, 1.5]}, "str_float": i / 10, "str_decimal": Decimal(f"{i}.10")}
        wanted["array"] = np.arange(i + 1, dtype=["u1", "i1", "u2", "i2", "f2"][i]).reshape(1, i + 1)
        wanted["tokens"] = np.arange(201 if i == 2 else 3 if i else 1, dtype=np.uint16)
        wanted["grid"] = np.arange(6, dtype=np.float32).reshape(2, 3) + i
        wanted |= {
            name: np.dtype(name).type(-i if name[0] == "i" else i + 1) for name in set(SIZES) - {"int", "float8"}
        }
        for found in (sample, both[i]):
            assert found.keys() == wanted.keys()
            assert [name for name in wanted if not same(found[name], wanted[name])] == []
    for i, sample in enumerate(mmapds.open(tmp_path / "images.mds", build=True, decode="pil")):
        image = np.roll(PIXELS, i)
        for found in (sample["png"], sample["pil"], *sample["ln"]):
            assert found.tobytes() == image.tobytes()
        assert [each.tobytes() for each in sample["lp"]] == [np.roll(PIXELS, k).tobytes() for k in range(i)]
        assert [len(sample[name]) for name in ("jpegarray", "lp", "lj", "ln")] == [1, i, 1, 2]
        assert sample["jpeg"].size == sample["mask"].size == (5, 4)


@pytest.mark.parametrize("suffix", [".zst", ".zstd", ".gz"])
def test_compressed_shards_are_those_that_are_plain(tmp_path, write, suffix):
    encodings = {"id": "int", "text": "bytes"}
    samples = [{"id": i, "text": np.random.default_rng(i).bytes(3000)} for i in range(200)]
    data = shard(encodings, samples)
    packed = {".gz": gzip.compress(data), ".zst": codec.compress(data)}
    packed[".zstd"] = b"".join(codec.compress(data[at : at + 50_000]) for at in range(0, len(data), 50_000))
    plain, path = write(data, "a.mds"), write(packed[suffix], f"b.mds{suffix}")
    mmapds.build([plain, path], out=tmp_path / "all.mmx", columns={"size": "bytes()"})
    ds = mmapds.open(tmp_path / "all.mmx")
    assert list(ds) == samples * 2
    assert ds.column("size").tolist() == [len(ds.raw(i)) for i in range(400)]
    assert len(mmapds.open(path, build=True)) == len(mmapds.open(tmp_path, build=True)[::2]) == 200
    verify(Index(str(tmp_path / "all.mmx")))
    cut = write(codec.compress(data[:-1]), "cut.mds.zst")
    with pytest.raises(mmapds.FormatError, match=r"record 199 \(byte \d+\): expected 3012 bytes, found 3011; leave it"):
        mmapds.build(cut)
    mmapds.build(cut, truncated="drop")
    assert list(mmapds.open(cut)) == samples[:199]


def test_a_shard_in_a_store_needs_nothing_beside_it(tmp_path):
    with Server() as server:
        server.data["b/a.mds"] = GOOD
        options = {"cache": tmp_path / "cache", "storage_options": server.options}
        ds = mmapds.open(mmapds.build("s3://b/a.mds", out=tmp_path / "a.mmx", **options), roots="s3://b/", **options)
        assert [each["b"] for each in ds] == ["one", "three"]
        assert set(server.downloads()) <= {"b", "b/a.mds"}


# ---- damage ----------------------------------------------------------------------------------------------------------

TWO = {"a": "int", "b": "str"}
GOOD = shard(TWO, [{"a": 1, "b": "one"}, {"a": 2, "b": "three"}])
JSON_AT, FIRST = 16, struct.unpack_from("<I", GOOD, 4)[0]


def number(at, value):
    return GOOD[:at] + struct.pack("<I", value) + GOOD[at + 4 :]


def described(**changes):
    return framed([], columns(TWO) | changes)


REFUSED = [
    (number(0, 3), "with up to 16777216 bytes of JSON from byte 20 on|not JSON of an MDS shard from byte 20 on"),
    (number(0, 2**32 - 1), f"JSON from byte {4 + 4 * 2**32} on, found 4294967295 samples, the first at byte {FIRST}"),
    (number(4, JSON_AT), "bytes of JSON from byte 16 on, found 2 samples, the first at byte 16; copy the file again"),
    (number(4, 2**32 - 1), "found 2 samples, the first at byte 4294967295"),
    (number(4, FIRST + 1), "not JSON of an MDS shard from byte 16 on: JSONDecodeError"),
    (number(8, FIRST - 1), rf"record 0 \(byte {FIRST}\): expected its end there or later, found byte {FIRST - 1}"),
    (number(8, len(GOOD) + 1), rf"record 1 \(byte {len(GOOD) + 1}\): expected its end there or later, found byte"),
    (number(12, len(GOOD) - 1), f"expected {len(GOOD) - 1} bytes, as its header says, found {len(GOOD)}; copy"),
    (
        number(12, len(GOOD) + 9),
        r"record 1 \(byte \d+\): expected 26 bytes, found 17; leave it out, and all after it, ",
    ),
    (GOOD[:3], "expected a shard of MDSWriter"),
    (GOOD[:14], "expected a shard of MDSWriter"),
    (b"\0" * 100, "JSON from byte 8 on, found 0 samples, the first at byte 0"),
    (framed([], b"[" * 99_999), "not JSON of an MDS shard from byte 8 on: RecursionError"),
    (framed([], b"7"), "not JSON of an MDS shard .*TypeError"),
    (framed([], {"format": "mds"}), r"not JSON of an MDS shard .*KeyError\('version'\)"),
    (described(column_names=["a", "a"]), "expected a name, an encoding and a size for each column"),
    (described(column_names=["a", 7]), "expected a name, an encoding and a size for each column"),
    (described(column_names=["a"]), r"expected a name, an encoding and a size for each column, found \['a'\]"),
    (described(column_sizes=[8, 8]), "field 'b': expected size None for 'str', found 8"),
    (described(column_sizes=[4, None]), "field 'a': expected size 8 for 'int', found 4"),
    (
        described(column_encodings=["pkl", "str"]),
        "field 'a': expected values that are read without running code, .*pkl",
    ),
    (
        described(column_encodings=["ndarray:object", "str"]),
        "field 'a': expected an encoding of MDSWriter, found 'ndarr",
    ),
    (
        described(column_encodings=["ndarray:int8:0", "str"]),
        "field 'a': expected an encoding of MDSWriter, found 'ndarr",
    ),
    (described(column_encodings=[["int"], "str"]), r"field 'a': expected an encoding of MDSWriter, found \['int'\]"),
    (described(version=1), "expected format 'mds' of version 2, found 'mds' of version 1"),
    (described(format="jsonl"), "expected format 'mds' of version 2, found 'jsonl'"),
]


@pytest.mark.parametrize(("data", "message"), REFUSED)
def test_a_shard_that_is_damaged(write, data, message):
    path = write(data, "a.mds")
    with pytest.raises(mmapds.FormatError, match=rf"^{path}: .*(?:{message})") as error:
        mmapds.build(path)
    check(str(error.value))


def test_a_shard_that_is_cut(write):
    for at in range(len(GOOD)):
        path = write(GOOD[:at], "a.mds")
        with pytest.raises(mmapds.FormatError, match=rf"^{path}: "):
            mmapds.build(path, force=True, truncated="error")
        if at >= FIRST:
            mmapds.build(path, force=True, truncated="drop")
            assert [each["b"] for each in mmapds.open(path)] == ["one"] * (at >= FIRST + 15)
            assert Index(f"{path}.mmx").sources[0].skipped == 1 + (at < FIRST + 15)


def test_shards_of_one_index_have_the_same_fields(write, tmp_path):
    one, other = (write(shard({"a": kind}, [{"a": 1}]), f"{kind}.mds") for kind in ("int", "int8"))
    message = rf"^{other}: encodings: expected {{'a': 'int'}}, as in {one}, found {{'a': 'int8'}}$"
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build([one, other], out=tmp_path / "both.mmx")
    mmapds.build(one)
    mmapds.build(other)
    with pytest.raises(mmapds.Error, match=r"expected records .*, found .*; open each on its own") as error:
        mmapds.open([one, other])
    check(str(error.value))


def test_a_compressed_shard_of_very_many_samples(write, monkeypatch):
    monkeypatch.setattr(formats.mds, "_MOST_SAMPLES", 1)
    with pytest.raises(mmapds.FormatError, match=r"expected up to 1 samples in a compressed shard, found 2; dec") as e:
        mmapds.build(write(codec.compress(GOOD), "a.mds.zst"))
    check(str(e.value))
    assert len(mmapds.open(write(GOOD, "a.mds"), build=True)) == 2


BAD = [
    ("str", b"\xff", "not 'str': 'utf-8' codec can't decode"),
    ("json", b"{", "not 'json': "),
    ("str_int", b"x", "not 'str_int': invalid literal"),
    ("str_int", b"9" * 10**4, "not 'str_int': Exceeds the limit"),
    ("str_decimal", b"x", "not 'str_decimal': "),
    ("ndarray", b"", "not 'ndarray': "),
    ("ndarray", b"\x07", "not 'ndarray': expected one of the types .*, found 7"),
    ("ndarray", b"\x08\x04\x03ab", "expected 3 bytes of numbers, found 2"),
    ("ndarray", b"\x08\x07" + bytes([255] * 8), "expected 18446744073709551615 bytes of numbers, found 0"),
    ("ndarray", b"\x08\x0b" + bytes([0] * 8) + bytes([255] * 8), "not 'ndarray': "),
    ("ndarray:int16", b"\x04\x01abc", "expected 2 bytes of numbers, found 3"),
    ("jpegarray", b"\1", "not 'jpegarray': "),
    ("jpegarray", struct.pack("<II", 2**32 - 1, 1), "not 'jpegarray': "),
    ("list[png]", struct.pack("<III", 0, 1, 9) + b"png", "expected 21 bytes of 1 values, found 15"),
]
BAD_IMAGES = [
    ("jpeg", b"%!PS", "expected an image of type JPEG"),
    ("pil", struct.pack("<III", 2**31, 2**31, 1) + b"L", "expected pixels for 2147483648 x 2147483648, found 0 bytes"),
    ("pil", struct.pack("<III", 2, 2, 1) + b"?" + bytes(4), "not 'pil': "),
    ("pil", b"1", "not 'pil': "),
]


@pytest.mark.parametrize(
    ("encoding", "data", "message", "decode"), [*((*row, None) for row in BAD), *((*row, "pil") for row in BAD_IMAGES)]
)
def test_values_that_are_damaged(write, encoding, data, message, decode):
    path = write(framed([struct.pack("<I", len(data)) + data], columns({"x": encoding})), "a.mds")
    with pytest.raises(mmapds.DecodeError, match=rf"^{path}: record 0 \(byte \d+\): field 'x': .*{message}"):
        mmapds.open(path, build=True, decode=decode)[0]


def test_samples_of_another_size_than_their_fields(write):
    for row in (b"", b"1", bytes(12) + b"more", struct.pack("<I", 2**32 - 1) + bytes(8)):
        path = write(framed([row], columns(TWO)), "a.mds")
        mmapds.build(path, force=True)
        with pytest.raises(
            mmapds.DecodeError, match=r"record 0 \(byte \d+\): expected a sample of \d+ bytes, found"
        ) as e:
            mmapds.open(path)[0]
        check(str(e.value))


@pytest.mark.parametrize("value", [None, [], {"a": "pkl"}, {"a": 7}, {"a": "ndarray:O"}, {"a": "int", "b": "eval"}])
def test_an_index_whose_encodings_are_forged(write, value):
    path = write(GOOD, "a.mds")
    mmapds.build(path)
    rewrite(f"{path}.mmx", metadata=lambda old: old | {"parameters": old["parameters"] | {"encodings": value}})
    with pytest.raises(mmapds.FormatError, match=r"a\.mds\.mmx: DAMAGED: "):
        mmapds.open(path)


def test_what_is_said_beside_shards_is_not_needed(tmp_path):
    """A shard alone is enough, as in an object of a store."""
    (tmp_path / "a.mds").write_bytes(GOOD)
    Path(tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": ["wrong"]}))
    assert [each["b"] for each in mmapds.open(tmp_path, build=True)] == ["one", "three"]
