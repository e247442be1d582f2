"""The .mmx file: atomic, open in constant time, and trusted in nothing."""

import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

import mmapds
from mmapds.storage.index_file import Index
from mmapds.storage.writer import IndexWriter
from tests.support.bounds import WIDTHS, bounds_of, group_of, grouped, write_groups
from tests.support.files import DATA, flip
from tests.support.forged import make_source
from tests.support.index_file import rewrite, verify

RECORDS = [{"id": 1}, {"id": 22}, {"id": 333}]


@pytest.fixture
def index_path(write):
    return str(mmapds.build(write(RECORDS)))


# ---- every field is checked when the file is opened -------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("magic", b"\x89PNG\r\n\x1a\n", r"NOT AN INDEX: expected b.* at byte 0, found b.\\x89PNG.*; run: python -m "),
        ("version", 2, "VERSION: expected format 1, found 2; upgrade mmapds"),
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


def section(**changes):
    return lambda found: {"offsets": found["sections"]["offsets"] | changes}


def source(**changes):
    return lambda found: [found["sources"][0] | changes]


def measuring(**changes):
    return lambda found: found["columns"] | changes


COUNT = "of a source: expected an integer from 0 to 2.*63 - 1, found"
WIDTH = "width of a source: expected 2, 3, 4 or 8, .*found"
TIME = "mtime_ns of a source: expected an integer of 64 bits, found"
PLACE = "section 'offsets': expected numbers within"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *(("", text, "malformed metadata") for text in (b"", b"[]", b'{"sections": 3}', b"\xff{}", b"[" * 100_000)),
        *((key, None, "malformed metadata") for key in ("format", "sources", "sections")),
        ("sections", section(dtype="<f8"), "'offsets': expected 8 numbers of type <u8, found 8 of type <f8"),
        ("sections", section(shape=[7]), "'offsets': expected 8 numbers of type <u8, found 7 of type <u8"),
        *(("sections", section(shape=[n]), rf"{PLACE} .* found '?{n}'? of type") for n in (-1, "8", 2**61, 2**64)),
        *(("sections", section(offset=at), f"{PLACE} .* from byte {at}") for at in (-64, 65, 2**63, 2**64 - 64)),
        *(("sources", source(records=n), f"records {COUNT}") for n in (-1, 2.5, "3", True, 2**63)),
        *(("sources", source(width=n), WIDTH) for n in (0, 1, 16, 2.0)),
        *(("sources", source(path=n), "path of a source: expected a text in UTF-8, found") for n in (3, "a\0b")),
        *(("sources", source(mtime_ns=n), f"{TIME} {n}") for n in (1.5, 2**63, -(2**63) - 1)),
        *(("sources", source(bad={"lines": 1, "first": [n]}), "first of bad lines: exp") for n in ([1, -1], [-1, 1])),
        ("columns", measuring(expressions={"a": 1}), "expressions among columns: expected an object of texts"),
        *(("columns", measuring(missing=n), "missing among columns: expected error, skip or") for n in ([], "x", True)),
        ("columns", measuring(validate=1), "validate among columns: expected true or false, found 1"),
        ("columns", measuring(bad="x"), "bad among columns: expected error or skip, found 'x'"),
        *(("functions", lambda _, n=n: n, "functions: expected an object of texts") for n in (3, {"length": 3})),
        *(("parameters", lambda _, n=n: {"record_bytes": n}, "record_bytes among .* from 1 to") for n in (0, "1")),
    ],
)
def test_damaged_metadata_are_an_error(index_path, key, value, message):
    def change(found):
        return found | {key: value(found)} if value else {name: each for name, each in found.items() if name != key}

    rewrite(index_path, metadata=change if key else value)
    with pytest.raises(mmapds.FormatError, match=message):
        Index(index_path)


LENGTHS = ("column:length", "length_order", "length_values", "length_counts")


@pytest.mark.parametrize("missing", [*LENGTHS, "key_records", "key_hashes", "column:x"])
def test_sections_that_belong_together_are_there_together(tmp_path, missing):
    path = make_source(tmp_path, "tar" if missing.startswith("key") else "jsonl")

    def without(*names, **expressions):
        def change(found):
            sections = {name: each for name, each in found["sections"].items() if name not in names}
            return found | {"sections": sections, "columns": found["columns"] | {"expressions": expressions}}

        return change

    rewrite(f"{path}.mmx", metadata=without(missing, **{"x": "n"} if missing == "column:x" else {}))
    with pytest.raises(mmapds.FormatError, match=rf"DAMAGED: section '{missing}': expected .* found none"):
        mmapds.open(path)


def test_unknown_sections_and_keys_are_skipped_and_missing_ones_have_their_defaults(index_path, write):
    def add(metadata):
        metadata["later"] = {"anything": 1}
        metadata["sections"]["unknown"] = metadata["sections"]["offsets"] | {"extra": 1}
        del metadata["parameters"], metadata["columns"]
        return metadata

    rewrite(index_path, metadata=add)
    assert mmapds.open(index_path)[2] == {"id": 333}
    path = write(b"\3\0\0\0abc\1\0\0\0z", "p.dat")
    mmapds.build(path, format="prefixed")
    rewrite(f"{path}.mmx", metadata=lambda metadata: metadata | {"parameters": {"prefix": "u32le"}})
    assert list(mmapds.open(path)) == [b"abc", b"z"]


@pytest.mark.parametrize("width", WIDTHS)
def test_bounds_outside_the_source_are_an_error_when_read(index_path, width):
    """Distances that 64 bits cannot add to the first bound do not come around to the bytes of the source."""
    before, bounds = Index(index_path), bounds_of(index_path)
    with IndexWriter(index_path) as writer:
        writer.write_array("offsets", "<u8", grouped(bounds, width))
        writer.commit(before.metadata | {"sources": source(width=width)(before.metadata)}, before.records)
    bad = [(0, [10, 9, 33]), (0, [10, 21, 34]), (2**64 - 21, [31, 41, 54])]
    bad += [(first, [10, 21, 33]) for first in (24, 2**63, 2**64 - 21, 2**64 - 1)]
    for io in ("mmap", "pread"):
        write_groups(index_path, grouped(bounds, width))
        assert list(mmapds.open(index_path, io=io)) == RECORDS
        for first, distances in bad:
            write_groups(index_path, group_of(first, distances, width))
            ds = mmapds.open(index_path, io=io)
            for read in (lambda ds=ds: list(ds), lambda ds=ds: ds.take([2, 1, 0])):
                with pytest.raises(mmapds.FormatError, match=r"DAMAGED: record \d of .*: expected bytes within 0 to"):
                    read()


def test_no_flipped_bit_and_no_truncation_gets_past_the_checks(index_path):
    good = Path(index_path).read_bytes()
    generator = random.Random(0)
    damaged = [good[: generator.randrange(len(good))] for _ in range(100)]
    for bit in generator.sample(range(len(good) * 8), 300):
        damaged.append(bytearray(good))
        damaged[-1][bit // 8] ^= 1 << bit % 8
    for data in damaged:
        Path(index_path).write_bytes(data)
        with pytest.raises(mmapds.FormatError):
            Index(index_path).verify_sections()


def test_an_index_of_the_first_version_is_read(tmp_path):
    for name in ("golden-v1.jsonl", "golden-v1.jsonl.mmx"):
        shutil.copy(DATA / name, tmp_path)
    (recorded,) = Index(str(tmp_path / "golden-v1.jsonl.mmx")).sources
    os.utime(tmp_path / "golden-v1.jsonl", ns=(recorded.mtime_ns, recorded.mtime_ns))
    ds = mmapds.open(tmp_path / "golden-v1.jsonl")
    assert list(ds) == [{"id": 0, "text": "né"}, {"id": 1}, [2], "last, without a line end"]
    assert [ds.where(i)[1:] for i in range(4)] == [(3, 21), (27, 8), (39, 3), (45, 26)]


def test_damage_of_a_section_that_is_taken_over_gets_no_checksum_of_its_own(write, tmp_path):
    path = write([{"id": n} for n in range(500)])
    mmapds.build(path, columns={"squared": lambda sample: sample["id"] ** 2}, workers=1)
    flip(f"{path}.mmx", Index(f"{path}.mmx").sections["column:squared"].offset + 1000)
    before = Path(f"{path}.mmx").read_bytes()
    for take_over in (
        lambda: verify(Index(f"{path}.mmx")),
        lambda: mmapds.add_column(path, "length", np.arange(500)),
        lambda: mmapds.build(path, hash=True),
    ):
        with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'column:squared' does not match its checksum"):
            take_over()
        assert Path(f"{path}.mmx").read_bytes() == before
        assert sorted(os.listdir(tmp_path)) == ["train.jsonl", "train.jsonl.mmx"]
    mmapds.add_column(path, "squared", lambda sample: sample["id"] ** 2, workers=1)
    assert (mmapds.open(path).column("squared") == np.arange(500, dtype=np.uint64) ** 2).all()
    verify(Index(f"{path}.mmx"))
