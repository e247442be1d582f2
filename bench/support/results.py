"""The tables of results, one for each benchmark file, in bench/results."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("mmap-datasets", "numpy", "torch")
HEAD = "| what | against | measured | target |\n|---|---|---|---|\n"


def write(name: str, rows: list[str], folder: Path = RESULTS) -> None:
    """Write the table of a benchmark file, with all that one needs to make it again."""
    made = f"Made by `python -m pytest bench/{name}.py`."
    folder.mkdir(exist_ok=True)
    text = "\n".join([f"# {name}", "", f"{described()} {made}", "", HEAD])
    (folder / f"{name}.md").write_text(text + "\n".join(rows) + "\n")


def described() -> str:
    """Say on what machine, with what software and when this runs."""
    return f"{_machine()}.\n{_software()}.\n{_when()}."


def _machine() -> str:
    return f"{os.cpu_count()} cores, {_processor()}, {platform.system()}"


def _software() -> str:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return f"Python {platform.python_version()}, {versions}"


def _when() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}, commit {_commit()}"


def _commit() -> str:
    """The commit that was measured, and whether the code has changes that are in none."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        changed = _git("status", "--porcelain", "--", "mmapds", "csrc", "bench", ":!bench/results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit} with changes" if changed else commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
