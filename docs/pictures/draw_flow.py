"""Draws docs/pictures/flow.svg: what a sample passes on its way to the trainer, and what a checkpoint resumes.

python docs/pictures/draw_flow.py > docs/pictures/flow.svg
"""

WIDTH, HEIGHT = 960, 216
BOX, GAP, TALL, TOP = 136, 24, 84, 20
STAGES = [
    ("source", "train.jsonl", "stays as it is"),
    ("index", "train.jsonl.mmx", "where records lie"),
    ("dataset", "ds[i], len(ds)", "mapped, no copy"),
    ("sampler", "seed, epoch, step", "records in order"),
    ("loader", "threads", "batches ahead"),
    ("your loop", "for step, batch", "one batch a step"),
]
"""Each with what stands for it, and what it does."""
CHECKPOINT = ("checkpoint", "epoch, position", "a small dict")


def left_of(stage: int) -> int:
    """Return the left edge of the box of a stage."""
    return GAP // 2 + stage * (BOX + GAP)


def box(left: int, top: int, texts: tuple[str, str, str], kind: str) -> list[str]:
    """Return the elements of a box with its three lines."""
    middle = left + BOX // 2
    lines = zip(("name", "code", "note"), (26, 48, 68), texts, strict=True)
    return [
        f'<rect x="{left}" y="{top}" width="{BOX}" height="{TALL}" rx="8" class="{kind}"/>',
        *(f'<text x="{middle}" y="{top + down}" class="{style}">{text}</text>' for style, down, text in lines),
    ]


def arrow(path: str) -> str:
    """Return a line that ends in an arrow head."""
    return f'<path d="{path}" class="arrow" marker-end="url(#head)"/>'


def picture() -> str:
    """Return the picture."""
    body, low = [], HEIGHT - TALL - 8
    for stage, texts in enumerate(STAGES):
        body += box(left_of(stage), TOP, texts, "file" if stage < 2 else "step")
        if stage:
            body.append(arrow(f"M{left_of(stage) - GAP + 2} {TOP + TALL // 2}h{GAP - 8}"))
    sampler, loader, under = (left_of(stage) + BOX // 2 for stage in (3, 4, 4))
    body += box(under - BOX // 2, low, CHECKPOINT, "saved")
    body.append(arrow(f"M{loader} {TOP + TALL + 2}V{low - 6}"))
    body.append(arrow(f"M{under - BOX // 2 - 2} {low + TALL // 2}H{sampler}V{TOP + TALL + 6}"))
    body.append(f'<text x="{sampler - 10}" y="{low + 30}" class="label">resume</text>')
    style = (
        "text{font-family:sans-serif;font-size:12px;fill:#333;text-anchor:middle}.name{font-size:14px;font-weight:bold}"
        ".code{font-family:monospace;font-size:11px}.note{fill:#666}.label{text-anchor:end;fill:#b3541e}"
        ".file{fill:#f3f4f6}.step{fill:#dcebf7}.saved{fill:#fbe6d8}rect{stroke:#9aa7b4}"
        ".arrow{fill:none;stroke:#555;stroke-width:1.5}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">',
            f"<style>{style}</style>",
            '<marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z" fill="#555"/></marker>',
            f'<rect width="{WIDTH}" height="{HEIGHT}" style="fill:#fff;stroke:none"/>',
            *body,
            "</svg>",
        ]
    )


if __name__ == "__main__":
    print(picture())
