"""The main job, end to end, on data that every machine has: Python's own standard library.

Writes its functions and classes as JSONL, indexes them with the length of each text, and trains a small language model
of bytes on batches of one budget, with two worker processes. In the middle the training kills itself, and is started
again: it resumes from its checkpoint. At the end it shows that every sample came once in each epoch, and what the
workers cost. Run it with `make demo`, or `python examples/train_stdlib.py`.
"""

import argparse
import ast
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import numpy as np
import orjson
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn, track
from torch import nn
from torch.utils.data import get_worker_info

import mmapds

BYTES = 256
CONTEXT = 128  # bytes of a text that are read
BUDGET = 64 * CONTEXT  # bytes of a batch, padding included
SAVED_EVERY = 10  # steps
EPOCHS = 2
LARGE = 100_000_000  # records, of which the costs are estimated

console = Console(highlight=False, soft_wrap=True)


# ---- data


def write_jsonl(path: Path, most: int = LARGE) -> None:
    """Write a record for every function and class of the standard library's top modules: id, path, name, text."""
    library, count = Path(sysconfig.get_path("stdlib")), 0
    sources = sorted(library.glob("*.py"))
    with path.open("w", encoding="utf-8") as out:
        for source in track(sources, "Writing the standard library as JSONL", console=console):
            if count == most:
                break
            try:
                text = source.read_text(encoding="utf-8")
                tree = ast.parse(text)
            except (SyntaxError, UnicodeDecodeError):
                continue
            lines = text.splitlines(keepends=True)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and count < most:
                    body = "".join(lines[node.lineno - 1 : node.end_lineno])
                    record = {"id": count, "path": str(source.relative_to(library)), "name": node.name, "text": body}
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")
                    count += 1


def decode(record: bytes) -> dict[str, np.ndarray | int]:
    """Return the first bytes of a record's text, none of which is 0, and its id."""
    found = orjson.loads(record)
    return {"text": np.frombuffer(found["text"].encode()[:CONTEXT], np.uint8), "id": found["id"]}


def collate(samples: list[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Return texts padded with zeros, shape (batch, longest), the ids, and by how many bytes this worker grew."""
    growth = own_memory() - memory_at_start if get_worker_info() else 0
    return {**mmapds.pad_collate(samples, lengths=False), "growth": torch.tensor(growth)}


# ---- memory

memory_at_start = 0


def note_memory(_: int) -> None:
    """Remember what a worker has when it starts: Python, torch and the model."""
    global memory_at_start
    memory_at_start = own_memory()


def own_memory() -> int:
    """Return the bytes of memory that belong to this process alone; pages of files are shared."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text()
    except FileNotFoundError:  # not Linux
        return 0
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Anonymous:"))


# ---- training


class LanguageModel(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(BYTES, width)
        self.recur = nn.GRU(width, width, batch_first=True)
        self.predict = nn.Linear(width, BYTES)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Return the mean loss in bits a byte over a batch of shape (batch, longest), padded with zeros."""
        batch = batch.long()
        states, _ = self.recur(self.embed(batch[:, :-1]))
        loss = nn.functional.cross_entropy(self.predict(states).transpose(1, 2), batch[:, 1:], ignore_index=0)
        return loss / torch.log(torch.tensor(2.0))


def train(source: Path, checkpoint: Path, *, dies: bool) -> None:
    """Train from the last checkpoint on, or from the beginning; if it dies, in the middle of the first epoch."""
    ds = mmapds.open(source, decode=decode)
    sampler = mmapds.TokenBudgetBatchSampler(np.minimum(ds.lengths, CONTEXT), BUDGET, seed=0)
    loader = mmapds.DataLoader(
        ds, batch_sampler=sampler, num_workers=2, workers="processes", collate_fn=collate, worker_init_fn=note_memory
    )
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    seen = torch.zeros(EPOCHS, len(ds), dtype=torch.uint8)  # how often each sample came; saved with the model
    growth = torch.tensor(0)

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        torch.save({**state, "seen": seen, "growth": growth}, f"{checkpoint}.new")
        os.replace(f"{checkpoint}.new", checkpoint)

    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        seen, growth = saved["seen"], saved["growth"]
        console.print(f"Resuming in epoch {sampler.epoch} at step {sampler.first_step}.")

    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    for epoch in loader.epochs(EPOCHS):
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(f"Epoch {epoch}", total=len(loader))
            for step, batch in loader.steps():
                loss = model(batch["text"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                seen[epoch, batch["id"]] += 1
                growth = torch.maximum(growth, batch["growth"])
                progress.update(bar, completed=step + 1, description=f"Epoch {epoch}, {loss.item():.2f} bits a byte")
                if (step + 1) % SAVED_EVERY == 0:
                    save()
                if dies and (epoch, step) == (0, len(loader) // 2):
                    progress.stop()
                    console.print(f"[bold]Killing this process at step {step}[/], as a cluster would: SIGKILL.")
                    os.kill(os.getpid(), signal.SIGKILL)
    save()


# ---- the demo


def run_training(source: Path, checkpoint: Path, *options: str) -> int:
    """Run the training in a process of its own; return its exit status."""
    command = [sys.executable, __file__, "--train", str(source), "--checkpoint", str(checkpoint), *options]
    return subprocess.run(command, check=False).returncode


def show_result(source: Path, checkpoint: Path) -> None:
    """Print how often each sample came, and what the workers and the index cost."""
    saved, ds = torch.load(checkpoint, weights_only=True), mmapds.open(source)
    for epoch, counts in enumerate(saved["seen"]):
        times = dict(zip(*(each.tolist() for each in counts.unique(return_counts=True)), strict=True))
        what = "every sample came once" if times == {1: len(ds)} else f"samples by how often they came: {times}"
        console.print(f"Epoch {epoch}: {what}, {len(ds):,} in all.")
    index, data = os.path.getsize(f"{source}.mmx") / len(ds), source.stat().st_size / len(ds)
    grown = saved["growth"].item() / 1e6
    console.print(
        f"Each worker grew by at most {grown:.1f} MB of its own memory. The index has {index:.1f} bytes a record.\n"
        f"Estimate for {LARGE:,} such records: {LARGE * index / 1e9:.1f} GB of index on disk, the same {grown:.1f} MB "
        f"a worker;\na list of the lines would take {LARGE * (data + 49 + 8) / 1e9:.0f} GB in each process."
    )


def next_steps(source: Path) -> list[str]:
    """Return commands to try on the file that is left, and on its index."""
    found = shutil.which("python")
    is_first = found is not None and Path(found).parent == Path(sys.executable).parent
    python = "python" if is_first else shlex.quote(os.path.relpath(sys.executable))
    path = shlex.quote(str(source))
    return [
        f"{python} -m mmapds info {path}",
        f"{python} -m mmapds head -n 2 {path}",
        f"{python} -m mmapds show {path} -1 1000:1003",
        f"{python} -m mmapds verify {path}",
        f'{python} -c \'import mmapds; print(mmapds.open("{source}")[1000]["name"])\'',
    ]


def main() -> None:
    """Make the data, index them, train with a kill in the middle, show what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the data")
    parser.add_argument("--records", type=int, default=LARGE, help="write at most so many")
    parser.add_argument("--train", type=Path, metavar="SOURCE", help="only train on it, as the demo starts itself")
    parser.add_argument("--checkpoint", type=Path, help="with --train: where it is")
    parser.add_argument("--die", action="store_true", help="with --train: die in the middle of the first epoch")
    options = parser.parse_args()
    if options.train:
        return train(options.train, options.checkpoint, dies=options.die)

    options.out.mkdir(parents=True, exist_ok=True)
    source, checkpoint = options.out / "stdlib.jsonl", options.out / "last.pt"
    checkpoint.unlink(missing_ok=True)
    write_jsonl(source, options.records)
    started = time.perf_counter()
    mmapds.build(source, length="bytes(text)", force=True)
    took = (time.perf_counter() - started) * 1e3
    ds = mmapds.open(source)
    console.print(f"Indexed {len(ds):,} records, {source.stat().st_size / 1e6:.1f} MB, in {took:.0f} ms.")
    console.print(f"Record 1000 is {ds[1000]['name']!r}: {ds.where(1000)}, {ds.lengths[1000]} bytes of text.")

    killed = run_training(source, checkpoint, "--die")
    if killed != -signal.SIGKILL:
        sys.exit(f"the training ended with status {killed} before it was killed")
    if status := run_training(source, checkpoint):
        sys.exit(status)
    show_result(source, checkpoint)
    console.print(f"\n{source} and its index are left for you to look at:\n")
    console.print("\n".join(f"  {command}" for command in next_steps(source)), soft_wrap=True)
    return None


if __name__ == "__main__":
    main()
