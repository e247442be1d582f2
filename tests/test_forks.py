"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

import ast
import gzip
import io
import signal
import threading
import time
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

import mmapds
from mmapds._native import ImportLock
from tests.support.commands import python, run
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


def interrupt(*_):
    raise KeyboardInterrupt


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
interrupted = child = None
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
try:
    child = os.fork()
except KeyboardInterrupt:  # after the fork, whose result is lost
    interrupted = True
if child == 0:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    print(mmapds.open(sys.argv[1])[0], flush=True)
    os._exit(0)
reader.join()
_, status = os.wait()
print(interrupted, status)
"""


@pytest.mark.parametrize(("alarm", "interrupted"), [("0", None), ("0.1", True)])
def test_a_child_forked_beside_a_first_import_reads(write, alarm, interrupted):
    """Even if a signal handler raises while the fork waits for that import."""
    path = write([{"n": 1}])
    mmapds.build(path)
    ran = run("-c", FORKS_DURING_AN_IMPORT, path, alarm, timeout=50)  # less than a fork waits for an import, at most
    assert not ran.stderr
    assert (ran.returncode, ran.stdout) == (0, f"{{'n': 1}}\n{interrupted} 0\n"), ran.stderr


HANDLER_WAITS = """
import os, signal, threading, time
from mmapds.imports import importing

held = threading.Event()


def first():
    with importing:
        held.set()
        time.sleep(0.5)


def second():
    with importing:
        print("second")


def wait(*_):
    threads[1].join()
    print("handler")


threads = [threading.Thread(target=first), threading.Thread(target=second)]
threads[0].start()
held.wait()
threads[1].start()
signal.signal(signal.SIGALRM, wait)
signal.setitimer(signal.ITIMER_REAL, 0.1)
if (child := os.fork()) == 0:
    os._exit(importing.is_held())
assert os.waitpid(child, 0)[1] == 0
"""


def test_a_signal_handler_before_a_fork_may_wait_for_a_thread_that_imports():
    ran = run("-c", HANDLER_WAITS, timeout=50)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "second\nhandler\n", "")


LATER_HOOKS = """
import os, signal, threading
from mmapds.imports import importing

held, calls = threading.Event(), []


def hook():
    calls.append(sum(range(100)))


def hold():
    with importing:
        held.set()
        waiting.wait(0.5)


def interrupt(*_):
    raise KeyboardInterrupt


waiting = threading.Event()
for _ in range(3):
    os.register_at_fork(after_in_parent=hook)
threading.Thread(target=hold).start()
held.wait()
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.1)
child = None
try:
    child = os.fork()
except KeyboardInterrupt:
    print("interrupted", len(calls))
if child == 0:
    os._exit(0)
print(os.wait()[1])
"""


def test_what_a_handler_raised_before_a_fork_is_not_lost_in_hooks_of_others():
    ran = run("-c", LATER_HOOKS, timeout=50)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "interrupted 3\n0\n", "")


def test_a_fork_waits_no_longer_where_the_lock_of_imports_is_taken_again_and_again():
    lock, held, over = ImportLock(), threading.Event(), threading.Event()

    def hold():
        while not over.is_set():
            with lock:
                held.set()
                over.wait(0.7)
            over.wait(0.005)

    before = signal.signal(signal.SIGALRM, lambda *_: time.sleep(0.03))
    thread, giving_up = threading.Thread(target=hold), threading.Timer(30, over.set)
    thread.start()
    giving_up.start()
    try:
        held.wait()
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.1)
        if lock.before_fork(1):  # mostly not, but on a busy machine the thread may be late
            lock.after_fork()
        assert not over.is_set()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        over.set()
        giving_up.cancel()
        thread.join()


def test_a_fork_that_loses_patience_leaves_the_lock_of_imports_to_its_thread():
    lock, held, over = ImportLock(), threading.Event(), threading.Event()

    def hold():
        with lock, lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    assert not lock.before_fork(0)
    lock.after_fork()
    assert not lock.before_fork(0)
    over.set()
    thread.join()
    assert lock.before_fork(0)
    with lock:
        lock.after_fork()
        assert lock.is_held()
    assert not lock.is_held()


def test_a_child_of_a_fork_that_lost_patience_has_the_lock_of_imports_free():
    lock, held, over = ImportLock(), threading.Event(), threading.Event()

    def hold():
        with lock:
            held.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    lock.after_fork_in_child()  # as in the child, where that thread is not
    with lock:
        assert lock.is_held()
        assert lock.before_fork(0)
        lock.after_fork_in_child()
        assert lock.is_held()
    assert not lock.is_held()
    over.set()
    thread.join()


SIGNALS = """
import os, signal
from mmapds.imports import importing


def interrupt(*_):
    raise KeyboardInterrupt


signal.signal(signal.SIGALRM, interrupt)
raised = 0
while raised < 3000:
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0002)
        while True:
            with importing:
                pass
    except KeyboardInterrupt:
        raised += 1
    if importing.is_held():
        break
print(raised, importing.is_held())
"""


def test_a_signal_at_any_moment_leaves_the_lock_of_imports_free():
    ran = run("-c", SIGNALS)
    assert (ran.returncode, ran.stdout) == (0, "3000 False\n"), ran.stderr


READS = """
import sys
import mmapds
from mmapds.imports import importing

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


COMMANDS = {"cli.py", "command", "__main__.py"}
"""Files that only command lines use."""
LOADED = {"torch": "only a tensor is asked for it", "ml_dtypes": "optional, and loaded by whoever asks for it first"}


def late_imports():
    """Yield the imports of functions outside `with importing`: where, and the modules that are imported."""
    root = Path(mmapds.__file__).parent
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        if COMMANDS & {path.name, *parts}:
            continue
        for found in _in_functions(ast.parse(path.read_text()), is_late=False):
            where = f"{path.relative_to(root)}:{found.lineno}"
            if isinstance(found, ast.Import):
                yield from ((where, name.name) for name in found.names)
            else:
                above = ("mmapds", *parts)[: len(parts) + 1 - found.level] if found.level else ()
                inner = ".".join([*above, *([found.module] if found.module else [])])
                yield from [(where, inner)] if found.module else [(where, f"{inner}.{n.name}") for n in found.names]


def _in_functions(node, is_late):
    if isinstance(node, ast.With) and "importing" in {ast.unparse(item.context_expr) for item in node.items}:
        return
    is_late = is_late or isinstance(node, ast.FunctionDef | ast.Lambda)
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Import | ast.ImportFrom) and is_late:
            yield inner
        yield from _in_functions(inner, is_late)


@pytest.mark.parametrize("name", ["build", "merge", "Writer", "add_column", "seekable", "convert", "report"])
def test_what_functions_import_late_is_loaded_before_they_run(name):
    """Or the lock is held for which a fork waits."""
    found = [(where, module) for where, module in late_imports() if module not in LOADED]
    assert len(found) > 40
    loaded = set(python(f"import sys, mmapds\nmmapds.{name}\nprint(*sys.modules)").stdout.split())
    assert not [(where, module) for where, module in found if module not in loaded]


WRITES = """
import gzip, os, sys
import mmapds
from mmapds.imports import importing

sources = sys.argv[2:]
os.chdir(sys.argv[1])
lines = b"".join(b'{"n":%d,"t":"x"}\\n' % n for n in range(3000))
for path, data in {"a.jsonl": lines, "bad.jsonl": lines + b"{oh\\n", "c.jsonl.gz": gzip.compress(lines)}.items():
    open(path, "wb").write(data)
loose = []


class Finder:
    def find_spec(self, name, path=None, target=None):
        if not importing.is_held():
            loose.append(name)


def attempt(function, *given, **options):
    try:
        return function(*given, **options)
    except mmapds.Error:
        pass


sys.meta_path.insert(0, Finder())
for source in sources:
    attempt(mmapds.build, source, force=True)
attempt(mmapds.open, "bad.jsonl", build=True)
for path in ("a.jsonl", "bad.jsonl", "c.jsonl.gz"):
    attempt(mmapds.build, path, length="n", columns={"size": "bytes()"})
attempt(mmapds.build, "bad.jsonl", length="n", bad="skip", hash=True)
attempt(mmapds.build, "a.jsonl", columns={"x": "t"}, out="x.mmx")
attempt(mmapds.build, "a.jsonl", columns={"x": lambda sample: sample["n"]}, out="x.mmx")
mmapds.merge(["a.jsonl.mmx", "c.jsonl.gz.mmx"], out="merged.mmx")
mmapds.add_column("a.jsonl", "z", lambda sample: sample["n"])
mmapds.open("a.jsonl")[[3, 1]].save("view.mmx")
mmapds.seekable("c.jsonl.gz", "s.jsonl.zst")
mmapds.convert.convert("a.jsonl", "a.mma")
with mmapds.Writer("b.mma") as writer:
    writer.write({"a": 1, "s": "x", "v": [1.5], "d": {"a": [1]}})
print(*loose)
"""


def test_writes_import_nothing_that_a_child_could_wait_for(tmp_path):
    sources = [str(source) for source in write_all(tmp_path).values()]
    (tmp_path / "work").mkdir()
    ran = run("-c", WRITES, str(tmp_path / "work"), *sources)
    assert (ran.returncode, ran.stdout.split()) == (0, []), ran.stderr


def test_nothing_that_is_computed_once_has_a_lock():
    """That of a functools.cached_property is one for all objects up to Python 3.11, and a child could wait for it."""
    assert not [path for path in Path(mmapds.__file__).parent.rglob("*.py") if "@cached_property" in path.read_text()]
