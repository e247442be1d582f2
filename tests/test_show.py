"""`mmapds show` and `mmapds head`: which records, where they lie, and how they look."""

import json
import os
import re
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds as package
from mmapds.dataset.decode import printed
from tests.support.samples import npy
from tests.support.tars import archive
from tests.support.terminals import on_terminal

RECORDS = [{"n": number, "text": "x" * number} for number in range(10)]
COLOURS = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture
def ten(write):
    path = write(RECORDS)
    package.build(path)
    return path


@pytest.fixture
def shown(ran):
    """Runs a command that must succeed, without a message; returns what it prints."""

    def shown(*arguments):
        status, out, err = ran(*arguments)
        assert (status, err) == (0, "")
        return out

    return shown


def records_in(text):
    """The records that were printed: number, place and size of each, and what follows."""
    parts = re.split(r"^(\d+): (.*), ([\d,]+) bytes$", text, flags=re.MULTILINE)[1:]
    return [
        (int(n), place, int(size.replace(",", "")), body.strip("\n"))
        for n, place, size, body in zip(*[iter(parts)] * 4, strict=True)
    ]


def test_numbers_and_ranges_are_those_of_python(ten, shown):
    for asked in (["0"], ["-1"], ["3", "1", "3"], ["2:5"], [":2", "-3:"], ["::-4"], ["8:100"]):
        expected = np.concatenate([np.atleast_1d(eval(f"np.arange(10)[{each}]")) for each in asked])
        assert [number for number, *_ in records_in(shown("show", ten, *asked))] == expected.tolist()


def test_what_is_out_of_range_is_an_error_and_nothing_is_printed(ten, ran):
    for asked in (["10"], ["0", "-11"], ["1:9:0"], ["5:2"]):
        assert ran("show", ten, *asked) == (1, "", f"position {asked[-1]}: expected 0 to 9, found no record\n")


def test_several_sources_and_a_saved_view_are_shown_by_their_own_places(write, tmp_path, shown):
    paths = [write(RECORDS[:3], f"{name}.jsonl") for name in "ab"]
    package.build(paths)
    ds = package.open(paths)
    ds[[5, 2]].save(tmp_path / "view.mmx")
    for arguments, expected in (([*paths, "2", "-3:-1"], [2, 3, 4]), ([tmp_path / "view.mmx", ":"], [5, 2])):
        found = [(place, size, json.loads(body)) for _, place, size, body in records_in(shown("show", *arguments))]
        assert found == [(ds.place(at), ds.where(at).size, ds[at]) for at in expected]


def test_head_prints_the_first_records(ten, write, shown, ran):
    for options, expected in (([], 5), (["-n", "2"], 2), (["-n", "1000"], 10), (["-n", "0"], 0)):
        found = records_in(shown("head", ten, *options))
        assert [json.loads(body) for *_, body in found] == RECORDS[:expected]
    empty = write(b"\n\n", "empty.jsonl")
    package.build(empty)
    assert shown("head", empty) == f"{empty}: 0 records\n"
    assert ran("show", empty, "0")[2] == "position 0: expected a record, found 0 records\n"


def test_what_is_not_indexed_or_stale_names_the_command_or_is_built(write, shown, ran):
    path = write(RECORDS)
    assert ran("head", path) == (1, "", f"{path}: not indexed yet; run: python -m mmapds.index {path}\n")
    assert len(records_in(shown("head", "--build", path))) == 5
    write([*RECORDS, {"n": 10}])
    status, _, err = ran("show", path, "-1")
    assert (status, f"{path}.mmx: STALE: train.jsonl was " in err) == (1, True)
    assert records_in(shown("show", path, "-1", "--build"))[0][3] == '{\n  "n": 10\n}'


def test_a_bad_record_is_shown_as_it_lies_and_the_others_too(write, ran):
    path = write(b'{"n": 1}\n{"n": oops}\n{"n": 3}\n')
    package.build(path)
    status, out, err = ran("head", path)
    assert status == 1
    assert re.fullmatch(rf"{path}:2 \(byte 9\): not JSON: .*\n", err)
    assert [body for *_, body in records_in(out)] == ['{\n  "n": 1\n}', '{"n": oops}', '{\n  "n": 3\n}']


# ---- how values look --------------------------------------------------------------------------------------------


def lines(sample, **options):
    return printed(sample, **options).split("\n")


def can_be_printed(shown):
    return not any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for line in shown for each in line)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values, st.booleans())
def test_a_sample_that_is_not_cut_is_json_that_can_be_printed(sample, full):
    shown = lines([sample], full=full)
    assert can_be_printed(shown)
    if full or not re.search("… [0-9,]+ (items in all|characters)", "\n".join(shown)):
        assert json.loads("\n".join(shown)) == [sample]


@given(st.binary(max_size=600), st.booleans())
def test_any_bytes_can_be_printed(data, full):
    assert can_be_printed(lines(data, full=full))
    assert can_be_printed(lines({"a": memoryview(data)}, full=full))


DUMPED = "00 01 02 03 04 05 06 07  08 09 0a 0b 0c 0d 41 42"
ARRAY = np.arange(6000, dtype=np.float32).reshape(20, 300) / 3


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (ARRAY, "float32 (20, 300) [0, 0.333333, 0.666667, 1, 1.33333, 1.66667, …]"),
        (np.array(7, np.int8), "int8 () 7"),
        ({"a": np.zeros((0, 3), bool)}, '{\n  "a": bool (0, 3) []\n}'),
        (b"hello\nyou", "hello\nyou"),
        (bytes(range(14)) + b"AB\0", f"{0:08}  {DUMPED}  ..............AB\n{10:08}  00{' ' * 47} ."),
        ({"a": b"\0\1", "b": b"text", "c": b""}, '{\n  "a": 2 bytes 00 01,\n  "b": 4 bytes text,\n  "c": 0 bytes\n}'),
    ],
)
def test_an_array_has_a_type_and_a_shape_and_bytes_are_text_or_a_hex_dump(sample, expected):
    assert printed(sample) == expected


def test_what_is_long_is_cut_with_its_size_unless_full():
    sample = {"text": "a" * 5000, "numbers": list(range(1000)), "items": [{"a": 1}] * 50}
    cut = printed(sample)
    assert len(cut) < 4000
    for size in ('a"… 5,000 characters', "39, … 1,000 items in all]", "… 50 items in all"):
        assert size in cut
    assert json.loads(printed(sample, full=True)) == sample
    assert json.loads(printed(ARRAY, full=True).removeprefix("float32 (20, 300) ")) == ARRAY.tolist()
    assert lines(bytes(512))[-1] == "… 512 bytes in all; --full prints them"
    assert len(lines(bytes(512), full=True)) == 32
    for at in range(4):  # text that is cut within a character is text
        assert lines(b"a" * at + "🙂".encode() * 3000)[-1].endswith("bytes in all; --full prints them")


def test_each_decoder_and_format_has_its_look(ten, write, tmp_path, shown, ran):
    pixels = npy(np.zeros((2, 3), np.uint8))
    tar = write(archive([("a/1.json", b'{"label": 7}'), ("a/1.npy", pixels), ("a/1.BIN", bytes(100))]), "a.tar")
    np.save(tmp_path / "a.npy", np.arange(12, dtype=np.int16).reshape(3, 4))
    np.save(tmp_path / "odd.npy", np.full(2, 0x41414141, "u4").view("U1"))  # beyond Unicode
    package.build([tar, tmp_path / "a.npy", tmp_path / "odd.npy"])
    with package.Writer(tmp_path / "a.mma", {"x": ("float32", (None,)), "name": "str"}) as writer:
        writer.write({"x": np.ones(3, np.float32), "name": "one"})
    for path, options, expected in (
        (ten, ["--decode", "text"], '{"n": 9, "text": "xxxxxxxxx"}'),
        (ten, ["--decode", "bytes"], '{"n": 9, "text": "xxxxxxxxx"}'),
        (tar, [], f'"__key__": "a/1",\n  "__url__": "{tar}",\n  "json": 12 bytes {{"label": 7}},\n'),
        (tar, [], f'  "npy": {len(pixels)} bytes 93 4e 55 4d 50 59 01 00 76 00 7b 27 64 65 73 63 72 27 3a 20,\n'),
        (tar, [], '  "bin": 100 bytes 00 00 00'),
        (tar, ["--decode", "wds"], '"npy": uint8 (2, 3) [0, 0, 0, 0, 0, 0]'),
        (tmp_path / "a.npy", [], "int16 (4,) [8, 9, 10, 11]"),
        (tmp_path / "a.npy", ["--decode", "torch"], "int16 (4,) [8, 9, 10, 11]"),
        (tmp_path / "odd.npy", [], "AAAA"),
        (tmp_path / "a.mma", [], '{\n  "x": float32 (3,) [1, 1, 1],\n  "name": "one"\n}'),
    ):
        assert expected in shown("show", path, "-1", *options)
    status, _, err = ran("show", ten, "2", "--decode", "jsn")
    assert (status, err.startswith("--decode = 'jsn', expected 'json', 'text', ")) == (2, True)


# ---- on a terminal ----------------------------------------------------------------------------------------------

HOSTILE = "\x1b[2J\x1b]0;owned\x07 \x9b31m \u202e\u2066 \x7f\x00\r\b"


def test_colours_are_for_terminals_alone_where_lines_of_any_length_are_whole(write, shown):
    path = write([{"numbers": list(range(150_000)), "text": "x" * 200_000}, {"n": 3}])
    plain = shown("show", path, ":", "--full", "--build")
    status, text = on_terminal("-m", "mmapds", "show", path, ":", "--full")
    assert (status, COLOURS.sub("", text), "\x1b" in plain) == (0, plain, False)
    assert '\x1b[1;34m"n"\x1b[0m: \x1b[1;36m3\x1b[0m' in text
    assert not re.search(r"\x1b\[[\d;]*3\dm", on_terminal("-m", "mmapds", "show", path, "0", NO_COLOR="1")[1])


def test_records_do_not_steer_a_terminal(write):
    path = write([{"a": HOSTILE, HOSTILE: [HOSTILE, {HOSTILE: 1}]}])
    junk = [HOSTILE.encode(), os.urandom(5000), HOSTILE.encode() * 1000, b"text", b"a\x1b[31m" * 10]
    framed = write(b"".join(len(each).to_bytes(4, "little") + each for each in junk), "a.bin")
    members = [("\x1b[2Jkey.t\x1b[31mxt", HOSTILE.encode()), ("\x1b[2Jkey.json", b'{"a": "\\u001b"}')]
    tar = write(archive(members), "a.tar")
    package.build([path, tar])
    package.build(framed, format="prefixed", prefix="u32le")
    for arguments in ((path,), (path, "--decode", "bytes"), (framed, "--full"), (framed,), (tar, "--decode", "wds")):
        status, text = on_terminal("-m", "mmapds", "head", *arguments)
        assert status == 0
        assert not re.search(r"[^\n -~…]", COLOURS.sub("", text)), arguments
