"""Forks beside reading threads, as a script for a process of its own."""

from tests.support.commands import run

_SCRIPT = """
import os, signal, sys, threading
import numpy as np
import mmapds

interval, forks, threads = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
sys.setswitchinterval(interval)  # so that a fork comes at any moment of what the threads do
paths = sys.argv[4:]
datasets = [mmapds.open(path) for path in paths]
stop = threading.Event()

def read():
    while not stop.is_set():
        for path in paths:
            fresh = mmapds.open(path)
            fresh[0], fresh[len(fresh) - 1], fresh.take([1, 0]), fresh.columns, fresh[::2][0]

readers = [threading.Thread(target=read) for _ in range(threads)]
for reader in readers:
    reader.start()
failed = 0
for _ in range(forks):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for ever
        for ds, path in zip(datasets, paths):
            fresh = mmapds.open(path)
            assert fresh[1] is not None and ds[0] is not None and len(fresh.take([0, 1])) == 2
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
stop.set()
for reader in readers:
    reader.join()
sys.exit(failed)
"""


def fork_beside_threads(paths, *, interval=1e-6, forks=60, threads=4):
    """Fork while threads read some indexes; return how many children failed or hung, and the error output."""
    ran = run("-W", "ignore::DeprecationWarning", "-c", _SCRIPT, interval, forks, threads, *paths)
    return ran.returncode, ran.stderr
