"""The pipelines of docs/from-huggingface.md and docs/from-webdataset.md, before and after, to the first batch.

Each runs in a process of its own, in a folder of its own with nothing cached from a run before.
"""

import io
import json
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import time

import numpy as np
import pytest
from PIL import Image

from bench.support.data import DATA
from bench.support.results import ROOT

TEXTS = 200_000
IMAGES = 4_000  # in each of two tars
ROUNDS = 3
AT_THE_END = """
next(iter({loader}))
import re, time
from pathlib import Path
(own,) = re.findall(r"^Anonymous: +([0-9]+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
print(time.time(), own)
"""


def texts(folder):
    with open(folder / "texts.jsonl", "w") as file:
        for i in range(TEXTS):
            file.write(json.dumps({"id": i, "text": f"text {i} " + "word " * (i * 7919 % 60)}) + "\n")


def images(folder):
    random = np.random.default_rng(0)
    for number in range(2):
        with tarfile.open(folder / f"images-{number}.tar", "w") as tar:
            for i in range(IMAGES):
                png = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (16, 16, 3), np.uint8)).save(png, "png")
                for name, data in (("png", png.getvalue()), ("cls", b"%d" % (i % 10))):
                    member = tarfile.TarInfo(f"{number}-{i:05}.{name}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def run(page, side, make):
    """Run one side of a page, 1 is before and 2 is after; return seconds to the first batch, and KB of its own then."""
    blocks = re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE)
    folder = DATA / "coming_from"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make(folder)
    end = AT_THE_END.format(loader=("their_loader", "our_loader")[side - 1])
    (folder / "pipeline.py").write_text(blocks[0] + blocks[side] + end)
    environment = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    begin = time.time()
    command = [sys.executable, "pipeline.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    finished, kilobytes = done.stdout.split()[-2:]
    return float(finished) - begin, int(kilobytes)


@pytest.mark.parametrize(
    ("page", "make", "what"),
    [
        ("from-huggingface.md", texts, f"Hugging Face datasets, {TEXTS:,} texts"),
        ("from-webdataset.md", images, f"WebDataset, {2 * IMAGES:,} images"),
    ],
)
def test_to_the_first_batch(row, page, make, what):
    pairs = [(run(page, 2, make), run(page, 1, make)) for _ in range(ROUNDS)]
    for number, unit in enumerate(("time to the first batch", "own memory then")):
        found = [ours[number] / theirs[number] for ours, theirs in pairs]
        figure = f"{statistics.median(found):.2g}x ({min(found):.2g} to {max(found):.2g})"
        row(f"the pipeline of docs/{page} with mmapds, indexing included: {unit}", what, figure, "")
