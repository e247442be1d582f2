"""Prefixed records and TFRecord: read back as others wrote them, and what is refused."""

import os
import re
import struct
from contextlib import nullcontext, suppress
from itertools import accumulate
from unittest import mock

import numpy as np
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tfrecord import example_pb2

import mmapds
from mmapds import _native
from mmapds.dataset.payloads import tf_example
from mmapds.formats.frames import Prefixed
from mmapds.storage.index_file import Index
from tests.support.files import flip
from tests.support.index_file import verify
from tests.support.samples import PREFIXES, framed, framing, masked, varint_bytes, write_tfrecords


def crc_bit_by_bit(data):
    """CRC32C, said in the plainest way."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def options(name):
    return {"format": "tfrecord"} if name == "tfrecord" else {"format": "prefixed", "prefix": name}


@pytest.mark.parametrize("variant", _native.simd_variants())
def test_checksums_of_every_length_and_alignment(variant):
    # RFC 3720, B.4, and the check value of the catalogues
    known = {bytes(32): 0x8A9136AA, b"\xff" * 32: 0x62A8AB43, b"123456789": 0xE3069283, b"": 0}
    for data, wanted in known.items():
        assert _native.crc32c(variant, 0, data) == wanted == crc_bit_by_bit(data)
    data = np.random.default_rng(0).integers(0, 256, 200, np.uint8)
    for length in range(131):
        wanted = crc_bit_by_bit(data[:length].tobytes())
        for alignment in range(32):
            moved = np.empty(200, np.uint8)[alignment : alignment + length]
            moved[:] = data[:length]
            assert _native.crc32c(variant, 0, moved) == wanted
        first = _native.crc32c(variant, 0, data[: length // 2].tobytes())
        assert _native.crc32c(variant, first, data[length // 2 : length].tobytes()) == wanted


# ---- scanning ----------------------------------------------------------------------------------------------------


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*PREFIXES, "tfrecord"]),
    sizes=st.lists(st.integers(0, 300), max_size=40),
    room=st.integers(1, 9),
    step=st.integers(1, 700),
    cut=st.integers(0),
)
@example(name="varint", sizes=[], room=1, step=1, cut=0)
@example(name="varint", sizes=[0, 0, 127, 128, 0, 70_000], room=2, step=1, cut=3)
def test_records_are_found_whatever_the_steps_and_wherever_they_are_cut(tmp_path, name, sizes, room, step, cut):
    payloads = [os.urandom(size) for size in sizes]
    data, path = b"".join(framed(payload, name) for payload in payloads), tmp_path / "x"
    ends = [*accumulate((len(framed(payload, name)) for payload in payloads), initial=0)]
    cut %= len(data) + 1
    whole = sum(end <= cut for end in ends[1:])
    with mock.patch.multiple(Prefixed, room=room, step=step):
        for content, records in ((data, len(sizes)), (data[:cut], whole)):
            path.write_bytes(content)
            if len(content) not in ends:
                cut_off = rf"record {whole} \(byte {ends[whole]}\): .* the end of th"
                with pytest.raises(mmapds.FormatError, match=cut_off):
                    mmapds.build(path, force=True, truncated="error", **options(name))
            mmapds.build(path, force=True, truncated="drop", length="bytes()", **options(name))
            assert list(mmapds.open(path)) == payloads[:records]
            assert mmapds.open(path).lengths.tolist() == sizes[:records]
            assert Index(f"{path}.mmx").sources[0].skipped == (len(content) not in ends)


@pytest.mark.parametrize("name", [*PREFIXES, "tfrecord"])
def test_a_size_larger_than_the_file(write, index, name):
    for size in {min(size, 2**32 - 1 if name[1:3] == "32" else size) for size in (10, 2**32 - 1, 2**63, 2**64 - 1)}:
        path = write(framed(b"x", name) + framing(size, name) + b"123456789", "x.records")
        found = r"found the end of the file \d+ bytes into the record; leave it out with truncated='drop'$"
        expected = rf"record 1 \(byte \d+\): expected a payload of {size} bytes, {found}"
        with pytest.raises(mmapds.FormatError, match=expected):
            mmapds.build(path, force=True, truncated="error", **options(name))
        mmapds.build(path, truncated="drop", force=True, **options(name))
        assert list(mmapds.open(path)) == [b"x"]
    assert index(path, "--force", "--truncated", "error").stderr.endswith("; leave it out with --truncated drop\n")


def test_varints_of_every_length(write):
    padded = [b"\x03", *(b"\x83" + b"\x80" * size + b"\0" for size in range(9))]
    for behind in (b"", b"\x80" * 10 + b"\0", b"\xff" * 9 + b"\x02"):
        path = write(b"".join(size + b"abc" for size in padded) + behind, f"{len(behind)}.pb")
        refused = pytest.raises(mmapds.FormatError, match=r"record 10 \(byte 85\): expected a varint of up to 64 bits")
        with refused if behind else nullcontext():
            mmapds.build(path, format="prefixed", prefix="varint", truncated="drop")
            assert list(mmapds.open(path)) == [b"abc"] * 10


def test_checksums_that_are_wrong(write):
    """Those of lengths are checked by every scan, and those of data by --verify."""
    data, length = b"".join(framed(each, "tfrecord") for each in (b"first", b"second")), struct.Struct("<Q").pack
    for what, at, found, wanted in (("length", 21, length(6), length(7)), ("data", 33, b"second", b"recond")):
        path = write(data, "x.tfrecord")
        flip(path, at)
        wrong, right = (f"{int.from_bytes(masked(each), 'little'):#010x}" for each in (found, wanted))
        message = f"{path}: record 1 (byte 21): expected {right} as the CRC of the {what}, found {wrong}"
        with pytest.raises(mmapds.FormatError, match=re.escape(message)):
            verify(Index(str(mmapds.build(path, truncated="drop"))))


# ---- what others wrote, and tf.train.Example ---------------------------------------------------------------------


def test_shards_of_examples_of_another_library(tmp_path):
    rng = np.random.default_rng(0)
    wanted = [{"ids": rng.integers(-(2**63), 2**63 - 1, k), "name": ["ü".encode(), b""][: k % 3]} for k in range(40)]
    for shard, samples in enumerate(([], wanted[:15], wanted[15:])):
        examples = ({"ids": (each["ids"].tolist(), "int"), "name": (each["name"], "byte")} for each in samples)
        write_tfrecords(tmp_path / f"train.tfrecord-{shard:05}-of-00003", examples)
    ds = mmapds.open(mmapds.build(tmp_path, out=tmp_path / "all.mmx"), decode="tf_example")
    for found, sample in zip(ds, wanted, strict=True):
        assert (found["ids"].dtype, found["ids"].tolist()) == (np.int64, sample["ids"].tolist())
        assert found["name"] == sample["name"]
    verify(Index(str(tmp_path / "all.mmx")))


def test_delimited_protobufs_of_protobuf_itself(tmp_path):
    numbers = [{"int64List": {"value": list(range(size))}} for size in range(0, 300, 7)]
    messages = [ParseDict({"features": {"feature": {"n": each}}}, example_pb2.Example()) for each in numbers]
    with open(tmp_path / "x.pb", "wb") as file:
        for message in messages:
            serialize_length_prefixed(message, file)
    mmapds.build(tmp_path / "x.pb", format="prefixed", prefix="varint")
    assert list(mmapds.open(tmp_path / "x.pb", decode=example_pb2.Example.FromString)) == messages
    assert mmapds.open(tmp_path / "x.pb", decode="tf_example")[2]["n"].tolist() == list(range(14))


LISTS = st.one_of(
    st.builds(lambda v: {"bytes_list": {"value": v}}, st.lists(st.binary(max_size=20), max_size=5)),
    st.builds(lambda v: {"float_list": {"value": v}}, st.lists(st.floats(width=32, allow_nan=False), max_size=40)),
    st.builds(lambda v: {"int64_list": {"value": v}}, st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)),
    st.just({}),
)


@given(features=st.dictionaries(st.text(max_size=5), LISTS, max_size=5))
def test_examples_are_those_of_protobuf(features):
    message = {name: example_pb2.Feature(**each) for name, each in features.items()}
    found = tf_example(example_pb2.Example(features=example_pb2.Features(feature=message)).SerializeToString())
    assert found.keys() == features.keys()
    for name, feature in features.items():
        for kind, dtype in (("float_list", np.float32), ("int64_list", np.int64)):
            assert kind not in feature or found[name].dtype == dtype
        assert list(found[name]) == next(iter(feature.values()), {"value": []})["value"]


def field(number, data):
    return varint_bytes(number << 3 | 2) + varint_bytes(len(data)) + data


def one_feature(feature):
    return field(1, field(1, field(1, b"x") + field(2, feature)))


def test_lists_that_are_not_packed_and_messages_in_parts():
    numbers = b"\x08\x01\x08" + varint_bytes(2**64 - 1) + field(1, b"\x05\x06" + b"\x80" * 9 + b"\x01")
    assert tf_example(one_feature(field(3, numbers)))["x"].tolist() == [1, -1, 5, 6, -(2**63)]
    floats = b"\x0d" + struct.pack("<f", 1.5) + field(1, struct.pack("<2f", 2, 3))
    assert tf_example(one_feature(field(2, floats) + field(2, floats)))["x"].tolist() == [1.5, 2, 3] * 2
    skipped = b"\x38\x01" + b"\x39" + bytes(8) + b"\x3d" + bytes(4) + field(7, b"?")
    assert tf_example(skipped + one_feature(skipped + field(1, field(1, b"a") + skipped)) + skipped) == {"x": [b"a"]}
    assert tf_example(one_feature(field(1, field(1, b"a"))) + one_feature(field(1, field(1, b"b")))) == {"x": [b"b"]}


GARBAGE = [b"\x0a\x05ab", b"\xff" * 11, field(1, field(1, field(1, b"\xff\xfe"))), one_feature(field(1, b"\x08\x01"))]
GARBAGE += [one_feature(field(kind, field(1, data))) for kind, data in ((2, b"abc"), (3, b"\x80"), (3, b"\x80" * 11))]


def test_what_is_no_example_says_so(write):
    path = write(b"".join(framed(each, "tfrecord") for each in GARBAGE), "x.tfrecord")
    ds = mmapds.open(path, decode="tf_example", build=True)
    for k in range(len(GARBAGE)):
        with pytest.raises(mmapds.DecodeError, match=rf"x.tfrecord: record {k} \(byte \d+\): not a tf.train.Example: "):
            ds[k]


@given(st.binary(max_size=60), st.integers(0, 200), st.integers(0, 255))
def test_garbage_is_a_value_error_or_an_example(noise, at, byte):
    good = one_feature(field(3, field(1, b"\x80\x01" * 30))) + one_feature(field(2, field(1, bytes(8))))
    changed = bytearray(good)
    changed[at % len(good)] = byte
    for record in (noise, bytes(changed), good[:at], one_feature(noise), one_feature(field(at % 4, noise))):
        with suppress(ValueError):
            assert isinstance(tf_example(record), dict)
