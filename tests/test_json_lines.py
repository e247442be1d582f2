"""JSON Lines: which files are, where lines are bad, and leaving these out when a source is indexed."""

import gzip
import json
import os
from itertools import product

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.index.verify import examine
from mmapds.storage.index_file import Index
from tests.support.messages import check
from tests.support.pieces import jsonl_in_blocks
from tests.support.zstd_files import zstd

RECORDS = [{"id": 1, "text": "a, b"}, {"id": 2, "text": "é\n"}, {"id": 3, "text": "x" * 5000}]
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS)
PACK = {"zst": zstd.compress, "gz": gzip.compress}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def pack(name, text):
    """Write a file, compressed as its name says."""
    with open(name, "wb") as file:
        file.write(PACK.get(name.rpartition(".")[2], bytes)(text if isinstance(text, bytes) else text.encode()))
    return name


@pytest.fixture
def refused(index):
    """The message of indexing a file, by command and function alike but for options; nothing is written."""

    def refused(path, kind=mmapds.FormatError):
        before = sorted(os.listdir())
        with pytest.raises(kind) as error:
            mmapds.build(path)
        check(str(error.value))
        assert index(path).stderr == f"{error.value}\n".replace("format='jsonl'", "--format jsonl")
        assert sorted(os.listdir()) == before
        return str(error.value)

    return refused


# ---- files that are not JSON Lines -------------------------------------------------------------------------------

ARRAYS = {  # what `json.dump(rows, file)` writes would be one record
    "a.json": '["a", {"a": 2}]\n',
    "a": f"\ufeff \n {json.dumps(RECORDS[:2] * 40_000)}\n\n \n",
    "a b.jsonl.gz": json.dumps(RECORDS[:2] * 1000),
}
OTHER_TEXT = {
    "a.jsonl": "[\n" + ",\n".join(map(json.dumps, RECORDS)) + "\n]\n",
    "b.jsonl": "\ufeff" + json.dumps(RECORDS[0], indent=2),
    "a.csv": "id,text\n1,a b\n",
    "e.ndjson.zst": "nonsense\n",
}


@pytest.mark.parametrize("name", [*ARRAYS, *OTHER_TEXT])
def test_a_file_that_is_not_json_lines_by_its_name_needs_its_format(refused, name):
    found, text = ("one JSON array", ARRAYS[name]) if name in ARRAYS else ("other text", OTHER_TEXT[name])
    expected = f"not JSON Lines: expected a JSON value a line, found {found}"
    assert refused(pack(name, text)) == f"{name}: {expected}; give format='jsonl' to take its lines as they are"
    mmapds.build(name, format="jsonl")
    mmapds.build(name)  # an index keeps its format
    if name in ARRAYS:
        assert list(mmapds.open(name)) == [json.loads(text.lstrip("\ufeff"))]
    else:
        with pytest.raises(mmapds.DecodeError, match=r":\d+ \(byte \d+\): not JSON: "):
            mmapds.open(name)[0]


LEGITIMATE = {
    "arrays": '[{"a": 1}, {"a": 2}]\n\n[3]\n',
    "long arrays of objects": f"{json.dumps([{'a': 1}] * 100_000)}\n" * 2,
    "strings": '"a, b"\n"c, d"\n',
    "blank lines first": "\n \n\t\n" + LINES,
    "a mark": "\ufeff" + LINES,
    "a long line first": json.dumps(RECORDS[2]) + "\n" + json.dumps(RECORDS[0]),
    "a long line after short ones": f'1\n"b"\n{json.dumps(RECORDS[2])}\n',
    "line ends of Windows": LINES.replace("\n", "\r\n"),
    "blanks": " \n\n",
    "one number": "7",
}


def test_json_lines_are_not_refused_by_any_name():
    for text, name in product(LEGITIMATE.values(), ("a.json", "a.jsonl.gz", "a.csv", "a")):
        wanted = [json.loads(line) for line in text.lstrip("\ufeff").split("\n") if line.strip()]
        assert list(mmapds.open(mmapds.build(pack(name, text)))) == wanted
    for other in ("Hello, world\nGood bye\n", "[Music]\n[Applause]\n", "a\tb\nc\td\n", "{\nmain()\n}\n"):
        assert list(mmapds.open(mmapds.build(pack("a.txt", other)), decode="text")) == other.splitlines()


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'4d' * 32}\nsize 12345\n".encode()
IN_PLACE = [
    ("a.jsonl.gz", b"", "expected gzip, as its name says, found no bytes"),
    ("a.JSONL.GZ", b"\x1f", "expected gzip, as its name says, found other bytes"),
    ("a.jsonl.zst", b"\x28\xb5\x2f\xfc", "expected zstd, as its name says, found other bytes"),
    ("a.tgz", bytes(10_240), "expected gzip, as its name says, found other bytes"),
    ("a.jsonl", POINTER, "expected data, found what Git LFS keeps in its place; run: git lfs pull"),
]


@pytest.mark.parametrize(("name", "data", "message"), IN_PLACE)
def test_what_stands_in_the_place_of_data(refused, name, data, message):
    """As where a copy ended early, or changed one of the bytes by which compressed files are known."""
    with open(name, "wb") as file:
        file.write(data)
    assert refused(name, mmapds.SourceError) == f"{name}: {message}"
    with pytest.raises(mmapds.SourceError, match=message):
        convert(name, "out.mma")


# ---- bad lines ---------------------------------------------------------------------------------------------------

BAD = [b'{"n": 2, "te', b'{"n": "\xff"}', b"nonsense", b'{"n": NaN}', b"{'n': 1}", b'{"n": 1}, ', b'"\\ud800"', b"[1,]"]
BAD += [b'{"n": 1e400}', b"9" * 400, b'{"n": "\\udc00"}', b'{"a": "\0\0"}']
"""A line for each way not to be JSON."""


def good(number):
    return b'{"n": %d, "text": "%s"}' % (number, b"x" * (number % 7))


@pytest.mark.parametrize("line", BAD)
def test_a_bad_line_is_an_error_that_says_where_and_what_to_do(write, index, line):
    path = write(good(0) + b"\n\n" + good(1) + b"\n" + line + b"\n" + good(2) + b"\n")
    where = f"{path}:4 (byte {len(good(0) + good(1)) + 3})"
    mmapds.build(path)
    with pytest.raises(mmapds.DecodeError) as read:
        mmapds.open(path)[2]
    with pytest.raises(mmapds.DecodeError) as built:
        mmapds.build(path, validate=True, format=jsonl_in_blocks(16))
    for error in (read, built):
        assert str(error.value).startswith(f"{where}: not JSON: ")
    assert str(built.value).endswith("; leave such lines out with bad='skip' (record 2 of the index)")
    assert mmapds.open(path).place(2) == where
    ran = index(path, "--bad", "skip")
    told = f"{where}: expected JSON with fields of the right type, found a bad line (1 such line left out of {path}.mmx"
    check(f"{told})")
    assert (ran.returncode, ran.stderr) == (0, f"warning: {told})\n")
    assert [record["n"] for record in mmapds.open(path)] == [0, 1, 2]


@pytest.fixture
def corpus(write):
    """A source of nine records and a bad line behind each of the first eight, blank lines here and there."""
    lines = []
    for number in range(9):
        lines += [good(number), *BAD[:8][number : number + 1], *([b"  "] if number % 3 == 0 else [])]
    return write(b"\n".join(lines) + b"\n"), lines


@pytest.mark.parametrize("columns", [{}, {"n": "n", "size": "bytes()"}])
@pytest.mark.parametrize("block", [0, 3, 10, 64])
def test_bad_lines_are_left_out_and_leave_no_trace(corpus, columns, block):
    path, lines = corpus
    wanted = [json.loads(line) for line in lines if line not in BAD and line.strip()]
    starts = [sum(len(line) + 1 for line in lines[:k]) for k in range(len(lines))]
    with pytest.warns(UserWarning, match=r"jsonl:2 \(byte 21\): expected JSON with .* \(8 such lines left out"):
        mmapds.build(path, bad="skip", columns=columns, format=jsonl_in_blocks(block), workers=3)
    ds = mmapds.open(path)
    assert list(ds) == wanted
    assert ds.take([8, 0, 8]) == [wanted[8], wanted[0], wanted[8]]
    if columns:
        assert ds.column("n").tolist() == [record["n"] for record in wanted]
    bad = Index(f"{path}.mmx").sources[0].bad
    assert (bad.lines, list(bad.first)) == (8, [(k + 1, starts[k]) for k, line in enumerate(lines) if line in BAD])
    assert not examine(Index(f"{path}.mmx")).problems


def test_commands_count_bad_lines_and_sizes_include_them(write, index):
    records = [good(number) for number in range(50)]
    path = write(b"".join(each + b"\nbad line\n" for each in records))
    assert index(path, "--bad", "skip", "--quiet").stderr.endswith(f" (50 such lines left out of {path}.mmx)\n")
    assert "; 50 records left out (50 bad); verified" in index("--verify", path).stdout
    (described,) = json.loads(index("--info", "--json", path).stdout)["indexes"]
    assert (described["left_out"], described["bad"], len(described["sources"][0]["bad"])) == (50, 50, 20)
    assert described["sources"][0]["bad"][0] == {"line": 2, "byte": len(good(0)) + 1}
    assert described["largest"] == max(map(len, records)) + len(b"\nbad line\n")
    assert "left out  50 records" in index(path, tool="info").stdout
    ds = mmapds.open(path)  # of a record alone, sizes are exact
    assert [(ds.raw(k), ds.where(k).size) for k in range(50)] == [(each, len(each)) for each in records]


def test_an_index_that_is_built_again_keeps_leaving_them_out(corpus, write, index):
    path, _ = corpus
    other = write([{"n": 1}], "b.jsonl")
    assert index(path, other, "-o", "all.mmx", "--bad", "skip").returncode == 0
    assert index("all.mmx").stderr == ""
    with open(path, "ab") as file:
        file.write(b"bad\n" + good(9) + b"\n")
    with pytest.warns(UserWarning, match=r"jsonl:2 \(byte 21\): .* bad line \(9 such lines left out of all.mmx\)"):
        ds = mmapds.open("all.mmx", build=True)
    assert [record["n"] for record in ds] == [*range(10), 1]
    with pytest.raises(mmapds.DecodeError, match="not JSON"):
        mmapds.build("all.mmx", bad="error")


NO_LINE, NONE = "train.jsonl: expected JSON in one line or more, found it in 0 of ", "expected one record or more with "
REFUSED = [
    (b"1\n", {"bad": "drop"}, "^bad = 'drop', expected 'error' or 'skip'"),
    (b"1\n", {"length": "n", "missing": 2**64}, "^missing = 18446744073709551616, expected 'error', 'skip' or a"),
    (b'{"n": 1}\n{"n": 2, "t\n', {"length": "n"}, r"train.jsonl:2 \(byte 9\): "),
    (b'{"n": 9007199254740993}\n{"n": 0.5}\n', {"columns": {"n": "n"}}, r"jsonl:1 \(byte 0\): .* found another at `n`"),
    (b'{"n": 1}\nbad\n{}\n', {"length": "n", "bad": "skip"}, r"train.jsonl:3 \(byte 13\): .*null.* \(record 1 of the "),
    (b'{"n": 1}\n{"n": "1"}\n', {"length": "n", "missing": "skip"}, r"found a string; compute .* \(record 1"),
    (
        b'{"n": "1"}\n',
        {"columns": {"n": "n"}, "bad": "skip"},
        "expected JSON with fields of the right type in one line",
    ),
    # A byte order mark is blank where a file begins, and only there.
    (b"\xef\xbb\xbf\n\xef\xbb\xbf\n", {"bad": "skip"}, f"{NO_LINE}1"),
    (b"bad\nbad\n\n", {"bad": "skip", "format": "jsonl"}, f"{NO_LINE}2"),
    (b'{"a": 1}\n{"b": 1}\n', {"columns": {"a": "a", "b": "b"}, "missing": "skip"}, f"{NONE}'a' and 'b', found 0 of 2"),
    (b'\n{"m": {"f": 3}}\n', {"length": "f", "missing": "skip"}, f"^/.*/train.jsonl: {NONE}'f', found 0 of 1"),
    (b'{"m": {"f": 3}}\nbad\n', {"length": "m.n", "missing": 0, "bad": "skip"}, f"{NONE}'m.n', found 0 of 1"),
    (b'{"m": [{"f": 3}]}\n', {"length": "m[*].n", "missing": 0}, f"{NONE}'m\\[.*', found 0 of 1"),
]


@pytest.mark.parametrize(("text", "options", "message"), REFUSED)
def test_what_leaving_out_refuses(write, text, options, message):
    path = write(text)
    with pytest.raises((mmapds.DecodeError, mmapds.ColumnError), match=message):
        mmapds.build(path, **options)
    assert not os.path.exists(f"{path}.mmx")


def test_records_that_lack_a_column_are_left_out_or_filled(write, index):
    paths = [write([{"m": 1}], "a.jsonl"), write([{"n": 1}], "b.jsonl")]  # the first has no record with a length
    for missing, lengths in (("skip", [1]), (0, [0, 1])):
        mmapds.build(paths, out="all.mmx", length="n", missing=missing, force=True)
        assert mmapds.open("all.mmx").lengths.tolist() == lengths
        assert index("--verify", "all.mmx").returncode == 0
    path = write(b'{"n": 1}\nbad\n{"m": 1}\n{"n": 2}\n')
    done = index(path, "--length", "n", "--bad", "skip", "--missing", "skip")
    assert "; 2 records left out (1 bad)" in done.stdout
    assert mmapds.open(path).lengths.tolist() == [1, 2]
