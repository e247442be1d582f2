"""The binding: objects that check their tables once, what they refuse, and what threads may do with them."""

import copy
import gc
import inspect
import os
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest

from mmapds import _native, orders
from mmapds.index.lengths import sorted_lengths
from mmapds.samplers.bucket import Budget
from mmapds.samplers.plan import Selection
from mmapds.samplers.window import WindowPlan
from tests.support.bounds import grouped


def words(*numbers):
    return np.array(numbers, np.uint64)


ORDER = _native.Permutation(5, 0, 0, 0)
SLOTS = sorted((ORDER.one(chunk, True), missing) for chunk, missing in ((2, 2), (4, 1)))
MISSING = (SLOTS[0][1], 3)

CHUNKS = {  # sources of 10 and 7 records in chunks of 4: the third and the fifth of five chunks are short
    "chunk_size": 4,
    "mix_chunks": 2,
    "seed": 0,
    "epoch": 0,
    "first_chunk": words(0, 3, 5),
    "first_record": words(0, 10, 17),
    "short_slots": words(*(slot for slot, _ in SLOTS)),
    "short_ends": words(*((slot + 1) * 4 - gone for (slot, _), gone in zip(SLOTS, MISSING, strict=True))),
    "short_missing": words(0, *MISSING),
    "order": ORDER,
}


def test_chunks_refuse_tables_that_do_not_agree():
    for change, message in (
        ({"chunk_size": 0}, "chunk_size, mix_chunks: expected 1 or more, found 0 and 2"),
        ({"first_chunk": words(5)}, "first_chunk: expected 2 entries or more, found 1"),
        ({"first_chunk": words(1, 3, 5)}, r"first_chunk\[0\]: expected a number that agrees"),
        ({"first_chunk": words(0, 2, 5)}, r"first_chunk\[1\]"),
        ({"first_record": words(0, 10)}, "first_record: expected 3 entries, found 2"),
        ({"first_record": words(0, 10, 9)}, r"first_record\[2\]"),
        ({"short_slots": words(SLOTS[1][0], SLOTS[0][0])}, r"short_\w+\[\d\]"),
        ({"short_slots": words(SLOTS[0][0], SLOTS[0][0])}, r"short_slots\[1\]"),
        ({"short_slots": words(SLOTS[0][0], 2**40)}, r"short_slots\[1\]"),
        ({"short_ends": words(CHUNKS["short_ends"][0], 21)}, r"short_ends\[1\]"),
        ({"short_missing": words(0, 0, 3)}, r"short_missing\[0\]"),
        ({"short_slots": words(), "short_ends": words(), "short_missing": words(0)}, r"short_missing\[0\]"),
        ({"order": _native.Permutation(5, 1, 0, 0)}, r"short_\w+\[\d\]: expected a number that agrees"),
        ({"order": _native.Permutation(6, 0, 0, 0)}, "order: expected a permutation of 5 chunks, found one of 6"),
        ({"first_chunk": b"123"}, "first_chunk: expected whole integers of 8 bytes, found 3 bytes"),
        ({"first_chunk": np.zeros(33, np.uint8)[1:]}, "first_chunk: expected an address that is a multiple of 8"),
    ):
        out = np.empty(17, np.int64)
        _native.Chunks(**CHUNKS).at(np.arange(17), out)
        assert sorted(out.tolist()) == list(range(17))
        with pytest.raises(ValueError, match=message):
            _native.Chunks(**{**CHUNKS, **change})


def test_objects_keep_what_they_checked():
    tables = {name: np.copy(table) if isinstance(table, np.ndarray) else table for name, table in CHUNKS.items()}
    chunks = _native.Chunks(**tables)
    before, after = np.empty((2, 17), np.int64)
    chunks.at(np.arange(17), before)
    for table in tables.values():
        if isinstance(table, np.ndarray):
            table[:] = 2**63
    chunks.at(np.arange(17), after)
    assert (before == after).all()


def test_mixtures_refuse_what_they_cannot_mix():
    for change, message in (
        ({"weights": words(0, 0)}, "weights: expected a sum of 1 or more, found 0"),
        ({"weights": words(2**32 - 1, 1)}, r"weights: expected a sum below 2\^32, found more at weights\[1\]"),
        ({"sizes": words(1, 0)}, r"sizes\[1\]: expected 1 or more, and fewer than 2\^63 in all, found 0"),
        ({"sizes": words(1, 2**63 - 1)}, r"sizes\[1\]"),
        ({"sizes": words(1)}, "sizes: expected 2 entries, found 1"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Mixture(**{"weights": words(1, 1), "sizes": words(1, 1), "seed": 0, "shuffle": True, **change})


def test_positions_out_of_range_change_nothing():
    mixture = _native.Mixture(weights=words(1, 1), sizes=words(5, 5), seed=0, shuffle=True)
    out = np.full(2, 7)
    for at in (mixture.which, lambda positions, out: mixture.at(0, positions, out)):
        with pytest.raises(IndexError, match="position -1 is out of range"):
            at(np.array([0, -1]), out)
    with pytest.raises(ValueError, match="out: expected 3 entries, found 2"):
        mixture.which(np.arange(3), out)
    assert out.tolist() == [7, 7]


def test_plans_refuse_buckets_that_do_not_follow_one_another():
    for buckets, first_rank, message in (
        ([], 0, "buckets: expected rows of 4 entries, 1 or more, found 0"),
        ([0, 0, 1], 0, "found 3 entries"),
        ([0, 0, 1, 2, 3, 1, 1, 1], 0, r"buckets\[1\]: expected .* rank 2 and batch 1, found 3 and 1"),
        ([0, 0, 2**40, 2**40], 0, r"buckets\[0\]"),
        ([0, 0, 1, 4], 2**63 - 4, "first_rank: expected up to 9223372036854775803, as the buckets have 4 records"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Plan(buckets=words(*buckets), first_rank=first_rank, seed=0, epoch=0, shuffle=True)


def test_plans_read_no_batch_that_is_not_planned():
    plan = _native.Plan(buckets=words(0, 0, 1, 3), first_rank=0, seed=0, epoch=0, shuffle=True)
    with pytest.raises(IndexError, match="batch 1 is out of range for a plan of 1"):
        plan.batches(np.ones(1, np.int64), np.empty(3, np.int64), np.empty(1, np.int64))


RUNS = {
    "pieces": ((words(5, 6, 7, 0), 8, 5, 2, 100), (np.array([0, 1], np.uint32), 4, 0, 1, 0)),
    "begins": words(0, 2, 3),
    "begin_width": 8,
    "which": np.array([0, 1, 0], np.uint32),
    "places": np.array([1, 0, 0], np.uint32),
    "place_width": 4,
    "total": 4,
}


def test_runs_are_read_as_one_array():
    out = np.empty(4, np.uint64)
    _native.Runs(**RUNS).at(np.arange(4), out)
    assert out.tolist() == [101, 102, 0, 100]
    with pytest.raises(IndexError, match="position 4 is out of range for runs of 4"):
        _native.Runs(**RUNS).at(np.array([4]), out[:1])


def test_runs_lead_nowhere_but_into_their_pieces():
    for change, positions, message in (
        ({"total": 7}, [6], "expected numbers that are records, found others"),  # 0 is below the 5 that the piece has
        ({"pieces": ((words(5, 9, 7), 8, 5, 2, 0), *RUNS["pieces"][1:])}, [0], "expected numbers that are records"),
        ({"which": np.array([0, 2, 0], np.uint32)}, [2], "expected numbers that are records"),
        ({"places": np.array([1, 0, 9], np.uint32)}, [3], "expected numbers that are records"),
        ({"begins": words(0, 9, 3)}, [2], "expected numbers that are records"),
        ({"begins": words(0, 2)}, [0], "which: expected 2 entries, found 3"),
        ({"begins": words(), "which": words()[:0], "places": words()[:0]}, [0], "expected one run or more"),
        ({"pieces": ((words(5), 2, 0, 0, 0),)}, [0], "piece: expected integers of 4 or 8 bytes, found a width of 2"),
        ({"total": 2**63}, [0], "expected one run or more, of up to"),
    ):
        with pytest.raises(ValueError, match=message):
            _native.Runs(**{**RUNS, **change}).at(np.array(positions), np.empty(len(positions), np.uint64))


def test_lengths_that_are_not_those_of_an_index_are_not_merged():
    for values, counts in (
        ([5, 7], [1, 1]),
        ([7, 7], [1, 1]),
        ([7, 6], [1, 1]),
        ([7, 5], [2, 0]),
        ([7, 5], [2, 1]),
        ([7], [1]),
    ):
        runs, records = np.zeros((2, 3), np.uint64)
        with pytest.raises(ValueError, match="expected lengths that fall, of 1 record or more each, found others"):
            _native.runs_count(words(7, 5, 3), 2, words(*values), words(*counts), runs, records)


def test_lengths_are_sorted_where_there_is_room():
    lengths = _native.Lengths(np.array([3, 1, 2], np.uint32), 4)
    order = np.empty(3, np.uint32)
    with pytest.raises(ValueError, match="counts: expected an entry for every length up to 3, found 3 entries"):
        lengths.sort(np.zeros(3, np.uint64), order, 4)
    with pytest.raises(ValueError, match="counts: expected a power of two of entries, found 12"):
        lengths.sort_digits(0, np.zeros(12, np.uint64), None, order, 4)
    with pytest.raises(ValueError, match="previous: expected record numbers below 3, found 9"):
        lengths.sort_digits(0, np.zeros(4, np.uint64), np.array([0, 9, 1], np.uint32), order, 4)
    with pytest.raises(ValueError, match="order: expected record numbers below 3, found 3"):
        lengths.runs(np.array([0, 1, 3], np.uint32), 4)
    with pytest.raises(ValueError, match="lengths: expected integers of 4 or 8 bytes, found a width of 2"):
        _native.Lengths(b"", 2)


def window_stream(records=200_000):
    lengths = np.random.default_rng(0).integers(1, 1000, records).astype(np.uint32)
    by_length = sorted_lengths(lengths)
    selection = Selection(by_length, 0, slice(0, len(by_length.values)))
    budget = Budget(20_000, 10_000, 1, 0)
    plan = WindowPlan(
        selection, budget, order=orders.Sequential(records), sort_window=1000, ranks=1, seed=0, shuffle=True
    )
    return plan, {"buckets": plan.buckets, "ranks": records, "records": records, **plan.tables}


def test_streams_refuse_tables_that_lead_nowhere():
    for name, change, message in (
        ("table", lambda table: table + 10**6, r"table\[0\]: expected a bucket for every length"),
        ("first_buckets", lambda firsts: firsts + 10**6, r"first_buckets\[0\]: expected a bucket for every length"),
        ("ranks", lambda ranks: ranks * 2, "ranks: expected more than"),
        ("splits", lambda splits: splits[1:], "splits: expected 999 entries, found 998"),
    ):
        tables = window_stream()[1]
        with pytest.raises(ValueError, match=message):
            _native.Stream(**{**tables, name: change(tables[name])})


def test_a_stream_is_of_one_thread_at_a_time():
    plan, tables = window_stream()
    stream = _native.Stream(**tables)
    records = np.arange(plan.records)
    lengths = plan.selection.by_length.lengths.at(records)
    outcomes = []
    start = threading.Barrier(4)

    def push():
        out, ends = np.empty(plan.records, np.int64), np.empty(len(plan), np.int64)
        start.wait()
        try:
            outcomes.append(stream.push(records, lengths, out, ends))
        except (RuntimeError, ValueError) as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count((plan.records, len(plan))) == 1
    others = [outcome for outcome in outcomes if isinstance(outcome, str)]
    assert len(others) == 3
    assert all("one thread at a time" in other or "each once" in other for other in others)


def test_a_stream_says_which_record_it_refuses():
    _, tables = window_stream(1000)
    push = _native.Stream(**tables).push
    out, ends = np.empty(2000, np.int64), np.empty(1000, np.int64)
    assert push(np.arange(3), words(1, 1, 1), out, ends)[0] == 3
    with pytest.raises(ValueError, match=r"records\[1\]: expected record numbers below 1000, each once, found -1"):
        push(np.array([3, -1]), words(1, 1), out, ends)


def test_a_sort_refuses_an_order_with_a_record_twice():
    lengths = _native.Lengths(np.array([1, 0, 0], np.uint32), 4)
    order = np.empty(3, np.uint32)
    with pytest.raises(ValueError, match="previous: expected each of 3 records once, found one twice"):
        lengths.sort_digits(0, np.zeros(2, np.uint64), np.array([1, 1, 1], np.uint32), order, 4)


def test_what_is_written_lies_apart_from_what_is_read(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n')
    memory = np.arange(16, dtype=np.uint64)
    order, counts, starts = np.empty(16, np.uint64), np.empty(16, np.uint64), np.empty(99, np.uint64)
    lengths, source, joined = _native.Lengths(memory, 8), path.read_bytes(), np.zeros(2, np.uint64)
    measuring = _native.Measuring(fields=((0, (b"n",)),), missing=0, fill=(0, 0), validate=False, skip_bad=False)
    for argument, call in {
        "counts": lambda: lengths.sort(memory, order, 8),
        "order": lambda: lengths.sort(counts, memory[:16], 8),
        "previous": lambda: lengths.sort_digits(0, counts, order, order, 8),
        "starts": lambda: _native.scan_lines(None, starts[90:], 0, 0, starts),
        "begins": lambda: _native.join_pieces([joined[:0]], joined[1:], 0, joined),
        "cells": lambda: measuring.lines(source, 0, 0, 9, starts, (starts,)),
    }.items():
        with pytest.raises(ValueError, match=f"^{argument}: expected memory of its own, found"):
            call()


def test_a_plan_that_writes_over_its_batches_reads_no_others():
    plan = _native.Plan(buckets=words(0, 0, 2, 2), first_rank=0, seed=0, epoch=0, shuffle=False)
    memory = np.zeros(3, np.int64)
    with pytest.raises(ValueError, match="out: expected room for all records of the batches, found room for 4"):
        plan.batches(memory[:2], np.empty(4, np.int64), memory[1:])  # ends[0] = 2 becomes the second batch


def test_a_scan_reads_nothing_beyond_its_block(tmp_path):
    path = tmp_path / "lines"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n')
    starts, cells = np.empty(99, np.uint64), np.empty(99, np.uint64)
    measuring = _native.Measuring(fields=((0, (b"n",)),), missing=0, fill=(0, 0), validate=False, skip_bad=False)
    for base, begin, end in ((9, 9, 19), (9, 8, 9), (9, 10, 9)):
        with pytest.raises(ValueError, match=f"expected a block within 9 bytes from 9 on, found {begin} to {end}"):
            measuring.lines(b'{"n": 2}\n', base, begin, end, starts, (cells,))
    assert measuring.lines(b'\n{"n": 2}\n', 8, 9, 18, starts, (cells,))[:2] == ((1, 18, 1), 1)
    assert (starts[0], cells[0]) == (9, 2)


class Opener:
    """One source, and a file of its bounds."""

    def __init__(self, path, bounds):
        self.path, self.bounds, self.enter = path, bounds, lambda: None

    def open(self, _):
        opened = _native.Map(self.path), _native.Map(self.bounds), 0, 2, _native.FRAMING_NONE, 0, 0
        self.enter()
        return opened

    def lost(self, *where):
        raise EOFError(where)

    def corrupt(self, *where):
        raise ValueError(where)


@pytest.mark.parametrize("room", range(12))
def test_as_many_records_fit_as_have_so_many_bytes(tmp_path, room):
    path, bounds = tmp_path / "source", tmp_path / "bounds"
    path.write_bytes(bytes(10))
    bounds.write_bytes(grouped([0, 0, 4, 5, 10], 2))
    records = _native.Records(words(0, 4), Opener(path, bounds), False, False, False)
    sizes = [0, 4, 1, 5]
    for rows in ([0, 1, 2, 3], [3, -2, 0], np.array([1, 1, 1]), range(2, 4), []):
        totals = np.cumsum([sizes[row] for row in rows])
        assert records.fitting(rows, room) == (totals <= room).sum()
    with pytest.raises(IndexError, match="index 4 is out of range for 4 records"):
        records.fitting([0, 4], room)


@pytest.mark.parametrize("inside", ["open", "collection"])
def test_a_source_may_be_opened_while_it_is_opened(tmp_path, inside):
    path, bounds = tmp_path / "source", tmp_path / "bounds"
    path.write_bytes(b"abcd")
    bounds.write_bytes(grouped([0, 2, 4], 2))
    opener = Opener(path, bounds)
    records = _native.Records(words(0, 2), opener, False, False, True)
    found = []

    def enter(*_):
        opener.enter = lambda: None
        if enter in gc.callbacks:
            gc.callbacks.remove(enter)
        found.append(bytes(records[1]))

    def collect():  # some Pythons collect when the binding makes its memoryview
        gc.callbacks.append(enter)
        gc.set_threshold(1)

    thresholds = gc.get_threshold()
    opener.enter = enter if inside == "open" else collect
    try:
        view = records[0]
    finally:
        gc.set_threshold(*thresholds)
        if enter in gc.callbacks:
            gc.callbacks.remove(enter)
    assert bytes(view) == b"ab"
    assert found in ([b"cd"], [])
    assert records.many([0, 1]) == [b"ab", b"cd"]
    records = view = None
    if os.path.exists("/proc/self/maps"):
        assert str(bounds) not in Path("/proc/self/maps").read_text()  # nothing is still held


def test_sizes_are_not_taken_modulo_anything():
    for call in (
        lambda size: _native.Permutation(size, 0, 0, 0),
        lambda size: _native.draw(size, 0, 0, np.zeros(1, np.int64), np.zeros(1, np.int64)),
        lambda size: _native.Chunks(**{**CHUNKS, "chunk_size": size}),
        lambda size: _native.plan_buckets((size, 1, 1, 0), words(1), words(1), (1, 1, 0), True),
        lambda size: _native.scan_lines(None, b"", size, None, words(0, 0)),
    ):
        for size in (-1, 2**64, 2**64 + 5):
            with pytest.raises(OverflowError):
                call(size)


def test_array_fields_refuse_what_they_cannot_be():
    for change, error, message in (
        ({"fields": (["x", 0, 8, (), None],)}, TypeError, "fields: expected a tuple, found"),
        ({"fields": (("x", 9, 8, (), None),)}, ValueError, r"field 'x': expected one of FIELD_\*, .* found 9, 0 and 8"),
        ({"fields": (("x", 7, 8, (2**64 - 1,), None),)}, ValueError, "field 'x': expected axes of up to"),
        ({"error": int}, TypeError, "error: expected a class of exceptions, found <class 'int'>"),
    ):
        given = {"fields": (("x", 0, 8, (), None),), "make_array": None, "loads": None, "error": ValueError}
        with pytest.raises(TypeError, match="expected one record, found keywords"):
            _native.ArrayFields(**given)(bytes(16), record=1)
        with pytest.raises(error, match=message):
            _native.ArrayFields(**{**given, **change})


def test_native_objects_are_neither_derived_from_nor_copied(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(1024))
    for made in (
        _native.Map(path),
        _native.TarScanner(os.fspath(path)),
        _native.Records(words(0), None, False, False, False),
        _native.Lengths(words(1), 8),
        _native.Chunks(**CHUNKS),
        _native.Runs(**RUNS),
        _native.Stream(**window_stream(1000)[1]),
        ORDER,
    ):
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Derived", (type(made),), {})
        for copied in (copy.copy, copy.deepcopy, pickle.dumps, lambda made: pickle.dumps(made, 0)):
            with pytest.raises(TypeError, match="cannot pickle"):
                copied(made)


def test_orders_are_pickled_and_copied_in_use():
    for order in (orders.Chunked([0, 10, 31], 4, seed=1), orders.Mixture([10, 21], [1, 2], seed=1)):
        positions = np.arange(len(order))
        wanted = order.at(1, positions)
        for other in (pickle.loads(pickle.dumps(order)), copy.deepcopy(order), copy.copy(order)):
            assert (other.at(1, positions) == wanted).all()


def test_everything_says_how_it_is_called():
    for name, found in vars(_native).items():
        if name.startswith("_") or not callable(found):
            continue
        assert inspect.signature(found) is not None
        assert len(found.__doc__.split()) > 3, name
        methods = (
            {key: each for key, each in vars(found).items() if not key.startswith("_")}
            if isinstance(found, type)
            else {}
        )
        for key, method in methods.items():
            assert len(method.__doc__.split()) > 3, (name, key)
            taken = inspect.signature(method).parameters if callable(method) else {}
            assert len(taken) <= 7, (name, key)
