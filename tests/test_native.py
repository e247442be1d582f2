"""The binding: objects that check their tables once, what they refuse, and what threads may do with them."""

import copy
import gc
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import sysconfig

import pytest

from mmapds import _native
from tests.support.files import ROOT
from tests.support.native_calls import answer, buffers_in, call, changes, fresh, halves, table, words
from tests.support.sanitizers import raises_sigbus


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return table(tmp_path_factory.mktemp("native"))


# ---- every call ----------------------------------------------------------------------------------------------------


def test_everything_is_called_and_says_how(rows):
    called = {name.split()[0].rstrip(",") for name in rows} | {"Zstd.decode"}
    for name, found in vars(_native).items():
        if name.startswith("_") or not callable(found):
            continue
        assert inspect.signature(found) is not None
        assert len(found.__doc__.split()) > 3, name
        methods = vars(found).items() if isinstance(found, type) and name != "Samples" else ()
        public = {f"{name}.{key}": each for key, each in methods if not key.startswith("_")}
        assert all(len(each.__doc__.split()) > 3 for each in public.values()), name
        names = {key for key, each in public.items() if callable(each)}
        assert names <= called, name
        assert names or name in called, name


def test_wrong_arguments_raise_ordinary_errors_and_change_nothing(rows):
    for name, (function, args) in rows.items():
        right = answer(function, args)
        for changed in changes(args, buffers_in(args)):
            found, _ = answer(function, changed)
            assert found[0] is not SystemError if isinstance(found, tuple) else True, (name, found)
            assert answer(function, args) == right, name


def test_calls_leave_no_objects_behind(rows):
    def grown(row):
        before = sys.getallocatedblocks()
        for _ in range(100):
            answer(*row)
        gc.collect()
        return sys.getallocatedblocks() - before

    gc.freeze()
    grown_again = [name for name, row in rows.items() if grown(row) > 80 and grown(row) > 80]
    gc.unfreeze()
    assert not grown_again


@pytest.mark.skipif(importlib.util.find_spec("_testcapi") is None, reason="needs CPython's own module of tests")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="newer Pythons may not survive a lack of memory themselves")
@pytest.mark.skipif(
    sysconfig.get_config_var("Py_GIL_DISABLED") == 1,
    reason="Python itself may not survive a lack of memory without a GIL",
)
def test_a_lack_of_memory_is_a_memory_error_and_no_damage(tmp_path):
    command = [sys.executable, "-m", "tests.support.native_calls", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-100:] + done.stderr[-2000:]  # the last line names the row


@raises_sigbus
def test_files_that_are_cut_short_under_a_call_are_the_end_of_it(tmp_path):
    rows = table(tmp_path)
    right = {name: answer(*row) for name, row in rows.items()}
    for path in tmp_path.iterdir():
        os.truncate(path, 0)
    found = {name: answer(*row)[0] for name, row in rows.items() if not name.startswith("Zstd")}  # which returns None
    changed = {name: each for name, each in found.items() if each != right[name][0]}
    assert len(changed) > 60
    assert {kind for kind, _ in changed.values()} == {EOFError}


# ---- what is refused -------------------------------------------------------------------------------------------------

SHARED = memoryview(bytearray(1 << 10))
SIZES = {"Permutation": "0", "draw": "0", "Chunks.at": "0.chunk_size", "plan_buckets": "0.0", "scan_lines": "2"}
OTHER_LENGTHS = {"0": words(7, 5, 3), "1": 2, "4": words(0, 0, 0), "5": words(0, 0, 0)}
UNMERGED = "expected lengths that fall, of 1 record or more each, found others"
NOWHERE = "expected numbers that are records, found others"
REFUSED = [  # a row of the table, arguments of which some are others, and the message
    ("Chunks.at", {"0.chunk_size": 0}, "chunk_size, mix_chunks: expected 1 or more, found 0 and 2"),
    ("Chunks.at", {"0.first_chunk": words(5)}, "first_chunk: expected 2 entries or more, found 1"),
    ("Chunks.at", {"0.first_chunk": words(1, 3, 5)}, r"first_chunk\[0\]: expected a number that agrees"),
    ("Chunks.at", {"0.first_chunk": SHARED[1:25]}, "first_chunk: expected an address that is a multiple of 8"),
    ("Chunks.at", {"0.short_slots": words(4, 0)}, r"short_\w+\[\d\]"),
    ("Chunks.at", {"0.short_ends": words(2, 21)}, r"short_ends\[1\]"),
    ("Chunks.at", {"0.order": _native.Permutation(6, 0, 0, 0)}, "order: .* permutation of 5 chunks, found one of 6"),
    ("Mixture.at", {"0.weights": words(0, 0)}, "weights: expected a sum of 1 or more, found 0"),
    ("Mixture.at", {"0.weights": words(2**32 - 1, 1)}, r"weights: .* below 2\^32, found more at weights\[1\]"),
    ("Mixture.at", {"0.sizes": words(1, 0)}, r"sizes\[1\]: expected 1 or more, and fewer than 2\^63 in all, found 0"),
    ("Mixture.at", {"1.1": words(0, 2**64 - 1)}, "position -1 is out of range"),
    ("Mixture.which", {"1.0": words(1, 2, 3)}, "out: expected 3 entries, found 2"),
    ("Plan.batches", {"0.buckets": words(0, 0, 1, 2, 3, 1, 1, 1)}, r"buckets\[1\]: .* batch 1, found 3 and 1"),
    ("Plan.batches", {"0.first_rank": 2**63 - 4}, "first_rank: .* 9223372036854775800, as the buckets have 7 records"),
    ("Plan.batches", {"1.0": words(1, 3)}, "batch 3 is out of range for a plan of 3"),
    # ends[0] = 2 becomes the second batch, which is larger
    ("Plan.batches", {"1.0": SHARED[:16], "1.1": words(0, 0, 0, 0), "1.2": SHARED[8:24]}, "out: .* found room for 4"),
    ("Runs.at", {"1.0": words(0, 4)}, "position 4 is out of range for runs of 4"),
    ("Runs.at", {"0.total": 7, "1.0": words(6, 0)}, NOWHERE),  # 0 is below the 5 that the piece has
    ("Runs.at", {"0.pieces.0.0": words(5, 9, 7), "1.0": words(0, 0)}, NOWHERE),
    ("Runs.at", {"0.which": halves(0, 2, 0), "1.0": words(2, 2)}, NOWHERE),
    ("Runs.at", {"0.places": halves(1, 0, 9)}, NOWHERE),
    ("Runs.at", {"0.begins": words(0, 9, 3), "1.0": words(2, 2)}, NOWHERE),
    ("Runs.at", {"0.begins": words(0, 2)}, "which: expected 2 entries, found 3"),
    ("Runs.at", {"0.pieces.0.1": 2}, "piece: expected integers of 4 or 8 bytes, found a width of 2"),
    ("runs_count", {**OTHER_LENGTHS, "2": words(7, 6), "3": words(1, 1)}, UNMERGED),
    ("runs_count", {**OTHER_LENGTHS, "2": words(7, 5), "3": words(2, 1)}, UNMERGED),
    ("Lengths.sort", {"1.0": words(0, 0, 0)}, "counts: expected an entry for every length up to 3, found 3 entries"),
    ("Lengths.sort", {"0.0": SHARED[:12], "1.0": SHARED[:32]}, "counts: expected memory of its own, found"),
    ("Lengths.sort_digits", {"1.2": halves(0, 9, 1)}, "previous: expected record numbers below 3, found 9"),
    ("Lengths.sort_digits", {"0.0": halves(1, 0, 0), "1.0": 0, "1.2": halves(1, 1, 1)}, "once, found one twice"),
    ("Lengths.sort_digits", {"1.2": SHARED[:12], "1.3": SHARED[:12]}, "previous: expected memory of its own, found"),
    ("Lengths.runs", {"1.0": halves(0, 1, 3)}, "order: expected record numbers below 3, found 3"),
    ("Stream.push", {"0.table": halves(9)}, r"table\[0\]: expected a bucket for every length"),
    ("Stream.push", {"0.first_buckets": halves(9)}, r"first_buckets\[0\]: expected a bucket for every length"),
    ("Stream.push", {"1.0": words(3, 2**64 - 1, 4)}, r"records\[1\]: .* record numbers below 10, each once, found -1"),
    ("Bits.select", {"0": (words(0b1011), words(0, 3), 64, "a")}, "file: expected a Map or None, found 'a'"),
    ("Bits.select", {"1.0": words(64, 0)}, "rank 64 is out of range"),
    ("bits_set", {"2": words(3, 64)}, "number 64 is out of range for a set of numbers below 64"),
    ("scan_lines", {"1": SHARED[:8], "4": SHARED[:48]}, "starts: expected memory of its own, found"),
    ("scan_lines", {"1": b"a\n" * 5, "4": words(*range(6))}, "expected 7"),
    ("scan_lines", {"0": "mmx"}, r"variant = 'mmx', expected a variant that this machine has: .*'portable'"),
    ("join_pieces", {"0": [SHARED[:0]], "1": SHARED[:8], "3": SHARED[:16]}, "begins: expected memory of its own"),
    ("Measuring.lines", {"1.4": SHARED, "1.5": (SHARED,) * 3}, "cells: expected memory of its own, found"),
    ("Measuring.lines", {"1.1": 9, "1.2": 8}, "begin, end: expected a block within 197 bytes from 9 on, found 8 to"),
    ("ArrayFields", {"0.0.0": ["x", 0, 8, (), None]}, "fields: expected a tuple, found"),
    ("ArrayFields", {"0.0.0": ("x", 9, 8, (), None)}, r"field 'x': expected one of FIELD_\*, .* found 9, 0 and 8"),
    ("ArrayFields", {"0.0.0": ("x", 7, 8, (2**64 - 1,), None)}, "field 'x': expected axes of up to"),
    ("ArrayFields", {"0.3": int}, "error: expected a class of exceptions, found <class 'int'>"),
    ("JsonFields", {"0.0.0.2": _native.ITEM_BFLOAT}, r"'a': expected an ITEM_\* and a size that it has, .* 4, 8, 1"),
    ("pack_array_records", {"1.0.1": words(0, 5)}, "record 1: expected parts within"),
    ("pack_array_records", {"1.0.2": words(3, 2**64 - 1)}, "record 1: expected parts within"),
    ("pack_array_records", {"2": 3}, "first: expected 0 to 2, found 3"),
    ("pack_array_records", {"0.0": SHARED[:16], "4": SHARED[:8]}, "ends: expected memory of its own, found"),
    ("pack_array_records", {"1.0.0": SHARED, "3": SHARED}, "out: expected memory of its own, found"),
    ("pack_bounds", {"0": 5}, "width: expected 2, 3, 4 or 8, found 5"),
    ("pack_bounds", {"0": 3, "1": words(*range(19))}, "held: expected up to 18 bounds, found 19"),
    ("Measuring.lines", {"1.5.2": words(0)}, r"cells\[2\]: expected 128 entries or more, as starts has, found 1"),
    ("Records.locate of Map, True, False", {"0": 2}, "index 2 is out of range for 2 records"),
    ("Records opened", {"2": 64}, "bounds: expected 1 groups at a multiple of 64 within 64 bytes, found byte 64"),
    ("Records in pieces", {"1": [(0, b"")]}, r"\(0, 0, 0, 110, 195\)"),  # as corrupt is called
    ("Inflater.read", {"1.1": 5000}, "filled = 5000, expected 4096 or less"),
    ("TarScanner.scan, part", {"1.0": b"1234", "1.1": 3}, "data: expected up to 3 bytes, found 4"),
    *((name, {path: -1}, "negative") for name, path in SIZES.items()),
    *((name, {path: 2**64 + 5}, "too") for name, path in SIZES.items()),  # and not taken modulo 2^64
]


def replaced(args, keys, other):
    """Arguments of which one is another."""
    if not keys:
        return other
    if isinstance(args, dict):
        return {**args, keys[0]: replaced(args[keys[0]], keys[1:], other)}
    at = int(keys[0])
    return (*args[:at], replaced(args[at], keys[1:], other), *args[at + 1 :])


@pytest.mark.parametrize(("name", "others", "message"), REFUSED)
def test_a_refusal_says_what_is_wrong(rows, name, others, message):
    function, args = rows[name]
    for path, other in others.items():
        args = replaced(args, path.split("."), other)
    SHARED[:24] = words(0, 0, 0)
    with pytest.raises((ValueError, IndexError, TypeError, OverflowError, EOFError), match=message):
        call(function, args)


# ---- objects ---------------------------------------------------------------------------------------------------------


def test_objects_keep_what_they_checked(rows):
    chunks, (positions, _) = fresh(rows["Chunks.at"][1])
    made, before, after = _native.Chunks(**chunks), words(0, 0), words(0, 0)
    made.at(positions, before)
    for buffer in buffers_in(chunks):
        buffer[:] = b"\xff" * len(buffer)
    made.at(positions, after)
    assert before == after


def test_native_objects_are_neither_derived_from_nor_copied(rows):
    for name in ("Map", "Records", "Permutation", "BlockMemory", "TarScanner"):
        for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda made: pickle.dumps(made, 0)):
            with pytest.raises(TypeError, match="cannot pickle"):
                copied(call(*rows[name]))
    for kind in {each for each in vars(_native).values() if isinstance(each, type)} - {_native.Samples}:
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Derived", (kind,), {})


def test_there_may_be_more_blocks_than_a_process_may_have_maps():
    memory = _native.BlockMemory()
    blocks = [memory.copy(len(b"%d" % k), (b"%d" % k,)) for k in range(8200)]
    assert [int(bytes(block)) for block in blocks] == list(range(8200))
    assert blocks[-1].room < blocks[0].room
