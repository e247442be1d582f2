"""Files that an earlier version wrote open as they did, and what is written today has the same bytes."""

import json
from pathlib import Path

import pytest

from tests.support import golden

ANSWERS = json.loads(golden.ANSWERS.read_text())
COMPUTED = {"jsonl-computed"}  # has the identity of a function, which belongs to the code that ran


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    directory = tmp_path_factory.mktemp("golden")
    golden.unpack(directory)
    return directory


@pytest.fixture(autouse=True)
def place(frozen, monkeypatch):
    monkeypatch.chdir(frozen)


@pytest.mark.parametrize("name", golden.BUILDS)
def test_an_index_of_an_earlier_version_reads_the_same(name):
    assert golden.content(golden.built(name)) == ANSWERS["content"][name]
    assert golden.info(golden.built(name)) == ANSWERS["info"][name]


@pytest.mark.filterwarnings("ignore:bad.jsonl")
@pytest.mark.parametrize("name", sorted(golden.BUILDS.keys() - COMPUTED))
def test_an_index_built_today_has_the_same_bytes(name):
    again = Path("again.mmx")
    again.unlink(missing_ok=True)
    golden.BUILDS[name](str(again))
    assert again.read_bytes() == Path(golden.built(name)).read_bytes()


def test_an_array_file_written_today_has_the_same_bytes():
    golden.write_arrays("again.mma")
    assert Path("again.mma").read_bytes() == Path("written.mma").read_bytes()


@pytest.mark.parametrize("name", golden.ERRORS)
def test_a_common_error_has_the_same_text(name):
    assert golden.error(name) == ANSWERS["errors"][name]
