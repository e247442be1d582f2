"""Reading and converting give what they gave: samples, columns and views, by frozen answers."""

from itertools import groupby

import pytest

from tests.support import converted, frozen_sources, readings
from tests.support.answers import answer, differing

CASES = {**readings.CASES, **converted.CASES}
ANSWERS = {**readings.CASES.frozen(), **converted.CASES.frozen()}
GROUPS = {group: [*names] for group, names in groupby(sorted(CASES), lambda name: name.partition(":")[0])}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("readings")
    frozen_sources.prepare(directory)
    return directory


@pytest.mark.parametrize("group", GROUPS)
def test_it_gives_what_it_gave(group, sources, monkeypatch):
    monkeypatch.chdir(sources)
    monkeypatch.setattr("os.fsync", lambda _: None)  # of some 400 files, which need not outlive this machine
    wrong = [leaf for name in GROUPS[group] for leaf in differing(answer(CASES[name]), ANSWERS[name], name)]
    assert not wrong, "\n".join(wrong)


def test_every_answer_has_a_case():
    assert CASES.keys() == ANSWERS.keys()
