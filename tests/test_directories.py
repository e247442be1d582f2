"""Which files of a directory are taken, and what is said of the others."""

import warnings

import pytest

import mmapds
from mmapds import formats
from mmapds.convert import SUFFIXES as CONVERTED
from mmapds.convert import convert
from tests.support import commands

SUFFIXES = f"{' '.join(formats.SUFFIXES)} (or .gz .bgz .zst behind these)"
OTHERS = ["b.json", "c", "d.json.gz"]


@pytest.fixture
def mixed(write, tmp_path):
    for name in ("a.jsonl", "f.JSONL", *OTHERS):
        write([{"name": name}], f"d/{name}")
    for name in ("README.md", "LICENSE", "_SUCCESS", ".hidden.json", "a.jsonl.mmx.lock"):
        write(b"", f"d/{name}")
    (tmp_path / "d/below").mkdir()
    return tmp_path / "d"


def names(ds):
    return [sample["name"] for sample in ds]


def line(directory, others, suffixes=SUFFIXES):
    unit = "file" if len(others) == 1 else "files"
    found = f"{len(others)} {unit} whose names do not end in {suffixes}: {', '.join(others)}"
    return f"{directory}: passed over {found}; give them by name, or by a glob"


def test_what_is_passed_over_is_named_by_open_build_and_the_command(mixed):
    with pytest.warns(UserWarning, match="passed over") as caught:
        mmapds.build(mixed)
    assert [(str(each.message), each.filename) for each in caught] == [(line(mixed, OTHERS), __file__)]
    with pytest.warns(UserWarning, match="passed over") as caught:
        ds = mmapds.open(mixed)
    expected = line(mixed, OTHERS, SUFFIXES.replace(" (or", " .mmx (or"))
    assert [(str(each.message), each.filename) for each in caught] == [(expected, __file__)]
    assert names(ds) == ["a.jsonl", "f.JSONL"], "case does not count"
    done = commands.command(mixed, "-o", mixed / "all.mmx")
    assert (done.returncode, done.stderr) == (0, f"{line(mixed, OTHERS)}\n")


INDEXES_TOO = SUFFIXES.replace(" (or", " .mmx (or")
COMMANDS = {  # what the names end in of files that a command takes
    "info": INDEXES_TOO,
    "verify": INDEXES_TOO,
    "convert": f"{' '.join(CONVERTED)} (or .gz .bgz .zst behind these)",
    "seekable": ".jsonl .ndjson .gz .bgz .zst .zstd",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_other_commands_name_what_they_pass_over_too(mixed, name):
    (mixed / "d.json.gz").rename(mixed / "d.txt")  # which no command takes
    mmapds.build([mixed / "a.jsonl", mixed / "f.JSONL"])
    out = ["-o", mixed / "out.mma"] if name == "convert" else []
    done = commands.mmapds(name, mixed, *out)
    assert (done.returncode, done.stderr) == (0, f"{line(mixed, ['b.json', 'c', 'd.txt'], COMMANDS[name])}\n")


@pytest.mark.parametrize("name", ["head", "report", "bench"])
def test_commands_print_warnings_as_lines(mixed, tmp_path, name):
    mmapds.build([mixed / "a.jsonl", mixed / "f.JSONL"])
    options = {"report": ["--ranks", 1, "-o", tmp_path / "a.html"], "bench": ["--seconds", 0.1, "--no-processes"]}
    done = commands.mmapds(name, mixed, *options.get(name, []))
    assert (done.returncode, done.stderr) == (0, f"warning: {line(mixed, OTHERS, INDEXES_TOO)}\n")


def test_convert_warns_of_what_it_passes_over(mixed, tmp_path):
    with pytest.warns(UserWarning, match="passed over") as caught:
        convert(mixed, tmp_path / "out.mma")
    assert [(str(each.message), each.filename) for each in caught] == [
        (line(mixed, OTHERS, COMMANDS["convert"]), __file__)
    ]


def test_a_file_with_an_index_beside_it_is_taken_whatever_its_name(mixed):
    for name in ("b.json", "c"):
        mmapds.build(mixed / name)
    with pytest.warns(UserWarning, match=r"passed over 1 file .*: d\.json\.gz; give"):
        assert names(mmapds.open(mixed, build=True)) == ["a.jsonl", "b.json", "c", "f.JSONL"]
    mmapds.build(mixed / "d.json.gz")
    assert names(mmapds.open(mixed)) == ["a.jsonl", "b.json", "c", "d.json.gz", "f.JSONL"]


def test_an_index_alone_may_have_the_other_files_for_sources(write, tmp_path):
    source = write([{"name": "b"}], "d/b.json")
    mmapds.build([source], out=tmp_path / "d/all.mmx")
    assert names(mmapds.open(tmp_path / "d")) == ["b"]


def test_many_others_are_counted(write, tmp_path):
    write([{"n": 0}], "d/a.jsonl")
    for number in range(11):
        write([{"n": 1}], f"d/{number:02}.json")
    with pytest.warns(UserWarning, match=r"passed over 11 files .*: 00\.json, .*, 07\.json and 3 more; give"):
        mmapds.build(tmp_path / "d")


def test_a_directory_of_others_alone_lists_all_suffixes(write, tmp_path):
    write([{"n": 0}], "d/a.json")
    with pytest.raises(mmapds.SourceError) as caught:
        mmapds.build(tmp_path / "d")
    found = f"{tmp_path / 'd'}: expected files whose names end in {SUFFIXES}, found none"
    assert str(caught.value).startswith(found)


def test_merging_takes_indexes_only(write, tmp_path):
    for name in ("a", "b.json"):
        mmapds.build(write([{"name": name}], f"d/{name}"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(mmapds.open(mmapds.merge(tmp_path / "d", out=tmp_path / "d/all.mmx"))) == ["a", "b.json"]
