"""Tars: indexed as whoever wrote them meant, read as WebDataset reads them, and refused where they are damaged."""

import os
import subprocess
import tarfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.formats.tar import members
from mmapds.storage.index_file import Index
from tests.support.index_file import verify
from tests.support.messages import check
from tests.support.tars import (
    DIALECTS,
    archive,
    by_tarfile,
    check_against_tarfile,
    pax,
    sized,
    special,
    with_checksum,
)

# ---- as others write them ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_archives_of_the_program_tar(tmp_path, dialect):
    folder = tmp_path / "in" / ("d" * 80 if dialect == "v7" else "d" * 60 + "/" + "e" * 80)
    (folder / "empty").mkdir(parents=True)
    for i in range(5):
        name = "s" if dialect == "v7" else "ß" * 10
        (folder / f"{name}{i}.txt").write_bytes(b"x" * i * 300)
        (folder / f"{name}{i}.cls").write_text(str(i))
    (folder / "link.txt").symlink_to("nowhere")
    path = tmp_path / "a.tar"
    run = ["tar", f"--format={dialect}", "--sort=name", "-cf", path, "-C", tmp_path / "in", "."]
    subprocess.run(run, check=True, capture_output=True)
    mmapds.build(path)
    assert [len(sample["txt"]) for sample in check_against_tarfile(path)] == [0, 300, 600, 900, 1200]


DIRECTORIES = ["", "./", "a/b.c/", "d" * 90 + "/", "é/ü漢字/", "é" * 30 + "/" + "d" * 60 + "/", "d" * 300 + "/"]
NAMES = st.text(st.sampled_from("ab.A/_\n漢é-"), min_size=1, max_size=12).filter(lambda name: name[0] != "/")
SIZES = st.integers(0, 1100) | st.just(40_000)  # headers that lie far apart are read in another way


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(DIRECTORIES), NAMES, SIZES), max_size=12), st.sampled_from(list(DIALECTS)))
def test_any_members_are_those_of_tarfile(tmp_path, files, dialect):
    path = tmp_path / "a.tar"
    longest = "d" * 150 if dialect == "ustar" else "d" * 300
    files = [(directory.replace("d" * 300, longest) + name, size) for directory, name, size in files]
    path.write_bytes(archive([(name, bytes([i]) * size) for i, (name, size) in enumerate(files)], dialect))
    try:
        by_tarfile(path)
    except ValueError:
        with pytest.raises(mmapds.FormatError, match=r"expected each extension of sample .* once, found"):
            mmapds.build(path, force=True)
    else:
        mmapds.build(path, force=True)
        check_against_tarfile(path)
        verify(Index(f"{path}.mmx"))


def test_members_that_belong_to_no_sample(write):
    def named(*names):
        return [(name, name.encode()) for name in names]

    folder, link = special("d", tarfile.DIRTYPE), special("a.hard", tarfile.LNKTYPE, linkname="a.jpg")
    files = [folder, *named("nodot", "__meta__", "__dir__/a.jpg", "a.jpg"), special("e", tarfile.DIRTYPE)]
    files += [special("a.lnk", tarfile.SYMTYPE, linkname="a.jpg"), link, special("a.fifo", tarfile.FIFOTYPE)]
    files += [*named("__meta__.json", "__other__", "nodot", "__meta__.txt", "d/.hidden"), special("f", tarfile.DIRTYPE)]
    for dialect in DIALECTS:
        path = write(archive(files, dialect), "a.tar")
        mmapds.build(path, force=True)
        ds = check_against_tarfile(path)
        assert [sample["__key__"] for sample in ds] == ["a", "__meta__", "d/"]
        assert list(ds[1])[2:] == ["json", "txt"]


# ---- headers -----------------------------------------------------------------------------------------------------

THREE = archive([("a.txt", b"1"), ("b.txt", b"2" * 600), ("c.txt", b"3")], "gnu")


def with_size(field, data=THREE, at=1024):
    return with_checksum(data[: at + 124] + field.ljust(12, b"\0") + data[at + 136 :], at)


def signed(data):
    data = bytearray(data)
    data[148:156] = b"%06o\0 " % sum(byte - 256 * (byte > 127) for byte in data[:148] + b" " * 8 + data[156:512])
    return bytes(data)


GOOD = {
    "a size behind blanks": with_size(b"       1130 "),
    "a short size": with_size(b"1130"),
    "bytes behind a size": with_size(b"00001130\0\xff\xff"),
    "a binary size": with_size(b"\x80" + b"\0" * 9 + b"\x02\x58"),
    "a name in any bytes": with_checksum(archive([("s.jpg", b"1")], "gnu").replace(b"s.jpg", b"\xff.jpg", 1), 0),
    "a checksum of signed bytes": signed(archive([("é.txt", b"1")], "gnu")),
    "a global header": archive([("s.jpg", b"1"), ("t.jpg", b"2")], "pax", pax_headers={"comment": "by hand"}),
    "a path": pax(b"12 path=b.t\n"),
    "a path of a directory": pax(b"13 path=b.t/\n"),
    "a size of pax": pax(b"9 size=2\n"),
}


@pytest.mark.parametrize("name", GOOD)
def test_odd_headers_are_read_as_tarfile_reads_them(write, name):
    path = write(GOOD[name], "a.tar")
    mmapds.build(path)
    check_against_tarfile(path)


SHARED = pax(b"12 path=b.t\n")
WHOLE, SIZE, LINE = "expected a whole sample, found the end of the file", "expected a size of 0 to", "of the pax header"
BAD = [
    (with_size(b"77777777777"), r"record 1 \(byte 1024\): expected a whole sample, .* byte 10240; leave it out with"),
    (with_size(b"\x80" + bytes(3) + b"\x7f" + b"\xff" * 7), WHOLE),
    (with_size(b"\x80" + bytes(3) + b"\x80" + bytes(7)), SIZE),
    (with_size(b"\xff" * 12), SIZE),
    (with_size(b"12x"), SIZE),
    (with_size(b"-1"), SIZE),
    (with_size(b"00000000000"), r"record 1 \(byte 1536\): expected a tar header, found a wrong header checksum"),
    (pax(b"11 path=b.t\n"), 'expected "LENGTH KEY=VALUE" on each line of the pax header, found another line'),
    (pax(b"99999999999999999999999 path=b\n"), LINE),
    (pax(b"7 path\n"), LINE),
    (pax(b"12 size=-22\n"), SIZE),
    (pax(b"8 size=\n"), SIZE),
    (pax(b"27 size=99999999999999999999\n"), f"{LINE}|{SIZE}"),
    (pax(b"22 GNU.sparse.major=1\n"), "expected whole members, found a sparse one"),
    (archive([special("a.bin", tarfile.GNUTYPE_SPARSE)], "gnu"), "expected whole members, found a sparse one"),
    (with_checksum(SHARED[:156] + b"g" + SHARED[157:], 0), "a global pax header without path and size, found one with"),
    (THREE[:4096] + THREE[:1024], r"record 2 \(byte 3584\): expected two blocks of zeros at the end .* data after it"),
]
TWICE = [
    [("a.txt", b""), ("a.jpg", b""), ("a.TXT", b"")],
    [("d" * 300 + "/a.txt", b""), ("d" * 300 + "/a.txt", b"")],
    [("a.__key__", b"")],
    [("a.__URL__", b"")],
]
ONCE = r"record 1 \(byte \d+\): expected each extension of sample '.*a' once, found '.*' twice"
BAD += [(archive([("0.txt", b""), *files]), ONCE) for files in TWICE]


def test_headers_that_are_wrong_are_named(write):
    for data, message in BAD:
        path = write(data, "a.tar")
        with pytest.raises(mmapds.FormatError, match=message) as error:
            mmapds.build(path)
        assert str(error.value).startswith(f"{path}: record ")
        check(str(error.value))


@pytest.mark.parametrize("dialect", ["pax", "gnu"])
def test_members_beyond_8_gib(tmp_path, dialect):
    path, info = tmp_path / "a.tar", sized("big.bin", b"")
    info.size = 9 << 30
    with open(path, "wb") as file:
        file.write(info.tobuf(DIALECTS[dialect]))
        begin = file.tell()
        file.seek(info.size, os.SEEK_CUR)
        file.write(archive([("after.txt", b"after")]))
    ds = mmapds.open(mmapds.build(path, length="bytes()"))
    assert ds.lengths.tolist() == [begin + info.size, 1024]
    assert ds[ds.find("after")]["txt"] == b"after"  # `find("big")` would read all of it
    record = memoryview(_native.Map(str(path)))[: begin + info.size]
    assert members(record) == ("big", [("bin", begin, begin + info.size)])


# ---- ends --------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*ignored 4 bytes after the end of the archive")
def test_what_ends_an_archive(write):
    data = archive([("a.txt", b"1"), ("b.txt", b"2")], "gnu")
    for whole in (data, data[:2048], data[:2560], data[:3072], data[:3072] + b"junk", data[:2100]):
        ds = mmapds.open(write(whole, "a.tar"), build=True)
        assert [sample["txt"] for sample in ds] == [b"1", b"2"]
        assert ds.where(1)[1:] == (1024, 1024)


def test_what_lies_behind_the_end_is_named(write, index, tmp_path):
    whole = archive([("a.txt", b"1"), ("b.txt", b"2"), ("nodot", b"3")])
    for behind, at, count in ((whole, 0, "10,240 bytes"), (bytes(1 << 20) + b"\1", 1 << 20, "1 byte")):
        path, begin = write(whole + behind, "a.tar"), len(whole) + at
        told = f"ignored {count} after the end of the archive, from byte {begin} on; give archives that cat joined"
        check(f"{path}: {told} as separate files")
        assert index(path, "--force").stderr == f"warning: {path}: {told} as separate files\n"
        assert index(path).stderr == ""
        assert len(check_against_tarfile(path)) == 2
    paths = [path, write(whole + whole, "b.tar"), write(whole + bytes(99), "c.tar")]
    with pytest.warns(UserWarning, match=r"a\.tar: .*files \(and 1 more\)$"):
        mmapds.build(paths, out=tmp_path / "all.mmx", force=True)
