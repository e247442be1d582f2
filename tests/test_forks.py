"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

import mmapds
from tests.support.commands import run

FORKS = """
import os, signal, sys, threading
import numpy as np
import mmapds

sys.setswitchinterval(1e-6)  # so that a fork comes at any moment of what the threads do
paths = sys.argv[1:]
datasets = [mmapds.open(path) for path in paths]
stop = threading.Event()

def read():
    while not stop.is_set():
        for path in paths:
            fresh = mmapds.open(path)
            fresh[0], fresh[len(fresh) - 1], fresh.take([1, 0]), fresh.columns, fresh[::2][0]

threads = [threading.Thread(target=read) for _ in range(4)]
for thread in threads:
    thread.start()
failed = 0
for _ in range(60):
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that waits for ever
        for ds, path in zip(datasets, paths):
            fresh = mmapds.open(path)
            assert fresh[1] is not None and ds[0] is not None and len(fresh.take([0, 1])) == 2
        os._exit(0)
    failed += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
sys.exit(failed)
"""


def test_a_child_forked_beside_reading_threads_reads(write, tmp_path):
    sources = [write([{"n": number}], f"{number}.jsonl") for number in range(500)]
    mmapds.build(sources, out=tmp_path / "all.mmx", length="n")
    with mmapds.Writer(tmp_path / "a.mma", {"n": "int64", "text": "str", "x": ("float32", (None,))}) as writer:
        for number in range(50):
            writer.write({"n": number, "text": "x" * number, "x": [float(number)] * number})
    ran = run("-W", "ignore::DeprecationWarning", "-c", FORKS, tmp_path / "all.mmx", tmp_path / "a.mma")
    assert ran.returncode == 0, ran.stderr
