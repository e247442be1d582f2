"""Commands and scripts in a process of their own."""

import subprocess
import sys

SECONDS = 240  # a process that has not ended by then hangs, on a busy machine too


def run(*arguments, **options):
    """Run this interpreter with some arguments; text comes back, and a failure is not raised."""
    wanted = {"capture_output": True, "text": True, "timeout": SECONDS, "check": False, **options}
    return subprocess.run([sys.executable, *map(str, arguments)], **wanted)


def command(*arguments, **options):
    """Run `python -m mmapds.index`."""
    return run("-m", "mmapds.index", *arguments, **options)


def mmapds(*arguments, **options):
    """Run `python -m mmapds`."""
    return run("-m", "mmapds", *arguments, **options)


def python(code, **options):
    """Run a script that must succeed; with check=False it may fail."""
    return run("-c", code, **{"check": True, **options})
