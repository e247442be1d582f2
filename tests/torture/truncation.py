"""Files that are cut short at any moment while they are read, in this process and in workers, or indexed."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from torch.utils.data import DataLoader

import mmapds
from tests.support.formats import COUNT, write_all
from tests.support.torture import is_refused, repeat

CHANGED = ("STALE: ", "DAMAGED: ", "became shorter", "changed while it was read", "while reading; run again")


def identity(samples):
    return samples


def plain(samples):
    return [
        {name: np.asarray(value).tolist() for name, value in sample.items()}
        if isinstance(sample, dict)
        else bytes(sample)
        for sample in samples
    ]


def cut_soon(random, path):
    """Start a thread that cuts a file at some moment; return it."""
    size, delay = random.randrange(os.path.getsize(path)), 10 ** random.uniform(-5, -1)

    def cut():
        time.sleep(delay)
        os.truncate(path, size)

    thread = threading.Thread(target=cut)
    thread.start()
    return thread


def check_refused(action):
    """Do something that a cut file may make fail; it then says so."""
    message = ""
    try:
        action()
    except mmapds.Error as error:
        message = str(error)
    assert not message or any(text in message for text in CHANGED), message


def read_on(random, ds, expected, cutting):
    """Read batches and records until the file is cut and an error says so, or a while longer; check what comes."""
    rounds = 0
    while cutting.is_alive() or rounds < 50:
        rounds += not cutting.is_alive()
        positions = [random.randrange(len(expected)) for _ in range(random.choice([1, 8, 64]))]
        assert plain(ds.take(positions)) == [expected[i] for i in positions]
        assert plain([ds[positions[0]]]) == [expected[positions[0]]]


def in_process(random, path, victim):
    io = random.choice(["mmap", "pread"])
    ds = mmapds.open(path, decode="bytes", io=io)
    expected = plain(ds.take(range(len(ds))))
    cutting = cut_soon(random, victim)
    try:
        check_refused(lambda: read_on(random, ds, expected, cutting))
    finally:
        cutting.join()


def in_workers(random, path, victim):
    context = random.choice(["fork", "fork", "spawn"])
    ds = mmapds.open(path, decode="bytes")
    expected = plain(ds.take(range(len(ds))))
    order = [random.randrange(len(ds)) for _ in range(4000)]
    loader = DataLoader(ds, 16, sampler=order, num_workers=2, multiprocessing_context=context, collate_fn=identity)
    batches = iter(loader)
    for _ in range(2):  # one of each worker, which then has opened the index: torch says nothing of errors before
        next(batches)
    cutting = cut_soon(random, victim)

    def consume():
        for number, batch in enumerate(batches, 2):
            assert plain(batch) == [expected[i] for i in order[number * 16 : number * 16 + 16]]

    try:
        check_refused(consume)
    finally:
        cutting.join()


BUILD = """
import sys, mmapds
try:
    mmapds.build(sys.argv[1], force=True, out=sys.argv[2])
except mmapds.Error as error:
    print(error)
"""


def while_indexed(random, path, folder):
    big = Path(folder, "big" + os.path.splitext(path)[1])
    big.write_bytes(Path(path).read_bytes() * random.randrange(1, 60))
    out = Path(folder, "big.mmx")
    cutting = cut_soon(random, big)
    options = "length='chars(text)'" if path.endswith(".jsonl") else "format='prefixed', prefix='u32le'"
    ran = subprocess.run(
        [sys.executable, "-c", BUILD.replace("force=True", f"force=True, {options}"), big, out],
        capture_output=True,
        text=True,
        check=False,
    )
    cutting.join()
    assert ran.returncode == 0, ran.stderr
    assert not list(Path(folder).glob("*.tmp"))
    if out.exists():  # built before the cut
        is_refused(lambda: mmapds.open(out))


def save_view(random, path):
    """Save a view of a dataset, as bits or as an array; return its path."""
    view = os.path.join(os.path.dirname(path), "view.mmx")
    rows = [random.randrange(COUNT) for _ in range(3 * COUNT)]
    mmapds.open(path)[random.choice([sorted({0, *rows[:COUNT]}), rows])].save(view)
    return view


def one(random):
    with tempfile.TemporaryDirectory() as folder:
        sources = write_all(Path(folder))
        name = random.choice(["jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar", "megatron", "arrays"])
        opened = save_view(random, sources[name]) if random.random() < 0.3 else sources[name]
        victim = random.choice([sources[name], sources[name], f"{sources[name]}.mmx", opened])
        kind = random.choice([in_process] * 6 + [in_workers, while_indexed])
        if kind is while_indexed:
            while_indexed(random, sources[random.choice(["jsonl", "prefixed"])], folder)
        else:
            kind(random, opened, victim)


def run(seconds, seed):
    """Cut files until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed):,} files cut short: each an error, none a wrong record"
