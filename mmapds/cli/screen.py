"""What standard output can show: columns, colours, and characters beyond ASCII."""

import os
import sys
import unicodedata

from .. import cli

_STYLES = {"title": "1", "number": "33", "key": "36", "string": "32", "word": "35", "note": "2", "bar": "34"}
"""As the terminal has it: bold, yellow, cyan, green, magenta, faint, blue."""

_EIGHTHS = " ▏▎▍▌▋▊▉"


class Screen:
    """Standard output, as it is now: colours on a terminal alone, and plain ASCII where its encoding has no more.

    `NO_COLOR`, set to anything, turns colours off, as `TERM=dumb` does; `COLUMNS` sets the width.
    """

    def __init__(self) -> None:
        self.width = cli.terminal_width()
        """Columns, 1 or more."""
        self.has_colours = (
            sys.stdout is not None
            and sys.stdout.isatty()
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
        )
        encoding = getattr(sys.stdout, "encoding", None) or "ascii"
        self.is_unicode = encoding.lower().replace("-", "").startswith("utf")
        self.ellipsis = "…" if self.is_unicode else "..."

    def paint(self, text: str, style: str) -> str:
        """Return text in a style, one of `_STYLES`; the text is one that may be printed."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.has_colours and text else text

    def bar(self, part: float, columns: int) -> str:
        """Return a bar of `part` of some columns, from 0 to 1; it shows something unless that is 0."""
        if not self.is_unicode:
            return "#" * max(round(part * columns), int(part > 0))
        eighths = max(round(part * columns * 8), int(part > 0))
        return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def columns_of(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(each) in "WF" for each in text)
    return len(text) + wide - sum(unicodedata.combining(each) > 0 for each in text)
