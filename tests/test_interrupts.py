"""Signals that raise, wherever they come: no lock stays, and what is written or read afterwards is right."""

import gc
import inspect
import itertools
import os
import sys

import pytest

import mmapds
from mmapds.compression import reader
from mmapds.compression.reader import BlockCache, Forward
from mmapds.storage import lock
from mmapds.storage.lock import replacing


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


def replace():
    with replacing(os.path.abspath("a.txt"), lambda: None) as file:
        file.write(b"a")


def write_arrays(value):
    with mmapds.Writer("a.mma", {"x": "int64"}) as writer:
        for _ in range(value):
            writer.write({"x": value})


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_array_file_is_the_old_one_or_the_new_one(tmp_path, monkeypatch):
    """While the new one is indexed in its place, opening it is an error."""
    monkeypatch.chdir(tmp_path)
    found = []
    for number in itertools.count(step=23):
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
    assert found == list(range(found[0], found[-1] + 1, 23))


def use_lock():
    with lock.locked("a"):
        os.getpid()


@pytest.mark.parametrize("work", [use_lock, replace])
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_lock_is_free_again_wherever_a_signal_raises(tmp_path, monkeypatch, work):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(lock.LIMIT, "0")
    for number in itertools.count():
        (tmp_path / "a.txt.lock").write_text(f"{os.getpid()} on {os.uname().nodename}")  # of one that was killed
        went_on = interrupted(work, number)
        gc.collect()
        assert not lock._held, number
        use_lock()
        replace()
        assert "a.txt.lock" not in os.listdir(), number
        if not went_on:
            break
    assert number > 4


def test_a_block_that_is_read_in_order_goes_on_wherever_a_signal_raises(monkeypatch):
    monkeypatch.setattr(reader, "PIECE", 4)
    content = bytes(range(30))

    def pieces():
        for at in range(0, len(content), 6):
            yield content[at : at + 6]

    for number in itertools.count():
        block = Forward(pieces, BlockCache(), (0, 0))
        block.piece(0)
        went_on = interrupted(lambda block=block: block.piece(2), number)
        assert [block.piece(k) for k in range(2, 8)] == [content[4 * k : 4 * k + 4] for k in range(2, 8)], number
        if not went_on:
            break
    assert number > 10


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
