"""Standard output: rich draws where it is a terminal, and elsewhere lines are plain text in columns."""

import os
import sys
from collections.abc import Collection, Sequence
from typing import Any

from . import print_line, printable, printing

Cell = str | tuple[str, str]
"""A text, or a text and its style, as rich names styles."""

_HIGHLIGHTED = 1 << 20  # characters of JSON that are coloured
_NARROW = 12  # columns that text is folded to at the least; where numbers then do not fit, lines run on


class Screen:
    """Prints titles, tables and JSON: in colour on a terminal, unless `NO_COLOR` is set or `TERM` is `dumb`."""

    def __init__(self) -> None:
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        self.block = "█" if encoding.lower().startswith("utf") else "#"
        """What bars are made of."""
        self._console: Any = None
        if sys.stdout is not None and sys.stdout.isatty() and not is_plain:
            from rich.console import Console  # start-up time: only a terminal needs it

            self._console = Console(highlight=False, color_system="standard")

    def line(self, text: str, style: str = "") -> None:
        """Print a line in a style."""
        self._print(printable(text), style)

    def json(self, text: str) -> None:
        """Print lines of JSON, which `printed` has made."""
        if self._console is None or len(text) > _HIGHLIGHTED:
            print_line(text)
            return
        from rich.highlighter import JSONHighlighter

        self._print(JSONHighlighter()(text))

    def table(self, rows: Sequence[Sequence[Cell]], *, head: Sequence[str] = (), left: Collection[int] = (0,)) -> None:
        """Print rows of cells in columns.

        Args:
          rows: one or more, all of one length.
          head: names of the columns.
          left: which columns hold text, which begins at their left edges; numbers end at the right ones.
        """
        cells = [[each if isinstance(each, tuple) else (each, "") for each in row] for row in rows]
        cells = [[(printable(text), style) for text, style in row] for row in cells]
        lines = [*([list(head)] if head else []), *([text for text, _ in row] for row in cells)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        needed = sum((min(width, _NARROW) if at in left else width) + 2 for at, width in enumerate(widths))
        if self._console is not None and needed <= self._console.width:
            self._draw(cells, head, left)
            return
        for line in lines:
            padded = (
                text.ljust(width) if at in left else text.rjust(width)
                for at, (text, width) in enumerate(zip(line, widths, strict=True))
            )
            print_line(f"  {'  '.join(padded)}".rstrip())

    def _draw(self, cells: Sequence[Sequence[tuple[str, str]]], head: Sequence[str], left: Collection[int]) -> None:
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, show_header=bool(head), header_style="dim", pad_edge=False, padding=(0, 2, 0, 0))
        for at in range(len(cells[0])):
            name = Text(head[at] if head else "")
            is_text = at in left
            table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
        for row in cells:
            table.add_row(*(Text(*cell) for cell in row))
        self._print(Padding(table, (0, 0, 0, 2)), wraps=True)

    def _print(self, shown: Any, style: str = "", *, wraps: bool = False) -> None:
        if self._console is None:
            print_line(shown)
            return
        with printing():
            self._console.print(shown, style=style or None, markup=False, emoji=False, soft_wrap=not wraps)
