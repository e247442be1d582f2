"""The comparison with rivals: limits of jobs, answers that differ, and tables that are those of the numbers."""

import json
import os
import signal

import pytest

from bench.rivals import contests, pages, planners, process, samplers, stores
from bench.rivals.contests import DifferentError
from bench.rivals.planners import jobs as planner_jobs
from bench.rivals.process import JobError, Limits
from bench.rivals.samplers import jobs as sampler_jobs
from bench.rivals.stores import jobs as store_jobs
from tests.support.sanitizers import limits_memory

MB = 10**6
HERE = {"mmapds", "plain", "mapped", "datasets", "webdataset", "array_record", "grain", "torch", "numpy"}
"""Rivals whose packages are among those of developers."""


# ---- jobs, each in a process of its own ------------------------------------------------------------------------


def grow_in_children(size, children):
    """Hold memory in children, none of which has much, and wait."""
    for _ in range(children):
        if not os.fork():
            held = bytearray(os.urandom(MB)) * (size // MB)
            signal.pause()
            del held
    signal.pause()


def go_on():
    """Never end."""
    while True:
        pass


@limits_memory
def test_a_job_that_takes_too_much_or_fails():
    found = process.run(f"{__name__}:grow_in_children", Limits(memory=300 * MB), size=120 * MB, children=4)
    assert (found["stopped"], found["peak"] > 300 * MB) == ("> 0.3 GB", True)
    assert process.run(f"{__name__}:go_on", Limits(seconds=0.5))["stopped"] == "> 0.5 s"
    with pytest.raises(JobError, match=r"(?s)go_on: status 1\n.*TypeError: go_on.. got an unexpected keyword"):
        process.run(f"{__name__}:go_on", size=1)


def test_answers_that_differ_are_an_error():
    with pytest.raises(DifferentError, match=r"^theirs: batch: expected c, found b$"):
        contests.check("theirs", {"read": "a", "batch": "c"}, {"read": "a", "batch": "b"})


# ---- rivals ----------------------------------------------------------------------------------------------------


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
