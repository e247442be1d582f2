"""Blocks of tokens, and frames around a frame, beside the readers of trainers: `python -m bench.rivals.blocks`.

Each reader has a process of its own. All take turns, so that a noisy machine is noisy for all.
"""

import argparse
import gc
import hashlib
import json
import os
import pickle
import statistics
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np

from bench.support.memory import anonymous
from bench.support.results import RESULTS, ROOT, described

from . import token_data, token_readers
from .tables import duration, size, table

ROUNDS, STARTS = 5, 3
SECONDS = 120  # that one answer may take
BATCHES = 1000  # of a round; a tenth of frames, which have more to do
CHECKED = 50


# ---- in the process of a reader ----------------------------------------------------------------------------------


class Measured:
    """What the process of a reader is asked for."""

    def __init__(self, name, folder, small):
        self.reader = token_readers.NAMES[name](folder)
        self.small = token_readers.NAMES[name](small)
        self.at = 0

    def warm(self):
        """Import all, by an epoch of a small data set; return the tokens of the epoch, counted."""
        self.small.open()
        found = np.zeros(65536, np.int64)
        for batch in self.small.batches():
            if self.small.items > 1:
                found += np.bincount(batch[0].numpy().ravel(), minlength=65536)
        self.small.samples(np.arange(2))
        return {"tokens": int(found.sum()), "left": _left(self.small, found) if self.small.items > 1 else 0}

    def first(self):
        """Open the data, and return seconds up to the first batch, and memory."""
        gc.collect()
        before, begin = anonymous(), time.perf_counter()
        self.reader.open()
        self.running = iter(self.reader.batches())
        next(self.running)
        seconds = time.perf_counter() - begin
        grown = anonymous() - before
        state = self.reader.state()
        return {
            "seconds": seconds,
            "grown": grown,
            "state": len(json.dumps(state)) if _is_plain(state) else len(pickle.dumps(state)),
            "has_state": state is not None,
            "files": sum(path.stat().st_size for path in self.reader.files()),
        }

    def check(self):
        """Compare random samples with the tokens themselves; return a digest of those of frames."""
        if self.reader.items == 1:
            return {"digest": self._digest()}
        for position in np.random.default_rng(3).integers(0, len(self.reader), CHECKED).tolist():
            expected = self.reader.expected(position)
            found = self.reader.samples(np.array([position]))[0]
            tokens, labels = np.asarray(found["tokens"]), np.asarray(found["labels"])
            assert (tokens.dtype, labels.dtype) == (np.int64, np.int64)
            assert len(tokens) == self.reader.items
            assert (tokens == expected[: len(tokens)]).all(), position
            assert (labels == expected[1 : len(labels) + 1]).all(), position
        return {}

    def _digest(self):
        """Return what has all that random samples of frames have, but for the name of the task."""
        found = hashlib.sha256()
        for sample in self.reader.samples(np.random.default_rng(3).integers(0, len(self.reader), CHECKED)):
            for name in sorted(set(sample) - {"task"}):
                kind = np.float32 if np.asarray(sample[name]).dtype.kind == "f" else np.int64
                found.update(name.encode() + np.asarray(sample[name]).astype(kind).tobytes())
        return found.hexdigest()

    def samples(self, batches):
        """Return samples a second, of random positions that were not read before."""
        if not hasattr(self, "order"):
            self.order = np.random.default_rng(2).permutation(len(self.reader))
        own = self.order[self.at : self.at + batches * self.reader.batch].reshape(batches, -1)
        self.at += own.size
        begin = time.perf_counter()
        for numbers in own:
            self.reader.samples(numbers)
        return {"rate": own.size / (time.perf_counter() - begin)}

    def batches(self, batches):
        """Return samples a second of the epoch that has begun."""
        begin = time.perf_counter()
        for _ in range(batches):
            next(self.running)
        return {"rate": batches * self.reader.batch / (time.perf_counter() - begin)}

    def memory(self):
        gc.collect()
        return {"anonymous": anonymous()}


def _is_plain(state):
    try:
        json.dumps(state)
    except TypeError:
        return False
    return True


def _left(reader, found):
    """Return how many tokens an epoch lacks; raise if it has any that the data does not."""
    own = np.bincount(reader.tokens, minlength=65536)
    assert (found <= own).all()
    return int((own - found).sum())


def answer(name, folder, small):
    """Answer what comes in, a line each."""
    measured, out = Measured(name, folder, small), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what readers print
    for line in sys.stdin:
        what, *arguments = json.loads(line)
        out.write(json.dumps(getattr(measured, what)(*arguments)) + "\n")
        out.flush()


# ---- here --------------------------------------------------------------------------------------------------------


class Process:
    """The process of a reader, which is ended where an answer takes too long."""

    def __init__(self, name, folder, small):
        environment = os.environ | {
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_CACHE": f"{folder}/cache",
            "PYTHONWARNINGS": "ignore",
        }
        command = [sys.executable, "-m", "bench.rivals.blocks", "--answer", name, folder, small]
        self.name, self.log = name, Path(folder, f"{name}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                list(map(str, command)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                cwd=folder,
            )

    def ask(self, *question):
        """Return an answer."""
        ending = threading.Timer(SECONDS, self.process.kill)
        ending.start()
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            ending.cancel()
        if not line:
            raise RuntimeError(f"{self.name}: {question}: no answer\n{self.log.read_text()[-3000:]}")
        return json.loads(line)

    def end(self):
        self.process.stdin.close()
        self.process.wait(SECONDS)
        self.process.stdout.close()


def starts(name, folder, small):
    """Return what first batches take in new processes: at first, and where the files of a first one are there."""
    found = {"cold": [], "warm": []}
    for _ in range(STARTS):
        token_readers.NAMES[name](folder).forget()
        for which in ("cold", "warm"):
            process = Process(name, folder, small)
            epoch = process.ask("warm")
            found[which].append(process.ask("first"))
            process.end()
    return found | {"epoch": epoch}


def turns(names, folder, small, batches):
    """Return rates of all readers, in rounds, each in another order than the one before."""
    processes = {name: Process(name, folder, small) for name in names}
    found = {name: {"samples": [], "batches": []} for name in names}
    digests = set()
    for process in processes.values():
        process.ask("warm")
        before = process.ask("memory")["anonymous"]
        process.ask("first")
        digests |= process.ask("check").items()
        process.ask("batches", 20)
        found[process.name]["before"] = before
    assert len(digests) <= 1, digests
    for number in range(ROUNDS):
        for what in ("samples", "batches"):
            for name in names[:: -1 if number % 2 else 1]:
                found[name][what].append(processes[name].ask(what, batches)["rate"])
    for name, process in processes.items():
        found[name]["grown"] = process.ask("memory")["anonymous"] - found[name].pop("before")
        process.end()
    return found


def measured(kinds, folder, small, batches):
    """Return the figures of readers."""
    names = [kind.__name__ for kind in kinds]
    found = {name: starts(name, folder, small) for name in names}
    for name, own in turns(names, folder, small, batches).items():
        found[name] |= own
    return found


def _median(found, which, what):
    return statistics.median(each[what] for each in found[which])


def _ratio(ours, theirs):
    """Return how many times as fast ours is, in the same rounds."""
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return f"{statistics.median(ratios):.1f}x ({min(ratios):.1f} to {max(ratios):.1f})"


def _rate(rates, items):
    middle = statistics.median(rates) * items
    return f"{middle / 1e6:,.1f}" if items > 1 else f"{middle:,.0f}"


def start_table(kinds, found):
    """Return the table of first batches, memory and files."""
    rows = []
    for kind in kinds:
        own = found[kind.__name__]
        state = f"{own['warm'][0]['state']} B" if own["warm"][0]["has_state"] else "a count, of its trainer"
        rows.append(
            (
                f"{kind.title}; {kind.package} {version(kind.package)}",
                kind.how,
                duration(_median(own, "cold", "seconds")),
                duration(_median(own, "warm", "seconds")),
                size(max(_median(own, "warm", "grown"), 0)),
                size(max(own["grown"], 0)),
                size(_median(own, "cold", "files")) if kind.made else "\u2013",
                state,
            )
        )
    head = ("", "reads", "first batch, at first", "first batch, again", "memory", "later", "files it wrote", "state")
    return table(head, rows)


def rate_table(kinds, found, ours, unit):
    """Return the table of rates, with the ratios of ours to each."""
    heads = [f"{name} to it: {what}" for what in ("samples", "batches") for name in ours.values()]
    rows = []
    for kind in kinds:
        own = found[kind.__name__]
        ratios = [_ratio(found[name][what], own[what]) for what in ("samples", "batches") for name in ours]
        rows.append((kind.title, *(_rate(own[what], kind.items) for what in ("samples", "batches")), *ratios))
    return table(("", f"{unit} a second: samples", f"{unit} a second: batches", *heads), rows)


def page(tokens, clips, load):
    """Return the page."""
    ours = {"Flat": "the file", "OfMegatron": "documents"}
    parts = [
        "# blocks",
        f"{described()} Made by `python -m bench.rivals.blocks`. The load of the machine was {load[0]:.1f} before, and "
        f"{load[1]:.1f} after.",
        "## Blocks",
        f"{token_data.LARGE:,} tokens of 2 bytes, one file under the names that each reader wants, from the page "
        f"cache; documents have 500 to 1,000 tokens. Random blocks of {token_readers.SIZE:,} tokens with labels, in "
        f"batches of {token_readers.BATCH}, in one process without workers. *Samples* are those at "
        f"{token_readers.BATCH} random positions, as a list; *batches* come out of each one's loader, as two tensors "
        f"of int64. Rates are medians of {ROUNDS} rounds of {BATCHES:,} batches, in which all readers take turns, each "
        "in a process of its own; no block is read twice by samples, or by batches. A ratio is how many times as fast "
        "ours is: the median, the least and the largest of the rounds.",
        rate_table(token_readers.TOKENS, tokens, ours, "million tokens"),
        "The time to the first shuffled batch is from opening on, in a new process that has imported all, and has read "
        "a small data set; *at first* without the files that the reader writes itself, and *again* with them. *Memory* "
        "is by how much a process's own grew until then, and *later* behind all rounds.",
        start_table(token_readers.TOKENS, tokens),
        f"Checked before: {CHECKED} random blocks of each have the tokens of the file, and labels one later. "
        f"{_epoch(tokens)}",
        "## Frames",
        f"{token_data.EPISODES * token_data.FRAMES:,} frames of {token_data.EPISODES} episodes without videos: states "
        f"and actions of {token_data.NUMBERS} numbers. A sample is a frame, with the state before it, and the 16 "
        f"actions from it on; batches of 64, and {BATCHES // 20:,} of them in a round. {CHECKED} random samples are "
        "the same, but for the text of the task.",
        rate_table(token_readers.CLIPS, clips, {"Around": "`around`"}, "frames"),
        start_table(token_readers.CLIPS, clips),
    ]
    return "\n\n".join(parts) + "\n"


def _epoch(tokens):
    """Say what an epoch of the small data set had."""
    left = [found["epoch"]["left"] for found in tokens.values()]
    return (
        f"An epoch of {token_data.SMALL:,} tokens has each token as often as the file, but for {min(left):,} to "
        f"{max(left):,} tokens that fill no block, or no batch."
    )


def main():
    """Measure, and write the page; or be the process of a reader."""
    parser = argparse.ArgumentParser(prog="python -m bench.rivals.blocks", description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "blocks.md")
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(*options.answer)
        return
    before = os.getloadavg()[0]
    large, small = token_data.tokens_folder(token_data.LARGE), token_data.tokens_folder(token_data.SMALL)
    tokens = measured(token_readers.TOKENS, large, small, BATCHES)
    frames, few = token_data.frames_folder(token_data.EPISODES), token_data.frames_folder(2)
    clips = measured(token_readers.CLIPS, frames, few, BATCHES // 20)
    kept = token_data.FOLDER / "blocks.json"
    kept.write_text(json.dumps({"tokens": tokens, "clips": clips}, indent=1))
    options.out.write_text(page(tokens, clips, (before, os.getloadavg()[0])))


if __name__ == "__main__":
    main()
