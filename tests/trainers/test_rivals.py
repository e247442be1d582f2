"""The comparison with rivals: answers that differ are an error, and tables are those of the numbers."""

import json

import pytest

from bench.rivals import contests, pages


def test_answers_that_differ_are_an_error():
    with pytest.raises(contests.DifferentError, match=r"^theirs: batch: expected c, found b$"):
        contests.check("theirs", {"read": "a", "batch": "c"}, {"read": "a", "batch": "b"})


def test_the_tables_of_the_documentation_are_those_of_the_numbers():
    facts = json.loads(pages.MEASURED.read_text())
    text = pages.PAGE.read_text()
    assert pages.documented(text, facts) == text, "run: .venv/bin/python -m bench.rivals --render"
    assert (pages.RESULTS / "rivals.md").read_text() == pages.result(facts)
