"""What two threads of a loader deliver without a GIL, beside a Python with one.

GIL_PYTHON is an interpreter of the same version that has a GIL, and mmapds with all it needs; this one has none.
"""

import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time

import pytest

BATCH = 256
BATCHES = 300
ROUNDS = 3
WORKERS = 2
RECORDS = 100_000
GIL_PYTHON = os.environ.get("GIL_PYTHON", "")


def json_dicts(folder):
    """Records of JSON, decoded to dicts by orjson."""
    import mmapds

    path = os.path.join(folder, "records.jsonl")
    if not os.path.exists(path):
        with open(path, "w") as file:
            for i in range(RECORDS):
                words = {"id": i, "source": "word " * (i % 60), "target": "other " * (i % 50), "tokens": [i % 9] * 20}
                file.write(json.dumps(words) + "\n")
    return mmapds.open(path, build=True), list


def token_arrays(folder):
    """Records of an array file, padded."""
    import numpy as np

    import mmapds

    path = os.path.join(folder, "tokens.mma")
    if not os.path.exists(path):
        chance = np.random.default_rng(0)
        with mmapds.Writer(path, {"id": "int64", "tokens": ("int32", (None,))}) as writer:
            for i in range(RECORDS):
                writer.write({"id": i, "tokens": chance.integers(0, 32_000, int(chance.integers(20, 401)), np.int32)})
    return mmapds.open(path), mmapds.pad_collate


CASES = {"JSON dicts, by orjson": json_dicts, "an array file, `pad_collate`": token_arrays}


def rate(case, workers, folder):
    """Return the records a second that a loader delivers to a trainer that only takes them."""
    import mmapds

    ds, collate = CASES[case](folder)
    sampler = mmapds.DistributedBatchSampler(ds, BATCH, epoch_size=BATCH * BATCHES)
    loader = mmapds.DataLoader(ds, batch_sampler=sampler, collate_fn=collate, num_workers=workers)
    batches = iter(loader)
    for _ in range(BATCHES // 10):
        next(batches)
    begin = time.perf_counter()
    for _ in batches:
        pass
    return (BATCHES - BATCHES // 10) * BATCH / (time.perf_counter() - begin)


def rate_of(python, case, workers, folder):
    """Run `rate` in a new process of an interpreter; it fails if that has a GIL where it should have none."""
    off = ["-X", "gil=0"] if python == sys.executable else []  # below 3.14, orjson would switch it on
    command = [python, *off, "-m", "bench.bench_free_threaded", case, str(workers), str(folder)]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found, has_gil = json.loads(ran.stdout)
    assert has_gil == (python != sys.executable)
    return found


@pytest.mark.skipif(not GIL_PYTHON or sysconfig.get_config_var("Py_GIL_DISABLED") != 1, reason="needs both Pythons")
def test_two_threads_without_a_gil(tmp_path):
    from bench.support.results import write

    rows = []
    for case in CASES:
        rate_of(GIL_PYTHON, case, 0, tmp_path)  # writes the records
        for name, python, workers in (
            (f"with a GIL, {WORKERS} threads", GIL_PYTHON, WORKERS),
            ("without a GIL, no threads", sys.executable, 0),
        ):
            pairs = [
                (rate_of(sys.executable, case, WORKERS, tmp_path), rate_of(python, case, workers, tmp_path))
                for _ in range(ROUNDS)
            ]
            ours, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
            ratios = sorted(one / other for one, other in pairs)
            rows.append(
                f"| {case}, {WORKERS} threads without a GIL: {ours:,.0f} records/s | {name}: {theirs:,.0f} records/s "
                f"| {ours / theirs:.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}) | |"
            )
    write("bench_free_threaded", rows)


if __name__ == "__main__":
    measured = rate(sys.argv[1], int(sys.argv[2]), sys.argv[3])
    print(json.dumps([measured, getattr(sys, "_is_gil_enabled", lambda: True)()]))
