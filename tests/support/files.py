"""Files: where those of this folder lie, and how to damage one."""

import multiprocessing
import os
import resource
import stat
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"


@contextmanager
def same_time(path):
    """Change a file in this block, and it has the same time afterwards, so that its index does not know."""
    before = os.stat(path)
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@contextmanager
def largest_file(size):
    """No file can be written beyond a size in this block, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def patched(path, at, data):
    """Change bytes of a file, and not its time."""
    with same_time(path), open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at):
    """Change one bit of a file, and not its time."""
    patched(path, at, bytes([Path(path).read_bytes()[at] ^ 1]))


def unprivileged(function):
    """Run `function` in a child that may not override permissions, and return what it printed."""

    def child(pipe):
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            pipe.send(function())
        except BaseException as error:
            pipe.send(f"{type(error).__name__}: {error}")

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    result = ours.recv() if ours.poll(60) else "no answer"
    process.join()
    return result


def opened_to_all(directory):
    """Let all users search a directory for temporary files, and those above it."""
    while not directory.stat().st_mode & stat.S_IWOTH:  # up to the place for temporary files, which all may use
        directory.chmod(0o755)
        directory = directory.parent
