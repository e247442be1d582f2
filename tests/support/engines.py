"""Executors that behave in one way or another."""

import os
import random
import signal
import threading
from concurrent.futures import BrokenExecutor, Future
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from mmapds.convert import distributed
from mmapds.index import distribute


@contextmanager
def small_tasks(group, stretch=distribute.STRETCH):
    """Tasks of a few bytes in this block, so that there are many."""
    with (
        patch.object(distribute, "GROUP", group),
        patch.object(distribute, "STRETCH", stretch),
        patch.object(distributed, "GROUP", group),
    ):
        yield


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


class Careless:
    """An executor that runs tasks twice, in any order, and drops every fifth that it is given."""

    def __init__(self, seed):
        self.random, self.submitted = random.Random(seed), 0
        self.waiting, self.changed, self.over = [], threading.Condition(), False
        self.threads = [threading.Thread(target=self.work, daemon=True) for _ in range(3)]
        for thread in self.threads:
            thread.start()

    def submit(self, function, *arguments):
        future = Future()
        self.submitted += 1
        if self.submitted % 5 == 0:
            if self.submitted % 2:
                future.cancel()
                future.set_running_or_notify_cancel()
            else:
                future.set_exception(BrokenExecutor("dropped"))
            return future
        with self.changed:
            self.waiting += [(future, function, arguments)] * 2
            self.changed.notify_all()
        return future

    def work(self):
        while True:
            with self.changed:
                self.changed.wait_for(lambda: self.waiting or self.over)
                if not self.waiting:
                    return
                future, function, arguments = self.waiting.pop(self.random.randrange(len(self.waiting)))
            result = function(*arguments)
            with self.changed:
                if not future.done():
                    future.set_result(result)

    def end(self):
        with self.changed:
            self.over = True
            self.changed.notify_all()
        for thread in self.threads:
            thread.join()
