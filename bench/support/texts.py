"""Text that people wrote, as JSON Lines: what compression is measured on.

`bible` must be installed for prose: apt-get install bible-kjv.
"""

import itertools
import json
import random
import shutil
import subprocess
import sysconfig
from pathlib import Path

from bench.support.data import DATA, once

RECORD = 2_400
"""Bytes of text in a record."""


def prose():
    """Records of the King James Bible, in any order, as those of a corpus do not continue one another."""
    assert shutil.which("bible"), "run: apt-get install bible-kjv"
    verses = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    texts, generator = [""], random.Random(0)
    for verse in verses.splitlines(keepends=True):
        if len(texts[-1]) > RECORD:
            texts.append("")
        texts[-1] += verse
    generator.shuffle(texts)
    for number, each in enumerate(texts):
        yield {"id": number, "url": f"https://example.org/{generator.randrange(10**9)}", "text": each}


def code():
    """Records of Python's own standard library; those of a file lie beside each other."""
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = (path.read_text(errors="replace") for path in itertools.cycle(paths))
    pieces = (text[at : at + RECORD] for text in texts for at in range(0, len(text), RECORD))
    return ({"id": number, "text": piece} for number, piece in enumerate(pieces))


TEXTS = {"prose": prose, "source code": code}


def text(name: str, size: int) -> Path:
    """Return a file of at least `size` bytes of such records, made once; of prose, 4.6 MB are all there is."""
    path = DATA / f"{name.replace(' ', '-')}-{size}.jsonl"
    if not path.exists():
        with once(path) as file:
            for record in TEXTS[name]():
                file.write(json.dumps(record).encode() + b"\n")
                if file.tell() >= size:
                    break
    return path
