"""Indexes of every format in which some fields, values or numbers are any other, with checksums that are right; also
those of compressed sources, with their blocks and access points.

They are refused by an error of mmapds's; else what is read is right, or --verify says that it is not.
"""

import tempfile
from pathlib import Path

import mmapds
from mmapds import formats
from mmapds.storage.index_file import Index
from tests.support.forged import COMPRESSED, KINDS, Forgery, attempt, make_source, observe, small_blocks, wrong
from tests.support.torture import is_refused, repeat

FORGERIES = 40
"""In a case, of one format."""


def chosen_by_the_user(index):
    """The parameters of an index that nothing can be compared with, as the user chose them."""
    opened = attempt(lambda: Index(index))
    options = attempt(lambda: formats.of_index(opened).options) if isinstance(opened, Index) else ()
    return {name: opened.parameters[name] for name in options if name in opened.parameters}


def as_it_is(path):
    """The bytes of the index of a source, and what is read by way of it."""
    index = f"{path}.mmx"
    return Path(index).read_bytes(), observe(str(path)) | {"chosen": chosen_by_the_user(index)}


def check(random, path, good, forgery, changes):
    """Put a forged index into its place, and do with it all that is done with an index."""
    index = f"{path}.mmx"
    Path(index).write_bytes(forgery.bytes())
    try:
        differing = wrong(str(path), index, good)
        assert not differing or chosen_by_the_user(index) != good["chosen"], f"{differing} pass --verify"
        if random.random() < 0.05:
            is_refused(lambda: mmapds.build(path, force=random.random() < 0.5))
    except Exception as error:
        raise AssertionError(f"{path.name}: {changes}: {error!r}") from error


def one(random):
    with tempfile.TemporaryDirectory() as folder, small_blocks():
        path = make_source(Path(folder), random.choice([*KINDS, *COMPRESSED]))
        before, good = as_it_is(path)
        for _ in range(FORGERIES):
            forgery = Forgery(before)
            changes = [forgery.change(random) for _ in range(random.choice([1, 1, 1, 2, 3]))]
            check(random, path, good, forgery, ", ".join(changes))


def run(seconds, seed):
    """Forge until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed) * FORGERIES:,} forged indexes: refused, right or found by --verify"
