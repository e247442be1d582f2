"""Packing beside padding, on the data of the demo: the same losses, and more real tokens a second.

Trains a small byte-level transformer on packs of whole texts, and the same model on padded batches of random texts, in
turn. Attention stays inside each text by `cu_seqlens`: one call of scaled_dot_product_attention for each, which runs
everywhere; on a GPU, the varlen kernels of flash-attn or torch take the same `cu_seqlens` in one call. Run it with
`make demo`, or `python examples/train_packed.py`.
"""

import argparse
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader
from train_stdlib import write_jsonl

import mmapds

CONTEXT = 1024
PACK = 4 * CONTEXT
WIDTH, HEADS, LAYERS = 96, 4, 2
Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def decode(record: bytes) -> dict[str, np.ndarray]:
    """The first bytes of a record's text, which are also what the model should predict."""
    text = np.frombuffer(orjson.loads(record)["text"].encode()[:CONTEXT], np.uint8).astype(np.int64)
    return {"tokens": text, "labels": text}


def within(cu_seqlens: torch.Tensor) -> Attention:
    """Return causal attention over flat tokens, shape (T, heads, size), that stays inside each sequence."""
    bounds = cu_seqlens.tolist()

    def attend(*qkv: torch.Tensor) -> torch.Tensor:
        parts = [[each[begin:end].transpose(0, 1) for each in qkv] for begin, end in itertools.pairwise(bounds)]
        return torch.cat([scaled_dot_product_attention(*part, is_causal=True).transpose(0, 1) for part in parts])

    return attend


def padded(*qkv: torch.Tensor) -> torch.Tensor:
    """Causal attention over padded tokens, shape (batch, longest, heads, size): what follows a text never matters."""
    return scaled_dot_product_attention(*(each.transpose(1, 2) for each in qkv), is_causal=True).transpose(1, 2)


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor, attend: Attention) -> torch.Tensor:
        """Return x, shape (..., WIDTH), with what tokens learn from those before them."""
        heads = [each.unflatten(-1, (HEADS, -1)) for each in self.qkv(self.before(x)).chunk(3, dim=-1)]
        x = x + self.out(attend(*heads).flatten(-2))
        return x + self.feed(self.between(x))


class Model(nn.Module):
    """Predicts each byte from those before it in the same text."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.predict = nn.Linear(WIDTH, 256)

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Return the mean loss over the labels of a packed batch, or of a padded one."""
        tokens, labels = batch["tokens"], batch["labels"]
        if "cu_seqlens" in batch:
            begins = batch["cu_seqlens"][:-1].long()
            places = torch.arange(len(tokens)) - torch.repeat_interleave(begins, batch["cu_seqlens"].diff())
            attend = within(batch["cu_seqlens"])
        else:
            places, attend = torch.arange(tokens.shape[1]), padded
        x = self.embed(tokens) + self.place(places)
        for block in self.blocks:
            x = block(x, attend)
        return cross_entropy(self.predict(x[..., :-1, :]).flatten(0, -2), labels[..., 1:].flatten())


pack = functools.partial(mmapds.pack_collate, labels="labels")
pad = functools.partial(mmapds.pad_collate, pad_value={"labels": -100})


def loop(loader: DataLoader) -> Iterator[dict[str, Any]]:
    """Yield batches without end."""
    for epoch in itertools.count():
        loader.batch_sampler.set_epoch(epoch)
        yield from loader


def train(model: Model, optimizer: torch.optim.Optimizer, batches: Iterator[dict[str, Any]], seconds: float) -> float:
    """Train for some time, on one batch or more; return the real tokens a second."""
    tokens, started = 0, time.perf_counter()
    while tokens == 0 or time.perf_counter() - started < seconds:
        batch = next(batches)
        optimizer.zero_grad()
        model(batch).backward()
        optimizer.step()
        tokens += int(batch["cu_seqlens"][-1] if "cu_seqlens" in batch else batch["tokens_lengths"].sum())
    return tokens / (time.perf_counter() - started)


def compare_losses(model: Model, ds: mmapds.Dataset, packs: list[list[int]]) -> None:
    """Print the largest difference between the losses of packs and of the same texts padded."""
    with torch.no_grad():
        losses = [(model(pack(ds.take(each))).item(), model(pad(ds.take(each))).item()) for each in packs]
    difference = max(abs(one - other) for one, other in losses)
    print(f"losses of {len(packs)} packs and of the same texts padded differ by at most {difference:.1e}")
    if difference > 1e-5:
        raise SystemExit("packed and padded losses: expected a difference of 1e-5 or less")


def main() -> None:
    """Make the data unless the demo left them, compare losses, then train both ways in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="directory for the data")
    parser.add_argument("--seconds", type=float, default=8, help="how long to train, in all")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    source = options.out / "stdlib.jsonl"
    if not source.exists():
        write_jsonl(source)
    mmapds.build(source, length="bytes(text)")
    ds = mmapds.open(source, decode=decode)
    lengths = np.minimum(ds.lengths, CONTEXT)

    sampler = mmapds.PackingBatchSampler(lengths, PACK, seed=0)
    print(f"packs of {PACK:,} bytes:")
    summary = sampler.summary()
    print(summary)
    torch.manual_seed(0)
    torch.set_num_threads(1)  # so that a busy machine slows both ways down alike
    model = Model()
    compare_losses(model, ds, list(itertools.islice(sampler, 5)))

    size = round(summary.mean_size)  # about as many texts in a padded batch as in a pack
    random = mmapds.DistributedBatchSampler(ds, size, seed=0)
    batches = {
        "packed": loop(DataLoader(ds, batch_sampler=sampler, collate_fn=pack)),
        "padded": loop(DataLoader(ds, batch_sampler=random, collate_fn=pad)),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    speeds: dict[str, list[float]] = {name: [] for name in batches}
    for seconds in (0, options.seconds / 4, options.seconds / 4):  # the first round warms up
        for name, each in batches.items():
            speeds[name].append(train(model, optimizer, each, seconds))
    packed, other = (np.mean(speeds[name][1:]) for name in ("packed", "padded"))
    print(
        f"trained on {packed:,.0f} bytes/s in packs, {other:,.0f} bytes/s in padded batches of {size} random texts: "
        f"{packed / other:.2f} x"
    )


if __name__ == "__main__":
    main()
