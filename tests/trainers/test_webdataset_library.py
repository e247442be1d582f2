"""The WebDataset library reads and writes the same samples as mmapds."""

import io

import numpy as np
import webdataset
from PIL import Image
from webdataset.tariterators import base_plus_ext, group_by_keys, tar_file_expander

import mmapds
from tests.support.tars import DIALECTS, archive, by_tarfile, key_of, members_of


def by_webdataset(path):
    """All samples of a tar, as the library groups them."""
    with open(path, "rb") as stream:
        return list(group_by_keys(tar_file_expander([{"url": str(path), "stream": stream}])))


def test_keys():
    for name in (
        "a.jpg",
        "a.seg.png",
        "d.e/a.b.c",
        "nodot",
        "d/.hidden",
        "d.e/.hidden",
        "./a.x",
        "",
        ".",
        "a/",
        "a.b/c/.x",
    ):
        assert key_of(name) == base_plus_ext(name), name


def test_samples(tmp_path):
    files = [*members_of(directory="d.e/"), ("nodot", b"1"), ("__meta__", b"2"), ("d/.hidden", b"3"), ("a.B.c", b"4")]
    for dialect in DIALECTS:
        path = tmp_path / f"{dialect}.tar"
        path.write_bytes(archive(files, dialect))
        assert list(mmapds.open(path, build=True)) == by_webdataset(path) == by_tarfile(path)


def test_images_in_rgb(tmp_path):
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8)).astype(np.uint8)).save(out, "jpeg")
    path = tmp_path / "a.tar"
    path.write_bytes(archive([("a.jpg", out.getvalue())]))
    decode = webdataset.Decoder([webdataset.imagehandler("pil")])
    wanted = decode(by_webdataset(path)[0])["jpg"]
    assert mmapds.open(path, build=True, decode="pil")[0]["jpg"].tobytes() == wanted.tobytes()


def test_shards_that_it_writes(tmp_path):
    samples = [
        {"__key__": f"k{i:03}", "json": {"i": i}, "cls": i % 7, "npy": np.full(i, i), "txt": "é" * i}
        for i in range(100)
    ]
    with webdataset.ShardWriter(str(tmp_path / "shards-%06d.tar"), maxcount=30, verbose=0) as sink:
        for sample in samples:
            sink.write(sample)
    decoded = mmapds.open(f"{tmp_path}/shards-{{000000..000003}}.tar", build=True, decode="wds")
    for found, wanted in zip(decoded, samples, strict=True):
        assert found["npy"].tolist() == wanted["npy"].tolist()
        assert [found[name] for name in ("json", "cls", "txt")] == [wanted[name] for name in ("json", "cls", "txt")]
