"""A child that is forked while other threads of its parent read: it reads too, and never waits for what they held."""

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
