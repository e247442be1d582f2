"""Building and converting by an executor: byte for byte what this process writes, whatever happens to workers."""

import os
import re
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import orjson
import pyarrow as pa
import pytest

import mmapds
from mmapds import executors
from mmapds.convert import convert
from mmapds.index.executors import run_task
from mmapds.storage.index_file import Index
from tests.support.commands import run
from tests.support.conversions import save, utterances
from tests.support.docs import blocks
from tests.support.engines import JOBS, Inline, Killing, build_all, convert_all, small_tasks
from tests.support.files import flip
from tests.support.formats import KINDS, write_source
from tests.support.messages import check

HOST = f"(on host {os.uname().nodename})"
TASKS = 3
both = pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)


@pytest.fixture(autouse=True)
def many_tasks():
    """Tasks of a few records."""
    with small_tasks(1_500):
        yield


def line(number):
    return {"id": number * 7**11 - 5, "tokens": list(range(number % 9)), "text": "x" * (number % 50)}


@pytest.fixture
def corpus(write):
    """Sources of many sizes: three tasks."""
    sizes = (3, 0, 90, 1, 40, 41)
    return [write([line(k + size) for k in range(size)], f"{number}.jsonl") for number, size in enumerate(sizes)]


def grow(path):
    with open(path, "ab") as file:
        file.write(orjson.dumps(line(7)) + b"\n")


def left_over(directory):
    ends = (".tmp", ".lock")
    return [name for name in os.listdir(directory) if ".parts" in name or name.startswith(".") or name.endswith(ends)]


@pytest.fixture
def tasks_of(tmp_path):
    """Does a job by an executor, which must leave what this process writes, and nothing else; returns its tasks."""

    def tasks_of(job, sources, executor=None, parts=None, **how):
        executor, how = executor or Inline(), {"force": True, **how}
        expected = job(sources, tmp_path / "here", **how)
        assert job(sources, tmp_path / "all", executor=executor, parts=parts, **how) == expected
        assert left_over(tmp_path) == []
        return len(getattr(executor, "calls", ()))

    return tasks_of


def double(record):
    """A decoder that other processes can import."""
    fields = orjson.loads(record)
    return {"tokens": np.repeat(np.array(fields["tokens"], np.uint16), 2), "id": fields["id"]}


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_built(tmp_path, kind, tasks_of):
    def job(sources, out, **how):
        return mmapds.build(sources, out=f"{out}.mmx", hash=True, **KINDS[kind].options, **how).read_bytes()

    paths = [write_source(tmp_path, kind, count, 40, number)[0] for number, count in enumerate((30, 0, 300, 5))]
    assert tasks_of(job, paths) > 1


@pytest.mark.parametrize("name", ["tar", "parquet", "hdf5"])
def test_what_is_read_by_another_reader_is_converted(tmp_path, name, tasks_of):
    paths, told = [tmp_path / f"{k}.{name}" for k in range(3)], []
    for k, path in enumerate(paths):
        if name == "tar":
            os.replace(write_source(tmp_path, name, 100, 40, k)[0], path)
        elif name == "parquet":
            save(pa.table({"id": range(k, 300), "tokens": [[k] * k] * (300 - k)}), path)
        else:
            utterances(path, 20 + k)
    options = {"tar": {"decode": "files"}, "hdf5": {"records": "groups"}}.get(name, {})
    assert tasks_of(convert_all, paths, length=None, progress=lambda *done: told.append(done), **options) > 1
    assert sum(done for done, _ in told) == 2 * len(mmapds.open(tmp_path / "all.mma"))


class Twice(ThreadPoolExecutor):
    """An executor that runs each task twice at the same time."""

    def submit(self, function, *arguments):
        super().submit(function, *arguments)
        return super().submit(function, *arguments)


def submitit():
    class AutoExecutor(ThreadPoolExecutor):
        def __init__(self, folder):
            super().__init__(2)
            assert folder == "logs"

        def update_parameters(self, timeout_min):
            assert timeout_min == 60

    with patch.dict(sys.modules, {"submitit": SimpleNamespace(AutoExecutor=AutoExecutor)}):
        executor = executors.submitit("logs", timeout_min=60)
    assert isinstance(executor.submit(os.stat, "/no/such/file").exception(60), FileNotFoundError)
    return nullcontext(executor)


@pytest.mark.parametrize(
    "make", [lambda: ProcessPoolExecutor(2), lambda: Twice(2), submitit], ids=["pool", "twice", "jobs"]
)
def test_every_executor_writes_what_this_process_does(corpus, tasks_of, make):
    """The contract: `submit` returns a future, a task may run anywhere, and more than once."""
    with make() as executor:
        for job in JOBS.values():
            tasks_of(job, corpus, executor)
        tasks_of(convert_all, corpus, executor, decode=double)


def test_dask_runs_the_tasks_of_a_worker_again_that_was_killed(corpus, tmp_path, tasks_of):
    """In Python, and by its address from a command."""
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster:
        with Client(cluster) as client:
            killing = Killing(client.get_executor(), tmp_path / "killed a worker")
            for job in JOBS.values():
                tasks_of(job, corpus, killing)
            assert killing.marker.exists()
        shared = ["--dask", cluster.scheduler_address, "--parts", tmp_path / "parts", "--force", "-o"]
        columns = ["--length", "chars(text)", "--column", "size=bytes()"]
        for done in (
            run("-m", "mmapds", "index", *corpus, *columns, *shared, tmp_path / "all.mmx"),
            run("-m", "mmapds", "convert", *corpus, "--length", "tokens", *shared, tmp_path / "all.mma"),
        ):
            assert done.returncode == 0, done.stderr
    for name in ("mmx", "mma"):
        assert (tmp_path / f"all.{name}").read_bytes() == (tmp_path / f"here.{name}").read_bytes()
    assert left_over(tmp_path) == []
    assert not (tmp_path / "parts").exists()


# ---- which tasks there are ------------------------------------------------------------------------------------------


def test_what_is_converted_does_not_depend_on_the_tasks(corpus, tmp_path, tasks_of):
    """Neither an inferred schema, which takes the first records of all sources, nor what indexes cover."""
    for infer in (1, 50, 1000):
        assert tasks_of(convert_all, corpus, infer=infer) == TASKS
    mmapds.build(corpus)
    mmapds.open(corpus)[::2].save(tmp_path / "half.mmx")
    assert tasks_of(convert_all, [f"{corpus[0]}.mmx", tmp_path / "half.mmx", f"{corpus[2]}.mmx"]) == 3


def test_what_indexes_know_is_not_sent_out(corpus, tmp_path, tasks_of):
    build_all(corpus[2:], tmp_path / "all")
    assert tasks_of(build_all, corpus, force=False) == 1
    for how, tasks in (({}, 1), ({"grown": True}, 0)):  # a new end is scanned here
        grow(corpus[2])
        assert tasks_of(build_all, corpus, force=False, **how) == tasks


# ---- workers that are killed, and second runs -----------------------------------------------------------------------


class Interrupted(Inline):
    """An executor whose driver is interrupted at its third task."""

    def submit(self, function, *arguments):
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return super().submit(function, *arguments)


def test_a_pool_that_broke_is_an_error_and_a_second_run_goes_on(corpus, tmp_path, tasks_of):
    with ProcessPoolExecutor(1) as pool, pytest.raises(mmapds.Error) as error:
        build_all(corpus, tmp_path / "all", executor=Killing(pool, tmp_path / "killed"))
    what = rf"executor: lost the task of {tmp_path}/\d.jsonl: BrokenProcessPool: "
    hint = "run again, which builds only missing parts"
    assert re.fullmatch(f"{what}.*; {hint}", str(error.value))
    check(str(error.value))
    assert 0 < tasks_of(build_all, corpus) < TASKS


@both
def test_a_second_run_keeps_the_parts_of_what_did_not_change(corpus, tmp_path, job, tasks_of):
    """In a directory of the user's too, whose other files stay."""
    other = tmp_path / "scratch" / ".0123.mma.00112233.tmp"
    other.parent.mkdir()
    other.write_bytes(b"of a worker that was killed")
    rows = [({}, False, 1), ({"parts": other.parent}, False, 1), ({}, True, 2)]
    rows += [({"decode": double}, False, TASKS)] if job is convert_all else []  # nobody sees whether a function changed
    for options, has_grown, tasks in rows:
        with pytest.raises(KeyboardInterrupt):
            job(corpus, tmp_path / "all", executor=Interrupted(), force=True, **options)
        if has_grown:
            grow(corpus[0])
        assert tasks_of(job, corpus, **options) == tasks
    assert list(other.parent.iterdir()) == [other]


def test_parts_of_another_version_are_not_kept(corpus, tmp_path, tasks_of):
    with patch.object(executors, "__version__", "0.0"), pytest.raises(KeyboardInterrupt):
        build_all(corpus, tmp_path / "all", executor=Interrupted())
    assert tasks_of(build_all, corpus) == TASKS


@both
def test_a_part_that_the_disk_damaged_is_an_error(corpus, tmp_path, job, tasks_of):
    with pytest.raises(KeyboardInterrupt):
        job(corpus, tmp_path / "all", executor=Interrupted())
    part = min(tmp_path.glob("all.*.parts/*.mm?"))
    is_index = part.suffix == ".mmx"
    flip(part, Index(str(part)).sections["column:length"].offset if is_index else part.stat().st_size // 2)
    with pytest.raises(mmapds.FormatError, match=part.name):
        job(corpus, tmp_path / "all", executor=Inline())
    part.unlink()
    assert tasks_of(job, corpus) == 1


# ---- errors ---------------------------------------------------------------------------------------------------------


@both
def test_an_error_of_the_data_is_raised_with_its_place(corpus, tmp_path, job, write):
    before = job(corpus[:1], tmp_path / "all", executor=Inline())
    bad = write([line(1), {"id": 1, "tokens": [1], "text": 5}], "bad.jsonl")
    with ProcessPoolExecutor(1) as pool:
        with pytest.raises((mmapds.ColumnError, mmapds.FormatError), match=rf"^{bad}:2 \(byte .*expected ") as error:
            job([*corpus, bad], tmp_path / "all", executor=pool, **({"infer": 100} if job is convert_all else {}))
        with pytest.raises(AttributeError, match="nothing"):  # what a decoder raises
            convert(corpus, tmp_path / "new.mma", decode=attrgetter("nothing"), schema={"id": "int64"}, executor=pool)
    assert HOST not in str(error.value)
    assert job(corpus[:1], tmp_path / "all") == before


def test_what_parts_lack_is_counted_over_all_of_them(corpus, tmp_path, write):
    for missing in (0, "skip"):
        with pytest.raises(mmapds.ColumnError, match="expected one record or more with 'm'"):
            mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), columns={"m": "m"}, missing=missing)
    poor = write([{"id": 1}] * 3, "poor.jsonl")
    how = {"executor": Inline(), "schema": {"id": "int64", "text": "str"}, "missing": "skip", "force": True}
    done = convert([*corpus, poor], tmp_path / "all.mma", **how)
    assert (done.records, done.skipped) == (175, 3)
    with pytest.raises(mmapds.FormatError, match="expected records with the fields 'id', 'text', found 0 of 3"):
        convert([poor], tmp_path / "all.mma", **how)


@both
def test_a_worker_says_on_which_host_it_failed(corpus, tmp_path, job):
    executor = Inline()
    job(corpus[:1], tmp_path / "all", executor=executor)
    ((version, run, path, function, (sources, *how), _),) = executor.calls
    Path(path).parent.mkdir()  # it was removed
    (source,) = sources

    def found(sources, path=path, version=version):
        return str(run_task(version, run, path, function, (sources, *how)))

    for said, expected in (
        (found([source._replace(path="/nowhere/0.jsonl")]), "/nowhere/0.jsonl"),
        (found([source._replace(size=7)]), f"expected 7 bytes, found {source.size}"),
        (found([source._replace(mtime_ns=7)]), "same size, another time"),
        (found(sources, path="/nowhere/part.mmx"), "cannot write"),  # the directory is not shared
        (found(sources, version="9.9"), "expected version 9.9, found "),
    ):
        assert (expected in said, said.endswith(HOST)) == (True, True), said
    assert not os.listdir(Path(path).parent)


def test_what_is_refused(corpus, tmp_path):
    (tmp_path / "notes.txt").touch()
    out, inline = tmp_path / "all.mmx", Inline()
    elsewhere = SimpleNamespace(submit=lambda *_: Inline().submit({}.clear))  # it shares no directory with us
    for given, message in (
        ({"out": out, "executor": inline, "parts": tmp_path / "notes.txt"}, "cannot make a directory for parts"),
        ({"out": out, "executor": 5}, "executor = 5, expected an object with submit"),
        ({"out": out, "parts": tmp_path / "parts"}, "parts = .*, expected an executor with it, found none"),
        ({"executor": inline}, "executor: expected the place of one index with it, found none; give out="),
        ({"out": out, "executor": elsewhere}, r"expected the part that a worker wrote, found none; .* parts=\.\.\."),
    ):
        with pytest.raises(mmapds.Error, match=message) as error:
            mmapds.build(corpus, **given)
        check(str(error.value))
    assert inline.calls == []
    with patch.dict(sys.modules, {"ray": None}), pytest.raises(ModuleNotFoundError) as missing:
        executors.ray()
    check(str(missing.value))


def test_the_examples_of_the_docs_run(corpus, tmp_path):
    (tmp_path / "shards").mkdir()
    for number, path in enumerate(corpus):
        os.replace(path, tmp_path / "shards" / f"part-{number}.jsonl")
    for code in blocks("docs/clusters.md", "python"):
        (tmp_path / "example.py").write_text(code)
        done = run("example.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("corpus.mmx", "corpus.mma"):
        assert len(mmapds.open(tmp_path / name)) == 175
