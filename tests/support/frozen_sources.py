"""Sources of every format and compression, whose answers are frozen: those of `golden`, and others.

They lie in an archive, as libraries may write them in another way tomorrow; `write_sources`, at commit d35b408f, wrote
them.
"""

from contextlib import chdir

import mmapds
from tests.support import golden
from tests.support.answers import hashed, text
from tests.support.files import DATA

FILES = DATA / "readings-v1.zip"


def prepare(directory):
    """Put all sources into a directory, and index those that cases share."""
    golden.unpack(directory)
    golden.unpack(directory, FILES)
    with chdir(directory):
        for name in ("typed.mma", "json.mma", "typed.jsonl"):
            mmapds.build(name)


PREFIXES = ("u32le", "u32be", "u64le", "u64be", "varint")
NPY = ["scalars", "bools", "halves", "big", "complex", "text", "unicode", "structs", "fortran", "objects", "none"]


def built(path, **options):
    """Index a source in an index that other cases do not have, and open it."""
    out = f"{path}-{hashed(text(sorted(options.items())).encode())}.mmx"
    return mmapds.open(mmapds.build(path, out=out, force=True, **options) and out)
