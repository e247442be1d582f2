"""Signals that raise, wherever they come: no temporary stays of a file, and what is read afterwards is right."""

import gc
import gzip
import inspect
import itertools
import os
import sys
from contextlib import closing

import numpy as np
import pytest

import mmapds
from mmapds import report
from mmapds.compression import forward
from mmapds.compression.cache import BlockCache
from mmapds.compression.forward import Forward
from mmapds.convert import _target, indexed
from mmapds.index.lengths import sorted_lengths
from mmapds.storage import handed, lock, spool
from mmapds.storage.numbers import U8
from mmapds.storage.replaced import replacing
from mmapds.storage.scratch import scratch_beside
from mmapds.storage.sections import SectionWriter
from tests.support.commands import run
from tests.support.files import ROOT


class Interrupted(BaseException):
    pass


def interrupted(work, number, error=Interrupted):
    """Do some work, and raise an error where Python would handle a signal: the `number`th time that a function is
    entered, or that one of C returns. Return whether it was that long; where an object is destroyed, Python drops it.

    Generators are not interrupted where they go on: what a profiler raises there escapes their `finally`, unlike a
    signal's.
    """
    left, raised = itertools.count(-number), []

    def profile(frame, event, argument):
        entered = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if (entered or event == "c_return") and argument is not sys.setprofile and next(left) == 0:
            raised.append(event)
            raise error

    sys.setprofile(profile)
    try:
        work()
    except error:
        pass
    finally:
        sys.setprofile(None)
    return bool(raised)


@pytest.fixture(autouse=True)
def _quick_collections():
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Writer(SectionWriter):
    MAGIC, SUFFIX, NAME, ELSEWHERE = b"MMAPDS??", ".x", "a file", None


def write_sections():
    with Writer("a.x") as writer:
        writer.write_array("numbers", U8.dtype, bytes(10))
        writer.commit({}, 10)


def replace():
    with replacing(os.path.abspath("a.txt"), lambda: None) as file:
        file.write(b"a")


def spill():
    numbers = spool.Spool("a.spool")
    numbers.append_bytes(bytes(10))
    numbers.close()


JOBS = {
    "sections": write_sections,
    "replaced": replace,
    "page": lambda: report.write_page("a.html", "text"),
    "target": lambda: _target(["a.jsonl"], None),
    "spool": spill,
    "scratch": lambda: scratch_beside("a.scratch", 1 << 12),
    "writer": lambda: mmapds.Writer("a.mma", {"x": "int64"}).__exit__(KeyError, None, None),
    "order cache": lambda: sorted_lengths(np.array([3, 5, 4], np.uint32), "order"),
}


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_temporary_stays_wherever_a_signal_raises(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(spool, "_IN_MEMORY", 1)
    monkeypatch.setattr("mmapds.storage.scratch._IN_MEMORY", 1)
    JOBS[name]()  # which loads what is loaded once
    kept = {"a.x", "a.txt", "a.html", "a.mma", "a.mma.mmx", "order"}
    for number in itertools.count():
        went_on = interrupted(JOBS[name], number)
        gc.collect()
        left = [each for each in os.listdir() if each not in kept]
        assert left == [], number
        if not went_on:
            break
    assert number > 4


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_hidden_index_stays_wherever_a_signal_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    mmapds.build("a.jsonl")
    monkeypatch.setattr(indexed, "build", lambda _, out, **__: os.link("a.jsonl.mmx", out))

    def convert():
        with closing(indexed.IndexedReader(["a.jsonl"], "a.mma", None, None, (), {})) as reader:
            assert list(reader.records(None)) == [{"n": 1}]

    convert()
    for number in itertools.count():
        went_on = interrupted(convert, number)
        gc.collect()
        assert sorted(os.listdir()) == ["a.jsonl", "a.jsonl.mmx"], number
        if not went_on:
            break
    assert number > 100


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_arrays_that_are_handed_leave_none_but_the_file_that_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(handed, "_written", written := {})
    for number in itertools.count():
        went_on = interrupted(lambda: handed._write([np.arange(3)]), number)
        gc.collect()
        assert {str(tmp_path / each) for each in os.listdir(tmp_path)} == set(written), number
        handed._remove_all()
        written.clear()
        if not went_on:
            break


def write_arrays(value):
    with mmapds.Writer("a.mma", {"x": "int64"}) as writer:
        for _ in range(value):
            writer.write({"x": value})


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_array_file_and_its_index_are_old_or_new_together(tmp_path, monkeypatch):
    """But for the moment between two renames: their own end, and the way from one to the other."""
    monkeypatch.chdir(tmp_path)
    found = []
    for number in itertools.count():
        write_arrays(3)
        went_on = interrupted(lambda: write_arrays(5), number)
        gc.collect()
        try:
            ds = mmapds.open("a.mma")
            assert [len(ds), ds[0]["x"], ds[-1]["x"]] in ([3, 3, 3], [5, 5, 5])
        except mmapds.StaleIndexError:
            found.append(number)
        if not went_on:
            break
    assert 1 <= len(found) <= 15
    assert found == list(range(found[0], found[0] + len(found)))


def use_lock():
    with lock.locked("a"):
        os.getpid()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_lock_file_stays_wherever_a_signal_raises(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in itertools.count():
        went_on = interrupted(use_lock, number)
        assert os.listdir() == [], number
        if not went_on:
            break
    assert number > 100


@pytest.mark.parametrize("work", [use_lock, replace, lambda: lock.clean_up("a.txt")])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lock_is_free_again_wherever_a_signal_raises(tmp_path, monkeypatch, work):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lock.LIMIT, "0")
    for number in itertools.count():
        (tmp_path / "a.txt.lock").write_text(f"{os.getpid()} on {os.uname().nodename}")  # of one that was killed
        went_on = interrupted(work, number)
        assert lock._held == {}, number
        gc.collect()
        use_lock()
        replace()
        assert os.listdir() == ["a.txt"], number
        if not went_on:
            break
    assert number > 4


def test_a_file_of_somebody_else_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    (tmp_path / "a.00000000.tmp").write_bytes(b"theirs")
    with pytest.raises(FileExistsError):
        lock.create_temporary(str(tmp_path / "a"))
    assert (tmp_path / "a.00000000.tmp").read_bytes() == b"theirs"


def test_threads_end_wherever_a_signal_raises():
    """The thread that consumes their results is interrupted; it waits for them then."""
    script = """
import itertools, threading
from mmapds.storage.threads import in_order
from tests.test_interrupts import interrupted
def consume(number):
    results = in_order(lambda task, slot: task, range(12), workers=2, slots=[1, 2, 3])
    next(results)  # the threads have begun
    return interrupted(lambda: list(results), number)
count = next(number for number in itertools.count() if not consume(number))
print(count, [thread for thread in threading.enumerate() if thread is not threading.main_thread()])
"""
    count, _, left = run("-c", script, cwd=ROOT, timeout=100).stdout.strip().partition(" ")
    assert int(count) > 50
    assert left == "[]"


@pytest.mark.parametrize(
    "begun",
    [
        "items = ahead(range(9)); next(items); work = lambda: items.close()",
        "pool = Makers(print, 2, 'maker', lambda number: None); work = lambda: (pool.stop(), pool.join())",
    ],
)
def test_threads_that_work_ahead_end_wherever_a_signal_raises(begun):
    """They end whatever the one who stops them does not get to."""
    script = f"""
import itertools, threading, time
from mmapds.storage.threads import Makers, ahead
from tests.test_interrupts import interrupted
def stop(number):
    {begun}
    was_raised = interrupted(work, number)
    pool = items = None  # who lets go of a pool stops it, too
    return was_raised
count = next(number for number in itertools.count() if not stop(number))
until = time.monotonic() + 60
while threading.active_count() > 1 and time.monotonic() < until:
    time.sleep(0.01)
print(count, threading.active_count())
"""
    count, left = run("-c", script, cwd=ROOT, timeout=100).stdout.split()
    assert int(count) > 3
    assert left == "1"


def test_a_signal_while_a_thread_starts_ends_all_threads(tmp_path):
    """Nobody reads the source any more when it is closed, so that the signal's error is the one that is raised."""
    script = """
import signal, sys, threading, time
import mmapds
wait, left = threading.Event.wait, 0
def interrupted_wait(event, timeout=None):
    global left
    if sys._getframe(1).f_code.co_name == "start" and threading.current_thread() is threading.main_thread():
        left -= 1
        if left == 0:
            signal.raise_signal(signal.SIGINT)
    return wait(event, timeout)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
mmapds.build("a.jsonl.gz", length="n")
threading.Event.wait = interrupted_wait
count = 0
for number in range(1, 20):
    left, count = number, count + 1
    try:
        mmapds.build("a.jsonl.gz", length="n", force=True, workers=2)
    except KeyboardInterrupt:
        continue
    break
until = time.monotonic() + 60
while threading.active_count() > 1 and time.monotonic() < until:
    time.sleep(0.01)
print(count, threading.active_count())
"""
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"n": 1}\n' * 400_000, 1))
    count, left = run("-c", script, cwd=tmp_path).stdout.split()
    assert int(count) > 1
    assert left == "1"


def test_a_block_that_is_read_in_order_goes_on_wherever_a_signal_raises(monkeypatch):
    monkeypatch.setattr(forward, "PIECE", 4)
    content = bytes(range(30))

    class Decoding:
        def __init__(self):
            self.pieces = [content[at : at + 6] for at in range(0, len(content), 6)]

        def read(self):
            return self.pieces.pop(0) if self.pieces else b""

    for number in itertools.count():
        block = Forward(Decoding, BlockCache(), (0, 0))
        block.piece(0)
        went_on = interrupted(lambda block=block: block.piece(2), number)
        assert [block.piece(k) for k in range(2, 8)] == [content[4 * k : 4 * k + 4] for k in range(2, 8)], number
        if not went_on:
            break
    assert number > 10


def test_the_cache_knows_its_size_wherever_a_signal_raises():
    for number in itertools.count():
        cache = BlockCache(3)
        for key in range(3):
            cache.put(key, (b"1",))
        went_on = interrupted(lambda cache=cache: cache.put(3, (b"22",)), number)
        assert cache.size == sum(len(*block) for block in cache.find_all(range(4)) if block), number
        if not went_on:
            break
    assert number > 4


def test_a_sampler_knows_its_step_wherever_a_signal_raises():
    """A trainer that is interrupted saves its state."""
    for number in itertools.count():
        sampler = mmapds.DistributedSampler(range(20_000), num_replicas=1, rank=0)
        steps = iter(sampler)
        for _ in range(8192):  # the next step is the first one of a block
            next(steps)
        went_on = interrupted(lambda steps=steps: next(steps), number)
        assert sampler.state_dict()["position"] in (8192, 8193), number
        if not went_on:
            break
    assert number > 4
