"""Blocks of tiny frames or members: what follows each of them is not copied for it."""

import gzip
import os
import zlib
from types import SimpleNamespace

import pytest
from isal import isal_zlib

from mmapds import _native
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


def test_frames_that_are_read_in_order_are_read_once(tmp_path):
    """Also frames without content, which are in a block in any number."""
    parts = [b"%d\n" % number if number % 3 == 0 else b"" for number in range(20_000)]
    path = tmp_path / "a.zst"
    path.write_bytes(b"".join(map(codec.compress, parts)))
    counted, given = counting(codec, "ZstdDecompressor")
    file = _native.Map(os.fspath(path))
    stream = zstd_blocks.Stream(counted, file, 0, file.size)
    assert b"".join(iter(stream.read, b"")) == b"".join(parts)
    assert sum(given) < 2 * file.size + 4096 * len(parts)
