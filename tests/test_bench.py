"""`mmapds bench`: its numbers agree, it measures what it says, and it recommends within 10 % of the best."""

import json
import os
import pickle
import shlex

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import bench as room
from mmapds.bench import bench, recommend
from mmapds.cli.commands import main, new_parser
from mmapds.errors import OrderError
from tests.support.docs import blocks
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
    given_ |= {"collate": "list", "decode": None, "roots": [], **options}
    return room.measure({"kind": kind, "sources": [path], **given_})


def test_the_numbers_of_every_pass_agree(facts, path):
    assert [(each["kind"], each["workers"]) for each in facts["trials"]] == [
        ("single", 0),
        ("batched", 0),
        ("threads", 0),
        ("threads", 2),
        ("processes", 2),
    ]
    assert (facts["records"], facts["bytes"]) == (3000, os.path.getsize(path))
    assert facts["record_bytes"] == pytest.approx(np.mean([mmapds.open(path).where(i).size for i in range(0, 3000, 3)]))
    passes = [each for found in facts["trials"] for each in (found["cold"], found["warm"])]
    assert len(passes) == 10
    for each in passes:
        assert each["batches"] > 0
        assert each["records"] >= each["batches"]
        assert each["records_per_second"] == pytest.approx(each["records"] / each["seconds"])
        assert each["bytes_per_second"] == pytest.approx(each["records_per_second"] * facts["record_bytes"])
        assert 0 <= each["wait_p50"] <= each["wait_p99"] <= each["wait_max"] <= each["seconds"] + 1e-9
        assert each["memory"] > 10_000_000  # what a Python with torch holds at least
        assert each["from_disk"] >= 0
    by_name = {(each["kind"], each["workers"]): each for each in facts["trials"]}
    assert by_name["processes", 2]["warm"]["memory"] > 1.5 * by_name["threads", 2]["warm"]["memory"]
    assert facts["recommendation"] == recommend(facts["trials"], fits=facts["fits"])


@pytest.mark.parametrize("kind", ["single", "batched", "threads"])
def test_a_pass_delivers_every_record_of_an_epoch_once(kind, path, monkeypatch):
    """All but those of the first batch, for which workers start."""
    read = []
    monkeypatch.setattr("mmapds.dataset.collate.pad_collate", read.extend)
    monkeypatch.setattr(room, "cycle", iter)
    found = measured(kind, path, collate="pad")
    assert found["cold"] is None
    assert found["warm"]["records"] == 3000 - (1 if kind == "single" else 16)
    if kind != "single":
        assert sorted(each["id"] for each in read) == sorted([*range(3000), *range(3000)])


def test_a_pass_ends_in_time_and_a_warm_one_reads_what_the_cold_one_did(path, monkeypatch):
    dropped, drawn = [], []
    monkeypatch.setattr(room, "drop_pages", dropped.extend)
    whole = room._pass

    def noted(deliver, batches, seconds):
        found = whole(deliver, (drawn.append(tuple(each)) or each for each in batches), seconds)
        drawn.append(None)
        return found

    monkeypatch.setattr(room, "_pass", noted)
    found = measured("batched", path, cold=True, seconds=1e-9)
    assert dropped == [path]
    assert found["cold"]["batches"] == found["warm"]["batches"] == 1
    cut = drawn.index(None)
    assert set(drawn[cut + 1 : -1]) <= set(drawn[:cut])


def of_rates(rates):
    """Trials with these rates, by kind and workers."""
    same = {"wait_p50": 0.001, "batches": 5, "seconds": 1.0}
    return [
        {"kind": kind, "workers": workers, "cold": None, "warm": {"records_per_second": rate, **same}}
        for (kind, workers), rate in rates.items()
    ]


WAYS = [("threads", 0), ("threads", 1), ("threads", 4), ("processes", 1), ("processes", 4)]


@given(st.lists(st.floats(1, 1e7), min_size=5, max_size=5))
def test_what_is_recommended_is_within_ten_per_cent_of_the_best(rates):
    by_way = dict(zip(WAYS, rates, strict=True))
    found = recommend([{"kind": "single", "workers": 0, "cold": None, "warm": {}}, *of_rates(by_way)], fits=True)
    own, best = by_way[found["kind"], found["workers"]], max(rates)
    assert own >= 0.9 * best
    assert found["share"] == pytest.approx(own / best)
    assert by_way[found["best"]["kind"], found["best"]["workers"]] == best
    near = [way for way, rate in by_way.items() if rate >= 0.9 * best]
    if found["kind"] == "processes":
        assert all(kind == "processes" for kind, _ in near)
    if found["workers"] == 0:
        assert ("threads", 1) not in near


def test_cold_passes_count_where_the_data_do_not_fit():
    trials = of_rates({("threads", 1): 100.0, ("threads", 4): 100.0})
    for each, rate in zip(trials, (10.0, 50.0), strict=True):
        each["cold"] = {**each["warm"], "records_per_second": rate}
    assert recommend(trials, fits=True)["workers"] == 1
    found = recommend(trials, fits=False)
    assert (found["workers"], found["pass"]) == (4, "cold")


def test_the_command_prints_a_table_or_json(path, facts, monkeypatch, capsys):
    monkeypatch.setattr("mmapds.bench.bench", lambda *_, **__: facts)
    assert main(["bench", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts
    assert main(["bench", path]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 1 + 10 + 2
    assert lines[0].startswith("train.jsonl: 3,000 records, ")
    assert [line.split()[0] for line in lines[2:8:2]] == ["ds[i]", "ds.take(batch)", "num_workers=0"]
    for each in facts["trials"]:
        assert any(f"{each['warm']['records_per_second']:,.0f}" in line.split() for line in lines)
    assert lines[-1] == facts["recommendation"]["text"]


def test_what_is_wrong_with_the_data_is_the_error_of_the_dataset(write):
    path = write(b'{"n": 1}\n{"n":\n')
    mmapds.build(path)
    with pytest.raises(mmapds.Error, match="not JSON"):
        bench(path, workers=[0], seconds=0.01)
    with pytest.raises(mmapds.Error, match="no such file"):
        bench("absent.jsonl")
    empty = write(b"", "empty.jsonl")
    mmapds.build(empty)
    with pytest.raises(OrderError, match="found 0"):
        bench(empty)


def test_a_decoder_that_no_other_process_can_load_is_an_error(path):
    with pytest.raises(mmapds.Error, match=r"decode = <function .*, expected a function of a module"):
        bench(path, decode=lambda record: record)


def test_a_trial_that_ends_without_a_result_is_an_error(path, monkeypatch):
    monkeypatch.setattr(pickle, "dumps", lambda _: b"not a pickle")
    with pytest.raises(mmapds.Error, match="single: expected a result of the trial with 0 workers, found "):
        bench(path, workers=[0], seconds=0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workers", "two"], "argument --workers: invalid numbers value: 'two'"),
        (["--workers", "0,-1"], "argument --workers: invalid numbers value: '0,-1'"),
        (["--batch-size", "0", "--seconds", "0.01"], "--batch-size = 0, expected an integer of 1 or more"),
        (["--seconds", "0"], "--seconds = 0.0, expected a number above 0"),
        (["--collate", "pat"], "--collate = 'pat', expected 'list' or 'pad'"),
    ],
)
def test_mistakes_are_usage_errors(path, arguments, message, capsys):
    assert main(["bench", path, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_page_of_benchmarks_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words(tmp_path / "train.jsonl", [1 + i * 7919 % 300 for i in range(300)])
    (line,) = "".join(blocks("docs/bench.md", "sh")).splitlines()
    name, *arguments = shlex.split(line)
    assert name == "mmapds"
    parsed = new_parser("mmapds", ["bench"]).parse_args(arguments)
    assert (parsed.max_tokens, parsed.workers, parsed.seconds) == (8192, [0, 2], 0.2)
    (code,) = blocks("docs/bench.md", "python")
    names = {}
    exec(code, names)
    assert [(each["kind"], each["cold"] is None) for each in names["facts"]["trials"]] == [
        ("single", False),
        ("batched", False),
        ("threads", False),
        ("threads", False),
    ]
    assert capsys.readouterr().out.startswith("mmapds.DataLoader(..., num_workers=")
