"""Builders at once, waiting ones, killed ones: one build, no wait for the dead, and nothing of theirs stays."""

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from zlib import crc32

import pytest

import mmapds
from mmapds.convert import convert
from mmapds.storage.lock import locked
from tests.support.commands import SECONDS, command, python

WAITING = r"{}: waiting for process {} on \S+, which writes this file and holds {}\.lock\n"
COUNTED = """
import sys, mmapds
from mmapds.storage.writer import SectionWriter
place = SectionWriter.place
def counted(self):
    print("written", flush=True)
    place(self)
SectionWriter.place = counted
path = sys.argv[1]
"""
"""Begins a script that prints a line for each file it writes."""
PAUSES = """
import signal, sys, mmapds
from mmapds.index.build import Request, build_each
def pause(_):
    print("began", flush=True)
    signal.pause()
"""


@contextmanager
def started(*arguments, **options):
    """A Python process, which is killed at the end unless it ended by itself."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@contextmanager
def paused(script, *arguments):
    """A script that has printed "began" and then pauses, until it is killed."""
    with started("-c", PAUSES + script, *arguments) as process:
        assert process.stdout.readline() == "began\n", process.communicate()
        yield process


def kill(process, number=signal.SIGKILL):
    process.send_signal(number)
    assert process.wait(SECONDS) == -number


BUILDS = "list(build_each([sys.argv[1]], Request(force=True, report=pause)))"


def names(directory):
    return sorted(os.listdir(directory))


def run_at_once(count, target, *arguments):
    """Start as many processes, let all of them wait for the lock of `target`, and return what they print then."""
    with ExitStack() as stack:
        with locked(str(target)):
            processes = [stack.enter_context(started(*arguments)) for _ in range(count)]
            for process in processes:
                said = process.stderr.readline()
                assert re.fullmatch(WAITING.format(*([".*", os.getpid(), ".*"])), said), said
        outcomes = [process.communicate(timeout=SECONDS) for process in processes]
        assert [(process.returncode, errors) for process, (_, errors) in zip(processes, outcomes, strict=True)] == [
            (0, "")
        ] * count
        return [output for output, _ in outcomes]


# ---- one build ---------------------------------------------------------------------------------------------------


def test_64_processes_at_once_build_an_index_once(write, tmp_path):
    path = write([{"n": 1}] * 1000)
    script = """
import os
from mmapds.storage.lock import locked
with locked(path + ".mmx"):
    children = []
    for _ in range(64):
        children.append(os.fork())
        if children[-1] == 0:
            mmapds.build(path, workers=1)
            os._exit(0)
    sys.stdin.readline()
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 64
"""
    with started("-c", COUNTED + script, path, stdin=subprocess.PIPE) as process:
        for _ in range(64):
            assert "waiting for process" in process.stderr.readline()
        assert process.communicate("go\n", timeout=SECONDS) == ("written\n", "")
        assert process.returncode == 0
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]
    assert len(mmapds.open(path)) == 1000


def test_columns_that_processes_add_at_once_are_all_there(write):
    path = write([{"n": 1}] * 10)
    mmapds.build(path)
    script = "import os, sys, mmapds; mmapds.add_column(sys.argv[1], f'p{os.getpid()}', [0] * 10)"
    run_at_once(4, path + ".mmx", "-c", script, path)
    assert len(mmapds.open(path).columns) == 4


def test_threads_take_turns(tmp_path):
    inside = []

    def work(_):
        with locked(str(tmp_path / "x")), locked(str(tmp_path / "." / "x")):  # a second time does not wait
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(200)))
    assert names(tmp_path) == []


def test_an_index_that_is_up_to_date_needs_no_lock(write):
    path = write([1, 2])
    mmapds.build(path)
    with ThreadPoolExecutor(1) as pool, locked(path + ".mmx"):
        assert len(pool.submit(mmapds.open, path, build=True).result(SECONDS)) == 2
        assert "up to date" in command(path).stdout


# ---- waiting -----------------------------------------------------------------------------------------------------


def test_who_waits_too_long_says_for_whom(write, monkeypatch):
    path = write([1, 2])
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "0")
    with paused(BUILDS, path) as holder:
        host = re.escape(os.uname().nodename)
        message = (
            f"{re.escape(path)}.mmx: waited 0 s for process {holder.pid} on {host}, which holds "
            f"{re.escape(path)}.mmx.lock; set MMAPDS_LOCK_SECONDS=N to wait longer, or end that process"
        )
        for use in (
            lambda: mmapds.build(path),
            lambda: mmapds.open(path, build=True),
            lambda: mmapds.build(path, force=True),
        ):
            with pytest.raises(mmapds.Error, match=f"^{message}$"):
                use()
        ran = command(path)
        assert (ran.returncode, bool(re.fullmatch(message + "\n", ran.stderr))) == (1, True)
        kill(holder)
        mmapds.build(path)  # the lock ends with its process
    assert len(mmapds.open(path)) == 2


@pytest.mark.parametrize("text", [b"", b"1 on \x1b[31mhost", b"1 on \x9bhost", b"1\nall is well"])
def test_no_more_of_a_lock_file_is_printed_than_a_name(write, monkeypatch, text):
    path = write([1])
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "0")
    with open(f"{path}.mmx.lock", "wb", buffering=0) as file:
        file.write(text)
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(mmapds.Error, match=r"mmx: waited 0 s for another process, which holds .*mmx\.lock; set "):
            mmapds.build(path)


@pytest.mark.parametrize("value", ["soon", "-1", "nan"])
def test_the_limit_is_a_number_of_seconds(write, monkeypatch, value):
    path = write([1])
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", value)
    with pytest.raises(mmapds.Error, match=f"MMAPDS_LOCK_SECONDS = '{value}', expected a number of seconds, 0 or more"):
        mmapds.build(path)


def test_an_interrupted_wait_leaves_the_lock_to_its_holder(write, tmp_path):
    path = write([1])
    with locked(path + ".mmx"):
        with started("-m", "mmapds.index", path) as process:
            assert "waiting for process" in process.stderr.readline()
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 143
        assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx.lock"]
    assert names(tmp_path) == ["train.jsonl"]


# ---- killed processes --------------------------------------------------------------------------------------------


def test_who_waits_for_a_process_that_is_killed_goes_on_and_cleans_up(write, tmp_path):
    path = write([1, 2])
    with paused(BUILDS, path) as holder, started("-m", "mmapds.index", path) as waiting:
        said = waiting.stderr.readline()
        assert re.fullmatch(WAITING.format(f"{path}.mmx", holder.pid, f"{path}.mmx"), said)
        assert len(names(tmp_path)) == 3  # the source, the lock and the temporary
        kill(holder)
        assert waiting.wait(SECONDS) == 0
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]


HOST = f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"
"""What the names of temporaries of this host begin with."""


def leave_a_killed_writer(path):
    """Leave what a process that was killed leaves while it writes an index: its lock, and its temporary."""
    Path(f"{path}.mmx.lock").write_text(f"999999 on {os.uname().nodename}")
    Path(f"{path}.mmx.{HOST}4567.tmp").touch()


WRITES = """
writer = mmapds.Writer(sys.argv[1])
writer.write({"x": 1})
pause(0)
"""


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path):
    path = tmp_path / "a.mma"
    with paused(WRITES, path) as live:
        (temporary,) = names(tmp_path)
        stay = {temporary, f"b.mma.{HOST}4567.tmp", f"a.mma.{HOST}4567.tmp.mma", f"a.mma.{HOST}456x.tmp"}
        for name in stay - {temporary}:
            (tmp_path / name).touch()
        with paused(WRITES, path) as dead:
            kill(dead)
        assert len(names(tmp_path)) == len(stay) + 1
        with mmapds.Writer(path) as writer:
            assert len(names(tmp_path)) == len(stay) + 1  # its own, as that of the dead one went before it writes
            writer.write({"x": 2})
        assert set(names(tmp_path)) == stay | {"a.mma", "a.mma.mmx"}
        assert live.poll() is None


def test_leftovers_of_killed_conversions_go(write, tmp_path):
    source = write([{"n": number} for number in range(10)])
    script = """
from mmapds.convert import convert
convert(sys.argv[1], sys.argv[2], progress=lambda *_: pause(0))
"""
    with paused(script, source, tmp_path / "a.mma") as process:
        kill(process)
    (tmp_path / f".a.mma.sources.mmx.{HOST}cdef.tmp").touch()
    (tmp_path / ".a.mma.sources.mmx.lock").write_text("1 on a host")
    (tmp_path / ".a.mma.notours.mmx").touch()
    assert len(names(tmp_path)) == 7
    convert(source, tmp_path / "a.mma")
    assert names(tmp_path) == [".a.mma.notours.mmx", "a.mma", "a.mma.mmx", "train.jsonl"]


def test_leftovers_of_another_host_stay(write, tmp_path):
    """Its locks may not be seen here, and it may be alive."""
    path, other = write([1]), f"{int(HOST, 16) ^ 1:04x}0123"
    leave_a_killed_writer(path)
    (tmp_path / f"train.jsonl.mmx.{other}.tmp").touch()
    mmapds.build(path)
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", f"train.jsonl.mmx.{other}.tmp"]


# ---- children ----------------------------------------------------------------------------------------------------


def test_a_forked_child_that_ends_leaves_the_file_of_its_parent(tmp_path):
    script = """
import os, sys, mmapds
with mmapds.Writer(sys.argv[1]) as writer:
    writer.write({"x": 1})
    child = os.fork()
    if child == 0:
        sys.exit()  # which leaves the block
    assert os.waitpid(child, 0)[1] == 0
"""
    python(script.replace("sys.argv[1]", repr(str(tmp_path / "a.mma"))))
    assert list(mmapds.open(tmp_path / "a.mma")) == [{"x": 1}]


# ---- file systems and files that are not as they should be -----------------------------------------------------------


def test_a_file_system_without_locks_is_named_once(write, tmp_path, monkeypatch):
    path = write([1])

    def flock(*_):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / f"train.jsonl.mmx.{HOST}4567.tmp").touch()
    with pytest.warns(UserWarning, match=r"has no locks \(function not implemented\); write each file in one process "):
        mmapds.build(path, force=True)
    mmapds.build(path, force=True)
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", f"train.jsonl.mmx.{HOST}4567.tmp"]  # perhaps alive


def test_writers_of_one_file_come_one_after_another(tmp_path):
    """Who comes later replaces the file."""
    path = tmp_path / "a.mma"

    def write(number):
        with mmapds.Writer(path, {"n": "int64"}) as writer:
            writer.write({"n": number})

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(write, range(4))) == [None] * 4
    assert mmapds.open(path)[0]["n"] in range(4)


@pytest.mark.parametrize(
    ("make", "found"), [(Path.mkdir, "is a directory"), (lambda lock: lock.symlink_to("missing"), "too many levels .*")]
)
def test_a_lock_that_cannot_be_opened_is_an_error(write, tmp_path, make, found):
    path = write([1])
    make(tmp_path / "train.jsonl.mmx.lock")
    with pytest.raises(mmapds.Error, match=rf"mmx\.lock: cannot lock it \({found}\); remove this file unless a "):
        mmapds.build(path)
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx.lock"]


def test_lock_files_and_temporaries_are_not_sources(write, tmp_path):
    path = write([1])
    mmapds.build(path)
    for name in ("mmx.lock", "mmx.01234567.tmp"):
        Path(f"{path}.{name}").write_text("1 on host")
    assert len(mmapds.open(str(tmp_path / "*"))) == len(mmapds.open(tmp_path)) == 1


def test_where_nothing_can_be_written_the_writer_says_so(write, tmp_path):
    path = write([1])
    with pytest.raises(mmapds.Error, match=r"cannot write the index here \(no such file or directory\)"):
        mmapds.build(path, out=tmp_path / "nowhere" / "a.mmx")
    with pytest.raises(mmapds.Error, match=r"cannot write the index here \(file name too long\)"):
        mmapds.build(path, out=tmp_path / ("a" * 250 + ".mmx"))


def test_a_child_that_outlives_its_killed_parent_keeps_no_lock(write, monkeypatch):
    """As the workers of a pool do, whose driver is killed while it builds."""
    path = write([{"n": 1}])
    script = """
import os, signal, sys, time
from mmapds.storage.lock import locked
with locked(sys.argv[1] + ".mmx"):
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print(child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with started("-c", script, path) as process:
        child = int(process.stdout.readline())
        process.wait()
        monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "10")
        try:
            assert mmapds.build(path).exists()
        finally:
            os.kill(child, signal.SIGKILL)
