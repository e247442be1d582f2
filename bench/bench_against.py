"""The hot paths of this tree against those of another commit, in turn: `make bench-against COMMIT=...`."""

import os

from bench.support.commits import ratios

GUARD = "bc72aca530ee"  # the last commit before reads of a map ran under a guard
COMMIT = os.environ.get("COMMIT") or GUARD


def test_hot_paths(row):
    for path, ratio in ratios(COMMIT).items():
        row(path, f"commit {COMMIT}", ratio, "<= 1.03x" if COMMIT == GUARD else "")
