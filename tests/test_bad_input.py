"""What is not what it seems: each message has a command, which is run, and then the records are there."""

import bz2
import gzip
import json
import lzma
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest

import mmapds
from mmapds.convert import convert
from tests.support.commands import command
from tests.support.messages import check
from tests.support.zstd_files import zstd

RECORDS = [{"id": 1, "text": "a, b"}, {"id": 2, "text": "é\n"}, {"id": 3, "text": "x" * 5000}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
PRETTY = "".join(json.dumps(record, indent=2) + "\n" for record in RECORDS)
TABLE = "id{0}text\n1{0}a b\n2{0}é\n"


def run(message):
    """Run the command of a message in a shell, with this Python as `python`."""
    found = message.partition("; run: ")[2]
    assert found, message
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    ran = subprocess.run(
        found, shell=True, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    assert ran.returncode == 0, (found, ran.stderr)
    return found


def refused(path, kind=mmapds.FormatError):
    """The message of indexing a file, by command and function alike but for options; nothing is written."""
    before = sorted(os.listdir())
    with pytest.raises(kind) as error:
        mmapds.build(path)
    assert command(path).stderr == f"{error.value}\n".replace("format='jsonl'", "--format jsonl")
    assert sorted(os.listdir()) == before
    return str(error.value)


def needs(tool):
    if not shutil.which(tool):
        pytest.skip(f"this machine has no {tool}")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(name, text, encoding="utf-8"):
    with open(name, "wb") as file:
        file.write(text if isinstance(text, bytes) else text.encode(encoding))
    return name


ARRAYS = {
    "over lines": json.dumps(RECORDS, indent=1),
    "a record a line": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "commas first": "[ " + "\n, ".join(map(json.dumps, RECORDS)) + "\n]",
    "with a byte order mark": "\ufeff \n" + json.dumps(RECORDS, indent=1),
}


@pytest.mark.parametrize("name", ["a b.json", "a.jsonl", "a"])
@pytest.mark.parametrize("array", ARRAYS)
def test_a_json_array(name, array):
    message = refused(write(name, ARRAYS[array]))
    assert message.startswith(f"{name}: not JSON Lines: expected a record a line, found one JSON array; give ")
    out = run(message).rpartition(" > ")[2].strip("'")
    assert list(mmapds.open(out, build=True)) == RECORDS


def test_a_json_array_in_one_line():
    for text in (json.dumps(RECORDS), json.dumps(RECORDS[:2]) + "\n"):
        message = refused(write("a.json", text))
        assert "found one JSON array; give " in message
        run(message)
        assert list(mmapds.open("a.jsonl", build=True)) == json.loads(text)
        os.remove("a.jsonl")


@pytest.mark.parametrize("name", ["a.jsonl", "a.ndjson", "a"])
@pytest.mark.parametrize("times", [1, 1000, 100_000])
def test_rows_in_one_line(name, times):
    """What `json.dump(rows, file)` writes would be one record."""
    rows = RECORDS[:2] * times
    for before, after in (("", ""), ("\ufeff\n ", "\n\n \n")):
        message = refused(write(name, before + json.dumps(rows) + after))
        assert "found one JSON array; give " in message
        assert "give format='jsonl' to take its lines as they are" in message
    out = run(message).rpartition(" > ")[2].strip("'")
    assert list(mmapds.open(out, build=True)) == rows
    mmapds.build(name, format="jsonl")
    assert list(mmapds.open(name)) == [rows]


def test_the_command_of_jq_does_the_same():
    needs("jq")
    also = re.search(r" \(or with (jq -c [^;]*)\);", refused(write("a.json", json.dumps(RECORDS, indent=1))))[1]
    run(f"; run: {also}")
    assert list(mmapds.open("a.jsonl", build=True)) == RECORDS


COMPRESSED = {"a b.json.gz": gzip.compress, "a b.jsonl.zst": zstd.compress}


@pytest.mark.parametrize("name", COMPRESSED)
@pytest.mark.parametrize("array", [*ARRAYS.values(), json.dumps(RECORDS[:2] * 1000)])
def test_a_compressed_json_array(name, array):
    needs(name.rpartition(".")[2].replace("zst", "zstd").replace("gz", "gzip"))
    message = refused(write(name, COMPRESSED[name](array.encode())))
    assert message.startswith(f"{name}: not JSON Lines: expected a record a line, found one JSON array; give ")
    assert run(message).rpartition(" > ")[2] == "'a b.jsonl'"
    assert list(mmapds.open("a b.jsonl", build=True)) == json.loads(array.removeprefix("\ufeff"))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.jsonl.gz", b""),
        ("a.JSONL.GZ", b"\x1f"),
        ("a.json.bgz", b'{"n": 1}\n'),
        ("a.jsonl.gz", b"\x1f\x8a" + gzip.compress(b"{}\n" * 9, mtime=0)[2:]),
        ("a.jsonl.zst", b"\x28\xb5\x2f\xfc"),
        ("a.tgz", bytes(10_240)),
        ("a.tzst", bytes(10_240)),
    ],
)
def test_a_name_of_compressed_files_for_what_is_not_compressed(name, data):
    """As where a copy ended early, or changed one of the bytes by which compressed files are known."""
    codec, found = "zstd" if "zst" in name else "gzip", "other bytes" if data else "an empty file"
    message = refused(write(name, data), mmapds.SourceError)
    assert message == (
        f"{name}: expected {codec}, as its name says, found {found}; copy the file again, or rename it if it is not "
        "compressed"
    )
    with pytest.raises(mmapds.SourceError, match=f"expected {codec}, as its name says"):
        convert(name, "out.mma")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.tar", "a.npy"])
def test_what_git_lfs_keeps_in_the_place_of_a_file(name):
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n"
    expected = "expected data, found what Git LFS keeps in its place; run: git lfs pull"
    assert refused(write(name, pointer), mmapds.SourceError) == f"{name}: {expected}"


@pytest.mark.parametrize("name", COMPRESSED)
def test_other_text_that_is_compressed(name):
    needs("zstd")
    compress, encoded = COMPRESSED[name], json.dumps(RECORDS[0]).encode("utf-16")
    out = run(refused(write(name, compress(encoded)))).rpartition(" > ")[2].strip("'")
    assert mmapds.open(out, build=True)[0] == RECORDS[0]
    os.remove(out)
    one = json.dumps(RECORDS[2], indent=4).encode()
    message = refused(write(name, compress(one)))
    run("; run: " + re.search(r"one value alone with (.*)\); run", message)[1])
    assert list(mmapds.open("a b.jsonl", build=True)) == RECORDS[2:]


def test_a_compressed_json_array_that_is_damaged():
    for name, compress in COMPRESSED.items():
        with pytest.raises(mmapds.FormatError):
            mmapds.build(write(name, compress(json.dumps(RECORDS * 9000).encode())[:-20]))


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_json_over_several_lines(name):
    needs("jq")
    message = refused(write(name, PRETTY))
    assert message.startswith(f"{name}: not JSON Lines: expected a record a line, found JSON over several lines; give ")
    out = run(message).rpartition(" > ")[2]
    assert list(mmapds.open(out, build=True)) == RECORDS


def test_one_value_over_several_lines():
    message = refused(write("a.json", json.dumps(RECORDS[2], indent=4)))
    run("; run: " + re.search(r"one value alone with (.*)\); run", message)[1])
    assert list(mmapds.open("a.jsonl", build=True)) == RECORDS[2:]


@pytest.mark.parametrize(
    ("name", "delimiter"),
    [
        ("a.csv", ","),
        ("a.csv", ";"),
        ("a.csv", "|"),
        ("a.csv", "\t"),
        ("a.tsv", "\t"),
        ("a.tsv", ";"),
    ],
)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_table(name, delimiter, mark):
    message = refused(write(name, mark + TABLE.format(delimiter)))
    shown = "tabs" if delimiter == "\t" else repr(delimiter)
    assert message.startswith(f"{name}: not JSON Lines: expected JSON, found a table with {shown} between cells; give ")
    out = run(message).rpartition(" > ")[2]
    assert list(mmapds.open(out, build=True)) == [{"id": "1", "text": "a b"}, {"id": "2", "text": "é"}]


def test_a_table_of_one_column():
    message = refused(write("a.csv", "text\na b\n"))
    assert message.startswith("a.csv: not JSON Lines: expected JSON, found a table with ',' between cells; give ")


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")])
def test_a_table_with_the_line_ends_of_old_macs(name, delimiter):
    out = run(refused(write(name, TABLE.format(delimiter).replace("\n", "\r")))).rpartition(" > ")[2]
    assert list(mmapds.open(out, build=True)) == [{"id": "1", "text": "a b"}, {"id": "2", "text": "é"}]


def test_a_table_whose_names_hold_other_delimiters():
    message = refused(write("a.csv", '"a, b; c";text\n1;x\n'))
    out = run(message).rpartition(" > ")[2]
    assert list(mmapds.open(out, build=True)) == [{"a, b; c": "1", "text": "x"}]


OLD_ENDS = {
    "objects": [*RECORDS, {"id": 4}],
    "arrays": [[1, 2], [3], []],
    "strings": ["a", "b\r"],
    "many": RECORDS * 1000,
}


@pytest.mark.parametrize("name", ["a b.jsonl", "a.json", "a"])
@pytest.mark.parametrize("records", OLD_ENDS.values(), ids=OLD_ENDS)
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_that_end_as_on_old_macs(name, records, mark):
    message = refused(write(name, mark + "".join(json.dumps(record) + "\r" for record in records)))
    assert message.startswith(rf"{name}: not JSON Lines: expected lines that end in '\n', found '\r' alone; give ")
    assert "; run: tr " in message
    out = run(message).rpartition(" > ")[2].strip("'")
    assert list(mmapds.open(out, build=True)) == records


def test_compressed_lines_that_end_as_on_old_macs():
    needs("zstd")
    for name, compress in COMPRESSED.items():
        message = refused(write(name, compress(LINES.replace("\n", "\r\r").encode())))
        assert run(message).rpartition(" > ")[2] == "'a b.lf.jsonl'"
        assert list(mmapds.open("a b.lf.jsonl", build=True)) == RECORDS
        os.remove("a b.lf.jsonl")


@pytest.mark.parametrize("text", ['{"a":\r"b",\r"c":\r[1,\r{"d": 2}]\r}', '{"a": 1}\r', '{"a": 1}\r\n{"a": 2}\r\n'])
@pytest.mark.parametrize("end", ["", "\n"])
def test_other_carriage_returns_are_spaces(text, end):
    first = text.partition("\n")[0]
    assert mmapds.open(write("a.jsonl", text + end), build=True)[0] == json.loads(first)


BAD_LINES = {
    "NaN": '{"id": 0, "x": NaN, "y": 1}\n{"id": 1, "x": NaN, "y": 2}\n',
    "dicts of Python": "{'id': 0, 'text': 'a'}\n{'id': 1, 'text': 'b'}\n",
    "Latin-1": b'{"id": 0, "text": "\xe9"}\n{"id": 1, "text": "\xe9"}\n',
    "a quote that is not closed": '"It was the best of times\n' + "it was the worst of times\n" * 400,
    "a table": "id,text\n1,a b\n",
    "lines that are cut off": '{"id": 0, "text": "a\n{"id": 1, "text": "b\n',
}


@pytest.mark.parametrize("text", BAD_LINES.values(), ids=BAD_LINES)
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_lines_that_are_not_json_are_errors_when_they_are_read(name, text):
    write(name, text)
    for read in (lambda: mmapds.build(name, validate=True), lambda: mmapds.open(name, build=True)[0]):
        with pytest.raises(mmapds.DecodeError, match=rf"^{name}:1 \(byte 0\): not JSON: "):
            read()


def test_a_line_in_latin_1_says_which_byte():
    write("a.jsonl", b'{"text": "\xe9"}\n')
    with pytest.raises(
        mmapds.DecodeError, match="not JSON: expected text in UTF-8, found byte 0xe9 at char 10 of the line"
    ):
        mmapds.build("a.jsonl", validate=True)


def test_a_field_of_bools_is_computed():
    write("a.jsonl", '{"ok": true}\n{"ok": false}\n')
    with pytest.raises(
        mmapds.ColumnError, match=r"expected a number at `ok`, found true; add the column with mmapds.add"
    ):
        mmapds.build("a.jsonl", columns={"ok": "ok"})
    mmapds.build("a.jsonl")
    mmapds.add_column("a.jsonl", "ok", lambda sample: sample["ok"])
    assert mmapds.open("a.jsonl").column("ok").tolist() == [1, 0]


def test_damaged_lines_are_left_out_wherever_they_are():
    write("a.jsonl", '{"id": 0, "x": NaN}\n' * 2 + '{"id": 1, "x": 1.0}\n' * 98)
    with pytest.warns(UserWarning, match=r"2 such lines left out of a\.jsonl\.mmx"):
        mmapds.build("a.jsonl", bad="skip")
    assert len(mmapds.open("a.jsonl")) == 98


def test_json_lines_by_the_name_of_a_table():
    write("a.csv", LINES)
    assert list(mmapds.open("a.csv", build=True)) == RECORDS


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_text_that_is_not_utf_8(name, encoding):
    needs("iconv")
    message = refused(write(name, LINES, encoding))
    assert message.startswith(f"{name}: not UTF-8: expected text in UTF-8, found {encoding.upper()}; give ")
    assert "; run: iconv " in message
    out = run(message).rpartition(" > ")[2]
    assert list(mmapds.open(out, build=True)) == RECORDS


LEGITIMATE = {
    "arrays": "[1, 2]\n[3]\n",
    "an array": '["a", {"a": 2}]\n',
    "arrays of objects": '[{"a": 1}, {"a": 2}]\n\n[{"a": 3}]\n',
    "long arrays of objects": f"{json.dumps([{'a': 1}] * 200_000)}\n" * 2,
    "numbers": "1\n2\n",
    "strings": '"a, b"\n"c, d"\n',
    "blank lines first": "\n \n\t\n" + LINES,
    "one pretty line": '{ "a" : 1 }\n',
    "a mark": "\ufeff" + LINES,
    "long lines": json.dumps(RECORDS[2]) + "\n" + json.dumps(RECORDS[0]),
    "objects of objects": '{"a": {"b": [1, 2]}}\n{"a": {}}\n',
    "line ends of Windows": LINES.replace("\n", "\r\n"),
    "nothing": "",
    "blanks": " \n\n",
    "one number": "7",
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson", "a"])
@pytest.mark.parametrize("case", LEGITIMATE)
def test_json_lines_are_not_refused(name, case):
    if (name, case) == ("a.json", "an array"):
        return  # by that name it is an array
    text = LEGITIMATE[case]
    mmapds.build(write(name, text))
    assert list(mmapds.open(name)) == [json.loads(line) for line in text.lstrip("\ufeff").split("\n") if line.strip()]


BINARY = {
    "a PNG image": b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    "a JPEG image": b"\xff\xd8\xff\xe0\0\x10JFIF\0",
    "a GIF image": b"GIF89a\1\0\1\0",
    "a PDF document": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n[1]\nendobj\n",
    "an ELF executable": b"\x7fELF\2\1\1" + bytes(9),
    "an SQLite database": b"SQLite format 3\0\x10\0",
    "a pickle of protocol 4": pickle.dumps(RECORDS, 4),
    "a pickle of protocol 5": pickle.dumps(RECORDS, 5),
    "a NUL byte at byte 0": bytes(5000),
    "a NUL byte at byte 1023": b"\xfe" * 1023 + b"\0\n" * 9,
    "a NUL byte at byte 1": b"\1\0\n{\xff\n" * 900,
    "a NUL byte at byte 2": b"\1\r\0\n7\n\xff true\nnull\n",  # compressed bytes hold such lines
}


@pytest.mark.parametrize("name", ["a b.jsonl", "a.json", "a.ndjson", "a.jsonl.zst", "a.jsonl.gz"])
@pytest.mark.parametrize("kind", BINARY)
def test_what_is_not_text(name, kind):
    compress = {"zst": zstd.compress, "gz": gzip.compress}.get(name.rpartition(".")[2], bytes)
    write(name, compress(BINARY[kind]))
    with pytest.raises(mmapds.FormatError) as error:
        mmapds.build(name)
    assert str(error.value) == (
        f"{name}: not JSON Lines: expected text, found {kind}; give the file that you mean, its format with "
        "format=..., or format='jsonl' to take its lines as they are"
    )
    check(str(error.value))
    found = str(error.value).replace("format=...", "--format F").replace("format='jsonl'", "--format jsonl")
    assert command(name).stderr == f"{found}\n"
    assert os.listdir() == [name]
    mmapds.build(name, format="jsonl")
    assert command(name).returncode == 0, "an index keeps its format"


MAY_BE_LINES = {
    "a damaged record first": b'{"a": "\0\0"}\n{"a": 1}\n',
    "a damaged record alone": b'{"a": "\0\0"}',
    "a damaged array": b"\xef\xbb\xbf\n [1, \0\n",
    "a hole at the end": LINES.encode()[:60] + bytes(5000),
    "a hole in the first line": bytes(40) + b"\n" + LINES.encode(),
    "a NUL later": b"some text\n" * 200 + b"\0",
    "text with control characters": b"\1\2\x7f\x80\n" * 400,
}


@pytest.mark.parametrize("name", MAY_BE_LINES)
def test_what_may_be_lines_though_it_has_nul_bytes(name):
    mmapds.build(write("a.jsonl", MAY_BE_LINES[name]))


@pytest.mark.parametrize(
    "text",
    [
        '{"n": 1, "te\n{"n": 2}\n',  # cut off
        '{"n":\n{"n": 2}\n',
        '{"n": 1',
        "[1, 2\n[3]\n",
        "bad\nworse\n",
        "nonsense, as it were\n" + LINES,
    ],
)
def test_damaged_lines_are_the_business_of_who_reads_them(text):
    mmapds.build(write("a.jsonl", text))


@pytest.mark.parametrize(
    "text", ["Hello, world\nGood bye, world\n", "[Music]\n[Applause]\n", "{\nint main(void)\n}\n", "a\tb\nc\td\n"]
)
def test_lines_of_other_text_are_records(text):
    mmapds.build(write("a.txt", text))
    assert list(mmapds.open("a.txt", decode="text")) == text.splitlines()


@pytest.mark.parametrize(
    ("name", "text"), [("a.json", PRETTY), ("a.csv", TABLE.format(",")), ("b.json", json.dumps(RECORDS))]
)
def test_a_format_that_is_given_is_taken(name, text):
    assert "format='jsonl'" in refused(write(name, text))
    mmapds.build(name, format="jsonl")
    assert list(mmapds.open(name, decode="text")) == text.splitlines()
    with open(name, "a") as file:
        file.write("1\n")
    assert command(name).returncode == 0


@pytest.mark.parametrize(("tool", "compress"), [("bzip2", bz2.compress), ("xz", lzma.compress)])
def test_a_compressed_file_by_the_name_of_what_is_in_it(tool, compress):
    needs(tool)
    message = refused(write("a b.jsonl", compress(LINES.encode())), mmapds.SourceError)
    assert (
        f"a b.jsonl: compressed ({tool}): expected a file whose records can be read in place; run: {tool} -dc <"
        in message
    )
    run(message)
    assert list(mmapds.open("a b.plain.jsonl", build=True)) == RECORDS
