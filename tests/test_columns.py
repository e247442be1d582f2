"""Columns: measured while indexing, computed afterwards, read from the dataset."""

import json
import math
import os
import random
import re
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.storage.index_file import Index
from tests.support.commands import SECONDS, command
from tests.support.index_file import arrays, rewrite
from tests.support.messages import check
from tests.support.pieces import jsonl_in_blocks

WIDE = 2**53 + 1  # the first integer that float64 does not hold


def utterances(count):
    rng = random.Random(0)
    return [
        {
            "id": i,
            "text": "é" * rng.randrange(50),
            "ids": [*range(rng.randrange(9))],
            "meta": {"frames": rng.randrange(900)},
        }
        for i in range(count)
    ]


@pytest.fixture
def corpus(write):
    records = utterances(3000)
    return write(records), records


@pytest.fixture
def large(write):
    """As many records as several workers share out."""
    records = utterances(20_000)
    return write(records), records


def tokens(sample):
    return len(sample["ids"])


def half(sample):
    return sample["id"] / 2 - 1


def refuse(sample):
    if sample["id"] == 2500:
        raise KeyError("speaker")
    return 1


def parse(sample):
    return json.loads("{bad" if sample["id"] == 2500 else "1")


def texts(sample):
    return sample["text"]


# ---- expressions ---------------------------------------------------------------------------------------------


def test_columns_are_what_their_expressions_say(corpus):
    path, records = corpus
    expressions = {"chars": "chars(text)", "bytes": "bytes(text)", "items": "items(ids)", "size": "bytes()"}
    mmapds.build(path, length="meta.frames", columns=expressions, validate=True)
    ds = mmapds.open(path)
    assert ds.columns == ["length", "chars", "bytes", "items", "size"]
    assert ds.lengths.tolist() == [record["meta"]["frames"] for record in records]
    assert ds.column("chars").tolist() == [len(record["text"]) for record in records]
    assert ds.column("bytes").tolist() == [len(record["text"].encode()) for record in records]
    assert ds.column("items").tolist() == [len(record["ids"]) for record in records]
    assert ds.column("size").tolist() == [ds.where(i).size for i in range(len(ds))]
    assert ds.lengths.dtype == np.uint32
    assert not ds.lengths.flags.writeable
    assert command("--verify", path).returncode == 0


@pytest.mark.parametrize(
    ("numbers", "dtype"),
    [
        ([1, 2**32 - 1], "u4"),
        ([1, 2**32], "u8"),
        ([2**64 - 1], "u8"),
        ([3, -1, 5], "i8"),
        ([-1, 2**63 - 1], "i8"),
        ([2**63, -1], "f8"),
        ([1, 2, 0.5, 3], "f8"),
        ([0.5, -(2**40), 7], "f8"),
        ([1e300, 2**64], "f8"),
        ([], "u4"),
    ],
)
@pytest.mark.parametrize("split", [False, True])
def test_a_column_has_the_smallest_type_that_holds_it(write, numbers, dtype, split):
    path = write([{"x": number} for number in numbers])
    # Every record in a block of its own, so that types differ from block to block.
    mmapds.build(path, format=jsonl_in_blocks(16) if split else None, columns={"x": "x"}, workers=2)
    found = mmapds.open(path).column("x")
    assert found.dtype == dtype
    assert found.tolist() == [float(number) if dtype == "f8" else number for number in numbers]


@settings(max_examples=150)
@given(
    st.lists(
        st.sampled_from([b'{"n":1}', b'{"n":22}', b"", b"  ", b'{"m":1}', b"\t", b'  {"n": 333}  ', b'{"n":null}'])
    ),
    st.integers(3, 40),
    st.booleans(),
    st.booleans(),
)
def test_blocks_and_missing_fields(tmp_path_factory, lines, block, end, bom):
    """Wherever blocks are cut, columns and records stay together, and skipped ones leave no trace."""
    path = tmp_path_factory.mktemp("blocks") / "x.jsonl"
    path.write_bytes((b"\xef\xbb\xbf" if bom else b"") + b"\n".join(lines) + (b"\n" if end else b""))
    wanted = [
        record for record in (orjson.loads(line) for line in lines if line.strip()) if record.get("n") is not None
    ]
    options = {"format": jsonl_in_blocks(block), "length": "n", "missing": "skip", "workers": 3}
    if not wanted and any(line.strip() for line in lines):
        with pytest.raises(mmapds.ColumnError, match=f"found 0 of {sum(bool(line.strip()) for line in lines)}"):
            mmapds.build(path, **options)
        return
    mmapds.build(path, **options)
    ds = mmapds.open(path)
    assert list(ds) == wanted
    assert ds.lengths.tolist() == [record["n"] for record in wanted]
    assert ds.__getitems__(range(len(ds))) == wanted


def test_missing_fields(write, tmp_path):
    path = write(b'{"n":1}\n{"m":2}\n\n{"n":null}\n{"n":4}\n{bad\n'.replace(b"{bad\n", b""))
    place = f"{path}:2 (byte 8)"
    with pytest.raises(mmapds.ColumnError) as missing:
        mmapds.build(path, length="n")
    assert str(missing.value) == (
        f"{place}: expected a number at `n`, found null or nothing; leave such records out with missing='skip' "
        "(record 1 of the index)"
    )
    assert [each.name for each in tmp_path.iterdir()] == ["train.jsonl"]
    mmapds.build(path, length="n", missing=9)
    assert mmapds.open(path).lengths.tolist() == [1, 9, 9, 4]
    mmapds.build(path, missing="skip")
    ds = mmapds.open(path, decode="bytes")
    assert list(ds) == [b'{"n":1}', b'{"n":4}']
    verified = command("--verify", path)
    assert (verified.returncode, "2 records left out" in verified.stdout) == (0, True)
    with pytest.raises(mmapds.ColumnError, match="missing = 'ignore', expected"):
        mmapds.build(path, length="n", missing="ignore")


@pytest.mark.parametrize(
    ("line", "expression", "message"),
    [
        (b'{"n":"x"}', "n", "a number at `n`, found a string"),
        (b'{"n":[]}', "n", "a number at `n`, found an array"),
        (b'{"n": true}', "n", "a number at `n`, found true"),
        (b'{"a":1,"n":5}', "chars(n)", "a string at `n`, found a number"),
        (b'{"n":{}}', "items(n)", "an array at `n`, found an object"),
        (b'{"n":{"m":1}}', "n", "a number at `n`, found an object"),
        (b'{"n":7}', "n.m", "a number inside objects at `n.m`, found a number"),
        (b"[1]", "n", "a number inside objects at `n`, found an array"),
        (b'"n"', "n", "a number inside objects at `n`, found a string"),
    ],
)
def test_a_wrong_type_is_always_an_error(write, line, expression, message):
    path = write(b"{}\n" + line + b"\n")
    for missing, number in (("skip", 0), (0, 1)):  # the first record is left out, or has the number for missing ones
        with pytest.raises(mmapds.ColumnError) as wrong:
            mmapds.build(path, columns={"x": expression}, missing=missing)
        assert str(wrong.value) == f"{path}:2 (byte 3): expected {message} (record {number} of the index)"


def test_validate_reads_every_byte(write):
    path = write(b'{"n":1,"t":"x"}\n{"n":2,"t":"\xff"}\n')
    mmapds.build(path, length="n")
    with pytest.raises(mmapds.DecodeError, match=r"train.jsonl:2 \(byte 16\): not JSON: "):
        mmapds.build(path, validate=True)
    assert command(path, "--validate").returncode == 1
    for line in (b'{"n":1', b'{"n":"', b'{"a":[1,2}', b'{"n":1}}', b'{"n":1e}', b"nonsense"):  # without it
        with pytest.raises((mmapds.DecodeError, mmapds.ColumnError)):
            mmapds.build(write(b'{"n":1}\n' + line + b"\n"), length="n", force=True)


def test_the_number_for_missing_ones(write):
    path = write([{"n": 1}, {}])
    assert command(path, "--column", "n=n", "--missing", "nan").returncode == 0
    assert np.isnan(mmapds.open(path).column("n")[1])
    assert command("--verify", path).returncode == 0
    path = write([{"x": 0.5}, {}])
    with pytest.raises(mmapds.ColumnError, match=r"jsonl:2 .* found another at `x` \(record 1 "):
        mmapds.build(path, columns={"x": "x"}, missing=WIDE)
    with pytest.raises(mmapds.ColumnError, match="columns: expected up to 64 for JSON, found 65"):
        mmapds.build(write([1], "b.jsonl"), columns={str(i): "bytes()" for i in range(65)})


def test_lengths_are_counts(write):
    for number in (-1, 1.5, -0.5, 1e-300):
        with pytest.raises(mmapds.ColumnError) as caught:
            mmapds.build(write([{"n": 3}, {"n": number}, {"n": 5.0}]), length="n", force=True)
        what = f"column 'length': expected integers of 0 or more, found {float(number)} (record 1 of the index)"
        assert str(caught.value) == what
    path = write([{"n": 5.0}, {"n": 7}])
    with pytest.raises(mmapds.ColumnError, match=r"expected integers of 0 or more, found 5\.0"):
        mmapds.build(path, length="n", force=True)
    mmapds.build(path, force=True)
    mmapds.add_column(path, "length", lambda sample: sample["n"])
    assert mmapds.open(path).lengths.tolist() == [5, 7]


# ---- the length order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [1, 300, 2**20 - 1, 2**20, 2**31, 2**32 - 1, 2**33, 2**63])
def test_the_length_order_is_a_stable_sort(write, largest):
    rng = random.Random(largest)
    lengths = [rng.randrange(largest + 1) for _ in range(500)] * 2 + [largest, 0]
    path = write([{"n": length} for length in lengths])
    mmapds.build(path, length="n")
    found = mmapds.open(path).length_order
    order, values, counts = arrays(found)
    assert order.tolist() == sorted(range(len(lengths)), key=lambda i: -lengths[i])
    assert Index(f"{path}.mmx").sections["length_order"].dtype == "<u4"
    assert values.tolist() == sorted(set(lengths), reverse=True)
    assert counts.tolist() == [lengths.count(value) for value in values.tolist()]


def test_an_empty_source_has_columns_too(write):
    path = write(b"\n")
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    assert (len(ds.lengths), len(ds.length_order), len(ds.length_order.values)) == (0, 0, 0)


# ---- from the dataset ----------------------------------------------------------------------------------------


def test_a_missing_column_says_which_there_are_and_how_to_add_it(corpus):
    path, _ = corpus
    mmapds.build(path, columns={"chars": "chars(text)"})
    with pytest.raises(mmapds.ColumnError) as missing:
        _ = mmapds.open(path).lengths
    assert str(missing.value) == f"{path}.mmx: expected column 'length', found 'chars'"
    assert command(path, "--length", "id").returncode == 0
    assert mmapds.open(path).columns == ["chars", "length"]


# ---- what an index was built with stays ----------------------------------------------------------------------


def test_expressions_are_kept_when_a_source_changes(write):
    path = write([{"n": 1}])
    mmapds.build(path, length="n", missing=5)
    assert "up to date" in command(path).stdout
    write([{"n": 1}, {"m": 2}])
    assert command(path).returncode == 0
    assert mmapds.open(path).lengths.tolist() == [1, 5]
    assert command(path, "--force").returncode == 0
    assert mmapds.open(path).lengths.tolist() == [1, 5]


@pytest.mark.parametrize("wanted", [{}, {"columns": {"lang": "chars(text)"}}, {"length": "bytes(text)"}])
def test_a_computed_column_is_not_lost_in_silence(corpus, write, wanted):
    path, records = corpus
    mmapds.build(path, length=tokens, columns={"half": half})
    before = Path(path + ".mmx").read_bytes()
    if not wanted:
        mmapds.build(path)
        assert Path(path + ".mmx").read_bytes() == before, "the option is left out"
        write(records[:10])
    with pytest.raises(mmapds.ColumnError) as lost:
        mmapds.build(path, **wanted)
    assert str(lost.value) == (
        f"{path}.mmx: column 'length', 'half' was computed in Python and a rebuild loses it; pass "
        "columns={'length': FUNCTION, 'half': FUNCTION} to mmapds.build, or drop 'length', 'half' with force=True"
    )
    check(str(lost.value))
    assert Path(path + ".mmx").read_bytes() == before
    mmapds.build(
        path, **{"length": tokens, **wanted, "columns": {**wanted.get("columns", {}), "half": half}}, force=True
    )
    assert mmapds.open(path).column("half").tolist() == [half(sample) for sample in mmapds.open(path)]


# ---- computed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_callable_sees_every_sample(large, workers):
    path, records = large
    mmapds.build(path, length=tokens, columns={"half": half}, workers=workers)
    ds = mmapds.open(path)
    assert ds.lengths.tolist() == [len(record["ids"]) for record in records]
    assert ds.column("half").tolist() == [half(record) for record in records]
    assert arrays(ds.length_order)[0].tolist() == sorted(range(len(records)), key=lambda i: -len(records[i]["ids"]))
    assert ds[17] == records[17]


def test_add_column_from_an_array(corpus):
    path, records = corpus
    mmapds.build(path, length="id")
    before = mmapds.open(path)
    mmapds.add_column(path, "score", np.linspace(-1, 1, 3000))
    mmapds.add_column(path, "flag", np.arange(3000, dtype=np.uint8) % 2)
    mmapds.add_column(path, "length", [1] * 3000)
    ds = mmapds.open(path)
    assert ds.columns == ["score", "flag", "length"]
    assert ds.column("score").tolist() == np.linspace(-1, 1, 3000).tolist()
    assert ds.column("flag").dtype == np.uint32
    assert arrays(ds.length_order)[0].tolist() == list(range(3000))
    assert before.lengths.tolist() == [record["id"] for record in records]
    assert list(ds) == records
    assert command("--verify", path).returncode == 0


@pytest.mark.parametrize(
    ("values", "found", "dtype"),
    [
        (np.array([True, False]), [1, 0], "u4"),
        ([True, False], [1, 0], "u4"),
        ([3.0, 4.0], [3, 4], "u4"),
        (lambda sample: np.int64(sample) > 1, [0, 1], "u4"),
        ([1, 2**63], [1, 2**63], "u8"),
    ],
)
def test_lengths_may_be_conditions_whole_floats_and_large_integers(write, values, found, dtype):
    path = write([1, 2])
    mmapds.build(path)
    mmapds.add_column(path, "length", values)
    lengths = mmapds.open(path).lengths
    assert (lengths.dtype, lengths.tolist()) == (dtype, found)


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("x", [1, 2], r"values: expected shape \(3000,\), .* found \(2,\)"),
        ("x", 5, r"values: expected shape \(3000,\), .* found \(\)"),
        ("x", ["a"] * 3000, "expected numbers, .* found list .of type <U1"),
        ("length", [-1] * 3000, "expected integers of 0 or more, found -1 at record 0"),
        ("length", [0.5] * 3000, "found 0.5 at record 0"),
        ("x", texts, r"\(byte \d+\): expected a number from the callable, found 'é*'"),
        ("", tokens, "name = '', expected a string of one character or more"),
        ("x", "id", "values = 'id', expected a function of a sample"),
    ],
)
def test_what_add_column_refuses(corpus, name, values, message):
    path, _ = corpus
    mmapds.build(path)
    before = Path(path + ".mmx").read_bytes()
    with pytest.raises(mmapds.ColumnError, match=message):
        mmapds.add_column(path, name, values)
    assert Path(path + ".mmx").read_bytes() == before
    assert sorted(os.listdir(Path(path).parent)) == ["train.jsonl", "train.jsonl.mmx"]


def test_an_error_of_a_function_says_where_the_record_is(large):
    path, _ = large
    mmapds.build(path)
    for workers in (1, 2):
        for function, error in ((refuse, KeyError), (parse, json.JSONDecodeError)):
            with pytest.raises(error) as refused:
                mmapds.add_column(path, "x", function, workers=workers)
            shown = "".join(traceback.format_exception(refused.value))
            assert re.search(r"while computing a column for .*train.jsonl:2501 \(byte \d+\)\n", shown)
    with pytest.raises(mmapds.SourceError, match=r"other.mmx: no such file"):
        mmapds.add_column(Path(path).parent / "other.mmx", "x", [1])
    with pytest.raises(mmapds.Error, match="workers = 0, expected 1 or more"):
        mmapds.add_column(path, "x", tokens, workers=0)


def first_of_none(_):
    return next(iter([]))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_iteration_does_not_end_a_column(large, workers):
    path, _ = large
    mmapds.build(path, length="meta.frames")
    before = Path(path + ".mmx").read_bytes()
    with pytest.raises(mmapds.ColumnError, match=r"train.jsonl:1 \(byte 0\): expected a number, found StopIteration"):
        mmapds.add_column(path, "x", first_of_none, workers=workers)
    assert Path(path + ".mmx").read_bytes() == before


def test_a_column_that_the_function_itself_adds_is_not_lost(write):
    path = write([1, 2])
    mmapds.build(path)

    def compute(sample):
        mmapds.add_column(path, "inner", [3, 4])
        return sample

    with pytest.raises(mmapds.StaleIndexError, match="it was replaced while columns were computed"):
        mmapds.add_column(path, "outer", compute, workers=1)
    assert list(mmapds.open(path).columns) == ["inner"]


def test_progress_is_told(large):
    path, _ = large
    mmapds.build(path)
    done = []
    mmapds.add_column(path, "tokens", tokens, workers=2, progress=done.append)
    assert sum(done) == 20_000
    assert len(done) > 2


# ---- the command line ----------------------------------------------------------------------------------------


def test_the_command_line(corpus):
    path, records = corpus
    result = command(path, "--length", "meta.frames", "--column", "chars=chars(text)", "--column", "n=items(ids)")
    assert result.returncode == 0
    assert "; length = meta.frames, chars = chars(text), n = items(ids)" in result.stdout
    assert mmapds.open(path).column("n").tolist() == [len(record["ids"]) for record in records]
    for wrong in (
        ["--column", "chars"],
        ["--column", "=x"],
        ["--column", "a=b", "--column", "a=c"],
        ["--missing", "x"],
    ):
        refused = command(path, *wrong)
        assert refused.returncode == 2
        assert len(refused.stderr.splitlines()) == 1
    assert "expected a path" in command(path, "--length", "words(text)").stderr


# ---- at once, and from elsewhere -------------------------------------------------------------------------------


def test_a_column_goes_to_the_index_that_was_opened(write, tmp_path):
    paths = [write([{"n": 1}, {"n": 2}], "d/a.jsonl"), write([{"n": 3}], "d/b.jsonl")]
    mmapds.build(tmp_path / "d")
    mmapds.build(paths[::-1], out=tmp_path / "d.mmx")
    with pytest.raises(mmapds.ColumnError, match="source_or_index: expected one index of sources, found 2"):
        mmapds.add_column(tmp_path / "d", "n", [1, 2, 3])
    with pytest.raises(mmapds.ColumnError, match="source_or_index: expected one index of sources, found 2"):
        mmapds.add_column(paths, "n", [1, 2, 3])
    (tmp_path / "link.jsonl").symlink_to(paths[0])
    (tmp_path / "link.mmx").symlink_to(tmp_path / "d.mmx")
    mmapds.add_column(tmp_path / "link.jsonl", "n", [1, 2])
    mmapds.add_column(tmp_path / "link.mmx", "n", [3, 1, 2])
    assert (tmp_path / "link.mmx").is_symlink()
    assert mmapds.open(paths[0]).column("n").tolist() == [1, 2]
    assert mmapds.open(tmp_path / "d.mmx").column("n").tolist() == [3, 1, 2]


@pytest.mark.parametrize(
    ("numbers", "at"), [([1, WIDE, 0.5], 1), ([-WIDE, 3, 1e300], 0), ([2**63 + 1, -1], 0), ([2**64 - 1, 7, -1, 0.5], 0)]
)
def test_integers_are_not_rounded_beside_floats(write, numbers, at):
    path = write([{"x": number} for number in numbers])
    what = "expected an integer that float64 holds exactly, as the column has floats or negative numbers, too,"
    with pytest.raises(mmapds.ColumnError) as caught:
        mmapds.build(path, columns={"x": "x"})
    begin = sum(map(len, Path(path).read_bytes().splitlines(keepends=True)[:at]))
    assert str(caught.value) == (
        f"{path}:{at + 1} (byte {begin}): {what} found another at `x` (record {at} of the index)"
    )
    with pytest.raises(mmapds.ColumnError) as caught:  # every record in a block of its own
        mmapds.build(path, format=jsonl_in_blocks(8), columns={"x": "x"}, workers=2)
    assert str(caught.value) == f"column 'x': {what} found {numbers[at]} (record {at} of the index)"
    mmapds.build(path)
    for values in (numbers, lambda sample: sample["x"]):
        with pytest.raises(mmapds.ColumnError, match=f"{what} found {numbers[at]} at record {at}"):
            mmapds.add_column(path, "x", values)
    mmapds.add_column(path, "x", [float(number) for number in numbers])
    assert mmapds.open(path).column("x").tolist() == [float(number) for number in numbers]


def test_integers_that_floats_hold_stand_beside_them(write):
    numbers = [2**53, -(2**60), 2**63, 0.5, 2**64 - 2**11, -(2**63)]
    path = write([{"x": number} for number in numbers])
    mmapds.build(path, columns={"x": "x"})
    mmapds.add_column(path, "y", numbers)
    mmapds.add_column(path, "z", lambda sample: sample["x"])
    for name in "xyz":
        assert mmapds.open(path).column(name).tolist() == [float(number) for number in numbers]


@pytest.mark.parametrize("make", [torch.tensor, np.array], ids=["tensors", "arrays"])
def test_a_column_may_be_a_list_of_arrays_of_one_number(write, make):
    path = write([1, 2, 3])
    mmapds.build(path)
    for numbers in ([0.5, 0.25, 2.0], [math.nan, 0.5, 1], [3, 4, 5]):
        mmapds.add_column(path, "x", [make(number) for number in numbers])
        np.testing.assert_array_equal(mmapds.open(path).column("x"), numbers)
    with pytest.raises(mmapds.ColumnError, match=f"float64 holds exactly, .* found {2**53 + 1} at record 1"):
        mmapds.add_column(path, "x", [make(0.5), make(2**53 + 1), make(1.0)])


def test_integers_of_indexes_are_not_rounded_beside_floats(write, tmp_path):
    paths = [write([{"x": number}], f"{number}.jsonl") for number in (WIDE, 0.5)]
    indexes = [mmapds.build(path, columns={"x": "x"}) for path in paths]
    with pytest.raises(mmapds.ColumnError, match=rf"^column 'x': .* found {WIDE} \(record 0 of the index\)$"):
        mmapds.merge(indexes, out=tmp_path / "all.mmx")
    with open(paths[0], "a") as file:
        file.write('{"x": 0.5}\n')
    with pytest.raises(
        mmapds.ColumnError, match=r"jsonl:1 \(byte 0\): .* found another at `x` \(record 0 of the index"
    ):
        mmapds.build(paths[0])


@pytest.mark.parametrize(
    "columns", [[], {"expressions": {"a": 1}, "missing": 1, "validate": True}, {"expressions": {}, "missing": []}]
)
def test_metadata_of_columns_are_checked(write, columns):
    path = write([{"n": 1}])
    mmapds.build(path)
    rewrite(path + ".mmx", metadata=lambda metadata: metadata | {"columns": columns})
    with pytest.raises(mmapds.FormatError, match="DAMAGED: malformed metadata"):
        mmapds.open(path)
    mmapds.build(path)
    assert len(mmapds.open(path)) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_the_process_that_started_them(large, number):
    path, _ = large
    mmapds.build(path)
    script = """
import multiprocessing, signal, sys
import mmapds
multiprocessing.set_start_method("fork")  # others cannot have a function of a script that is no file
def compute(sample):
    print("began", flush=True)
    signal.pause()
mmapds.add_column(sys.argv[1], "x", compute, workers=2)
"""
    process = subprocess.Popen([sys.executable, "-c", script, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    began = process.stdout.readline()
    process.send_signal(number)
    _, said = process.communicate(timeout=SECONDS)  # the pipes are open as long as any of them lives
    assert began.startswith(b"began"), said
