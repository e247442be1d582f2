"""Processes that begin with torch and mmapds imported: a server that imported them once forks them."""

import atexit
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from functools import cache
from types import ModuleType

PRELOADED = ("numpy", "torch.distributed", "torch.utils.data", "mmapds.loader", "mmapds.samplers.planned")


class Process:
    """A script in a process of its own.

    Args:
      code: Python, which runs as `__main__`.
      environment: all of its variables.
      output: path of the file that takes what it prints and its errors.
    """

    def __init__(self, code, environment, output):
        asked = {"code": code, "environment": environment, "output": output, "folder": os.getcwd()}
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(_server())
        self._answers = self._connection.makefile("rw")
        self._answers.write(json.dumps(asked) + "\n")
        self._answers.flush()
        self._pid = int(self._answers.readline())
        self._status = None

    def wait(self, seconds):
        """Return the exit status, negative for a signal; raise TimeoutError if it has not ended by then."""
        self._connection.settimeout(seconds)
        self._status = os.waitstatus_to_exitcode(int(self._answers.readline()))
        return self._status

    def kill(self):
        """End it; do nothing if it was seen to end."""
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
        self._answers.close()
        self._connection.close()


@cache
def _server():
    """Start the server of this process; return the path of its socket."""
    path = f"{tempfile.mkdtemp(prefix='warm-')}/socket"
    server = subprocess.Popen([sys.executable, "-m", "tests.support.warm", path], stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"ready\n"
    atexit.register(server.kill)
    return path


def _serve(path):
    for name in PRELOADED:
        __import__(name)
    gc.freeze()  # so that forks share what is loaded
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("ready", flush=True)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            listener.close()
            _answer(connection)
        connection.close()


def _answer(connection):
    """Fork the process that is asked for; say which it is, and how it ended."""
    answers = connection.makefile("rw")
    asked = json.loads(answers.readline())
    if (pid := os.fork()) == 0:
        connection.close()
        _become(**asked)
    print(pid, file=answers, flush=True)
    print(os.waitpid(pid, 0)[1], file=answers, flush=True)
    os._exit(0)


def _become(code, environment, output, folder):
    """Be a process that runs a script, and end."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv, sys.modules["__main__"] = ["-c"], ModuleType("__main__")
    status = 0
    try:
        exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(status or 0)  # at once: to take torch apart takes a second


if __name__ == "__main__":
    _serve(sys.argv[1])
