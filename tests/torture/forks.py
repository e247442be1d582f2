"""Children forked at any moment of what reading threads do, with any number of threads, sources and fields."""

import tempfile
from pathlib import Path

import mmapds
from tests.support.forks import fork_beside_threads
from tests.support.torture import repeat

FORKS = 20
"""In a case."""


def one(random):
    with tempfile.TemporaryDirectory() as folder:
        sources = []
        for number in range(random.choice([1, 2, 50, 500])):
            sources.append(Path(folder, f"{number}.jsonl"))
            sources[-1].write_bytes(b'{"n": 1}\n' * 2)
        mmapds.build(sources, out=Path(folder, "all.mmx"), length="n")
        schema = {f"f{number}": "int64" for number in range(random.randint(1, 40))}
        with mmapds.Writer(Path(folder, "a.mma"), schema) as writer:
            for _ in range(3):
                writer.write(dict.fromkeys(schema, 1))
        interval, threads = 10 ** random.uniform(-6, -2), random.randint(1, 8)
        paths = random.choice([["all.mmx"], ["a.mma"], ["all.mmx", "a.mma"]])
        failed, errors = fork_beside_threads(
            [Path(folder, name) for name in paths], interval=interval, forks=FORKS, threads=threads
        )
        assert failed == 0, errors


def run(seconds, seed):
    """Fork until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed) * FORKS:,} forks beside reading threads: every child read"
