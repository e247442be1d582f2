"""TFRecords and length-prefixed records in compressed files, record by record as the plain file has them."""

import random
import struct
from functools import partial
from itertools import chain

import hypothesis.strategies as st
import pytest
from hypothesis import given

import mmapds
from mmapds import _native
from mmapds.formats.frames import FramesWalk
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.compressed import WRITERS
from tests.support.pieces import walked


def masked(data):
    crc = _native.crc32c(None, 0, data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def varint(number, width=1):
    """A varint of this many bytes at least."""
    out = []
    while number > 127 or len(out) + 1 < width:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def tfrecord(data):
    size = struct.pack("<Q", len(data))
    return size + masked(size) + data + masked(data)


FRAMINGS = {
    "u32le": (_native.FRAMING_U32LE, lambda data: struct.pack("<I", len(data)) + data),
    "u32be": (_native.FRAMING_U32BE, lambda data: struct.pack(">I", len(data)) + data),
    "u64le": (_native.FRAMING_U64LE, lambda data: struct.pack("<Q", len(data)) + data),
    "u64be": (_native.FRAMING_U64BE, lambda data: struct.pack(">Q", len(data)) + data),
    "varint": (_native.FRAMING_VARINT, lambda data: varint(len(data), 1 + len(data) % 4) + data),
    "tfrecord": (_native.FRAMING_TFRECORD, tfrecord),
}


def records(count, seed=0):
    random_ = random.Random(seed)
    return [random_.randbytes(random_.choice([0, 1, 7, 100, 3000, 40_000])) for _ in range(count)]


def built(write, data, framing, suffix, compress=lambda data: data, **options):
    """Write a file of this framing, compressed; index it, and return its path."""
    name = "a.tfrecord" if framing == "tfrecord" else "a.bin"
    path = write(compress(data), name + suffix)
    if framing != "tfrecord":
        options |= {"format": "prefixed", "prefix": framing}
    mmapds.build(path, force=True, **options)
    return path


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("framing", ["tfrecord", "u32le", "varint"])
def test_every_record_is_that_of_the_plain_file(write, framing, writer):
    expected = records(120)
    data = b"".join(map(FRAMINGS[framing][1], expected))
    plain = mmapds.open(built(write, data, framing, "", length="bytes()"), decode="bytes")
    path = built(write, data, framing, *WRITERS[writer], length="bytes()")
    packed = mmapds.open(path, decode="bytes")
    assert list(map(bytes, packed)) == expected
    rows = random.Random(1).sample(range(120), 120)
    assert list(map(bytes, packed.take(rows))) == [expected[row] for row in rows]
    assert (packed.lengths == plain.lengths).all()
    assert [packed.where(row)[1:] for row in rows] == [plain.where(row)[1:] for row in rows]
    verify(Index(f"{path}.mmx"))


@given(
    st.sampled_from(sorted(FRAMINGS)),
    st.lists(st.sampled_from([0, 1, 2, 9, 127, 128, 400]), max_size=12),
    st.lists(st.integers(0, 3000), max_size=12),
)
def test_content_in_pieces_of_any_size(framing, sizes, cuts):
    code, frame = FRAMINGS[framing]
    framed = [frame(bytes(size)) for size in sizes]
    data, starts = b"".join(framed), [sum(map(len, framed[:k])) for k in range(len(framed))]
    for end in (len(data), max(len(data) - 1, 0)):
        walk, (found, measured, _) = walked(partial(FramesWalk, code, 1 << 20), data[:end], cuts)
        whole = len(sizes) if end == len(data) else len(sizes) - 1
        assert (found, measured) == (starts[:whole], sizes[:whole])
        total, cut = walk.end()
        assert (total.lines, total.content) == (max(whole, 0), end)
        assert cut == (end != len(data) and end not in starts)
        assert total.end == (len(data) if whole == len(sizes) else starts[-1] if starts else 0)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("framing", ["tfrecord", "u32le", "varint"])
def test_content_that_ends_inside_a_record(write, framing, suffix):
    compress = WRITERS["gzip" if suffix == ".gz" else "one"][1]
    frame = FRAMINGS[framing][1]
    expected = records(40)
    data = b"".join(map(frame, expected))
    for kept in (1, 2, 500, 60_000):
        cut = data + frame(bytes(70_000))[:kept]
        with pytest.raises(
            mmapds.FormatError, match=rf"record 40 \(byte {len(data)}\): expected a (whole|payload)"
        ) as e:
            built(write, cut, framing, suffix, compress)
        assert f"found the end of the file {kept} bytes into the record; leave it out with truncated='drop'" in str(
            e.value
        )
        path = built(write, cut, framing, suffix, compress, truncated="drop")
        assert list(map(bytes, mmapds.open(path, decode="bytes"))) == expected
        assert Index(f"{path}.mmx").sources[0].skipped == 1
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("size", [2**31, 2**48, 2**64 - 1, 2**64 - 5])
def test_a_size_that_lies_takes_no_memory(write, size):
    data = b"".join(map(FRAMINGS["u64le"][1], records(30)))
    claim = struct.pack("<Q", size)
    with pytest.raises(mmapds.FormatError, match=rf"record 30 \(byte \d+\): expected a payload of {size} bytes, found"):
        built(write, data + claim + bytes(3 << 20), "u64le", ".gz", WRITERS["gzip"][1])


def test_what_is_not_a_record(write):
    data = b"".join(map(tfrecord, records(30)))
    with pytest.raises(
        mmapds.FormatError, match=rf"a.tfrecord.gz: record 30 \(byte {len(data)}\): .* CRC of the length"
    ):
        built(write, data + b"not a record" * 9, "tfrecord", ".gz", WRITERS["gzip"][1])
    with pytest.raises(mmapds.FormatError, match="expected a varint of up to 64 bits, found a longer one"):
        built(write, b"\xff" * 12, "varint", ".gz", WRITERS["gzip"][1])


@pytest.mark.parametrize("writer", ["gzip", "bgzf", "many", "one"])
def test_verify_compares_the_checksum_of_every_payload(write, writer):
    expected = records(60, 2)
    framed = [bytearray(tfrecord(each)) for each in expected]
    number = next(k for k in range(20, 60) if len(expected[k]) >= 40_000)
    framed[number][30_000] ^= 1
    begin = sum(map(len, framed[:number]))
    path = built(write, b"".join(framed), "tfrecord", *WRITERS[writer])
    with pytest.raises(
        mmapds.FormatError, match=rf"record {number} \(byte {begin}\): expected \w+ as the CRC of the data"
    ):
        verify(Index(f"{path}.mmx"))


def test_plain_and_compressed_files_in_one_index(write, tmp_path):
    expected = [records(20, seed) for seed in range(4)]
    paths = []
    for number, (each, writer) in enumerate(zip(expected, [None, "gzip", "many", None], strict=True)):
        suffix, compress = WRITERS[writer] if writer else ("", bytes)
        paths.append(write(compress(b"".join(map(tfrecord, each))), f"{number}.tfrecord{suffix}"))
    ds = mmapds.open(mmapds.build(paths, out=tmp_path / "all.mmx"), decode="bytes")
    assert list(map(bytes, ds)) == list(chain.from_iterable(expected))
    for path in paths:
        mmapds.build(path)
    merged = mmapds.merge([f"{path}.mmx" for path in paths], out=tmp_path / "merged.mmx")
    assert merged.read_bytes() == (tmp_path / "all.mmx").read_bytes()
