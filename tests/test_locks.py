"""Builders at once, waiting ones, killed ones: one build, no wait for the dead, and nothing of theirs stays."""

import fcntl
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import pytest

import mmapds
from mmapds.storage.lock import locked
from tests.support.commands import SECONDS, command

HOST = f"{crc32(os.uname().nodename.encode()) & 0xFFFF:04x}"
"""What the names of temporaries of this host begin with."""
PAUSES = """
import signal, sys, mmapds
from mmapds.index.build import Request
from mmapds.index.each import build_each
def pause(*_):
    print("began", flush=True)
    signal.pause()
"""
BUILDS = "list(build_each([sys.argv[1]], Request(force=True, report=pause)))"


@contextmanager
def started(*arguments, stdin=None):
    """A Python process, which is killed at the end unless it ended by itself."""
    arguments, pipe = [sys.executable, *map(str, arguments)], subprocess.PIPE
    with subprocess.Popen(arguments, stdin=stdin, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def paused(script, *arguments):
    """A script that has printed "began" and then pauses, until it is killed."""
    with started("-c", PAUSES + script, *arguments) as process:
        assert process.stdout.readline() == "began\n", process.communicate()
        yield process


def kill(process):
    process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL


def names(directory):
    return sorted(os.listdir(directory))


def test_many_processes_at_once_build_an_index_once_and_lose_no_column(write, tmp_path):
    path = write([{"n": 1}] * 1000)
    script = """
import os, sys, mmapds
from mmapds.storage.lock import locked
from mmapds.storage.writer import SectionWriter
place = SectionWriter.place
def counted(self):
    print("written", flush=True)
    place(self)
path, children = sys.argv[1], []
with locked(path + ".mmx"):
    for number in range(12):
        children.append(os.fork())
        if children[-1] == 0:
            SectionWriter.place = counted
            mmapds.build(path, workers=1)
            if number >= 8:
                mmapds.add_column(path, f"c{number}", [0] * 1000)
            os._exit(0)
    sys.stdin.readline()
assert [os.waitpid(child, 0)[1] for child in children] == [0] * 12
"""
    with started("-c", script, path, stdin=subprocess.PIPE) as process:
        for _ in range(12):
            assert "waiting for process" in process.stderr.readline()
        assert process.communicate("go\n", timeout=SECONDS) == ("written\n" * 5, "")  # the index, and each column
        assert process.returncode == 0
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx"]
    ds = mmapds.open(path)
    assert (len(ds), len(ds.columns)) == (1000, 4)


def test_threads_take_turns_and_an_index_that_is_up_to_date_needs_no_lock(write, tmp_path):
    inside = []

    def work(_):
        with locked(str(tmp_path / "x")), locked(str(tmp_path / "." / "x")):  # a second time does not wait
            inside.append(1)
            assert len(inside) == 1
            inside.pop()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(60)))
    assert names(tmp_path) == []
    path = write([1, 2])
    mmapds.build(path)
    with ThreadPoolExecutor(1) as pool, locked(path + ".mmx"):
        assert len(pool.submit(mmapds.open, path, build=True).result(SECONDS)) == 2


def test_who_waits_too_long_says_for_whom(write, monkeypatch):
    path = write([1, 2])
    monkeypatch.setenv("MMAPDS_LOCK_SECONDS", "0")
    with paused(BUILDS, path) as holder:
        for held_by, who in (
            (None, f"process {holder.pid} on {os.uname().nodename}"),
            (b"1 on \x1b[31mhost", r"process 1 on \x1b[31mhost"),
            (b"", "another process"),
        ):
            if held_by is not None:
                Path(f"{path}.mmx.lock").write_bytes(held_by)
            ran = command(path)
            said = f"{path}.mmx.lock: waited 0 s (MMAPDS_LOCK_SECONDS) for {who}, which holds it"
            assert (ran.returncode, ran.stderr) == (1, f"{said}\n")
        kill(holder)
    for limit in ("soon", "-1", "nan"):
        monkeypatch.setenv("MMAPDS_LOCK_SECONDS", limit)
        with pytest.raises(mmapds.Error, match=f"^MMAPDS_LOCK_SECONDS = '{limit}', expected a number of seconds"):
            mmapds.build(path)
    monkeypatch.delenv("MMAPDS_LOCK_SECONDS")
    assert len(mmapds.open(path, build=True)) == 2  # the lock ends with its process


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_wait_ends_at_once_and_leaves_nothing_behind(write, tmp_path, number, status):
    path = write([1])
    with locked(path + ".mmx"):
        with started("-m", "mmapds.index", path) as waiting:
            assert "waiting for process" in waiting.stderr.readline()
            waiting.send_signal(number)
            assert waiting.wait(SECONDS) == status
        assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx.lock"]
    assert names(tmp_path) == ["train.jsonl"]


def test_a_lock_file_that_its_holder_removes_meanwhile_is_not_a_lock(tmp_path, monkeypatch):
    flock, lock = fcntl.flock, tmp_path / "x.lock"

    def removed_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        lock.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_first)
    with locked(str(tmp_path / "x")), open(lock) as other, pytest.raises(BlockingIOError):
        flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_who_waits_for_a_process_that_is_killed_goes_on_and_cleans_up(write, tmp_path):
    path, other = write([1, 2]), f"train.jsonl.mmx.{int(HOST, 16) ^ 1:04x}0123.tmp"
    (tmp_path / other).touch()  # of another host, where its writer may be alive
    with paused(BUILDS, path) as holder, started("-m", "mmapds.index", path) as waiting:
        said = f"{path}.mmx: waiting for process {holder.pid} on {os.uname().nodename}, which holds {path}.mmx.lock\n"
        assert waiting.stderr.readline() == said
        assert len(names(tmp_path)) == 4  # the source, the lock and the temporaries
        kill(holder)
        assert waiting.wait(SECONDS) == 0
    assert names(tmp_path) == ["train.jsonl", "train.jsonl.mmx", other]
    Path(f"{path}.mmx.lock").write_text("1 on a host")
    assert len(mmapds.open(str(tmp_path / "*"))) == len(mmapds.open(tmp_path)) == 2  # neither is a source


def test_leftovers_of_dead_writers_go_and_those_of_live_ones_stay(tmp_path):
    path = tmp_path / "a.mma"
    writes = 'writer = mmapds.Writer(sys.argv[1])\nwriter.write({"x": 1})\npause()\n'
    with paused(writes, path) as live:
        (temporary,) = names(tmp_path)
        stay = {temporary, f"b.mma.{HOST}4567.tmp", f"a.mma.{HOST}4567.tmp.mma", f"a.mma.{HOST}456x.tmp"}
        for name in stay - {temporary}:
            (tmp_path / name).touch()
        with paused(writes, path) as dead:
            kill(dead)
        assert len(names(tmp_path)) == len(stay) + 1
        with mmapds.Writer(path) as writer:
            assert len(names(tmp_path)) == len(stay) + 1  # its own, as that of the dead one went before it writes
            writer.write({"x": 2})
        assert set(names(tmp_path)) == stay | {"a.mma", "a.mma.mmx"}
        assert live.poll() is None


def test_a_child_that_outlives_its_killed_parent_keeps_no_lock(tmp_path):
    """As the workers of a pool do, whose driver is killed while it writes."""
    path = tmp_path / "a.mma"
    script = """
import os, signal, sys, mmapds
writer = mmapds.Writer(sys.argv[1])
here, there = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os.write(there, b"begun")  # it has closed what is not its own
    signal.pause()
os.read(here, 1)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with started("-c", script, path) as process:
        child = int(process.stdout.readline())
        process.wait()
        try:
            mmapds.Writer(path).close()
        finally:
            os.kill(child, signal.SIGKILL)
    assert names(tmp_path) == ["a.mma", "a.mma.mmx"]


def test_a_lock_that_cannot_be_had_is_an_error(write, tmp_path):
    path = write([1])
    lock = tmp_path / "train.jsonl.mmx.lock"
    lock.symlink_to("missing")
    with pytest.raises(mmapds.Error, match=r"mmx\.lock: cannot lock it \(too many levels of .*\)$"):
        mmapds.build(path)
    assert names(tmp_path) == ["train.jsonl", lock.name]
