"""Damaged compressed sources, and indexes that lie about their blocks: each a clear error, none a crash."""

import os
import sys

import numpy as np
import pytest
from xxhash import xxh3_64

import mmapds
from mmapds.compression.blocks import BlockTable
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sections import BLOCK_BEGINS, BLOCK_BOUNDS
from tests.support.compressed import (
    NO_SIZE,
    bgzf,
    codec,
    frames,
    many_frames,
    many_members,
    one_frame,
    one_member,
    text,
)
from tests.support.index_file import forge_section, rewrite

DATA = text(3000)


@pytest.fixture
def packed(write):
    """A source of many frames, indexed."""
    path = write(many_frames(DATA), "a.jsonl.zst")
    mmapds.build(path)
    return path


def build(write, data):
    return mmapds.build(write(data, "a.jsonl.zst"))


@pytest.mark.parametrize("cut", [1, 40])
@pytest.mark.parametrize("make", [many_frames, one_frame])
def test_a_last_frame_that_is_cut_short(write, make, cut):
    with pytest.raises(mmapds.FormatError, match=r"a.jsonl.zst: frame \d+ \(byte \d+\): expected a whole frame, found"):
        build(write, make(DATA)[:-cut])


def test_a_checksum_that_does_not_match(write):
    data = bytearray(b"".join(frames(DATA, 100_000)))
    second = len(frames(DATA, 100_000)[0])
    data[second + len(frames(DATA, 100_000)[1]) - 1] ^= 1
    message = rf"block 1 \(byte {second}\): not zstd: restored data doesn't match checksum; copy the file again"
    with pytest.raises(mmapds.FormatError, match=message):
        build(write, bytes(data))


@pytest.mark.parametrize("make", [many_frames, one_frame])
def test_a_frame_that_is_damaged_inside(write, make):
    good = make(DATA)
    caught = 0
    for at in range(30, len(good), len(good) // 40):
        data = bytearray(good)
        data[at] ^= 0x55
        try:
            build(write, bytes(data))
        except mmapds.FormatError as error:
            assert "a.jsonl.zst: " in str(error)  # noqa: PT017 - whether it is raised depends on the byte
            caught += 1
    assert caught >= 38, "checksums see all but what no decoder reads"


def test_a_bomb_is_decoded_in_bounded_memory(write):
    """256 MB of one line, in a few KB."""
    compressor = codec.ZstdCompressor()
    bomb = b"".join([compressor.compress(b"x" * (1 << 20)) for _ in range(256)] + [compressor.flush()])
    path = write(b"".join(frames(DATA, 1000)) + codec.compress(b"\n") + bomb, "a.jsonl.zst")
    mmapds.build(path)
    index = Index(f"{path}.mmx")
    assert index.sources[0].compression.largest >= 256 << 20
    assert index.sources[0].largest == 256 << 20
    before = index.sources[0].records - 1
    ds = mmapds.open(path, decode="bytes", block_cache=1 << 20)
    assert ds[:before].take(range(before))[-1] == DATA.splitlines()[-1]


@pytest.mark.parametrize("has_isal", [True, False])
@pytest.mark.parametrize("make", [one_member, many_members, bgzf])
def test_gzip_that_is_damaged(write, make, has_isal, monkeypatch):
    if not has_isal:
        monkeypatch.setitem(sys.modules, "isal", None)
    good = make(DATA).rstrip(b"\0") if make is many_members else make(DATA)
    size = int.from_bytes(good[-4:], "little")
    bad = {
        "cut in its trailer": good[:-3],
        "cut in its last member": good[:-12],
        "cut in its first member": good[:700],
        "garbage": good + b"garbage",
        "garbage behind zeros": good + bytes(600) + b"x",
        "garbage behind many zeros": good + bytes(300_000) + b"x",
        "checksum": good[:-8] + bytes([good[-8] ^ 1]) + good[-7:],
        "size": good[:-4] + (size + 1).to_bytes(4, "little"),
    }
    for what, data in bad.items():
        with pytest.raises(mmapds.FormatError, match=r"block \d+ \(byte \d+\): not gzip: .*; copy the file"):
            print(what, mmapds.build(write(data, "a.jsonl.gz"), force=True))


@pytest.mark.parametrize("make", [many_members, bgzf])
def test_a_block_of_gzip_that_is_damaged_later(write, make):
    path = write(make(DATA), "a.jsonl.gz")
    mmapds.build(path)
    where = mmapds.open(path).where(2000)
    ds = mmapds.open(path)
    damaged_between(path, where.block + 40, where.block + 60)
    with pytest.raises(mmapds.FormatError, match=rf"block \d+ \(byte {where.block}\): not gzip: .*; copy"):
        ds[2000]


def test_a_frame_that_holds_more_than_it_says_nowhere(write):
    """A frame without a size, of few bytes that are many: too many for a block."""
    bomb = codec.compress(b'"' + b"1" * (9 << 20) + b'"\n', options=NO_SIZE)
    path = write(bomb + codec.compress(b"2\n"), "a.jsonl.zst")
    mmapds.build(path)
    assert Index(f"{path}.mmx").sources[0].compression == ("zstd", (9 << 20) + 5, 1, (9 << 20) + 5, 0)
    assert mmapds.open(path, decode="bytes")[1] == b"2"


# ---- while reading --------------------------------------------------------------------------------------------------


def damaged_between(path, begin, end):
    """Damage bytes of a source that has been opened, and keep its time."""
    found = os.stat(path)
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\x55" * (end - begin))
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_block_that_is_damaged_later_is_named(packed):
    where = mmapds.open(packed).where(2000)
    ds = mmapds.open(packed)
    damaged_between(packed, where.block + 20, where.block + 60)
    message = rf"a.jsonl.zst: block \d+ \(byte {where.block}\): not zstd: .*; copy the file again"
    for read in (lambda: ds[2000], lambda: ds.take([3, 2000, 17])):
        with pytest.raises(mmapds.FormatError, match=message):
            read()
    assert ds[0]["id"] == 0, "other blocks are read as ever"


@pytest.mark.parametrize(("suffix", "make"), [(".zst", one_frame), (".gz", one_member)])
def test_a_bad_record_behind_damage_has_a_number_and_no_line(write, suffix, make):
    good = make(b"\n" + DATA)
    path = write(good + make(DATA + b"bad\n"), f"a.jsonl{suffix}")
    mmapds.build(path)
    damaged_between(path, len(good) // 2, len(good) // 2 + 40)
    with pytest.raises(mmapds.DecodeError, match=rf"^{path}: record 6000 \(byte {2 * len(DATA) + 1}\): not JSON: "):
        mmapds.open(path)[6000]


def test_a_source_that_is_cut_short_while_it_is_open(packed):
    ds = mmapds.open(packed)
    assert ds[0]["id"] == 0
    os.truncate(packed, os.path.getsize(packed) // 2)
    with pytest.raises(mmapds.StaleIndexError, match=r"STALE: a.jsonl.zst was \d+ bytes when indexed and is \d+ now"):
        ds.take([1, 2999])


def test_a_source_that_is_replaced(packed, write):
    write(many_frames(DATA[::-1]), "a.jsonl.zst")
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(packed)[0]


# ---- indexes that lie -----------------------------------------------------------------------------------------------


def forged(path, name, at, value):
    """Write a number into a section of an index, and the checksum that it then has."""
    index = Index(f"{path}.mmx")
    numbers = np.frombuffer(index.section(name), index.sections[name].dtype).copy()
    numbers[at] = value
    forge_section(f"{path}.mmx", name, numbers)

    def seal(metadata):
        metadata["sections"][name]["xxh3"] = xxh3_64(numbers.tobytes()).hexdigest()
        return metadata

    rewrite(f"{path}.mmx", metadata=seal)


def read_all(path):
    ds = mmapds.open(path)
    return [attempt(lambda: list(ds)), attempt(lambda: ds.take(range(len(ds) - 1, -1, -1))), attempt(lambda: ds[1500])]


def attempt(work):
    try:
        return work()
    except mmapds.Error as error:
        return str(error)


@pytest.mark.parametrize("name", [BLOCK_BEGINS, BLOCK_BOUNDS])
@pytest.mark.parametrize("at", [0, 3, -1])
@pytest.mark.parametrize("value", [0, 60_000, 10**6, 2**32 - 1])
def test_a_table_of_blocks_that_lies(packed, name, at, value):
    expected = read_all(packed)
    if value == np.frombuffer(Index(f"{packed}.mmx").section(name), np.uint32)[at]:
        return
    forged(packed, name, at, value)
    for found, good in zip(read_all(packed), expected, strict=True):
        assert found == good or "a.jsonl.zst" in found
    with pytest.raises(mmapds.Error, match=r"DAMAGED: .*block|block \d+"):
        verify(Index(f"{packed}.mmx"))


def test_blocks_that_share_content_are_refused(packed, monkeypatch):
    """A table whose bounds fall can name blocks so; what is copied twice would leave a hole elsewhere."""
    place = BlockTable.place
    monkeypatch.setattr(BlockTable, "place", lambda table, block: place(table, block)._replace(content=0))
    ds = mmapds.open(packed)
    with pytest.raises(mmapds.FormatError, match=r"block \d+ of .*: expected content from byte \d+ on, found byte 0"):
        ds.take([0, 2999])


FIELDS = {
    "codec": [None, 3, "lzma"],
    "size": [-1, 0, 10**7, 2**62, "many"],
    "blocks": [-1, 0, 3, 10**9, 2.5],
    "largest": [-1, 0, 10, 2**62, None],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in FIELDS.items() for value in values])
def test_a_description_of_the_compression_that_lies(packed, field, value):
    expected = read_all(packed)

    def change(metadata):
        (source,) = metadata["sources"]
        return metadata | {"sources": [source | {"compression": source["compression"] | {field: value}}]}

    rewrite(f"{packed}.mmx", metadata=change)
    try:
        found = read_all(packed)
    except mmapds.FormatError as error:
        found = [str(error)] * 3
    for each, good in zip(found, expected, strict=True):
        assert each == good or "a.jsonl.zst" in each
    with pytest.raises(mmapds.Error):
        verify(Index(f"{packed}.mmx"))


def test_more_content_than_blocks_have_is_found_before_room_is_made_for_it(packed):
    def change(metadata):
        (source,) = metadata["sources"]
        compression = source["compression"]
        return metadata | {"sources": [source | {"compression": compression | {"size": compression["size"] + 10**9}}]}

    rewrite(f"{packed}.mmx", metadata=change)
    ds = mmapds.open(packed)
    for action in (lambda: ds[0], lambda: ds.take([0, 1]), lambda: list(ds), lambda: ds.block_starts):
        with pytest.raises(mmapds.FormatError, match=r"blocks of .*: expected \d+ bytes of content, found \d+; run: "):
            action()


def test_more_content_than_a_file_can_hold_is_refused_when_the_index_opens(packed):
    def change(metadata):
        (source,) = metadata["sources"]
        return metadata | {"sources": [source | {"compression": source["compression"] | {"size": 2**50}}]}

    rewrite(f"{packed}.mmx", metadata=change)
    with pytest.raises(mmapds.FormatError, match="expected blocks of its content, found "):
        mmapds.open(packed)


def test_an_index_of_compressed_sources_is_of_a_kind_of_its_own(packed, write):
    plain = write(DATA, "b.jsonl")
    mmapds.build(plain)
    assert (Index(f"{packed}.mmx").kind, Index(f"{plain}.mmx").kind) == (2, 0)
    rewrite(f"{plain}.mmx", header={"reserved": 2})
    with pytest.raises(mmapds.FormatError, match="DAMAGED: expected kind 0, found 2"):
        Index(f"{plain}.mmx")
    rewrite(f"{packed}.mmx", header={"reserved": 0})
    with pytest.raises(mmapds.FormatError, match="DAMAGED: expected kind 2, found 0"):
        Index(f"{packed}.mmx")
