"""Draws docs/pictures/packs.svg: packs of log-normal lengths in two epochs, a row each.

python docs/pictures/draw_packs.py > docs/pictures/packs.svg
"""

import numpy as np

from mmapds import PackingBatchSampler

LENGTH = 2048
RANKS, STEPS = 4, 5
WIDTH, HEIGHT, GAP, LEFT, TOP = 400, 13, 3, 62, 32
COLOURS = ["#dcebf7", "#bcd7ec", "#8fbbdd", "#5b98c8", "#2f70a8", "#174a7c"]


def lengths_of_texts(count: int) -> np.ndarray:
    """Log-normal lengths, as texts have them."""
    drawn = np.exp(np.random.default_rng(3).normal(5.6, 0.8, count))
    return np.clip(drawn, 1, LENGTH).astype(np.int64)


def bar(pack: list[int], lengths: np.ndarray, left: int, top: int, marked: set[int]) -> list[str]:
    """Return the elements of a pack: its samples, and their cost."""
    out, at = [], float(left)
    for record in pack:
        length = int(lengths[record])
        fill = "#e07b39" if record in marked else COLOURS[min(max(length.bit_length() - 5, 0), 5)]
        size = WIDTH * length / LENGTH
        out.append(f'<rect x="{at:.1f}" y="{top}" width="{size:.1f}" height="{HEIGHT}" fill="{fill}"/>')
        at += size
    cost = int((lengths[pack].astype(np.int64) ** 2).sum()) / 1e6
    return [*out, f'<text x="{left + WIDTH + 6}" y="{top + 10}" class="cost">{cost:.2f}</text>']


def steps(sampler: PackingBatchSampler, lengths: np.ndarray, marked: set[int]) -> list[str]:
    """Return the elements of the first steps of epoch 0."""
    out = [f'<text x="{LEFT}" y="{TOP - 8}" class="head">epoch 0, the packs of 4 ranks</text>']
    for step in range(STEPS):
        top = TOP + step * (RANKS * (HEIGHT + GAP) + GAP)
        out.append(f'<text x="{LEFT - 8}" y="{top + 2 * HEIGHT + 6}" class="step">step {step}</text>')
        for rank, pack in enumerate(sampler.indices_at(step)):
            out += bar(pack.tolist(), lengths, LEFT, top + rank * (HEIGHT + GAP), marked)
    return out


def next_epoch(packs: list[list[int]], lengths: np.ndarray, left: int, marked: set[int]) -> list[str]:
    """Return the elements of the packs of epoch 1 that hold marked samples."""
    out = [f'<text x="{left}" y="{TOP - 8}" class="head">epoch 1, where the samples of step 0 are</text>']
    found = [pack for pack in packs if marked & set(pack)]
    for number, pack in enumerate(found):
        out += bar(pack, lengths, left, TOP + number * (HEIGHT + GAP), marked)
    return out


def picture() -> str:
    """Return the picture."""
    lengths = lengths_of_texts(200_000)
    sampler = PackingBatchSampler(lengths, LENGTH, num_replicas=RANKS, rank=0, seed=0, group_size=RANKS)
    alone = PackingBatchSampler(lengths, LENGTH, num_replicas=1, rank=0, seed=0, group_size=RANKS)
    alone.set_epoch(1)
    marked = {int(record) for pack in sampler.indices_at(0) for record in pack}
    right = LEFT + WIDTH + 60
    body = steps(sampler, lengths, marked) + next_epoch(list(alone), lengths, right, marked)
    height, width = TOP + STEPS * (RANKS * (HEIGHT + GAP) + GAP) + 24, right + WIDTH + 40
    note = (
        f"A row is a pack of {LENGTH:,} tokens; darker samples are longer, those of step 0 are orange. Beside it "
        "stands its cost, the sum of the squared lengths, in millions."
    )
    body.append(f'<text x="{LEFT}" y="{height - 10}">{note}</text>')
    style = (
        "text{font-family:sans-serif;font-size:11px;fill:#333}.head{font-size:13px;font-weight:bold}"
        ".step{text-anchor:end}.cost{font-size:10px}rect{stroke:#fff;stroke-width:.6}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>",
        ]
    )


if __name__ == "__main__":
    print(picture())
