"""Restoring a sampler in mid-epoch, beside lhotse: `python -m bench.rivals.lhotse_resume`, in that of `zephon`.

Each measurement has a process of its own, and samplers take turns. The next batch must be that of a sampler that was
not restored.
"""

import argparse
import copy
import itertools
import json
import os
import pickle
import statistics
import time
from importlib.metadata import version

import numpy as np

from bench.support.data import DATA, log_normal
from bench.support.memory import anonymous
from bench.support.results import RESULTS, described

from .process import Limits, run
from .tables import NONE, duration, power, size, table

SIZES, ROUNDS, SECONDS, FEW = (10**5, 10**6, 10**7), 5, 120, 1000
LIMITS = Limits(seconds=SECONDS)
TOKEN, BUDGET = 0.01, 16_384  # seconds of a token, and tokens of a batch


def folder(n):
    return DATA / "lhotse" / str(n)


def write(n):
    """Write a manifest of cuts, and their lengths, unless they are there."""
    place = folder(n)
    if not (place / "lengths.npy").exists():
        place.mkdir(parents=True, exist_ok=True)
        lengths = log_normal(n)
        line = '{"id": "%d", "start": 0, "duration": %.2f, "channel": 0, "supervisions": [], "type": "MonoCut"}\n'
        with open(place / "cuts.jsonl", "w") as file:
            file.writelines(line % (number, length * TOKEN) for number, length in enumerate(lengths.tolist()))
        np.save(place / "lengths.npy", lengths)


# ---- samplers ----------------------------------------------------------------------------------------------------


class Ours:
    title, package = "mmapds `TokenBudgetBatchSampler`", "mmap-datasets"

    @staticmethod
    def sampler(n):
        import mmapds

        lengths = np.load(folder(n) / "lengths.npy", mmap_mode="r")
        return mmapds.TokenBudgetBatchSampler(lengths, BUDGET, num_replicas=1, rank=0)

    @staticmethod
    def numbers(batch):
        return list(batch)

    state = staticmethod(lambda sampler, step: sampler.state_dict(step=step))


class Buckets:
    title, package = "lhotse `DynamicBucketingSampler`, a lazy manifest", "lhotse"

    @staticmethod
    def sampler(n):
        from lhotse import CutSet
        from lhotse.dataset import DynamicBucketingSampler

        cuts = CutSet.from_jsonl_lazy(folder(n) / "cuts.jsonl")
        return DynamicBucketingSampler(cuts, max_duration=BUDGET * TOKEN, shuffle=True, world_size=1, rank=0)

    @staticmethod
    def numbers(batch):
        return [int(cut.id) for cut in batch]

    state = staticmethod(lambda sampler, _: sampler.state_dict())


class Simple(Buckets):
    title = "lhotse `SimpleCutSampler`, a manifest in memory, no buckets"

    @staticmethod
    def sampler(n):
        from lhotse import CutSet
        from lhotse.dataset import SimpleCutSampler

        cuts = CutSet.from_jsonl(folder(n) / "cuts.jsonl")
        return SimpleCutSampler(cuts, max_duration=BUDGET * TOKEN, shuffle=True, world_size=1, rank=0)


SAMPLERS = {each.__name__: each for each in (Ours, Buckets, Simple)}


# ---- jobs --------------------------------------------------------------------------------------------------------


def save(name, n):
    """Write a state of about the middle of an epoch; return the batch that comes next, and the step."""
    kind = SAMPLERS[name]
    step = int(log_normal(n).sum()) // BUDGET // 2
    sampler = kind.sampler(n)
    batches = iter(sampler)
    for _ in itertools.islice(batches, step):
        pass
    state = copy.deepcopy(kind.state(sampler, step))
    (folder(n) / f"{name}.state").write_bytes(pickle.dumps(state))
    return {"batch": kind.numbers(next(batches)), "step": step}


def resume(name, n):
    """Return the next batch of a restored sampler, the seconds from its construction on, and the memory."""
    kind = SAMPLERS[name]
    next(iter(kind.sampler(FEW)))  # imports all
    state = pickle.loads((folder(n) / f"{name}.state").read_bytes())
    before, begin = anonymous(), time.perf_counter()
    sampler = kind.sampler(n)
    sampler.load_state_dict(state)
    batch = next(iter(sampler))
    seconds = time.perf_counter() - begin
    return {"batch": kind.numbers(batch), "seconds": seconds, "memory": max(anonymous() - before, 0)}


def job(function, **arguments):
    return run(f"bench.rivals.lhotse_resume:{function}", LIMITS, **arguments)


# ---- here --------------------------------------------------------------------------------------------------------


def measured(sizes, rounds):
    """Return what restoring takes: a list of rounds, or None where it takes too long, by sampler and size."""
    found = {name: {} for name in SAMPLERS}
    for n in sizes:
        write(n)
        wanted = {name: _saved(name, n, found[name]) for name in SAMPLERS}
        found |= {name: found[name] | {n: [] if wanted[name] else None} for name in SAMPLERS}
        for number, name in itertools.product(range(rounds), SAMPLERS):
            if found[name][n] is None:
                continue
            one = job("resume", name=name, n=n)
            print(n, number, name, {key: value for key, value in one.items() if key != "batch"}, flush=True)
            if "stopped" in one:
                found[name][n] = None
            else:
                assert one.pop("batch") == wanted[name]["batch"], (name, n)
                found[name][n].append(one)
    return found


def _saved(name, n, before):
    """Return a saved state, or None where a tenth of the records took a tenth of the limit already."""
    slowest = max((one["seconds"] for rounds in before.values() for one in rounds or ()), default=0)
    if None in before.values() or slowest > SECONDS / 10:
        return None
    answer = job("save", name=name, n=n)
    return None if "stopped" in answer else answer


def _cell(rounds):
    if not rounds:
        return NONE
    times, memory = [one["seconds"] for one in rounds], statistics.median(one["memory"] for one in rounds)
    spread = f"{duration(min(times))} to {duration(max(times))}"
    return f"{duration(statistics.median(times))} ({spread}), {size(memory)}"


def _ratio(ours, theirs):
    if not ours or not theirs:
        return NONE
    ratios = [b["seconds"] / a["seconds"] for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):,.0f}x ({min(ratios):,.0f} to {max(ratios):,.0f})"


def page(found, sizes, rounds, load):
    """Return the page."""
    heads = [power(n) for n in sizes]
    rows = [(kind.title, *(_cell(found[name][n]) for n in sizes)) for name, kind in SAMPLERS.items()]
    others = [name for name in SAMPLERS if name != "Ours"]
    ratios = [(SAMPLERS[name].title, *(_ratio(found["Ours"][n], found[name][n]) for n in sizes)) for name in others]
    return "\n\n".join(
        [
            "# Resuming beside lhotse",
            f"{described()} lhotse {version('lhotse')}. Made by `python -m bench.rivals.lhotse_resume`. The load of "
            f"the machine was {load[0]:.1f} before, and {load[1]:.1f} after.",
            "A sampler is restored in the middle of an epoch of n records. The time is from its construction to its "
            "next batch, in a process that has imported all, with all files in memory. That batch was compared with "
            f"the one of a sampler that was not restored. Figures are medians of {rounds} rounds in turn, with the "
            "least and the largest. Memory is what the process has beyond imports.",
            f"Batches have up to {BUDGET:,} tokens, with padding. The lazy manifest of lhotse is JSON Lines. This "
            "release has no index of it, and reads again what was read before. Its repository has indexes since pull "
            "request 1570; they are not measured here. `SimpleCutSampler` reads the whole "
            "manifest into memory, and has no buckets. mmapds maps an array of lengths. \u2013 is what takes "
            f"more than {SECONDS} s, or where a tenth of the size took more than {SECONDS // 10} s.",
            table(("", *heads), rows),
            "How many times as soon mmapds has the batch, in the same rounds:",
            table(("", *heads), ratios) + "\n",
        ]
    )


def main():
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.rivals.lhotse_resume", description=__doc__)
    parser.add_argument("--sizes", type=json.loads, default=SIZES, help="such as [1000, 10000]")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", default=RESULTS / "lhotse_resume.md")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    write(FEW)
    found = measured(options.sizes, options.rounds)
    with open(options.out, "w") as file:
        file.write(page(found, options.sizes, options.rounds, (before, os.getloadavg()[0])))


if __name__ == "__main__":
    main()
