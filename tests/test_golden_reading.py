"""Reading and converting give what they gave: samples, batches, views, streams and errors, by frozen answers."""

import pytest

from tests.support import batches, converted, frozen_sources, readings
from tests.support.answers import answer, text

CASES = {**readings.CASES, **batches.CASES, **converted.CASES}
ANSWERS = {**readings.CASES.frozen(), **batches.CASES.frozen(), **converted.CASES.frozen()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("readings")
    frozen_sources.prepare(directory)
    return directory


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_it_gave(name, sources, monkeypatch):
    monkeypatch.chdir(sources)
    monkeypatch.setattr("os.fsync", lambda _: None)  # of some 400 files, which need not outlive this machine
    assert text(answer(CASES[name])) == text(ANSWERS[name])


def test_every_answer_has_a_case():
    assert CASES.keys() == ANSWERS.keys()
