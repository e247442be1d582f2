"""The main job, end to end, on data that every machine has: Python's own standard library.

Turns its top modules into JSONL (a record per function or class), indexes it with the length of every text, and trains
a small byte-level language model on batches of a budget of bytes, from a DataLoader with two workers. It leaves the
files, and prints commands to try on them. Run it with `make demo`, or `python examples/train_stdlib.py`. Kill it while
it trains, and run it again: it resumes from its last checkpoint.
"""

import argparse
import ast
import itertools
import json
import os
import shlex
import shutil
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import nn
from torch.utils.data import DataLoader, get_worker_info

import mmapds

BYTES = 256
CONTEXT = 128
BUDGET = 64 * CONTEXT


def write_jsonl(path: Path) -> None:
    """Write a record for every function and class of the standard library's top modules: path, name, text."""
    library = Path(sysconfig.get_path("stdlib"))
    with path.open("w", encoding="utf-8") as out:
        for source in sorted(library.glob("*.py")):
            try:
                text = source.read_text(encoding="utf-8")
                tree = ast.parse(text)
            except (SyntaxError, UnicodeDecodeError):
                continue
            lines = text.splitlines(keepends=True)
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    body = "".join(lines[node.lineno - 1 : node.end_lineno])
                    record = {"path": str(source.relative_to(library)), "name": node.name, "text": body}
                    out.write(json.dumps(record, ensure_ascii=False) + "\n")


def tokens(record: bytes) -> dict[str, np.ndarray]:
    """The first bytes of a record's text; none of them is 0, which pads."""
    return {"text": np.frombuffer(orjson.loads(record)["text"].encode()[:CONTEXT], np.uint8)}


def collate(samples: list[dict[str, np.ndarray]]) -> tuple[torch.Tensor, int]:
    """Return the texts padded with zeros, shape (batch, longest), and by how much this worker grew."""
    batch = mmapds.pad_collate(samples)
    return batch["text"], anonymous_bytes() - memory_at_start if get_worker_info() else 0


memory_at_start = 0


def note_memory(_: int) -> None:
    """Remember what a worker has when it starts, which is what it inherits: Python, torch and the model."""
    global memory_at_start
    memory_at_start = anonymous_bytes()


def anonymous_bytes() -> int:
    """Memory that is this process's alone: mapped file pages are shared, and the kernel may take them back."""
    try:
        rollup = Path("/proc/self/smaps_rollup").read_text()
    except FileNotFoundError:  # not Linux
        return 0
    return next(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Anonymous:"))


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
        targets = batch[:, 1:]
        loss = nn.functional.cross_entropy(self.predict(states).transpose(1, 2), targets, ignore_index=0)
        return loss / torch.log(torch.tensor(2.0))


def next_steps(source: Path) -> list[str]:
    """Return commands to try on the file that is left, and on its index."""
    scripts = Path(sysconfig.get_path("scripts"))
    found = shutil.which("mmapds")
    mmapds_, python = (
        ("mmapds", "python")
        if found and Path(found).parent == scripts
        else (shlex.quote(os.path.relpath(scripts / name)) for name in ("mmapds", "python"))
    )
    path = shlex.quote(str(source))
    return [
        f"{mmapds_} info {path}",
        f"{mmapds_} head -n 2 {path}",
        f"{mmapds_} show {path} -1 1000:1003",
        f"{mmapds_} verify {path}",
        f'{python} -c \'import mmapds; print(mmapds.open("{source}")[1000]["name"])\'',
    ]


def steps_of(batches: mmapds.TokenBudgetBatchSampler, loader: DataLoader) -> Iterator[tuple[int, Any]]:
    """Yield the steps of epoch after epoch, each with its number."""
    for epoch in itertools.count(batches.epoch):
        batches.set_epoch(epoch)
        yield from enumerate(loader, batches.first_step)


def main() -> None:
    """Make the data, index them, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the data")
    parser.add_argument("--seconds", type=float, default=8, help="how long to train")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = options.out / "stdlib.jsonl"

    write_jsonl(source)
    started = time.perf_counter()
    mmapds.build(source, length="bytes(text)", force=True)
    index_ms = (time.perf_counter() - started) * 1e3

    ds = mmapds.open(source, decode=tokens)
    print(ds)
    print(f"indexed {len(ds):,} records, {source.stat().st_size / 1e6:.1f} MB, in {index_ms:.1f} ms")
    print(
        f"record 1000 begins with {ds[1000]['text'][:30].tobytes()}, {ds.where(1000)}, {ds.lengths[1000]} bytes of text"
    )
    train, held_out = ds.split([0.95, 0.05], seed=0)

    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    batches = mmapds.TokenBudgetBatchSampler(np.minimum(train.lengths, CONTEXT), BUDGET)
    print(batches.summary())
    loader = DataLoader(train, batch_sampler=batches, num_workers=2, collate_fn=collate, worker_init_fn=note_memory)
    checkpoint = options.out / "last.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["sampler"])
        print(f"resumes at epoch {batches.epoch}, step {batches.first_step}")
    samples, growth = 0, 0
    started = time.perf_counter()
    for step, (batch, worker_growth) in steps_of(batches, loader):
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        samples += len(batch)
        growth = max(growth, worker_growth)
        if step % 20 == 0:
            print(f"step {step:4}: a batch of {len(batch):4} x {batch.shape[1]:3}, {loss.item():.2f} bits a byte")
            state = batches.state_dict(step=step + 1)  # workers are ahead: say which step is finished
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "sampler": state}
            torch.save(saved, f"{checkpoint}.new")
            os.replace(f"{checkpoint}.new", checkpoint)
        if time.perf_counter() - started >= options.seconds:
            checkpoint.unlink(missing_ok=True)
            break
    seconds = time.perf_counter() - started

    with torch.no_grad():
        held = model(collate(held_out.take(range(256)))[0]).item()
    print(f"trained on {samples:,} samples, {samples / seconds:,.0f} samples/s; held out: {held:.2f} bits a byte")
    print(
        f"each worker grew by at most {growth / 1e6:.1f} MB of memory of its own while it read; file pages are shared"
    )
    print(f"\n{source} and its index, {source.name}.mmx, are there to be looked at:\n")
    print("\n".join(f"  {command}" for command in next_steps(source)))


if __name__ == "__main__":
    main()
