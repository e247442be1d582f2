"""Indexes whose metadata are odd and whose checksums are right: an error of mmapds's, and never another exception."""

import io
import json
import tarfile

import numpy as np
import pytest

import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.index_file import rewrite

ODD = [None, True, -1, 0, 1, 5, 2**31, 2**63, 2**64, 1.5, "", "x", "<u8", "|u1", "<f8", [], [1], {}, {"a": 1}]
ODD += ["../a.jsonl", "\udc80", "\0", "a" * 300, "fixed", "jsonl", "tar", "bytes()"]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """A small source of each kind, and its index."""
    folder = tmp_path_factory.mktemp("forged")
    paths = {}

    def write(name, data, **options):
        (folder / name).write_bytes(data)
        mmapds.build(folder / name, **options)
        paths[name] = folder / name

    write("a.jsonl", b"".join(b'{"n":%d,"text":"%s"}\n' % (i, b"x" * i) for i in range(6)), length="n")
    mmapds.add_column(folder / "a.jsonl", "c", [1.5] * 6)
    write("f.bin", bytes(range(240)), format="fixed", dtype="u2", shape=(3, 4), length="bytes()")
    write("p.dat", b"\3\0\0\0abc\1\0\0\0z", format="prefixed")
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for i in range(4):
            member = tarfile.TarInfo(f"k{i}.txt")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    write("t.tar", archive.getvalue())
    with mmapds.Writer(folder / "m.mma") as writer:
        for i in range(4):
            writer.write({"a": np.arange(i, dtype="f4"), "n": i, "s": "é"})
    paths["m.mma"] = folder / "m.mma"
    return paths


def places(value, path=()):
    """Every place in metadata, outermost first."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(metadata, path, change):
    """A copy in which the value at a place is another one, or gone."""
    copy = json.loads(json.dumps(metadata))
    *outer, last = path
    holder = copy
    for key in outer:
        holder = holder[key]
    if change == "gone":
        del holder[last]
    else:
        holder[last] = change
    return copy


def use(path):
    """All that is done with an index."""
    index = f"{path}.mmx"

    def read():
        ds = mmapds.open(path)
        ds.columns, [ds.column(name) for name in ds.columns], ds.length_order, ds.sources, repr(ds)
        return list(ds), [ds.where(i) for i in range(len(ds))], ds.take(range(len(ds))), ds[::2]

    yield read
    yield lambda: mmapds.open(path).find("k1")
    yield lambda: list(mmapds.TokenBudgetBatchSampler(mmapds.open(path), 1000, min_length=1))
    yield lambda: verify(Index(index))
    yield lambda: mmapds.build(path)
    yield lambda: mmapds.build(path, force=True)


@pytest.mark.parametrize("name", ["a.jsonl", "f.bin", "p.dat", "t.tar", "m.mma"])
def test_odd_metadata_are_errors_of_mmapds(indexed, name):
    path = indexed[name]
    index = path.with_name(f"{name}.mmx")
    good = index.read_bytes()
    metadata = Index(str(index)).metadata
    raw = []
    for place in list(places(metadata))[1:]:
        if place[0] == "builder" or len(place) > 4:
            continue
        for value in ("gone", *ODD):
            forged = changed(metadata, place, value)
            for action in use(path):
                index.write_bytes(good)
                rewrite(index, metadata=lambda _, forged=forged: forged)
                try:
                    action()
                except mmapds.Error:
                    pass
                except Exception as error:
                    raw.append((place, value, repr(error)[:100]))
    index.write_bytes(good)
    assert not raw
