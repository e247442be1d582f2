"""What the modules of tests/torture share: which there are, and cases that can be run again by their number.

A module of tests/torture has `one(random, folder)`, a case in an empty folder, `EACH`, how many things are tried in it,
and `SAYS`, what holds of all of them. `run` goes on for some seconds, whole cases and one at least, and returns a
summary, or raises AssertionError with the command that does the last case again.
"""

import faulthandler
import os
import pkgutil
import random
import select
import shlex
import signal
import time
import traceback
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import mmapds
from tests import torture

HANGS = 300
"""Seconds after which a case hangs."""


def modules():
    """Names of the modules of tests/torture, sorted."""
    return sorted(each.name for each in pkgutil.iter_modules(torture.__path__) if not each.name.startswith("_"))


def command(name, seed, case):
    """The command that runs a case again."""
    return shlex.join(["python", "-m", "tests.torture", name, "--seed", str(seed), "--case", str(case)])


def run(name, seconds, seed, **how):
    """Run a module until the time is over; return a summary. See `repeat`."""
    module = import_module(f"tests.torture.{name}")
    return f"{repeat(module.one, seconds, seed, **how) * module.EACH:,} {module.SAYS}"


def repeat(one, seconds, seed, only=None, journal=None):
    """Call `one(random, folder)` for case after case until the time is over; return how many there were.

    Args:
      only: the one case to run.
      journal: path of a file for the number of the case at hand; one that hangs ends the process then.
    Raises:
      AssertionError: a case raised something; the message says how to run it again.
    """
    end, first = time.monotonic() + seconds, only or 0
    number = first
    while number == first or (only is None and time.monotonic() < end):
        if journal:
            Path(journal).write_text(str(number))
            faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            with TemporaryDirectory(prefix="mmapds-torture-") as folder:
                one(random.Random(f"{seed}/{number}"), Path(folder))
        except Exception as error:
            again = command(one.__module__.rpartition(".")[2], seed, number)
            raise AssertionError(f"{error!r}; run: {again}") from error
        number += 1
    return number - first


@contextmanager
def doing(*what):
    """Let an error say what was done."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{', '.join(map(str, what))}: {error!r}") from error


def is_refused(action):
    """Do something that may raise one of mmapds's errors, and no other exception; return whether it did.

    Raises:
      AssertionError: the error does not say something in one line.
    """
    try:
        action()
    except mmapds.Error as error:
        message = str(error)
    else:
        return False
    assert message.strip(), "an error without a message"
    assert "\n" not in message, repr(message)
    return True


def forked(work):
    """Do something in a forked child, which leads a group of its own.

    Returns:
      The child, and a pipe that ends when it and all its children have.
    """
    theirs, ours = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a command that ran in this process has set its own
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(ours)
    return child, theirs


def ends(pipe, seconds):
    """Whether a pipe ends within so many seconds."""
    return bool(select.select([pipe], [], [], seconds)[0])
