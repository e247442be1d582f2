"""`mmapds bench`: its numbers agree, it measures what it says, and it recommends within 10 % of the best."""

import itertools
import json
import math
import os
import pickle
from functools import wraps
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import bench as room
from mmapds.bench import bench, recommend
from tests.support.reports import words


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return words(tmp_path_factory.mktemp("bench") / "train.jsonl", [1 + i * 7919 % 300 for i in range(3000)])


@pytest.fixture(scope="module")
def facts(path):
    return bench(path, max_tokens=2048, workers=[0, 2], seconds=0.05)


def measured(kind, path, **options):
    """A trial, in this process."""
    given_ = {"workers": 2 * (kind == "threads"), "max_tokens": None, "batch_size": 16, "seconds": 60, "cold": False}
    given_ |= {"collate": "pad", "decode": None, "roots": [], **options}
    return room.measure({"kind": kind, "sources": [path], **given_})


def test_the_numbers_of_every_pass_agree(facts, path):
    by_name = {(each["kind"], each["workers"]): each for each in facts["trials"]}
    assert [*by_name] == [("single", 0), ("batched", 0), ("threads", 0), ("threads", 2), ("processes", 2)]
    assert (facts["records"], facts["bytes"]) == (3000, os.path.getsize(path))
    assert facts["record_bytes"] == pytest.approx(np.mean([mmapds.open(path).where(i).size for i in range(0, 3000, 3)]))
    passes = [each for found in facts["trials"] for each in (found["cold"], found["warm"])]
    assert len(passes) == 10
    for each in filter(None, passes):  # in a file system in memory no pass is cold
        assert each["batches"] > 0
        assert each["records"] >= each["batches"]
        assert each["records_per_second"] == pytest.approx(each["records"] / each["seconds"])
        assert each["bytes_per_second"] == pytest.approx(each["records_per_second"] * facts["record_bytes"])
        assert 0 <= each["wait_p50"] <= each["wait_p99"] <= each["wait_max"] <= each["seconds"] + 1e-9
        assert each["memory"] > 10_000_000  # what a Python with torch holds at least
        assert each["from_disk"] >= 0
    assert by_name["processes", 2]["warm"]["memory"] > 1.5 * by_name["threads", 2]["warm"]["memory"]
    assert facts["recommendation"] == recommend(facts["trials"], fits=facts["fits"])


@pytest.fixture
def read(monkeypatch):
    """The numbers of all records that are collated in this process."""
    found = []
    collate = "mmapds.dataset.collate.pad_collate"
    monkeypatch.setattr(collate, lambda batch: found.extend(each["id"] for each in batch))
    return found


@pytest.mark.parametrize("kind", ["single", "batched", "threads"])
def test_a_pass_delivers_every_record_of_an_epoch_once(kind, path, read, monkeypatch):
    """All but those of the first batch count, for which workers start."""
    monkeypatch.setattr(room, "cycle", iter)
    found = measured(kind, path)
    assert (found["cold"], found["warm"]["records"]) == (None, 3000 - (1 if kind == "single" else 16))
    assert sorted(read) == ([] if kind == "single" else sorted([*range(3000), *range(3000)]))


def test_a_pass_ends_in_time_and_a_warm_one_reads_what_the_cold_one_did(path, read, monkeypatch):
    """However many more batches it reads in that time, by a clock that is slower then."""
    dropped, ticks = [], itertools.count()
    clock = SimpleNamespace(perf_counter=lambda: next(ticks) if len(read) <= 32 else 64 + next(ticks) / 1000)
    monkeypatch.setattr(room, "time", clock)
    monkeypatch.setattr(room, "drop_pages", dropped.extend)
    found = measured("batched", path, cold=True, seconds=1)
    assert (dropped, found["cold"]["batches"]) == ([path], 1)
    assert len(read) == 16 * (4 + found["warm"]["batches"] - 1) > 1000  # the first batch of a pass does not count
    assert set(read[32:]) == set(read[:32])


@pytest.mark.parametrize(("read", "is_cold"), [(0, False), (4000, False), (6000, True), (None, True)])
def test_a_cold_pass_that_read_little_from_the_disk_was_warm(monkeypatch, read, is_cold):
    found = {"records": 100, "records_per_second": 1.0, "from_disk": read}
    ran = SimpleNamespace(returncode=0, stdout=pickle.dumps({"cold": found, "warm": found}), stderr=b"")
    monkeypatch.setattr(room.subprocess, "run", lambda *_, **__: ran)
    assert (room._run({}, 50.0, 100.0)["cold"] is not None) == is_cold


WAYS = [("threads", 0), ("threads", 1), ("threads", 4), ("processes", 1), ("processes", 4)]
RATES = st.lists(st.floats(1, 1e7), min_size=5, max_size=5)


@given(RATES, RATES, st.booleans())
def test_what_is_recommended_is_within_ten_per_cent_of_the_best(warm, cold, fits):
    """Of warm passes where the data fit into memory, otherwise of cold ones."""
    same = {"wait_p50": 0.001, "batches": 5, "seconds": 1.0}
    trials = [
        {"kind": kind, "workers": count}
        | {name: {"records_per_second": rate, **same} for name, rate in (("warm", one), ("cold", other))}
        for (kind, count), one, other in zip(WAYS, warm, cold, strict=True)
    ]
    found = recommend([{"kind": "single", "workers": 0, "cold": {}, "warm": {}}, *trials], fits=fits)
    by_way = dict(zip(WAYS, warm if fits else cold, strict=True))
    own, best = by_way[found["kind"], found["workers"]], max(by_way.values())
    assert own >= 0.9 * best
    assert (found["pass"], found["share"]) == ("warm" if fits else "cold", pytest.approx(own / best))
    assert by_way[found["best"]["kind"], found["best"]["workers"]] == best
    near = [way for way, rate in by_way.items() if rate >= 0.9 * best]
    threads = sorted(count or math.inf for kind, count in near if kind == "threads")  # one is better than none
    chosen = ("threads", threads[0]) if threads else min(near)
    assert (found["kind"], found["workers"] or math.inf) == chosen


def test_the_command_prints_a_table_or_json(path, facts, monkeypatch, ran):
    given = {}
    monkeypatch.setattr("mmapds.bench.bench", wraps(bench)(lambda _, **options: given.update(options) or facts))
    assert json.loads(ran("bench", path, "--json")[1]) == facts
    status, out, _ = ran("bench", path, "--max-tokens", 8192, "--workers", "0,2", "--seconds", 0.2)
    assert (status, given["max_tokens"], given["workers"], given["seconds"]) == (0, 8192, [0, 2], 0.2)
    lines = out.splitlines()
    passes = sum(each["cold"] is not None for each in facts["trials"]) + len(facts["trials"])
    assert len(lines) == 1 + 1 + passes + 2
    assert lines[0].startswith("train.jsonl: 3,000 records, ")
    assert all(f"\n  {name} " in out for name in ("ds[i]", "ds.take(batch)", "num_workers=0"))
    for each in facts["trials"]:
        assert any(f"{each['warm']['records_per_second']:,.0f}" in line.split() for line in lines)
    assert lines[-1] == facts["recommendation"]["text"]


def test_what_cannot_be_measured_is_an_error(path, write, monkeypatch, ran):
    assert "argument --workers: invalid numbers value: '0,-1'" in ran("bench", path, "--workers", "0,-1")[2]
    bad, empty = write(b'{"n": 1}\n{"n":\n', "bad.jsonl"), write(b"", "empty.jsonl")
    mmapds.build([bad, empty])
    for source, options, message in (
        (bad, {}, "not JSON"),
        ("absent.jsonl", {}, "no such file"),
        (empty, {}, "dataset: expected one sample or more, found 0"),
        (path, {"batch_size": 0}, "batch_size = 0, expected an integer of 1 or more"),
        (path, {"seconds": 0}, "seconds = 0, expected a number above 0"),
        (path, {"collate": "pat"}, "collate = 'pat', expected 'list' or 'pad'"),
    ):
        with pytest.raises(mmapds.Error, match=message):
            bench(source, workers=[0], **{"seconds": 0.01, **options})
    monkeypatch.setattr(pickle, "dumps", lambda _: b"not a pickle")
    with pytest.raises(mmapds.Error, match="single: expected a result of the trial with 0 workers, found "):
        bench(path, workers=[0], seconds=0.01)
