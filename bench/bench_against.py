"""The hot paths of this tree against those of another commit, in turn: `make bench-against COMMIT=...`.

`PATHS=Sampler` chooses those whose names have that in them.
"""

import os

from bench.support.commits import ratios

GUARD = "bc72aca530ee"  # the last commit before reads of a map ran under a guard
COMMIT = os.environ.get("COMMIT") or GUARD


def test_hot_paths(row):
    for path, ratio in ratios(COMMIT, os.environ.get("PATHS", "")).items():
        row(path, f"commit {COMMIT}", ratio, "<= 1.03x" if COMMIT == GUARD else "")
