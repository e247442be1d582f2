"""Messages name options in the words of the user: arguments in Python, flags to whoever runs a command. Both work."""

import json
import re

import pyarrow as pa
import pytest

import mmapds
from mmapds.__main__ import main
from mmapds.convert import convert
from mmapds.errors import as_command, either, option, shortened
from tests.support.commands import mmapds as tool
from tests.support.compressed import WRITERS, text
from tests.support.conversions import save
from tests.support.messages import check


@pytest.fixture(autouse=True)
def files(tmp_path, monkeypatch):
    """Something wrong of each kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"n": 1}\nbad\n')
    (tmp_path / "lacks.jsonl").write_text('{"n": 1}\n{"m": 1}\n')
    (tmp_path / "cut.bin").write_bytes(b"\1\0\0\0a\5\0\0\0ab")
    (tmp_path / "unknown.bin").write_bytes(bytes(8))
    (tmp_path / "part.jsonl").write_bytes(text(50))
    (tmp_path / "part.jsonl.zst").write_bytes(WRITERS["many"][1](text(50)))


BUILDS = {
    "bad.jsonl": ({"validate": True}, {"bad": "skip"}, "bad='skip'", "--bad skip"),
    "lacks.jsonl": (
        {"length": "n"},
        {"missing": "skip"},
        "missing='skip' ",
        "--missing skip ",
    ),
    "cut.bin": ({"format": "prefixed"}, {"truncated": "drop"}, "truncated='drop'", "--truncated drop"),
    "unknown.bin": ({}, {"format": "jsonl"}, "format=...", "--format F"),
}


def flags(options):
    """Options of a command."""
    given = [(f"--{name}", value) for name, value in options.items()]
    return [word for name, value in given for word in ([name] if value is True else [name, value])]


def compared(call, command, in_python, in_command):
    """Assert that Python and the command are told the same, each in its words."""
    with pytest.raises(mmapds.Error) as error:
        call()
    said, printed = str(error.value), tool(*command).stderr.strip()
    check(said)
    check(printed)
    assert in_python in said
    assert in_command in printed
    assert printed.replace(in_command, in_python) == said
    assert not re.search(r"(?<![\w-])--?[a-z]", said.partition("run: ")[0]), said


@pytest.mark.filterwarnings("ignore:.* left out of")
@pytest.mark.parametrize("name", BUILDS)
def test_indexing(name):
    options, mends, *words = BUILDS[name]
    compared(lambda: mmapds.build(name, **options), ["index", name, *flags(options)], *words)
    mmapds.build(name, **{**options, **mends})
    ran = tool("index", name, "--force", *flags({**options, **mends}))
    assert ran.returncode == 0, ran.stderr


CONVERSIONS = {
    "nulls.parquet": ({"types": {"x": "int64"}}, "defaults= or missing='skip'", "--defaults or --missing skip"),
    "large.parquet": ({"max_bytes": 1}, "max_bytes=", "--max-bytes "),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_converting(name, tmp_path):
    for table, values in ("nulls", [1, None]), ("large", list(range(9))):
        save(pa.table({"x": pa.array(values, pa.int64())}), tmp_path / f"{table}.parquet")
    options, *words = CONVERSIONS[name]
    given = {key: json.dumps(value) if key == "types" else str(value) for key, value in options.items()}
    flagged = [word for key, value in given.items() for word in (f"--{key.replace('_', '-')}", value)]
    compared(lambda: convert(name, **options), ["convert", name, *flagged], *words)


def test_a_command_ends_with_its_block():
    assert option("bad", "skip") == "bad='skip'"
    with as_command():
        assert option("bad", "skip") == "--bad skip"
        with as_command():
            assert option("record_bytes", True) == "--record-bytes"
        assert either("-o", "out=") == "-o"
    with pytest.raises(ValueError, match="x"), as_command():
        raise ValueError("x")
    assert option("force", True) == "force=True"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1, 2], "[1, 2]"),
        ([16234, 24935, 14728, 15474], "[16234, 24935, 14..."),
        ("x" * 30, "'xxxxxxxxxxxxxxxx..."),
        (b"x" * 10, "b'xxxxxxxxxx'"),
    ],
)
def test_a_long_value_is_cut(value, text):
    assert shortened(value, 20) == text
    assert "int object" in shortened(10**5000)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seekable part.jsonl --long 99", "--long = 99, expected 10 to 31"),
        ("index bad.jsonl --workers 0", "--workers = 0, expected 1 or more"),
        ("convert bad.jsonl --format foo", "--format = 'foo', expected one of 'arrays', 'fixed', "),
        ("report bad.jsonl --pack 5 --max-tokens 7", "--pack = 5, expected None beside max_tokens"),
    ],
)
def test_what_an_option_cannot_be_begins_with_its_name(line, message, capsys):
    assert main(line.split()) == 2
    assert capsys.readouterr().err.startswith(message)
