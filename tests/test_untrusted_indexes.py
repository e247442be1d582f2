"""An index from somebody else: the paths in it lead nowhere that the user has not allowed."""

import json
import os
import pickle
import shlex
import signal
import subprocess
import sys

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.index.__main__ import main
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.sources import Roots
from tests.support.commands import command, run
from tests.support.index_file import rewrite
from tests.support.samples import write_pair

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----\nline two of the key\n"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with a key in it, and a directory of somebody else's data, which is the working directory."""
    folder = tmp_path / "home"
    for name in (".ssh", "theirs/deep", "documents"):
        (folder / name).mkdir(parents=True)
    (folder / ".ssh/id_rsa").write_bytes(SECRET)
    (folder / "documents/taxes.jsonl").write_bytes(SECRET)
    monkeypatch.chdir(folder / "theirs")
    monkeypatch.delenv("MMAPDS_ROOTS", raising=False)
    return folder


def forged(name, path, *, like):
    """An index with one source, at any path, whose size and time are guessed right: those of the file `like`."""
    with open("honest.txt", "wb") as file:
        file.write(SECRET)
    mmapds.build("honest.txt", out=name, format="jsonl")
    os.unlink("honest.txt")
    found = os.stat(like)

    def change(metadata):
        metadata["sources"][0] |= {"path": path, "size": found.st_size, "mtime_ns": found.st_mtime_ns}
        return metadata

    rewrite(name, metadata=change)
    return name


def link_in_directory(home):
    os.symlink(home / "documents", "papers")
    return "papers/taxes.jsonl"


def link(_):
    os.symlink("../.ssh/id_rsa", "train.jsonl")
    return "train.jsonl"


def nested_link(_):
    os.symlink("../../.ssh/id_rsa", "deep/two")
    os.symlink("deep/two", "one.jsonl")
    return "one.jsonl"


def link_up(_):
    os.symlink("..", "deep/up")
    return "deep/up/../../documents/taxes.jsonl"


WAYS_OUT = {
    "climbing": lambda _: "../.ssh/id_rsa",
    "climbing from below": lambda _: "deep/../../.ssh/id_rsa",
    "absolute": lambda home: str(home / ".ssh/id_rsa"),
    "absolute through here": lambda home: str(home / "theirs/../.ssh/id_rsa"),
    "twice absolute": lambda home: "/" + str(home / ".ssh/id_rsa"),
    "neighbour with the same beginning": lambda home: sibling(home),
    "link": link,
    "nested link": nested_link,
    "link in a directory": link_in_directory,
    "link and climbing": link_up,
    "missing": lambda _: "../nowhere/at/all",  # not told from one that is there
}


def sibling(home):
    (home / "theirs-not").mkdir()
    (home / "theirs-not/a.jsonl").write_bytes(SECRET)
    return "../theirs-not/a.jsonl"


def add_column(name):
    mmapds.add_column(name, "n", len, decode="bytes")


READERS = {
    "open": lambda name: list(mmapds.open(name, decode="bytes")),
    "open with build": lambda name: list(mmapds.open(name, build=True, decode="bytes")),
    "build": lambda name: mmapds.build(name),
    "build by force": lambda name: mmapds.build(name, force=True),
    "build as another format": lambda name: mmapds.build(name, format="fixed", record_bytes=1, force=True),
    "verify": lambda name: verify(Index(name)),
    "add a column": add_column,
    "convert": lambda name: convert(name, "out.mma"),
    "a pickle": lambda name: pickle.loads(unchecked(name))[0],
}


def unchecked(name):
    """The pickle of a dataset that was open before its index was exchanged."""
    index = Index(name)
    metadata = index.metadata
    os.rename(name, "forged")
    with open("mine.txt", "wb") as file:
        file.write(SECRET)
    mmapds.build("mine.txt", out=name, format="jsonl")
    ds = mmapds.open(name, decode="bytes")
    os.rename("forged", name)
    ds._catalog.indexes[0].checksum = Index(name).checksum
    assert metadata["sources"][0]["path"] != "mine.txt"
    return pickle.dumps(ds)


@pytest.mark.parametrize(
    ("way", "reader"), [*((way, "open") for way in WAYS_OUT), *(("link and climbing", reader) for reader in READERS)]
)
def test_an_index_reads_nothing_outside_its_directory(home, way, reader):
    name = forged("theirs.mmx", WAYS_OUT[way](home), like=home / ".ssh/id_rsa")
    with pytest.raises(mmapds.SourceError) as error:
        READERS[reader](name)
    assert "expected files below its own directory that are not hidden" in str(error.value)
    assert "KEY" not in str(error.value)
    assert not os.path.exists("out.mma")


def test_a_way_up_is_followed_by_names_alone(home, monkeypatch):
    """`../..//home/me/a.jsonl` is not `/home/me/a.jsonl`, which seems to be inside where `home/me` is there twice."""
    inner = home / str(home / "documents")[1:]
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    climbing = "../" * len(inner.relative_to(home).parts)
    name = forged("theirs.mmx", f"{climbing}{home}/documents/taxes.jsonl", like=home / "documents/taxes.jsonl")
    with pytest.raises(mmapds.SourceError, match=f"^{inner}/taxes.jsonl: no such file"):
        mmapds.open(name, decode="bytes")


def test_opening_the_directory_does_not_name_what_an_index_in_it_names(home):
    forged("theirs.mmx", "../.ssh/id_rsa", like=home / ".ssh/id_rsa")
    for build in (False, True):
        with pytest.raises(mmapds.SourceError, match="expected files below its own directory"):
            mmapds.open(".", build=build)


@pytest.fixture
def as_before():
    """Commands set what SIGTERM does in their process."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.usefixtures("as_before")
@pytest.mark.parametrize("option", ["--force", "--verify", "--info"])
def test_nor_does_the_command(home, capsys, option):
    name = forged("theirs.mmx", link(home), like=home / ".ssh/id_rsa")
    before = os.stat(name)
    status = main([name, option])
    out, err = capsys.readouterr()
    if option == "--info":  # what one looks at an index with before one trusts it
        assert (status, err) == (0, "")
        assert "OUTSIDE, not looked at" in out
    else:
        assert status == 1
        assert "expected files below its own directory" in err
    assert os.stat(name).st_mtime_ns == before.st_mtime_ns
    assert "KEY" not in out + err


def test_nor_does_the_command_that_converts(home):
    name = forged("theirs.mmx", "../documents/taxes.jsonl", like=home / "documents/taxes.jsonl")
    ran = run("-m", "mmapds", "convert", name, "--decode", "text", "-o", "out.mma")
    assert ran.returncode == 1
    assert "expected files below its own directory" in ran.stderr
    ran = run("-m", "mmapds", "convert", name, "--decode", "text", "-o", "out.mma", "--root", home / "documents")
    assert ran.returncode == 0, ran.stderr


def test_a_hidden_file_is_outside_even_below_the_index(home, monkeypatch):
    """An index that was downloaded to the home directory itself has every file of the user below it."""
    monkeypatch.chdir(home)
    name = forged("theirs.mmx", ".ssh/id_rsa", like=".ssh/id_rsa")
    with pytest.raises(mmapds.SourceError, match=r"that are not hidden, found .*id_rsa"):
        mmapds.open(name)
    assert len(mmapds.open(name, roots=[".ssh"])) == 2


def test_the_idx_beside_a_source_is_checked_too(home):
    write_pair(home / "documents/corpus", [[1, 2], [3]])
    os.link(home / "documents/corpus.bin", "corpus.bin")
    os.symlink(home / "documents/corpus.idx", "corpus.idx")
    mmapds.build("corpus.bin", out="theirs.mmx")  # named here, which is the user's word
    for read in (lambda: verify(Index("theirs.mmx")), lambda: mmapds.build("theirs.mmx", force=True)):
        with pytest.raises(mmapds.SourceError, match=r"found .*/documents/corpus\.idx"):
            read()
    verify(Index("theirs.mmx", Roots(home / "documents")))
    assert [each.tolist() for each in mmapds.open("theirs.mmx")] == [[1, 2], [3]]  # which reads no .idx


@pytest.mark.parametrize("path", [".", "..", "", "deep", "deep/", "/", "/dev/zero", "/proc/self/environ", "a/../.."])
def test_paths_of_no_file_are_refused(home, path):
    name = forged("theirs.mmx", path, like=home / ".ssh/id_rsa")
    for read in (READERS["open with build"], READERS["build by force"], READERS["verify"]):
        with pytest.raises((mmapds.SourceError, mmapds.StaleIndexError)) as error:
            read(name)
        assert type(error.value) is mmapds.SourceError or path in ("", ".", "deep", "deep/")


@pytest.mark.usefixtures("home")
def test_a_fifo_in_the_directory_is_refused_and_not_waited_for():
    os.mkfifo("pipe")
    name = forged("theirs.mmx", "pipe", like="pipe")
    for read in (lambda: mmapds.open(name, build=True), lambda: mmapds.open(name)[0]):
        with pytest.raises(mmapds.SourceError, match="expected a regular file, found a FIFO"):
            read()


# ---- the user's word ----------------------------------------------------------------------------------------------


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A corpus that is shared, and an index of it in a directory of the user's."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "me").mkdir()
    for name in ("a", "b"):
        (tmp_path / f"shared/{name}.jsonl").write_text(f'{{"n": "{name}"}}\n' * 3)
    monkeypatch.chdir(tmp_path / "me")
    monkeypatch.delenv("MMAPDS_ROOTS", raising=False)
    return tmp_path


@pytest.mark.usefixtures("elsewhere")
def test_the_error_says_what_opening_an_index_of_files_elsewhere_takes():
    mmapds.build("../shared/*.jsonl", out="corpus.mmx")
    with pytest.raises(mmapds.SourceError) as error:
        mmapds.open("corpus.mmx")
    given = str(error.value).partition("open it with roots=")[2].partition(" (if")[0]
    assert len(mmapds.open("corpus.mmx", roots=json.loads(given.replace("'", '"')))) == 6
    said = command("corpus.mmx", "--verify").stderr
    option = said.partition("; add ")[2].partition(" (if")[0]
    assert command("corpus.mmx", "--verify", *shlex.split(option)).returncode == 0


def test_roots_of_all_kinds(elsewhere, monkeypatch):
    mmapds.build("../shared/*.jsonl", out="corpus.mmx")
    os.symlink(elsewhere, "way")
    for roots in ("../shared", elsewhere / "shared", [elsewhere], "/", ["nowhere", "way"], ("../shared/",)):
        assert len(mmapds.open("corpus.mmx", roots=roots)) == 6
    for roots in ("nowhere", ["../shar"], "", [], "../shared/a.jsonl", "."):
        with pytest.raises(mmapds.SourceError, match="expected files below its own directory"):
            mmapds.open("corpus.mmx", roots=roots)
    monkeypatch.setenv("MMAPDS_ROOTS", f":/nowhere:{elsewhere}/shared")
    assert len(mmapds.open("corpus.mmx")) == 6


def test_every_verb_takes_roots(elsewhere):
    assert convert("../shared/a.jsonl", "out.mma").records == 3  # named here, so it needs none
    mmapds.build("../shared/*.jsonl", out="corpus.mmx", columns={"size": len})
    roots = elsewhere / "shared"
    mmapds.add_column("corpus.mmx", "x", len, roots=roots)
    assert mmapds.open("corpus.mmx", roots=roots).column("size").tolist() == [1] * 6
    mmapds.build("corpus.mmx", force=True, roots=roots)
    assert mmapds.open("corpus.mmx", roots=roots).columns == []
    assert convert("corpus.mmx", "all.mma", roots=roots).records == 6
    verify(Index("corpus.mmx", Roots(roots)))
    with open("../shared/a.jsonl", "a") as file:
        file.write('{"n": "a"}\n')
    assert len(mmapds.open("corpus.mmx", roots=roots, build=True)) == 7


def test_the_command_in_a_message_has_the_roots_that_were_given(elsewhere):
    mmapds.build("../shared/*.jsonl", out="corpus.mmx")
    with open("../shared/b.jsonl", "a") as file:
        file.write('{"n": "b"}\n')
    with pytest.raises(mmapds.StaleIndexError) as error:
        mmapds.open("corpus.mmx", roots="..")
    words = shlex.split(str(error.value).rpartition("; run: python ")[2])
    assert words[-2:] == ["--root", str(elsewhere)]
    subprocess.run([sys.executable, *words], check=True)
    assert len(mmapds.open("corpus.mmx", roots="..")) == 7


def test_a_damaged_index_of_somebody_else_gives_no_command_with_roots(home):
    name = forged("theirs.mmx", "../documents/taxes.jsonl", like=home / "documents/taxes.jsonl")
    with pytest.raises(mmapds.FormatError) as error:
        raise Index(name).damaged("forged")
    assert "--root" not in str(error.value)


def test_pickles_carry_roots(elsewhere, monkeypatch):
    mmapds.build("../shared/*.jsonl", out="corpus.mmx")
    mmapds.build("../shared/a.jsonl")
    monkeypatch.setenv("MMAPDS_ROOTS", str(elsewhere))
    ds = mmapds.open("corpus.mmx")
    monkeypatch.delenv("MMAPDS_ROOTS")
    copies = [ds, ds[2:], mmapds.open("corpus.mmx", roots="../shared"), mmapds.concat([ds, ds[:1]])]
    copies = [pickle.dumps(each) for each in copies] + [pickle.dumps(pickle.loads(pickle.dumps(ds)))]
    copies.append(pickle.dumps(mmapds.concat([pickle.loads(copies[0]), ds])))
    monkeypatch.chdir("/")
    assert [len(list(pickle.loads(each))) for each in copies] == [6, 4, 6, 7, 6, 12]


# ---- links that the user names --------------------------------------------------------------------------------------


@pytest.fixture
def linked(elsewhere):
    """A directory of links to large files elsewhere, as many keep their data."""
    os.makedirs("data")
    for name in ("a", "b"):
        os.symlink(elsewhere / f"shared/{name}.jsonl", f"data/{name}.jsonl")
    return elsewhere


@pytest.mark.usefixtures("linked")
@pytest.mark.parametrize(
    "named", ["data/a.jsonl", ["data/a.jsonl", "data/b.jsonl"], "data/*.jsonl", "data", "data/{a,b}.jsonl"]
)
def test_a_link_that_the_user_names_is_followed(named):
    mmapds.build(named)
    ds = mmapds.open(named)
    copy = pickle.dumps(ds)
    os.chdir("/")
    assert list(pickle.loads(copy)) == list(ds)


def test_a_link_keeps_the_options_of_its_index(linked):
    (linked / "shared/r.bin").write_bytes(bytes(10))
    os.symlink(linked / "shared/r.bin", "data/r.bin")
    mmapds.build("data/r.bin", format="fixed", record_bytes=4, truncated="drop")
    mmapds.build("data/r.bin")
    assert Index("data/r.bin.mmx").parameters["truncated"] == "drop"


@pytest.mark.usefixtures("linked")
def test_an_index_names_links_only_with_roots():
    mmapds.build("data/*.jsonl", out="data/all.mmx")
    with pytest.raises(mmapds.SourceError, match=r"found .*/shared/a\.jsonl; open it with roots="):
        mmapds.open("data/all.mmx")
    assert len(mmapds.open("data/all.mmx", roots="../shared")) == 6
    mmapds.build("data/a.jsonl")
    with pytest.raises(mmapds.SourceError):
        mmapds.open("data/a.jsonl.mmx")
    assert len(mmapds.open(["data/a.jsonl.mmx", "data/a.jsonl"])) == 3  # named in the same call


def test_an_index_beside_a_link_may_not_name_another_file(home):
    forged("theirs.jsonl.mmx", "../.ssh/id_rsa", like=home / ".ssh/id_rsa")
    with open("theirs.jsonl", "wb") as file:
        file.write(b"1\n")
    with pytest.raises(mmapds.StaleIndexError, match=r"expected the index of theirs\.jsonl, found one of .*id_rsa;"):
        mmapds.open("theirs.jsonl")
    with pytest.raises(mmapds.SourceError, match="expected files below its own directory"):
        mmapds.open("theirs.jsonl.mmx")


@pytest.mark.usefixtures("elsewhere")
def test_links_inside_the_directory_need_no_word():
    os.makedirs("data/real")
    with open("data/real/a.jsonl", "w") as file:
        file.write("1\n2\n")
    os.symlink("real/a.jsonl", "data/a.jsonl")
    os.symlink("real", "data/also")
    with open("data/real/b.jsonl", "w") as file:
        file.write("3\n")
    mmapds.build(["data/a.jsonl", "data/also/b.jsonl"], out="data/all.mmx")
    os.symlink("data", "way")
    assert list(mmapds.open("way/all.mmx")) == [1, 2, 3]


@pytest.mark.usefixtures("elsewhere")
def test_relative_paths_hold_when_the_working_directory_changes():
    mmapds.build("../shared/*.jsonl", out="corpus.mmx")
    ds = mmapds.open("corpus.mmx", roots="../shared")
    other = mmapds.open(["../shared/a.jsonl"], build=True)
    os.chdir("/")
    assert len(list(ds)) == 6
    assert len(list(other)) == 3
