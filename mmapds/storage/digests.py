"""The fingerprint of a file: a hash of its size and of samples of its bytes."""

import os
from collections.abc import Sequence

from xxhash import xxh3_64

BLOCKS, BLOCK = 16, 1 << 14  # blocks of a fingerprint, and bytes of each: few, as each is a seek
COVERED = BLOCKS * BLOCK  # bytes; a fingerprint covers all of a file up to this size


def fingerprint_of(descriptor: int, size: int) -> str:
    """Return xxh3-64 of the size and of 16 spaced blocks of 16 KiB, of the first `size` bytes of an open file."""
    digest = xxh3_64(size.to_bytes(8, "little"))
    begins: Sequence[int] = range(0, size, BLOCK)
    if size > COVERED:
        begins = [block * (size - BLOCK) // (BLOCKS - 1) for block in range(BLOCKS)]
    for begin in begins:  # in small pieces: large ones would allocate new memory each time
        digest.update(os.pread(descriptor, min(BLOCK, size - begin), begin))
    return digest.hexdigest()
