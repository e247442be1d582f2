"""Tars: indexed as whoever wrote them meant, read as WebDataset reads them, and refused where they are damaged."""

import os
import random
import subprocess
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.formats.tar import members
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.messages import check
from tests.support.tars import (
    DIALECTS,
    archive,
    by_tarfile,
    check_against_tarfile,
    key_of,
    members_of,
    pax,
    sized,
    special,
    with_checksum,
)

# ---- as others write them ------------------------------------------------------------------------------------


DIRECTORIES = ["", "./", "a/b.c/", "d" * 90 + "/", "é/ü漢字/", "é" * 30 + "/" + "d" * 60 + "/", "d" * 150 + "/"]
LONGEST = "d" * 300 + "/"  # for which ustar has no room


@pytest.mark.parametrize(
    ("dialect", "directory"),
    [(dialect, directory) for dialect in DIALECTS for directory in [*DIRECTORIES, LONGEST][: 7 + (dialect != "ustar")]],
)
def test_tarfile(write, dialect, directory):
    path = write(archive(members_of(directory=directory), dialect), "a.tar")
    mmapds.build(path)
    ds = check_against_tarfile(path)
    assert len(ds) == 20
    assert ds[3]["__key__"] == f"{directory}s0003"
    verify(Index(f"{path}.mmx"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_members_large_and_small(write, dialect):
    """Headers that lie far apart are read in another way, and archives may have both."""
    rng = random.Random(0)
    files = []
    for i in range(400):
        directory = ["", "a.b/", "d" * 60 + "/" + "e" * 80 + "/", ("" if dialect == "ustar" else "f" * 200) + "g/"][
            i % 4
        ]
        for extension in ("jpg", "cls"):
            size = 40_000 if i // 100 % 2 and extension == "jpg" else rng.randint(0, 50)
            files.append((f"{directory}{i:03}.{extension}", rng.randbytes(size)))
    path = write(archive(files, dialect), "a.tar")
    mmapds.build(path)
    assert len(check_against_tarfile(path)) == 400
    cut = Path(path).read_bytes()[:6_000_000]
    with pytest.raises(
        mmapds.FormatError, match=r"a.tar: record \d+ \(byte \d+\): expected a whole sample, found .* byte 6000000"
    ):
        mmapds.build(write(cut, "a.tar"))


@pytest.mark.parametrize("dialect", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_tar_the_program(tmp_path, dialect):
    root = tmp_path / "in"
    folder = root / ("d" * 80 if dialect == "v7" else "d" * 60 + "/" + "e" * 80)
    (folder / "empty").mkdir(parents=True)
    for i in range(5):
        name = "s" if dialect == "v7" else "ß" * 10
        (folder / f"{name}{i}.txt").write_bytes(b"x" * i * 300)
        (folder / f"{name}{i}.cls").write_text(str(i))
    (folder / "link.txt").symlink_to("nowhere")
    path = tmp_path / "a.tar"
    run = ["tar", f"--format={dialect}", "--sort=name", "-cf", path, "-C", root, "."]
    subprocess.run(run, check=True, capture_output=True)
    mmapds.build(path)
    ds = check_against_tarfile(path)
    assert len(ds) == 5
    assert [len(mmapds.open(path, decode="wds")[i]["txt"]) for i in range(5)] == [0, 300, 600, 900, 1200]


names = st.text(st.sampled_from("ab.A/_\n漢é-"), min_size=1, max_size=12)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=st.lists(st.tuples(names, st.integers(0, 1100)), max_size=12), dialect=st.sampled_from(list(DIALECTS)))
def test_any_members(tmp_path, files, dialect):
    files = [(name, bytes([i]) * size) for i, (name, size) in enumerate(files) if not name.startswith("/")]
    path = tmp_path / "a.tar"
    path.write_bytes(archive(files, dialect))
    try:
        wanted = by_tarfile(path)
    except ValueError as error:
        assert "duplicate file name" in str(error)  # noqa: PT017 - only one of the two outcomes
        with pytest.raises(
            (mmapds.FormatError, mmapds.DecodeError), match=r"expected each extension of sample .* once, found"
        ):
            mmapds.build(path, force=True)
        return
    mmapds.build(path, force=True)
    assert list(mmapds.open(path)) == wanted


@given(st.text(st.sampled_from("ab./\n"), min_size=1, max_size=10))
@settings(max_examples=1000)
def test_keys_are_those_of_webdataset(name):
    header = bytearray(sized(name, b"").tobuf(tarfile.USTAR_FORMAT))
    _, _, key, found = _native.tar_members(bytes(header), 1)
    wanted = key_of(name)
    assert (key, found[0][0] if found else None) == wanted


def test_members_that_belong_to_no_sample(write):
    files = [
        special("d", tarfile.DIRTYPE),
        ("nodot", b"1"),
        ("__meta__", b"2"),
        ("__dir__/a.jpg", b"3"),
        ("a.jpg", b"4"),
        special("e", tarfile.DIRTYPE),
        special("a.lnk", tarfile.SYMTYPE, linkname="a.jpg"),
        special("a.hard", tarfile.LNKTYPE, linkname="a.jpg"),
        special("a.fifo", tarfile.FIFOTYPE),
        ("__meta__.json", b"5"),
        ("__other__", b"6"),
        ("nodot", b"6"),
        ("__meta__.txt", b"7"),
        ("d/.hidden", b"8"),
        special("f", tarfile.DIRTYPE),
    ]
    for dialect in DIALECTS:
        path = write(archive(files, dialect), "a.tar")
        mmapds.build(path, force=True)
        ds = check_against_tarfile(path)
        assert [sample["__key__"] for sample in ds] == ["a", "__meta__", "d/"]
        assert list(ds[1])[2:] == ["json", "txt"]


@pytest.mark.parametrize("files", [[], [special("d", tarfile.DIRTYPE)], [("nodot", b"x"), ("__x__", b"y")]])
def test_archives_without_samples(write, files):
    path = write(archive(files), "a.tar")
    mmapds.build(path, length="bytes()")
    ds = mmapds.open(path)
    assert len(ds) == 0
    with pytest.raises(mmapds.KeyMissingError):
        ds.find("d")
    verify(Index(f"{path}.mmx"))
    mmapds.build(write(b"", "empty.tar"))
    assert len(mmapds.open(path.replace("a.tar", "empty.tar"))) == 0


def test_a_view_finds_the_first_position_that_shows_a_key(tmp_path):
    (tmp_path / "a.tar").write_bytes(archive([(f"{key}.txt", b".") for key in "abcad"]))
    ds = mmapds.open(mmapds.build(tmp_path / "a.tar"))
    assert ds.find("a") == 0
    assert [ds[::-1].find(key) for key in "dacb"] == [0, 1, 2, 3]
    assert mmapds.concat([ds[[4, 2]], ds[[3, 0]]]).find("a") == 2


def test_what_lies_behind_the_end_is_named(write, tmp_path):
    whole = archive([("a.txt", b"1"), ("b.txt", b"2"), ("nodot", b"3")])
    for behind, at in ((whole, 0), (bytes(100_000) + b"\1", 100_000), (b"x" * 5000, 0)):
        path = write(whole + behind, "a.tar")
        begin, count = len(whole) + at, len(behind) - at
        line = (
            f"{path}: passed over {count:,} byte{'s' * (count > 1)} behind the end of the archive, from byte {begin} "
            "on; give archives that cat joined as files of their own"
        )
        with pytest.warns(UserWarning, match="behind the end") as caught:
            mmapds.build(path, force=True)
        assert [str(each.message) for each in caught] == [line]
        check(line)
        assert len(check_against_tarfile(path)) == 2
        assert command(path, "--force").stderr == f"warning: {line}\n"
        assert command(path).stderr == ""
    paths = [path, write(whole + whole, "b.tar"), write(whole + bytes(99), "c.tar"), write(whole[:-1024], "d.tar")]
    with pytest.warns(UserWarning, match=r"a\.tar: .*own \(and 1 more\)$") as caught:
        all_of_them = mmapds.build(paths, out=tmp_path / "all.mmx", force=True)
    assert len(caught) == 1
    mmapds.build(paths[2:])
    assert len(mmapds.open(mmapds.merge([all_of_them], out=tmp_path / "again.mmx"))) == 8


def test_names_in_any_bytes(write):
    data = archive([("s.jpg", b"1"), ("t.jpg", b"2")], "gnu").replace(b"s.jpg", b"\xff.jpg", 1)
    path = write(with_checksum(data, 0), "a.tar")
    mmapds.build(path)
    ds = check_against_tarfile(path)
    assert ds[0]["__key__"] == "\udcff"


def test_extended_headers_that_say_nothing_of_a_member(write):
    data = archive([("s.jpg", b"1"), ("t.jpg", b"2")], "pax", pax_headers={"comment": "by hand"})
    assert data[156:157] == b"g"
    path = write(data, "a.tar")
    mmapds.build(path)
    assert check_against_tarfile(path)[0]["jpg"] == b"1"


# ---- sizes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["pax", "gnu"])
def test_members_beyond_8_gib(tmp_path, dialect):
    path = tmp_path / "a.tar"
    size = 9 << 30
    info = tarfile.TarInfo("big.bin")
    info.size = size
    with open(path, "wb") as file:
        file.write(info.tobuf(DIALECTS[dialect]))
        begin = file.tell()
        file.seek(size, os.SEEK_CUR)
        file.write(archive([("after.txt", b"after")]))
    mmapds.build(path, length="bytes()")
    ds = mmapds.open(path)
    assert ds.lengths.tolist() == [begin + size, 1024]
    assert ds[1]["txt"] == b"after"
    assert ds.find("after") == 1  # `find("big")` would read all of it
    assert members(memoryview(_native.Map(str(path)))[: begin + size]) == ("big", [("bin", begin, begin + size)])


def with_size(data, at, field):
    return with_checksum(data[: at + 124] + field.ljust(12, b"\0") + data[at + 136 :], at)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (b"77777777777", r"record 1 \(byte 1024\): expected a whole sample, found the end of the file at byte 10240"),
        (b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7, "expected a whole sample, found the end of the file"),
        (b"\x80" + bytes(3) + b"\x80" + bytes(7), "expected a size of 0 to .* in the header"),
        (b"\x80\x01" + bytes(10), "expected a size of 0 to .* in the header"),
        (b"\xff" * 12, "expected a size of 0 to .* in the header"),
        (b"12x", "expected a size of 0 to .* in the header"),
        (b"-1", "expected a size of 0 to .* in the header"),
        (b"00000000000", r"record 1 \(byte 1536\): expected a tar header, found a wrong header checksum"),
    ],
)
def test_sizes_that_are_wrong(write, field, message):
    data = archive([("a.txt", b"1"), ("b.txt", b"2" * 600), ("c.txt", b"3")], "gnu")
    with pytest.raises(mmapds.FormatError, match=message):
        mmapds.build(write(with_size(data, 1024, field), "a.tar"))


@pytest.mark.parametrize("field", [b"       1130 ", b"1130", b"00001130\0\xff\xff", b"\x80" + b"\0" * 9 + b"\x02\x58"])
def test_sizes_in_every_notation(write, field):
    data = archive([("a.txt", b"1"), ("b.txt", b"2" * 600), ("c.txt", b"3")], "gnu")
    path = write(with_size(data, 1024, field), "a.tar")
    mmapds.build(path)
    assert check_against_tarfile(path)[1]["txt"] == b"2" * 600


def test_checksums_of_signed_bytes(write):
    data = bytearray(archive([("é.txt", b"1")], "gnu"))
    signed = sum(byte - 256 * (byte > 127) for byte in data[:148] + b" " * 8 + data[156:512])
    data[148:156] = b"%06o\0 " % signed
    path = write(bytes(data), "a.tar")
    mmapds.build(path)
    assert check_against_tarfile(path)[0]["__key__"] == "é"


# ---- what is damaged -----------------------------------------------------------------------------------------


def test_garbage_between_members(write):
    data = archive(members_of(), "gnu")
    ds = mmapds.open(write(data, "good.tar"), build=True)
    for i in (0, 7, 19):
        at = ds.where(i).offset
        for bad in (
            data[:at] + b"\1" * 512 + data[at:],
            data[: at + 9] + b"\1" + data[at + 10 :],
            data[:at] + data[at + 9 :],
        ):
            with pytest.raises(mmapds.FormatError) as error:
                mmapds.build(write(bad, "a.tar"))
            assert str(error.value).endswith(
                f"a.tar: record {max(i - 1, 0)} (byte {at}): expected a tar header, found a wrong header checksum"
            )


@pytest.mark.filterwarnings("ignore:.*passed over 4 bytes behind the end of the archive")
def test_what_ends_an_archive(write):
    data = archive([("a.txt", b"1"), ("b.txt", b"2")], "gnu")
    for whole in (data, data[:2048], data[:2560], data[:3072], data[:3072] + b"junk", data[:2100]):
        path = write(whole, "a.tar")
        mmapds.build(path)
        assert [sample["txt"] for sample in mmapds.open(path)] == [b"1", b"2"]
        assert mmapds.open(path).where(1) == (path, 1024, 1024)
    with pytest.raises(
        mmapds.FormatError,
        match=r"record 1 \(byte 2048\): expected two blocks of zeros at the end .* found one with data after it",
    ):
        mmapds.build(write(data[:2560] + data[:1024], "a.tar"))


def test_a_shard_that_is_cut_short(write):
    data = archive([("a.x", b"1" * 600), ("a.y", b"2" * 600), ("b.x", b"3" * 600), ("b.y", b"4" * 600)], "gnu")
    size = 1536
    for cut in [*range(1, 4 * size, 97), size + 512 + 600, 4 * size - 424, 4 * size - 1]:  # also where padding begins
        path = write(data[:cut], "a.tar")
        cut_in, inside = divmod(cut, size)
        if cut > 512 and not 0 < inside < 512:  # a header that is cut passes for the end there
            with tarfile.open(path, "r|") as file, pytest.raises(tarfile.ReadError):
                file.getmembers()
        with pytest.raises(
            mmapds.FormatError, match=rf"\(byte {cut_in * size}\): expected a whole sample, found .* byte {cut};"
        ):
            mmapds.build(path, force=True, truncated="error")
        mmapds.build(path, truncated="drop", force=True)
        # Where a header is cut, nobody knows whose it was.
        whole = 1 if cut_in > 2 or (cut_in == 2 and inside >= 512) else 0
        assert [sample["__key__"] for sample in mmapds.open(path)] == ["a"][:whole]
        verify(Index(f"{path}.mmx"))


def test_a_record_cut_in_its_extended_header(write):
    data = archive([("a.x", b"1"), ("d" * 300 + ".x", b"2")], "pax")
    for cut in (1024 + 512, 1024 + 600, 1024 + 1024, 1024 + 1100):
        path = write(data[:cut], "a.tar")
        with pytest.raises(mmapds.FormatError, match=r"record 0 \(byte \d+\): expected a whole sample"):
            mmapds.build(path)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (b"12 path=b.t\n", None),
        (b"13 path=b.t/\n", None),
        (b"9 size=2\n", None),
        (b"11 path=b.t\n", 'expected "LENGTH KEY=VALUE" on each line of the pax header'),
        (b"99999 path=b\n", "each line of the pax header"),
        (b"99999999999999999999999 path=b\n", "each line of the pax header"),
        (b"x path=b\n", "each line of the pax header"),
        (b" path=b\n", "each line of the pax header"),
        (b"7 path\n", "each line of the pax header"),
        (b"3 \n", "each line of the pax header"),
        (b"12 size=-22\n", "expected a size of 0 to"),
        (b"8 size=\n", "expected a size of 0 to"),
        (b"27 size=99999999999999999999\n", "each line of the pax header|expected a size of 0 to"),
        (b"22 GNU.sparse.major=1\n", "found a sparse one"),
        (b"15 size=99999999\n", "each line of the pax header|expected a whole sample"),
    ],
)
def test_extended_headers(write, record, message):
    path = write(pax(record), "a.tar")
    if message:
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(path)
    else:
        mmapds.build(path)
        check_against_tarfile(path)


def test_what_cannot_be_read_in_place(write):
    with pytest.raises(mmapds.FormatError, match="expected whole members, found a sparse one"):
        mmapds.build(write(archive([special("a.bin", tarfile.GNUTYPE_SPARSE)], "gnu"), "a.tar"))
    shared = pax(b"12 path=b.t\n")
    with pytest.raises(mmapds.FormatError, match="expected a global pax header without path and size, found one with"):
        mmapds.build(write(with_checksum(shared[:156] + b"g" + shared[157:], 0), "b.tar"))


def test_an_extension_twice(write):
    for files in (
        [("a.txt", b""), ("a.jpg", b""), ("a.TXT", b"")],
        [("d" * 300 + "/a.txt", b""), ("d" * 300 + "/a.txt", b"")],
        [("a.__key__", b"")],
        [("a.__URL__", b"")],
    ):
        path = write(archive([("0.txt", b""), *files]), "a.tar")
        with pytest.raises(
            mmapds.FormatError,
            match=r"record 1 \(byte \d+\): expected each extension of sample '.*a' once, found '.*' twice",
        ):
            mmapds.build(path)
        with pytest.raises(ValueError, match="duplicate file name"):
            by_tarfile(path)


def test_threads_scan_shards_side_by_side(tmp_path):
    paths = [tmp_path / f"{i}.tar" for i in range(9)]
    for i, path in enumerate(paths):
        path.write_bytes(archive(members_of(count=i * 3, directory=f"{i}/")))
    for workers in (1, 4):
        mmapds.build(paths, out=tmp_path / "all.mmx", workers=workers, force=True)
        ds = mmapds.open(tmp_path / "all.mmx")
        assert [sample["__key__"] for sample in ds] == [f"{i}/s{k:04}" for i in range(9) for k in range(i * 3)]
    paths[4].write_bytes(archive(members_of())[:700])
    with pytest.raises(mmapds.FormatError, match=r"4\.tar: record 0 \(byte 512\): expected a whole sample"):
        mmapds.build(paths, out=tmp_path / "all.mmx", workers=4)
