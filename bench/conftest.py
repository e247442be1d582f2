"""What the benchmarks share: data made once, rivals timed in turn with ours, and a table of what came out.

A figure is a ratio to a limit or a rival in the same run, pair by pair: these machines are noisy, and a time alone
means nothing. Each run of a benchmark file writes its table to bench/results.
"""

import gc
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands that are timed do not compile what they import each time

RESULTS = Path(__file__).parent / "results"
DATA = Path(os.environ.get("MMAPDS_BENCH_DIR", "/tmp/mmapds-bench"))
_rows: dict[str, list[str]] = {}


def jsonl(size: int) -> Path:
    """A file of at least `size` bytes of JSON records of 306 bytes on average, made once."""
    path = DATA / f"{size}.jsonl"
    if path.exists():
        return path
    DATA.mkdir(parents=True, exist_ok=True)
    generator = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz     "
    lines = []
    for number in range(20_000):
        text = "".join(generator.choices(letters, k=generator.randint(40, 420)))
        length = generator.randint(50, 2000)
        record = {"id": number, "source": f"corpus/{number:05}.wav", "source_len": length, "target": text}
        lines.append(json.dumps(record).encode() + b"\n")
    with open(path.with_suffix(".part"), "wb") as file:
        while file.tell() < size:
            generator.shuffle(lines)
            file.write(b"".join(lines))
    path.with_suffix(".part").rename(path)
    return path


def anonymous(pid: int | str = "self") -> int:
    """Bytes of memory that are a process's own; mapped file pages are shared, and the kernel may take them back."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("smaps_rollup has no Anonymous line")


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
    """Time `ours` against `rival` in turn, A B A B; report the ratio pair by pair and return its median."""

    def compare(what, ours: Callable[[], object], against, rival: Callable[[], object], target, rounds=9) -> float:
        ours(), rival()
        ratios = []
        for _ in range(rounds):
            gc.collect()
            first = timed(ours)
            gc.collect()
            ratios.append(first / timed(rival))
        median = statistics.median(ratios)
        row(what, against, f"{median:.3g}x ({min(ratios):.3g} to {max(ratios):.3g})", target)
        benchmark.extra_info |= {"against": against, "ratio": median, "target": target}
        benchmark.pedantic(ours, rounds=3)
        return median

    return compare


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def pytest_sessionfinish():
    """Write the tables."""
    machine = f"{os.cpu_count()} cores, {_processor()}, {platform.system()}, Python {platform.python_version()}"
    for name, rows in _rows.items():
        head = [f"# {name}", "", f"{machine}. Made by `python -m pytest bench/{name}.py`.", ""]
        head += ["| what | against | measured | target |", "|---|---|---|---|"]
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"{name}.md").write_text("\n".join([*head, *rows]) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
