"""Drivers of builds and conversions that are killed at any moment, alone or with their workers, and run again.

What they write in the end is byte for byte what one process writes. A part that was there and whole is not sent out
again, and nothing is left over.
"""

import os
import signal
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path

import mmapds
from mmapds.convert import convert
from tests.support.engines import small_tasks
from tests.support.torture import repeat

KILLS = 6
"""In a case, at most; then one run that is left alone."""
PATIENCE = 120
"""Seconds after which a driver hangs."""
PATH = 2
"""The argument of a task that is the path of its part."""
OPTIONS = {"length": "n", "columns": {"size": "bytes()"}}


class Logging:
    """A pool of processes that says which tasks it was given."""

    def __init__(self, pool, path):
        self.pool, self.path = pool, path

    def submit(self, function, *arguments):
        with open(self.path, "a") as file:
            file.write(arguments[PATH] + "\n")
        return self.pool.submit(function, *arguments)


class Building:
    """An index of some sources."""

    name = "all.mmx"

    def do(self, folder, executor=None):
        mmapds.build(sorted(folder.glob("*.jsonl")), out=folder / self.name, executor=executor, force=True, **OPTIONS)

    def result(self, folder):
        return (folder / self.name).read_bytes()


class Converting:
    """An array file of the same sources."""

    name = "all.mma"

    def do(self, folder, executor=None):
        schema = {"n": "int64", "s": "str"}
        convert(
            sorted(folder.glob("*.jsonl")),
            folder / self.name,
            schema=schema,
            length="n",
            executor=executor,
            index=False,
        )

    def result(self, folder):
        return (folder / self.name).read_bytes()


JOBS = (Building(), Converting())


def write_sources(folder, random):
    for number in range(random.randint(2, 8)):
        count = random.choice([0, 5, 50, 500])
        lines = (b'{"n": %d, "s": "%s"}\n' % (n % 97, b"x" * (n % 60)) for n in range(count))
        (folder / f"{number}.jsonl").write_bytes(b"".join(lines))
    (folder / "last.jsonl").write_bytes(b'{"n": 1, "s": ""}\n')


def start(job, folder, log):
    """Run a driver in a child, the first of a group of its own; return its process."""
    child = os.fork()
    if child == 0:
        os.setsid()
        with suppress(BaseException):
            with ProcessPoolExecutor(2) as pool, small_tasks(3_000):
                job.do(folder, Logging(pool, log))
            os._exit(0)
        os._exit(1)
    return child


def wait(child, seconds):
    """Wait for a child so long; return how it ended, None if it did not."""
    end = time.monotonic() + seconds
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(0.001)


def end_groups(groups):
    """End drivers and their workers."""
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def whole_parts(job, folder):
    """Paths of the parts that are there; what is there under such a name is whole."""
    suffix = Path(job.name).suffix
    return {str(path) for path in (folder / f"{job.name}.parts").glob(f"*{suffix}")}


def run(seconds, seed):
    """Kill until the time is over; see tests/support/torture.py."""
    kills, took = Counter(), {type(job): 0.3 for job in JOBS}

    def one(random):
        job = random.choice(JOBS)
        with tempfile.TemporaryDirectory() as temporary:
            folder, log, groups = Path(temporary) / "data", Path(temporary) / "log", []
            folder.mkdir()
            alone = []  # of each kill, whether it left the workers alive
            write_sources(folder, random)
            job.do(folder)
            expected = job.result(folder)
            (folder / job.name).unlink()
            try:
                for left in range(random.randint(1, KILLS), -1, -1):
                    there = whole_parts(job, folder)
                    log.write_text("")
                    begin = time.monotonic()
                    child = start(job, folder, log)
                    groups.append(child)
                    status = wait(child, took[type(job)] * random.uniform(0, 1.1) if left else PATIENCE)
                    if status is None:
                        assert left, f"a driver runs for {PATIENCE} s"
                        alone.append(random.random() < 0.5)
                        if not alone[-1]:
                            end_groups([child])
                        os.kill(child, signal.SIGKILL)  # it may not lead its group yet
                        os.waitpid(child, 0)
                        kills[type(job).__name__] += 1
                    else:
                        assert status == 0, f"the driver ended with {status}"
                        took[type(job)] = time.monotonic() - begin
                        assert job.result(folder) == expected
                        (folder / job.name).unlink()
                    again = there & set(log.read_text().split())
                    assert not again, f"sent out again, though they were there: {again}"
                # A worker that lost its driver may still leave a part, after all were removed.
                assert any(alone) or not whole_parts(job, folder), "parts were left"
            finally:
                end_groups(groups)
            left_over = [path.name for path in folder.iterdir() if not path.name.endswith((".jsonl", ".parts"))]
            assert not left_over, f"left: {left_over}"

    cases = repeat(one, seconds, seed)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    return f"{kills.total():,} kills in {cases:,} cases: the same bytes in the end, nothing done twice ({listed})"
