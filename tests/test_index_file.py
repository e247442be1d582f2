"""The .mmx file: atomic, open in constant time, and trusted in nothing."""

import json
import os
import random
import shutil
import struct
from pathlib import Path

import pytest

import mmapds
from mmapds.storage.index_file import Index, IndexWriter
from tests.support.files import DATA
from tests.support.index_file import rewrite

RECORDS = [{"id": 1}, {"id": 22}, {"id": 333}]


@pytest.fixture
def index_path(write):
    return str(mmapds.build(write(RECORDS)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", b"\x89PNG\r\n\x1a\n", "NOT AN INDEX: it begins with"),
        ("version", 2, "VERSION: file is format 2, this mmapds reads 1; upgrade mmapds"),
        ("version", 0, "VERSION: file is format 0"),
        ("header_size", 128, "reserved field"),
        ("records", 4, "its sources hold 3 records, its header says 4"),
        ("offset", 2**64 - 1, "outside the file"),
        ("offset", 8, "outside the file"),
        ("length", 2**64 - 1, "outside the file"),
        ("length", 0, "checksum"),
        ("file_size", 1, "its header says 1"),
        ("reserved", 1, "reserved field"),
        ("checksum", 0, "do not match their checksum"),
    ],
)
def test_a_damaged_header_field_is_named(index_path, field, value, message):
    rewrite(index_path, header={field: value})
    with pytest.raises(mmapds.FormatError, match=message) as caught:
        Index(index_path)
    assert str(caught.value).startswith(index_path)


def without(key):
    return lambda metadata: {name: value for name, value in metadata.items() if name != key}


def section(**changes):
    def change(metadata):
        metadata["sections"]["offsets"] |= changes
        return metadata

    return change


def source(**changes):
    def change(metadata):
        metadata["sources"][0] |= changes
        return metadata

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (b"", "metadata are not as specified"),
        (b"[]", "metadata are not as specified"),
        (b'{"sections": 3}', "metadata are not as specified"),
        (b"\xff{}", "metadata are not as specified"),
        (without("format"), "metadata are not as specified"),
        (without("sources"), "metadata are not as specified"),
        (without("sections"), "metadata are not as specified"),
        (section(dtype="<f8"), "not as many offsets"),
        (section(shape=[2**62]), "does not fit"),
        (section(shape=[-1]), "does not fit"),
        (section(shape=[4, 4]), "metadata are not as specified"),
        (section(shape=["4"]), "does not fit"),
        (section(offset=-64), "does not fit"),
        (section(offset=2**63), "does not fit"),
        (section(offset=65), "does not fit"),
        (section(shape=[3]), "not as many offsets"),
        (source(records=-1), "a number is negative or no integer"),
        (source(records=2.5), "a number is negative or no integer"),
        (source(records="3"), "metadata are not as specified"),
    ],
)
def test_damaged_metadata_is_an_error(index_path, change, message):
    rewrite(index_path, metadata=change)
    with pytest.raises(mmapds.FormatError, match=message):
        Index(index_path)


def test_unknown_sections_and_keys_are_skipped(index_path):
    def add(metadata):
        metadata["later"] = {"anything": 1}
        metadata["sections"]["unknown"] = metadata["sections"]["offsets"] | {"extra": 1}
        return metadata

    rewrite(index_path, metadata=add)
    assert mmapds.open(index_path)[2] == {"id": 333}


@pytest.mark.parametrize("bounds", [[0, 10, 9, 33], [0, 10, 21, 2**64 - 1], [33, 10, 21, 33], [0, 10, 21, 34]])
def test_bounds_outside_the_source_are_an_error_when_read(index_path, bounds):
    data = bytearray(Path(index_path).read_bytes())
    data[64:96] = struct.pack("<4Q", *bounds)
    Path(index_path).write_bytes(data)
    ds = mmapds.open(index_path)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: record \d of .*train.jsonl: expected bytes within 0 to"):
        list(ds)
    with pytest.raises(mmapds.FormatError, match="DAMAGED"):
        ds.__getitems__([2, 1, 0])
    with pytest.raises(mmapds.FormatError, match="does not match its checksum"):
        Index(index_path).verify_sections()


def test_no_flipped_bit_and_no_truncation_gets_past_the_checks(index_path):
    good = Path(index_path).read_bytes()
    generator = random.Random(0)
    for trial in range(400):
        data = bytearray(good)
        if trial % 4 == 0:
            del data[generator.randrange(len(data)) :]
        else:
            bit = generator.randrange(len(data) * 8)
            data[bit // 8] ^= 1 << bit % 8
        Path(index_path).write_bytes(data)
        with pytest.raises(mmapds.FormatError):
            Index(index_path).verify_sections()
        Path(index_path).write_bytes(good)


def test_an_unfinished_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.mmx"
    path.write_bytes(b"old")

    def interrupted():
        with IndexWriter(str(path)) as writer:
            writer.begin_section("offsets", "<u8")
            writer.write(bytes(80))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.mmx"]


def test_the_golden_file_reads_as_ever(tmp_path):
    for name in ("golden-v1.jsonl", "golden-v1.jsonl.mmx"):
        shutil.copy(DATA / name, tmp_path)
    (recorded,) = Index(str(tmp_path / "golden-v1.jsonl.mmx")).sources
    os.utime(tmp_path / "golden-v1.jsonl", ns=(recorded.mtime_ns, recorded.mtime_ns))
    ds = mmapds.open(tmp_path / "golden-v1.jsonl")
    assert list(ds) == [{"id": 0, "text": "né"}, {"id": 1}, [2], "last, without a line end"]
    assert [ds.where(i)[1:] for i in range(4)] == [(3, 21), (27, 8), (39, 3), (45, 26)]


def test_sections_lie_on_64_bytes_and_the_file_ends_with_the_metadata(index_path):
    index = Index(index_path)
    assert all(section.offset % 64 == 0 for section in index.sections.values())
    assert Path(index_path).read_bytes().endswith(json.dumps(index.metadata).encode())
