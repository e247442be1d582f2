"""How cost grows from 10^5 to 10^9 records: open, first index, a step, resuming, memory; ours beside torch's.

Sources are sparse: only their indexes take room, 3 GB at 10^9 records. Each size has a process of its own.
"""

import json
import subprocess
import sys
import time

import numpy as np

from bench.rivals.plots import plot
from bench.support.data import DATA, sparse_jsonl
from bench.support.memory import anonymous
from bench.support.results import ROOT

SIZES = [10**5, 10**6, 10**7, 10**8, 10**9]
TORCHS = SIZES[:3]  # torch's sampler has a list of all indices, of 8 GB at 10^8
SIZE, BATCH, RANKS, STEPS = 16, 64, 8, 150
PICTURE = ROOT / "docs" / "pictures" / "growth.svg"
WHAT = {
    "open": "open the dataset",
    "first": "first batch of a shuffled epoch",
    "step": "a step: 64 random records, as bytes",
    "resume": "resume in the middle: construction to the next batch",
    "memory": "own memory beyond the imports",
}


def sparse(records):
    return sparse_jsonl(DATA / f"growth-{records}.jsonl", records, SIZE)


def timed(work):
    begin = time.perf_counter()
    found = work()
    return found, time.perf_counter() - begin


def ours(path, records):
    """Return the figures of mmapds, in this process."""
    import mmapds

    def loader():
        sampler = mmapds.DistributedBatchSampler(ds, BATCH, num_replicas=RANKS, rank=3, seed=7)
        return mmapds.DataLoader(ds, batch_sampler=sampler, collate_fn=list)

    warm = mmapds.open(sparse(SIZES[0]), decode="bytes")
    next(iter(mmapds.DataLoader(warm, BATCH, collate_fn=list)))
    before = anonymous()
    ds, opened = timed(lambda: mmapds.open(path, decode="bytes"))
    running, made = timed(lambda: iter(loader()))
    _, first = timed(lambda: next(running))
    _, steps = timed(lambda: [next(running) for _ in range(STEPS)])
    memory = anonymous() - before
    other = loader()
    state = other.batch_sampler.state_dict(step=records // BATCH // RANKS // 2)

    def resumed():
        again = loader()
        again.batch_sampler.load_state_dict(state)
        return next(iter(again))

    return {"open": opened, "first": made + first, "step": steps / STEPS, "resume": timed(resumed)[1], "memory": memory}


def torchs(path, records):
    """Return the figures of torch's own sampler, over offsets in an array, in this process."""
    import torch.utils.data
    from torch.utils.data.distributed import DistributedSampler

    class Lines(torch.utils.data.Dataset):
        def __init__(self):
            self.offsets = np.arange(records + 1, dtype=np.int64) * SIZE
            self.file = open(path, "rb")  # noqa: SIM115 - as long as the dataset

        def __len__(self):
            return len(self.offsets) - 1

        def __getitem__(self, i):
            self.file.seek(self.offsets[i])
            return self.file.read(self.offsets[i + 1] - self.offsets[i])

    def loader():
        order = DistributedSampler(ds, RANKS, 3, seed=7)
        return torch.utils.data.DataLoader(ds, BATCH, sampler=order, collate_fn=list)

    def resumed():  # it has no state: what was had is drawn again, without being read
        again = loader()
        order = iter(again.batch_sampler)
        for _ in range(records // BATCH // RANKS // 2):
            next(order)
        return [ds[i] for i in next(order)]

    next(iter(torch.utils.data.DataLoader(range(BATCH), BATCH)))
    before = anonymous()
    ds, opened = timed(Lines)
    running, made = timed(lambda: iter(loader()))
    _, first = timed(lambda: next(running))
    _, steps = timed(lambda: [next(running) for _ in range(STEPS)])
    memory = anonymous() - before
    return {"open": opened, "first": made + first, "step": steps / STEPS, "resume": timed(resumed)[1], "memory": memory}


def figures(whose, records):
    """Return the medians of three processes."""
    command = [sys.executable, "-m", "bench.bench_growth", whose, sparse(records), str(records)]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True, cwd=ROOT).stdout) for _ in range(3)]
    return {name: sorted(run[name] for run in runs)[1] for name in runs[0]}


def shown(name, value):
    return f"{value / 1e6:,.1f} MB" if name == "memory" else f"{value * 1e3:,.2f} ms"


def test_growth(row):
    found = {"mmapds": {n: figures("ours", n) for n in SIZES}, "torch": {n: figures("torchs", n) for n in TORCHS}}
    for name, what in WHAT.items():
        for n in SIZES:
            against = f"torch: {shown(name, found['torch'][n][name])}" if n in TORCHS else ""
            row(f"{n:,} records: {what}", against, shown(name, found["mmapds"][n][name]), "")
    lines = {
        f"{whose}: {WHAT[name].partition(':')[0]}": [(n, each[name]) for n, each in of_sizes.items()]
        for name in ("first", "step", "resume")
        for whose, of_sizes in found.items()
    }
    PICTURE.write_text(plot("growth", "seconds", lines))
    assert found["mmapds"][SIZES[-1]]["memory"] < 10 * 2**20


if __name__ == "__main__":
    whose, path, records = sys.argv[1:]
    print(json.dumps({"ours": ours, "torchs": torchs}[whose](path, int(records))))
