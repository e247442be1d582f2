"""Converting elsewhere: byte for byte what this process writes, whatever happens to workers and driver."""

import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.arrays.array_file import ArrayFile, Head
from mmapds.convert import convert, distributed
from mmapds.convert.parts import Conversion, mark_of, run_conversion
from mmapds.index import driver, tasks
from mmapds.index.tasks import Outcome
from tests.support.commands import run
from tests.support.conversions import save, utterances
from tests.support.engines import Careless, Inline, Killing
from tests.support.files import flip
from tests.support.indexes import OPTIONS, write_source
from tests.support.samples import write_tfrecords


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Tasks of a few records, so that there are many."""
    monkeypatch.setattr(distributed, "GROUP", 1_500)
    monkeypatch.setattr(driver, "_PATIENCE", 0.05)


def line(number):
    return {"id": number * 7**11 - 5, "tokens": list(range(number % 9)), "text": "x" * (number % 50)}


@pytest.fixture
def corpus(write):
    """Sources of many sizes."""
    sizes = (3, 0, 90, 1, 40, 41)
    return [write([line(k + size) for k in range(size)], f"{number}.jsonl") for number, size in enumerate(sizes)]


def direct(sources, out, **options):
    """The bytes of the array file, and of its index, that this process writes; they are removed."""
    convert(sources, out, **options)
    found = out.read_bytes(), Path(f"{out}.mmx").read_bytes()
    out.unlink()
    Path(f"{out}.mmx").unlink()
    return found


def by(executor, sources, out, **options):
    """The same, as an executor writes it; they stay."""
    convert(sources, out, executor=executor, **options)
    return out.read_bytes(), Path(f"{out}.mmx").read_bytes()


def without_time(found):
    """An array file and its index, without the time of change of the file, which the index has."""
    return found[0], b"".join(_timeless(found[1]))


def _timeless(index):
    head, _, rest = index.partition(b'"mtime_ns":')
    return head[64:], rest.partition(b",")[2]


def left_over(directory):
    return sorted(
        name
        for name in os.listdir(directory)
        if ".parts" in name or name.startswith(".") or name.endswith((".tmp", ".lock"))
    )


def same(one, other):
    return without_time(one) == without_time(other)


def double(record):
    """A decoder that other processes can import."""
    fields = orjson.loads(record)
    return {"tokens": np.repeat(np.array(fields["tokens"], np.uint16), 2), "id": fields["id"]}


@pytest.mark.parametrize("name", OPTIONS)
def test_every_format_is_converted_by_an_executor(tmp_path, name):
    paths = [write_source(tmp_path, name, number, count) for number, count in enumerate((30, 1, 300, 5))]
    options = {key: value for key, value in OPTIONS[name].items() if key not in ("length", "columns")}
    options |= {"prefixed": {"decode": "bytes"}, "tar": {"decode": "files"}}.get(name, {})
    expected = direct(paths, tmp_path / "all.mma", **options)
    executor = Inline()
    assert same(by(executor, paths, tmp_path / "all.mma", **options), expected)
    assert len(executor.calls) > 1
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("way", ["parquet", "arrow", "stream", "hdf5"])
def test_files_of_other_libraries_are_converted_by_an_executor(tmp_path, way):
    paths, options = [], {}
    for number in range(3):
        if way == "hdf5":
            paths.append(str(tmp_path / f"{number}.h5"))
            utterances(paths[-1], 20 + number)
            options = {"records": "groups", "length": "feats"}
        else:
            table = pa.table({"id": range(number, 300), "text": ["abc" * number] * (300 - number)})
            paths.append(save(table, tmp_path / f"{number}.{way}", way))
            options = {"length": "id", "format": "arrow"} if way == "stream" else {"length": "id"}
    expected = direct(paths, tmp_path / "all.mma", **options)
    executor = Inline()
    assert same(by(executor, paths, tmp_path / "all.mma", **options), expected)
    assert len(executor.calls) > 1
    assert left_over(tmp_path) == []


numbers = st.one_of(st.integers(-3, 3), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))


@settings(max_examples=60)
@given(
    parts=st.lists(
        st.lists(st.tuples(numbers, st.integers(0, 5), st.floats(-9, 9)), max_size=9), min_size=1, max_size=5
    ),
    group=st.integers(1, 200),
    length=st.sampled_from([None, "tokens"]),
)
def test_numbers_of_any_size_get_the_types_of_a_direct_conversion(tmp_path_factory, parts, group, length):
    directory = tmp_path_factory.mktemp("numbers")
    schema = {"any": "json", "tokens": ("int64", (None,)), "float": "float64", "wide": "uint64", "signed": "int64"}
    paths = []
    for number, rows in enumerate(parts):
        records = [
            {"any": [a], "tokens": [1] * n, "float": x, "wide": abs(a), "signed": max(min(a, 2**63 - 1), -(2**63))}
            for a, n, x in rows
        ]
        paths.append(directory / f"{number}.jsonl")
        paths[-1].write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    out = directory / "all.mma"
    expected = direct(paths, out, schema=schema, length=length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "GROUP", group)
        assert same(by(Inline(), paths, out, schema=schema, length=length), expected)


def test_a_schema_is_inferred_from_the_first_records_of_all(corpus, tmp_path):
    for infer in (1, 3, 50, 1000):
        expected = direct(corpus, tmp_path / "all.mma", infer=infer, length="tokens")
        assert same(by(Inline(), corpus, tmp_path / "all.mma", infer=infer, length="tokens"), expected)
        (tmp_path / "all.mma").unlink()


def test_indexes_are_converted_each_by_a_task(corpus, tmp_path):
    mmapds.build(corpus)
    ds = mmapds.open(corpus)
    ds[::2].save(tmp_path / "half.mmx")
    paths = [f"{corpus[0]}.mmx", tmp_path / "half.mmx", f"{corpus[2]}.mmx"]
    expected = direct(paths, tmp_path / "all.mma")
    executor = Inline()
    assert same(by(executor, paths, tmp_path / "all.mma"), expected)
    assert len(executor.calls) == 3


def test_a_pool_of_processes_and_a_decoder_of_a_module(corpus, tmp_path):
    expected = direct(corpus, tmp_path / "all.mma", decode=double, length="tokens")
    with ProcessPoolExecutor(2) as pool:
        assert same(by(pool, corpus, tmp_path / "all.mma", decode=double, length="tokens"), expected)
    (tmp_path / "all.mma").unlink()  # whose lengths the next one would keep
    fields = mmapds.Fields({"tokens": ("int32", (None,))})
    expected = direct(corpus, tmp_path / "all.mma", decode=fields)
    with ProcessPoolExecutor(1) as pool:
        assert same(by(pool, corpus, tmp_path / "all.mma", decode=fields), expected)


def test_decoders_are_told_apart():
    def other(record):
        return orjson.loads(record)

    marks = [mark_of(None), mark_of("json"), mark_of(double), mark_of(double)]
    marks += [mark_of(mmapds.Fields({"a": "int8"})), mark_of(mmapds.Fields({"a": "int16"}))]
    assert len(set(marks)) == len(marks)
    assert mark_of(mmapds.Fields({"a": "int8"})) in marks
    with pytest.raises(mmapds.Error, match=r"^decode = .*other.*, expected a decoder that workers can load \("):
        mark_of(other)


def test_a_worker_that_is_killed_breaks_a_pool_which_is_made_again(corpus, tmp_path):
    expected = direct(corpus, tmp_path / "all.mma")
    made = []

    def make():
        made.append(Killing(ProcessPoolExecutor(2), tmp_path / "killed"))
        return made[-1]

    found = by(make, corpus, tmp_path / "all.mma")
    for each in made:
        each.executor.shutdown()
    assert same(found, expected)
    assert len(made) == 2
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_runs_tasks_twice_and_drops_some(corpus, tmp_path, seed):
    expected = direct(corpus, tmp_path / "all.mma", length="tokens")
    executor = Careless(seed)
    assert same(by(executor, corpus, tmp_path / "all.mma", length="tokens"), expected)
    executor.end()


class Stopping(Inline):
    """An executor whose driver is interrupted at the third task."""

    def submit(self, function, *arguments):
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return super().submit(function, *arguments)


@pytest.mark.parametrize("spoil", [None, lambda path: flip(path, 300), lambda path: os.truncate(path, 100)])
def test_a_conversion_goes_on_where_it_was(corpus, tmp_path, spoil):
    out = tmp_path / "all.mma"
    expected = direct(corpus, out)
    executor = Inline()
    by(executor, corpus, out)
    out.unlink()
    Path(f"{out}.mmx").unlink()
    with pytest.raises(KeyboardInterrupt):
        convert(corpus, out, executor=Stopping())
    parts = sorted((tmp_path / "all.mma.parts").glob("*.mma"))
    assert (len(parts), out.exists()) == (2, False)
    if spoil:
        spoil(parts[1])
    again = Inline()
    assert same(by(again, corpus, out), expected)
    assert len(again.calls) == len(executor.calls) - (1 if spoil else 2)
    assert left_over(tmp_path) == []


def test_what_the_data_did_is_raised_at_once_with_its_place(corpus, tmp_path, write):
    out = tmp_path / "all.mma"
    before = by(Inline(), corpus, out)
    bad = write([line(1), {"id": 1, "tokens": [1], "text": 5}], "bad.jsonl")
    with pytest.raises(mmapds.FormatError) as error:
        convert([*corpus, bad], out, executor=Inline(), infer=100)
    assert str(error.value).startswith(f"{bad}:2 (byte ")
    assert "field 'text': expected" in str(error.value)
    assert (out.read_bytes(), Path(f"{out}.mmx").read_bytes()) == before


@pytest.mark.parametrize("before", [0, 1, 5])
def test_a_field_without_one_type_is_found_where_it_is_in_a_later_source(tmp_path, before):
    text, number = {"f": ([b"xx"], "byte")}, {"f": ([7], "int")}
    paths = [str(tmp_path / name) for name in ("a.tfrecord", "b.tfrecord", "c.tfrecord")]
    for path, examples in zip(paths, ([text] * 5, [text] * before, [text] * 2 + [number] * 2), strict=True):
        write_tfrecords(path, examples)
    found = []
    for how in ({}, {"executor": Inline()}):
        with pytest.raises(mmapds.FormatError) as error:
            convert(paths, tmp_path / "all.mma", decode="tf_example", **how)
        found.append(str(error.value))
    assert found[0] == found[1]
    assert re.match(rf"{paths[2]}: record 2 \(byte \d+\): field 'f': expected one type in all records", found[0])


def test_records_that_lack_a_field_are_counted_over_all_parts(corpus, tmp_path, write):
    poor = write([{"id": 1}] * 3, "poor.jsonl")
    schema = {"id": "int64", "text": "str"}
    out = tmp_path / "all.mma"
    done = convert([*corpus, poor], out, executor=Inline(), schema=schema, missing="skip")
    assert (done.records, done.skipped) == (175, 3)
    with pytest.raises(mmapds.FormatError, match=r"poor\.jsonl:1 .*; 0 of 3 records have all of them"):
        convert([poor], out, executor=Inline(), schema=schema, missing="skip", force=True)
    with pytest.raises(mmapds.FormatError, match="field 'text': expected str, found nothing"):
        convert([*corpus, poor], out, executor=Inline(), schema=schema)


def test_sources_of_several_formats_are_refused(corpus, tmp_path):
    table = save(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(mmapds.FormatError, match="sources: expected one format in one conversion"):
        convert([*corpus, table], tmp_path / "all.mma", executor=Inline())
    other = write_source(tmp_path, "npy", 1, 5)
    with pytest.raises(mmapds.FormatError, match="sources: expected one format in one conversion"):
        convert([*corpus, other], tmp_path / "all.mma", executor=Inline())


def test_arrays_of_several_dtypes_are_refused_before_anything_is_sent(tmp_path):
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(paths[0], np.zeros((4, 2), np.int32))
    np.save(paths[1], np.zeros((4, 2), np.int64))
    executor, messages = Inline(), []
    for each in (None, executor):
        with pytest.raises(mmapds.FormatError) as error:
            convert(paths, tmp_path / "all.mma", executor=each)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
    assert executor.calls == []


def task_of(corpus, tmp_path):
    executor = Inline()
    by(executor, corpus[:1], tmp_path / "all.mma")
    return Conversion.of(*executor.calls[0])


def test_a_worker_that_lacks_the_file_says_which_host_it_is(corpus, tmp_path):
    task = task_of(corpus, tmp_path)
    gone = task._replace(sources=(task.sources[0]._replace(path="/nowhere/0.jsonl"),))
    outcome = Outcome.decode(run_conversion(*gone.call()[1:]))
    assert outcome.error == f"/nowhere/0.jsonl: no such file or directory (on host {platform.node()})"


def test_a_worker_with_another_mmapds_says_which_and_where(corpus, tmp_path, monkeypatch):
    text = task_of(corpus, tmp_path).call()[1]
    monkeypatch.setattr(tasks, "__version__", "9.9")
    outcome = Outcome.decode(run_conversion(text, None))
    assert f"mmapds: expected version {mmapds.__version__}, as where the build was started, found 9.9" in outcome.error
    assert outcome.error.endswith(f"(on host {platform.node()})")


def test_parts_of_another_content_or_other_options_are_not_used(corpus, tmp_path):
    task = task_of(corpus, tmp_path)
    (source,) = task.sources
    others = [
        task._replace(sources=(source._replace(size=1),)),
        task._replace(sources=(source._replace(mtime_ns=1),)),
        task._replace(schema=task.schema[::-1]),
        task._replace(length="tokens"),
        task._replace(skip=True),
        task._replace(is_whole=False),
        task._replace(defaults={"tokens": []}),
        task._replace(max_bytes=None),
        task._replace(format_name="fixed"),
        task._replace(options={"truncated": "drop"}),
        task._replace(roots=["/"]),
        task._replace(decoder="text"),
    ]
    assert len({each.key for each in (task, *others)}) == 13
    assert task._replace(directory="/elsewhere").key == task.key


def limited(size):
    """No file of this process can be written beyond a size; it initializes workers."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_worker_whose_disk_is_full_says_where(corpus, tmp_path):
    out, parts = tmp_path / "all.mma", tmp_path / "all.mma.parts"
    before = by(Inline(), corpus[:1], out)
    with (
        ProcessPoolExecutor(1, initializer=limited, initargs=(9_000,)) as pool,
        pytest.raises(mmapds.Error) as error,
    ):
        convert(corpus, out, executor=pool)
    assert re.fullmatch(
        rf"{re.escape(str(parts))}/\w+\.mma: cannot write the array file \(file too large\); nothing was changed; .* "
        rf"\(on host {re.escape(platform.node())}\)",
        str(error.value),
    )
    assert (out.read_bytes(), Path(f"{out}.mmx").read_bytes()) == before
    assert [name for name in os.listdir(parts) if not name.endswith(".mma")] == []
    for path in parts.iterdir():
        ArrayFile(Head(str(path))).check_records()
    there, executor = len(os.listdir(parts)), Inline()
    assert there
    by(executor, corpus, out)
    assert not parts.exists()


def test_a_directory_for_parts_may_hold_other_files(corpus, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "mine.txt").write_text("mine")
    convert(corpus, tmp_path / "all.mma", executor=Inline(), parts=tmp_path / "scratch")
    assert os.listdir(tmp_path / "scratch") == ["mine.txt"]


def test_progress_counts_the_records_of_parts(tmp_path):
    paths = [save(pa.table({"x": range(200)}), tmp_path / f"{number}.parquet") for number in range(3)]
    told = []
    convert(paths, tmp_path / "all.mma", executor=Inline(), progress=lambda done, total: told.append((done, total)))
    assert told == [(0, 600), (200, 600), (200, 600), (200, 600)]


def test_what_all_parts_hold_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "GROUP", 1000)
    paths = []
    for name in "ab":
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_bytes(b'{"x": "%s"}\n' % (b"x" * 100) * 1000)
    with pytest.raises(mmapds.FormatError, match="expected up to 200000 bytes of records, found "):
        convert(paths, tmp_path / "all.mma", max_bytes=200_000, executor=Inline())
    assert not (tmp_path / "all.mma").exists()


DRIVER = """
import sys
from concurrent.futures import ProcessPoolExecutor
from mmapds.convert import convert, distributed
distributed.GROUP = 1_500
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        convert(sys.argv[2:], sys.argv[1], executor=pool)
"""


def test_a_driver_that_is_killed_is_run_again_and_converts_only_what_is_missing(corpus, tmp_path):
    out, parts = tmp_path / "all.mma", tmp_path / "all.mma.parts"
    expected = direct(corpus, out)
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    for wanted in (1, 2, 3):
        process = subprocess.Popen([sys.executable, script, out, *corpus], start_new_session=True)
        while process.poll() is None and not (parts.exists() and len(list(parts.glob("*.mma"))) >= wanted):
            time.sleep(0.001)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    there = {path.name for path in parts.glob("*.mma")} if parts.exists() else set()
    executor = Inline()
    assert same(by(executor, corpus, out), expected)
    assert not there & {f"{Conversion.of(*call).key}.mma" for call in executor.calls}
    assert left_over(tmp_path) in ([], ["all.mma.parts"])  # a worker may still be about to die, with its lock


@pytest.mark.parametrize("by_engine", [True, False])
def test_parts_of_a_killed_conversion_go_though_sources_changed_since(corpus, tmp_path, by_engine):
    parts = tmp_path / "all.mma.parts"
    parts.mkdir()
    name = "0123456789abcdef" * 2
    for stale in (f"{name}.mma", f"{name}.mma.00112233.tmp", f".{name}.mma.00112233.mmx"):
        (parts / stale).write_bytes(b"of sources that are others now")
    convert(corpus, tmp_path / "all.mma", executor=Inline() if by_engine else None)
    assert left_over(tmp_path) == []


def test_the_command_converts_on_dask(corpus, tmp_path):
    from distributed import LocalCluster

    expected = direct(corpus, tmp_path / "all.mma", length="tokens")
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        options = ["-o", tmp_path / "all.mma", "--length", "tokens", "--dask", address, "--parts", tmp_path / "parts"]
        done = run("-m", "mmapds.convert", *corpus, *options)
    assert done.returncode == 0, done.stderr
    assert same(((tmp_path / "all.mma").read_bytes(), (tmp_path / "all.mma.mmx").read_bytes()), expected)
    assert not (tmp_path / "parts").exists()


def test_the_command_refuses_parts_without_a_cluster(corpus):
    done = run("-m", "mmapds.convert", corpus[0], "--parts", "x")
    assert (done.returncode, done.stderr) == (
        2,
        "--parts: expected --dask or --ray with it, found neither; leave it out\n",
    )


@pytest.mark.parametrize("left", ["mma", "mma.lock", "mma.mmx.lock"])
def test_nothing_of_a_part_stays_that_a_worker_was_killed_beside(tmp_path, left):
    """As one that had put its part into place, and still held the lock of the index."""
    folder = tmp_path / "all.mma.parts"
    folder.mkdir()
    part = folder / f"{'5a' * 16}.mma"
    Path(f"{part.with_suffix('')}.{left}").touch()
    driver.remove_parts([str(part)], str(folder))
    assert os.listdir(tmp_path) == []
