"""Processes that are killed at any moment of what they write, and drivers alone or with their workers; then run again.

The old file is there then, or the new one; never none, and never a bad one. The next run leaves nothing behind. No
worker lives on, but those of a driver that was killed alone.
"""

import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress

from tests.support.engines import small_tasks
from tests.support.torture import ends, forked
from tests.torture._writers import WRITERS, Folder

EACH = 1
SAYS = "rounds of kills: every time the old file or the new one, and nothing else in the end"
RECORDS = 20_000
KILLS = 4
"""In a case, at most; then one run that is left alone."""
PATIENCE = 120
"""Seconds after which a process hangs."""

_took = dict.fromkeys(WRITERS, 0.3)  # seconds of a run that was left alone


def write(folder):
    """Write, with a pool of processes where it is a driver."""
    if not folder.writer.is_driver:
        folder.writer.write(folder.path)
        return
    with ProcessPoolExecutor(2) as pool, small_tasks(100_000):
        folder.writer.write(folder.path, executor=pool)


def run(random, folder, groups, *, is_killed):
    """Write in a child, which is killed after a while if it is not done; return whether it was, and whether alone."""
    child, ending = forked(lambda: write(folder))
    groups.append(child)
    number, is_alone = random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]), random.random() < 0.5
    if not ends(ending, _took[folder.name] * random.uniform(0, 1.1) if is_killed else PATIENCE):
        assert is_killed, f"it runs for {PATIENCE} s"
        if folder.writer.is_driver and not is_alone:
            end([child])
        os.kill(child, number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in ((0, -number, -signal.SIGKILL) if is_killed else (0,)), f"it ended with {status}"
    is_alone = is_alone and status != 0 and folder.writer.is_driver
    assert is_alone or ends(ending, PATIENCE), f"its workers live on for {PATIENCE} s"
    os.close(ending)
    return status != 0, is_alone


def end(groups):
    """End processes and their children."""
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


def one(random, path):
    folder, groups, was_alone = Folder(random, path, RECORDS), [], False
    try:
        for _ in range(random.randint(1, KILLS)):
            has_failed, is_alone = run(random, folder, groups, is_killed=True)
            was_alone |= is_alone
            folder.check(is_done=not has_failed)
        begin = time.monotonic()
        run(random, folder, groups, is_killed=False)
        _took[folder.name] = time.monotonic() - begin
        folder.check(is_done=True)
        # A worker that lost its driver may still leave a part, after all were removed.
        assert was_alone or not folder.parts(), "parts were left"
    finally:
        end(groups)
    assert not folder.left_over(), f"left: {folder.left_over()}"
