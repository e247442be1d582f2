"""The hot paths of this tree against those of another commit, in turn: `make bench-against COMMIT=...`."""

import os

import pytest

from bench.support.commits import both, ratio

GUARD = "bc72aca530ee"  # the last commit before reads of a map ran under a guard
COMMIT = os.environ.get("COMMIT") or GUARD
ROUNDS = 15


@pytest.fixture(scope="module")
def builds():
    with both(COMMIT) as started:
        yield started


def test_hot_paths(row, builds):
    ours, theirs = builds
    assert ours.paths == theirs.paths
    for path in ours.paths:
        row(path, f"commit {COMMIT}", ratio(*builds, path, ROUNDS), "<= 1.03x" if COMMIT == GUARD else "")
