"""Columns of one name that mean something else in another index: `open` warns."""

import warnings

import pytest

import mmapds
from tests.support.commands import mmapds as mmapds_command
from tests.support.messages import check


def words(sample):
    return len(sample["t"].split())


def chars(sample):
    return len(sample["t"])


@pytest.fixture
def two(write):
    """Two sources of the same lines."""
    return [write([{"id": number, "t": "wörd " * number} for number in range(1, 51)], f"{name}.jsonl") for name in "ab"]


def told(paths, way=mmapds.open):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way(paths)
    assert {each.filename for each in caught} <= {__file__}
    return [str(each.message) for each in caught]


WORDS, CHARS = f"{__name__}.words", f"{__name__}.chars"


@pytest.mark.parametrize(
    ("lengths", "versions", "made"),
    [
        (("chars(t)", "bytes(t)"), (None, None), ("chars(t)", "bytes(t)")),
        (("chars(t)", words), (None, None), ("chars(t)", WORDS)),
        ((words, chars), (None, None), (WORDS, CHARS)),
        ((words, words), (1, "b"), (f"{WORDS}:1", f"{WORDS}:b")),
    ],
)
def test_a_column_that_means_something_else_is_warned_of(two, lengths, versions, made):
    for path, length, version in zip(two, lengths, versions, strict=True):
        mmapds.build(path, length=length, version=version)
    a, b = two
    message = f"{b}.mmx: column 'length': expected {made[0]}, as in {a}.mmx, found {made[1]}"
    check(message)
    assert told(two) == [message]
    assert told(two, lambda paths: mmapds.concat(map(mmapds.open, paths))) == [message]
    assert told(two, lambda paths: mmapds.open(paths[0])[:2] + mmapds.open(paths[1])) == [message]
    mmapds.build(two, length=lengths[0], version=versions[0], force=True)
    assert told(two) == []


def test_columns_that_mean_the_same_or_were_given_are_not_warned_of(two):
    mmapds.build(two, length=words)
    mmapds.build(two[1], columns={"size": "bytes()"}, length=words)
    assert told(two) == []
    assert mmapds.open(two).columns == ["length"]
    mmapds.add_column(two[0], "length", [3] * 50)
    assert told(two) == []


def test_the_command_says_that_a_column_is_of_several_things(two):
    mmapds.build(two[0], length="chars(t)")
    mmapds.build(two[1], length=words)
    for given, meaning in (([two[0]], "chars(t)"), ([two[1]], "function"), (two, "several")):
        done = mmapds_command("info", *given)
        assert done.returncode == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == ["length"])
        assert line.split()[1] == meaning
