"""Columns of one name that mean something else in another index: `open` warns, and says how to make them alike."""

import re
import shlex
import warnings

import pytest

import mmapds
from tests.support.commands import mmapds as mmapds_command
from tests.support.commands import run
from tests.support.messages import check


def words(sample):
    return len(sample["t"].split())


def chars(sample):
    return len(sample["t"])


def renamed(function, name):
    function.__qualname__ = name
    return function


@pytest.fixture
def two(write):
    """Two sources of the same lines."""
    return [write([{"id": number, "t": "wörd " * number} for number in range(1, 51)], f"{name}.jsonl") for name in "ab"]


BY_COMMAND = [
    ("chars(t)", "bytes(t)", "expected chars(t), as in A, found bytes(t); run: INDEX B --length 'chars(t)'"),
    (
        "chars(t)",
        words,
        "expected chars(t), as in A, found function WORDS; run: INDEX B --length 'chars(t)' --force (or pass "
        "length=FUNCTION to mmapds.build for both)",
    ),
    (
        "chars(t)",
        [7] * 50,
        "expected chars(t), as in A, found numbers that Python computed; run: INDEX B --length 'chars(t)' --force (or "
        "pass length=FUNCTION to mmapds.build for both)",
    ),
]
BY_FUNCTION = [
    (
        words,
        "chars(t)",
        "expected function WORDS, as in A, found chars(t); pass length=FUNCTION to mmapds.build for both",
    ),
    (
        words,
        chars,
        "expected function WORDS, as in A, found function CHARS; pass length=FUNCTION to mmapds.build for both",
    ),
    (
        [7] * 50,
        "chars(t)",
        "expected numbers that Python computed, as in A, found chars(t); pass length=FUNCTION to mmapds.build for both",
    ),
]


def made(path, length):
    if isinstance(length, list):
        mmapds.build(path)
        mmapds.add_column(path, "length", length)
    else:
        mmapds.build(path, length=length)


def told(paths, way=mmapds.open):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        way(paths)
    assert {each.filename for each in caught} <= {__file__}
    return [str(each.message) for each in caught]


@pytest.mark.parametrize(("first", "second", "message"), BY_COMMAND + BY_FUNCTION)
def test_a_column_that_means_something_else_is_warned_of(two, first, second, message):
    for path, length in zip(two, (first, second), strict=True):
        made(path, length)
    (found,) = told(two)
    a, b = two
    message = message.replace("WORDS", f"{__name__}.words").replace("CHARS", f"{__name__}.chars")
    message = message.replace(" A", f" {a}.mmx").replace("INDEX B", f"python -m mmapds.index {b}")
    assert found == f"{b}.mmx: column 'length': {message}"
    assert told(two, lambda paths: mmapds.concat(map(mmapds.open, paths))) == [found]
    assert told(two, lambda paths: mmapds.open(paths[0])[:2] + mmapds.open(paths[1])) == [found]
    check(found)
    if command := re.search(r"run: python (.*?)( \(or .*)?$", found):
        done = run(*shlex.split(command[1]))
        assert done.returncode == 0, done.stderr
        assert told(two) == []
    if "FUNCTION" in found:
        mmapds.build(two, length=words)
        assert told(two) == []
        assert mmapds.open(two).lengths.tolist() == [*range(1, 51)] * 2


def test_other_functions_are_passed_too(two):
    mmapds.build(two, length=words, columns={"half": chars})
    mmapds.add_column(two[1], "length", chars)
    (found,) = told(two)
    assert found.endswith("; pass length=FUNCTION, columns={'half': FUNCTION} to mmapds.build for both")
    check(found)
    mmapds.build(two, length=words, columns={"half": chars})
    assert told(two) == []


def test_two_versions_of_a_function_are_told_apart(two):
    for path, version in zip(two, (1, "b"), strict=True):
        mmapds.build(path, length=words, version=version)
    (found,) = told(two)
    assert f"expected function {__name__}.words:1, as in {two[0]}.mmx, found function {__name__}.words:b; " in found
    check(found)


@pytest.mark.parametrize("makes", ["chars(t)", words])
def test_columns_that_mean_the_same_are_not_warned_of(two, makes):
    mmapds.build(two, length=makes)
    mmapds.build(two[1], columns={"size": "bytes()"}, **({"length": makes} if makes is words else {}))
    assert told(two) == []
    assert mmapds.open(two).columns == ["length"]


def test_numbers_that_were_given_may_be_those_of_any_function(two, write):
    other = write([{"t": "a"}] * 3, "c.jsonl")
    mmapds.build([*two, other])
    mmapds.add_column(two[0], "length", [3] * 50)
    mmapds.add_column(two[1], "length", words)
    mmapds.add_column(other, "length", [3] * 3)
    assert told([*two, other]) == []
    mmapds.add_column(other, "length", chars)
    (found,) = told([*two, other])
    assert f"expected function {__name__}.words, as in {two[1]}.mmx, found function {__name__}.chars" in found


def test_the_command_says_that_a_column_is_of_several_things(two):
    mmapds.build(two[0], length="chars(t)")
    mmapds.build(two[1], length=words)
    for given, meaning in (([two[0]], "chars(t)"), ([two[1]], "function"), (two, "several")):
        done = mmapds_command("info", *given)
        assert done.returncode == 0, done.stderr
        (line,) = (line for line in done.stdout.splitlines() if line.split()[:1] == ["length"])
        assert line.split()[1] == meaning
