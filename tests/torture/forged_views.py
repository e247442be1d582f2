"""Saved views in which some fields, values or numbers are any other, with checksums that are right.

They are refused by an error of mmapds's, or --verify finds something. Else they are a view, of other records perhaps:
each has the columns that its base has of it, and all are batched once.
"""

import tempfile
from itertools import islice
from pathlib import Path

import numpy as np

import mmapds
from mmapds.dataset.saving import examine_view
from mmapds.storage.index_file import SavedView
from tests.support.forged import REFUSED, Forgery, attempt, observe, plain
from tests.support.torture import repeat

FORGERIES = 40
"""In a case, of one view."""
RECORDS = 2200


def make_base(folder, random):
    """Write one or two sources and an index of them; open it."""
    paths = [folder / f"{name}.jsonl" for name in random.choice(["a", "ab"])]
    numbers = iter(range(RECORDS))
    for path in paths:
        line = b'{"n":%d,"len":%d,"i":%d,"f":%.1f}\n'
        lines = [line % (n, n * n % 37, n - 9, n / 2) for n in islice(numbers, RECORDS // len(paths))]
        path.write_bytes(b"".join(lines))
    mmapds.build(paths, out=folder / "base.mmx", length="len", columns={"size": "bytes()", "i": "i", "f": "f"})
    return mmapds.open(folder / "base.mmx")


def selections(random):
    """Keys of views of every kind: bits, arrays, ranges."""
    some = random.sample(range(RECORDS), 5)
    return [np.arange(RECORDS) % random.randint(2, 5) == 0, some, some * 2, slice(*sorted(some[:2])), slice(None)]


def is_verified(path):
    """Whether --verify finds nothing."""
    findings = attempt(lambda: examine_view(SavedView(str(path))))
    return findings is not REFUSED and not findings.problems


def check(path, base):
    """Read all of a view; where --verify finds nothing, compare it with its base."""
    found = observe(str(path))
    records = found.get("records", REFUSED)
    if not is_verified(path):
        return
    assert records is not REFUSED, "it passes --verify, and cannot be read"
    rows = [record["n"] for record in records]
    assert found["batch"] == records[::-1]
    assert found["view"] == records[::2]
    assert found["places"] == [tuple(base.where(row)) for row in rows]
    for name in ("length", "size", "i", "f"):
        if f"column {name}" in found:
            of_base = base.column(name)[np.array(rows, np.int64)]
            assert np.frombuffer(found[f"column {name}"][2], found[f"column {name}"][0]).tolist() == of_base.tolist()
    if found.get("batches", REFUSED) is not REFUSED:
        assert found["batches"] == list(range(len(rows)))
    if len(rows):
        opened = mmapds.open(path)
        assert attempt(lambda: plain(opened[-1])) == records[-1]


def one(random):
    with tempfile.TemporaryDirectory() as folder:
        base, path = make_base(Path(folder), random), Path(folder) / "view.mmx"
        base[random.choice(selections(random))].save(path)
        before = path.read_bytes()
        check(path, base)
        assert is_verified(path)
        for _ in range(FORGERIES):
            forgery = Forgery(before)
            changes = [forgery.change(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
            path.write_bytes(forgery.bytes())
            try:
                check(path, base)
            except Exception as error:
                raise AssertionError(f"{', '.join(map(str, changes))}: {error!r}") from error


def run(seconds, seed):
    """Forge until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed) * FORGERIES:,} forged views: refused, found by --verify, or views"
