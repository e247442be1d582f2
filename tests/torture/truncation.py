"""Files that are cut short at any moment while they are read."""

import os
import threading
import time
from contextlib import contextmanager

import mmapds
from tests.support.forged import plain
from tests.support.formats import COUNT, write_all

EACH = 1
SAYS = "files cut short: each an error, none a wrong record"
CHANGED = ("STALE: ", "DAMAGED: ", "became shorter", "changed while it was read", "while reading; run again")
KINDS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "mds", "megatron", "arrays"]


@contextmanager
def cut_soon(random, path):
    """Cut a file at some moment of this block; an error says that it was cut."""
    size, delay = random.randrange(os.path.getsize(path)), 10 ** random.uniform(-5, -1)

    def cut():
        time.sleep(delay)
        os.truncate(path, size)

    thread = threading.Thread(target=cut)
    thread.start()
    try:
        yield thread
    except mmapds.Error as error:
        if not any(text in str(error) for text in CHANGED):
            raise AssertionError("an error of something else") from error
    finally:
        thread.join()


def read(random, path, victim):
    """Read batches and records until the file is cut and an error says so, or a while longer."""
    ds = mmapds.open(path, decode="bytes", io=random.choice(["mmap", "pread"]))
    expected, rounds = plain(list(ds.take(range(len(ds))))), 0
    with cut_soon(random, victim) as cutting:
        while cutting.is_alive() or rounds < 50:
            rounds += not cutting.is_alive()
            positions = [random.randrange(len(expected)) for _ in range(random.choice([1, 8, 64]))]
            assert plain(list(ds.take(positions))) == [expected[i] for i in positions]
            assert plain(ds[positions[0]]) == expected[positions[0]]


def one(random, folder):
    opened = source = folder / write_all(folder)[random.choice(KINDS)]
    if random.random() < 0.3:  # a view, of bits or of an array
        opened, rows = folder / "view.mmx", [random.randrange(COUNT) for _ in range(3 * COUNT)]
        mmapds.open(source)[random.choice([sorted({0, *rows[:COUNT]}), rows])].save(opened)
    read(random, opened, random.choice([source, source, f"{source}.mmx", opened]))
