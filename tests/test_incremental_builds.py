"""Builds again and again, while sources come, go, grow and change: each is byte for byte a build of everything."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.indexes import built

FIRST = '{"n": 1, "text": "there is one"}\n'

numbers = st.one_of(st.integers(0, 99), st.sampled_from([2**32, 2**63, -1, -(2**63), 5.0, 0.5]))
lines = st.one_of(
    st.builds(lambda n, size: json.dumps({"n": n, "text": "x" * size}), numbers, st.integers(0, 40)),
    st.sampled_from(['{"text": "lacks n"}', '{"n": 1, "te', "nonsense", "", "  "]),
)
texts = st.builds("{}{}".format, st.lists(lines, max_size=6).map("\n".join), st.sampled_from(["", "\n", "\n \n"]))
"""What may end without a newline, so that what is appended goes on with its last line."""


def append(sources, at, text):
    sources[at].write_text(sources[at].read_text() + text)


def replace(sources, at, text):
    sources[at].write_text(FIRST + text)


def add(sources, at, text):
    path = sources[at].with_name(f"{len(list(sources[at].parent.iterdir()))}.jsonl")
    path.write_text(FIRST + text)
    sources.insert(at, path)


def remove(sources, at, _):
    if len(sources) > 1:
        del sources[at]


changes = st.tuples(st.sampled_from([append, append, replace, add, remove]), st.integers(0, 9), texts)


def check(directory, begin, steps, options):
    """Build after each step with what the last index knows, and compare that with a build of everything."""
    sources, out = [directory / f"{number}.jsonl" for number in range(len(begin))], directory / "all.mmx"
    for path, text in zip(sources, begin, strict=True):
        path.write_text(FIRST + text)
    for step in [(), *steps]:
        for change, at, text in step:
            change(sources, at % len(sources), text)
        mmapds.build(sources, out=out, grown=True, **options)
        found = out.read_bytes()
        verify(Index(str(out)))
        assert found == built(sources, directory / "direct.mmx", **options)


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
@settings(max_examples=100)
@given(
    begin=st.lists(texts, min_size=1, max_size=4),
    steps=st.lists(st.lists(changes, min_size=1, max_size=2), min_size=1, max_size=4),
    skip=st.booleans(),
)
def test_each_is_the_index_of_a_build_of_everything(tmp_path_factory, begin, steps, skip):
    columns = {"length": "bytes()", "n": "n"}
    options = {"format": "jsonl", "columns": columns, "missing": "skip" if skip else 7, "bad": "skip"}
    check(tmp_path_factory.mktemp("steps"), begin, steps, options)


@pytest.mark.filterwarnings("ignore:.*such lines? left out")
def test_a_last_line_that_goes_on_and_is_left_out_then_makes_the_record_before_it_longer(tmp_path):
    steps = [[(append, 0, '{"n": 4}\n{"n": 5}\n')]]
    check(tmp_path, ['{"n": 2, "text": "the largest of all"}\n{"n": 3}'], steps, {"columns": {"n": "n"}, "bad": "skip"})


@pytest.mark.parametrize("number", [2**32, 2**63, -1, 0.5, 5.0])
@pytest.mark.parametrize("others", [3, 2**32, -7, 3.0, 1.5])
def test_a_column_becomes_as_narrow_as_the_sources_that_are_left_need(tmp_path, number, others):
    begin = [f'{{"n": {n}}}\n' for n in (others, number, 4)]
    for change in (remove, replace):
        check(tmp_path, begin, [[(change, 1, "")]], {"columns": {"n": "n"}})


@pytest.mark.filterwarnings("ignore:.*left out of")
@pytest.mark.parametrize("number", [2**32, 2**63, -1, 0.5, 5.0])
def test_a_column_becomes_as_narrow_as_the_lines_need_that_are_still_records(tmp_path, number):
    begin = "\n".join(f'{{"n": {n}}}' for n in (1, 2, number))
    check(tmp_path, [begin], [[(append, 0, "x\n")]], {"columns": {"n": "n"}, "bad": "skip"})
