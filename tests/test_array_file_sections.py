"""Sections of an array file that its checksums agree with, and that do not fit its records."""

import re

import numpy as np
import pytest

import mmapds
from tests.support.array_files import store
from tests.support.index_file import rewrite

SCHEMA = {"x": ("float32", (None,)), "n": "int64"}


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("records", None, "expected a section 'records', found none"),
        ("offsets", None, "section 'offsets': expected 3 numbers, found no such section"),
        ("column:n", None, "section 'column:n': expected 3 numbers, found no such section"),
        ("offsets", {"shape": [2]}, "section 'offsets': expected 3 numbers, found 2"),
        ("column:x_length", {"shape": [4]}, "section 'column:x_length': expected 3 numbers, found 4"),
        ("offsets", {"dtype": "|u1"}, "section 'offsets': expected numbers of <u4 or <u8, found \\|u1"),
        ("column:n", {"dtype": "|u1"}, "section 'column:n': expected numbers of <u4 or <u8 or <i8, found \\|u1"),
        ("column:n", {"xxh3": "0"}, "section 'column:n' does not match its checksum: expected 0, found [0-9a-f]{16}"),
    ],
)
def test_a_section_that_does_not_fit_is_named(tmp_path, name, change, message):
    path = store(tmp_path, [{"x": np.ones(i, np.float32), "n": i} for i in range(3)], SCHEMA, index=False)

    def changed(metadata):
        sections = metadata["sections"]
        assert name in sections
        if change is None:
            del sections[name]
        else:
            sections[name] |= change
        return metadata

    rewrite(path, metadata=changed)
    with pytest.raises(mmapds.FormatError) as refused:
        mmapds.build(path)
    assert re.fullmatch(f"{re.escape(path)}: DAMAGED: {message}; write or copy it again", str(refused.value))
