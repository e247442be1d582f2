"""Files: where those of this folder lie, and how to damage one."""

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


@contextmanager
def unprivileged():
    """The process may not override permissions in this block."""
    before = os.geteuid()
    os.seteuid(before or 65534)
    try:
        yield
    finally:
        os.seteuid(before)


def opened_to_all(directory):
    """Let all users search a directory for temporary files, and those above it."""
    while not directory.stat().st_mode & stat.S_IWOTH:  # up to the place for temporary files, which all may use
        directory.chmod(0o755)
        directory = directory.parent
