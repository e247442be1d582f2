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

_only: int | None = None  # the one case to run
_journal = -1  # a descriptor of the file that holds the number of the case at hand


def modules():
    """Names of the modules of tests/torture, sorted."""
    return sorted(each.name for each in pkgutil.iter_modules(torture.__path__) if not each.name.startswith("_"))


def command(name, seed, case):
    """The command that runs a case again."""
    return shlex.join(["python", "-m", "tests.torture", name, "--seed", str(seed), "--case", str(case)])


def alone(case, journal):
    """From now on, say in a file which case is at hand, end the process if it hangs, and run only `case` if given."""
    global _only, _journal
    _only, _journal = case, os.open(journal, os.O_WRONLY)


def run(name, seconds, seed):
    """Run a module until the time is over; return a summary."""
    module = import_module(f"tests.torture.{name}")
    return f"{repeat(module.one, seconds, seed) * module.EACH:,} {module.SAYS}"


def repeat(one, seconds, seed):
    """Call `one(random, folder)` for case after case until the time is over; return how many there were.

    Raises:
      AssertionError: a case raised something; the message says how to run it again.
    """
    end, number = time.monotonic() + seconds, _only or 0
    while True:
        if _journal >= 0:
            os.pwrite(_journal, b"%20d" % number, 0)
            faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            with TemporaryDirectory(prefix="mmapds-torture-") as folder:
                one(random.Random(f"{seed}/{number}"), Path(folder))
        except Exception as error:
            again = command(one.__module__.rpartition(".")[2], seed, number)
            raise AssertionError(f"{error!r}; run: {again}") from error
        finally:
            if _journal >= 0:
                faulthandler.cancel_dump_traceback_later()
        number += 1
        if _only is not None or time.monotonic() >= end:
            return 1 if _only is not None else number


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
