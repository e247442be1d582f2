"""Building an index elsewhere: byte for byte what this process builds, whatever happens to workers and driver."""

import errno
import multiprocessing
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index import distribute, driver, tasks
from mmapds.index.tasks import Outcome, Task, run_task
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from mmapds.storage.roots import Roots
from tests.support.commands import command, run
from tests.support.docs import blocks
from tests.support.engines import Careless, Inline, Killing
from tests.support.files import flip
from tests.support.index_file import rewrite
from tests.support.indexes import OPTIONS, built, write_source
from tests.support.messages import check
from tests.test_merge import lines

LENGTH = {"length": "chars(text)"}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Tasks of a few records, so that there are many."""
    monkeypatch.setattr(distribute, "GROUP", 3_000)
    monkeypatch.setattr(distribute, "STRETCH", 8_000)
    monkeypatch.setattr(driver, "_PATIENCE", 0.05)


@pytest.fixture
def corpus(write):
    """Sources of many sizes, one of them of many stretches, and blank lines between records."""
    sizes = (10, 0, 900, 3, 40, 41, 42)
    return [write(b"".join(map(record, range(size))), f"{number}.jsonl") for number, size in enumerate(sizes)]


def record(number):
    """A line, and up to two blank ones."""
    return b'{"n": %d, "text": "%s"}\n%s' % (number, b"x" * (number % 70), b" \n" * (number % 3))


def left_over(directory):
    return sorted(name for name in os.listdir(directory) if ".parts" in name or name.endswith((".tmp", ".lock")))


@pytest.mark.parametrize("name", OPTIONS)
def test_every_format_is_built_by_an_executor(tmp_path, name):
    paths = [write_source(tmp_path, name, number, count) for number, count in enumerate((30, 0, 300, 5))]
    direct = built(paths, tmp_path / "all.mmx", **OPTIONS[name])
    executor = Inline()
    out = mmapds.build(paths, out=tmp_path / "all.mmx", executor=executor, **OPTIONS[name])
    assert out.read_bytes() == direct
    assert len(executor.calls) > 1
    assert left_over(tmp_path) == []


@pytest.mark.filterwarnings("ignore:.*such lines are left out")
@settings(max_examples=60)
@given(
    texts=st.lists(st.lists(lines, max_size=30).map("\n".join), min_size=1, max_size=3),
    stretch=st.integers(1, 60),
    skip=st.booleans(),
)
def test_a_text_may_be_cut_at_any_line(tmp_path_factory, texts, stretch, skip):
    directory = tmp_path_factory.mktemp("cut")
    paths = [directory / f"{number}.jsonl" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text('\ufeff{"n": 1, "text": "there is one"}\n' + text)
    columns = {"length": "bytes()", "n": "n"}
    options = {"columns": columns, "missing": "skip" if skip else -7, "bad": "skip", "format": "jsonl"}
    direct = built(paths, directory / "all.mmx", **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distribute, "STRETCH", stretch)
        out = mmapds.build(paths, out=directory / "all.mmx", executor=Inline(), **options)
    assert out.read_bytes() == direct


def test_a_pool_of_processes(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", hash=True, **LENGTH)
    with ProcessPoolExecutor(2) as pool:
        out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=pool, hash=True, **LENGTH)
    assert out.read_bytes() == direct
    verify(Index(str(out)))


def test_a_dask_cluster(corpus, tmp_path):
    from distributed import Client, LocalCluster

    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=client.get_executor(), **LENGTH)
        assert out.read_bytes() == direct
        out.unlink()
        with client.get_executor() as executor:
            killing = Killing(executor, tmp_path / "killed")
            assert mmapds.build(corpus, out=out, executor=killing, **LENGTH).read_bytes() == direct
        assert killing.marker.exists()


def test_a_worker_that_is_killed_breaks_a_pool_which_is_made_again(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    made = []

    def make():
        made.append(Killing(ProcessPoolExecutor(2), tmp_path / "killed"))
        return made[-1]

    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=make, **LENGTH)
    for each in made:
        each.executor.shutdown()
    assert out.read_bytes() == direct
    assert len(made) == 2


def test_the_class_of_a_pool_makes_one(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=ProcessPoolExecutor, force=True, **LENGTH)
    for child in multiprocessing.active_children():  # the pool was told to end
        child.join()
    assert out.read_bytes() == direct


@pytest.mark.parametrize("refusal", [OSError(24, "Too many open files"), NotImplementedError("no semaphores")])
@pytest.mark.parametrize("is_made", [True, False])
def test_an_executor_that_the_system_refuses_something_is_an_error(corpus, tmp_path, refusal, is_made):
    class Refused:
        def __init__(self):
            if not is_made:
                raise refusal

        def submit(self, function, *arguments):
            raise refusal

    message = f"executor: {type(refusal).__name__}: {refusal}; give another one, or leave it out"
    with pytest.raises(mmapds.Error, match=f"^{re.escape(message)}$"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Refused)
    check(message)
    mmapds.build(corpus, out=tmp_path / "all.mmx")


SHORT_OF_DESCRIPTORS = """
import multiprocessing, multiprocessing.popen_fork, resource, sys, mmapds
from concurrent.futures import ProcessPoolExecutor
from functools import partial
multiprocessing.set_start_method("fork")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
make = partial(ProcessPoolExecutor, 4)
mmapds.build(sys.argv[2:], out=sys.argv[1], executor=make)
for child in multiprocessing.active_children():
    child.join()
for limit in [*range(8, 40), 256]:
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        mmapds.build(sys.argv[2:], out=sys.argv[1], force=True, executor=make)
        print("built")
    except mmapds.Error as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it counts descriptors")
def test_workers_of_a_pool_that_cannot_all_be_started_are_not_waited_for(corpus, tmp_path):
    ran = run("-c", SHORT_OF_DESCRIPTORS, tmp_path / "all.mmx", *corpus)
    said = ran.stdout.splitlines()
    assert (ran.returncode, len(said)) == (0, 33), ran.stderr
    assert "executor: OSError: [Errno 24] Too many open files; give another one, or leave it out" in said
    assert said[-1] == "built"


INTERRUPTED = """
import multiprocessing, sys, mmapds
from concurrent.futures import ProcessPoolExecutor
multiprocessing.set_start_method("fork")

class Interrupted(ProcessPoolExecutor):
    def _launch_processes(self):
        self._spawn_process()
        raise KeyboardInterrupt  # by a signal between two workers, before the thread that ends them began

    def _start_executor_manager_thread(self):
        self._launch_processes()

try:
    mmapds.build(sys.argv[2:], out=sys.argv[1], executor=lambda: Interrupted(2))
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_workers_of_a_pool_that_is_interrupted_as_it_starts_them_are_not_waited_for(corpus, tmp_path):
    ran = run("-c", INTERRUPTED, tmp_path / "all.mmx", *corpus)
    assert (ran.returncode, ran.stdout) == (0, "interrupted\n"), ran.stderr


STUCK = """
import signal, sys, time, mmapds
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.util import Finalize
from mmapds.index import driver
driver._FAREWELL = 0.5

def never_end():
    Finalize(None, signal.pause, exitpriority=0)

if __name__ == "__main__":
    make = lambda: ProcessPoolExecutor(2, get_context("fork"), initializer=never_end)
    mmapds.build(sys.argv[2:], out=sys.argv[1], executor=make)
    print("built")
"""


def test_workers_of_a_pool_that_do_not_end_are_not_waited_for(corpus, tmp_path):
    """They wait for the lock of a queue that a killed one had."""
    ran = run("-c", STUCK, tmp_path / "all.mmx", *corpus)
    assert (ran.returncode, ran.stdout) == (0, "built\n"), ran.stderr


def test_a_pool_that_broke_for_good_is_an_error_and_the_next_build_goes_on(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    pool = ProcessPoolExecutor(1)
    with pytest.raises(mmapds.Error, match=r"executor: BrokenProcessPool: .* run again, which builds only missing"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Killing(pool, tmp_path / "killed"), **LENGTH)
    pool.shutdown()
    assert not (tmp_path / "all.mmx").exists()
    there = len(os.listdir(tmp_path / "all.mmx.parts"))
    assert there >= 2
    executor = Inline()
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=executor, **LENGTH)
    assert out.read_bytes() == direct
    again = Inline()
    out.unlink()
    mmapds.build(corpus, out=out, executor=again, **LENGTH)
    assert len(executor.calls) == len(again.calls) - there


@pytest.mark.parametrize("seed", range(5))
def test_an_engine_that_runs_tasks_twice_and_drops_some(corpus, tmp_path, seed):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    executor = Careless(seed)
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=executor, **LENGTH)
    assert out.read_bytes() == direct
    executor.end()
    verify(Index(str(out)))


def test_an_answer_that_never_comes_is_not_waited_for_if_the_part_is_there(corpus, tmp_path):
    class Mute(Inline):
        def submit(self, function, *arguments):
            super().submit(function, *arguments)
            return Future()

    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    assert mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Mute(), **LENGTH).read_bytes() == direct


def test_an_engine_that_loses_a_task_again_and_again(corpus, tmp_path):
    class KilledWorker(Exception):  # noqa: N818 - the name matters
        """What Dask raises, by name."""

    class Losing(Inline):
        def submit(self, function, *arguments):
            return super().submit(lambda *_: (_ for _ in ()).throw(KilledWorker("worker 7")), *arguments)

    losing = Losing()
    with pytest.raises(mmapds.Error, match=r"executor: lost the task of .*0\.jsonl 3 times, .* KilledWorker: worker 7"):
        mmapds.build(corpus[:1], out=tmp_path / "all.mmx", executor=losing, **LENGTH)
    assert len(losing.calls) == 3


def test_an_error_of_the_callers_own_is_raised_as_it_is(corpus, tmp_path):
    class Failing(Inline):
        def submit(self, function, *arguments):
            return super().submit(lambda *_: 1 // 0, *arguments)

    with pytest.raises(ZeroDivisionError):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Failing(), **LENGTH)


def test_what_the_data_did_is_raised_at_once_with_its_place(corpus, tmp_path, write):
    before = mmapds.build(corpus[:1], out=tmp_path / "all.mmx", **LENGTH).read_bytes()
    bad = write(b'{"n": 1, "text": "x"}\n{"text": 5}\n', "bad.jsonl")
    executor = Inline()
    with pytest.raises(mmapds.ColumnError) as error:
        mmapds.build([*corpus[:2], bad, *corpus[2:]], out=tmp_path / "all.mmx", executor=executor, **LENGTH)
    assert str(error.value).startswith(f"{bad}:2 (byte 22): expected a string at `text`, found a number")
    assert (tmp_path / "all.mmx").read_bytes() == before


def test_a_column_that_no_record_has_is_an_error_though_some_parts_are_empty(corpus, tmp_path):
    with pytest.raises(mmapds.ColumnError, match="expected a number at `m` in one record or more"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), columns={"m": "m"}, missing=0)
    with pytest.raises(mmapds.ColumnError, match="expected a number at `m` in one record or more"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), columns={"m": "m"}, missing="skip")


def task_of(corpus, tmp_path):
    executor = Inline()
    mmapds.build(corpus[:1], out=tmp_path / "all.mmx", executor=executor, **LENGTH)
    return Task.decode(*executor.calls[0])


@pytest.mark.parametrize("part", [[], 5, "x", None, {}, {"key": 5}, {"filled": "ab"}])
def test_a_part_that_says_odd_things_of_itself_is_none(corpus, tmp_path, part):
    task = task_of(corpus, tmp_path)
    os.makedirs(task.directory, exist_ok=True)
    run_task(task.encode())
    assert task.part() is not None
    rewrite(task.path, metadata=lambda metadata: metadata | {"part": part})
    assert task.part() is None


def test_a_worker_that_lacks_the_file_says_which_host_it_is(corpus, tmp_path):
    task = task_of(corpus, tmp_path)
    gone = task._replace(sources=(task.sources[0]._replace(path="/nowhere/0.jsonl"),))
    outcome = Outcome.decode(run_task(gone.encode()))
    assert outcome.error == f"/nowhere/0.jsonl: no such file or directory (on host {platform.node()})"
    with pytest.raises(mmapds.SourceError, match=r"/nowhere/0\.jsonl"):
        outcome.raise_error()


def test_a_worker_that_sees_another_file_says_so(corpus, tmp_path):
    task = task_of(corpus, tmp_path)
    other = task._replace(sources=(task.sources[0]._replace(size=7),))
    assert f"expected 7 bytes, found {task.size}; run again" in Outcome.decode(run_task(other.encode())).error


def test_a_worker_with_another_mmapds_says_which_and_where(corpus, tmp_path, monkeypatch):
    text = task_of(corpus, tmp_path).encode()
    monkeypatch.setattr(tasks, "__version__", "9.9")
    outcome = Outcome.decode(run_task(text))
    assert outcome.error == (
        f"mmapds: expected version {mmapds.__version__}, as where the build was started, found 9.9 in "
        f"{os.path.dirname(tasks.__file__)}; install the same version there (on host {platform.node()})"
    )
    assert outcome.kind == "Error"


@pytest.mark.parametrize("spoil", [lambda path: flip(path, 70), lambda path: os.truncate(path, 100)])
def test_a_damaged_part_is_built_again(corpus, tmp_path, spoil):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)

    class Stopping(Inline):
        def submit(self, function, *arguments):
            if len(self.calls) == 3:
                raise KeyboardInterrupt
            return super().submit(function, *arguments)

    with pytest.raises(KeyboardInterrupt):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Stopping(), **LENGTH)
    parts = sorted((tmp_path / "all.mmx.parts").glob("*.mmx"))
    assert len(parts) == 3
    spoil(parts[1])
    assert mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), **LENGTH).read_bytes() == direct
    assert left_over(tmp_path) == []


def test_parts_of_another_content_or_other_options_are_not_used(corpus, tmp_path):
    task = task_of(corpus, tmp_path)
    (source,) = task.sources
    others = [
        task._replace(sources=(source._replace(size=1),)),
        task._replace(sources=(source._replace(mtime_ns=1),)),
        task._replace(measuring=task.measuring | {"missing": "skip"}),
        task._replace(format_name="fixed"),
        task._replace(parameters={"truncated": "drop"}),
        task._replace(hashes=True),
    ]
    assert len({each.key for each in (task, *others)}) == 7
    assert task._replace(workers=9, directory="/elsewhere").key == task.key


def limited(size):
    """No file of this process can be written beyond a size; it initializes workers."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_worker_whose_disk_is_full_says_where(corpus, tmp_path):
    before = mmapds.build(corpus[:1], out=tmp_path / "all.mmx", **LENGTH).read_bytes()
    parts = tmp_path / "all.mmx.parts"
    with (
        ProcessPoolExecutor(1, initializer=limited, initargs=(2_200,)) as pool,
        pytest.raises(mmapds.Error) as error,
    ):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=pool, **LENGTH)
    assert str(error.value).startswith(f"{parts}/")
    assert str(error.value).endswith(
        ".mmx: cannot write a part of the index (file too large); nothing was changed; make room, or give another "
        f"place with parts=... (on host {platform.node()})"
    )
    assert (tmp_path / "all.mmx").read_bytes() == before
    for path in parts.iterdir():  # those that fit
        verify(Index(str(path), Roots(tmp_path)))
    direct = built(corpus, tmp_path / "direct.mmx", **LENGTH)
    there, executor = len(os.listdir(parts)), Inline()
    assert there
    assert mmapds.build(corpus, out=tmp_path / "all.mmx", executor=executor, **LENGTH).read_bytes() == direct


def test_a_directory_for_parts_that_cannot_be_made(corpus, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(mmapds.Error) as error:
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), parts=tmp_path / "file" / "parts")
    assert str(error.value) == (
        f"{tmp_path}/file/parts: cannot make a directory for parts (not a directory); give another place with parts=..."
    )
    task = task_of(corpus, tmp_path)._replace(directory=f"{tmp_path}/file/parts")
    outcome = Outcome.decode(run_task(task.encode()))
    assert outcome == ("", f"{tmp_path}/file/parts: not a directory (on host {platform.node()})", "Error", False)


def test_a_disk_that_fails_is_lost_and_tried_again(corpus, tmp_path, monkeypatch):
    task = task_of(corpus, tmp_path)

    def fail(*_, **__):
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a.jsonl")

    monkeypatch.setattr(tasks, "write", fail)
    outcome = Outcome.decode(run_task(task.encode()))
    assert outcome == ("", f"a.jsonl: input/output error (on host {platform.node()})", "Error", True)


def test_a_directory_for_parts_may_hold_other_files(corpus, tmp_path):
    (tmp_path / "scratch").mkdir()
    (tmp_path / "scratch" / "mine.txt").write_text("mine")
    mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline(), parts=tmp_path / "scratch", **LENGTH)
    assert os.listdir(tmp_path / "scratch") == ["mine.txt"]


def test_what_others_know_is_not_sent_out(corpus, tmp_path):
    mmapds.build(corpus[2:], **LENGTH)
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    executor = Inline()
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=executor, **LENGTH)
    assert (len(executor.calls), out.read_bytes()) == (1, direct)
    with open(corpus[2], "ab") as file:
        file.write(b'{"n": 1, "text": "more"}\n')
    Path(f"{corpus[2]}.mmx").unlink()
    direct = built(corpus, tmp_path / "direct.mmx", **LENGTH)
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline())
    assert out.read_bytes() == direct


def test_a_damaged_index_is_not_used_by_an_executor_either(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    out = mmapds.build(corpus[:3], out=tmp_path / "all.mmx", force=True, **LENGTH)
    flip(out, Index(out).sections["column:length"].offset)
    executor = Inline()
    assert mmapds.build(corpus, out=out, executor=executor).read_bytes() == direct
    assert left_over(tmp_path) == []


DRIVER = """
import sys, mmapds
from concurrent.futures import ProcessPoolExecutor
from mmapds.index import distribute
distribute.GROUP, distribute.STRETCH = 3_000, 8_000
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as pool:
        mmapds.build(sys.argv[2:], out=sys.argv[1], length="chars(text)", executor=pool)
"""


def test_a_driver_that_is_killed_is_run_again_and_builds_only_what_is_missing(corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    script, out, parts = tmp_path / "driver.py", tmp_path / "all.mmx", tmp_path / "all.mmx.parts"
    script.write_text(DRIVER)
    for wanted in (1, 2, 4, 8):
        driver = subprocess.Popen([sys.executable, script, out, *corpus], start_new_session=True)
        while driver.poll() is None and not (parts.exists() and len(list(parts.glob("*.mmx"))) >= wanted):
            time.sleep(0.001)
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()
        if out.exists():
            break
    there = {path.name for path in parts.glob("*.mmx")} if parts.exists() else set()
    executor = Inline()
    assert mmapds.build(corpus, out=out, executor=executor, **LENGTH).read_bytes() == direct
    assert not there & {f"{Task.decode(text).key}.mmx" for (text,) in executor.calls}
    assert left_over(tmp_path) in ([], ["all.mmx.parts"])  # a worker may still be about to die, with its lock


@pytest.mark.parametrize("by_engine", [True, False])
def test_parts_of_a_killed_build_go_though_sources_changed_since(corpus, tmp_path, by_engine):
    out, parts = tmp_path / "all.mmx", tmp_path / "all.mmx.parts"
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    driver = subprocess.Popen([sys.executable, script, out, *corpus], start_new_session=True)
    while driver.poll() is None and not (parts.exists() and list(parts.glob("*.mmx"))):
        time.sleep(0.001)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    parts.mkdir(exist_ok=True)
    before = {*parts.glob("*.mmx"), parts / f"{'0123456789abcdef' * 2}.mmx"}
    for part in before:
        part.write_bytes(b"of sources that are others now")
    for path in corpus:
        with open(path, "ab") as file:
            file.write(b'{"n": 1, "text": "more"}\n')
    mmapds.build(corpus, out=out, executor=Inline() if by_engine else None, force=True, **LENGTH)
    assert not [part for part in before if part.exists()]


def test_parts_beside_an_index_that_is_up_to_date_go(corpus, tmp_path):
    """A driver may have been killed between its index and its parts."""
    out, parts = tmp_path / "all.mmx", tmp_path / "all.mmx.parts"
    mmapds.build(corpus, out=out)
    before = out.stat().st_mtime_ns
    parts.mkdir()
    (parts / f"{'0123456789abcdef' * 2}.mmx").write_bytes(b"part")
    mmapds.build(corpus, out=out)
    assert out.stat().st_mtime_ns == before
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("force", [False, True])
def test_an_empty_directory_of_parts_goes(corpus, tmp_path, force):
    """A driver may have been killed before the first part, or after the last one was removed."""
    mmapds.build(corpus, out=tmp_path / "all.mmx")
    (tmp_path / "all.mmx.parts").mkdir()
    mmapds.build(corpus, out=tmp_path / "all.mmx", force=force)
    assert left_over(tmp_path) == []


def test_an_executor_that_cannot_be_made_leaves_nothing(corpus, tmp_path):
    with pytest.raises(ZeroDivisionError):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=lambda: 1 / 0)
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("target", ["fifo", "nowhere/all.mmx"])
def test_where_no_index_can_be_written_nothing_is_scanned_for_it(corpus, tmp_path, target):
    os.mkfifo(tmp_path / "fifo")
    executor = Inline()
    with pytest.raises(mmapds.Error, match="cannot write the index here") as by_engine:
        mmapds.build(corpus, out=tmp_path / target, force=True, executor=executor)
    with pytest.raises(mmapds.Error) as alone:
        mmapds.build(corpus, out=tmp_path / target, force=True)
    assert str(by_engine.value) == str(alone.value)
    assert not executor.calls
    assert not (tmp_path / "nowhere").exists()


def test_an_index_that_is_up_to_date_is_found_while_another_process_builds_it(corpus, tmp_path, monkeypatch):
    """The parts of that build stay, and nobody waits for it."""

    class Visited(Inline):
        def submit(self, function, *arguments):
            future = super().submit(function, *arguments)
            if len(self.calls) == 2:
                there = sorted(parts.iterdir())
                said.append(command(out).stdout)
                assert sorted(parts.iterdir()) == there != []
            return future

    out, parts, said = tmp_path / "all.mmx", tmp_path / "all.mmx.parts", []
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "0")
    before = mmapds.build(corpus, out=out).read_bytes()
    mmapds.build(corpus, out=out, executor=Visited(), force=True)
    assert "up to date" in said[0]
    assert (out.read_bytes(), left_over(tmp_path)) == (before, [])


def test_a_large_source_that_goes_away_while_it_is_cut_is_an_error(corpus, tmp_path, monkeypatch):
    def vanishing(*arguments):
        os.unlink(corpus[2])
        return pieces(*arguments)

    pieces = distribute._pieces
    monkeypatch.setattr(distribute, "_pieces", vanishing)
    with pytest.raises(mmapds.SourceError, match=r"2\.jsonl: no such file or directory"):
        mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline())


def test_other_files_beside_parts_stay(corpus, tmp_path):
    parts = tmp_path / "all.mmx.parts"
    parts.mkdir()
    (parts / "notes.txt").write_text("mine")
    mmapds.build(corpus, out=tmp_path / "all.mmx", executor=Inline())
    assert os.listdir(parts) == ["notes.txt"]


def test_a_directory_is_not_listed_for_each_part(tmp_path, monkeypatch):
    parts = [str(tmp_path / f"{number:032x}.mmx") for number in range(100)]
    for path in [*parts[1:], f"{parts[5]}.0123abcd.tmp", f"{parts[6]}.lock"]:
        Path(path).touch()
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    driver.remove_parts(parts, str(tmp_path))
    assert not tmp_path.exists()
    assert len(listed) <= 5


def test_an_executor_needs_one_place(corpus):
    with pytest.raises(mmapds.Error, match="executor: expected the place of one index with it, found none; give out="):
        mmapds.build(corpus, executor=Inline())


@pytest.mark.parametrize("context", ["fork", "spawn", "forkserver"])
def test_workers_of_a_pool_end_with_a_driver_that_is_killed(corpus, tmp_path, context):
    """Though another process that it forked lives on, and has the pipe by which they would see its end."""
    code = f"""
        import multiprocessing, os, signal
        from concurrent.futures import ProcessPoolExecutor
        import mmapds

        if __name__ == "__main__":
            pool = ProcessPoolExecutor(1, multiprocessing.get_context({context!r}))
            mmapds.build({corpus!r}, out="all.mmx", executor=pool)
            if (other := os.fork()) != 0:
                print(other, *(child.pid for child in multiprocessing.active_children()), flush=True)
            signal.pause()
    """
    (tmp_path / "driver.py").write_text(dedent(code))
    with subprocess.Popen([sys.executable, "driver.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as driver:
        other, *workers = [int(pid) for pid in driver.stdout.readline().split()]
        driver.kill()
    assert workers
    until = time.monotonic() + 60
    try:
        while any(map(is_alive, workers)) and time.monotonic() < until:
            time.sleep(0.02)
        assert not any(map(is_alive, workers))
    finally:
        os.kill(other, signal.SIGKILL)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--parts", "x"], 2, "--parts: expected --dask or --ray with it, found neither"),
        (["--dask", "a", "--ray", "b"], 2, "--ray: expected one cluster, found --dask, too"),
        (["--dask", "tcp://127.0.0.1:1"], 1, "--dask: Timed out trying to connect to tcp://127.0.0.1:1"),
    ],
)
def test_the_command_refuses(corpus, tmp_path, options, status, message):
    environment = {**os.environ, "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "1s"}
    done = command(*corpus, "-o", tmp_path / "all.mmx", *options, env=environment)
    assert done.returncode == status
    assert message in done.stderr.splitlines()[-1]


def test_the_command_builds_on_dask(corpus, tmp_path):
    from distributed import LocalCluster

    direct = built(corpus, tmp_path / "all.mmx", **LENGTH)
    with LocalCluster(n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        done = command(*corpus, "-o", tmp_path / "all.mmx", "--length", "chars(text)", "--dask", address)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "all.mmx").read_bytes() == direct


def test_the_examples_run(corpus, tmp_path):
    (tmp_path / "shards").mkdir()
    for number, path in enumerate(corpus):
        os.replace(path, tmp_path / "shards" / f"part-{number}.jsonl")
    for code in blocks("docs/clusters.md", "python"):
        (tmp_path / "example.py").write_text(code)
        done = run("example.py", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    for name in ("corpus.mmx", "corpus.mma"):
        assert len(mmapds.open(tmp_path / name)) == 1036
