"""Make the example of docs/report.md: `python -m docs.pictures.make_report` writes report.html beside this file.

With Chromium, `make test-report` checks pages like it, and `--picture` takes the picture of its head.
"""

import json
import os
import random
import sys
import tempfile
from pathlib import Path

import mmapds
from mmapds.report import report

HERE = Path(__file__).resolve().parent
TEXT = "a map of pages is read where it lies and every sample comes once in any order that a seed can choose"


def write_corpus(path, records=30_000):
    """Write dialogues, articles and a few books: three kinds of text, one after another, with lengths of their own."""
    draw = random.Random(0)
    with open(path, "w") as file:
        for number in range(records):
            kind, mean = (("dialogue", 4.3), ("article", 5.9), ("book", 7.2))[number * 20 // records // 9]
            tokens = min(max(int(draw.lognormvariate(mean, 0.6)), 1), 4096)
            text = " ".join(draw.choices(TEXT.split(), k=min(tokens, 60)))
            file.write(json.dumps({"id": number, "kind": kind, "text": text, "tokens": tokens}) + "\n")


def main():
    """Write the page and, if it is asked for, the picture."""
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        write_corpus("corpus.jsonl")
        mmapds.build("corpus.jsonl", length="tokens")
        report("corpus.jsonl", HERE / "report.html", max_tokens=16384, compare=["pack=4096"])
    if "--picture" in sys.argv:
        from tests.support.browser import Browser

        with Browser() as browser:
            browser.show(HERE / "report.html", width=1160, scheme="light")
            browser.picture(HERE / "report.png", height=1500)


if __name__ == "__main__":
    main()
