"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

from pathlib import Path

import mmapds
from tests.support.forks import fork_beside_threads


def test_a_child_forked_beside_reading_threads_reads(write, tmp_path):
    sources = [write([{"n": number}], f"{number}.jsonl") for number in range(500)]
    mmapds.build(sources, out=tmp_path / "all.mmx", length="n")
    with mmapds.Writer(tmp_path / "a.mma", {"n": "int64", "text": "str", "x": ("float32", (None,))}) as writer:
        for number in range(50):
            writer.write({"n": number, "text": "x" * number, "x": [float(number)] * number})
    failed, errors = fork_beside_threads([tmp_path / "all.mmx", tmp_path / "a.mma"])
    assert failed == 0, errors


def test_nothing_that_is_computed_once_has_a_lock():
    """That of a functools.cached_property is one for all objects up to Python 3.11, and a child could wait for it."""
    assert not [path for path in Path(mmapds.__file__).parent.rglob("*.py") if "@cached_property" in path.read_text()]
