"""Array files: written from records, and records to write."""

import numpy as np

import mmapds


def store(tmp_path, records, schema=None, name="a.mma", **options):
    """Write an array file and return its path."""
    path = str(tmp_path / name)
    with mmapds.Writer(path, schema, force=True, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def utterances(count, seed=0, shortest=0):
    """Records with a field of every kind, the arrays from `shortest` to 39 rows long."""
    rng = np.random.default_rng(seed)
    return [
        {
            "feats": rng.normal(size=(int(n), 8)).astype(np.float32),
            "text": f"sätze {i}",
            "id": i - 5,
            "meta": {"speaker": [i, None]},
            "raw": bytes(range(i % 7)),
            "score": i / 3,
            "clean": i % 2 == 0,
        }
        for i, n in enumerate(rng.integers(shortest, 40, count))
    ]
