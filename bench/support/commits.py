"""This tree and another commit, in processes of their own that take paths in turn.

Both are built below `build`, each in a virtual environment of its own that sees the packages of this one.
"""

import statistics
import subprocess
import sys
import sysconfig
from collections import defaultdict
from contextlib import contextmanager

from bench.support.data import DATA
from bench.support.hot_paths import write_sources
from bench.support.results import ROOT

FOLDER = DATA / "against"
PROCESSES = 5  # of each: where one happens to have its memory makes it up to 5 % faster or slower than the next
ROUNDS = 5
HOT_PATHS = str(ROOT / "bench" / "support" / "hot_paths.py")


def environment(name):
    """Make a virtual environment that sees the packages of this one, unless it is there; return its Python."""
    folder = ROOT / "build" / "against" / name
    python = folder / "bin" / "python"
    if not (folder / "made").exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        purelib = subprocess.run(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], capture_output=True, check=True
        )
        # A path alone, so that the import hook of this tree's own build stays unseen.
        (ROOT / purelib.stdout.decode().strip() / "base.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "made").touch()
    return str(python)


def install(python, tree):
    """Install a tree as a wheel: what is imported through the hook of an editable build is a tenth slower."""
    options = ["-q", "--disable-pip-version-check", "--no-deps", "--force-reinstall"]
    cmake = f"--config-settings=build-dir={tree}/build/against/cmake"
    subprocess.run([python, "-m", "pip", "install", *options, cmake, str(tree)], check=True)


def build(commit):
    """Install a commit by itself; return its Python."""
    python = environment(commit)
    folder = ROOT / "build" / "against" / commit
    if not (folder / "installed").exists():
        (folder / "tree").mkdir(exist_ok=True)
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", folder / "tree"], input=archive.stdout, check=True)
        install(python, folder / "tree")
        (folder / "installed").touch()
    return python


def build_this_tree():
    """Install this tree by itself, as it is now; return its Python."""
    python = environment("ours")
    install(python, ROOT)
    return python


class Build:
    """A process that takes the paths it is told to, with one build."""

    def __init__(self, python, name):
        command = [python, "-P", HOT_PATHS, str(FOLDER), name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=DATA)
        self.paths = self._process.stdout.readline().rstrip("\n").split("\t")

    def seconds(self, path):
        self._process.stdin.write(path + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def end(self):
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def both(own, other, commit):
    """Start both builds, on the same sources, by their Pythons."""
    write_sources(FOLDER)
    ours, theirs = Build(own, "ours"), Build(other, commit)
    try:
        yield ours, theirs
    finally:
        ours.end()
        theirs.end()


def ratios(commit, named=""):
    """The time of each path that both have, in this tree, as a ratio to that of another commit, paired in turn.

    Args:
      named: a part of the names of the paths to take.
    """
    pairs = defaultdict(list)
    pythons = build_this_tree(), build(commit)
    for _ in range(PROCESSES):
        with both(*pythons, commit) as (ours, theirs):
            for path in [path for path in ours.paths if path in theirs.paths and named in path]:
                pairs[path] += [(ours.seconds(path), theirs.seconds(path)) for _ in range(ROUNDS)]
    return {path: _ratio(found) for path, found in pairs.items()}


def _ratio(pairs):
    found = [first / second for first, second in pairs]
    best = min(first for first, _ in pairs) / min(second for _, second in pairs)
    return f"{statistics.median(found):.3g}x ({min(found):.3g} to {max(found):.3g}), best of each {best:.3g}x"
