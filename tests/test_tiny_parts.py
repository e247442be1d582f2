"""Blocks of tiny frames or members: what follows each of them is not copied for it."""

import gzip
import zlib
from types import SimpleNamespace

import pytest
from isal import isal_zlib

from mmapds.compression import gzip_blocks, zstd_blocks
from mmapds.storage.blocks import Edges
from tests.support.compressed import codec


def counting(module, name):
    """A module whose decoders count the bytes that they are given, and these numbers."""
    given = []

    class Decoder:
        def __init__(self, *arguments):
            self.decoder = getattr(module, name)(*arguments)

        def decompress(self, data, most):
            given.append(len(data))
            return self.decoder.decompress(data, most)

        def __getattr__(self, attribute):
            return getattr(self.decoder, attribute)

    return SimpleNamespace(**{**vars(module), name: Decoder}), given


def decode_members(zlib, data, most):
    return gzip_blocks.decode(zlib, data, most, Edges())


@pytest.mark.parametrize(
    ("decode", "module", "name", "compress"),
    [
        (zstd_blocks.decode, codec, "ZstdDecompressor", codec.compress),
        (decode_members, zlib, "decompressobj", gzip.compress),
        (decode_members, isal_zlib, "decompressobj", gzip.compress),
    ],
    ids=["zstd", "zlib", "isal"],
)
def test_a_block_of_tiny_frames_is_read_once(decode, module, name, compress):
    parts = [b"%d\n" % number for number in range(5000)]
    data, content = b"".join(map(compress, parts)), b"".join(parts)
    counted, given = counting(module, name)
    assert b"".join(decode(counted, data, len(content))) == content
    assert sum(given) < 2 * len(data) + 4096 * len(parts)
