"""--verify derives again what can be derived: sections that were forged, with checksums that hold, are found."""

import os
from pathlib import Path

import numpy as np
import pytest
import xxhash

import mmapds
from mmapds.arrays.array_file import ArrayFile, Head
from mmapds.index.verify import examine, verify
from mmapds.storage.index_file import Index
from mmapds.storage.writer import IndexWriter
from tests.support.bounds import bounds_of, forge_bounds, records_in, write_groups
from tests.support.index_file import rewrite
from tests.support.tars import archive


def forge(path, name, change):
    """Change the numbers of a section, and make its checksum right again."""
    opened = ArrayFile(Head(str(path))) if str(path).endswith(".mma") else Index(str(path))
    section = opened.sections[name]
    with open(path, "r+b") as file:
        file.seek(section.offset)
        numbers = np.frombuffer(file.read(section.size), section.dtype).copy()
        change(numbers)
        file.seek(section.offset)
        file.write(numbers.tobytes())

    def sealed(metadata):
        metadata["sections"][name]["xxh3"] = xxhash.xxh3_64(numbers.tobytes()).hexdigest()
        return metadata

    rewrite(str(path), metadata=sealed)


def assign(at, value):
    def change(numbers):
        numbers[at] = value

    return change


def swap(one, other):
    def change(numbers):
        numbers[[one, other]] = numbers[[other, one]]

    return change


@pytest.fixture
def index(write):
    path = write([{"n": n, "text": "x" * n} for n in (5, 3, 3, 9, 1)])
    mmapds.build(path, length="n")
    verify(Index(f"{path}.mmx"))
    return f"{path}.mmx"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("length_order", assign(0, 0), r"length_order\[0\] = 0, expected 3"),
        ("length_order", assign(4, 5), r"length_order\[4\] = 5, expected 4"),
        ("length_order", swap(2, 3), r"length_order\[2\] = 2, expected 1"),
        ("length_values", assign(1, 9), r"length_values\[1\] = 9, expected 5"),
        ("length_counts", assign(0, 2), r"length_counts\[0\] = 2, expected 1"),
        ("column:length", assign(2, 4), "column 'length' differs from .* at record 2: expected 3, found 4"),
    ],
)
def test_a_forged_section_is_found(index, name, change, message):
    forge(index, name, change)
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: {message}"):
        verify(Index(index))


@pytest.mark.parametrize("name", ["length_order", "length_values", "length_counts"])
def test_the_order_of_lengths_that_python_computed_is_sorted_again(index, name):
    mmapds.add_column(index, "length", [5, 3, 3, 9, 1])
    verify(Index(index))
    forge(index, name, assign(1, 7))
    with pytest.raises(mmapds.FormatError, match=rf"DAMAGED: {name}\[1\] = 7, expected "):
        verify(Index(index))


def test_a_length_that_no_record_has_is_found(index):
    before = Index(index)
    forged = {"length_values": [9, 7, 5, 3, 1], "length_counts": [1, 0, 1, 2, 1]}
    with IndexWriter(index) as writer:
        for name in before.sections:
            if name in forged:
                writer.write_array(name, "<u8", np.array(forged[name], np.uint64).tobytes())
            else:
                writer.copy_section(before, name)
        writer.replace(before, {key: value for key, value in before.metadata.items() if key != "sections"})
    with pytest.raises(mmapds.FormatError, match="section 'length_values': expected 4 numbers of type <u8, found 5 of"):
        verify(Index(index))


def test_the_first_record_that_lies_elsewhere_is_named(write):
    """The edit lies between the blocks of the fingerprint, and keeps size and time."""
    lines = [b'{"n": %d}\n' % (number % 100) for number in range(100_000)]
    path = write(b"".join(lines))
    mmapds.build(path, columns={"n": "n"})
    times = os.stat(path)
    lines[5009], lines[5010] = lines[5010], lines[5009]
    write(b"".join(lines))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: record 5010 of .* begins at byte"):
        verify(Index(f"{path}.mmx"))
    assert examine(Index(f"{path}.mmx")).counts == {"records": 1}
    assert sorted(os.listdir(os.path.dirname(path))) == ["train.jsonl", "train.jsonl.mmx"]


def test_an_index_in_a_directory_that_cannot_be_written_to_is_verified(index, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert not examine(Index(index)).problems
    forge(index, "column:length", assign(2, 4))
    assert examine(Index(index)).counts == {"columns": 1}


def retype(path, name, dtype):
    """Let a section be numbers of another type of the same width, whose bytes and checksum stay."""

    def retyped(metadata):
        assert metadata["sections"][name]["dtype"] != dtype
        metadata["sections"][name]["dtype"] = dtype
        return metadata

    rewrite(str(path), metadata=retyped)


RETYPED = [("i", -3, "<u8"), ("i", -3, "<f8"), ("f", 0.5, "<u8"), ("f", 0.5, "<i8"), ("u", 2**63, "<i8")]
RETYPED += [("u", 2**63, "<f8")]


@pytest.mark.parametrize(("name", "first", "dtype"), RETYPED)
def test_a_column_of_another_type_is_found(write, name, first, dtype):
    path = write([{"i": n - 3, "f": n + 0.5, "u": 2**63 + n} for n in range(9)])
    mmapds.build(path, columns={"i": "i", "f": "f", "u": "u"})
    retype(f"{path}.mmx", f"column:{name}", dtype)
    with pytest.raises(mmapds.FormatError, match=f"column '{name}' differs from .* at record 0: expected {first}, "):
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize(("name", "first", "dtype"), RETYPED)
def test_a_column_of_an_array_file_of_another_type_is_found(tmp_path, name, first, dtype):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path, {"i": "int64", "f": "float32", "u": "uint64"}, index=False) as writer:
        for n in range(9):
            writer.write({"i": n - 3, "f": n + 0.5, "u": 2**63 + n})
    retype(path, f"column:{name}", dtype)

    def build_and_verify():
        mmapds.build(path)
        verify(Index(f"{path}.mmx"))

    said = rf"'column:{name}': expected numbers of .*, found {dtype}|column:{name}\[0\] = .*, expected {first}, "
    with pytest.raises(mmapds.FormatError, match=f"a.mma: DAMAGED: .*({said})"):
        build_and_verify()


def test_a_column_of_a_wider_type_is_right(write):
    path = write([{"n": 2**40 + n} for n in range(9)])
    mmapds.build(path, columns={"n": "n"})
    retype(f"{path}.mmx", "column:n", "<i8")
    verify(Index(f"{path}.mmx"))
    assert mmapds.open(path).column("n").tolist() == [2**40 + n for n in range(9)]


@pytest.mark.parametrize(
    ("at", "message"),
    [
        (1, "record 1 of .* begins at byte 3, expected byte "),
        (5, "the last record of .* ends at byte 3, expected byte "),
    ],
)
def test_a_forged_bound_is_found(index, at, message):
    bounds = bounds_of(index)
    bounds[at] = 3
    forge_bounds(index, bounds)
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: {message}"):
        verify(Index(index))


@pytest.mark.parametrize("name", ["records", "lines", "smallest", "largest", "skipped"])
def test_a_forged_total_of_a_source_is_found(index, name):
    def changed(metadata):
        metadata["sources"][0][name] += 1
        return metadata

    rewrite(index, metadata=changed)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: .*expected"):
        verify(Index(index))


@pytest.mark.parametrize(
    ("name", "value"), [("first", 64), ("dtype", "<i2"), ("dtype", None), ("shape", [4]), ("record_bytes", 2)]
)
def test_a_forged_header_of_npy_is_found(tmp_path, name, value):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(64, dtype=np.int32))
    mmapds.build(path)
    verify(Index(f"{path}.mmx"))

    def changed(metadata):
        within = metadata["sources"][0] if name == "first" else metadata["parameters"]
        within[name] = value
        if value is None:
            del within[name]
        return metadata

    rewrite(f"{path}.mmx", metadata=changed)
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: {name}.*expected"):
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("key_records", swap(0, 1)),
        ("key_records", assign(0, 30)),
        ("key_records", lambda records: assign(1, records[0])(records)),
        ("key_hashes", assign(0, 1)),
    ],
)
def test_forged_keys_are_found(tmp_path, name, change):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{number}.txt", b"x") for number in range(20)]))
    mmapds.build(path)
    verify(Index(f"{path}.mmx"))
    forge(f"{path}.mmx", name, change)
    with pytest.raises(mmapds.FormatError, match="DAMAGED: key_"):
        verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("column:n", assign(1, 7)),
        ("column:x_length", assign(2, 7)),
        ("column:f", assign(1, 0.25)),
        ("offsets", swap(1, 2)),
        ("offsets", lambda offsets: assign(1, offsets[2])(offsets)),
    ],
)
def test_columns_and_offsets_of_an_array_file_that_are_not_those_of_its_records(tmp_path, name, change):
    path = tmp_path / "a.mma"
    with mmapds.Writer(path, {"n": "int64", "f": "float32", "x": ("int16", (None,))}, index=False) as writer:
        for number in range(4):
            writer.write({"n": -number, "f": number / 2, "x": [number] * number})
    mmapds.build(path)
    verify(Index(f"{path}.mmx"))
    forge(path, name, change)
    os.unlink(f"{path}.mmx")

    def build_and_verify():
        mmapds.build(path)
        verify(Index(f"{path}.mmx"))

    with pytest.raises(mmapds.FormatError, match=r"a.mma: DAMAGED: .*(as the records have it|one after another)"):
        build_and_verify()


def spans(path):
    ds = mmapds.open(path, decode="bytes")
    try:
        return [ds.where(position) for position in range(len(ds))]
    except mmapds.FormatError as error:
        return str(error)


@pytest.mark.parametrize(("largest", "width"), [(50, 2), (70_000, 3), (17_000_000, 4)])
def test_every_byte_of_the_bounds_that_readers_use_is_compared(tmp_path, largest, width):
    """Also the end of the last record of each group, which the next group has once more."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'"%s"\n' % (b"x" * (largest if n == 20 else n % 7)) for n in range(60)))
    mmapds.build(path)
    index = f"{path}.mmx"
    assert Index(index).sources[0].width == width
    before, whole, each = spans(path), Path(index).read_bytes(), records_in(width)
    section = Index(index).sections["offsets"]
    groups = whole[section.offset : section.offset + section.size]
    ends = [begin + 8 + each * width - 1 for begin in range(0, len(groups) - 64, 64)]  # of a distance, its highest byte
    missed = []
    for at in range(len(groups)) if width == 2 else [*ends, *(end - width + 1 for end in ends)]:
        forged = bytearray(groups)
        forged[at] ^= 1
        Path(index).write_bytes(whole)
        write_groups(index, forged, seal=True)
        try:
            verify(Index(index))
        except mmapds.FormatError:
            continue
        if spans(path) != before:
            missed.append(at)
    assert missed == []


def test_where_the_last_record_of_a_group_ends(write):
    path = write([{"n": n} for n in range(100)])
    mmapds.build(path)
    section = Index(f"{path}.mmx").sections["offsets"]
    forged = bytearray(Path(f"{path}.mmx").read_bytes()[section.offset :][: section.size])
    forged[62] -= 3
    write_groups(f"{path}.mmx", forged, seal=True)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: record 27 of .* ends at byte 267, expected byte 270"):
        verify(Index(f"{path}.mmx"))
