"""Files from somebody else: small ones that make much of themselves, that name other files, or that carry code."""

import gzip
import io
import os
import pickle
import struct
import zipfile
import zlib
from contextlib import suppress

import h5py
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import mmapds
from mmapds.convert import convert
from tests.support.commands import run
from tests.support.samples import npy, npz
from tests.support.sanitizers import limits_memory
from tests.support.tars import archive

GIB = 1 << 30


def member_of(write, name, data, decode="wds"):
    """The sample of a tar with one member, decoded."""
    return mmapds.open(write(archive([("0.txt", b""), (f"a.{name}", data)]), "a.tar"), build=True, decode=decode)[1]


def refused(write, name, data, match, decode="wds"):
    with pytest.raises(mmapds.DecodeError, match=rf"a\.tar: record 1 \(byte 512\): .*'{name}' of sample 'a': {match}"):
        member_of(write, name, data, decode)


# ---- members of tars ------------------------------------------------------------------------------------------------


def image(kind, width=3, height=2, mode="RGB"):
    PIL.Image.new(mode, (width, height)).save(out := io.BytesIO(), kind)
    return out.getvalue()


def tiff(side, tile):
    """A grey image of one compressed tile, which may be larger."""
    data = zlib.compress(bytes([7]) * 32 * 32)
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 8, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("decode", ["wds", "pil"])
def test_images_of_many_pixels(write, monkeypatch, decode):
    """A tile would be read whole, however small the image is."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 2000)
    for side in (45, 90):  # of which Pillow itself refuses the last one alone
        refused(write, "png", image("png", side, side, "1"), r".*pixels", decode)
    assert member_of(write, "tiff", tiff(32, 32), decode)["tiff"].getpixel((9, 9)) in (7, (7, 7, 7))
    refused(write, "tiff", tiff(32, 65536), "expected up to 2000 pixels, found 4294967296", decode)
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 10**9)
    assert member_of(write, "png", image("png", 45, 45), decode)["png"].size == (45, 45)


def test_images_of_another_type_than_their_extension_says(write):
    """Pillow runs Ghostscript for an EPS, whatever its extension."""
    for kind in ("jpeg", "gif", "bmp", "webp", "ppm", "tiff"):
        assert member_of(write, "png", image(kind))["png"].size == (3, 2)
    for kind in ("eps", "pdf", "ico"):
        refused(write, "jpg", image(kind), "expected an image of type JPEG, PNG, WEBP, GIF, BMP, PPM, TIFF, found")


def header_of(shape):
    np.lib.format.write_array_header_1_0(out := io.BytesIO(), {"descr": "<f8", "fortran_order": False, "shape": shape})
    return out.getvalue()


def test_an_npz_that_is_a_zip_bomb(write, monkeypatch):
    np.savez_compressed(out := io.BytesIO(), **{name: np.zeros(1 << 20, np.uint8) for name in "abc"})
    assert sorted(member_of(write, "npz", out.getvalue())["npz"]) == ["a", "b", "c"]
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", str(3 << 20))
    wanted = "expected arrays of up to 3145728 bytes, found 3146112; set MMAPDS_MAX_NPZ_BYTES to read"
    refused(write, "npz", out.getvalue(), wanted)
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", "10")
    assert member_of(write, "npz", npz(a=np.arange(1000)))["npz"]["a"][999] == 999, "what is not compressed is no bomb"


def test_a_gz_that_is_a_bomb(write, monkeypatch):
    packed = gzip.compress(bytes(1 << 20))
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", str(1 << 20))
    assert member_of(write, "bin.gz", packed)["bin.gz"] == bytes(1 << 20)
    refused(write, "bin.gz", packed + gzip.compress(b"1"), "expected content of up to 1048576 bytes, found more; set")


def test_arrays_that_say_they_are_large(write):
    """The directory of an npz alone is read: one that lies gives no more than it says, and fails its checksum."""
    data = npz(a=np.zeros(1000))
    for size, message in ((3 * GIB, "expected arrays of up to 1073741824 bytes, found 3221225472"), (200, "")):
        forged = bytearray(data)
        at = data.rindex(b"PK\1\2") + 24
        forged[at : at + 4] = size.to_bytes(4, "little")
        refused(write, "npz", bytes(forged), message)
    for shape in ((1 << 40,), (1 << 62, 8), (-1,), (10**30,)):
        array = header_of(shape) + bytes(64)
        with zipfile.ZipFile(packed := io.BytesIO(), "w") as zipped:
            zipped.writestr("a.npy", array)
        for name, content in (("npy", array), ("npz", packed.getvalue())):
            refused(write, name, content, "")


class Malice:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = pickle.dumps(Malice())
    for name in ("pkl", "pickle", "pyd", "pth", "pt", "ten", "tb", "mp", "msg"):
        assert member_of(write, name, code)[name] == code
    objects = np.array([Malice()], object)
    refused(write, "npy", npy(objects), "Object arrays cannot be loaded when allow_pickle=False")
    refused(write, "npz", npz(a=objects), "")
    assert not os.path.exists("unpickled")


def test_deep_json_and_long_numbers(write):
    for text in (b"[" * 10**6, b'{"a":' * 10**6, b"[" * 5000 + b"NaN" + b"]" * 5000, b"9" * 10**5):
        with suppress(mmapds.DecodeError):  # but no other error; a Python that can hold it may
            member_of(write, "json", text)
    refused(write, "cls", b"9" * 10**6, "Exceeds the limit")


# ---- HDF5 ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret(tmp_path, monkeypatch):
    """A file of the user's beside a directory of somebody else's, which is the working directory."""
    (tmp_path / "theirs").mkdir()
    monkeypatch.chdir(tmp_path / "theirs")
    (tmp_path / "secret.txt").write_bytes(b"-----BEGIN KEY-----\n" * 10)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["key"] = np.arange(10)
        file["deep/key"] = np.arange(10)
    return tmp_path


def virtual(file, secret):
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(f"{secret}/secret.h5", "key", (10,))
    file.create_virtual_dataset("x", layout)


def link_to_a_link(file, secret):
    file["hidden"] = h5py.ExternalLink(f"{secret}/secret.h5", "/")
    file["x"] = h5py.SoftLink("/hidden/key")


ELSEWHERE = {
    "link": lambda file, secret: file.update(x=h5py.ExternalLink(f"{secret}/secret.h5", "/key")),
    "link to a link": link_to_a_link,
    "group": lambda file, _: file.update({each: h5py.ExternalLink("../secret.h5", "/deep") for each in ("x", "y/x")}),
    "storage": lambda file, secret: file.create_dataset("x", (200,), "u1", external=[(f"{secret}/secret.txt", 0, 200)]),
    "virtual": virtual,
}


@pytest.mark.parametrize("lead", ELSEWHERE)
def test_hdf5_that_leads_to_other_files(secret, lead):
    with h5py.File("a.h5", "w") as file:
        ELSEWHERE[lead](file, secret)
    groups = [{"group": "x"}, {"group": "y/x"}] if lead == "group" else []
    for options in ({}, {"records": "groups"}, *groups):
        with pytest.raises(mmapds.FormatError, match=r"a\.h5: /\w+.*: expected data in this (group|file), found "):
            convert("a.h5", **options)
    assert not os.path.exists("a.mma")


LARGE = {  # names and shapes of datasets, how they are chunked, and how large that is
    "one": (["x"], (1 << 10, 1 << 18), (1 << 10, 1 << 18), {}, "found 2147483648, wh"),
    "a chunk of a small one": (["x"], (1,), (2 << 30,), {"dtype": "i1", "maxshape": (None,)}, "found 2147483648, wh"),
    "together": (["a", "b", "c"], (1 << 10, 1 << 16), (1 << 10, 1 << 16), {}, "found 1610612736,"),
    "groups together": (["g/a", "g/b", "g/c"], (1 << 9, 1 << 17), (1, 1 << 17), {}, "found 1610612736,"),
}


@pytest.mark.parametrize("case", LARGE)
@pytest.mark.usefixtures("secret")
def test_hdf5_that_says_it_is_large(case):
    names, shape, chunks, options, found = LARGE[case]
    with h5py.File("a.h5", "w") as file:
        for name in names:
            file.create_dataset(name, shape, **{"dtype": "f8", "chunks": chunks, "compression": "gzip"} | options)
    assert os.path.getsize("a.h5") < 10_000
    with pytest.raises(mmapds.FormatError, match=rf"chunks and records of up to 1073741824 bytes, {found}"):
        convert("a.h5", records="groups" if "/" in names[0] else "rows")


@pytest.mark.usefixtures("secret")
def test_groups_of_hdf5_that_share_groups_are_not_walked_on_each_of_a_billion_paths():
    for link in (lambda group: group, lambda group: h5py.SoftLink(group.name)):
        with h5py.File("a.h5", "w") as file:
            group = file.create_group("30")
            for level in reversed(range(30)):
                above = file.create_group(str(level))
                above["a"] = above["b"] = link(group)
                group = above
        for records in ("rows", "groups"):
            with pytest.raises(mmapds.FormatError, match=r"expected groups that have one name each|found a link to "):
                convert("a.h5", records=records, group="0")


# ---- Parquet and Arrow that decompress to much, and pipes ------------------------------------------------------------

UNDER_A_LIMIT = """
import resource, sys
from mmapds.cli.commands import main
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
sys.exit(main(['convert', sys.argv[1], '-o', 'out.mma', '--quiet']))
"""


@limits_memory
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_value_that_does_not_fit_into_memory_is_an_error(tmp_path, kind):
    table, path = pa.table({"s": pa.array(["x" * (200 << 20)])}), str(tmp_path / f"a.{kind}")
    options = {"use_dictionary": False, "write_statistics": False} if kind == "parquet" else {}
    {"parquet": pq.write_table, "arrow": feather.write_feather}[kind](table, path, compression="zstd", **options)
    del table
    ran = run("-c", UNDER_A_LIMIT, path, cwd=tmp_path, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    assert (ran.returncode, ran.stderr.count("\n")) == (1, 1), ran
    assert f"a.{kind}: " in ran.stderr
    assert "too large to read here" in ran.stderr or "expected a record that fits into memory" in ran.stderr
    assert not (tmp_path / "out.mma").exists()


PIPES = {
    "convert": ["a.parquet", "a.arrow", "a.feather", "a.h5"],
    **{use: ["a.jsonl.gz"] for use in ("show", "head", "report", "bench", "seekable", "index")},
}


@pytest.mark.parametrize("use", PIPES)
def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch, index, use):
    monkeypatch.chdir(tmp_path)
    for name in PIPES[use]:
        os.mkfifo(name)
        ran = index(name, *{"convert": ["-o", "b.mma"], "show": ["0"]}.get(use, []), tool=use)
        assert (ran.returncode, f"{name}: expected a regular file, found a FIFO" in ran.stderr) == (1, True)
    assert sorted(os.listdir()) == sorted(PIPES[use])
