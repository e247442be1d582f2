"""The modules of tests/torture, each for a few seconds; `make torture` lets them go on."""

import os

import pytest

from tests.support.torture import modules, repeat, run

SECONDS = float(os.environ.get("MMAPDS_TORTURE_SECONDS", "6"))


@pytest.mark.nightly
@pytest.mark.parametrize("name", modules())
def test_some_seconds_find_nothing(name):
    assert run(name, SECONDS, 1)


def test_a_finding_says_how_to_see_it_again():
    def third_fails(random, _folder, seen=[]):  # noqa: B006 - counts the cases
        seen.append(random.random())
        assert len(seen) < 3
        return seen

    with pytest.raises(AssertionError, match=r"run: python -m tests.torture test_torture --seed 5 --case 2$"):
        repeat(third_fails, 60, 5)
