"""What all formats share: how they are chosen and refused, which decoders go with which, and damage to every one."""

import os
import pickle
from array import array
from ast import literal_eval
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import mmapds
from mmapds import formats
from mmapds.convert import convert
from mmapds.formats import mma
from mmapds.formats.format import End, Format, Piece
from mmapds.storage.index_file import Index
from mmapds.storage.writer import IndexWriter
from tests.support.formats import write_all
from tests.support.index_file import verify
from tests.support.messages import check
from tests.support.samples import npy, write_tfrecords
from tests.support.tars import archive

# ---- choosing one ------------------------------------------------------------------------------------------------


def test_files_are_known_by_their_first_bytes_too(tmp_path, write):
    write(npy(np.arange(12.0).reshape(3, 4)), "features")
    write(archive([("a.txt", b"")]), "shard")
    with mmapds.Writer(tmp_path / "x.mma", index=False) as writer:
        writer.write({"id": 3})
    os.rename(tmp_path / "x.mma", tmp_path / "store")
    write_tfrecords(tmp_path / "events", [{"x": (5, "int")}])
    for name in ("features", "shard", "store", "events"):
        mmapds.build(tmp_path / name)
    assert mmapds.open(tmp_path / "features")[1].tolist() == [4, 5, 6, 7]
    assert mmapds.open(tmp_path / "shard")[0]["__key__"] == "a"
    assert mmapds.open(tmp_path / "store")[0] == {"id": 3}
    assert mmapds.open(tmp_path / "events", decode="tf_example")[0]["x"].tolist() == [5]
    assert len(mmapds.open(write([1, 2], "x.text"), build=True)) == 2


FIXED, PREFIXED = {"format": "fixed"}, {"format": "prefixed"}
U1 = {**FIXED, "dtype": "u1", "truncated": "drop"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "x.bin: format not recognised by its name or its first bytes; choose one with format="),
        ({"format": "no"}, "format = 'no', expected one of 'arrays', 'fixed', 'jsonl', 'megatron', 'npy', "),
        ({"format": "jsonl", "record_bytes": 2}, "record_bytes = 2, expected no options for format 'jsonl'"),
        ({"format": "megatron"}, "x.idx: no such file or directory"),
        (FIXED, r"record_bytes = None, expected an integer of 1 to 2\*\*63 - 1, or dtype and shape$"),
        ({**FIXED, "record_bytes": 0}, "record_bytes = 0, expected an integer of 1 to 2"),
        ({**FIXED, "record_bytes": 2**63}, "record_bytes = 9223372036854775808, expected an integer of 1 to 2"),
        ({**FIXED, "record_bytes": "ten"}, "record_bytes = 'ten', expected an integer of 1 to 2"),
        (
            {**FIXED, "record_bytes": 4, "shape": (3,)},
            "record_bytes = 4, expected an integer of .*, or dtype and shape",
        ),
        ({**FIXED, "dtype": "no", "shape": 3}, "dtype = 'no', expected a name that NumPy knows"),
        ({**FIXED, "dtype": "O"}, "dtype = 'O', expected plain numbers"),
        ({**FIXED, "dtype": "(2,"}, r"dtype = '\(2,', expected a name"),
        ({**FIXED, "dtype": "i4,,i4"}, "dtype = 'i4,,i4', expected a name|expected plain"),
        ({**FIXED, "dtype": "\ud800"}, "expected a name that NumPy knows"),
        ({**FIXED, "dtype": None}, "dtype = None, expected a name"),
        ({**FIXED, "dtype": "i4", "shape": "2,x"}, "shape = '2,x', expected sizes of 1 or more"),
        ({**FIXED, "dtype": "i4", "shape": [0]}, "expected sizes of 1 or more"),
        ({**U1, "shape": [2.7]}, "expected sizes of 1 or more"),
        ({**U1, "shape": [2**40, 2**40]}, f"records of 1 byte or more, found 2 axes and {2**80} bytes"),
        ({**U1, "shape": [1] * 33}, "expected up to 32 axes .* found 33 axes and 1 bytes"),
        ({**U1, "shape": 2, "record_bytes": 7}, r"record_bytes = 7, expected 2, the bytes of .u1 of shape \(2,\)"),
        ({**FIXED, "record_bytes": 2, "truncated": "x"}, "truncated = 'x', expected 'error' or 'drop'"),
        ({**FIXED, "record_bytes": 2, "prefix": "x"}, "prefix = 'x', expected options among record_bytes, dtype"),
        ({**FIXED, "record_bytes": 2, "length": "n"}, r"column 'length': expected bytes\(\) for records .*, found 'n'"),
        ({**FIXED, "record_bytes": 2, "validate": True}, "^validate = True, expected False for records of a binary"),
        (
            {**FIXED, "record_bytes": 2, "bad": "skip"},
            "^bad = 'skip', expected 'error' for records of a binary format$",
        ),
        ({**PREFIXED, "prefix": "u16"}, "'u16', expected one of 'u32le', 'u32be', 'u64le', 'u64be', 'varint'"),
        ({**PREFIXED, "length": "chars(text)"}, r"records that are not JSON, found 'chars\(text\)'"),
        ({"format": "tar", "length": "n"}, r"column 'length': expected bytes\(\) for records .*, found 'n'"),
        ({"format": "tfrecord", "prefix": "u32le"}, "options among truncated for format 'tfrecord'"),
    ],
)
def test_options_that_are_refused(write, options, message):
    with pytest.raises((mmapds.FormatError, mmapds.ColumnError, mmapds.SourceError), match=message):
        mmapds.build(write(bytes(20), "x.bin"), **options)


def test_truncated_is_not_inherited_by_a_source_that_has_changed(write, index):
    path = write(b"\1\0\0\0a\5\0\0\0ab", "p.bin")
    mmapds.build(path, format="prefixed", truncated="drop")
    mmapds.build(path)
    assert len(mmapds.open(path, build=True)) == 1
    with pytest.raises(mmapds.FormatError, match="leave it out with truncated='drop'"):
        mmapds.build(path, force=True)
    write(b"\1\0\0\0a\1\0\0\0b\xff\xff\0\0c" + b"\1\0\0\0d" * 1000, "p.bin")
    with pytest.raises(mmapds.FormatError, match="leave it out with truncated='drop'"):
        mmapds.build(path)
    assert "; 1 record left out," in index(path, "--truncated", "drop").stdout
    write([1, 2], "p.bin")
    with pytest.raises(
        mmapds.FormatError, match=r"record 0 \(byte 0\): expected a payload of \d+ bytes, found the end"
    ):
        mmapds.build(path)


def test_truncated_alone_leaves_other_options_as_they_were(write):
    path = write(b"\3abc\1d", "v.bin")
    mmapds.build(path, format="prefixed", prefix="varint")
    write(b"\3abc\1d\5e", "v.bin")
    mmapds.build(path, truncated="drop")
    assert list(mmapds.open(path)) == [b"abc", b"d"]
    path = write(bytes(12), "f.bin")
    mmapds.build(path, format="fixed", dtype="u2", shape=3)
    write(bytes(15), "f.bin")
    mmapds.build(path, truncated="drop", force=True)
    assert [record.shape for record in mmapds.open(path)] == [(3,), (3,)]


def test_parameters_that_a_newer_version_may_write(write, index):
    path = write(b"\1\0\0\0a", "p.bin")
    mmapds.build(path, format="prefixed")
    good = Index(path + ".mmx")
    for parameters in ({"prefix": "u16le", "truncated": "error"}, {}, {"prefix": 3}):
        with IndexWriter(good.path) as writer:
            writer.write_array("offsets", "<u8", good.section("offsets"))
            writer.commit({**good.metadata, "parameters": parameters}, good.records)
        with pytest.raises(
            mmapds.FormatError, match=r"p.bin.mmx: DAMAGED: malformed metadata, or from a newer mmapds: "
        ):
            mmapds.open(path)[0]
        ran = index("--verify", path)
        assert ran.returncode == 1
        assert all(line.startswith(f"{path}.mmx: DAMAGED: ") for line in ran.stderr.splitlines())
        assert "from a newer mmapds" in ran.stderr
        if parameters:
            ran = index("--force", path)
            assert ran.returncode == 2
            assert ran.stderr.startswith(f"--prefix = {parameters['prefix']!r}, expected one of 'u32le'")
        assert index("--force", "--prefix", "u32le", path).returncode == 0
        assert index("--verify", path).returncode == 0


def test_sources_of_two_formats_open_together_without_one_index(write, tmp_path, monkeypatch, index):
    monkeypatch.chdir(tmp_path)
    write([{"n": 1}], "a.jsonl")
    np.save("n.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    message = "sources: expected one format in one index, found n.npy (npy), a.jsonl (jsonl); build an index of each"
    assert index("n.npy", "a.jsonl", "-o", "mix.mmx").stderr == f"{message}\n"
    check(message)
    assert index("n.npy", "a.jsonl").returncode == 0
    assert list(mmapds.open(["n.npy", "a.jsonl"], decode="bytes")) == [bytes([0, 1, 2]), bytes([3, 4, 5]), b'{"n": 1}']
    expected = r"expected records for decode = 'json', as in .*, found records for <u1 \(3,\)|expected records for "
    with pytest.raises(mmapds.Error, match=expected):
        mmapds.open(["n.npy", "a.jsonl"])
    told = index("--info", "n.npy").stdout.splitlines()
    assert told[4] == "  format   npy, record_bytes 3, dtype |u1, shape [3], truncated error"


# ---- decoders ----------------------------------------------------------------------------------------------------


def test_decoders_that_do_not_go_with_a_format(write, tmp_path):
    with mmapds.Writer(tmp_path / "a.mma") as writer:
        writer.write({"x": 1})
    mmapds.build(
        [write(archive([("0.txt", b"")]), "a.tar"), write([1], "a.jsonl"), write(npy(np.ones((3, 2))), "a.npy")]
    )
    mmapds.build(write(bytes(20), "x.bin"), format="fixed", dtype="u2")
    numbers, tars = "'bytes', 'torch'", "'files', 'wds', 'pil', 'bytes'"
    texts = "'json', 'text', 'bytes', 'tf_example'"
    for name, chosen, decoders, known in (
        ("a.mma", "arrays", ["json", "wds"], numbers),
        ("a.npy", "npy", ["json", "text", "tf_example", "wds"], numbers),
        ("x.bin", "fixed", ["json", "text", "tf_example", "wds"], numbers),
        ("a.tar", "tar", ["json", "torch"], tars),
        ("a.jsonl", "jsonl", ["files", "torch"], texts),
    ):
        for decode in decoders:
            message = rf"decode = '{decode}', expected {known} or None for .*{name}.*, whose format is '{chosen}'$"
            with pytest.raises(mmapds.FormatError, match=message):
                mmapds.open(tmp_path / name, decode=decode)
        for decode in literal_eval(f"[{known}]"):
            assert len(mmapds.open(tmp_path / name, decode=decode)) > 0
    assert mmapds.open(tmp_path / "x.bin", decode="torch")[0].numel() == 1
    mmapds.build(write(bytes(20), "y.bin"), format="fixed", record_bytes=10)
    with pytest.raises(mmapds.DecodeError, match=r"y.bin: record 1 \(byte 10\): not JSON"):
        mmapds.open(tmp_path / "y.bin", decode="json")[1]


def test_fields_of_different_schemas_are_told_apart_and_converted(write, tmp_path):
    records = {
        "a.mma": "the fields {'x': 'int32'}",
        "b.mma": "the fields {'y': 'str', 'x': 'int32'}",
        "c.jsonl": "JSON",
        "d.mma": "the fields {'x': 'int64'}",
        "e.mma": "the fields {'x': 'int32', 'y': 'str'}",
    }
    for name in ("a.mma", "b.mma", "d.mma", "e.mma"):
        schema = literal_eval(records[name].removeprefix("the fields "))
        with mmapds.Writer(tmp_path / name, schema) as writer:
            writer.write({field: {"x": 1, "y": "a"}[field] for field in schema})
    mmapds.build(write([{"x": 3}], "c.jsonl"))
    fields = mmapds.Fields({"x": "int32"})
    alike = {
        name: convert(tmp_path / name, tmp_path / f"{name}.x.mma", schema={"x": "int32"}, fields=["x"])
        for name in records
    }
    for pair in (
        ("a.mma", "b.mma"),
        ("a.mma", "c.jsonl"),
        ("c.jsonl", "b.mma"),
        ("a.mma", "d.mma"),
        ("b.mma", "e.mma"),
    ):
        paths, (first, second) = [tmp_path / name for name in pair], (records[name] for name in pair)
        with pytest.raises(mmapds.Error) as error:
            mmapds.open(paths, decode=fields)
        check(str(error.value))
        expected = f"expected records of {first}, as in {paths[0]}.mmx, found records of {second}"
        assert str(error.value) == f"{paths[1]}.mmx: {expected}"
        with pytest.raises(mmapds.Error, match=r"^datasets\[1\]: expected decode, "):
            mmapds.concat([mmapds.open(path, decode=fields) for path in paths])
        assert len(mmapds.open([alike[name].path for name in pair], decode=fields)) == 2


def test_paths_stay_right_where_a_pickled_dataset_is_read_elsewhere(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(archive([("0.txt", b"")]), "a.tar")
    ds = mmapds.open("a.tar", build=True)
    data = pickle.dumps(ds)
    assert pickle.loads(data)[0]["__url__"] == ds[0]["__url__"] == "a.tar"
    (tmp_path / "in").mkdir()
    monkeypatch.chdir("in")
    both = mmapds.concat([ds, pickle.loads(data)])
    assert [sample["__url__"] for sample in pickle.loads(pickle.dumps(both))] == [str(tmp_path / "a.tar")] * 2


def test_array_files_are_indexed_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(mma, "_AT_ONCE", 3)  # records in a piece
    for count in (0, 1, 3, 7):
        path = tmp_path / f"{count}.mma"
        with mmapds.Writer(path, {"x": "str", "n": "int64"}, index=False) as writer:
            for n in range(count):
                writer.write({"x": "x" * 20 * n, "n": n - 2})
        mmapds.build(path, columns={"size": "bytes()", "n": "n"})
        ds = mmapds.open(path)
        assert list(ds) == [{"x": "x" * 20 * n, "n": n - 2} for n in range(count)]
        begins = [ds.where(k).offset for k in range(count)]
        assert ds.column("size").tolist()[:-1] == [b - a for a, b in pairwise(begins)]
        assert ds.column("n").tolist() == [n - 2 for n in range(count)]


# ---- damage ------------------------------------------------------------------------------------------------------

KINDS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"]


def read(path, **options):
    """The records of a source that is indexed anew; None for one that is refused by its name."""
    try:
        mmapds.build(path, force=True, **options)
        return list(mmapds.open(path, decode="bytes"))
    except mmapds.Error as error:
        return None if str(error).startswith(path) else str(error)


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_cut_anywhere_gives_whole_records_or_an_error(tmp_path, kind):
    path, drops = write_all(tmp_path, 3, 9)[kind], kind not in ("jsonl", "arrays")
    data, ds = Path(path).read_bytes(), mmapds.open(path, decode="bytes")
    wanted, behind = list(ds), 4 * (kind == "tfrecord")
    ends = [0, *(ds.where(k).offset + ds.where(k).size + behind for k in range(3))]
    near = {end + more for end in ends for more in (-13, -12, -8, -4, -1, 0, 1, 4, 8, 11, 12, 13)}
    refused = 0
    for cut in sorted({*range(0, len(data), 1 + len(data) // 25), *near} & {*range(len(data))}):
        if kind == "tar" and (cut % 512 == 0 or cut > ends[-1]):
            continue  # there, tarfile too sees the end of an archive
        Path(path).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends[1:])
        found = read(path, **({"truncated": "error"} if drops else {}))
        refused += found is None
        assert found is None or (found == wanted[:whole] and cut - ends[whole] <= (kind == "jsonl")), cut
        if drops:
            found = read(path, truncated="drop")
            assert (
                found == wanted[:whole]
                or (kind == "tar" and found == wanted[: max(whole - 1, 0)])
                or (kind == "npy" and cut < 128 and found is None)
            ), cut
    assert refused > 5


@pytest.mark.filterwarnings("ignore:.*behind the end of the archive")
@pytest.mark.parametrize("kind", KINDS)
def test_a_source_with_a_changed_bit_gives_records_or_an_error(tmp_path, kind):
    path = write_all(tmp_path, 3, 9)[kind]
    data = Path(path).read_bytes()
    for at in range(0, len(data), 1 + len(data) // 25):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        Path(path).write_bytes(changed)
        found = read(path)
        assert found is None or isinstance(found, list), found
        if found is not None and kind == "tfrecord":  # which has checksums of all
            with pytest.raises(mmapds.FormatError, match="CRC of the data"):
                verify(Index(f"{path}.mmx"))


# ---- a new one: a subclass of `Format`, and an entry in the registry ---------------------------------------------


class Semicolons(Format):
    """Records of text, each of which ends in a semicolon."""

    name = "semicolons"
    suffixes = (".semi",)

    def decoder(self, parameters):
        return "text"

    def scan(self, sources, parameters, measuring, *, workers):
        for number, source in enumerate(sources):
            text = Path(source.path).read_bytes()
            ends = [at + 1 for at, byte in enumerate(text) if byte == ord(";")]
            starts = [0, *ends][: len(ends)]
            sizes = array("Q", (end - start for start, end in zip(starts, ends, strict=True)))
            end = End(len(ends), ends[-1] if ends else 0)
            columns = measuring.sizes(memoryview(sizes))
            yield Piece(number, memoryview(array("Q", starts)), columns, 0, source.size, end)


def test_a_new_format_needs_one_class_and_one_entry(write, monkeypatch, index):
    with pytest.raises(TypeError, match="abstract method"):
        type("Empty", (Format,), {"name": "empty"})()
    records = ["one;", "two;", ";", "three;"]
    path, other = write("".join(records).encode(), "x.semi"), write(b"five;", "x.bin")
    mmapds.build(path, format=Semicolons())
    assert Index(path + ".mmx").parameters == {}
    assert "VERSION: expected one of the formats" in index("--verify", path).stderr
    monkeypatch.setitem(formats.FORMATS, Semicolons.name, Semicolons())
    mmapds.build(other, format="semicolons", length="bytes()")
    assert mmapds.open(other).lengths.tolist() == [5]
    mmapds.build(write(b"", "y.semi"))
    ds = mmapds.open([path, other, path.replace("x.semi", "y.semi")])
    assert list(ds) == [*records, "five;"]
    assert ds.take([3, 0]) == ["three;", "one;"]
    assert list(mmapds.open(path, decode="bytes")) == [record.encode() for record in records]
    for refused, message in (
        (lambda: ds.find("one"), "expected records with keys"),
        (lambda: formats.by_name("semicolons").key(b"one;"), "expected records with keys, found format 'semicolons'"),
        (lambda: mmapds.build(path, prefix="u32le"), "prefix = 'u32le', expected no options for format 'semicolons'"),
        (lambda: mmapds.open(path, decode="files"), "'files', expected 'json', 'text', 'bytes', 'tf_example' or"),
        (lambda: mmapds.build(path, length="n"), r"expected bytes\(\) for records that are not JSON, found 'n'"),
    ):
        with pytest.raises((mmapds.FormatError, mmapds.ColumnError), match=message):
            refused()
