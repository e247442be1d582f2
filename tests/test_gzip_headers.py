"""Headers of members of gzip: any fields, with a checksum of their own or without one, wherever pieces are cut."""

import gzip
import zlib

import pytest

import mmapds
from mmapds.compression import gzip as gzip_codec
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.compressed import one_member, text

LINES = text(4000, longest=300)
MEMBER = one_member(LINES)


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    """Access points that lie close together, so that blocks begin inside members."""
    monkeypatch.setattr(gzip_codec, "SPACING", 20_000)


def build(write, data):
    path = write(data, "a.jsonl.gz")
    mmapds.build(path, force=True)
    return path


def with_header(flags, fields, compressed):
    """A member with a header of these flags and fields, and the checksum of the header if there is a flag for it."""
    header = compressed[:3] + bytes([flags]) + compressed[4:10] + fields
    crc = (zlib.crc32(header) & 0xFFFF).to_bytes(2, "little") if flags & 2 else b""
    return header + crc + compressed[10:]


EXTRA, NAME, COMMENT = b"\3\0abc", b"name\0", b"comment\0"
HEADERS = {
    "none": (0, b""),
    "extra": (4, EXTRA),
    "name": (8, NAME),
    "comment": (16, COMMENT),
    "extra and name": (12, EXTRA + NAME),
    "name and comment": (24, NAME + COMMENT),
    "all": (28, EXTRA + NAME + COMMENT),
    "long ones": (24, b"n" * 70_000 + b"\0" + b"c" * 70_000 + b"\0"),
}


@pytest.mark.parametrize("checked", [0, 2], ids=["", "checked"])
@pytest.mark.parametrize("fields", HEADERS)
def test_headers_of_any_kind_may_lie_anywhere_in_what_decoders_are_given(write, monkeypatch, fields, checked):
    flags, content = HEADERS[fields]
    odd = with_header(flags | checked, content, MEMBER)
    assert gzip.decompress(odd) == LINES
    path = build(write, MEMBER + odd)
    behind = (LINES.splitlines() * 2)[3600:4400:40]
    for size in (gzip_codec._READ, 1, 2, 5, 11):
        monkeypatch.setattr(gzip_codec, "_READ", size)
        ds = mmapds.open(path)
        assert [ds.raw(number) for number in range(3600, 4400, 40)] == behind
    assert [ds.raw(number) for number in range(len(ds))] == LINES.splitlines() * 2
    assert verify(Index(f"{path}.mmx")) is None


@pytest.mark.parametrize("fields", HEADERS)
def test_a_wrong_checksum_of_a_header_is_found_when_it_is_indexed(write, fields):
    flags, content = HEADERS[fields]
    odd = with_header(flags | 2, content, MEMBER)
    for at in (4, 9, 10 + len(content), 11 + len(content)):  # time, system, checksum
        bad = bytearray(odd)
        bad[at] ^= 64
        with pytest.raises(
            mmapds.FormatError, match=r"block \d+ \(byte \d+\): not gzip: a block of deflate is damaged; "
        ):
            build(write, MEMBER + bytes(bad))
