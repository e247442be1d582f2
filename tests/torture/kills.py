"""Processes that are killed at any moment of what they write.

The old state is there then, or the new one; never none, and never a bad one. The next run leaves nothing behind, and no
worker lives on.
"""

import os
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

import mmapds
from mmapds.convert import convert
from mmapds.index.lengths import sorted_lengths
from mmapds.storage.index_file import Index
from tests.support.index_file import verify
from tests.support.tars import archive
from tests.support.torture import ends, forked, repeat

RECORDS = 20_000
KILLS = 3
"""In a case, at most; then one run that is left alone."""
PATIENCE = 120
"""Seconds after which a process hangs."""


class Indexing:
    """An index of `old` is replaced by one that also has `new`, or written where there was none."""

    source = "train.jsonl"
    options = {"length": "n"}
    files = (source, f"{source}.mmx")

    def prepare(self, folder, random):
        self.write(folder / self.source)
        self.began_with_old = random.random() < 0.7
        if self.began_with_old:
            mmapds.build(folder / self.source, columns={"old": "bytes()"})

    def write(self, path):
        path.write_bytes(b"".join(b'{"n": %d, "s": "%s"}\n' % (n % 100, b"x" * (n % 50)) for n in range(RECORDS)))

    def do(self, folder):
        mmapds.build(folder / self.source, force=True, **self.options)

    def check(self, folder, done):
        path = folder / f"{self.source}.mmx"
        if not (done or self.began_with_old or path.exists()):
            return
        index = Index(str(path))
        verify(index)
        assert index.records == len(mmapds.open(folder / self.source))
        assert set(index.columns) - {"length"} == ({"old"} if self.began_with_old else set())
        assert not done or "length" in index.columns


class IndexingTar(Indexing):
    source = "train.tar"
    options = {"length": "bytes()"}
    files = (source, f"{source}.mmx")

    def write(self, path):
        path.write_bytes(archive((f"{n:06}.txt", b"x" * (n % 100)) for n in range(RECORDS // 20)))


class AddingColumn(Indexing):
    workers = 1

    def prepare(self, folder, random):
        self.write(folder / self.source)
        mmapds.build(folder / self.source, columns={"old": "bytes()"})
        self.began_with_old = True

    def do(self, folder):
        mmapds.add_column(folder / self.source, "length", length, workers=self.workers)


class AddingColumnInWorkers(AddingColumn):
    workers = 2


def length(sample):
    return sample["n"]


class Writing:
    """An array file of 0s is replaced by one of 1s."""

    files = ("a.mma", "a.mma.mmx")

    def prepare(self, folder, random):
        self.write(folder, 0)

    def write(self, folder, value):
        with mmapds.Writer(folder / "a.mma", {"n": "int64", "x": ("uint8", (None,))}, length="x") as writer:
            for number in range(RECORDS // 4):
                writer.write({"n": value, "x": np.full(number % 50, value, np.uint8)})

    def do(self, folder):
        self.write(folder, 1)

    def check(self, folder, done):
        Index(str(folder / "a.mma.mmx"))
        try:
            ds = mmapds.open(folder / "a.mma")
        except mmapds.StaleIndexError:  # killed between the file and its index
            assert not done
            ds = mmapds.open(folder / "a.mma", build=True)
        verify(Index(str(folder / "a.mma.mmx")))
        found = {int(number) for sample in ds for number in (sample["n"], *sample["x"])}
        assert len(ds) == RECORDS // 4
        assert found in ({0}, {1})
        assert not done or found == {1}


class Converting(Writing):
    files = ("a.mma", "a.mma.mmx", "in.jsonl")

    def prepare(self, folder, random):
        super().prepare(folder, random)
        lines = (b'{"n": 1, "x": [%s]}\n' % b", ".join([b"1"] * (n % 50)) for n in range(RECORDS // 4))
        (folder / "in.jsonl").write_bytes(b"".join(lines))

    def do(self, folder):
        schema = {"n": "int64", "x": ("uint8", (None,))}
        convert(folder / "in.jsonl", folder / "a.mma", schema=schema, length="x", force=True)


class SavingView:
    """A view of the first records is replaced by one of the last."""

    files = ("train.jsonl", "train.jsonl.mmx", "v.mmx")

    def prepare(self, folder, random):
        path = folder / "train.jsonl"
        path.write_bytes(b"".join(b'{"n": %d}\n' % n for n in range(50 * RECORDS)))
        mmapds.build(path, length="n")
        self.began_with_old = random.random() < 0.7
        if self.began_with_old:
            mmapds.open(path)[: RECORDS // 2].save(folder / "v.mmx")

    def do(self, folder):
        mmapds.open(folder / "train.jsonl")[::-2].save(folder / "v.mmx")

    def check(self, folder, done):
        if not (done or self.began_with_old or (folder / "v.mmx").exists()):
            return
        ds = mmapds.open(folder / "v.mmx")
        found = len(ds), ds[0]["n"], ds[-1]["n"]
        assert found in ((RECORDS // 2, 0, RECORDS // 2 - 1), (25 * RECORDS, 50 * RECORDS - 1, 1))
        assert not done or found[1]


class Caching:
    """The order of a million lengths is written to a cache."""

    files = ("order",)
    lengths = np.arange(1_000_000, dtype=np.uint32)

    def prepare(self, folder, random):
        pass

    def do(self, folder):
        (folder / "order").unlink(missing_ok=True)  # what is up to date is not written again
        sorted_lengths(self.lengths, str(folder / "order"))

    def check(self, folder, done):
        if done:
            found = sorted_lengths(self.lengths, str(folder / "order"))
            assert np.array_equal(found.at(np.arange(len(found))), np.arange(len(found))[::-1])


JOBS = {
    each.__name__: each
    for each in (Indexing, IndexingTar, AddingColumn, AddingColumnInWorkers, Writing, Converting, SavingView, Caching)
}


def run_job(job, folder, *, after=PATIENCE, number=0):
    """Do a job in a child, kill it after some seconds if it still runs; return how it ended, its workers with it."""
    child, ending = forked(lambda: job.do(folder))
    if not ends(ending, after):
        assert number, f"it runs for {after} s"
        os.kill(child, number)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ends(ending, PATIENCE), f"its workers live on for {PATIENCE} s"
    os.close(ending)
    return status


def run(seconds, seed):
    """Kill until the time is over; see tests/support/torture.py."""
    took = dict.fromkeys(JOBS, 0.2)
    kills = Counter()

    def one(random):
        name = random.choice(list(JOBS))
        job = JOBS[name]()
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            job.prepare(folder, random)
            for _ in range(random.randint(1, KILLS)):
                number = random.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                after = took[name] * random.uniform(0, 1.1)
                status = run_job(job, folder, after=after, number=number)
                assert status in (0, -number)
                kills[name] += status != 0
                job.check(folder, status == 0)
            began = time.monotonic()
            assert run_job(job, folder) == 0
            took[name] = time.monotonic() - began
            job.check(folder, True)
            assert sorted(os.listdir(folder)) == sorted(job.files), f"{name}: left {os.listdir(folder)}"

    cases = repeat(one, seconds, seed)
    listed = ", ".join(f"{name} {count}" for name, count in sorted(kills.items()))
    return (
        f"{kills.total():,} kills in {cases:,} cases: every time the old or the new state, and no leftover ({listed})"
    )
