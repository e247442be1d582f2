"""Megatron's pairs of token files: every layout read back, and what does not add up is refused."""

import os
import shutil
import struct

import numpy as np
import pytest

import mmapds
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.files import DATA, same_time
from tests.support.index_file import rewrite
from tests.support.pieces import megatron_in_pieces
from tests.support.samples import CODES, write_pair


def some_sequences(count=20, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 100, size).tolist() for size in [0, 1, 0, *rng.integers(0, 50, count).tolist()]]


@pytest.mark.parametrize("kind", ["megatron", "fairseq", "legacy", "legacy fairseq"])
@pytest.mark.parametrize("dtype", CODES)
def test_megatron_pairs(tmp_path, kind, dtype):
    sequences = some_sequences()
    path = write_pair(tmp_path / "x", sequences, dtype, kind)
    mmapds.build(path, length="bytes()")
    ds = mmapds.open(path)
    assert [record.tolist() for record in ds] == sequences
    assert all(record.dtype == dtype and not record.flags.writeable and not record.flags.owndata for record in ds)
    assert (ds.lengths // np.dtype(dtype).itemsize).tolist() == list(map(len, sequences))
    assert command("--verify", path).returncode == 0
    assert Index(path + ".mmx").format == "megatron"


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


def test_megatron_in_many_pieces(tmp_path):
    paths = [write_pair(tmp_path / f"{i}", some_sequences(count, i)) for i, count in enumerate((0, 1, 5, 30))]
    mmapds.build(paths, out=tmp_path / "all.mmx", format=megatron_in_pieces(4), length="bytes()")
    ds = mmapds.open(tmp_path / "all.mmx")
    wanted = [sequence for i, count in enumerate((0, 1, 5, 30)) for sequence in some_sequences(count, i)]
    assert [record.tolist() for record in ds] == wanted
    other = write_pair(tmp_path / "other", [[1]], "int32")
    with pytest.raises(mmapds.FormatError, match=r"other.bin: dtype: expected <u2, as in .*0.bin, found <i4"):
        mmapds.build([*paths, other], out=tmp_path / "b.mmx")


def test_megatron_without_sequences(tmp_path):
    path = write_pair(tmp_path / "x", [])
    assert len(mmapds.open(path, build=True)) == 0


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_sequences_without_tokens(tmp_path, io):
    """The .bin is empty, so there is nothing to map."""
    path = write_pair(tmp_path / "x", [[], [], []])
    mmapds.build(path)
    ds = mmapds.open(path, io=io)
    assert [record.tolist() for record in ds] == [[], [], []]
    assert [record.tolist() for record in ds.take([2, 0])] == [[], []]
    assert ds.raw(1) == b""


def test_another_idx_means_another_index(tmp_path):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4]])
    mmapds.build(path)
    with same_time(path):
        write_pair(tmp_path / "x", [[1], [2, 3, 4]])
    mmapds.build(path)
    assert [record.tolist() for record in mmapds.open(path)] == [[1], [2, 3, 4]]


def test_a_bin_without_an_idx_of_megatron_is_not_one(write):
    path = write([1, 2], "x.bin")
    write(b"something else", "x.idx")
    mmapds.build(path)
    assert list(mmapds.open(path)) == [1, 2]


def test_a_bin_that_is_cut_short(tmp_path):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4, 5], [6]])
    os.truncate(path, 9)
    with pytest.raises(
        mmapds.FormatError, match=r"x.bin: record 1 \(byte 4\): expected 6 bytes, found 5; leave it out, and all"
    ):
        mmapds.build(path)
    mmapds.build(path, truncated="drop")
    assert [record.tolist() for record in mmapds.open(path)] == [[1, 2]]
    verified = command("--verify", path)
    assert (verified.returncode, "; 2 records left out" in verified.stdout) == (0, True)


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (
            9,
            struct.pack("<Q", 2),
            "expected version 1, .*, found version 2, type 8 of 2 bytes, and 3 axes for 3 sequences",
        ),
        (17, b"\x63", "expected version 1, a token type of 1 to 10, .*, found version 1, type 99"),
        (18, struct.pack("<Q", 2**60), f"expected {26 + 12 * 2**60} bytes or more for {2**60} sequences, found "),
        (18, struct.pack("<Q", 2**64 - 1), f"expected .* bytes or more for {2**64 - 1} sequences, found "),
        (18, struct.pack("<Q", 2), "sequence 0: expected 0 to 1099511627776 tokens from byte 0 on, found"),
        (34, struct.pack("<i", -1), "sequence 0: expected 0 to 1099511627776 tokens from byte 0 on, found -1"),
        (34, struct.pack("<i", 3), "sequence 1: expected 0 to .* from byte 6 on, found 3 from byte 4 on"),
        (46, struct.pack("<q", 4), "sequence 0: expected 0 to .* from byte 0 on, found 2 from byte 4 on"),
        (54, struct.pack("<q", -5), "sequence 1: expected 0 to .* from byte 4 on, found 3 from byte -5 on"),
        (0, b"GARBAGE!!", "expected an .idx file of Megatron, found 102 bytes of another kind"),
    ],
)
def test_an_idx_that_is_damaged(tmp_path, at, data, message):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4, 5], [6]])
    content = bytearray((tmp_path / "x.idx").read_bytes())
    content[at : at + len(data)] = data
    (tmp_path / "x.idx").write_bytes(content)
    with pytest.raises(mmapds.FormatError, match=f"x.idx: {message}"):
        mmapds.build(path, format="megatron", truncated="drop")


@pytest.mark.parametrize("kind", ["megatron", "legacy"])
def test_an_idx_cut_anywhere_is_refused_or_whole(tmp_path, kind):
    path = write_pair(tmp_path / "x", [[1, 2], [3, 4, 5], [6]], kind=kind)
    content = (tmp_path / "x.idx").read_bytes()
    for size in range(len(content) - 32):
        (tmp_path / "x.idx").write_bytes(content[:size])
        with pytest.raises(mmapds.FormatError):
            mmapds.build(path, format="megatron")


def test_other_mistakes_with_pairs(tmp_path):
    path = write_pair(tmp_path / "x", [[1, 2]])
    with pytest.raises(mmapds.FormatError, match=r"x.idx: expected a .bin file, found its .idx"):
        mmapds.build(tmp_path / "x.idx")
    with open(path, "ab") as file:
        file.write(b"more")
    with pytest.raises(mmapds.FormatError, match=r"x.bin: expected 4 bytes, as .*x.idx says, found 8$"):
        mmapds.build(path)
    (tmp_path / "x.idx").write_bytes(b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, 8, 2, 1, 2) + bytes(80))
    with pytest.raises(mmapds.FormatError, match=r"one axis a sequence, found .* and 2 axes for 1 sequences"):
        mmapds.build(path)
    (tmp_path / "x.idx").write_bytes(b"TNTIDX\0\0" + struct.pack("<QQQQQ", 1, 8, 3, 1, 1) + bytes(80))
    with pytest.raises(mmapds.FormatError, match=r"a token type of 1 to 10, .* type 8 of 3 bytes"):
        mmapds.build(path)


def test_an_idx_that_is_not_a_regular_file_is_refused(tmp_path):
    """A FIFO would be waited for."""
    (tmp_path / "a.bin").write_bytes(bytes(8))
    os.mkfifo(tmp_path / "a.idx")
    with pytest.raises(mmapds.Error, match=r"a\.bin"):
        mmapds.build(tmp_path / "a.bin")
    with pytest.raises(mmapds.SourceError, match=r"a\.idx: expected a regular file, found a FIFO"):
        mmapds.build(tmp_path / "a.bin", format="megatron")


@pytest.mark.parametrize("idx", [None, True, 62, [], ["a", "b"], "ab"])
def test_an_index_whose_fingerprints_are_damaged_is_not_merged(tmp_path, idx):
    paths = [write_pair(tmp_path / f"{name}.bin", [[1, 2]]) for name in "ab"]
    for path in paths:
        mmapds.build(path)
    damaged = f"{paths[1]}.mmx"
    rewrite(damaged, metadata=lambda found: found | {"parameters": found["parameters"] | {"idx": idx}})
    with pytest.raises(mmapds.FormatError, match=r"b\.bin\.mmx: DAMAGED: idx = .*, expected one for each of 1 source"):
        mmapds.merge([f"{path}.mmx" for path in paths], out=tmp_path / "all.mmx")
    assert not (tmp_path / "all.mmx").exists()
