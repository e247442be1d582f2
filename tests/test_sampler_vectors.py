"""Samplers, plans and orders give what they gave when their vectors were frozen."""

import json

import pytest

from tests.support import vectors


@pytest.fixture(scope="module")
def frozen():
    return json.loads(vectors.PATH.read_text())


def test_samplers_plans_and_orders_are_as_they_were_frozen(frozen):
    found = vectors.compute()
    assert list(found) == list(frozen)
    assert [name for name in found if found[name] != frozen[name]] == []
