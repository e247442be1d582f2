"""A source of every format, indexed."""

import struct

import numpy as np

import mmapds
from tests.support.array_files import store
from tests.support.samples import npy, write_pair, write_tfrecords
from tests.support.tars import archive, members_of

COUNT = 300


def write_all(directory, count=COUNT, longest=900):
    """Write and index a source of each format, none with a zero byte at its end; return format name to path."""
    paths = {name: str(directory / f"a.{name}") for name in ("jsonl", "fixed", "npy", "prefixed", "tfrecord", "tar")}
    rng = np.random.default_rng(0)
    texts = [bytes(rng.integers(1, 255, rng.integers(1, longest), dtype=np.uint8)) for _ in range(count)]
    with open(paths["jsonl"], "wb") as file:
        for number, text in enumerate(texts):
            file.write(b'{"id": %d, "text": "%s"}\n' % (number, text.hex().encode()))
    tokens = rng.integers(2**30, 2**31, (count, 50), dtype=np.int32)
    tokens.tofile(paths["fixed"])
    with open(paths["npy"], "wb") as file:
        file.write(npy(tokens))
    with open(paths["prefixed"], "wb") as file:
        for text in texts:
            file.write(struct.pack("<I", len(text)) + text)
    write_tfrecords(paths["tfrecord"], ({"text": (text, "byte")} for text in texts))
    with open(paths["tar"], "wb") as file:
        file.write(archive(members_of(count)))
    paths["megatron"] = write_pair(directory / "b.bin", [row[: 1 + k % 50] for k, row in enumerate(tokens)], "int32")
    paths["arrays"] = store(
        directory, ({"tokens": row[: 1 + k % 50], "name": f"n{k}"} for k, row in enumerate(tokens)), length="tokens"
    )
    mmapds.build(paths["jsonl"], length="chars(text)")
    mmapds.build(paths["fixed"], format="fixed", dtype="int32", shape="50", length="bytes()")
    mmapds.build(paths["prefixed"], format="prefixed", prefix="u32le")
    for name in ("npy", "tfrecord", "tar", "megatron"):
        mmapds.build(paths[name])
    return {name: str(path) for name, path in paths.items()}
