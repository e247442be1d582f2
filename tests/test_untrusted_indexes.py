"""An index from somebody else: its paths lead nowhere that the user has not allowed, and forged fields are errors."""

import json
import os
import pickle
import shlex
from random import Random

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.remote.objects import places as places_of
from mmapds.storage.index_file import Index
from tests.support.commands import run
from tests.support.forged import COMPRESSED, KINDS, OBJECTS, ODD, Forgery, changed, places, small_blocks
from tests.support.index_file import rewrite, verify
from tests.support.samples import write_pair
from tests.torture.forged import index_of, put

SECRET = b"-----BEGIN OPENSSH PRIVATE KEY-----\nline two of the key\n"
OUTSIDE = "expected files below its own directory that are not hidden"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home directory with a key in it, and a directory of somebody else's data, which is the working directory."""
    folder = tmp_path / "home"
    (folder / "theirs/deep").mkdir(parents=True)
    for name in (".ssh/id_rsa", "documents/taxes.jsonl", "theirs-not/a.jsonl", "theirs/.ssh/id_rsa", "theirs/.netrc"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(SECRET)
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


def linked(path, **links):
    """A path, once there are some links."""
    for name, target in links.items():
        os.symlink(target, name)
    return path


WAYS_OUT = {
    "climbing": lambda _: "../.ssh/id_rsa",
    "climbing from below": lambda _: "deep/../../.ssh/id_rsa",
    "absolute": lambda home: str(home / ".ssh/id_rsa"),
    "absolute through here": lambda home: str(home / "theirs/../.ssh/id_rsa"),
    "neighbour with the same beginning": lambda _: "../theirs-not/a.jsonl",
    "link": lambda _: linked("train", train="../.ssh/id_rsa"),
    "nested link": lambda _: linked("one", **{"deep/two": "../../.ssh/id_rsa", "one": "deep/two"}),
    "link and climbing": lambda _: linked("deep/up/../../documents/taxes.jsonl", **{"deep/up": ".."}),
    "hidden, even beside the index": lambda _: ".netrc",
    "hidden, even below the index": lambda _: ".ssh/id_rsa",
    "missing": lambda _: "../nowhere/at/all",  # not told from one that is there
}
READERS = {
    "open": lambda name: list(mmapds.open(name, decode="bytes")),
    "open its directory": lambda _: mmapds.open("."),
    "build": lambda name: mmapds.build(name, force=True),
    "verify": lambda name: verify(Index(name)),
    "add a column": lambda name: mmapds.add_column(name, "n", len, decode="bytes"),
    "convert": lambda name: convert(name, "out.mma"),
    "merge": lambda name: mmapds.merge(name, out="out.mmx"),
}


@pytest.mark.parametrize(
    ("way", "reader"), [*((way, "open") for way in WAYS_OUT), *(("link and climbing", reader) for reader in READERS)]
)
def test_an_index_reads_nothing_outside_its_directory(home, way, reader):
    name = forged("theirs.mmx", WAYS_OUT[way](home), like=home / ".ssh/id_rsa")
    with pytest.raises(mmapds.SourceError, match=OUTSIDE) as error:
        READERS[reader](name)
    assert "KEY" not in str(error.value)
    assert not os.path.exists("out.mma")
    with pytest.raises(mmapds.FormatError) as damaged:
        raise Index(name).damaged("forged")
    assert "--root" not in str(damaged.value)


def test_a_way_up_is_followed_by_names_alone(home, monkeypatch):
    """`../..//home/me/a.jsonl` is not `/home/me/a.jsonl`, which seems to be inside where `home/me` is there twice."""
    inner = home / str(home / "documents")[1:]
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    climbing = "../" * len(inner.relative_to(home).parts)
    name = forged("theirs.mmx", f"{climbing}{home}/documents/taxes.jsonl", like=home / "documents/taxes.jsonl")
    with pytest.raises(mmapds.SourceError, match=f"^{inner}/taxes.jsonl: no such file"):
        mmapds.open(name, decode="bytes")


def test_commands_read_what_is_below_a_root_and_info_opens_no_source(home, ran):
    name = forged("theirs.mmx", linked("train", train="../.ssh/id_rsa"), like=home / ".ssh/id_rsa")
    converting = "convert", name, "--decode", "text", "-o", "out.mma"
    for arguments in (("index", name, "--force"), ("verify", name), converting):
        status, out, err = ran(*arguments)
        assert (status, OUTSIDE in err, "KEY" in out + err) == (1, True, False)
    status, out, err = ran("info", name)  # what one looks at an index with before one trusts it
    assert (status, err, "OUTSIDE, not checked" in out) == (0, "", True)
    assert ran(*converting, "--root", home / ".ssh")[0] == 0


def test_the_idx_beside_a_source_is_checked_too(home):
    write_pair(home / "documents/corpus", [[1, 2], [3]])
    os.link(home / "documents/corpus.bin", "corpus.bin")
    os.symlink(home / "documents/corpus.idx", "corpus.idx")
    mmapds.build("corpus.bin", out="theirs.mmx")  # named here, which is the user's word
    for read in (lambda: verify(Index("theirs.mmx")), lambda: mmapds.build("theirs.mmx", force=True)):
        with pytest.raises(mmapds.SourceError, match=r"found .*/documents/corpus\.idx"):
            read()
    verify(Index("theirs.mmx", places_of(home / "documents")))
    assert [each.tolist() for each in mmapds.open("theirs.mmx")] == [[1, 2], [3]]  # which reads no .idx


def test_paths_of_no_file_are_refused(home):
    os.mkfifo("pipe")
    for path in (".", "..", "", "deep/", "/", "/dev/zero", "/proc/self/environ", "a/../..", "pipe"):
        name = forged("theirs.mmx", path, like=home / ".ssh/id_rsa")
        for read in (READERS["open"], READERS["build"], READERS["verify"]):
            with pytest.raises((mmapds.SourceError, mmapds.StaleIndexError)) as error:
                read(name)
            assert type(error.value) is mmapds.SourceError or path in ("", ".", "deep/")
    assert "pipe: expected a regular file, found a FIFO" in str(error.value)


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
    mmapds.build("../shared/*.jsonl", out="corpus.mmx", columns={"size": "bytes()"})
    return tmp_path


def test_messages_say_what_opening_an_index_of_files_elsewhere_takes_and_keep_given_roots(elsewhere, ran):
    with pytest.raises(mmapds.SourceError) as error:
        mmapds.open("corpus.mmx")
    given = str(error.value).partition("open it with roots=")[2].partition(" (if")[0]
    assert len(mmapds.open("corpus.mmx", roots=json.loads(given.replace("'", '"')))) == 6
    option = ran("verify", "corpus.mmx")[2].partition("; add ")[2].partition(" (if")[0]
    assert ran("verify", "corpus.mmx", *shlex.split(option))[0] == 0
    with open("../shared/b.jsonl", "a") as file:
        file.write('{"n": "b"}\n')
    with pytest.raises(mmapds.StaleIndexError) as error:
        mmapds.open("corpus.mmx", roots="..")
    words = shlex.split(str(error.value).rpartition("; run: python ")[2])
    assert words[-2:] == ["--root", str(elsewhere)]
    assert run(*words).returncode == 0
    assert len(mmapds.open("corpus.mmx", roots="..")) == 7


def test_roots_of_all_kinds(elsewhere, monkeypatch):
    os.symlink(elsewhere, "way")
    for roots in ("../shared", elsewhere / "shared", [elsewhere], "/", ["nowhere", "way"], ("../shared/",)):
        assert len(mmapds.open("corpus.mmx", roots=roots)) == 6
    for roots in ("nowhere", ["../shar"], "", [], "../shared/a.jsonl", "."):
        with pytest.raises(mmapds.SourceError, match=OUTSIDE):
            mmapds.open("corpus.mmx", roots=roots)
    monkeypatch.setenv("MMAPDS_ROOTS", f":/nowhere:{elsewhere}/shared")
    assert len(mmapds.open("corpus.mmx")) == 6


def test_every_verb_takes_roots(elsewhere):
    assert convert("../shared/a.jsonl", "out.mma").records == 3  # named here, so it needs none
    roots = elsewhere / "shared"
    mmapds.add_column("corpus.mmx", "x", len, roots=roots)
    assert mmapds.open("corpus.mmx", roots=roots).column("x").tolist() == [1] * 6
    with pytest.warns(UserWarning, match="column 'x', which was computed in Python, is dropped"):
        mmapds.build("corpus.mmx", force=True, roots=roots)
    assert convert("corpus.mmx", "all.mma", roots=roots).records == 6
    assert len(mmapds.open(mmapds.merge("corpus.mmx", out="more.mmx", roots=roots), roots=roots)) == 6
    verify(Index("corpus.mmx", places_of(roots)))


def test_open_datasets_and_pickles_keep_paths_and_roots(elsewhere, monkeypatch):
    monkeypatch.setenv("MMAPDS_ROOTS", str(elsewhere))
    ds = mmapds.open("corpus.mmx")
    monkeypatch.delenv("MMAPDS_ROOTS")
    given, beside = mmapds.open("corpus.mmx", roots="../shared"), mmapds.open("../shared/a.jsonl", build=True)
    copies = [pickle.dumps(each) for each in (ds, ds[2:], given, mmapds.concat([ds, ds[:1]]), beside)]
    copies += [pickle.dumps(pickle.loads(copies[0])), pickle.dumps(mmapds.concat([pickle.loads(copies[0]), ds]))]
    monkeypatch.chdir("/")
    assert [len(list(pickle.loads(each))) for each in copies] == [6, 4, 6, 7, 3, 6, 12]
    assert (len(list(given)), len(list(beside))) == (6, 3)


# ---- links that the user names --------------------------------------------------------------------------------------


def test_links_that_the_user_names_are_followed_and_those_that_an_index_names_need_roots(elsewhere):
    os.makedirs("data")
    for name in ("a.jsonl", "b.jsonl"):
        os.symlink(elsewhere / "shared" / name, f"data/{name}")
    for named in (["data/a.jsonl", "data/b.jsonl"], "data/*.jsonl", "data/{a,b}.jsonl"):
        mmapds.build(named)
        assert len(mmapds.open(named)) == 6
    with pytest.raises(mmapds.SourceError):
        mmapds.open("data/a.jsonl.mmx")
    assert len(mmapds.open(["data/a.jsonl.mmx", "data/a.jsonl"])) == 3  # named in the same call
    mmapds.build("data/*.jsonl", out="data/all.mmx")
    with pytest.raises(mmapds.SourceError, match=r"found .*/shared/a\.jsonl; open it with roots="):
        mmapds.open("data/all.mmx")
    assert len(mmapds.open("data/all.mmx", roots="../shared")) == 6


def test_links_inside_the_directory_need_no_word(write, tmp_path):
    write([1, 2], "data/real/a.jsonl")
    write([3], "data/real/b.jsonl")
    os.symlink("real/b.jsonl", tmp_path / "data/b.jsonl")
    os.symlink("real", tmp_path / "data/also")
    os.symlink("data", tmp_path / "way")
    mmapds.build([tmp_path / "data/b.jsonl", tmp_path / "data/also/a.jsonl"], out=tmp_path / "data/all.mmx")
    assert list(mmapds.open(tmp_path / "way/all.mmx")) == [3, 1, 2]


# ---- forged fields and numbers, with checksums that are right ------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*computed in Python, is dropped")
@pytest.mark.parametrize("kind", [*KINDS, *COMPRESSED])
def test_a_forged_index_is_refused_or_right_or_verify_finds_it(tmp_path, kind):
    """Odd values in every place of its metadata, and some of the changes that `make torture` makes for hours."""
    random = Random(0)
    with small_blocks():
        index, before, check = index_of(random, tmp_path, kind)
        for number, place in enumerate([*places(Forgery(before).metadata)][1:]):
            for value in ["gone", *ODD][number % 12 :: 12] + OBJECTS * (place[-1] == "dtype"):  # which are pointers
                forgery = Forgery(before)
                forgery.metadata = changed(forgery.metadata, place, value)
                put(index, forgery, [f"{place} = {value!r}"], check)
        for _ in range(100):
            forgery = Forgery(before)
            put(index, forgery, [forgery.change(random)], check)
