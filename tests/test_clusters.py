"""Building and converting by an executor: byte for byte what this process writes, whatever happens to workers."""

import os
import resource
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
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
from mmapds.executors import run_task
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.commands import command, run
from tests.support.conversions import save, utterances
from tests.support.docs import blocks
from tests.support.engines import JOBS, Inline, Interrupted, Killing, Twice, build_all, convert_all, small_tasks
from tests.support.files import flip
from tests.support.indexes import OPTIONS, built, write_source
from tests.support.messages import check

HOST = f"(on host {os.uname().nodename})"
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


TASKS = 3


def left_over(directory):
    return sorted(
        name
        for name in os.listdir(directory)
        if ".parts" in name or name.startswith(".") or name.endswith((".tmp", ".lock"))
    )


def double(record):
    """A decoder that other processes can import."""
    fields = orjson.loads(record)
    return {"tokens": np.repeat(np.array(fields["tokens"], np.uint16), 2), "id": fields["id"]}


def wrong(record):
    """A decoder that fails."""
    return orjson.loads(record)["nothing"]


# The same bytes


@pytest.mark.parametrize("name", OPTIONS)
def test_every_format_is_built(tmp_path, name):
    paths = [write_source(tmp_path, name, number, count) for number, count in enumerate((30, 0, 300, 5))]
    expected = built(paths, tmp_path / "all.mmx", hash=True, **OPTIONS[name])
    executor = Inline()
    out = mmapds.build(paths, out=tmp_path / "all.mmx", executor=executor, hash=True, **OPTIONS[name])
    assert out.read_bytes() == expected
    assert len(executor.calls) > 1
    assert left_over(tmp_path) == []
    verify(Index(str(out)))


@pytest.mark.parametrize("name", ["prefixed", "tar", "parquet", "hdf5"])
def test_what_is_read_by_another_reader_is_converted(tmp_path, name):
    if name in OPTIONS:
        paths = [write_source(tmp_path, name, number, count) for number, count in enumerate((30, 1, 300, 5))]
        options = {"tar": {"decode": "files"}, "prefixed": {"format": name, "prefix": "varint", "decode": "bytes"}}[
            name
        ]
    elif name == "hdf5":
        paths, options = [str(tmp_path / f"{number}.h5") for number in range(3)], {"records": "groups"}
        for number, path in enumerate(paths):
            utterances(path, 20 + number)
    else:
        tables = [pa.table({"id": range(k, 300), "text": ["abc" * k] * (300 - k)}) for k in range(3)]
        paths, options = [save(table, tmp_path / f"{k}.{name}", name) for k, table in enumerate(tables)], {}
    convert(paths, tmp_path / "here.mma", **options)
    executor = Inline()
    convert(paths, tmp_path / "all.mma", executor=executor, **options)
    assert len(executor.calls) > 1
    assert left_over(tmp_path) == []
    assert (tmp_path / "all.mma").read_bytes() == (tmp_path / "here.mma").read_bytes()


class AutoExecutor:
    """As that of submitit."""

    def __init__(self, folder):
        self.folder, self.threads = folder, ThreadPoolExecutor(2)

    def update_parameters(self, timeout_min):
        assert (self.folder, timeout_min) == ("logs", 60)

    def submit(self, function, *arguments):
        return self.threads.submit(function, *arguments)  # whose future has what a job has


@contextmanager
def submitit():
    with patch.dict(sys.modules, {"submitit": SimpleNamespace(AutoExecutor=AutoExecutor)}):
        yield executors.submitit("logs", timeout_min=60)


@contextmanager
def dask():
    from distributed import Client, LocalCluster

    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": ":0"}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        yield client.get_executor()


@contextmanager
def given(executor):
    yield executor


EXECUTORS = {
    "processes": lambda: ProcessPoolExecutor(2),
    "twice": lambda: given(Twice()),
    "submitit": submitit,
    "dask": dask,
}


@pytest.mark.parametrize("name", EXECUTORS)
def test_every_executor(corpus, tmp_path, name):
    expected = {kind: job(corpus, tmp_path / "here") for kind, job in JOBS.items()}
    expected["decoded"] = convert_all(corpus, tmp_path / "decoded_here", decode=double)
    with EXECUTORS[name]() as executor:
        found = {kind: job(corpus, tmp_path / "all", executor=executor) for kind, job in JOBS.items()}
        found["decoded"] = convert_all(corpus, tmp_path / "decoded", decode=double, executor=executor)
    assert found == expected
    assert left_over(tmp_path) == []


def test_sources_of_a_task_are_whole_neighbours():
    for sizes in ([], [0], [1], [1500], [1499, 1, 1], [5000, 0, 0, 1499, 2]):
        found = list(executors.groups(sizes))
        assert [number for group in found for number in group] == list(range(len(sizes)))
        assert all(sum(sizes[number] for number in group) >= 1500 for group in found[:-1])
    assert len(list(executors.groups([10_000] * 50_000))) <= 1001


@pytest.mark.parametrize("infer", [1, 3, 50, 1000])
def test_a_schema_is_inferred_from_the_first_records_of_all(corpus, tmp_path, infer):
    expected = convert_all(corpus, tmp_path / "here", infer=infer)
    assert convert_all(corpus, tmp_path / "all", infer=infer, executor=Inline()) == expected


def test_indexes_are_converted_each_by_a_task(corpus, tmp_path):
    mmapds.build(corpus)
    mmapds.open(corpus)[::2].save(tmp_path / "half.mmx")
    paths = [f"{corpus[0]}.mmx", tmp_path / "half.mmx", f"{corpus[2]}.mmx"]
    expected = convert_all(paths, tmp_path / "here")
    executor = Inline()
    assert convert_all(paths, tmp_path / "all", executor=executor) == expected
    assert len(executor.calls) == 3


def test_what_indexes_know_is_not_sent_out(corpus, tmp_path):
    expected = build_all(corpus, tmp_path / "here")
    build_all(corpus[2:], tmp_path / "all")
    executor = Inline()
    assert build_all(corpus, tmp_path / "all", executor=executor) == expected
    assert len(executor.calls) == 1
    with open(corpus[2], "ab") as file:
        file.write(orjson.dumps(line(7)) + b"\n")
    expected = build_all(corpus, tmp_path / "here", force=True)
    assert build_all(corpus, tmp_path / "all", executor=executor) == expected


# Workers that are killed, and second runs


def test_dask_runs_the_tasks_of_a_worker_again_that_was_killed(corpus, tmp_path):
    expected = {kind: job(corpus, tmp_path / "here") for kind, job in JOBS.items()}
    with dask() as executor:
        for kind, job in JOBS.items():
            killing = Killing(executor, tmp_path / f"{kind} killed a worker")
            assert job(corpus, tmp_path / "all", executor=killing) == expected[kind]
            assert killing.marker.exists()
    assert left_over(tmp_path) == []


@both
def test_a_pool_that_broke_is_an_error_and_a_second_run_goes_on(corpus, tmp_path, job):
    expected = job(corpus, tmp_path / "here")
    with ProcessPoolExecutor(1) as pool, pytest.raises(mmapds.Error) as error:
        job(corpus, tmp_path / "all", executor=Killing(pool, tmp_path / "killed"))
    message = str(error.value)
    assert message.startswith(f"executor: lost the task of {tmp_path}/")
    assert "BrokenProcessPool" in message
    assert message.endswith("run again, which builds only missing parts")
    check(message)
    executor = Inline()
    assert job(corpus, tmp_path / "all", executor=executor) == expected
    assert 0 < len(executor.calls) < TASKS
    assert left_over(tmp_path) == []


@both
@pytest.mark.parametrize("place", [None, "scratch"])
def test_a_second_run_keeps_parts(corpus, tmp_path, job, place):
    options = {} if place is None else {"parts": tmp_path / place}
    expected = job(corpus, tmp_path / "here")
    with pytest.raises(KeyboardInterrupt):
        job(corpus, tmp_path / "all", executor=Interrupted(), **options)
    executor = Inline()
    assert job(corpus, tmp_path / "all", executor=executor, **options) == expected
    assert len(executor.calls) == TASKS - 2
    assert not left_over(tmp_path)
    assert not (tmp_path / "scratch").exists()


def test_parts_of_a_function_are_not_kept(corpus, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        convert_all(corpus, tmp_path / "all", executor=Interrupted(), decode=double)
    executor = Inline()
    found = convert_all(corpus, tmp_path / "all", executor=executor, decode=double)
    assert found == convert_all(corpus, tmp_path / "here", decode=double)
    assert len(executor.calls) == TASKS
    assert not left_over(tmp_path)


@both
def test_parts_of_sources_that_changed_are_not_used(corpus, tmp_path, job):
    with pytest.raises(KeyboardInterrupt):
        job(corpus, tmp_path / "all", executor=Interrupted())
    there = set(os.listdir(next(tmp_path.glob("all.*.parts"))))
    with open(corpus[0], "ab") as file:
        file.write(orjson.dumps(line(7)) + b"\n")
    executor = Inline()
    expected = job(corpus, tmp_path / "here")
    assert job(corpus, tmp_path / "all", executor=executor) == expected
    assert len(executor.calls) == TASKS - 1
    assert len(there) == 2
    assert left_over(tmp_path) == []


@both
def test_a_part_that_the_disk_damaged_is_an_error(corpus, tmp_path, job):
    with pytest.raises(KeyboardInterrupt):
        job(corpus, tmp_path / "all", executor=Interrupted())
    part = min(tmp_path.glob("all.*.parts/*.mm?"))
    is_index = part.suffix == ".mmx"
    flip(part, Index(str(part)).sections["column:length"].offset if is_index else part.stat().st_size // 2)
    with pytest.raises(mmapds.FormatError, match=part.name):
        job(corpus, tmp_path / "all", executor=Inline())
    part.unlink()
    assert job(corpus, tmp_path / "all", executor=Inline()) == job(corpus, tmp_path / "here")


def test_the_directory_of_parts_is_removed_and_one_of_the_users_stays(corpus, tmp_path):
    for place, options in (("all.mma.parts", {}), ("scratch", {"parts": tmp_path / "scratch"})):
        (tmp_path / place).mkdir()
        (tmp_path / place / ".0123.mma.00112233.tmp").write_bytes(b"of a worker that was killed")
        convert_all(corpus, tmp_path / "all", executor=Inline(), **options)
    assert not (tmp_path / "all.mma.parts").exists()
    assert len(os.listdir(tmp_path / "scratch")) == 1


# Errors


@both
def test_an_error_of_the_data_is_raised_with_its_place(corpus, tmp_path, job, write):
    before = job(corpus[:1], tmp_path / "all", executor=Inline())
    bad = write([line(1), {"id": 1, "tokens": [1], "text": 5}], "bad.jsonl")
    with ProcessPoolExecutor(1) as pool, pytest.raises((mmapds.ColumnError, mmapds.FormatError)) as error:
        job([*corpus, bad], tmp_path / "all", executor=pool, **({"infer": 100} if job is convert_all else {}))
    assert str(error.value).startswith(f"{bad}:2 (byte ")
    assert "expected " in str(error.value)
    assert HOST not in str(error.value)
    assert job(corpus[:1], tmp_path / "all") == before


def test_what_a_decoder_raises_is_raised(corpus, tmp_path):
    schema = {"id": "int64"}
    with ProcessPoolExecutor(1) as pool, pytest.raises(KeyError, match="nothing"):
        convert(corpus, tmp_path / "all.mma", schema=schema, decode=wrong, executor=pool)


@pytest.mark.parametrize("missing", [0, "skip"])
def test_a_column_that_no_record_has_is_an_error_though_some_parts_are_empty(corpus, tmp_path, missing):
    with pytest.raises(mmapds.ColumnError, match="expected one record or more with 'm'"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), columns={"m": "m"}, missing=missing)


def test_records_that_lack_a_field_are_counted_over_all_parts(corpus, tmp_path, write):
    poor = write([{"id": 1}] * 3, "poor.jsonl")
    schema, out = {"id": "int64", "text": "str"}, tmp_path / "all.mma"
    done = convert([*corpus, poor], out, executor=Inline(), schema=schema, missing="skip")
    assert (done.records, done.skipped) == (175, 3)
    with pytest.raises(mmapds.FormatError, match="expected records with the fields 'id', 'text', found 0 of 3"):
        convert([poor], out, executor=Inline(), schema=schema, missing="skip", force=True)


def test_sources_that_differ_are_refused_before_anything_is_sent(corpus, tmp_path):
    arrays = [str(tmp_path / "a.npy"), str(tmp_path / "b.npy")]
    np.save(arrays[0], np.zeros((4, 2), np.int32))
    np.save(arrays[1], np.zeros((4, 2), np.int64))
    table = save(pa.table({"x": [1]}), tmp_path / "a.parquet")
    for sources in (arrays, [corpus[0], arrays[0]], [corpus[0], table]):
        executor, messages = Inline(), []
        for each in (None, executor):
            with pytest.raises(mmapds.FormatError) as error:
                convert(sources, tmp_path / "all.mma", executor=each)
            messages.append(str(error.value))
        assert executor.calls == []
    assert messages[0] == messages[1]


def test_what_all_parts_hold_is_limited(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        path.write_bytes(b'{"x": "%s"}\n' % (b"x" * 100) * 1000)
    with pytest.raises(mmapds.FormatError, match="expected up to 200000 bytes of records, found "):
        convert(paths, tmp_path / "all.mma", max_bytes=200_000, executor=Inline())
    assert not (tmp_path / "all.mma").exists()


def test_progress_counts_the_records_of_parts(tmp_path):
    paths = [save(pa.table({"x": range(200)}), tmp_path / f"{number}.parquet") for number in range(3)]
    told = []
    convert(paths, tmp_path / "all.mma", executor=Inline(), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 600), (200, 600), (200, 600), (200, 600)]


def sent(corpus, tmp_path, job):
    """What is sent for the first source."""
    executor = Inline()
    job(corpus[:1], tmp_path / "all", executor=executor)
    (call,) = executor.calls
    Path(call[2]).parent.mkdir()  # it was removed
    return call


@both
def test_a_worker_says_on_which_host_it_failed(corpus, tmp_path, job):
    version, run, path, function, (sources, *how), _ = sent(corpus, tmp_path, job)
    (source,) = sources

    def found(sources, path=path, version=version):
        return str(run_task(version, run, path, function, (sources, *how)))

    assert found([source._replace(path="/nowhere/0.jsonl")]).endswith(HOST)
    assert f"expected 7 bytes, found {source.size} (on host" in found([source._replace(size=7)])
    assert "same size, another time" in found([source._replace(mtime_ns=7)])
    assert "cannot write" in (lost := found(sources, path="/nowhere/part.mmx"))  # the directory is not shared
    assert lost.endswith(HOST)
    assert found(sources, version="9.9").endswith(f"install the same version there {HOST}")
    assert not os.listdir(Path(path).parent)
    for _ in range(2):  # the second task finds what the first one wrote
        assert run_task(version, run, path, function, (sources, *how)) is None


def limited(size):
    """No file of this process can be written beyond a size; it initializes workers."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@both
def test_a_worker_whose_disk_is_full_says_where(corpus, tmp_path, job):
    before = job(corpus[:1], tmp_path / "all")
    with ProcessPoolExecutor(1, initializer=limited, initargs=(100,)) as pool, pytest.raises(mmapds.Error) as error:
        job(corpus, tmp_path / "all", executor=pool)
    assert str(error.value).endswith(HOST)
    assert "file too large" in str(error.value)
    assert job(corpus[:1], tmp_path / "all") == before


def test_a_part_that_is_not_where_it_should_be(corpus, tmp_path):
    class Elsewhere(Inline):
        def submit(self, function, *arguments):
            return super().submit(lambda *_: None, *arguments)

    with pytest.raises(mmapds.Error, match=r"expected the part that a worker wrote, found none; .* parts=\.\.\."):
        build_all(corpus, tmp_path / "all", executor=Elsewhere())


@pytest.mark.parametrize("target", ["fifo", "nowhere/all"])
def test_where_no_index_can_be_written_nothing_is_sent(corpus, tmp_path, target):
    os.mkfifo(tmp_path / "fifo.mmx")
    executor = Inline()
    with pytest.raises(mmapds.Error, match="cannot write the index here"):
        build_all(corpus, tmp_path / target, force=True, executor=executor)
    assert executor.calls == []
    assert not (tmp_path / "nowhere").exists()


def test_what_is_refused(corpus, tmp_path):
    (tmp_path / "notes.txt").touch()
    out, inline = tmp_path / "all.mmx", Inline()
    for given, message in (
        ({"out": out, "executor": inline, "parts": tmp_path / "notes.txt"}, "cannot make a directory for parts"),
        ({"out": out, "executor": 5}, "executor = 5, expected an object with submit"),
        ({"out": out, "parts": tmp_path / "parts"}, "parts = .*, expected an executor with it, found none"),
        ({"executor": inline}, "executor: expected the place of one index with it, found none; give out="),
    ):
        with pytest.raises(mmapds.Error, match=message) as error:
            mmapds.build(corpus, **given)
        check(str(error.value))
    assert inline.calls == []
    with pytest.raises(mmapds.Error, match=r"parts = .*, expected an executor with it, found none"):
        convert(corpus, tmp_path / "all.mma", parts=tmp_path / "parts")


# Jobs of submitit


def test_a_job_of_submitit_that_failed():
    with submitit() as executor:
        assert isinstance(executor.submit(os.stat, "/no/such/file").exception(60), FileNotFoundError)
        assert executor.submit(int, "7").result(60) == 7


def test_an_engine_that_is_not_installed():
    with patch.dict(sys.modules, {"ray": None}), pytest.raises(ModuleNotFoundError) as error:
        executors.ray()
    check(str(error.value))


# Commands


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--dask", "a", "--ray", "b"], 2, "--ray: expected no --dask beside it"),
        (["--dask", ""], 2, "--dask: expected an address, found none"),
        (["--dask", "tcp://127.0.0.1:1"], 1, "dask: Timed out trying to connect to tcp://127.0.0.1:1"),
    ],
)
def test_commands_refuse(corpus, tmp_path, options, status, message):
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    for done in (
        command(*corpus, "-o", tmp_path / "all.mmx", *options, env=environment),
        run("-m", "mmapds", "convert", *corpus, "-o", tmp_path / "all.mma", *options, env=environment),
    ):
        assert done.returncode == status
        assert message in done.stderr.splitlines()[-1]


def test_commands_build_and_convert_on_dask(corpus, tmp_path):
    from distributed import LocalCluster

    expected = built(corpus, tmp_path / "here.mmx", length="chars(text)"), convert_all(corpus, tmp_path / "here")
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster:
        options = ["--dask", cluster.scheduler_address, "--parts", tmp_path / "parts"]
        for done in (
            command(*corpus, "-o", tmp_path / "all.mmx", "--length", "chars(text)", *options),
            run("-m", "mmapds", "convert", *corpus, "-o", tmp_path / "all.mma", "--length", "tokens", *options),
        ):
            assert done.returncode == 0, done.stderr
    assert ((tmp_path / "all.mmx").read_bytes(), (tmp_path / "all.mma").read_bytes()) == expected
    assert not (tmp_path / "parts").exists()


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
