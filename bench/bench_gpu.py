"""How long a GPU that trains a small language model waits for data, and what the job holds in memory.

    python bench/bench_gpu.py --seconds 15 --out DIR   # a table, DIR/gpu.json and DIR/bench_gpu.md
    python bench/bench_gpu.py --tiny --seconds 2       # a smaller model, on a CPU too

**Method.** Two CUDA events on the compute stream enclose the kernels of each step. The stream first waits for the copy
of the batch. So the GPU waits from the last event of a step to the first one of the next: for the loader, and for the
part of the copy that does not overlap. The share is the sum of these times, over the time from the first step to the
last. The trainer is one step ahead of the GPU at most.

Every contest has a process of its own. All have the same seed, and must deliver the same batches. A contest without a
loader, over batches that are on the GPU, shows what launching alone costs.
"""

import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import time
import warnings
import zlib
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import pytest
import torch
from torch import nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parent.parent))  # as a script; at the end, so that an installed mmapds is imported

import mmapds
from bench.support import results

WARM_UP = 20  # steps at the start, for workers, cuBLAS and allocators
HASHED = 8  # batches that all loaders must agree on
DRAIN = 2.0  # seconds without a trainer
THREADS, PROCESSES = 4, 8
TARGET = 0.01
LIMIT = 90  # seconds that a contest may take beyond its own


class Size(NamedTuple):
    """A model and its data."""

    file: int  # bytes of JSON Lines
    vocabulary: int
    length: int  # tokens of a row; records have half as many to as many
    rows: int  # of a batch
    width: int
    layers: int


LARGE = Size(500_000_000, 16_384, 1024, 64, 384, 6)
TINY = Size(2_000_000, 128, 64, 4, 32, 1)


# ---- data ------------------------------------------------------------------------------------------------------


def write_data(folder: Path, size: Size) -> int:
    """Write the same records as JSON Lines, `.mma`, zstd in frames, and a flat array for `memmap`; return how many."""
    generator = np.random.default_rng(0)
    starts, written = [0], 0
    schema = {"tokens": ("int32", (None,))}
    with (
        open(folder / "train.jsonl", "wb") as lines,
        open(folder / "tokens.bin", "wb") as flat,
        mmapds.Writer(folder / "train.mma", schema) as arrays,
    ):
        while written < size.file:
            count = int(generator.integers(size.length // 2, size.length + 1))
            # Small numbers are the frequent ones, as tokenizers give them, so there is something to learn.
            tokens = (size.vocabulary ** generator.random(count)).astype(np.int32) - 1
            written += lines.write(orjson.dumps({"tokens": tokens}, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n")
            flat.write(tokens.tobytes())
            arrays.write({"tokens": tokens})
            starts.append(starts[-1] + count)
    np.save(folder / "starts.npy", np.array(starts))
    mmapds.seekable(folder / "train.jsonl", folder / "train.jsonl.zst")
    mmapds.build(folder / "train.jsonl")
    return len(starts) - 1


class Lines(torch.utils.data.Dataset):
    """JSON Lines as people read them: a list of offsets, seek, readline, `json.loads`."""

    def __init__(self, path: Path) -> None:
        self.path, self.file = path, None
        with open(path, "rb") as file:
            self.offsets = list(itertools.accumulate(map(len, file), initial=0))[:-1]

    def __len__(self) -> int:
        return len(self.offsets)

    def __getitem__(self, i: int) -> torch.Tensor:
        if self.file is None:  # each worker needs its own
            self.file = open(self.path, "rb")  # noqa: SIM115
        self.file.seek(self.offsets[i])
        return torch.tensor(json.loads(self.file.readline())["tokens"], dtype=torch.int32)


class Memmap(torch.utils.data.Dataset):
    """Ragged arrays as people read them: one flat `numpy.memmap`, and where records start."""

    def __init__(self, folder: Path) -> None:
        self.tokens = np.memmap(folder / "tokens.bin", np.int32, "r")
        self.starts = np.load(folder / "starts.npy")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.from_numpy(self.tokens[self.starts[i] : self.starts[i + 1]].copy())


def pad(samples: list[torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """Collate as people do, to rows of one length."""
    rows = torch.full((len(samples), length), -1, dtype=torch.int32)
    for row, sample in zip(rows, samples, strict=True):
        row[: len(sample)] = sample
    return {"tokens": rows}


# ---- loaders ---------------------------------------------------------------------------------------------------


def ours(name, folder, size, pin):
    """`mmapds.DataLoader` with threads."""
    dataset, collate = open_ours(folder / name, size)
    sampler = mmapds.DistributedBatchSampler(dataset, size.rows, seed=0)
    return mmapds.DataLoader(
        dataset, batch_sampler=sampler, num_workers=THREADS, collate_fn=collate, pin_memory=pin
    ), sampler


def theirs(name, folder, size, pin):
    """torch's DataLoader with processes, over what people write for such a file; over ours for zstd."""
    if name == "train.jsonl.zst":
        dataset, collate = open_ours(folder / name, size)
    else:
        dataset = Lines(folder / name) if name == "train.jsonl" else Memmap(folder)
        collate = partial(pad, length=size.length)
    sampler = mmapds.DistributedBatchSampler(dataset, size.rows, seed=0)
    return torch.utils.data.DataLoader(
        dataset, batch_sampler=sampler, num_workers=PROCESSES, collate_fn=collate, pin_memory=pin
    ), sampler


def open_ours(path, size):
    """A dataset of mmapds, and how its samples become a batch."""
    fields = mmapds.Fields({"tokens": "int32"})
    collate = partial(mmapds.pad_collate, pad_value=-1, pad_to_multiple_of=size.length, lengths=False)
    return mmapds.open(path, decode=None if path.suffix == ".mma" else fields, build=True), collate


def of_all_epochs(loader, sampler):
    """Yield the batches of one epoch after another."""
    for epoch in itertools.count():
        sampler.set_epoch(epoch)
        yield from loader


def on_the_device(_, folder, size, pin):
    """Batches that are on the GPU already: no loader."""
    batches = list(itertools.islice(of_all_epochs(*ours("train.mma", folder, size, pin)), HASHED))
    return [{"tokens": each["tokens"].to(DEVICE)} for each in batches], None


FORMATS = {
    "train.jsonl": ("JSON Lines", "a list of offsets and `json.loads`"),
    "train.mma": ("`.mma` arrays", "a `numpy.memmap`"),
    "train.jsonl.zst": ("`.jsonl.zst`", "the same dataset of mmapds"),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CONTESTS = {"no loader": (on_the_device, "")}
for _name in FORMATS:
    CONTESTS |= {f"{_name} mmapds": (ours, _name), f"{_name} torch": (theirs, _name)}
"""Name of a contest to what makes a loader and its sampler, and the file."""


# ---- training --------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(width // 64, 1)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.attend(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    """A language model: 17 million parameters where it is `LARGE`."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.embed = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Parameter(0.02 * torch.randn(size.length, size.width))
        self.blocks = nn.Sequential(*(Block(size.width) for _ in range(size.layers)), nn.LayerNorm(size.width))
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens):
        """Return the loss of a batch, int32 of shape (rows, length), -1 in the padding."""
        x = self.blocks(self.embed(tokens.clamp(min=0)) + self.places)
        logits = functional.linear(x[:, :-1], self.embed.weight)
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten().long(), ignore_index=-1)


class Moment:
    """A CUDA event, where there is no CUDA: work is done when it is issued."""

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: "Moment") -> float:
        return 1e3 * (other.at - self.at)


class Trainer:
    """Trains, one step ahead of the GPU, and marks where the GPU begins and ends each step."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.is_cuda = DEVICE == "cuda"
        self.model = GPT(size).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.copies = torch.cuda.Stream() if self.is_cuda else None
        self.steps, self.losses, self.waited = [], [], 0.0
        self.tokens = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def step(self, batches):
        """Take a batch, and issue the kernels of a step; return the batch."""
        asked = time.perf_counter()
        batch = next(batches)["tokens"]
        self.waited += time.perf_counter() - asked
        tokens = self.copied(batch)
        begin, end = self.event(), self.event()
        begin.record()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=self.is_cuda):
            loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.tokens += (tokens >= 0).sum()
        end.record()
        self.losses.append(loss.detach())
        self.steps.append((begin, end))
        if len(self.steps) > 1:
            self.steps[-2][1].synchronize()
        return batch

    def copied(self, batch):
        """Copy on a stream of its own, while the compute stream is busy; that waits for the copy alone."""
        if not self.is_cuda:
            return batch
        with torch.cuda.stream(self.copies):
            tokens = batch.to(DEVICE, non_blocking=True)
        torch.cuda.current_stream().wait_stream(self.copies)
        tokens.record_stream(torch.cuda.current_stream())
        return tokens

    def event(self):
        return torch.cuda.Event(enable_timing=True) if self.is_cuda else Moment()

    def reset(self) -> None:
        """Begin to count."""
        self.finish()
        self.steps.clear()
        self.waited = 0.0
        self.tokens.zero_()

    def finish(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()

    def figures(self) -> dict[str, float]:
        """Of the time from the first step since `reset` to the last."""
        self.finish()
        steps = self.steps
        total = steps[0][0].elapsed_time(steps[-1][1])
        gaps = [one[1].elapsed_time(other[0]) for one, other in itertools.pairwise(steps)]
        losses = torch.stack(self.losses).tolist()
        assert all(map(math.isfinite, losses))
        return {
            "steps": len(steps),
            "seconds": total / 1e3,
            "waits": sum(gaps) / total,
            "longest_wait_ms": max(gaps),
            "step_ms": sum(begin.elapsed_time(end) for begin, end in steps) / len(steps),
            "blocked_in_next": self.waited / (total / 1e3),
            "tokens_per_second": self.tokens.item() / (total / 1e3),
            "first_loss": losses[0],
            "last_loss": sum(losses[-10:]) / len(losses[-10:]),
        }


def compete(name: str, folder: Path, size: Size, seconds: float) -> dict[str, object]:
    """Train from one loader, and return its figures."""
    # The order is a full shuffle everywhere, which reads a frame of zstd for each record: the warning is right.
    warnings.filterwarnings("ignore", "each block of the compressed sources")
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    (make, file), trainer, checksum = CONTESTS[name], Trainer(size), 0
    loader, sampler = make(file, folder, size, DEVICE == "cuda")
    batches = itertools.cycle(loader) if sampler is None else of_all_epochs(loader, sampler)
    for number in range(WARM_UP):
        batch = trainer.step(batches)
        if number < HASHED:
            checksum = zlib.crc32(batch.cpu().numpy(), checksum)
    trainer.reset()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds or len(trainer.steps) < WARM_UP:
        trainer.step(batches)
    figures = trainer.figures()
    workers = [each.pid for each in multiprocessing.active_children()]
    figures |= {"checksum": checksum, "anonymous": memory("Anonymous", workers), "own": memory("Pss_Anon", workers)}
    if sampler is not None:
        figures["drained_tokens_per_second"] = drained(batches)
    if DEVICE == "cuda":
        figures["gpu_memory"] = torch.cuda.max_memory_allocated()
    return figures


def drained(batches):
    """Tokens a second that the loader delivers without a trainer."""
    count, begin = 0, time.perf_counter()
    while (seconds := time.perf_counter() - begin) < DRAIN:
        count += int((next(batches)["tokens"] >= 0).sum())
    return count / seconds


def memory(kind: str, workers: list[int]) -> int | None:
    """Bytes of memory of this process and its workers. "Pss_Anon" counts a page that forks share once in all."""
    total = 0
    for pid in [os.getpid(), *workers]:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # some sandboxes lack it
            return None
        total += sum(int(line.split()[1]) for line in lines if line.startswith(kind + ":")) * 1024
    return total


# ---- the whole -------------------------------------------------------------------------------------------------


def run(folder: Path, seconds: float, tiny: bool):
    """Write the data, and run every contest in a process of its own; yield all figures by contest after each."""
    begin, found = time.perf_counter(), {}
    records = write_data(folder, TINY if tiny else LARGE)
    say(f"{records:,} records written", begin)
    for name in CONTESTS:
        command = [sys.executable, __file__, "--contest", name, "--data", str(folder), "--seconds", str(seconds)]
        try:
            done = subprocess.run(
                command + ["--tiny"] * tiny, stdout=subprocess.PIPE, check=True, timeout=seconds + LIMIT
            )
            found[name] = json.loads(done.stdout.splitlines()[-1])
            say(f"{name}: waits {found[name]['waits']:.3%}", begin)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            say(f"{name}: {error}", begin)  # the figures of others are worth having
        yield found


def say(text: str, begin: float) -> None:
    print(f"[{time.perf_counter() - begin:5.0f} s] {text}", file=sys.stderr, flush=True)


def faults(found: dict[str, dict[str, object]]) -> list[str]:
    """What is wrong with the contests: one that failed, unequal batches, a loss that does not fall."""
    text = [f"{name}: no figures" for name in CONTESTS if name not in found]
    if len({each["checksum"] for each in found.values()}) > 1:
        text.append(f"batches differ: { ({name: each['checksum'] for name, each in found.items()}) }")
    flat = [name for name, each in found.items() if each["last_loss"] >= each["first_loss"]]
    return text + [f"{name}: the loss did not fall" for name in flat]


def lines(found: dict[str, dict[str, object]]):
    """Yield the lines of the table: what, against what, figure, target."""
    base = found.get("no loader")
    if base:
        speed = f"{base['tokens_per_second'] / 1e6:.2f} M tokens/s, steps of {base['step_ms']:.1f} ms"
        yield "no loader, batches on the GPU: the GPU waits", "", f"{base['waits']:.2%}; {speed}", ""
    for name, (what, rival) in FORMATS.items():
        pair = [found.get(f"{name} {who}") for who in ("mmapds", "torch")]
        against = f"torch's DataLoader, {PROCESSES} processes, {rival}"
        for of, figure, target in (
            ("the GPU waits", lambda x: f"{x['waits']:.2%}", f"<= {TARGET:.0%}"),
            ("the longest wait", lambda x: f"{x['longest_wait_ms']:.1f} ms", ""),
            ("tokens/s", lambda x: f"{x['tokens_per_second'] / 1e6:.2f} M", ""),
            ("steps/s, of those without a loader", lambda x: f"{pace(x) / pace(base):.1%}" if base else "-", ""),
            ("tokens/s without a trainer", lambda x: f"{x['drained_tokens_per_second'] / 1e6:.1f} M", ""),
            ("own memory of the job", lambda x: f"{x['own'] / 1e6:,.0f} MB" if x["own"] else "-", ""),
        ):
            mine, rivals = ("-" if each is None else figure(each) for each in pair)
            yield f"{what}, `mmapds.DataLoader`, {THREADS} threads: {of}", against, f"{mine} ({rivals})", target


def pace(figures):
    """Steps a second."""
    return figures["steps"] / figures["seconds"]


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU that torch.cuda finds")
def test_a_gpu_waits_for_data(row, tmp_path):
    *_, found = run(tmp_path, 15, tiny=False)
    row("GPU", "", torch.cuda.get_device_name(), "")
    for line in lines(found):
        row(*line)
    assert not faults(found)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seconds", type=float, default=15, help="of training, for each of seven contests")
    options.add_argument("--out", type=Path, help="directory for gpu.json and bench_gpu.md")
    options.add_argument("--tiny", action="store_true", help="a small model and little data, to try this")
    options.add_argument("--contest", choices=CONTESTS, help=argparse.SUPPRESS)
    options.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.contest:
        print(json.dumps(compete(given.contest, given.data, TINY if given.tiny else LARGE, given.seconds)))
        return
    card = torch.cuda.get_device_name() if DEVICE == "cuda" else "none"
    facts = {"gpu": card, "torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()}
    facts |= {"cores": os.cpu_count(), "described": results.described(), "tiny": given.tiny}
    if given.out:
        given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for found in run(Path(folder), given.seconds, given.tiny):
            if given.out:  # after each contest, in case that the machine goes
                facts["contests"] = found
                (given.out / "gpu.json").write_text(json.dumps(facts, indent=1) + "\n")
    table = [f"| {' | '.join(line)} |" for line in [("GPU", "", card, ""), *lines(found)]]
    if given.out:
        results.write("bench_gpu", table, given.out)
    print(results.described(), "", results.HEAD + "\n".join(table), *faults(found), sep="\n", flush=True)
    sys.exit(bool(faults(found)))


if __name__ == "__main__":
    main()
