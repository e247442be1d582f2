"""The cache of objects as a model: whatever several processes do with one directory, it holds what it should."""

import os
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from xxhash import xxh3_64

from mmapds.errors import Error
from mmapds.remote.cache import Cache, Item
from mmapds.remote.uses import Uses
from tests.support.torture import HANGS, ends, forked

SIZES = [9_000, 20_000, 30_000, 41_000, 55_000, 70_000]
"""Bytes of each object."""
OBJECTS = st.integers(0, len(SIZES) - 1)
LIMITS = st.sampled_from([75_000, 130_000, 230_000])
FAILURE = 3
"""The exit status of a reader whose download failed."""


def content(item):
    """The bytes of an object, which follow from its URL and its tag."""
    return np.random.default_rng(xxh3_64(f"{item.url} {item.etag}".encode()).intdigest()).bytes(item.size)


def download(item, path, seconds=0.0, *, fails=False):
    """Write the object in pieces."""
    data = content(item)
    with open(path, "r+b", buffering=0) as file:
        for begin in range(0, len(data), 8_000):
            file.write(data[begin : begin + 8_000])
            time.sleep(seconds / 8)
            if fails:
                raise OSError("the store is gone")


def read(directory, limit, items, **how):
    """Read objects, and compare their bytes; Ctrl-C only makes it begin again."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    begun = time.monotonic()
    while time.monotonic() - begun < HANGS:
        with suppress(KeyboardInterrupt):
            cache = Cache(directory, limit)
            for item in items:
                data = None
                while data is None:
                    with suppress(FileNotFoundError):  # evicted just now
                        data = Path(cache.fetch(item, int, partial(download, item, **how))).read_bytes()
                assert data == content(item)
            return
    raise AssertionError(f"no end within {HANGS} s")


def failing(directory, limit, item):
    """Read an object that cannot be downloaded."""
    with suppress(Error):
        Cache(directory, limit).fetch(item, int, partial(download, item, fails=True))
        return
    os._exit(FAILURE)


class Model(RuleBasedStateMachine):
    """Rules are what processes do; invariants hold after each of them."""

    def __init__(self):
        super().__init__()
        self.directory = mkdtemp(prefix="mmapds-cache-")
        self.limit, self.versions, self.loops = 230_000, [0] * len(SIZES), {}
        self.known = {}
        self.foreign = Path(self.directory, "notes.part")
        self.foreign.write_text("mine")

    def teardown(self):
        for uses, _, _ in self.loops.values():
            uses.remove()
        rmtree(self.directory)

    def item(self, number):
        item = Item(f"s3://b/{number}.part", SIZES[number], 0, str(self.versions[number]))
        self.known[item.name] = item
        return item

    def held(self):
        """The complete objects."""
        return {entry.name for entry in Cache(self.directory).entries() if not entry.is_part}

    def joined(self, readers, statuses=(0,)):
        for child, ending in readers:
            assert ends(ending, HANGS), "it waits for a process that does nothing"
            os.close(ending)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in statuses

    @rule(numbers=st.lists(OBJECTS, min_size=1, max_size=3), readers=st.integers(1, 3))
    def several_read(self, numbers, readers):
        items = [self.item(number) for number in numbers]
        read_all = partial(read, self.directory, self.limit)
        self.joined([forked(partial(read_all, items[k:] + items[:k], seconds=0.01)) for k in range(readers)])
        assert items[0].name in self.held() or len(items) > 1 or readers > 1

    @rule(number=OBJECTS)
    def evicts_what_is_needed_last(self, number):
        """With one reader it can be foreseen, but for the rates of loops, which all run for less than a second."""
        item, before = self.item(number), self.held()
        self.joined([forked(partial(read, self.directory, self.limit, [item]))])
        after = self.held()
        gone, stays = before - after, (before & after) - {item.name}
        assert not gone or max(map(self.need, stays), default=0) <= min(map(self.need, gone)) + 1e-3

    def need(self, name):
        """After how many seconds a loop needs an object."""
        found = [np.inf]
        for _, names, done in self.loops.values():
            found += [(at - done) / 1e8 for at, each in enumerate(names) if each == name and at >= done]
        return min(found)

    @rule(number=OBJECTS, seconds=st.floats(0, 0.02), signal_=st.sampled_from([signal.SIGKILL, signal.SIGINT]))
    def one_is_killed_or_interrupted_while_another_waits(self, number, seconds, signal_):
        work = partial(read, self.directory, self.limit, [self.item(number)], seconds=0.02)
        readers = [forked(work), forked(work)]
        time.sleep(seconds)
        with suppress(ProcessLookupError):
            os.kill(readers[0][0], signal_)
        self.joined(readers[:1], (0, -signal.SIGKILL, 1 if signal_ == signal.SIGINT else 0))
        self.joined(readers[1:])

    @rule(number=OBJECTS)
    def a_download_fails(self, number):
        was_held = self.item(number).name in self.held()
        self.joined([forked(partial(failing, self.directory, self.limit, self.item(number)))], (0, FAILURE))
        assert was_held == (self.item(number).name in self.held())

    @rule(loop=st.integers(0, 1), numbers=st.lists(OBJECTS, min_size=2, max_size=8))
    def a_loop_begins(self, loop, numbers):
        self.a_loop_ends(loop)
        names = [self.item(number).name for number in numbers]
        self.loops[loop] = Uses(self.directory, names, np.arange(len(names), dtype=float), []), names, 0

    @rule(loop=st.integers(0, 1))
    def a_loop_goes_on(self, loop):
        if loop in self.loops:
            uses, names, done = self.loops[loop]
            uses.reach(done + 1)
            self.loops[loop] = uses, names, done + 1

    @rule(loop=st.integers(0, 1))
    def a_loop_ends(self, loop):
        if loop in self.loops:
            self.loops.pop(loop)[0].remove()

    @rule(number=OBJECTS)
    def an_object_is_written_anew(self, number):
        self.versions[number] += 1

    @rule(limit=LIMITS)
    def the_limit_changes(self, limit):
        self.limit = limit
        Cache(self.directory, limit)

    @rule()
    def it_is_cleared(self):
        Cache(self.directory).clear()
        assert not self.held()

    @invariant()
    def it_holds_right_bytes_within_the_limit_and_nothing_else(self):
        entries = Cache(self.directory).entries()
        assert not [entry for entry in entries if entry.is_part]
        assert sum(entry.size for entry in entries) <= self.limit
        for entry in entries:
            assert Path(self.directory, entry.name).read_bytes() == content(self.known[entry.name])
        names = {name for name in os.listdir(self.directory) if not name.startswith(".uses-")}
        assert names == {entry.name for entry in entries} | {".lock", "notes.part"}
        assert self.foreign.read_text() == "mine"


@pytest.mark.parametrize("steps", [100, pytest.param(2_000, marks=pytest.mark.nightly)])
def test_processes_that_share_a_cache(steps):
    each = settings(
        max_examples=steps // 50, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
    )
    run_state_machine_as_test(Model, settings=each)
