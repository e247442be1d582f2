"""Files that are cut short at any moment while they are read, in this process and in workers."""

import os
import threading
import time
from contextlib import contextmanager

import numpy as np
from torch.utils.data import DataLoader

import mmapds
from tests.support.formats import COUNT, write_all

EACH = 1
SAYS = "files cut short: each an error, none a wrong record"
CHANGED = ("STALE: ", "DAMAGED: ", "became shorter", "changed while it was read", "while reading; run again")
KINDS = ["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"]


def plain(samples):
    return [
        {name: np.asarray(value).tolist() for name, value in sample.items()}
        if isinstance(sample, dict)
        else bytes(sample)
        for sample in samples
    ]


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


def in_process(random, path, victim):
    """Read batches and records until the file is cut and an error says so, or a while longer."""
    ds = mmapds.open(path, decode="bytes", io=random.choice(["mmap", "pread"]))
    expected, rounds = plain(ds.take(range(len(ds)))), 0
    with cut_soon(random, victim) as cutting:
        while cutting.is_alive() or rounds < 50:
            rounds += not cutting.is_alive()
            positions = [random.randrange(len(expected)) for _ in range(random.choice([1, 8, 64]))]
            assert plain(ds.take(positions)) == [expected[i] for i in positions]
            assert plain([ds[positions[0]]]) == [expected[positions[0]]]


def in_workers(random, path, victim):
    ds = mmapds.open(path, decode="bytes")
    expected, order = plain(ds.take(range(len(ds)))), [random.randrange(len(ds)) for _ in range(4000)]
    context = random.choice(["fork", "fork", "spawn"])
    loader = DataLoader(ds, 16, sampler=order, num_workers=2, multiprocessing_context=context, collate_fn=list)
    batches = iter(loader)
    for _ in range(2):  # one of each worker, which then has opened the index: torch says nothing of errors before
        next(batches)
    with cut_soon(random, victim):
        for number, batch in enumerate(batches, 2):
            assert plain(batch) == [expected[i] for i in order[number * 16 : number * 16 + 16]]


def one(random, folder):
    opened = source = folder / write_all(folder)[random.choice(KINDS)]
    if random.random() < 0.3:  # a view, of bits or of an array
        opened, rows = folder / "view.mmx", [random.randrange(COUNT) for _ in range(3 * COUNT)]
        mmapds.open(source)[random.choice([sorted({0, *rows[:COUNT]}), rows])].save(opened)
    how = random.choice([in_process] * 6 + [in_workers])
    how(random, opened, random.choice([source, source, f"{source}.mmx", opened]))
