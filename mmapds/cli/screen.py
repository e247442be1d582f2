"""Standard output: lines, tables and JSON, in colour on a terminal."""

import os
import sys
from collections.abc import Collection, Sequence
from io import StringIO
from typing import Any

from ..errors import printable

Cell = str | tuple[str, str]
"""A text, or a text and its style, as rich names styles."""

_UNLIMITED = 1 << 20  # columns: a line that is longer than the terminal is wide runs on, and can be copied
_HIGHLIGHTED = 1 << 20  # characters of JSON that are coloured: rich takes a second for each million


def print_line(text: str, style: str = "") -> None:
    """Print a line in a style."""
    print(_drawn(printable(text), style=style))


def print_json(text: str) -> None:
    """Print lines of JSON, which `printed` has made."""
    print(_drawn(text, highlight=True) if len(text) <= _HIGHLIGHTED else text)


def print_table(rows: Sequence[Sequence[Cell]], *, head: Sequence[str] = (), left: Collection[int] = (0,)) -> None:
    """Print rows of cells in columns.

    Args:
      rows: one or more, all of one length.
      head: names of the columns.
      left: which columns hold text, which begins at their left edges; numbers end at the right ones.
    """
    from rich.table import Table  # start-up time, as below
    from rich.text import Text

    table = Table(box=None, show_header=bool(head), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
    for at in range(len(rows[0])):
        table.add_column(Text(head[at] if head else ""), justify="left" if at in left else "right")
    for row in rows:
        cells = [(each, "") if isinstance(each, str) else each for each in row]
        table.add_row(*(Text(printable(text), style) for text, style in cells))
    for line in _drawn(table).splitlines():
        print(f"  {line}".rstrip())


def _drawn(shown: Any, **options: Any) -> str:
    """Return what rich draws: with colours on a terminal that shows them, unless the user turned them off."""
    is_coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    if isinstance(shown, str) and not is_coloured:
        return shown
    from rich.console import Console  # start-up time: only tables and terminals need it
    from rich.highlighter import JSONHighlighter

    drawn = StringIO()
    console = Console(
        file=drawn,
        width=_UNLIMITED,
        color_system="standard" if is_coloured else None,
        force_terminal=is_coloured,
        highlighter=JSONHighlighter(),
        highlight=False,
        markup=False,
        emoji=False,
    )
    console.print(shown, no_wrap=True, overflow="ignore", crop=False, end="", **options)
    return drawn.getvalue()
