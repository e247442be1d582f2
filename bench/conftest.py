"""Fixtures of the benchmarks: each run of a benchmark file writes its table to bench/results."""

import os
import statistics
from collections.abc import Callable

import pytest

import mmapds
from bench.support import results
from bench.support.data import log_normal
from bench.support.timing import ratios

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands that are timed do not compile what they import each time

_rows: dict[str, list[str]] = {}


@pytest.fixture
def row(request):
    """Put a line into the table of this benchmark file: what, against what, figure, target."""

    def row(what: str, against: str, figure: str, target: str) -> None:
        line = f"| {what} | {against} | {figure} | {target} |"
        _rows.setdefault(request.path.stem, []).append(line)
        print(f"\n{line}")

    return row


@pytest.fixture
def compare(benchmark, row):
    """Time `ours` against `rival` in turn; report the ratio pair by pair and return its median."""

    def compare(what, ours: Callable[[], object], against, rival: Callable[[], object], target, rounds=9) -> float:
        found = ratios(ours, rival, rounds)
        median = statistics.median(found)
        row(what, against, f"{median:.3g}x ({min(found):.3g} to {max(found):.3g})", target)
        benchmark.extra_info |= {"against": against, "ratio": median, "target": target}
        benchmark.pedantic(ours, rounds=3)
        return median

    return compare


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A dataset of 10^8 records of one byte, with lengths that were added to its index."""
    path = tmp_path_factory.mktemp("large") / "x.jsonl"
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(b"1\n" * 10**6)
    mmapds.build(path)
    mmapds.add_column(path, "length", log_normal(10**8))
    yield mmapds.open(path)
    path.unlink()


@pytest.fixture
def one_thread():
    """Batches are collated in workers of a DataLoader, where torch has one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_sessionfinish():
    """Write the tables."""
    for name, rows in _rows.items():
        results.write(name, rows)
