"""Lines that are not JSON: where they are, and leaving them out when a source is indexed."""

import json
import os

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.index.verify import examine
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.commands import mmapds as tool
from tests.support.index_file import rewrite
from tests.support.messages import check
from tests.support.pieces import jsonl_in_blocks

BAD = [b'{"n": 2, "te', b'{"n": "\xff"}', b"nonsense", b'{"n": NaN}', b"{'n': 1}", b'{"n": 1}, ', b'"\\ud800"', b"[1,]"]
"""A line for each way not to be JSON."""


def good(number):
    return b'{"n": %d, "text": "%s"}' % (number, b"x" * (number % 7))


@pytest.fixture
def corpus(write):
    """A source of nine records and a bad line behind each of the first eight, blank lines here and there."""
    lines = []
    for number in range(9):
        lines += [good(number), *BAD[number : number + 1], *([b"  "] if number % 3 == 0 else [])]
    return write(b"\n".join(lines) + b"\n"), lines


def starts(lines):
    """Line number and byte of each bad line."""
    byte = 0
    for number, line in enumerate(lines, 1):
        if line in BAD:
            yield number, byte
        byte += len(line) + 1


@pytest.mark.parametrize("line", [*BAD, b'{"n": 1e400}', b"9" * 400, b'{"n": "\\udc00"}'])
def test_a_bad_line_is_an_error_that_says_where_and_what_to_do(write, line):
    path = write(good(0) + b"\n\n" + good(1) + b"\n" + line + b"\n" + good(2) + b"\n")
    where = f"{path}:4 (byte {len(good(0) + good(1)) + 3}): "
    with pytest.raises(mmapds.DecodeError) as error:
        mmapds.build(path, validate=True)
    assert str(error.value).startswith(f"{where}not JSON: ")
    assert str(error.value).endswith("; leave such lines out with bad='skip' (record 2 of the index)")
    ran = command(path, "--bad", "skip")
    told = f"{where}expected JSON, found other text (1 such line left out of {path}.mmx)"
    check(told)
    assert (ran.returncode, ran.stderr) == (0, f"warning: {told}\n")
    assert [record["n"] for record in mmapds.open(path)] == [0, 1, 2]


def test_every_message_says_the_byte_where_the_record_begins(write):
    path = write(good(0) + b"\n" + b'{"n": 1, "text": \n')
    byte = f"{path}:2 (byte {len(good(0)) + 1}): "
    for options in ({"validate": True}, {"length": "n"}, {"columns": {"c": "chars(text)"}}):
        with pytest.raises(mmapds.Error) as error:
            mmapds.build(path, **options)
        assert str(error.value).startswith(byte)
    mmapds.build(path)
    with pytest.raises(mmapds.DecodeError) as error:
        mmapds.open(path)[1]
    assert str(error.value).startswith(byte)
    assert mmapds.open(path).place(1) == byte.removesuffix(": ")


@pytest.mark.parametrize("block", [None, 3, 10, 64])
@pytest.mark.parametrize("columns", [{}, {"n": "n", "size": "bytes()"}])
def test_bad_lines_are_left_out_and_leave_no_trace(corpus, block, columns):
    path, lines = corpus
    chosen = jsonl_in_blocks(block) if block else None
    with pytest.warns(UserWarning, match=r"train.jsonl:2 \(byte 21\): expected JSON, .* \(8 such lines left out of"):
        mmapds.build(path, bad="skip", columns=columns, format=chosen, workers=3)
    ds = mmapds.open(path)
    wanted = [json.loads(line) for line in lines if line not in BAD and line.strip()]
    assert list(ds) == wanted
    assert ds.take([8, 0, 8]) == [wanted[8], wanted[0], wanted[8]]
    if columns:
        assert ds.column("n").tolist() == [record["n"] for record in wanted]
    source = Index(f"{path}.mmx").sources[0]
    assert (source.skipped, source.bad.lines) == (8, 8)
    assert list(source.bad.first) == list(starts(lines))
    assert not examine(Index(f"{path}.mmx")).problems


def test_sizes_say_whether_they_have_what_was_left_out(write):
    records = [good(number) for number in range(40)]
    whole = write(b"".join(each + b"\n" for each in records), "whole.jsonl")
    path = write(b"".join(each + b"\nbad line\n" for each in records))
    for source in (whole, path):
        assert command(source, "--bad", "skip").returncode == 0
    ds = mmapds.open(path)
    for number, record in enumerate(records):  # of a record alone, sizes are exact
        assert ds.raw(number) == record
        assert ds.where(number).size == len(record)
    for number in (0, 20, 39):
        assert f", {len(records[number])} bytes\n" in tool("show", path, number).stdout
    largest = max(map(len, records)) + len(b"\nbad line\n")
    for source, included in ((whole, False), (path, True)):
        assert ("left out  40 records" in tool("info", source).stdout) == included
    assert json.loads(command("--info", path, "--json").stdout)["indexes"][0]["largest"] == largest


def test_the_command_says_how_many_there_are(write):
    path = write(b"".join(good(number) + b"\nbad %d\n" % number for number in range(50)))
    assert command(path, "--bad", "skip", "--quiet").stderr.endswith(f" (50 such lines left out of {path}.mmx)\n")
    assert "; 50 records left out (50 not JSON)" in command(path).stdout
    verified = command("--verify", path).stdout
    assert "50 records left out (50 not JSON); verified" in verified
    assert "not checked: whether" not in verified
    (described,) = json.loads(command("--info", "--json", path).stdout)["indexes"]
    assert (described["left_out"], described["bad"]) == (50, 50)
    assert len(described["sources"][0]["bad"]) == 20
    assert described["sources"][0]["bad"][0] == {"line": 2, "byte": len(good(0)) + 1}


def test_an_index_that_is_built_again_keeps_leaving_them_out(corpus, write, tmp_path):
    path, _ = corpus
    out = str(tmp_path / "all.mmx")
    other = write([{"n": 1}], "b.jsonl")
    assert command(path, other, "-o", out, "--bad", "skip", "--length", "bytes()").returncode == 0
    assert command(out).stderr == ""
    with open(path, "ab") as file:
        file.write(b"bad\n" + good(9) + b"\n")
    assert (
        f"{path}:2 (byte 21): expected JSON, found other text (9 such lines left out of {out})" in command(out).stderr
    )
    assert [record["n"] for record in mmapds.open(out)] == [*range(10), 1]
    with open(path, "ab") as file:
        file.write(b"bad\n")
    with pytest.warns(UserWarning, match="10 such lines"):
        assert len(mmapds.open(out, build=True)) == 11
    with pytest.raises(mmapds.DecodeError, match="not JSON"):
        mmapds.build(out, bad="error")


def test_records_that_lack_a_field_and_bad_lines_are_counted_apart(write):
    path = write(b'{"n": 1}\nbad\n{"m": 1}\n{"n": 2}\n')
    with pytest.raises(
        mmapds.ColumnError, match=r"train.jsonl:3 \(byte 13\): .*found null or nothing; .* \(record 1 of the index\)"
    ):
        mmapds.build(path, length="n", bad="skip")
    ran = command(path, "--length", "n", "--bad", "skip", "--missing", "skip")
    assert "; 2 records left out (1 not JSON)" in ran.stdout
    assert mmapds.open(path).lengths.tolist() == [1, 2]
    assert command("--verify", path).returncode == 0


def test_a_field_of_the_wrong_type_is_not_a_bad_line(write):
    path = write(b'{"n": 1}\n{"n": "1"}\n')
    with pytest.raises(mmapds.ColumnError, match=r"found a string \(record 1"):
        mmapds.build(path, length="n", bad="skip", missing="skip")


def test_byte_order_marks_alone_are_bad_lines(write):
    """But for one where the file begins, which is blank then."""
    for text in (b"\n\xef\xbb\xbf\n", b"\xef\xbb\xbf\n\xef\xbb\xbf\n"):
        with pytest.raises(mmapds.DecodeError, match="expected JSON in one line or more, found it in 0 of 1"):
            mmapds.build(write(text), bad="skip")


def test_what_bad_refuses(write):
    with pytest.raises(mmapds.ColumnError, match="bad = 'drop', expected 'error' or 'skip'"):
        mmapds.build(write([1]), bad="drop")
    with pytest.raises(mmapds.ColumnError, match=r"^bad = 'skip', expected 'error' for records of a binary format$"):
        mmapds.build(write(bytes(8), "a.bin"), format="fixed", record_bytes=4, bad="skip")


@pytest.mark.parametrize(
    "bad", [3, {"lines": "x", "first": []}, {"lines": 1, "first": [3]}, {"lines": 1, "first": [[1, -1]]}]
)
def test_what_an_index_says_of_bad_lines_is_checked(write, bad):
    path = write(b"1\nbad\n")
    assert command(path, "--bad", "skip").returncode == 0
    rewrite(f"{path}.mmx", metadata=lambda found: found | {"sources": [found["sources"][0] | {"bad": bad}]})
    with pytest.raises(mmapds.FormatError, match="DAMAGED: malformed metadata"):
        mmapds.open(path)
    rewrite(f"{path}.mmx", metadata=lambda found: found | {"columns": found["columns"] | {"bad": "x"}})
    with pytest.raises(mmapds.FormatError, match="DAMAGED: malformed metadata"):
        mmapds.open(path)


def test_verify_finds_other_bad_lines(write):
    path = write(b"1\nbad\n")
    assert command(path, "--bad", "skip").returncode == 0
    bad = {"lines": 1, "first": [[1, 0]]}
    rewrite(f"{path}.mmx", metadata=lambda found: found | {"sources": [found["sources"][0] | {"bad": bad}]})
    assert "bad of" in command("--verify", path).stderr


# ---- everything left out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["skip", "0"])
@pytest.mark.parametrize("bad", [[], ["--bad", "skip"]])
def test_a_column_that_no_record_has_is_an_error(write, missing, bad):
    path = write(b"\n" + b'{"id": 1, "meta": {"frames": 3}}\n' * 3 + (b"bad\n" if bad else b""))
    for expression in ("txt", "meta.frame"):
        ran = command(path, "--length", expression, "--missing", missing, *bad)
        assert ran.returncode == 1
        assert ran.stderr.startswith(f"{path}: expected one record or more with '{expression}', found 0 of ")
        assert not os.path.exists(f"{path}.mmx")


def test_a_column_that_some_shard_lacks_is_no_error(write, tmp_path):
    paths = [write([{"m": 1}], "a.jsonl"), write([{"n": 1}], "b.jsonl")]
    for missing in ("skip", 0):
        mmapds.build(paths, out=tmp_path / "all.mmx", length="n", missing=missing)
    assert mmapds.open(tmp_path / "all.mmx").lengths.tolist() == [0, 1]
    assert command("--verify", tmp_path / "all.mmx").returncode == 0


def test_columns_of_different_records(write):
    path = write([{"a": 1}, {"b": 1}])
    with pytest.raises(mmapds.ColumnError, match="expected one record or more with 'a' and 'b', found 0 of 2"):
        mmapds.build(path, columns={"a": "a", "b": "b"}, missing="skip")


def test_a_source_without_json_is_not_an_index_without_records(write):
    path = write(b"bad\nworse\n\n")
    ran = command(path, "--bad", "skip", "--format", "jsonl")
    assert ran.returncode == 1
    assert f"{path}: expected JSON in one line or more, found it in 0 of 2" in ran.stderr
    assert not os.path.exists(f"{path}.mmx")
    assert command(write(b"\n \n", "empty.jsonl"), "--bad", "skip").returncode == 0


def test_a_conversion_goes_on_without_bad_lines(write, tmp_path):
    path = write(b'{"n": 1}\nbad\n{"n": 2}\n')
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:2 \(byte 9\): not JSON: "):
        convert(path)
    assert command(path, "--bad", "skip").returncode == 0
    assert convert(f"{path}.mmx", tmp_path / "a.mma").records == 2
    assert [record["n"] for record in mmapds.open(tmp_path / "a.mma")] == [1, 2]


def test_a_column_whose_name_is_misspelt(write):
    path = write([{"n": 1}])
    mmapds.build(path, length="n")
    with pytest.raises(mmapds.ColumnError, match=r"expected column 'lenght', found 'length'$"):
        mmapds.open(path).column("lenght")


@pytest.mark.parametrize("depth", [500, 990, 1020])
def test_a_line_that_is_nested_deep_is_one_record(write, depth):
    path = write(b"[" * depth + b"]" * depth)
    mmapds.build(path)
    assert len(mmapds.open(path, decode="bytes")) == 1
