"""The WebDataset library reads and writes the same samples as mmapds."""

import webdataset
from webdataset.tariterators import group_by_keys, tar_file_expander

import mmapds
from tests.support.tars import DIALECTS, archive, by_tarfile, members_of


def by_webdataset(path):
    """All samples of a tar, as the library groups them."""
    with open(path, "rb") as stream:
        return list(group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])))


def test_samples(tmp_path):
    files = [*members_of(directory="d.e/"), ("nodot", b"1"), ("__meta__", b"2"), ("d/.hidden", b"3"), ("a.B.c", b"4")]
    for dialect in DIALECTS:
        path = tmp_path / f"{dialect}.tar"
        path.write_bytes(archive(files, dialect))
        assert list(mmapds.open(path, build=True)) == by_webdataset(path) == by_tarfile(path)


def test_shards_that_it_writes(tmp_path):
    keys = (f"k{i:03}" for i in range(100))
    samples = [{"__key__": key, "json": {"i": i}, "cls": i % 7, "txt": "é" * i} for i, key in enumerate(keys)]
    with webdataset.ShardWriter(str(tmp_path / "shards-%06d.tar"), maxcount=30, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)
    decoded = mmapds.open(f"{tmp_path}/shards-{{000000..000003}}.tar", build=True, decode="wds")
    for found, wanted in zip(decoded, samples, strict=True):
        assert {name: found[name] for name in wanted} == wanted
