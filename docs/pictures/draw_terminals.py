"""Draws docs/pictures/terminal-*.svg: what some commands print on a terminal, in the order of a first look at data.

python -m docs.pictures.draw_terminals
"""

import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

from docs.pictures.make_report import write_corpus

HERE = Path(__file__).resolve().parent
WIDTH = 100
TERMINALS = {
    "index": ["index corpus.jsonl --length tokens", "info corpus.jsonl"],
    "show": ["show corpus.jsonl 1234 -1", "verify corpus.jsonl", "report corpus.jsonl --max-tokens 16384"],
}
"""The commands of each picture; a later one finds the files of those before."""


def printed(command: str, place: str) -> str:
    """Return what a command prints on a terminal, with its colours."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(WIDTH), "TERM": "xterm-256color", "PYTHONPATH": str(HERE.parents[1])}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(
        [sys.executable, "-m", "mmapds", *shlex.split(command)],
        **dict.fromkeys(("stdin", "stdout", "stderr"), theirs),
        cwd=place,
        env=environment,
    )
    os.close(theirs)
    found = b""
    try:
        while piece := os.read(ours, 1 << 16):
            found += piece
    except OSError:  # Linux says so when nobody holds the other end any more
        pass
    os.close(ours)
    assert process.wait() == 0, found
    lines = found.decode().replace("\r\n", "\n").split("\n")
    # Of a line that was written again and again, such as a progress bar, only the last state stays.
    return "\n".join(re.split(r"\r|\x1b\[\d*[AK]", line)[-1] for line in lines)


def picture(commands: list[str], place: str) -> str:
    """Return an SVG of a terminal. Nothing in it is loaded: without fonts of others, a reader's own are taken."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True, color_system="truecolor")
    for command in commands:
        console.print(Text.assemble(("$ ", "green"), (f"mmapds {command}", "bold")))
        console.print(Text.from_ansi(printed(command, place)))
    text = console.export_svg(title="mmapds", unique_id="terminal")
    text = re.sub(r"@font-face \{.*?\}|<!--.*?-->", "", text, flags=re.DOTALL)
    return re.sub(r"\s*\n\s*", "\n", text).strip() + "\n"


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as place:
        write_corpus(Path(place) / "corpus.jsonl")
        for name, commands in TERMINALS.items():
            (HERE / f"terminal-{name}.svg").write_text(picture(commands, place))


if __name__ == "__main__":
    main()
