"""What all formats share: their contract, damage to each, how they are chosen and refused, and the decoders of each.

A new format passes the contract once tests/support/formats.py has a source of it.
"""

import pickle
from ast import literal_eval
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import mmapds
from mmapds import formats
from mmapds.convert import convert
from mmapds.index.build import Request
from mmapds.index.each import build_each
from mmapds.storage.index_file import Index
from tests.support.formats import KINDS, built, write_source
from tests.support.index_file import rewrite, verify
from tests.support.messages import check

pytestmark = pytest.mark.filterwarnings("ignore:.*after the end of the archive")


def plain(sample):
    """A sample in a form that == compares."""
    if isinstance(sample, dict):
        return {name: plain(value) for name, value in sample.items()}
    return (sample.dtype, sample.tolist()) if isinstance(sample, np.ndarray) else sample


# ---- the contract ------------------------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def test_every_format_is_held_to_the_contract():
    assert KINDS.keys() == formats.FORMATS.keys()


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_samples_come_back_from_where_they_lie(tmp_path, kind, io):
    path, samples = write_source(tmp_path, kind, 20, 90)
    mmapds.build(path, columns={"size": "bytes()"}, **KINDS[kind].options)
    ds, wanted, content = mmapds.open(path, io=io), list(map(plain, samples)), Path(path).read_bytes()
    if kind != "tar":
        with pytest.raises(mmapds.FormatError, match=rf"records with keys \(format 'tar'\), found format '{kind}'"):
            ds.find("s0001")
    assert list(map(plain, ds)) == [plain(ds[k]) for k in range(20)] == wanted
    assert list(map(plain, ds.take([3, -1, 0, 3]))) == [wanted[k] for k in (3, -1, 0, 3)]
    assert list(map(plain, pickle.loads(pickle.dumps(ds[::-3])))) == wanted[::-3]
    places = [ds.where(k) for k in range(20)]
    assert all(before.offset + before.size <= place.offset for before, place in pairwise(places))
    assert {place.source for place in places} == {path}
    lying = [content[place.offset :][: place.size] for place in places]
    raw = [ds.raw(k) for k in range(20)]
    assert raw == list(mmapds.open(path, io=io, decode="bytes"))
    assert lying == raw or KINDS[kind].is_decoded
    assert ds.column("size").tolist() == [place.size for place in places]
    verify(Index(f"{path}.mmx"))


def test_a_source_without_records_is_an_empty_dataset_and_so_is_a_file_without_bytes(tmp_path, kind):
    path, _ = write_source(tmp_path, kind, 0)
    for content in (Path(path).read_bytes(), b""):
        Path(path).write_bytes(content)
        if kind in ("npy", "arrays", "parquet", "mds") and not content:
            with pytest.raises(mmapds.FormatError, match=rf"^{path}: "):
                mmapds.build(path, force=True)
            continue
        ds = mmapds.open(mmapds.build(path, force=True, **KINDS[kind].options))
        assert (len(ds), list(ds), list(ds.take([]))) == (0, [], [])
        verify(Index(f"{path}.mmx"))


def test_an_index_is_the_same_however_small_the_pieces_of_its_scan_are(tmp_path, kind, monkeypatch):
    chosen, options = KINDS[kind], {**KINDS[kind].options, "columns": {"size": "bytes()"}}
    for count in (0, 1, 2, 3, 7):
        path, _ = write_source(tmp_path, kind, count, 90)
        whole = Path(mmapds.build(path, force=True, **options)).read_bytes()
        for room in (1, 3, 50):
            with monkeypatch.context() as patch:
                patch.setattr(chosen.place, chosen.room, room)
                assert Path(mmapds.build(path, force=True, **options)).read_bytes() == whole, (count, room)


def test_a_source_that_grew_is_gone_on_with_or_scanned_whole(tmp_path, kind):
    path, _ = write_source(tmp_path, kind, 12, 90)
    mmapds.build(path, **KINDS[kind].options)
    path, samples = write_source(tmp_path, kind, 20, 90)
    (done,) = build_each([path], Request(grown=True))
    assert ("appended" in done.reused) == KINDS[kind].grows
    assert list(map(plain, mmapds.open(path))) == list(map(plain, samples))
    assert Path(f"{path}.mmx").read_bytes() == built([path], tmp_path / "direct.mmx", **KINDS[kind].options)


def test_records_become_an_array_file(tmp_path, kind):
    path, samples = write_source(tmp_path, kind, 20, 90)
    index = mmapds.build(path, **KINDS[kind].options)
    done = convert(index, tmp_path / "converted.mma", **({"decode": "files"} if kind == "tar" else {}))
    wanted = [plain(sample if isinstance(sample, dict) else {"data": sample}) for sample in samples]
    assert list(map(plain, mmapds.open(done.path))) == wanted


# ---- damage ------------------------------------------------------------------------------------------------------

DAMAGE = {
    "cut": lambda data, at: data[:at],
    "flip": lambda data, at: data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :],
    "swap": lambda data, at: data[:at] + data[at + 8 : at + 16] + data[at : at + 8] + data[at + 16 :],
}


@contextmanager
def errors_name(path):
    try:
        yield
    except mmapds.Error as error:
        assert str(error).startswith(path), error  # noqa: PT017 - there may be none


def read(path, **options):
    """The records of a source that is indexed anew; None for one that is refused by its name."""
    found = None
    with errors_name(path):
        mmapds.build(path, force=True, **options)
        found = list(mmapds.open(path, decode="bytes"))
    for position in range(len(found or [])):
        with errors_name(path):
            mmapds.open(path)[position]
    return found


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_source_gives_whole_records_or_an_error_that_names_it(tmp_path, kind, damage):
    path, _ = write_source(tmp_path, kind, 3, 9)
    index = mmapds.build(path, columns={"size": "bytes()"}, **KINDS[kind].options)
    ds = mmapds.open(index, decode="bytes")
    drops, is_cut = KINDS[kind].drops, damage == "cut"
    data, wanted = Path(path).read_bytes(), list(ds)
    ends = [ds.where(k).offset + ds.where(k).size + KINDS[kind].behind for k in range(3)]
    near = {end + more for end in [0, *ends] for more in (-13, -12, -8, -4, -1, 0, 1, 4, 8, 11, 12, 13)}
    refused = 0
    for at in sorted({*range(0, len(data), 1 + len(data) // 25), *near} & {*range(len(data))}):
        footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
        if kind == "parquet" and not is_cut and at + 16 > footer:
            continue  # it has no checksum, and pyarrow ends the process for some bytes of it
        damaged = DAMAGE[damage](data, at)
        if damaged == data or (is_cut and kind == "tar" and (at % 512 == 0 or at > ends[-1])):
            continue  # there, tarfile too sees the end of an archive
        Path(path).write_bytes(damaged)
        whole = sum(end < at + is_cut for end in ends)  # records that the damage does not touch
        found = read(path, **({"truncated": "error"} if drops else {}))
        refused += found is None
        if kind == "parquet":
            assert found is None or found == wanted, at
        elif is_cut:
            assert found is None or (found == wanted[:whole] and at - [0, *ends][whole] <= (kind == "jsonl")), at
        elif found is not None and not (kind == "arrays" and whole == 3):  # where a file says how its records lie
            sure = max(whole - (kind == "tar"), 0)  # as a header without its key may join the sample before
            assert found[:sure] == wanted[:sure], at
        if kind == "tfrecord" and found is not None and not is_cut:  # which has checksums of all
            with pytest.raises(mmapds.FormatError, match="CRC of the data"):
                verify(Index(f"{path}.mmx"))
        if is_cut and drops:
            found = read(path, truncated="drop")
            unknown = kind == "tar" and found == wanted[: max(whole - 1, 0)]  # whose header was cut
            headless = kind in ("npy", "mds") and at < ends[0] - len(wanted[0]) and found is None
            assert found == wanted[:whole] or unknown or headless, at
    assert refused > 5 or not is_cut


# ---- choosing a format, and its options --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "npy", "tfrecord", "tar", "arrays"])
def test_files_are_known_by_their_first_bytes_too(tmp_path, kind):
    path = Path(write_source(tmp_path, kind, 3, 9)[0]).rename(tmp_path / "file")
    assert len(mmapds.open(path, build=True)) == 3
    assert Index(f"{path}.mmx").format == kind


FIXED, PREFIXED = {"format": "fixed"}, {"format": "prefixed"}
SIZE, NAME, SHAPE = "expected an integer of 1 to 2", "expected a name that NumPy knows", "expected sizes of 1 or more"
BYTES = r"column 'length': expected bytes\(\) for records that are not JSON, found "
ODD = (-1, True, 2**63, "4", 1.0)
REFUSED = [
    ({}, "x.bin: format not recognised by its name or its first bytes; choose one with format="),
    ({"format": "no"}, "format = 'no', expected one of 'arrays', 'datatrove', 'fixed', 'jsonl', 'mds', 'megatron', "),
    ({"format": "jsonl", "record_bytes": 2}, "record_bytes = 2, expected no options for format 'jsonl'"),
    ({"format": "tfrecord", "prefix": "u32le"}, "options among truncated for format 'tfrecord'"),
    ({"format": "megatron"}, "x.idx: no such file or directory"),
    (FIXED, r"record_bytes = None, expected an integer of 1 to 2\*\*63 - 1, or dtype and shape$"),
    ({**FIXED, "record_bytes": True}, f"record_bytes = True, {SIZE}"),
    ({**FIXED, "record_bytes": 4, "shape": (3,)}, f"record_bytes = 4, {SIZE}.*, or dtype and shape"),
    ({**FIXED, "dtype": "no", "shape": 3}, f"dtype = 'no', {NAME}"),
    ({**FIXED, "dtype": "O"}, "dtype = 'O', expected plain numbers"),
    ({**FIXED, "dtype": "i4", "shape": "2,x"}, f"shape = '2,x', {SHAPE}"),
    ({**FIXED, "dtype": "u1", "shape": [2**40, 2**40]}, f"records of 1 byte or more, found 2 axes and {2**80} bytes"),
    ({**FIXED, "dtype": "u1", "shape": [1] * 33}, "expected up to 32 axes .* found 33 axes and 1 bytes"),
    ({**FIXED, "dtype": "u1", "shape": 2, "record_bytes": 7}, r"7, expected 2, the bytes of .u1 of shape \(2,\)"),
    *(({**FIXED, "record_bytes": 4, "header": odd}, f"header = {odd!r}, expected an integer of 0 to") for odd in ODD),
    ({**FIXED, "record_bytes": 2, "truncated": "x"}, "truncated = 'x', expected 'error' or 'drop'"),
    ({**FIXED, "record_bytes": 2, "prefix": "x"}, "prefix = 'x', expected options among record_bytes, dtype"),
    ({**FIXED, "record_bytes": 2, "validate": True}, "^validate = True, expected False for records of a binary"),
    ({**FIXED, "record_bytes": 2, "bad": "skip"}, "^bad = 'skip', expected 'error' for records of a binary format$"),
    ({**PREFIXED, "length": "chars(text)"}, rf"{BYTES}'chars\(text\)'"),
    ({**PREFIXED, "prefix": "u16"}, "'u16', expected one of 'u32le', 'u32be', 'u64le', 'u64be', 'varint'"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_options_that_are_refused(write, options, message):
    with pytest.raises((mmapds.FormatError, mmapds.ColumnError, mmapds.SourceError), match=message):
        mmapds.build(write(bytes(20), "x.bin"), **options)


def test_an_index_keeps_its_options_but_truncated_only_for_the_same_source(write, index):
    path, whole = write(b"\3abc\1d\5ef", "p.bin"), write(bytes(15), "f.bin")
    mmapds.build(path, format="prefixed", prefix="varint", truncated="drop")
    mmapds.build(whole, format="fixed", dtype="u2", shape=3, truncated="drop")
    mmapds.build(path)
    assert list(mmapds.open(path, build=True)) == [b"abc", b"d"]
    for force in (True, False):
        with pytest.raises(mmapds.FormatError, match="leave it out with truncated='drop'"):
            mmapds.build(path, force=force)
        write(b"\3abc\1d\1e\5ef", "p.bin")
    assert "; 1 record left out," in index(path, "--truncated", "drop").stdout
    assert list(mmapds.open(path)) == [b"abc", b"d", b"e"]
    mmapds.build(whole, truncated="drop", force=True)
    assert [record.shape for record in mmapds.open(whole)] == [(3,), (3,)]


def test_sources_of_two_formats_open_together_without_one_index(write, tmp_path, monkeypatch, index):
    monkeypatch.chdir(tmp_path)
    write([{"n": 1}], "a.jsonl")
    np.save("n.npy", np.arange(6, dtype=np.uint8).reshape(2, 3))
    message = "sources: expected one format in one index, found n.npy (npy), a.jsonl (jsonl); build an index of each"
    assert index("n.npy", "a.jsonl", "-o", "mix.mmx").stderr == f"{message}\n"
    check(message)
    assert index("n.npy", "a.jsonl").returncode == 0
    assert list(mmapds.open(["n.npy", "a.jsonl"], decode="bytes")) == [bytes([0, 1, 2]), bytes([3, 4, 5]), b'{"n": 1}']
    with pytest.raises(
        mmapds.Error, match=r"expected records for decode = array\(.*\), as in n.npy.mmx, found .* 'json'"
    ):
        mmapds.open(["n.npy", "a.jsonl"])


def test_a_format_of_a_newer_version_is_named(write):
    path = write([1])
    mmapds.build(path)
    rewrite(f"{path}.mmx", metadata=lambda old: old | {"format": "later"})
    with pytest.raises(mmapds.FormatError, match=r"VERSION: expected one of the formats .*, found 'later'; upgrade"):
        mmapds.open(path)


# ---- decoders ----------------------------------------------------------------------------------------------------

NUMBERS, TEXTS = "'bytes', 'torch'", "'json', 'text', 'bytes', 'tf_example'"
DECODERS = {
    "arrays": (NUMBERS, ["json", "wds"]),
    "parquet": (NUMBERS, ["json", "wds"]),
    "npy": (NUMBERS, ["json", "text"]),
    "fixed": (NUMBERS, ["tf_example", "wds"]),
    "datatrove": (NUMBERS, ["wds"]),
    "mds": ("'pil', 'bytes', 'torch'", ["json", "files"]),
    "megatron": (NUMBERS, ["json"]),
    "tar": ("'files', 'wds', 'pil', 'bytes'", ["json", "torch"]),
    "jsonl": (TEXTS, ["files", "torch"]),
    "prefixed": (TEXTS, ["pil", "torch"]),
    "tfrecord": (TEXTS, ["wds", "torch"]),
}


def test_decoders_that_do_not_go_with_a_format(tmp_path, kind):
    path, _ = write_source(tmp_path, kind, 3, 9)
    mmapds.build(path, **KINDS[kind].options)
    known, others = DECODERS[kind]
    for decode in others:
        message = rf"decode = '{decode}', expected {known} or None for {path}.mmx, whose format is '{kind}'$"
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.open(path, decode=decode)
    for decode in literal_eval(f"[{known}]"):
        assert len(mmapds.open(path, decode=decode)) == 3


@pytest.mark.parametrize("schema", [{"x": "int64"}, {"y": "str", "x": "int32"}])
def test_fields_of_different_schemas_are_told_apart(tmp_path, schema):
    paths, fields = [tmp_path / "a.mma", tmp_path / "b.mma"], mmapds.Fields({"x": "int32"})
    for path, each in zip(paths, ({"x": "int32"}, schema), strict=True):
        with mmapds.Writer(path, each) as writer:
            writer.write({name: {"x": 2, "y": "a"}[name] for name in each})
    with pytest.raises(mmapds.Error) as error:
        mmapds.open(paths, decode=fields)
    check(str(error.value))
    other = f"as in {paths[0]}.mmx, found records of the fields {schema}; open each on its own"
    assert str(error.value) == f"{paths[1]}.mmx: expected records of the fields {{'x': 'int32'}}, {other}"
