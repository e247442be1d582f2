"""Signals that raise, wherever they come: no lock stays, and what is written or read afterwards is right."""

import gc
import inspect
import itertools
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.compression import reader
from mmapds.compression.reader import BlockCache, Forward
from mmapds.storage import lock
from mmapds.storage.lock import replacing

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
anywhere = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


class Interrupted(BaseException):
    pass


def interrupted(work, number):
    """Do some work, and raise an error where Python would handle a signal: the `number`th time that a function is
    entered, or that one of C returns. Where an object is destroyed, Python drops it.

    Generators are not interrupted where they go on: what a profiler raises there escapes their `finally`, unlike a
    signal's.
    """
    left = itertools.count(-number)

    def profile(frame, event, argument):
        entered = event == "call" and not frame.f_code.co_flags & inspect.CO_GENERATOR
        if (entered or event == "c_return") and argument is not sys.setprofile and next(left) == 0:
            raise Interrupted

    sys.setprofile(profile)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
        gc.collect()


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lock.LIMIT, "0")
    gc.collect()
    gc.freeze()  # so that collections are quick
    yield
    gc.unfreeze()


def write_arrays(value):
    with mmapds.Writer("a.mma", {"x": "int64"}) as writer:
        for _ in range(value):
            writer.write({"x": value})


@anywhere
@given(st.integers(0, 2600))
def test_an_array_file_is_the_old_one_or_the_new_one(number):
    """While the new one is indexed in its place, opening it is an error."""
    write_arrays(3)
    interrupted(lambda: write_arrays(5), number)
    try:
        ds = mmapds.open("a.mma")
        assert [len(ds), ds[0]["x"], ds[-1]["x"]] in ([3, 3, 3], [5, 5, 5])
    except mmapds.StaleIndexError:
        write_arrays(5)
        assert len(mmapds.open("a.mma")) == 5


def use_lock():
    with lock.locked("a"):
        os.getpid()


def replace():
    with replacing(os.path.abspath("a.txt"), lambda: None) as file:
        file.write(b"a")


@anywhere
@given(st.sampled_from([use_lock, replace]), st.integers(0, 190))
def test_a_lock_is_free_again(work, number):
    with open("a.txt.lock", "w") as left:
        left.write(f"{os.getpid()} on {os.uname().nodename}")  # of one that was killed
    interrupted(work, number)
    assert not lock._held
    use_lock()
    replace()
    assert "a.txt.lock" not in os.listdir()


@anywhere
@given(st.integers(0, 250))
def test_a_block_is_read_on(monkeypatch, number):
    monkeypatch.setattr(reader, "PIECE", 4)
    content = bytes(range(30))
    block = Forward(lambda: (content[at : at + 6] for at in range(0, len(content), 6)), BlockCache(), (0, 0))
    block.piece(0)
    interrupted(lambda: block.piece(2), number)
    assert [block.piece(k) for k in range(2, 8)] == [content[4 * k : 4 * k + 4] for k in range(2, 8)]


@given(st.integers(0, 60))
def test_a_sampler_knows_its_step(number):
    """A trainer that is interrupted saves its state."""
    sampler = mmapds.DistributedSampler(range(8300), num_replicas=1, rank=0)
    sampler.load_state_dict(sampler.state_dict() | {"position": 8192})
    steps = iter(sampler)
    interrupted(lambda: next(steps), number)
    assert sampler.state_dict()["position"] in (8192, 8193)
