"""A job in a process of its own: what it answers, the most memory that is its own, and limits that end it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from bench.support.results import ROOT

INTERVAL = 0.005  # seconds between looks at the memory of a job
HANGS = 20  # times the limit of seconds: a job that takes so long by the clock waits for something
TICKS = os.sysconf("SC_CLK_TCK")
LINES = 20  # of what a job that failed printed last


class JobError(Exception):
    """A job failed, for another reason than a limit."""


class Limits(NamedTuple):
    """What a job may take: seconds of processors, which others on the machine do not use up, and bytes of memory."""

    seconds: float = 60
    memory: int = 8 * 10**9

    def exceeded(self, seconds, memory):
        """Return the limit that is exceeded, in words, or None."""
        if memory > self.memory:
            return self.words("memory")
        return self.words("seconds") if seconds > self.seconds else None

    def words(self, name):
        """Return one of them as tables have it."""
        return f"> {self.memory / 1e9:g} GB" if name == "memory" else f"> {self.seconds:g} s"


LIMITS = Limits()


def run(function, limits=LIMITS, **arguments):
    """Call a function in a process of its own.

    Args:
      function: `module:name`. It takes and returns plain JSON, and returns a dict.
      limits: they hold for the process and its children together.
    Returns:
      What the function returns, and as `peak` the most anonymous memory that was seen, in bytes. Where a limit ends the
      job, `stopped` says which, and what the function would have returned is missing.
    Raises:
      JobError: the function failed, or hangs; the message has the end of what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="rivals-") as place:
        answer, printed = Path(place, "answer.json"), Path(place, "printed")
        job = {"function": function, "arguments": arguments, "memory": limits.memory, "answer": str(answer)}
        command = [sys.executable, "-m", "bench.rivals.job", json.dumps(job)]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
        with open(printed, "wb") as out:
            process = subprocess.Popen(
                command, cwd=place, env=environment, stdout=out, stderr=out, start_new_session=True
            )
            try:
                peak, stopped = _watch(process, limits)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # it, or children that it left
                process.wait()
        if stopped:
            return {"stopped": stopped, "peak": peak}
        if not answer.exists():
            end = "\n".join(printed.read_text(errors="replace").splitlines()[-LINES:])
            raise JobError(f"{function}: status {process.returncode}\n{end}")
        found = json.loads(answer.read_text())
        if found.pop("is_out_of_memory", False):
            return {"stopped": limits.words("memory"), "peak": peak}
        return found | {"peak": peak}


def _watch(process, limits):
    """Wait for a process; return the most memory it had and, if a limit ends the wait, which."""
    end, peak = time.monotonic() + HANGS * limits.seconds, 0
    while process.poll() is None and time.monotonic() < end:
        processes = family(process.pid)
        peak = max(peak, sum(map(resident, processes)))
        stopped = limits.exceeded(sum(map(busy, processes)), peak)
        if stopped:
            return peak, stopped
        time.sleep(INTERVAL)
    return peak, None


def resident(pid):
    """Return the anonymous bytes of a process that are in memory, or 0 if it has ended.

    The kernel counts them as they come, so that looking is cheap; `smaps_rollup` walks all pages, which would slow down
    what is timed.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def busy(pid):
    """Return the seconds that processors worked for a process and for its children that have ended, or 0."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / TICKS
    return 0


def family(pid):
    """Return the numbers of a process and of all that descend from it."""
    found = [pid]
    for each in found:
        for thread in _listed(f"/proc/{each}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{each}/task/{thread}/children").read_text().split())
    return found


def _listed(folder):
    with suppress(OSError):
        return os.listdir(folder)
    return []
