"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

import mmapds
from tests.support.commands import run
from tests.support.forks import fork_beside_threads


def test_a_child_forked_beside_reading_threads_reads(write, tmp_path):
    sources = [write([{"n": number}], f"{number}.jsonl") for number in range(500)]
    mmapds.build(sources, out=tmp_path / "all.mmx", length="n")
    with mmapds.Writer(tmp_path / "a.mma", {"n": "int64", "text": "str", "x": ("float32", (None,))}) as writer:
        for number in range(50):
            writer.write({"n": number, "text": "x" * number, "x": [float(number)] * number})
    failed, errors = fork_beside_threads([tmp_path / "all.mmx", tmp_path / "a.mma"])
    assert failed == 0, errors


FORKS_DURING_AN_IMPORT = """
import os, signal, sys, threading
import mmapds

importing, forking = threading.Event(), threading.Event()


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "mmapds.dataset.opening":
            importing.set()
            forking.wait()


sys.meta_path.insert(0, Finder())
os.register_at_fork(before=forking.set)
reader = threading.Thread(target=lambda: mmapds.open(sys.argv[1])[0])
reader.start()
importing.wait()
if (child := os.fork()) == 0:
    signal.alarm(60)
    print(mmapds.open(sys.argv[1])[0], flush=True)
    os._exit(0)
reader.join()
sys.exit(os.waitpid(child, 0)[1] != 0)
"""


def test_a_child_forked_beside_a_first_import_reads(write):
    path = write([{"n": 1}])
    mmapds.build(path)
    ran = run("-c", FORKS_DURING_AN_IMPORT, path)
    assert (ran.returncode, ran.stdout) == (0, "{'n': 1}\n"), ran.stderr
