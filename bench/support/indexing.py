"""The command that indexes, and its rival."""

import subprocess
import sys
from pathlib import Path


def index(path, *options):
    """Index a source from nothing, by the command."""
    forget_index(path)
    subprocess.run([sys.executable, "-m", "mmapds.index", "--quiet", "--force", *options, path], check=True)


def forget_index(path):
    """Remove the index of a source: one that is there would have its columns measured again."""
    Path(f"{path}.mmx").unlink(missing_ok=True)


def count_lines(path):
    """Run `wc -l`."""
    return int(subprocess.run(["wc", "-l", path], capture_output=True, check=True).stdout.split()[0])
