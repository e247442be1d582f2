"""Run the modules of tests/torture in turn, each in a process of its own; `make torture` does so."""

import argparse
import resource
import signal
import subprocess
import sys
import tempfile
import time

from tests.support.sanitizers import sanitized
from tests.support.torture import command, modules, run

MOST_MEMORY = 32 << 30
"""Bytes of address space: what asks for more is a finding. Libraries map some 10 GB."""


def run_here(name, given):
    """Run one module in this process."""
    if not sanitized():
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    print(run(name, given.seconds, given.seed, only=given.case, journal=given.journal), flush=True)


def run_apart(name, seconds, given):
    """Run one module in a process of its own; return whether it found nothing."""
    with tempfile.NamedTemporaryFile() as journal:
        arguments = [name, "--seconds", str(seconds), "--seed", str(given.seed), "--journal", journal.name]
        arguments += [] if given.case is None else ["--case", str(given.case)]
        begin = time.monotonic()
        options = ["-X", "faulthandler", "-W", "ignore::UserWarning"]  # warnings by thousands: of empty sources
        command_line = [sys.executable, *options, "-m", "tests.torture", *arguments]
        status = subprocess.run(command_line, check=False).returncode
        if status < 0:
            print(f"{name}: died of {signal.Signals(-status).name}", end="; ")
        if status:
            print("run:", command(name, given.seed, int(journal.read() or 0)), flush=True)
        print(f"{name}: {'FOUND SOMETHING' if status else 'ok'} after {time.monotonic() - begin:.0f} s", flush=True)
    return status == 0


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="MODULE", help=f"of {', '.join(modules())}; default: all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="default: another one each time")
    parser.add_argument("--case", type=int, help="run only this one")
    parser.add_argument("--journal", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.names) - set(modules()):
        parser.error(f"MODULE: expected some of {', '.join(modules())}, found {', '.join(sorted(unknown))}")
    names = given.names or modules()
    if given.journal is not None:
        return run_here(names[0], given)
    print(f"seed {given.seed}", flush=True)
    fine = [run_apart(name, given.seconds / len(names), given) for name in names]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
