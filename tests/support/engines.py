"""Executors that behave in one way or another, and what is built by them."""

import os
import signal
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import mmapds
from mmapds import executors
from mmapds.convert import convert


@contextmanager
def small_tasks(group):
    """Tasks of a few bytes in this block, so that there are many."""
    with patch.object(executors, "GROUP", group):
        yield


def build_all(sources, out, **how):
    """Build one index of sources with columns; return its bytes."""
    columns = {"length": "chars(text)", "size": "bytes()"}
    return mmapds.build(sources, out=f"{out}.mmx", columns=columns, **how).read_bytes()


def convert_all(sources, out, **how):
    """Convert sources to one array file; return its bytes."""
    convert(sources, f"{out}.mma", **{"length": "tokens", **how})
    return Path(f"{out}.mma").read_bytes()


JOBS = {"build": build_all, "convert": convert_all}


class Inline:
    """An executor that runs a task when it is submitted."""

    def __init__(self):
        self.calls = []
        """The arguments of each task."""

    def submit(self, function, *arguments):
        self.calls.append(arguments)
        future = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class Killing:
    """An executor whose third task kills its worker the first time it runs."""

    def __init__(self, executor, marker):
        self.executor, self.marker, self.submitted = executor, marker, 0

    def submit(self, function, *arguments):
        self.submitted += 1
        marker = str(self.marker) if self.submitted == 3 else ""
        return self.executor.submit(run_or_die, marker, function, *arguments)


def run_or_die(marker, function, *arguments):
    """Run a task; kill this process if the marker is not there yet."""
    if marker and not os.path.exists(marker):
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments)
