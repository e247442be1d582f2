"""What is not what it seems: files that are not JSON Lines, compressed files by wrong names, and lines that are bad."""

import bz2
import gzip
import json
import lzma
import os
import shutil
import subprocess

import pytest

import mmapds
from mmapds.convert import convert
from tests.support.commands import command
from tests.support.messages import check
from tests.support.zstd_files import zstd

RECORDS = [{"id": 1, "text": "a, b"}, {"id": 2, "text": "é\n"}, {"id": 3, "text": "x" * 5000}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
PACK = {"zst": zstd.compress, "gz": gzip.compress}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text):
    with open(name, "wb") as file:
        file.write(PACK.get(name.rpartition(".")[2], bytes)(text if isinstance(text, bytes) else text.encode()))
    return name


def refused(path, kind=mmapds.FormatError):
    """The message of indexing a file, by command and function alike but for options; nothing is written."""
    before = sorted(os.listdir())
    with pytest.raises(kind) as error:
        mmapds.build(path)
    check(str(error.value))
    assert command(path).stderr == f"{error.value}\n".replace("format='jsonl'", "--format jsonl")
    assert sorted(os.listdir()) == before
    return str(error.value)


# ---- files that are not JSON Lines --------------------------------------------------------------------------------

ROWS = json.dumps(RECORDS[:2] * 1000)
ARRAYS = {
    "a.json": json.dumps(RECORDS),
    "a b.jsonl": ROWS,
    "a": f"\ufeff \n {json.dumps(RECORDS[:2] * 100_000)}\n\n \n",
    "b.json": '["a", {"a": 2}]\n',
    "a.jsonl.gz": ROWS,
    "a.ndjson.zst": json.dumps(RECORDS[:2]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_in_one_line(name):
    """What `json.dump(rows, file)` writes would be one record."""
    expected = (
        "not JSON Lines: expected a JSON value a line, found one JSON array; give format='jsonl' to take its lines"
    )
    assert refused(write(name, ARRAYS[name])) == f"{name}: {expected} as they are"
    mmapds.build(name, format="jsonl")
    assert list(mmapds.open(name)) == [json.loads(ARRAYS[name].lstrip("\ufeff"))]


OTHER_TEXT = {
    "a.json": json.dumps(RECORDS, indent=1),
    "a.jsonl": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "b.jsonl": "\ufeff" + json.dumps(RECORDS[0], indent=2),
    "c.jsonl": '{"n": 1}\r{"n": 2}\r',
    "d.jsonl": LINES.encode("utf-16"),
    "a.ndjson": '[\n{"n": 1},\n{"n": 2}\n]\n',
    "a.csv": "id,text\n1,a b\n",
    "a.tsv": "id\ttext\n1\ta b\n",
    "image.jsonl": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "zeros.jsonl": bytes(5000),
    "e.jsonl.gz": "nonsense\n",
    "f.jsonl.zst": json.dumps(RECORDS, indent=1),
}


@pytest.mark.parametrize("name", OTHER_TEXT)
def test_other_text_by_the_name_of_json_or_of_a_table(name):
    expected = "not JSON Lines: expected a JSON value a line, found other text; give format='jsonl' to take its lines"
    assert refused(write(name, OTHER_TEXT[name])) == f"{name}: {expected} as they are"
    mmapds.build(name, format="jsonl")
    assert command(name).returncode == 0, "an index keeps its format"
    with pytest.raises(mmapds.DecodeError, match=r":\d+ \(byte \d+\): not JSON: "):
        mmapds.open(name)[0]


LEGITIMATE = {
    "arrays": "[1, 2]\n[3]\n",
    "arrays of objects": '[{"a": 1}, {"a": 2}]\n\n[{"a": 3}]\n',
    "long arrays of objects": f"{json.dumps([{'a': 1}] * 200_000)}\n" * 2,
    "numbers": "1\n2\n",
    "strings": '"a, b"\n"c, d"\n',
    "blank lines first": "\n \n\t\n" + LINES,
    "a mark": "\ufeff" + LINES,
    "a long line first": json.dumps(RECORDS[2]) + "\n" + json.dumps(RECORDS[0]),
    "line ends of Windows": LINES.replace("\n", "\r\n"),
    "nothing": "",
    "blanks": " \n\n",
    "one number": "7",
}


@pytest.mark.parametrize("case", LEGITIMATE)
def test_json_lines_are_not_refused(case):
    text = LEGITIMATE[case]
    wanted = [json.loads(line) for line in text.lstrip("\ufeff").split("\n") if line.strip()]
    for name in ("a.json", "a.jsonl.gz", "a.csv", "a"):
        assert list(mmapds.open(mmapds.build(write(name, text)))) == wanted


@pytest.mark.parametrize(
    "text", ["Hello, world\nGood bye\n", "[Music]\n[Applause]\n", "a\tb\nc\td\n", "{\nmain()\n}\n"]
)
def test_lines_of_other_text_are_records(text):
    mmapds.build(write("a.txt", text))
    assert list(mmapds.open("a.txt", decode="text")) == text.splitlines()


BAD_LINES = {
    "NaN": '{"id": 0, "x": NaN, "y": 1}\n{"id": 1}\n',
    "dicts of Python": "{'id': 0, 'text': 'a'}\n{\"id\": 1}\n",
    "Latin-1": b'{"id": 0, "text": "\xe9"}\n{"id": 1}\n',
    "a line that is cut off": '{"id": 0, "text": "a\n{"id": 1, "text": "b"}\n',
    "a NUL": b'{"a": "\0\0"}\n{"a": 1}\n',
    "a line that the first 4,096 bytes cut": f'text\n{{"a": 1}}\n{json.dumps(RECORDS[2])}\n',
}


@pytest.mark.parametrize("text", BAD_LINES.values(), ids=BAD_LINES)
def test_bad_lines_are_errors_when_they_are_read(text):
    write("a.jsonl", text)
    for read in (lambda: mmapds.build("a.jsonl", validate=True), lambda: mmapds.open("a.jsonl", build=True)[0]):
        with pytest.raises(mmapds.DecodeError, match=r"^a\.jsonl:1 \(byte 0\): not JSON: "):
            read()
    with pytest.warns(UserWarning, match=r"1 such line left out of a\.jsonl\.mmx"):
        mmapds.build("a.jsonl", bad="skip", force=True)
    assert len(mmapds.open("a.jsonl")) == text.count("\n" if isinstance(text, str) else b"\n") - 1


# ---- compressed files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl.gz", b""),
        ("a.JSONL.GZ", b"\x1f"),
        ("a.json.bgz", b'{"n": 1}\n'),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfc"),
        ("a.tgz", bytes(10_240)),
    ],
)
def test_a_name_of_compressed_files_for_what_is_not_compressed(name, data):
    """As where a copy ended early, or changed one of the bytes by which compressed files are known."""
    with open(name, "wb") as file:
        file.write(data)
    codec, found = "zstd" if "zst" in name else "gzip", "other bytes" if data else "no bytes"
    assert refused(name, mmapds.SourceError) == f"{name}: expected {codec}, as its name says, found {found}"
    with pytest.raises(mmapds.SourceError, match=f"expected {codec}, as its name says"):
        convert(name, "out.mma")


@pytest.mark.parametrize("name", ["a.jsonl", "a.tar"])
def test_what_git_lfs_keeps_in_the_place_of_a_file(name):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"
    expected = "expected data, found what Git LFS keeps in its place; run: git lfs pull"
    assert refused(write(name, pointer), mmapds.SourceError) == f"{name}: {expected}"


@pytest.mark.parametrize(("tool", "compress"), [("bzip2", bz2.compress), ("xz", lzma.compress)])
def test_a_compressed_file_by_the_name_of_what_is_in_it(tool, compress):
    if not shutil.which(tool):
        pytest.skip(f"this machine has no {tool}")
    message = refused(write("a b.jsonl", compress(LINES.encode())), mmapds.SourceError)
    assert f"a b.jsonl: compressed ({tool}): expected a file whose records can be read in place; run: " in message
    subprocess.run(message.partition("; run: ")[2], shell=True, check=True)
    assert list(mmapds.open("a b.plain.jsonl", build=True)) == RECORDS
