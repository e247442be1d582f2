"""Indexes of every format, and saved views, in which some fields, values or numbers are any other, with checksums that
are right; also those of compressed sources, with their blocks and access points.

They are refused by an error of mmapds's, or --verify finds something. Else what is read through an index is right; and
a view is one, of other records perhaps: each has the columns that its base has of it, and all are batched once.
"""

import warnings
from itertools import islice
from pathlib import Path

import numpy as np

import mmapds
from mmapds import formats
from mmapds.dataset.saving import examine_view
from mmapds.storage.index_file import Index, SavedView
from tests.support.forged import COMPRESSED, KINDS, REFUSED, Forgery, attempt, make_source, observe, small_blocks, wrong
from tests.support.torture import doing, is_refused

EACH = 40
SAYS = "forged indexes and views: refused, right or found by --verify"
RECORDS = 2200
"""Of the base of a view."""


def one(random, folder):
    with small_blocks():
        make = random.choice([index_of, view_of])
        path, before, check = make(random, folder, random.choice([*KINDS, *COMPRESSED]))
        for _ in range(EACH):
            forgery = Forgery(before)
            changes = [forgery.change(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
            put(path, forgery, changes, check)


def put(path, forgery, changes, check):
    """Put a forged file into its place, and do with it all that is done with one."""
    path.write_bytes(forgery.bytes())
    with doing(path.name, *changes):
        check()


def index_of(random, folder, kind):
    """Return the index of a source of some kind, its bytes, and a check of what is read through it."""
    path = make_source(folder, kind)
    index = Path(f"{path}.mmx")
    good, given = observe(str(path)), chosen_by_the_user(index)

    def check():
        differing = wrong(str(path), str(index), good)
        assert not differing or chosen_by_the_user(index) != given, f"{differing} pass --verify"
        if random.random() < 0.05:
            with warnings.catch_warnings(action="ignore"):  # a column that Python computed is dropped
                is_refused(lambda: mmapds.build(path, force=random.random() < 0.5))

    return index, index.read_bytes(), check


def chosen_by_the_user(index):
    """The parameters of an index that nothing can be compared with, as the user chose them."""
    opened = attempt(lambda: Index(str(index)))
    options = attempt(lambda: formats.of_index(opened).options) if isinstance(opened, Index) else ()
    return {name: opened.parameters[name] for name in options if name in opened.parameters}


def view_of(random, folder, _kind):
    """Return a saved view: of bits, of an array, or of a range; its bytes, and a check of what is read through it."""
    sources, numbers = [folder / f"{name}.jsonl" for name in random.choice(["a", "ab"])], iter(range(RECORDS))
    for source in sources:
        line = b'{"n":%d,"len":%d,"i":%d,"f":%.1f}\n'
        lines = [line % (n, n * n % 37, n - 9, n / 2) for n in islice(numbers, RECORDS // len(sources))]
        source.write_bytes(b"".join(lines))
    mmapds.build(sources, out=folder / "base.mmx", length="len", columns={"size": "bytes()", "i": "i", "f": "f"})
    base, path = mmapds.open(folder / "base.mmx"), folder / "view.mmx"
    some = random.sample(range(RECORDS), 5)
    rows = [np.arange(RECORDS) % random.randint(2, 5) == 0, some, some * 2, slice(*sorted(some[:2])), slice(None)]
    base[random.choice(rows)].save(path)
    check_view(path, base)
    return path, path.read_bytes(), lambda: check_view(path, base)


def check_view(path, base):
    """Read all of a view; where --verify finds nothing, compare it with its base."""
    found = observe(str(path))
    findings = attempt(lambda: examine_view(SavedView(str(path))))
    if findings is REFUSED or findings.problems:
        return
    records = found.get("records", REFUSED)
    assert records is not REFUSED, "it passes --verify, and cannot be read"
    rows = [record["n"] for record in records]
    assert (found["batch"], found["view"]) == (records[::-1], records[::2])
    assert found["places"] == [tuple(base.where(row)) for row in rows]
    for name in ("length", "size", "i", "f"):
        if f"column {name}" in found:
            dtype, _, data = found[f"column {name}"]
            assert np.frombuffer(data, dtype).tolist() == base.column(name)[np.array(rows, np.int64)].tolist()
    if found.get("batches", REFUSED) is not REFUSED:
        assert found["batches"] == list(range(len(rows)))
