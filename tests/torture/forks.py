"""Children forked at any moment of what reading threads do, with any number of threads, sources and fields."""

import mmapds
from tests.support.forks import fork_beside_threads

EACH = 20
SAYS = "forks beside reading threads: every child read"


def one(random, folder):
    sources = [folder / f"{number}.jsonl" for number in range(random.choice([1, 2, 50, 500]))]
    for source in sources:
        source.write_bytes(b'{"n": 1}\n' * 2)
    mmapds.build(sources, out=folder / "all.mmx", length="n")
    schema = {f"f{number}": "int64" for number in range(random.randint(1, 40))}
    with mmapds.Writer(folder / "a.mma", schema) as writer:
        for _ in range(3):
            writer.write(dict.fromkeys(schema, 1))
    paths = [folder / name for name in random.choice([["all.mmx"], ["a.mma"], ["all.mmx", "a.mma"]])]
    options = {"interval": 10 ** random.uniform(-6, -2), "threads": random.randint(1, 8)}
    failed, errors = fork_beside_threads(paths, forks=EACH, **options)
    assert failed == 0, errors
