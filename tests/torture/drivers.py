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
from tests.support.torture import ends, forked, repeat

KILLS = 6
"""In a case, at most; then one run that is left alone."""
PATIENCE = 120
"""Seconds after which a driver hangs."""
PATH = 2
"""The argument of a task that is the path of its part."""


class Logging:
    """A pool of processes that says which tasks it was given."""

    def __init__(self, pool, path):
        self.pool, self.path = pool, path

    def submit(self, function, *arguments):
        with open(self.path, "a") as file:
            file.write(arguments[PATH] + "\n")
        return self.pool.submit(function, *arguments)


def build(sources, out, executor=None):
    mmapds.build(sources, out=out, executor=executor, force=True, length="n", columns={"size": "bytes()"})


def convert_all(sources, out, executor=None):
    schema = {"n": "int64", "s": "str"}
    convert(sources, out, schema=schema, length="n", executor=executor, index=False)


JOBS = {"all.mmx": build, "all.mma": convert_all}
"""What is written, and how."""


def write_sources(folder, random):
    for number in range(random.randint(2, 8)):
        count = random.choice([0, 5, 50, 500])
        lines = (b'{"n": %d, "s": "%s"}\n' % (n % 97, b"x" * (n % 60)) for n in range(count))
        (folder / f"{number}.jsonl").write_bytes(b"".join(lines))
    (folder / "last.jsonl").write_bytes(b'{"n": 1, "s": ""}\n')
    return sorted(folder.glob("*.jsonl"))


def drive(job, sources, target, log):
    """Run a driver, the first of a group of its own."""
    os.setsid()
    with ProcessPoolExecutor(2) as pool, small_tasks(3_000):
        job(sources, target, Logging(pool, log))


def end_groups(groups):
    """End drivers and their workers."""
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def whole_parts(target):
    """Paths of the parts that are there; what is there under such a name is whole."""
    return {str(path) for path in Path(f"{target}.parts").glob(f"*{target.suffix}")}


def run(seconds, seed):
    """Kill until the time is over; see tests/support/torture.py."""
    kills, took = Counter(), dict.fromkeys(JOBS, 0.3)

    def one(random):
        name = random.choice(sorted(JOBS))
        with tempfile.TemporaryDirectory() as temporary:
            folder, log, groups = Path(temporary) / "data", Path(temporary) / "log", []
            folder.mkdir()
            target, sources = folder / name, write_sources(folder, random)
            alone = []  # of each kill, whether it left the workers alive
            JOBS[name](sources, target)
            expected = target.read_bytes()
            target.unlink()
            try:
                for left in range(random.randint(1, KILLS), -1, -1):
                    there = whole_parts(target)
                    log.write_text("")
                    begin = time.monotonic()
                    child, ending = forked(lambda: drive(JOBS[name], sources, target, log))
                    groups.append(child)
                    is_killed = not ends(ending, took[name] * random.uniform(0, 1.1) if left else PATIENCE)
                    os.close(ending)
                    if is_killed:
                        assert left, f"a driver runs for {PATIENCE} s"
                        alone.append(random.random() < 0.5)
                        end_groups([] if alone[-1] else [child])
                        os.kill(child, signal.SIGKILL)  # it may not lead its group yet
                        kills[name] += 1
                    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                    if not is_killed:
                        assert status == 0, f"the driver ended with {status}"
                        took[name] = time.monotonic() - begin
                        assert target.read_bytes() == expected
                        target.unlink()
                    again = there & set(log.read_text().split())
                    assert not again, f"sent out again, though they were there: {again}"
                # A worker that lost its driver may still leave a part, after all were removed.
                assert any(alone) or not whole_parts(target), "parts were left"
            finally:
                end_groups(groups)
            left_over = [path.name for path in folder.iterdir() if not path.name.endswith((".jsonl", ".parts"))]
            assert not left_over, f"left: {left_over}"

    cases = repeat(one, seconds, seed)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    return f"{kills.total():,} kills in {cases:,} cases: the same bytes in the end, nothing done twice ({listed})"
