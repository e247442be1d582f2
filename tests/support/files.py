"""Files: where those of this folder lie, and how to damage one."""

import os
from contextlib import contextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DATA = ROOT / "tests" / "data"


@contextmanager
def same_time(path):
    """Change a file in this block, and it has the same time afterwards, so that its index does not know."""
    before = os.stat(path)
    yield
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def patched(path, at, data):
    """Change bytes of a file, and not its time."""
    with same_time(path), open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path, at):
    """Change one bit of a file, and not its time."""
    patched(path, at, bytes([Path(path).read_bytes()[at] ^ 1]))


def descriptor(path):
    """The number under which this process has a file open."""
    wanted = os.stat(path)
    for number in range(3, 1024):
        with suppress(OSError):
            if os.path.samestat(os.fstat(number), wanted):
                return number
    raise AssertionError(f"{path} is not open")
