"""Zephon beside mmapds, on the same JSON Lines: `python -m bench.rivals.zephon`, in the environment of its target.

Each measurement has a process of its own. All readers take turns, so that a noisy machine is noisy for all.
"""

import argparse
import gc
import itertools
import json
import os
import statistics
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version

from bench.support.memory import anonymous
from bench.support.results import RESULTS, described

from . import zephon_readers
from .process import JobError, Limits, family, run
from .tables import NONE, duration, size, table
from .zephon_readers import BATCH, FETCH, RANKS, READERS

RATES, STARTS, FEW, RESUMED = 10**6, 10**7, 10**4, 10**5
ROUNDS = 5
LIMITS = Limits(seconds=120)
PREPARED = {"Fetching": "Zephon", "Apart": "Small"}  # by the preparation of another
STARTERS = ("Ours", "Zephon", "Fetching", "Small")  # at the larger size, where writing MDS takes too long
LANES = 24  # which 8 and 6 divide
STEPS = 30  # batches of a rank before the checkpoint: as many of each lane


# ---- jobs --------------------------------------------------------------------------------------------------------


def prepare(name, n):
    """Do what is done once; return what it takes."""
    reader = READERS[name](n)
    reader.load()
    begin = time.perf_counter()
    found = reader.prepare()
    return found | {"seconds": time.perf_counter() - begin}


def check(name, n):
    """Compare batches with the records of their numbers."""
    texts, reader = zephon_readers.texts_of_records(), READERS[name](n)
    for order in reader.orders:
        for batch in itertools.islice(reader.epoch(order), 10):
            assert len(batch) == BATCH
            assert all(zephon_readers.is_right(record, texts) for record in batch)
    return {}


def measure(name, n, rates):
    """Return the time to the first batch of a global shuffle, the memory, and records/s in each order."""
    for batch in READERS[name](FEW).epoch("global"):  # imports all
        assert batch
        break
    gc.collect()
    reader, before, begin = READERS[name](n), _own(), time.perf_counter()
    batches = reader.epoch("global")
    records = len(next(batches))
    found = {"first": time.perf_counter() - begin, "memory": _own() - before}
    if rates:
        found["global"] = _rate(reader, batches, begin, records)
        found["later"] = max(found["memory"], _own() - before)
        for order in reader.orders[1:]:
            begin = time.perf_counter()
            found[order] = _rate(reader, reader.epoch(order), begin, 0)
    return found


def _rate(reader, batches, begin, records):
    """Return records a second, of all records of the rank or of those in some seconds, from opening on."""
    for batch in batches:
        records += len(batch)
        if time.perf_counter() - begin > reader.seconds:
            break
    return records / (time.perf_counter() - begin)


def _own():
    """Return the memory of this process and of those that it started."""
    return sum(map(anonymous, family(os.getpid())))


# ---- resuming ----------------------------------------------------------------------------------------------------


def resume(name, n, lanes, ranks):
    """Save on 8 ranks, and read the rest of the epoch on others; return how often records came."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            found = _resume_ours(n, ranks) if name == "Ours" else _resume_zephon(READERS[name](n), lanes, ranks)
        except (ValueError, RuntimeError) as error:
            return {"error": f"{type(error).__name__}: {error}"}
    own = [len(numbers) for numbers in found[1]]
    seen = [record for numbers in (found[0], *found[1]) for record in numbers]
    return {
        "before": len(found[0]),
        "most": max(own),
        "least": min(own),
        "twice": len(seen) - len(set(seen)),
        "missing": n - len(set(seen)),
        "warnings": sorted({str(each.message) for each in said if str(each.message).startswith("[zephon]")}),
    }


def _resume_ours(n, ranks):
    """Return the records before, and those of each rank behind the checkpoint."""
    before, state = [], None
    for rank in range(RANKS):
        loader = zephon_readers.Ours(n).loader(RANKS, rank)
        for batch in itertools.islice(iter(loader), STEPS):
            before += [record["id"] for record in batch]
        state = loader.state_dict()  # the same on each rank
    after = []
    for rank in range(ranks):
        loader = zephon_readers.Ours(n).loader(ranks, rank)
        loader.load_state_dict(json.loads(json.dumps(state)))
        after.append([record["id"] for batch in loader for record in batch])
    return before, after


def _resume_zephon(reader, lanes, ranks):
    """Return the same of Zephon; all ranks save at the same time, since a checkpoint needs the state of each."""
    shared = {"chunk": 1000, "canonical_replicas": lanes, "run_id": f"{lanes}-{time.time()}"}
    pipelines = [reader.pipeline("global", RANKS, rank, **shared) for rank in range(RANKS)]
    running = [iter(each) for each in pipelines]
    before = []
    for batches in running:
        before += _numbers(itertools.islice(batches, STEPS))
    with ThreadPoolExecutor(RANKS) as pool:
        state = next(iter(pool.map(lambda each: each.checkpoint(), pipelines)))
    for batches in running:
        batches.close()
    after = []
    shared["run_id"] += "-resumed"
    for rank in range(ranks):
        pipeline = reader.pipeline("global", ranks, rank, **shared)
        pipeline.restore(state)
        after.append(_numbers(pipeline))
    return before, after


def _numbers(batches):
    return [record["id"] for batch in batches for record in zephon_readers.payloads(batch)]


# ---- here --------------------------------------------------------------------------------------------------------


def job(function, **arguments):
    """Run a job; a failure is said, and ends no other."""
    try:
        return run(f"bench.rivals.zephon:{function}", LIMITS, **arguments)
    except JobError as error:
        print(function, arguments, error, flush=True)
        return {"stopped": "failed"}


def in_turn(names, n, rounds, rates):
    """Return what all readers take, in rounds, each in another order than the one before."""
    found = {name: {"rounds": []} for name in names}
    for name in names:
        if name not in PREPARED:
            found[name]["prepare"] = job("prepare", name=name, n=n)
        found[name]["check"] = job("check", name=name, n=n)
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            found[name]["rounds"].append(job("measure", name=name, n=n, rates=rates))
            print(n, number, name, found[name]["rounds"][-1], flush=True)
    return found


def _median(rounds, what):
    return statistics.median(each[what] for each in rounds)


def _spread(rounds, what, show):
    """Return a median, with the least and the largest value."""
    stopped = next((each["stopped"] for each in rounds if "stopped" in each), None)
    if stopped or what not in rounds[0]:
        return stopped or NONE
    values = [each[what] for each in rounds]
    return f"{show(statistics.median(values))} ({show(min(values))} to {show(max(values))})"


def _ratio(ours, theirs, mine, yours, *, less):
    """Return how many times as good ours is in each round, and who wins.

    Args:
      mine, yours: the names of the figures.
      less: whether less is better.
    """
    if any("stopped" in each or yours not in each for each in theirs):
        return NONE
    ratios = [a[mine] / b[yours] for a, b in zip(ours, theirs, strict=True)]
    ratios = sorted(1 / ratio if less else ratio for ratio in ratios)
    middle = statistics.median(ratios)
    return (
        f"{_times(middle)}x ({_times(ratios[0])} to {_times(ratios[-1])}){'' if middle >= 1 else ', **Zephon wins**'}"
    )


def _times(ratio):
    return f"{ratio:,.0f}" if ratio >= 100 else f"{ratio:.3g}"


def _rate_shown(rate):
    return f"{rate:,.0f}"


def rate_tables(found):
    """Return the tables of rates, with their ratios to ours."""
    ours = found["Ours"]["rounds"]
    rows, ratios = [], []
    for name, own in found.items():
        rounds = own["rounds"]
        cells = [_spread(rounds, order, _rate_shown) for order in ("global", "auto", "default")]
        rows.append((READERS[name].title, *cells))
        if name != "Ours":
            cells = [_ratio(ours, rounds, "global", order, less=False) for order in ("global", "auto", "default")]
            ratios.append((READERS[name].title, *cells))
    yield table(("records/s of a rank", "shuffled globally", "blocks, `auto`", "Zephon's default"), rows)
    yield "How many times as fast mmapds, shuffled globally, is in the same round:"
    yield table(("", "shuffled globally", "blocks, `auto`", "Zephon's default"), ratios)


def start_table(found, memory):
    """Return the table of what is prepared, first batches and memory."""
    ours, rows = found["Ours"]["rounds"], []
    for name, own in found.items():
        rounds = own["rounds"]
        rows.append(
            (
                READERS[name].title,
                _prepared(own, found["Ours"]["prepare"]),
                _spread(rounds, "first", duration),
                NONE if name == "Ours" else _ratio(ours, rounds, "first", "first", less=True),
                _spread(rounds, memory, lambda bytes_: size(max(bytes_, 0))),
            )
        )
    return table(("", "preparing, writes", "first batch", "how many times as soon mmapds is", "own memory"), rows)


def _prepared(own, ours):
    """Return what preparing takes and writes, and what it wins."""
    if "prepare" not in own:
        return "the same"
    once = own["prepare"]
    if "stopped" in once:
        return once["stopped"]
    cells = duration(once["seconds"]), _bytes(once["written"])
    less = [once[what] < ours[what] for what in ("seconds", "written")]
    return ", ".join(f"**{cell}: Zephon wins**" if wins else cell for cell, wins in zip(cells, less, strict=True))


def _bytes(number):
    return size(number) if number >= 10**5 else f"{number / 1e3:.1f} kB"


def resume_table(found):
    """Return the table of checkpoints that were resumed at other ranks."""
    rows = []
    for title, own in found.items():
        if "error" in own or "stopped" in own:
            rows.append((title, *[NONE] * 3, own.get("error") or own["stopped"]))
            continue
        rest = f"{own['least']:,} to {own['most']:,}"
        rows.append((title, f"{own['missing']:,}", f"{own['twice']:,}", rest, _first(own["warnings"])))
    return table(("", "records missing", "twice", "a rank's rest", "it says"), rows)


def _first(said):
    return said[0].split(". ")[0].replace("[zephon] ", "") if said else NONE


def resumes():
    """Return what became of checkpoints."""
    n = RESUMED
    zephon = {f"Zephon, {lanes} lanes, 8 to {ranks}": (lanes, ranks) for lanes, ranks in ((LANES, 6), (8, 6), (8, 16))}
    found = {"mmapds, 8 to 6": job("resume", name="Ours", n=n, lanes=0, ranks=6)}
    for title, (lanes, ranks) in zephon.items():
        found[title] = job("resume", name="Fetching", n=n, lanes=lanes, ranks=ranks)
    return found


def page(rates, starts, resumed, load, options):
    """Return the page."""
    split = rates["Small"]["prepare"].get("index", 0)
    parts = [
        "# Zephon",
        f"{described()} Zephon {version('zephon')}, MosaicML Streaming {version('mosaicml-streaming')}. Made by "
        f"`python -m bench.rivals.zephon`. The load of the machine was {load[0]:.1f} before, and {load[1]:.1f} after.",
        "JSON Lines of about 300 bytes a record, from memory. The shards have "
        f"{zephon_readers.LARGE_SHARD:,} records, 64 MB. A batch is {BATCH} dicts of rank 0 of {RANKS}. Batches were "
        f"compared with the records of their numbers first. Figures are medians of {options.rounds} rounds, with the "
        "least and the largest. In each round each reader has a process of its own. Preparing is measured once.",
        "mmapds reads the shards as they are: `mmapds.DataLoader` with 2 threads, `DistributedBatchSampler`, "
        "`collate_fn=list`. It shuffles all records.",
        "Zephon has an index built ahead. Its threads, its 4 readers and its queues are those of its defaults, which "
        "its documentation calls a reasonable start. `auto` shuffles blocks of 8 shards. The default shuffles shards, "
        "and reads each in order. For each fetch of JSON Lines, Zephon reads a shard from its first line on. So it "
        f"gains by large fetches. `fetch(max_batch={FETCH})` is as large as its chunks by default, and was better "
        "than 1,024 and 4,096; its default is 64. Chunks and fetches of 65,536 gave 1.6 times the rate, and a first "
        "batch that was 1.4 to 2 times as late. Another process (`mtp_mode`) is what it advises for production runs. "
        "It prefers binary formats to JSON Lines: so there is MDS, too. Preparing shards of "
        f"{zephon_readers.SMALL_SHARD:,} records copies all; their index alone took {duration(split)}.",
        f"## {options.rates:,} records",
        "A rate is that of the whole share of a rank, from opening on; where fetches are of 64, that of 3 seconds.",
        *rate_tables(rates),
        "The first batch is that of a global shuffle, from opening on, in a process that has imported all. Memory is "
        "what the process has beyond imports at the end of that epoch, or at its first batch where that is more.",
        start_table(rates, "later"),
        f"## {options.starts:,} records",
        "Memory is that at the first batch. A measurement may take 120 seconds of processors. MDS is left out: its "
        f"writer took {duration(rates['Mds']['prepare']['seconds'])} for {options.rates:,} records.",
        start_table(starts, "memory"),
        "## Resuming",
        f"{RESUMED:,} records, shuffled globally. {RANKS} ranks read {STEPS} batches each, and save. Other ranks read "
        "the rest of the epoch. Zephon's chunks have 1,000 records here, so that each lane has several.",
        resume_table(resumed),
    ]
    return "\n\n".join(parts) + "\n"


def main():
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m bench.rivals.zephon", description=__doc__)
    parser.add_argument("--rates", type=lambda text: int(float(text)), default=RATES, help="records of the rates")
    parser.add_argument("--starts", type=lambda text: int(float(text)), default=STARTS, help="of the first batches")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", default=RESULTS / "zephon.md")
    options = parser.parse_args()
    before = os.getloadavg()[0]
    for n in (FEW, RESUMED, options.rates, options.starts):
        zephon_readers.write_source(n)
    for name in READERS:
        job("prepare", name=name, n=FEW)
    for name in ("Ours", "Fetching"):
        job("prepare", name=name, n=RESUMED)
    rates = in_turn(list(READERS), options.rates, options.rounds, True)
    resumed = resumes()
    print(resumed, flush=True)
    starts = in_turn(list(STARTERS), options.starts, options.rounds, False)
    text = page(rates, starts, resumed, (before, os.getloadavg()[0]), options)
    with open(options.out, "w") as file:
        file.write(text)


if __name__ == "__main__":
    main()
