"""Reports: what the command takes to write the page of many records."""

import json
import subprocess
import sys

import pytest

import mmapds
from bench.support.data import jsonl
from bench.support.memory import peak_of
from bench.support.timing import timed

PLANS = {
    "batches of 32": (),
    "token budget 16,384": ("--max-tokens", "16384"),
    "packs of 4,096": ("--pack", "4096"),
}
COMMAND = ("-m", "mmapds", "report", "--force")


def measured(row, dataset, what, plan, target, tmp_path):
    """Put the seconds and the memory of a report into the table; its numbers are checked first."""
    (path,) = dataset.indexes
    found = subprocess.run([sys.executable, *COMMAND, path, *PLANS[plan], "--json"], capture_output=True, check=True)
    facts = json.loads(found.stdout)
    assert facts["coverage"]["records"] == len(dataset)
    assert facts["lengths"]["total"] == dataset.lengths.sum(dtype="u8")
    page = tmp_path / "report.html"
    arguments = (*COMMAND, path, *PLANS[plan], "--quiet", "-o", str(page))
    peaks = []
    seconds = timed(lambda: peaks.append(peak_of(*arguments)))
    assert f"{len(dataset):,}" in page.read_text()
    row(f"{what}, {plan}", "", f"{seconds:.1f} s", target)
    row(f"{what}, {plan}: peak anonymous memory", "", f"{peaks[0] / 1e6:.0f} MB", "<= 500 MB")


@pytest.mark.parametrize("plan", PLANS)
def test_a_million_records(row, tmp_path, plan):
    path = jsonl(306_500_000)
    mmapds.build(path, length="source_len")
    measured(row, mmapds.open(path), "10^6 records of JSON", plan, "<= 10 s", tmp_path)


@pytest.mark.parametrize("plan", PLANS)
def test_at_1e8(large, row, tmp_path, plan):
    measured(row, large, "10^8 records", plan, "<= 60 s", tmp_path)
