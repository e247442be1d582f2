"""Samples of tars: decoded by extension as WebDataset does, found by key, and many shards in one index."""

import gzip
import io
import os
import pickle
import sys
import tarfile
import warnings
import zipfile

import numpy as np
import pytest
from PIL import Image

import mmapds
from mmapds.storage.index_file import Index
from tests.support.files import patched
from tests.support.index_file import verify
from tests.support.samples import npy
from tests.support.tars import archive, by_tarfile, check_against_tarfile, members_of, sized

# ---- decoding ----------------------------------------------------------------------------------------------------


def test_members_are_decoded_by_their_extension(write):
    """Arrays, images and what is not unpickled have tests of their own."""
    files = {
        "json": (b'{"a": [1, null]}', {"a": [1, None]}),
        "meta.JSN": (b"[1]", [1]),
        "txt": ("é".encode(), "é"),
        "cls": (b"7\n", 7),
        "index": (b"-3", -3),
        "bin": (b"\0", b"\0"),
        "inf.json": (b"[Infinity]", [float("inf")]),
        "b.json.GZ": (gzip.compress(b"[2]") + gzip.compress(b" "), [2]),
        "bin.gz": (gzip.compress(b"\1"), b"\1"),
    }
    path = write(archive([(f"d/a.{name}", data) for name, (data, _) in files.items()]), "a.tar")
    sample = pickle.loads(pickle.dumps(mmapds.open(path, build=True, decode="wds")))[0]
    assert sample == {"__key__": "d/a", "__url__": path, **{name.lower(): made for name, (_, made) in files.items()}}


NESTED = b"-" * 9000 + b"1\n"
UNDECODED = [
    *((name, b"x", "") for name in ("cls", "npy", "png", "npz")),
    ("json", b"{", ""),
    ("json.gz", b"[]", "Not a gzipped file"),
    ("txt.gz", gzip.compress(b"text")[:-9], "Compressed file ended"),
    ("txt", b"\xff", ""),
    ("npy", npy(np.array([{}], object), allow_pickle=True), "Object arrays cannot be loaded"),
    # Nested too deep, which is not a lack of memory.
    ("npy", b"\x93NUMPY\1\0" + len(NESTED).to_bytes(2, "little") + NESTED, "expected a header"),
]


def test_members_that_cannot_be_decoded_are_named(write):
    for name, data, message in UNDECODED:
        path = write(archive([("0.bin", b""), (f"a.{name}", data)]), "b.tar")
        mmapds.build(path, force=True)
        assert mmapds.open(path)[1][name] == data
        place = r"b\.tar: record 1 \(byte 512\): not a sample of valid members"
        with pytest.raises(mmapds.DecodeError, match=f"{place}: member '{name}' of sample 'a': {message}"):
            mmapds.open(path, decode="wds")[1]


THREE = npy(np.arange(3))
with warnings.catch_warnings(action="ignore"):  # of version 3.0, which few read
    UNICODE = npy(np.zeros(2, [("ü", "f4"), ("漢", ">i2")]))
ARRAYS = [
    npy(np.asfortranarray(np.arange(6).reshape(2, 3))),
    *(npy(np.arange(3, dtype=">i4")), UNICODE, npy(np.array(5.5)), npy(np.empty((3, 0)))),
    npy(np.array(["2020-01-01"], "M8[D]")),
    THREE + b"more",
    *(THREE[:-1], THREE.replace(b"(3,)", b"(-1,)"), THREE.replace(b"\x93NUMPY\1", b"\x93NUMPY\x09")),
]


@pytest.mark.parametrize("data", ARRAYS)
def test_arrays_are_those_of_numpy(write, data):
    with zipfile.ZipFile(both := io.BytesIO(), "w") as parts:
        parts.writestr("x.npy", data)
        parts.writestr("note.txt", b"text")
    ds = mmapds.open(write(archive([("a.npy", data), ("a.npz", both.getvalue())]), "a.tar"), build=True, decode="wds")
    try:
        wanted = np.load(io.BytesIO(data), allow_pickle=False)
    except ValueError:
        assert data in ARRAYS[-3:]
        with pytest.raises(mmapds.DecodeError, match="member 'npy' of sample 'a': "):
            ds[0]
        return
    assert ds[0]["npz"]["note.txt"] == b"text"
    for found in ds[0]["npy"], ds[0]["npz"]["x"]:
        assert (found.dtype, found.shape, found.strides) == (wanted.dtype, wanted.shape, wanted.strides)
        assert found.flags.writeable
        assert np.array_equal(found, wanted)


IMAGES = {  # by extension, how Pillow calls the type and modes that it saves
    "png": ("png", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
    **dict.fromkeys(("jpg", "jpeg", "jpe", "jfif"), ("jpeg", ["L", "CMYK"])),
    **dict.fromkeys(("ppm", "pbm", "pgm", "pnm"), ("ppm", ["L", "RGB"])),
    **dict.fromkeys(("tif", "tiff"), ("tiff", ["1", "CMYK", "F"])),
    **{kind: (kind, ["RGB"]) for kind in ("webp", "bmp", "gif")},
}


def test_images_are_in_rgb_for_pil_and_else_as_their_file_has_them(write):
    pixels, files = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8), []
    grey = {"I;16": pixels[:, :, 0].astype(np.uint16), "F": pixels[:, :, 0].astype(np.float32)}
    for extension, (kind, modes) in IMAGES.items():
        for mode in modes:
            image = Image.fromarray(grey[mode]) if mode in grey else Image.fromarray(pixels).convert(mode)
            image.save(out := io.BytesIO(), kind)
            files.append((f"{len(files)}.{extension}", out.getvalue()))
    path = mmapds.build(write(archive(files), "pictures.tar"))
    rgb, own = (mmapds.open(path, decode=decode) for decode in ("pil", "wds"))
    for (name, encoded), one, other in zip(files, rgb, own, strict=True):
        extension, wanted = name.rpartition(".")[2], Image.open(io.BytesIO(encoded))
        assert (one[extension].mode, np.asarray(one[extension]).shape) == ("RGB", (8, 8, 3)), name
        assert one[extension].tobytes() == wanted.convert("RGB").tobytes(), name
        assert (other[extension].mode, other[extension].tobytes()) == (wanted.mode, wanted.tobytes()), name


def test_without_pillow_images_keep_their_bytes_and_rgb_is_refused(write, monkeypatch):
    path = mmapds.build(write(archive([("a.png", b"no image")]), "a.tar"))
    for name in ("PIL", "PIL.Image"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.warns(UserWarning, match=r"^images stay bytes without Pillow; run: pip install pillow$"):
        assert mmapds.open(path, decode="wds")[0]["png"] == b"no image"
    with pytest.raises(mmapds.Error, match=r"^decode = 'pil' needs Pillow; run: pip install pillow$"):
        mmapds.open(path, decode="pil")


@pytest.fixture
def shard(write):
    """An indexed shard of 20 samples."""
    path = write(archive(members_of()), "a.tar")
    mmapds.build(path)
    return path


def test_decoders_that_take_the_location(shard):
    ds = mmapds.open(shard, decode=mmapds.takes_location(lambda record, location: (len(record), location)))
    wanted = [(len(ds.raw(i)), ds.where(i)) for i in range(20)]
    assert list(ds) == wanted
    assert list(ds[5:8]) == ds.take([5, 6, 7]) == ds[5:8].take([0, 1, 2]) == wanted[5:8]


def test_an_index_of_another_file_gives_errors_and_no_samples(shard):
    other = archive([("0.x", b"7" * 2000), ("zz.jpg", b"8"), *members_of()])
    patched(shard, 0, other[: os.path.getsize(shard)])
    ds = mmapds.open(shard)
    for read in (*(lambda i=i: ds[i] for i in range(20)), lambda: ds.find("s0003")):
        with pytest.raises(mmapds.Error, match="expected a sample of a tar, found another header at byte"):
            read()


def test_many_extensions_are_compared_when_they_are_read(write):
    files = [(f"a.{i}", b"%d" % i) for i in range(200)]
    for others, name in (([], "a.tar"), ([("a.199", b"")], "b.tar")):
        path = write(archive([*files, *others]), name)
        mmapds.build(path)
    check_against_tarfile(path.replace("b.tar", "a.tar"))
    with pytest.raises(mmapds.DecodeError, match=r"record 0 \(byte 0\): .* 'a': expected each extension once, found"):
        mmapds.open(path)[0]


# ---- keys --------------------------------------------------------------------------------------------------------


def test_a_view_finds_the_first_position_that_shows_a_key(shard, write):
    ds = mmapds.open(shard)
    again = mmapds.open(write(archive([(f"{key}.x", b"") for key in "abac"]), "1.tar"), build=True)
    two, shuffled = mmapds.concat([ds[15:], ds[[1, 3, 1]]]), ds.split([0.3, 0.7])[1]
    views = [ds, ds[::-1], ds[3:17:2], ds[[5, 5, 2]], *ds.split([0.5, 0.5], seed=None), shuffled, shuffled[[9, 2, 4]]]
    views += [shuffled[2:9], two, two[2:], two.split([0.5, 0.5])[0], again, again[1:], again[::-1]]
    for view in [*views, mmapds.concat([again[[3, 2]], again[[1, 0]]])]:
        shown = [sample["__key__"] for sample in view]
        assert [view.find(key) for key in shown] == [shown.index(key) for key in shown]
        for key in ({f"s{k:04}" for k in range(20)} | {"a", "b"}) - {*shown}:
            with pytest.raises(mmapds.KeyMissingError, match=key):
                view.find(key)


def test_keys_that_are_not_there(shard):
    for key in ("", "s", "s00030", "S0003", "漢", "\ud800", "x" * 1000, "no"):
        with pytest.raises(mmapds.KeyMissingError) as error:
            mmapds.open(shard).find(key)
    assert str(error.value) == "key = 'no', expected the key of one of the 20 records"
    assert isinstance(error.value, KeyError)


def test_many_keys_are_found(write):
    keys = [f"{i * 2654435761 % 2**32:08x}" for i in range(2300)]
    path = write(b"".join(sized(f"{key}.x", b"").tobuf(tarfile.USTAR_FORMAT) for key in keys), "a.tar")
    ds, index = mmapds.open(path, build=True), Index(f"{path}.mmx")
    assert [ds.find(key) for key in keys[::97]] == [*range(0, 2300, 97)]
    verify(index)


# ---- use ---------------------------------------------------------------------------------------------------------


def test_shards_in_one_index_and_in_many(write, tmp_path):
    for shard in range(4):
        write(archive([*members_of(30, f"{shard}/"), ("again.txt", b"%d" % shard)]), f"shards-{shard:06}.tar")
    shards = f"{tmp_path}/shards-{{000000..000003}}.tar"
    mmapds.build(shards)
    separate, one = mmapds.open(shards), mmapds.open(mmapds.build(shards, out=tmp_path / "all.mmx"))
    assert list(separate) == list(one) == by_tarfile(*one.sources)
    for ds in (one, separate):
        assert (ds.find("2/s0003"), ds.find("again"), ds[31:].find("again")) == (65, 30, 30)
