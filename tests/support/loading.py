"""What loaders load in tests, importable by worker processes."""

import gc
import sysconfig
import threading
from functools import partial

import pytest
from torch.utils.data import _utils

import mmapds
from mmapds.prefetch import THREAD_NAME

_utils.MP_STATUS_CHECK_INTERVAL = 0.5
"""How long torch's loader waits for a worker when it is collected with the error of a sample; 5 seconds by default."""

KINDS = {"alone": {}, "threads": {"num_workers": 2}, "processes": {"num_workers": 2, "workers": "processes"}}
every_kind = pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
"""Marks a test that runs with each way in which a loader makes its batches."""


class Numbers:
    """Record i is the number i; of one of them, a function is called first."""

    def __init__(self, n=100, at=None, happen=None):
        self.n, self.at, self.happen = n, at, happen

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.at:
            self.happen(i)
        return i


def failing(n, at, error):
    """Numbers of which one raises an error of a class."""

    return Numbers(n, at, partial(_happen, error))


def _happen(error, i):  # processes that are not forked unpickle it
    raise error(f"record {i}")


class Blocking(Numbers):
    """Record `at` is read when `free` is set; `reached` is set before."""

    def __init__(self, n, at, events=threading):
        super().__init__(n, at, self._wait)
        self.reached, self.free = events.Event(), events.Event()

    def _wait(self, _):
        self.reached.set()
        assert self.free.wait(60)


def as_list(samples):
    """Collate to what was sampled."""
    return list(samples) if isinstance(samples, list | tuple) else samples


def ours(dataset, *args, **options):
    """A loader of ours whose batches are lists."""
    return mmapds.DataLoader(dataset, *args, collate_fn=as_list, **options)


def loader_threads():
    """The threads of loaders that are alive."""
    return [thread for thread in threading.enumerate() if thread.name.startswith(THREAD_NAME)]


def expect_no_threads():
    """Assert that the threads of all loaders end, without the collector of cycles if it is off."""
    # Errors that were raised hold their loops; without a GIL, one of an idle thread is freed by the collector alone.
    if (gc.isenabled() or sysconfig.get_config_var("Py_GIL_DISABLED") == 1) and loader_threads():
        gc.collect()
    for thread in loader_threads():
        thread.join(10)
    assert not loader_threads()
