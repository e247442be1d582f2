"""What processes hold in memory."""

import os
import random
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import mmapds
from bench.support.indexing import forget_index

READS = 100_000
BATCH = 250
WORKERS = 4
OPEN = mmapds.open
"""Loads what reads datasets in every worker, also where there is no data, so that modules are not counted as data."""


def anonymous(pid: int | str = "self", kind: str = "Anonymous") -> int:
    """Bytes of memory that are a process's own; mapped file pages are shared, and the kernel may take them back.

    To add up processes, take the kind "Pss_Anon": it counts a page that forked processes share once in all.
    """
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{kind}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"smaps_rollup has no {kind} line")


def peak_of_indexing(*arguments):
    """The most anonymous memory that an indexing process is seen to have."""
    forget_index(arguments[0])
    return peak_of("-m", "mmapds.index", "--quiet", "--force", *arguments)


def peak_of(*arguments):
    """The most anonymous memory that a process of Python is seen to have, sampled every few milliseconds."""
    process = subprocess.Popen([sys.executable, *arguments])
    peak = 0
    while process.poll() is None:
        try:
            peak = max(peak, anonymous(process.pid))
        except (FileNotFoundError, ProcessLookupError, RuntimeError):
            break
        time.sleep(0.002)
    assert process.wait() == 0
    return peak


class Reads:
    """A sampler of random record numbers, the same for everyone."""

    def __init__(self, records, reads=READS):
        self.records, self.reads = records, reads

    def __iter__(self):
        generator = random.Random(0)
        return (generator.randrange(self.records) for _ in range(self.reads))

    def __len__(self):
        return self.reads


def report_memory(samples):
    """Collate to what the worker holds now."""
    return len(samples), os.getpid(), anonymous()


def worker_memory(dataset, records, method, workers=WORKERS, reads=READS):
    """Anonymous memory of each worker of a DataLoader after its last batch of random reads, smallest first."""
    return _last_memory(dataset, workers, reads, sampler=Reads(records, reads), multiprocessing_context=method)


def stream_memory(dataset, workers=WORKERS, reads=READS):
    """The same of spawned workers that read a stream, once as many records have come."""
    return _last_memory(dataset, workers, reads, multiprocessing_context="spawn")


def _last_memory(dataset, workers, reads, **options):
    from torch.utils.data import DataLoader  # which processes that only index do without

    loader = DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=report_memory, **options)
    last = {}
    for _, pid, memory in islice(loader, -(-reads // BATCH)):
        last[pid] = memory
    assert len(last) == workers
    return sorted(last.values())
