"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

import gzip
import io
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import mmapds
from tests.support.commands import run
from tests.support.compressed import one_frame
from tests.support.forks import fork_beside_threads
from tests.support.formats import write_all
from tests.support.samples import npy, npz
from tests.support.tars import archive


def test_a_child_forked_beside_reading_threads_reads(write, tmp_path):
    sources = [write([{"n": number}], f"{number}.jsonl") for number in range(500)]
    mmapds.build(sources, out=tmp_path / "all.mmx", length="n")
    with mmapds.Writer(tmp_path / "a.mma", {"n": "int64", "text": "str", "x": ("float32", (None,))}) as writer:
        for number in range(50):
            writer.write({"n": number, "text": "x" * number, "x": [float(number)] * number})
    failed, errors = fork_beside_threads([tmp_path / "all.mmx", tmp_path / "a.mma"])
    assert failed == 0, errors


FORKS_DURING_AN_IMPORT = """
import os, signal, sys, threading, time
import mmapds

importing, forking = threading.Event(), threading.Event()


class Finder:
    def find_spec(self, name, path=None, target=None):
        # logging and concurrent.futures load the second one: forks take locks of theirs, too.
        if name in ("mmapds.dataset.opening", "queue") and not importing.is_set():
            importing.set()
            forking.wait()
            time.sleep(0.3)
            sys.modules["logging"].getLogger("a")  # as modules do while they are imported


sys.meta_path.insert(0, Finder())
reader = threading.Thread(target=lambda: mmapds.open(sys.argv[1])[0])
reader.start()
importing.wait()
forking.set()
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
    ran = run("-c", FORKS_DURING_AN_IMPORT, path, timeout=50)  # less than a fork waits for an import, at most
    assert not ran.stderr
    assert (ran.returncode, ran.stdout) == (0, "{'n': 1}\n"), ran.stderr


READS = """
import sys
import mmapds
from mmapds.storage.imports import importing

path, decode = sys.argv[1], eval(sys.argv[2])
ds = mmapds.open(path, decode=decode)
loose = []


class Finder:
    def find_spec(self, name, path=None, target=None):
        if not importing.is_held():
            loose.append(name)


sys.meta_path.insert(0, Finder())
n = len(ds)
samples = [ds[1], *ds.take([0, n - 1, 1]), *ds.take(list(range(n))), ds[::2][1], *ds[[3, 0, 2]].take([1, 0])]
samples += (ds + ds).take([0, n + 1, 2])
samples += ds.map(lambda sample: sample).take([1])
ds.raw(0), ds.where(1), ds.place(2), [ds.column(name) for name in ds.columns], ds.length_order, next(iter(ds))
assert len(samples) > n
print(*loose)
"""


KINDS = {"gz", "zst", "view", "images", "jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"}
ARRAYS = {"fixed", "npy", "megatron", "arrays"}


@pytest.mark.parametrize(
    ("name", "decode"),
    [*((name, "wds" if name == "images" else None) for name in sorted(KINDS))]
    + [(name, "bytes") for name in sorted(KINDS)]
    + [(name, "torch") for name in sorted(ARRAYS)],
)
def test_reads_import_nothing_that_a_child_could_wait_for(tmp_path, name, decode):
    """All modules are loaded when a dataset is open, or while the lock is held for which a fork waits."""
    sources = write_all(tmp_path)
    text = Path(sources["jsonl"]).read_bytes()
    for suffix, compressed in (("gz", gzip.compress(text)), ("zst", one_frame(text))):
        sources[suffix] = str(tmp_path / f"c.jsonl.{suffix}")
        Path(sources[suffix]).write_bytes(compressed)
        mmapds.build(sources[suffix], length="bytes()")
    sources["view"] = str(tmp_path / "view.mmx")
    mmapds.open(sources["zst"])[[5, 3, 4, 1]].save(sources["view"])
    sources["images"] = str(tmp_path / "i.tar")
    members = [
        ("0.json", b"{}"),
        ("0.txt", b"a"),
        ("0.cls", b"1"),
        ("0.npz", npz(x=np.arange(3))),
        ("0.npy", npy(np.arange(3))),
    ]
    for number, kind in enumerate(["png", "jpeg", "gif", "bmp", "ppm", "webp", "tiff"], 1):
        image = io.BytesIO()
        PIL.Image.new("L", (2, 2)).save(image, kind)
        members.append((f"{number}.{kind}", image.getvalue()))
    Path(sources["images"]).write_bytes(archive(members))
    mmapds.build(sources["images"])
    ran = run("-c", READS, sources[name], repr(decode))
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr


def test_nothing_that_is_computed_once_has_a_lock():
    """That of a functools.cached_property is one for all objects up to Python 3.11, and a child could wait for it."""
    assert not [path for path in Path(mmapds.__file__).parent.rglob("*.py") if "@cached_property" in path.read_text()]
