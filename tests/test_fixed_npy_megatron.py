"""Records of one size, .npy files and Megatron's token files: arrays that share memory with their file."""

import os
import shutil
import struct
from contextlib import nullcontext

import numpy as np
import pytest

import mmapds
from mmapds.storage.index_file import Index
from tests.support.files import DATA, same_time
from tests.support.index_file import rewrite, verify
from tests.support.samples import CODES, npy, write_documents, write_pair

# ---- records of one size -----------------------------------------------------------------------------------------


def test_records_of_one_size_have_no_bounds_in_their_index(write, index):
    path = write(b"".join(b"%10d" % number for number in range(25)), "tokens.bin")
    assert index(path, "--format", "fixed", "--record-bytes", "10").returncode == 0
    for decode, wanted in (None, lambda n: b"%10d" % n), ("text", lambda n: f"{n:10}"), ("json", int):
        assert list(mmapds.open(path, decode=decode)) == list(map(wanted, range(25)))
    assert os.path.getsize(path + ".mmx") < 1000
    assert "25 records, 250 bytes, 10.0 bytes a record (10 to 10); verified" in index("--verify", path).stdout
    write(bytes(500), "tokens.bin")
    assert "run: python -m mmapds.index" in index(path, "--verify").stderr
    for options, records in ([], 50), (["--record-bytes", "20"], 25):  # an index remembers how its source is framed
        assert index(path, *options).returncode == 0
        assert len(mmapds.open(path)) == records


@pytest.mark.parametrize("header", [1024, 3])
def test_a_header_comes_before_the_first_record(write, tmp_path, index, header):
    """Also one that puts numbers at odd places. An index remembers it."""
    tokens = np.arange(1000, dtype=np.uint16)
    paths = [write(bytes(header) + part.tobytes(), f"{len(part)}.bin") for part in (tokens[:600], tokens[600:])]
    options = ["--format", "fixed", "--dtype", "uint16", "--shape", "200", "--header", header]
    assert index(*paths, *options, "--column", "size=bytes()").returncode == 0
    merged = mmapds.open(mmapds.merge(paths, out=tmp_path / "all.mmx"))
    for decode in (None, "torch"):
        assert np.concatenate([*map(np.asarray, mmapds.open(paths, decode=decode))]).tolist() == tokens.tolist()
    assert np.stack(merged.take([4, 3])).tolist() == [tokens[800:].tolist(), tokens[600:800].tolist()]
    assert (merged.where(3).offset, merged.column("size").tolist()) == (header, [400] * 5)
    assert index("--verify", *paths).returncode == 0
    write(bytes(header) + tokens[:999].tobytes(), "600.bin")
    cut = rf"600.bin: record 4 \(byte {header + 1600}\): expected 400 bytes, found 398; leave it out with truncated="
    with pytest.raises(mmapds.FormatError, match=cut):
        mmapds.build(paths[0])
    mmapds.build(paths[0], truncated="drop")
    assert mmapds.open(paths[0])[3].tolist() == tokens[600:800].tolist()
    rewrite(f"{paths[0]}.mmx", metadata=lambda old: old | {"parameters": old["parameters"] | {"header": 4}})
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: .*first = {header}, expected 4 in format 'fixed'"):
        _ = mmapds.open(paths[0])[0]


def test_a_header_may_be_all_of_a_file_and_no_more(write):
    path, options = write(bytes(20), "x.bin"), {"format": "fixed", "record_bytes": 4}
    for truncated in ("error", "drop"):
        with pytest.raises(mmapds.FormatError, match=r"x\.bin: expected a header of 21 bytes, found 20 in all"):
            mmapds.build(path, header=21, truncated=truncated, **options)
    for header in (20, 4, 0):
        with pytest.warns(UserWarning, match="0 records") if header == 20 else nullcontext():
            mmapds.build(path, header=header, **options)
        assert len(mmapds.open(path)) == (20 - header) // 4


ARRAYS = [("uint16", ()), ("<f4", (4,)), (">i8", (2, 3)), ("S3", ()), ("bool", (4,)), ("complex64", (1, 2, 3))]


@pytest.mark.parametrize(("dtype", "shape"), ARRAYS)
def test_arrays_of_one_shape_share_memory_with_the_file(write, dtype, shape):
    array = np.random.default_rng(0).integers(0, 2, (50, *shape)).astype(dtype)
    path = write(array.tobytes(), "x.bin")
    mmapds.build(path, format="fixed", dtype=dtype, shape=shape)
    for each in (path, write(npy(array), "x.npy")):
        records = list(mmapds.open(each, build=True))
        os.unlink(each)  # a record keeps its file alive
        assert len(records) == 50
        for i, record in enumerate(records):
            assert (record.dtype, record.shape) == (array.dtype, shape)
            assert (record == array[i]).all()
            assert (record.flags.writeable, record.flags.owndata) == (False, False)


def test_shards_in_one_index_must_have_one_type_and_shape(write, tmp_path):
    arrays = np.ones((3, 4), "<f4"), np.zeros((2, 4), "<f4"), np.zeros((2, 5), "<f4"), np.ones((2, 4))
    a, b, c, d = (write(npy(array), f"{name}.npy") for name, array in zip("abcd", arrays, strict=True))
    ds = mmapds.open(mmapds.build([a, b], out=tmp_path / "all.mmx"))
    assert (np.stack(list(ds)) == np.concatenate(arrays[:2])).all()
    pairs = [write_pair(tmp_path / dtype, [[1]], dtype) for dtype in ("uint16", "int32")]
    for given, message in (
        ([a, c], r"c.npy: shape: expected \(4,\), as in .*a.npy, found \(5,\)"),
        ([a, d], r"d.npy: dtype: expected float32, as in .*a.npy, found float64"),
        (pairs, r"int32.bin: dtype: expected <u2, as in .*uint16.bin, found <i4"),
    ):
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(given, out=tmp_path / "b.mmx")


def headed(header):
    text = header.ljust(118).encode()
    return b"\x93NUMPY\x01\0" + len(text).to_bytes(2, "little") + text + bytes(16)


ONE = "{'descr': '<f4', 'fortran_order': False, 'shape': %s}"
REFUSED = [
    (npy(np.float64(1)), "expected an array in C order, of one axis or more, found one number"),
    (npy(np.asfortranarray(np.ones((3, 4)))), "expected an array in C order, of one axis .*, found Fortran order"),
    (npy(np.array([{}, 1], object)), r"dtype = dtype\('O'\), expected plain numbers"),
    (headed("{'descr': '<f4' \n"), "not an .npy file"),
    (headed("").replace(b"\x01\0", b"\x03\0", 1), "not an .npy file: expected version 1.0 or 2.0, found 3.0"),
    (headed(ONE % "(5, 0)"), r"shape = \(0,\), expected .* records of 1 byte or more, found 1 axes and 0 bytes"),
]


def test_npy_files_of_no_records_are_refused(write):
    for data, message in REFUSED:
        with pytest.raises(mmapds.FormatError, match=rf"x\.npy: {message}"):
            mmapds.build(write(data, "x.npy"))


def test_a_file_of_more_or_fewer_records_than_it_says_is_refused_or_those_that_are_missing_are_counted(write):
    said, size = "expected {} records, as its header says, found 4$", {"format": "fixed", "record_bytes": 10}
    cut = r"record 2 \(byte 20\): expected 10 bytes, found 5; leave it out with truncated='drop'$"
    for data, options, message, counted in (
        (headed(ONE % "(1,)"), {}, said.format(1), None),
        (headed(ONE % "(9,)"), {}, said.format(9), (4, 5)),
        (bytes(25), size, cut, (2, 1)),
    ):
        path = write(data, "x.npy")
        for truncated in ("error", "drop") if counted is None else ("error",):
            with pytest.raises(mmapds.FormatError, match=message):
                mmapds.build(path, truncated=truncated, force=True, **options)
        if counted:
            mmapds.build(path, truncated="drop", force=True, **options)
            found = Index(f"{path}.mmx").sources[0]
            assert (found.records, found.skipped) == counted


def test_records_of_one_size_take_no_memory_to_index_however_many_there_are(tmp_path):
    with open(tmp_path / "sparse.bin", "wb") as file:
        file.truncate(2**43)
    index = Index(str(mmapds.build(tmp_path / "sparse.bin", format="fixed", record_bytes=1)))
    verify(index)
    assert index.records == 2**43


# ---- Megatron's pairs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["megatron", "fairseq", "legacy", "legacy fairseq"])
def test_megatron_pairs_of_every_layout_and_type(tmp_path, kind):
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 100, size).tolist() for size in [0, 1, 0, *rng.integers(0, 50, 20).tolist()]]
    for dtype, wanted in (*((dtype, sequences) for dtype in CODES), ("uint16", []), ("uint16", [[]] * 3)):
        path = write_pair(tmp_path / dtype, wanted, dtype, kind)  # the last .bin is empty, so there is nothing to map
        mmapds.build(path, length="bytes()", force=True)
        for io in ("mmap", "pread"):
            ds = mmapds.open(path, io=io)
            assert [record.tolist() for record in [*ds, *ds.take(range(len(ds)))]] == wanted * 2
            assert all(record.dtype == dtype and not (record.flags.writeable or record.flags.owndata) for record in ds)
        assert (ds.lengths // np.dtype(dtype).itemsize).tolist() == list(map(len, wanted))
        verify(Index(f"{path}.mmx"))


def test_a_pair_that_megatron_core_wrote(tmp_path):
    """tests/data/megatron_core.* are of megatron-core 0.16.1's IndexedDatasetBuilder."""
    for suffix in (".bin", ".idx"):
        shutil.copy(DATA / f"megatron_core{suffix}", tmp_path)
    ds = mmapds.open(tmp_path / "megatron_core.bin", build=True)
    rng = np.random.default_rng(0)
    wanted = [[]]
    for document in range(1, 4):
        tokens = rng.integers(0, 60000, 10 * document).tolist()
        wanted += [tokens[: 3 * document], [], tokens[3 * document :]]
    assert [record.tolist() for record in ds] == [*wanted, [1, 2, 65535]]
    assert ds[0].dtype == np.uint16


def test_the_idx_beside_a_bin_decides(tmp_path, write):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4]])
    mmapds.build(path)
    with same_time(path):
        write_pair(tmp_path / "x", [[1], [2, 3, 4]])
    mmapds.build(path)
    assert [record.tolist() for record in mmapds.open(path)] == [[1], [2, 3, 4]]
    path = write([1, 2], "y.bin")
    write(b"something else", "y.idx")  # so this is not a pair of Megatron's
    assert list(mmapds.open(path, build=True)) == [1, 2]
    os.unlink(tmp_path / "y.idx")
    os.mkfifo(tmp_path / "y.idx")  # which would be waited for
    assert list(mmapds.open(path, build=True)) == [1, 2]
    with pytest.raises(mmapds.SourceError, match=r"y\.idx: expected a regular file, found a FIFO"):
        mmapds.build(path, format="megatron")


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_documents_of_datatrove(tmp_path, dtype):
    documents = [[], [1, 2, 3], [], [65535], list(range(100)), []]
    for wanted in (documents, [], [[], []]):
        path = write_documents(tmp_path / "x.ds", wanted, dtype)
        mmapds.build(path, length="items()", columns={"size": "bytes()"}, force=True, dtype=dtype)
        ds = mmapds.open(path)
        assert [each.tolist() for each in ds] == wanted
        assert ds.lengths.tolist() == [*map(len, wanted)]
        assert [*ds.column("size")] == [len(each) * np.dtype(dtype).itemsize for each in wanted]
        verify(Index(f"{path}.mmx"))
    pair = write_pair(tmp_path / "x", documents)
    mmapds.build(pair, length="items()")
    assert mmapds.open(pair).lengths.tolist() == [*map(len, documents)]


@pytest.mark.parametrize(
    ("tokens", "index", "message"),
    [
        (b"\0" * 6, struct.pack("<Q", 2), "x.ds: expected 4 bytes, as .*x.ds.index says, found 6"),
        (b"\0" * 8, struct.pack("<Q", 2), "x.ds: expected 4 bytes, .*, found 8; give dtype='uint32'"),
        (b"\0" * 2, struct.pack("<Q", 2), r"x.ds: record 0 \(byte 0\): expected 4 bytes, found 2"),
        (b"\0" * 4, struct.pack("<QQQ", 1, 0, 2), "sequence 1: expected 0 to .* tokens from byte 2 on, found -1"),
        (b"\0" * 4, b"12345", "expected whole numbers of 8 bytes, found 5 bytes"),
        (b"\0" * 4, b"", "x.ds: expected 0 bytes, as .*, found 4"),
        (b"\0" * 4, struct.pack("<QQ", 2**63, 2), "sequence 0: expected 0 to .* found -"),
    ],
)
def test_documents_that_do_not_fit(write, tokens, index, message):
    path = write(tokens, "x.ds")
    write(index, "x.ds.index")
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(path)


@pytest.mark.parametrize(("name", "options"), [("a.jsonl", {}), ("a.bin", {"format": "fixed", "record_bytes": 1})])
def test_tokens_are_counted_in_formats_that_have_them(write, name, options):
    with pytest.raises(mmapds.ColumnError, match="column 'length': expected another expression for records"):
        mmapds.build(write([12], name), length="items()", **options)


TOKENS = "expected 0 to 1099511627776 tokens"
LEGACY = b"TNTIDX\0\0" + struct.pack("<QQ", 1, 8)
DAMAGE = [
    (9, struct.pack("<Q", 2), "expected version 1, .*, found version 2, type 8 of 2 bytes, and 3 axes for 3"),
    (17, b"\x63", "expected version 1, a token type of 1 to 10, .*, found version 1, type 99"),
    (18, struct.pack("<Q", 2**64 - 1), f"expected .* bytes or more for {2**64 - 1} sequences, found "),
    (18, struct.pack("<Q", 2), f"sequence 0: {TOKENS} from byte 0 on, found"),
    (34, struct.pack("<i", -1), f"sequence 0: {TOKENS} from byte 0 on, found -1"),
    (34, struct.pack("<i", 3), f"sequence 1: {TOKENS} from byte 6 on, found 3 from byte 4 on"),
    (54, struct.pack("<q", -5), f"sequence 1: {TOKENS} from byte 4 on, found 3 from byte -5 on"),
    (0, b"GARBAGE!!", "expected an .idx file of Megatron, found 102 bytes of another kind"),
    (0, LEGACY + struct.pack("<QQQ", 2, 1, 2) + bytes(80), "one axis a sequence, found .* 2 axes for 1"),
    (0, LEGACY + struct.pack("<QQQ", 3, 1, 1) + bytes(80), "a token type of 1 to 10, .* type 8 of 3 bytes"),
]


def test_an_idx_that_is_damaged_or_cut(tmp_path):
    for kind in ("legacy", "megatron"):
        path = write_pair(tmp_path / "x", [[1, 2], [3, 4, 5], [6]], kind=kind)
        good = (tmp_path / "x.idx").read_bytes()
        cuts = [(size, None, "expected ") for size in range(0, len(good) - 32, 3)]
        for at, data, message in [*cuts, *(DAMAGE if kind == "megatron" else [])]:
            (tmp_path / "x.idx").write_bytes(good[:at] if data is None else good[:at] + data + good[at + len(data) :])
            with pytest.raises(mmapds.FormatError, match=f"x.idx: .*{message}"):
                mmapds.build(path, format="megatron", truncated="drop")


def test_pairs_that_do_not_fit(tmp_path, index):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4, 5], [6]])
    cut = r"record 1 \(byte 4\): expected 6 bytes, found 5; leave it out, and all after it, with truncated='drop'"
    for given, size, message in (
        (tmp_path / "x.idx", 12, r"x.idx: expected a .bin file, found its .idx"),
        (path, 16, r"x.bin: expected 12 bytes, as .*x.idx says, found 16$"),
        (path, 9, rf"x.bin: {cut}"),
    ):
        os.truncate(path, size)
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(given)
    mmapds.build(path, truncated="drop")
    assert "; 2 records left out" in index("--verify", path).stdout


@pytest.mark.parametrize("idx", [None, 62, ["a", "b"]])
def test_an_index_whose_fingerprints_are_damaged_is_not_merged(tmp_path, idx):
    parts = [str(mmapds.build(write_pair(tmp_path / f"{name}.bin", [[1, 2]]))) for name in "ab"]
    rewrite(parts[1], metadata=lambda old: old | {"parameters": old["parameters"] | {"idx": idx}})
    with pytest.raises(mmapds.FormatError, match=r"b\.bin\.mmx: DAMAGED: idx = .*, expected one for each of 1 source"):
        mmapds.merge(parts, out=tmp_path / "all.mmx")
