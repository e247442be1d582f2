"""Blocks of tiny frames or members: what follows each of them is not copied for it."""

import gzip
import zlib
from types import SimpleNamespace

import pytest
from isal import isal_zlib

from mmapds.compression import gzip as gzip_codec
from mmapds.compression import zstd
from mmapds.storage.blocks import Edges
from tests.support.compressed import InMemory, codec


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


def members(zlib, data):
    return gzip_codec.Stream(zlib, InMemory(data), 0, len(data), Edges())


def frames(module, data):
    return zstd.Stream(module, InMemory(data), 0, len(data))


@pytest.mark.parametrize(
    ("stream", "module", "name", "compress"),
    [
        (frames, codec, "ZstdDecompressor", codec.compress),
        (members, zlib, "decompressobj", gzip.compress),
        (members, isal_zlib, "decompressobj", gzip.compress),
    ],
    ids=["zstd", "zlib", "isal"],
)
def test_a_block_of_tiny_frames_is_read_once(stream, module, name, compress):
    """Also frames without content, which are in a block in any number."""
    parts = [b"%d\n" % number if number % 3 == 0 else b"" for number in range(20_000)]
    data = b"".join(map(compress, parts))
    counted, given = counting(module, name)
    assert b"".join(iter(stream(counted, data).read, b"")) == b"".join(parts)
    assert sum(given) < 2 * len(data) + 4096 * len(parts)
