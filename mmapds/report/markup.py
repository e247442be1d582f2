"""HTML of a report's parts: text is escaped here, and nowhere else."""

import html
from collections.abc import Iterable, Sequence

from ..cli import printable
from .pictures import Draw, svg


def text_of(text: str) -> str:
    """Return text as HTML shows it: markup is escaped, and so is what would steer a page or a terminal."""
    return html.escape(printable(text), quote=True)


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph."""
    return f"<p{_kind(kind)}>{text_of(text)}</p>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, chosen: Sequence[int] = (), texts: int = 0) -> str:
    """Return a table whose first column names the rows, and whose numbers stand at the right.

    Args:
      chosen: rows that stand out.
      texts: how many columns, the first one included, are text; they stand at the left.
    """

    def kind(column: int) -> str:
        return _kind("text" if 0 < column < texts else "")

    names = "".join(f'<th scope="col"{kind(at)}>{text_of(each)}</th>' for at, each in enumerate(head))
    body = []
    for number, (name, *cells) in enumerate(rows):
        found = "".join(f"<td{kind(at)}>{text_of(cell)}</td>" for at, cell in enumerate(cells, 1))
        body.append(f'<tr{_kind("chosen" * (number in chosen))}><th scope="row">{text_of(name)}</th>{found}</tr>')
    # The region can be scrolled by the keyboard, and says so to those who cannot see it.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text_of(head[0] or "table")}"><table><thead><tr>'
        f"{names}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def figure(name: str, title: str, caption: str, draw: Draw) -> str:
    """Return a chart with its caption, which says what is good."""
    chart = svg(name, text_of(title), draw)
    return f"<figure>{chart}<figcaption><b>{text_of(title)}.</b> {text_of(caption)}</figcaption></figure>"


def charts(figures: Iterable[str]) -> str:
    """Return charts, side by side where there is room."""
    return f'<div class="charts">{"".join(figures)}</div>'


def section(name: str, title: str, *parts: str) -> str:
    """Return a section that can be linked to."""
    return f'<section id="{name}"><h2>{text_of(title)}</h2>{"".join(parts)}</section>'


def heading(text: str) -> str:
    """Return a heading within a section."""
    return f"<h3>{text_of(text)}</h3>"


def folded(summary: str, remark: str, lines: Iterable[str], *, is_open: bool = False) -> str:
    """Return lines that a click folds and unfolds."""
    shown = "\n".join(text_of(line) for line in lines)
    head = f"<summary>{text_of(summary)} <span>{text_of(remark)}</span></summary>"
    return f"<details{' open' * is_open}>{head}<pre>{shown}</pre></details>"


def _kind(name: str) -> str:
    return f' class="{name}"' if name else ""
