"""The .mmx file: atomic, open in constant time, and trusted in nothing."""

import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.numbers import U64
from mmapds.storage.writer import IndexWriter
from tests.support.bounds import WIDTHS, bounds_of, group_of, grouped, write_groups
from tests.support.commands import command
from tests.support.files import DATA, flip
from tests.support.index_file import rewrite

RECORDS = [{"id": 1}, {"id": 22}, {"id": 333}]
ODD = [-1, 2.5, "3", True, [2], None]


@pytest.fixture
def index_path(write):
    return str(mmapds.build(write(RECORDS)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", b"\x89PNG\r\n\x1a\n", r"NOT AN INDEX: expected b.* at byte 0, found b.\\x89PNG.*; run: python -m "),
        ("version", 2, "VERSION: expected format 1, found 2; upgrade mmapds"),
        ("version", 0, "VERSION: expected format 1, found 0"),
        ("header_size", 128, r"metadata: expected bytes 64 to \d+, found"),
        ("records", 4, "expected 4 records, as the header says, found 3 in the sources"),
        ("offset", 2**64 - 1, "found 18446744073709551615 to"),
        ("offset", 8, "found 8 to"),
        ("length", 2**64 - 1, r"metadata: expected bytes 64 to \d+, found \d+ to \d{20};"),
        ("length", 0, "checksum"),
        ("file_size", 1, "expected 1 bytes, as the header says, found"),
        ("reserved", 3, "expected kind 0 or 2, found 3"),
        ("checksum", 0, r"do not match their checksum: expected 0{16}, found \w{16}; "),
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
        *((text, "malformed metadata") for text in (b"", b"[]", b'{"sections": 3}', b"\xff{}")),
        *((without(key), "malformed metadata") for key in ("format", "sources", "sections")),
        (section(dtype="<f8"), "section 'offsets': expected 8 numbers of type <u8, found 8 of type <f8"),
        (section(shape=[7]), "section 'offsets': expected 8 numbers of type <u8, found 7 of type <u8"),
        (section(dtype="<f4"), "malformed metadata"),
        (section(shape=[4, 4]), "malformed metadata"),
        (section(shape=[-1]), r"section 'offsets': expected numbers within \d+ bytes, found -1"),
        (section(shape=["8"]), "found '8' of type <u8 from byte 64"),
        (section(shape=[2**62]), f"found {2**62} of type <u8 from byte 64"),
        *((section(offset=at), f"found 8 of type <u8 from byte {at}") for at in (-64, 65, 2**63)),
        *((source(records=n), "records of a source: expected an integer from 0 to 2.*63 - 1, found") for n in ODD),
        *((source(width=n), "width of a source: expected 2, 3, 4 or 8, .*found") for n in (0, 1, -2, 16, *ODD)),
        *((source(path=n), "path of a source: expected a text in UTF-8, found") for n in (3, "a\0b", None)),
        (source(path="\ud800"), "malformed metadata"),
        (source(mtime_ns=1.5), "mtime_ns of a source: expected an integer of 64 bits, found 1.5"),
        (source(xxh3_128=5), "xxh3_128 of a source: expected a text in UTF-8, found 5"),
        (
            source(bad={"lines": 1, "first": [[1, -1]]}),
            r"first of bad lines: expected pairs of integers .*, found \[\[1, -1\]\]",
        ),
    ],
)
def test_damaged_metadata_is_an_error(index_path, change, message):
    rewrite(index_path, metadata=change)
    with pytest.raises(mmapds.FormatError, match=message):
        Index(index_path)


@pytest.mark.parametrize("columns", [("length",), ("length", "length_order", "length_values", "length_counts")])
@pytest.mark.parametrize("kept", [True, False], ids=["expressions", "no expressions"])
def test_a_column_that_an_index_says_it_has_must_be_there(write, columns, kept):
    path = mmapds.build(write(b'{"n": 1}\n{"n": 2}\n'), length="n", columns={"other": "n"})

    def without(found):
        for name in columns:
            del found["sections"][name if "_" in name else f"column:{name}"]
        if not kept:
            del found["columns"]["expressions"]["length"]
        return found

    rewrite(path, metadata=without)
    if kept or columns == ("length",):
        with pytest.raises(mmapds.FormatError, match=r"DAMAGED: section 'column:length': expected 2 .* found none"):
            mmapds.open(path)
    else:
        assert list(mmapds.open(path).columns) == ["other"]


@pytest.mark.parametrize("name", ["length_order", "length_values", "length_counts"])
def test_a_length_order_is_whole_or_not_there(write, name):
    path = mmapds.build(write(b'{"n": 1}\n{"n": 2}\n'), length="n")
    rewrite(path, metadata=lambda found: found["sections"].pop(name) and found)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: section 'length_.*': expected .* found "):
        mmapds.open(path)


def test_unknown_sections_and_keys_are_skipped(index_path):
    def add(metadata):
        metadata["later"] = {"anything": 1}
        metadata["sections"]["unknown"] = metadata["sections"]["offsets"] | {"extra": 1}
        return metadata

    rewrite(index_path, metadata=add)
    assert mmapds.open(index_path)[2] == {"id": 333}


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("first", "distances"),
    [
        (0, [10, 9, 33]),
        (0, [10, 21, 65535]),
        (0, [10, 21, 34]),
        (24, [10, 21, 33]),
        (2**63, [10, 21, 33]),
        (2**64 - 1, [10, 21, 33]),
        (2**64 - 21, [10, 21, 33]),
        (2**64 - 21, [31, 41, 54]),
    ],
)
def test_bounds_outside_the_source_are_an_error_when_read(index_path, first, distances, width, io):
    """Distances that 64 bits cannot add to the first bound do not come around to the bytes of the source."""
    before, bounds = Index(index_path), bounds_of(index_path)
    with IndexWriter(index_path) as writer:
        writer.write_array("offsets", "<u8", grouped(bounds, width))
        writer.commit(source(width=width)(before.metadata), before.records)
    assert list(mmapds.open(index_path, io=io)) == RECORDS
    write_groups(index_path, group_of(first, distances, width))
    ds = mmapds.open(index_path, io=io)
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


@pytest.mark.parametrize("numbers", [0, 2, 4])
def test_a_column_has_a_number_for_each_record(index_path, numbers):
    before = Path(index_path).read_bytes()
    index = Index(index_path)
    with IndexWriter(index_path) as writer:
        spool = writer.spool()
        spool.append(U64.cell, memoryview(bytes(8 * numbers)).cast("Q"))
        for section in index.sections:
            writer.write_section(section, index.sections[section].dtype, index.pieces(section))
        writer.write_column("x", spool)
        with pytest.raises(
            mmapds.Error, match=f"incomplete column 'x': expected 3 numbers, found {numbers}; nothing was"
        ):
            writer.commit(index.metadata, index.records)
    assert Path(index_path).read_bytes() == before
    assert sorted(os.listdir(Path(index_path).parent)) == ["train.jsonl", "train.jsonl.mmx"]


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


def test_parameters_that_are_missing_have_their_defaults(write):
    path = write(b"\3\0\0\0abc\1\0\0\0z", "p.dat")
    mmapds.build(path, format="prefixed")
    rewrite(f"{path}.mmx", metadata=lambda metadata: metadata | {"parameters": {"prefix": "u32le"}})
    assert list(mmapds.open(path)) == [b"abc", b"z"]


def test_records_of_one_size_begin_at_byte_0_unless_a_header_says_so(write):
    path = write(bytes(40), "f.bin")
    mmapds.build(path, format="fixed", record_bytes=4)
    rewrite(f"{path}.mmx", metadata=lambda metadata: metadata | {"sources": [metadata["sources"][0] | {"first": 4}]})
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: malformed metadata, .*first = 4, expected 0"):
        mmapds.open(path)[0]


def test_sources_in_other_directories_are_named_by_the_shortest_path(tmp_path):
    home, other = tmp_path / "deep" / "home", tmp_path / "other"
    for directory in (home, other):
        directory.mkdir(parents=True)
        (directory / "a.jsonl").write_bytes(b'{"n": 1}\n')
    (home / "link").symlink_to(other)
    mmapds.build([other / "a.jsonl", home / "a.jsonl"], out=home / "all.mmx")
    ds = mmapds.open(home / "all.mmx", roots=tmp_path)
    assert ds.sources == [str(other / "a.jsonl"), str(home / "a.jsonl")]
    path = home / "all.mmx"
    rewrite(
        path,
        metadata=lambda metadata: (
            metadata | {"sources": [metadata["sources"][0] | {"path": "link/../other/a.jsonl"}, metadata["sources"][1]]}
        ),
    )  # what follows a name that may be a link stays as it is
    assert mmapds.open(path, roots=tmp_path).sources[0] == f"{home}/link/../other/a.jsonl"


# ---- sections that a new index takes over from the one before it: damage gets no checksum of its own ----------------


@pytest.fixture
def damaged(tmp_path):
    """A source whose index has a flipped bit in a column that was computed in Python; the column's name."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(50_000)))
    mmapds.build(path, columns={"squared": lambda sample: sample["id"] ** 2}, workers=1)
    index = f"{path}.mmx"
    flip(index, Index(index).sections["column:squared"].offset + 1000)
    with pytest.raises(mmapds.FormatError, match="section 'column:squared' does not match its checksum"):
        verify(Index(index))
    return str(path)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda path: mmapds.add_column(path, "other", np.arange(50_000)),
        lambda path: mmapds.add_column(path, "length", np.arange(50_000)),
        lambda path: mmapds.build(path, hash=True),
    ],
    ids=["another column", "lengths", "a hash"],
)
def test_a_damaged_section_is_not_copied(damaged, rewrite):
    with open(f"{damaged}.mmx", "rb") as file:
        before = file.read()
    with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'column:squared' does not match its checksum"):
        rewrite(damaged)
    with open(f"{damaged}.mmx", "rb") as file:
        assert file.read() == before
    assert sorted(os.listdir(os.path.dirname(damaged))) == ["train.jsonl", "train.jsonl.mmx"]


def test_the_damaged_column_can_be_made_again(damaged):
    mmapds.add_column(damaged, "squared", lambda sample: sample["id"] ** 2, workers=1)
    assert (mmapds.open(damaged).column("squared") == np.arange(50_000, dtype=np.uint64) ** 2).all()
    assert command("--verify", damaged).returncode == 0
