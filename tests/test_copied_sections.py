"""Sections that a new index takes over from the one before it: damage stays damage, and gets no checksum of its own."""

import os

import numpy as np
import pytest

import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.commands import command
from tests.support.files import flip


@pytest.fixture
def damaged(tmp_path):
    """A source whose index has a flipped bit in a column that was computed in Python; the column's name."""
    path = tmp_path / "train.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(50_000)))
    mmapds.build(path, columns={"squared": lambda sample: sample["id"] ** 2}, workers=1)
    index = f"{path}.mmx"
    flip(index, Index(index).sections["column:squared"].offset + 1000)
    with pytest.raises(mmapds.FormatError, match="section 'column:squared' does not match its checksum"):
        verify(Index(index))
    return str(path)


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda path: mmapds.add_column(path, "other", np.arange(50_000)),
        lambda path: mmapds.add_column(path, "length", np.arange(50_000)),
        lambda path: mmapds.build(path, hash=True),
    ],
    ids=["another column", "lengths", "a hash"],
)
def test_a_damaged_section_is_not_copied(damaged, rewrite):
    with open(f"{damaged}.mmx", "rb") as file:
        before = file.read()
    with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'column:squared' does not match its checksum"):
        rewrite(damaged)
    with open(f"{damaged}.mmx", "rb") as file:
        assert file.read() == before
    assert sorted(os.listdir(os.path.dirname(damaged))) == ["train.jsonl", "train.jsonl.mmx"]


def test_the_damaged_column_can_be_made_again(damaged):
    mmapds.add_column(damaged, "squared", lambda sample: sample["id"] ** 2, workers=1)
    assert (mmapds.open(damaged).column("squared") == np.arange(50_000, dtype=np.uint64) ** 2).all()
    assert command("--verify", damaged).returncode == 0
