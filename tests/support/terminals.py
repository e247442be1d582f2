"""Commands on a terminal of their own."""

import os
import pty
import subprocess
import sys
import termios
from contextlib import suppress

SECONDS = 240


def on_terminal(*arguments, columns=80, **environment):
    """Run this interpreter with all of its streams on a new terminal; return the exit status and what it shows."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, columns))
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    run = [sys.executable, *map(str, arguments)]
    environment = {**plain, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment}
    with subprocess.Popen(run, stdin=end, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        with suppress(OSError):  # the other end was closed
            while piece := os.read(terminal, 65536):
                shown += piece
        os.close(terminal)
        status = process.wait(SECONDS)
    return status, shown.decode().replace("\r\n", "\n")
