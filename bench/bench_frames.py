"""Scanning length-prefixed records against reading the same memory; checksums against xxh3."""

import numpy as np
import pytest
import xxhash
from tfrecord import example_pb2

import mmapds
from bench.support.data import DATA, once
from bench.support.indexing import forget_index
from bench.support.timing import timed
from mmapds import _native
from mmapds.dataset.payloads import tf_example
from mmapds.formats.frames import TFRecord
from mmapds.storage.sources import inspect, open_source

RECORDS = 2_000_000
FRAMINGS = {
    "u32le": (_native.FRAMING_U32LE, lambda data: len(data).to_bytes(4, "little") + data),
    "u64be": (_native.FRAMING_U64BE, lambda data: len(data).to_bytes(8, "big") + data),
    "varint": (_native.FRAMING_VARINT, lambda data: bytes([len(data) & 127 | 128, len(data) >> 7]) + data),
    "tfrecord": (_native.FRAMING_TFRECORD, lambda data: tfrecord(data)),
}


def masked(data):
    crc = _native.crc32c(None, 0, data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF).to_bytes(4, "little")


def tfrecord(data):
    length = len(data).to_bytes(8, "little")
    return length + masked(length) + data + masked(data)


def frames_file(name):
    """A file of records of 300 bytes on average (200 to 400), made once."""
    path = DATA / f"{RECORDS}.{name}"
    if not path.exists():
        rng = np.random.default_rng(0)
        noise = rng.bytes(1 << 20)
        encode = FRAMINGS[name][1]
        some = [
            encode(noise[at : at + size]) for at, size in rng.integers([0, 200], [10**6, 400], (20_000, 2)).tolist()
        ]
        with once(path) as file:
            for _ in range(RECORDS // len(some)):
                file.write(b"".join(some))
    return path


def walk(source, framing, starts):
    """Scan a source, mapped anew as an indexing process has it."""
    view, at, total = open_source(source), 0, 0
    while at < source.size:
        count, at, status, *_ = _native.frames_scan(memoryview(view)[at:], framing, at, source.size, starts, None)
        assert status == 0
        total += count
    return total


def touch(source):
    """Read a word of every cache line of a file in the same way: mapped anew, all pages at once."""
    view = open_source(source)
    data = np.frombuffer(view, np.uint64, source.size // 8)
    return int(data[::8].sum())


@pytest.mark.parametrize("name", FRAMINGS)
def test_scan(compare, row, name):
    source = inspect(str(frames_file(name)))
    starts = np.empty(1 << 17, np.uint64)
    framing = FRAMINGS[name][0]
    assert walk(source, framing, starts) == RECORDS
    compare(
        f"scan {RECORDS / 1e6:.0f} M {name} records of 300 bytes, one core",
        lambda: walk(source, framing, starts),
        "numpy sum of a word a cache line",
        lambda: touch(source),
        "",
    )
    best = min(timed(lambda: walk(source, framing, starts)) for _ in range(5))
    row(f"scan of {name}", "", f"{RECORDS / best / 1e6:.1f} M records/s", ">= 5 M records/s")


@pytest.mark.parametrize("name", ["u32le", "tfrecord"])
def test_build(compare, row, name):
    path = str(frames_file(name))
    options = {"format": "prefixed", "prefix": name} if name != "tfrecord" else {"format": "tfrecord"}

    def build(**more):
        forget_index(path)
        mmapds.build(path, force=True, **options, **more)

    def read():
        with open(path, "rb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass

    build()
    assert len(mmapds.open(path)) == RECORDS
    compare(f"build the index of {name}, fsync and all", build, "read() of the file", read, "")
    best = min(timed(lambda: build(length="bytes()")) for _ in range(3))
    row(f"build of {name}, with lengths", "", f"{RECORDS / best / 1e6:.1f} M records/s", "")


@pytest.mark.parametrize("variant", _native.simd_variants())
@pytest.mark.parametrize("size", [300, 1 << 16])
def test_crc(compare, variant, size):
    data = np.random.default_rng(0).bytes(size)
    assert _native.crc32c(variant, 0, data) == _native.crc32c("portable", 0, data)
    times = (1 << 24) // size
    compare(
        f"CRC32C of {size} bytes ({variant})",
        lambda: [_native.crc32c(variant, 0, data) for _ in range(times)],
        "xxh3-64 of the same",
        lambda: [xxhash.xxh3_64_intdigest(data) for _ in range(times)],
        "",
    )


def test_verify(compare):
    source = inspect(str(frames_file("tfrecord")))
    compare(
        "verify all CRCs, one core",
        lambda: TFRecord().verify([source], {}),
        "touch of the file",
        lambda: touch(source),
        "",
    )


def upb(record):
    """What people do of a record with the protobuf package: parse it in C, copy the lists to arrays."""
    features = example_pb2.Example.FromString(record).features.feature
    ids, mel = features["ids"].int64_list.value, features["mel"].float_list.value
    return {
        "ids": np.array(ids, np.int64),
        "mel": np.array(mel, np.float32),
        "key": list(features["key"].bytes_list.value),
    }


@pytest.mark.parametrize("values", [1, 30, 500])
def test_example(compare, values):
    rng = np.random.default_rng(0)
    features = {
        "ids": example_pb2.Feature(int64_list={"value": rng.integers(0, 50_000, values).tolist()}),
        "mel": example_pb2.Feature(float_list={"value": rng.normal(size=values).tolist()}),
        "key": example_pb2.Feature(bytes_list={"value": [b"a/name.wav"]}),
    }
    record = example_pb2.Example(features={"feature": features}).SerializeToString()
    found, wanted = tf_example(record), upb(record)
    assert all(list(found[name]) == list(wanted[name]) for name in wanted)
    compare(
        f"tf_example, {values} integers and as many floats",
        lambda: [tf_example(record) for _ in range(2000)],
        "protobuf (upb), and arrays of its lists",
        lambda: [upb(record) for _ in range(2000)],
        "",
    )
