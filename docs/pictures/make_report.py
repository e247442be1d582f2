"""Make the reports of docs/gallery.md: `python -m docs.pictures.make_report FOLDER` writes them into a folder.

`make docs` makes them for the site. With Chromium, `make test-report` checks pages like them, and `--picture` takes
docs/pictures/report.png, a picture of the head of the first.
"""

import contextlib
import json
import random
import sys
import tempfile
from pathlib import Path

import mmapds
from mmapds.report import report

HERE = Path(__file__).resolve().parent
TEXT = "a map of pages is read where it lies and every sample comes once in any order that a seed can choose"
REPORTS = {
    "report": {"max_tokens": 16384, "compare": ["pack=4096"]},
    "report-chunks": {"batch_size": 64, "chunk_size": 512, "compare": ["batch_size=64"]},
    "report-loader": {"max_tokens": 16384, "ranks": 4, "loader": True, "samples": False},
}
"""The arguments of each report, by the name of its page."""


def write_corpus(path, records=30_000):
    """Write dialogues, articles and a few books: three kinds of text, one after another, with lengths of their own."""
    draw = random.Random(0)
    with open(path, "w") as file:
        for number in range(records):
            kind, mean = (("dialogue", 4.3), ("article", 5.9), ("book", 7.2))[number * 20 // records // 9]
            tokens = min(max(int(draw.lognormvariate(mean, 0.6)), 1), 4096)
            text = " ".join(draw.choices(TEXT.split(), k=min(tokens, 60)))
            file.write(json.dumps({"id": number, "kind": kind, "text": text, "tokens": tokens}) + "\n")


def write_reports(into):
    """Write the pages of all reports into a folder."""
    into = Path(into).resolve()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        write_corpus("corpus.jsonl")
        mmapds.build("corpus.jsonl", length="tokens")
        for name, options in REPORTS.items():
            report("corpus.jsonl", into / f"{name}.html", **options, force=True)


def main():
    """Write the pages and, if it is asked for, the picture."""
    into = Path(sys.argv[1])
    write_reports(into)
    if "--picture" in sys.argv:
        from tests.support.browser import Browser

        with Browser() as browser:
            browser.show(into / "report.html", width=1160, scheme="light")
            browser.picture(HERE / "report.png", height=1500)


if __name__ == "__main__":
    main()
