"""Draws docs/pictures/mesh.svg: which ranks of a mesh share a batch.

python docs/pictures/draw_mesh.py > docs/pictures/mesh.svg
"""

PLACES, SHARING = 2, 4
BOX, GAP, LEFT, TOP = 78, 12, 96, 44
FILLS = ("#dcebf7", "#fbe6d8")


def row(place: int) -> list[str]:
    """Return the elements of the ranks with one place in the data-parallel mesh, and of their batch."""
    top = TOP + place * (BOX + GAP)
    middle = top + BOX // 2
    body = [f'<text x="{LEFT - 16}" y="{middle + 4}" class="head end">dp {place}</text>']
    for each in range(SHARING):
        left = LEFT + each * (BOX + GAP)
        body += [
            f'<rect x="{left}" y="{top}" width="{BOX}" height="{BOX}" rx="8" fill="{FILLS[place]}"/>',
            f'<text x="{left + BOX // 2}" y="{middle + 4}">rank {place * SHARING + each}</text>',
        ]
    right = LEFT + SHARING * (BOX + GAP)
    records = ", ".join(str(number) for number in range(place, 8, PLACES))
    body += [
        f'<text x="{right + 12}" y="{middle - 4}" class="head begin">one batch for all four</text>',
        f'<text x="{right + 12}" y="{middle + 16}" class="begin">positions {records}</text>',
    ]
    return body


def picture() -> str:
    """Return the picture."""
    tops = [
        f'<text x="{LEFT + each * (BOX + GAP) + BOX // 2}" y="{TOP - 14}" class="head">tp {each}</text>'
        for each in range(SHARING)
    ]
    body = [*tops, *(line for place in range(PLACES) for line in row(place))]
    width, height = LEFT + SHARING * (BOX + GAP) + 200, TOP + PLACES * (BOX + GAP) + 4
    style = (
        "text{font-family:sans-serif;font-size:12px;fill:#333;text-anchor:middle}.head{font-size:13px;font-weight:bold}"
        ".end{text-anchor:end}.begin{text-anchor:start}rect{stroke:#9aa7b4}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
            f"<style>{style}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff" style="stroke:none"/>',
            *body,
            "</svg>",
        ]
    )


if __name__ == "__main__":
    print(picture())
