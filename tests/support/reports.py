"""What reports are made of in tests: plain oracles of their numbers, and a reader of their pages."""

import html.parser
import itertools
import json
import math
import pickle
from fractions import Fraction
from types import SimpleNamespace

import mmapds
import mmapds.bench

VOID = {"meta", "path", "use", "rect", "image", "br", "link"}
"""Elements that end by themselves, in HTML or in the SVG of charts, where they are written so."""


def words(path, lengths, texts=None):
    """Write and index records that have these lengths."""
    records = [
        {"id": i, "text": texts[i] if texts else f"sample {i} " + "ab " * (n % 50), "n": n}
        for i, n in enumerate(map(int, lengths))
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    mmapds.build(path, length="n")
    return str(path)


def measure_in_this_process(monkeypatch):
    """Run the trials of `mmapds.bench` here: each new process loads torch, and test_bench.py starts such processes."""

    def run(*_, **given):
        found = mmapds.bench.measure(pickle.loads(given["input"]))
        return SimpleNamespace(returncode=0, stdout=pickle.dumps(found))

    monkeypatch.setattr(mmapds.bench, "subprocess", SimpleNamespace(run=run))


def all_batches(sampler):
    """The records of every batch of every whole step of an epoch: a list of steps, each a list of ranks."""
    return [[list(map(int, batch)) for batch in sampler.indices_at(step)] for step in range(len(sampler))]


def quantile(numbers, share):
    """The smallest number that at least a share of all is not above."""
    ordered = sorted(numbers)
    return ordered[max(math.ceil(Fraction(str(share)) * len(ordered)), 1) - 1]


def distance_of_gaps(window, records):
    """Kolmogorov's distance of the gaps of some records to those of random ones, looked for at every whole number."""
    found = sorted(set(window))
    gaps = [b - a for a, b in itertools.pairwise(found)]
    chance = len(found) / records
    return max(abs(sum(gap <= g for gap in gaps) / len(gaps) - (1 - (1 - chance) ** g)) for g in range(max(gaps) + 1))


class Page(html.parser.HTMLParser):
    """What a page holds: checks that elements are nested as they should be.

    Attributes:
      tags: names of elements, with their attributes.
      text: all text outside of styles.
    """

    def __init__(self, source):
        super().__init__()
        self.source, self.tags, self.text, self._open = source, [], "", []
        self.feed(source)
        self.close()
        assert not self._open, self._open
        self.names = {name for name, _ in self.tags}
        self.ids = [each["id"] for _, each in self.tags if "id" in each]
        self.charts = [each["aria-label"] for _, each in self.tags if each.get("role") == "img"]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open[-1:] == [tag]
            self._open.pop()

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += data
