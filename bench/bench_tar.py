"""Tars of samples: finding them against Python's tarfile, reading them against webdataset, and finding one by key."""

import random
import tarfile

import pytest

import mmapds
from bench.support.data import DATA, once
from bench.support.timing import timed
from mmapds import _native

PARTS = ("cls", "json")
AT_ONCE = 1 << 16  # samples, as an index is built


def shard(samples, size):
    """A tar of samples of two members of `size` bytes, made once."""
    path = DATA / f"{samples}x{size}.tar"
    if path.exists():
        return str(path)
    body = random.Random(0).randbytes(size) + bytes(-size % 512)
    member = tarfile.TarInfo()
    member.size = size
    with once(path) as file:
        for number in range(samples):
            for part in PARTS:
                member.name = f"train/{number:08}.{part}"
                file.write(member.tobuf(tarfile.USTAR_FORMAT) + body)
        file.write(bytes(1024))
    return str(path)


def scan(path):
    """Count samples as an index is built, less the writing."""
    scanner, view, at = _native.TarScanner(path), memoryview(_native.Map(path)), 0
    out = [memoryview(bytearray(8 * AT_ONCE)) for _ in range(3)]
    status = found = 0
    while status == 0:
        status, more, at, *_ = scanner.scan(view[at:], len(view), True, *out)
        found += more
    return found


def by_tarfile(path):
    with tarfile.open(path) as tar:
        return sum(1 for _ in tar) // len(PARTS)


def by_webdataset(path):
    from webdataset.tariterators import group_by_keys, tar_file_expander  # make bench installs it, make test does not

    with open(path, "rb") as stream:
        return list(group_by_keys(tar_file_expander([{"url": path, "stream": stream}])))


@pytest.mark.parametrize(
    ("samples", "size", "target"),
    [(200_000, 300, ">= 1 M/s"), (10_000, 20_000, ">= 1 M/s"), (2_000, 100_000, ">= 1 M/s")],
)
def test_members_a_second(row, samples, size, target):
    path = shard(samples, size)
    assert scan(path) == samples
    best = min(timed(lambda: scan(path)) for _ in range(9))
    row(f"members of {size:,} bytes found, one core, warm", "", f"{len(PARTS) * samples / best / 1e6:.2f} M/s", target)


@pytest.mark.parametrize(("samples", "size"), [(20_000, 300), (10_000, 20_000)])
def test_scan(compare, samples, size):
    path = shard(samples, size)
    assert scan(path) == by_tarfile(path) == samples
    what = f"scan {samples:,} samples of two members of {size:,} bytes, warm"
    compare(what, lambda: scan(path), "tarfile", lambda: by_tarfile(path), "", rounds=3)


def test_build(compare):
    path = shard(20_000, 300)
    what = "mmapds.build of 20,000 samples, keys sorted and flushed to the disk"
    compare(what, lambda: mmapds.build(path, force=True), "tarfile", lambda: by_tarfile(path), "", rounds=3)


@pytest.mark.parametrize("size", [300, 20_000])
def test_random_samples(compare, size):
    path = shard(10_000, size)
    ds = mmapds.open(path, build=True)
    assert list(ds) == by_webdataset(path)
    order = random.Random(0).sample(range(len(ds)), len(ds))
    what = f"ds[i], every sample of 10,000 in random order, two members of {size:,} bytes, warm"
    compare(
        what, lambda: [ds[i] for i in order], "webdataset, in file order", lambda: by_webdataset(path), "", rounds=5
    )


def test_find(compare, row):
    path = shard(200_000, 300)
    ds = mmapds.open(path, build=True)
    order = random.Random(0).sample(range(len(ds)), 10_000)
    keys = [f"train/{i:08}" for i in order]
    assert [ds.find(key) for key in keys] == order
    what = "ds.find(key), 10,000 of 200,000 keys, warm"
    compare(what, lambda: [ds.find(key) for key in keys], "ds[i]", lambda: [ds[i] for i in order], "", rounds=5)
    row("ds.find(key)", "", f"{timed(lambda: [ds.find(key) for key in keys]) / len(keys) * 1e6:.1f} us", "")
