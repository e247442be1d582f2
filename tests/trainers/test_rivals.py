"""The comparison with rivals: jobs and their limits, answers that differ, and tables that are those of the numbers."""

import json
from importlib import import_module

import pytest

from bench.rivals import contests, pages, planners, plots, process, samplers, stores, tables
from bench.rivals.contests import DifferentError, Plan
from bench.rivals.planners import jobs as planner_jobs
from bench.rivals.process import JobError, Limits
from bench.rivals.samplers import jobs as sampler_jobs
from bench.rivals.stores import jobs as store_jobs
from tests.support.files import ROOT
from tests.support.sanitizers import limits_memory

JOBS = "tests.support.rivals"
MB = 10**6
HERE = {"mmapds", "plain", "mapped", "datasets", "webdataset", "array_record", "grain", "torch", "numpy"}
"""Rivals whose packages are among those of developers."""


@limits_memory
def test_a_job_answers_and_its_memory_is_seen():
    found = process.run(f"{JOBS}:hold", size=60 * MB)
    assert found["held"] == 60 * MB
    assert found["peak"] > 60 * MB


@limits_memory
def test_the_limit_of_memory_holds_for_a_job_and_its_children_together():
    found = process.run(f"{JOBS}:grow_in_children", Limits(memory=300 * MB), size=120 * MB, children=4)
    assert found == {"stopped": "> 0.3 GB", "peak": found["peak"]}
    assert found["peak"] > 300 * MB


@limits_memory
def test_a_job_that_takes_too_long_is_stopped():
    assert process.run(f"{JOBS}:go_on", Limits(seconds=0.5))["stopped"] == "> 0.5 s"


@limits_memory
def test_a_job_that_fails_is_an_error_with_what_it_printed():
    with pytest.raises(JobError, match=r"(?s)fail: status 1\n.*what was printed.*ValueError: what went wrong"):
        process.run(f"{JOBS}:fail")
    with pytest.raises(JobError, match="end: status 3"):
        process.run(f"{JOBS}:end")


class Recorded:
    """Jobs that are asked, in place of processes."""

    def __init__(self, answers):
        self.asked, self._answers = [], answers

    def __call__(self, function, limits=None, **arguments):
        name = function.split(":")[1]
        self.asked.append((name, arguments.get("name"), arguments.get("n")))
        answer = self._answers[name]
        return dict(answer(**arguments) if callable(answer) else answer)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    source = tmp_path / "source.jsonl"
    source.write_text('{"id":1}\n{"id":2}\n')
    monkeypatch.setattr(contests, "jsonl", lambda _: source)
    return Plan(tmp_path / "rivals", records=2, largest=10**6, rounds=2, say=str)


SAID = {"about": "When and where."}
ABOUT = {"title": "a rival", "version": "1.0", "how": "files", "cannot": {}}


def stand_ins(right, given_):
    """Jobs of stores where "ours" gives the right answers and "theirs" some others."""
    rates = {"open": 0.001, "memory": 10 * MB, "read": 1000.0, "batch": 4000.0, "first": 0.5, "epoch": 100.0, "peak": 1}
    return Recorded(
        {
            "expected": {"records": 2, **right},
            "prepare": {"seconds": 1.5, "bytes": 3 * MB},
            "answers": lambda name, **_: {"answers": right if name == "ours" else given_} | ABOUT | {"title": name},
            "measure": lambda name, **_: rates if name == "ours" else rates | {"read": 250.0},
            "workers": {"workers": [110 * MB, 112 * MB]},
            "workers_without_data": {"workers": [100 * MB]},
        }
    )


def test_stores_are_measured_in_turn(plan, monkeypatch):
    jobs = stand_ins({"read": "a"}, {"read": "a"})
    monkeypatch.setattr(contests, "run", jobs)
    facts = contests.stores_facts(plan, ("ours", "theirs"))
    asked = [name for what, name, _ in jobs.asked if what == "measure"]
    assert asked == ["ours", "theirs"] * 2
    first = [what for what, _, _ in jobs.asked].index("measure")
    assert all(what != "answers" for what, _, _ in jobs.asked[first:])
    text = tables.render({"stores": facts | SAID}, spread=True)
    assert "| theirs 1.0 | files | 1.5 s | 3.0 MB | 1 ms | 10.0 MB | +12.0 MB |" in text
    assert "| theirs 1.0 | 250 (0.25x, 0.25 to 0.25) | 4,000 (1x, 1 to 1) |" in text


@pytest.mark.parametrize("given_", [{"read": "b"}, {"read": "a", "batch": "c"}])
def test_answers_that_differ_are_an_error(plan, monkeypatch, given_):
    jobs = stand_ins({"read": "a", "batch": "a"}, given_)
    monkeypatch.setattr(contests, "run", jobs)
    with pytest.raises(DifferentError, match=r"^theirs: (read: expected a, found b|batch: expected a, found c)$"):
        contests.stores_facts(plan, ("ours", "theirs"))
    assert all(what != "measure" for what, _, _ in jobs.asked)


def test_what_a_limit_stops_is_asked_no_more(plan, monkeypatch):
    def measure(name, n):
        if name == "theirs" and n == 10**6:
            return {"stopped": "> 8 GB", "peak": 8 * 10**9}
        return {"seconds": n / 1e6, "memory": n, "before": 5, "peak": n + 5}

    jobs = Recorded({"expected": {"cover": 1}, "answers": {"answers": {"cover": 1}} | ABOUT, "measure": measure})
    monkeypatch.setattr(contests, "run", jobs)
    facts = contests.samplers_facts(plan._replace(largest=10**7), ("ours", "theirs"))
    assert [name for what, name, n in jobs.asked if n == 10**6] == ["ours", "theirs", "ours"]
    assert [name for what, name, n in jobs.asked if n == 10**7] == ["ours", "ours"]
    text = tables.render({"samplers": facts | SAID})
    assert "| a rival 1.0 | 100 ms | > 8 GB | \u2013 |" in text
    assert "| a rival 1.0 | 0.1 MB | 1.0 MB | 10.0 MB |" in text
    drawn = dict(plots.plots({"samplers": facts}))
    assert set(drawn) == {"samplers-time", "samplers-memory"}


def test_a_planner_must_go_on_with_the_batch_that_would_have_come(plan, monkeypatch):
    answers = {
        "expected": {"cover": 1},
        "prepare": {},
        "answers": {"answers": {"cover": 1}} | ABOUT,
        "epoch": {"batches": 10, "fill": 0.9, "padding": 0.1, "over": 0.0, "seconds": 1.0},
        "save": {"batch": [1, 2]},
        "resume": {"seconds": 0.25, "batch": [1, 2]},
        "plan": {"seconds": 0.5, "memory": MB, "before": 0, "peak": MB},
    }
    jobs = Recorded(answers)
    monkeypatch.setattr(contests, "run", jobs)
    facts = contests.planners_facts(plan, ("ours",), False)
    assert ("save", "ours", contests.EFFICIENCY) in jobs.asked
    assert "| a rival 1.0 | 10 | 90.00% | 10.00% | 0.00% | 1 s | 250 ms |" in tables.render({"budgets": facts | SAID})
    answers["resume"] = {"seconds": 0.25, "batch": [1, 3]}
    with pytest.raises(DifferentError, match=r"^ours: batch: expected \[1, 2\], found \[1, 3\]$"):
        contests.planners_facts(plan, ("ours",), False)


# What a job leaves open ends with its process.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", [name for name in stores.NAMES if name in HERE])
def test_a_store_gives_the_records_of_the_source(name, tmp_path):
    source, folder = tmp_path / "source.jsonl", tmp_path / "kept"
    folder.mkdir()
    source.write_text("".join(json.dumps({"id": i, "target": "x" * (i % 50)}) + "\n" for i in range(700)))
    where = {"name": name, "source": str(source), "folder": str(folder)}
    right = store_jobs.expected(str(source), True)
    assert store_jobs.prepare(**where)["bytes"] > 0 or name == "plain"
    answered = store_jobs.answers(**where, records=700, has_epoch=True)["answers"]
    contests.check(name, right, answered)
    assert set(answered) == set(right) - ({"records", "read", "batch"} if name == "webdataset" else set())


@pytest.mark.parametrize("name", [name for name in samplers.NAMES if name in HERE])
def test_a_sampler_covers_all_indices(name):
    contests.check(name, sampler_jobs.expected(1003), sampler_jobs.answers(name, 1003)["answers"])


@pytest.mark.parametrize("name", ["mmapds", "windows", "fairseq_style", "mmapds_packs", "best_fit"])
def test_a_planner_covers_all_records_and_resumes(name, tmp_path):
    where = {"name": name, "n": 2000, "folder": str(tmp_path)}
    planner_jobs.prepare(**where)
    contests.check(name, planner_jobs.expected(2000), planner_jobs.answers(**where)["answers"])
    found = planner_jobs.epoch(**where, is_packed=name in planners.PACKERS)
    assert found["over"] == 0
    assert 0.5 < found["fill"] <= 1
    saved = planner_jobs.save(**where, step=found["batches"] // 2)
    assert planner_jobs.resume(**where)["batch"] == saved["batch"]


def test_the_tables_of_the_documentation_are_those_of_the_numbers():
    facts = json.loads(pages.MEASURED.read_text())
    text = pages.PAGE.read_text()
    assert pages.documented(text, facts) == text, "run: .venv/bin/python -m bench.rivals --render"
    assert (pages.RESULTS / "rivals.md").read_text() == pages.result(facts)


def test_all_packages_of_rivals_are_pinned():
    lines = (ROOT / "bench" / "rivals" / "requirements.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower() for line in lines if not line.startswith("#")}
    assert all("==" in line for line in lines if not line.startswith("#"))
    assert {"bagz", "lhotse", "litdata", "mosaicml-streaming", "pylance", "trl"} <= pinned
    for contest, names in (("stores", stores.NAMES), ("samplers", samplers.NAMES)):
        for name in set(names) & HERE:
            assert import_module(f"bench.rivals.{contest}.{name}")
