"""Files that an earlier version wrote open as they did, and what is written today has the same bytes.

Reading and converting give what they gave: samples, columns and views, by frozen answers.
"""

from itertools import groupby
from pathlib import Path

import pytest

from tests.support import converted, golden, readings
from tests.support.answers import answer, differing

COMPUTED = {"jsonl-computed"}  # has the identity of a function, which belongs to the code that ran


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("readings")
    golden.prepare(directory)
    return directory


@pytest.fixture(autouse=True)
def place(sources, monkeypatch):
    monkeypatch.chdir(sources)


@pytest.mark.filterwarnings("ignore:bad.jsonl")
def test_indexes_built_today_have_the_same_bytes():
    again, differ = Path("again.mmx"), []
    for name in sorted(golden.BUILDS.keys() - COMPUTED):
        again.unlink(missing_ok=True)
        golden.BUILDS[name](str(again))
        differ += [name] * (again.read_bytes() != Path(golden.built(name)).read_bytes())
    assert not differ


def test_an_array_file_written_today_has_the_same_bytes():
    golden.write_arrays("again.mma")
    assert Path("again.mma").read_bytes() == Path("written.mma").read_bytes()


CASES = {**readings.CASES, **converted.CASES}
FROZEN = {**readings.CASES.frozen(), **converted.CASES.frozen()}
GROUPS = {group: [*names] for group, names in groupby(sorted(CASES), lambda name: name.partition(":")[0])}


@pytest.mark.parametrize("group", GROUPS)
def test_reading_gives_what_it_gave(group, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda _: None)  # of some 400 files, which need not outlive this machine
    wrong = [leaf for name in GROUPS[group] for leaf in differing(answer(CASES[name]), FROZEN[name], name)]
    assert not wrong, "\n".join(wrong)


def test_every_answer_has_a_case():
    assert CASES.keys() == FROZEN.keys()
