"""Files from somebody else: small ones that make much of themselves, that name other files, or that carry code."""

import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib

import h5py
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from mmapds.cli.commands import main
from mmapds.convert import convert
from tests.support.commands import run
from tests.support.samples import npz
from tests.support.sanitizers import limits_memory
from tests.support.tars import archive

GIB = 1 << 30


def member_of(write, name, data):
    """The sample of a tar with one member, decoded."""
    return mmapds.open(write(archive([("0.txt", b""), (f"a.{name}", data)]), "a.tar"), build=True, decode="wds")[1]


def refused(write, name, data, match):
    with pytest.raises(mmapds.DecodeError, match=rf"a\.tar: record 1 \(byte 512\): .*'{name}' of sample 'a': {match}"):
        member_of(write, name, data)


# ---- members of tars ------------------------------------------------------------------------------------------------


def png(width, height, kind="png"):
    out = io.BytesIO()
    PIL.Image.new("1" if kind == "png" else "RGB", (width, height)).save(out, kind)
    return out.getvalue()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize("side", [10_000, 14_000, 30_000])
def test_images_of_many_pixels(write, monkeypatch, side):
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 89_478_485)
    data = png(side, side)
    assert len(data) < 1 << 20
    refused(write, "png", data, r".*pixels")
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 10**9)
    if side == 10_000:
        assert member_of(write, "png", data)["png"].size == (side, side)


@pytest.mark.parametrize("kind", ["eps", "pdf", "ico", "tga", "sgi"])
def test_images_of_other_types_than_images_have(write, kind):
    """Pillow runs Ghostscript for an EPS, whatever its extension."""
    refused(write, "jpg", png(3, 2, kind), "expected an image of type JPEG, PNG, WEBP, GIF, BMP, PPM, TIFF, found")


def tiff(side, tile):
    """A grey image of one compressed tile, which may be larger."""
    data = zlib.compress(bytes([7]) * 32 * 32)
    tags = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 8, 325: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<I", 8 + len(data)) + data + struct.pack("<H", len(tags)) + entries + bytes(4)


def test_a_tile_of_many_pixels_in_a_small_image(write, monkeypatch):
    """It would be read whole."""
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 89_478_485)
    assert member_of(write, "tiff", tiff(32, 32))["tiff"].getpixel((9, 9)) == 7
    refused(write, "tiff", tiff(32, 65536), "expected up to 89478485 pixels, found 4294967296")


@pytest.mark.parametrize("decode", ["wds", "pil"])
def test_limits_hold_for_every_decoder_of_images(write, monkeypatch, decode):
    path = write(archive([("0.txt", b""), ("a.png", png(20, 20))]), "a.tar")
    monkeypatch.setattr(PIL.Image, "MAX_IMAGE_PIXELS", 300)
    with pytest.warns(PIL.Image.DecompressionBombWarning), pytest.raises(mmapds.DecodeError, match="up to 300 pixels"):
        mmapds.open(path, build=True, decode=decode)[1]


@pytest.mark.parametrize("kind", ["jpeg", "gif", "bmp", "webp", "ppm", "tiff"])
def test_images_of_another_type_than_their_extension_says(write, kind):
    assert member_of(write, "png", png(3, 2, kind))["png"].size == (3, 2)


def bomb(count, size):
    """An npz that holds `count` arrays of `size` zeros, compressed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
        for number in range(count):
            with zipped.open(f"{number}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array_header_1_0(part, {"descr": "|u1", "fortran_order": False, "shape": (size,)})
                for _ in range(size >> 20):
                    part.write(bytes(1 << 20))
    return out.getvalue()


def test_an_npz_that_is_a_zip_bomb(write, monkeypatch):
    data = bomb(count=3, size=1 << 20)
    assert sorted(member_of(write, "npz", data)["npz"]) == ["0", "1", "2"]
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", str(3 << 20))
    wanted = "expected arrays of up to 3145728 bytes, found 3146112; set MMAPDS_MAX_NPZ_BYTES to read"
    refused(write, "npz", data, wanted)
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", "3200000")
    assert len(member_of(write, "npz", data)["npz"]) == 3


def test_an_npz_that_says_it_is_large(write):
    """Its directory alone is read: one that lies about sizes gives no more than it says, and fails its checksum."""
    data = npz(a=np.zeros(1000))
    forged = bytearray(data)
    at = data.rindex(b"PK\1\2")
    forged[at + 24 : at + 28] = (3 * GIB).to_bytes(4, "little")
    refused(write, "npz", bytes(forged), "expected arrays of up to 1073741824 bytes, found 3221225472")
    forged[at + 24 : at + 28] = (200).to_bytes(4, "little")
    refused(write, "npz", bytes(forged), "")


def test_an_npz_that_is_not_compressed_may_have_any_size(write, monkeypatch):
    monkeypatch.setenv("MMAPDS_MAX_NPZ_BYTES", "10")
    assert member_of(write, "npz", npz(a=np.arange(1000)))["npz"]["a"][999] == 999


def test_an_npy_that_says_it_is_large(write):
    for shape in ((1 << 40,), (1 << 62, 8), (1 << 20, 1 << 20), (-1,), (10**30,)):
        out = io.BytesIO()
        np.lib.format.write_array_header_1_0(out, {"descr": "<f8", "fortran_order": False, "shape": shape})
        refused(write, "npy", out.getvalue() + bytes(64), "")
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("a.npy", out.getvalue() + bytes(64))
        refused(write, "npz", packed.getvalue(), "")


class Malice:
    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def test_nothing_is_unpickled(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = pickle.dumps(Malice())
    for name in ("pkl", "pickle", "pyd", "pth", "pt", "ten", "tb", "mp", "msg"):
        assert member_of(write, name, code)[name] == code
    objects = np.empty(1, object)
    objects[0] = Malice()
    out = io.BytesIO()
    np.save(out, objects, allow_pickle=True)
    refused(write, "npy", out.getvalue(), "Object arrays cannot be loaded when allow_pickle=False")
    out = io.BytesIO()
    np.savez(out, a=objects)
    refused(write, "npz", out.getvalue(), "")
    assert not os.path.exists("unpickled")


@pytest.mark.parametrize("text", [b"[" * 10**6, b'{"a":' * 10**6, b"[" * 5000 + b"NaN" + b"]" * 5000, b"9" * 10**5])
def test_deep_json(write, text):
    try:
        member_of(write, "json", text)
    except mmapds.DecodeError as error:
        assert "a.tar: record 1 (byte 512)" in str(error)  # noqa: PT017 - a Python that can hold it may


def test_numbers_of_many_digits(write):
    refused(write, "cls", b"9" * 10**6, "Exceeds the limit")


# ---- HDF5 that leads to other files ---------------------------------------------------------------------------------


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


def external_link(file, secret):
    file["x"] = h5py.ExternalLink(str(secret / "secret.h5"), "/key")


def link_to_an_external_link(file, secret):
    file["hidden"] = h5py.ExternalLink(str(secret / "secret.h5"), "/")
    file["x"] = h5py.SoftLink("/hidden/key")


def external_group(file, _):
    file["x"] = h5py.ExternalLink("../secret.h5", "/deep")


def external_storage(file, secret):
    file.create_dataset("x", (200,), "u1", external=[(str(secret / "secret.txt"), 0, 200)])


def virtual(file, secret):
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(str(secret / "secret.h5"), "key", (10,))
    file.create_virtual_dataset("x", layout)


def virtual_of_itself(file, secret):
    external_link(file, secret)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(".", "x", (10,))
    file.create_virtual_dataset("y", layout)


ELSEWHERE = [external_link, link_to_an_external_link, external_group, external_storage, virtual, virtual_of_itself]


@pytest.mark.parametrize("records", ["rows", "groups"])
@pytest.mark.parametrize("lead", ELSEWHERE)
def test_hdf5_that_leads_to_other_files(secret, lead, records):
    with h5py.File("a.h5", "w") as file:
        lead(file, secret)
    with pytest.raises(mmapds.FormatError, match=r"a\.h5: /\w+: expected data in this (group|file), found "):
        convert("a.h5", records=records)
    assert not os.path.exists("a.mma")


@pytest.mark.parametrize("group", ["x", "/x", "links/x", "way"])
@pytest.mark.usefixtures("secret")
def test_a_group_of_another_file(group):
    with h5py.File("a.h5", "w") as file:
        file["x"] = file["links/x"] = h5py.ExternalLink("../secret.h5", "/deep")
        file["way"] = h5py.SoftLink("links/x")
    with pytest.raises(mmapds.FormatError, match="expected data in this group, found a link to "):
        convert("a.h5", group=group)


@pytest.mark.parametrize("records", ["rows", "groups"])
@pytest.mark.usefixtures("secret")
def test_hdf5_that_says_it_is_large(records):
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("x", (1 << 10, 1 << 18), "f8", chunks=(1 << 10, 1 << 18), compression="gzip")
    assert os.path.getsize("a.h5") < 5000
    with pytest.raises(mmapds.FormatError, match=r"chunks and records of up to 1073741824 bytes, found 2147483648, wh"):
        convert("a.h5", records=records)


@pytest.mark.usefixtures("secret")
def test_a_chunk_of_hdf5_that_is_larger_than_its_dataset():
    """It is decompressed whole."""
    with h5py.File("a.h5", "w") as file:
        made = file.create_dataset("x", (1,), "i1", chunks=(2 << 30,), maxshape=(None,), compression="gzip")
        made[0] = 1
    with pytest.raises(mmapds.FormatError, match=r"chunks and records of up to 1073741824 bytes, found 2147483648, wh"):
        convert("a.h5")


@pytest.mark.usefixtures("secret")
def test_groups_of_hdf5_that_say_together_that_they_are_large():
    with h5py.File("a.h5", "w") as file:
        for name in "abc":
            file.create_dataset(f"g/{name}", (1 << 9, 1 << 17), "f8", chunks=(1, 1 << 17), compression="gzip")
    with pytest.raises(
        mmapds.FormatError, match=r"'/g': expected chunks and records of up to 1073741824 bytes, found 1610612736,"
    ):
        convert("a.h5", records="groups")


@pytest.mark.parametrize("link", [lambda group: group, lambda group: h5py.SoftLink(group.name)], ids=["hard", "soft"])
@pytest.mark.parametrize("records", ["rows", "groups"])
@pytest.mark.usefixtures("secret")
def test_groups_of_hdf5_that_share_groups_are_not_walked_on_each_of_a_billion_paths(link, records):
    with h5py.File("a.h5", "w") as file:
        group = file.create_group("30")
        for level in reversed(range(30)):
            above = file.create_group(str(level))
            above["a"] = above["b"] = link(group)
            group = above
    assert os.path.getsize("a.h5") < 40_000
    with pytest.raises(mmapds.FormatError, match=r"expected groups that have one name each|found a link to "):
        convert("a.h5", records=records, group="0")


@pytest.mark.usefixtures("secret")
def test_rows_of_hdf5_that_say_together_that_they_are_large():
    with h5py.File("a.h5", "w") as file:
        for name in "abc":
            file.create_dataset(name, (1 << 10, 1 << 16), "f8", chunks=(1 << 10, 1 << 16), compression="gzip")
    with pytest.raises(
        mmapds.FormatError, match=r"a\.h5: expected chunks and records of up to 1073741824 bytes, found 1610612736,"
    ):
        convert("a.h5")


@pytest.mark.usefixtures("secret")
def test_what_is_not_asked_for_of_groups_is_not_read():
    """Nor does it count how large it is: datasets are often allocated before they are written."""
    with h5py.File("a.h5", "w") as file:
        for group in "ab":
            file[f"{group}/label"], file[f"{group}/ref"] = [1, 2], file.ref
            file.create_dataset(f"{group}/mask", (2 << 30,), "u1", chunks=(1 << 20,), compression="gzip")
            for name in range(12):
                file.create_dataset(f"{group}/{name}", (100 << 20,), "u1", chunks=(1 << 20,), compression="gzip")
    convert("a.h5", records="groups", fields=["label"])
    assert [sample["label"].tolist() for sample in mmapds.open("a.mma")] == [[1, 2], [1, 2]]
    convert("a.h5", records="groups", schema={"label": "json"})
    assert [sample["label"] for sample in mmapds.open("a.mma")] == [[1, 2], [1, 2]]
    for fields in ([f"{name}" for name in range(12)], ["label", "ref"]):
        with pytest.raises(mmapds.FormatError, match=r"'/a': expected chunks and records of |, found references"):
            convert("a.h5", records="groups", fields=fields)


# ---- Parquet and Arrow that decompress to much ----------------------------------------------------------------------

UNDER_A_LIMIT = """
import resource, sys
from mmapds.cli.commands import main
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
status = main(['convert', {path!r}, '-o', 'out.mma', '--quiet'])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
sys.exit(status)
"""


@limits_memory
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_value_that_does_not_fit_into_memory_is_an_error(tmp_path, kind):
    table = pa.table({"s": pa.array(["x" * (400 << 20)])})
    path = str(tmp_path / f"a.{kind}")
    if kind == "parquet":
        pq.write_table(table, path, compression="zstd", store_schema=False, use_dictionary=False)
    else:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table)
    del table
    assert os.path.getsize(path) < 1 << 20
    ran = run("-c", UNDER_A_LIMIT.format(memory=3 * GIB // 2, path=path), cwd=tmp_path)
    assert ran.returncode == 1, ran
    assert f"a.{kind}: " in ran.stderr
    assert "too large to read here" in ran.stderr or "expected a record that fits into memory" in ran.stderr
    assert ran.stderr.count("\n") == 1
    assert not (tmp_path / "out.mma").exists()


# ---- tars that lie about sizes ------------------------------------------------------------------------------------


def test_a_member_that_says_it_is_large(write):
    entry = tarfile.TarInfo("a.txt")
    entry.size = 1 << 50
    path = write(entry.tobuf(tarfile.GNU_FORMAT) + bytes(1024), "a.tar")
    with pytest.raises(mmapds.FormatError, match=r"a\.tar: record 0 \(byte 0\)"):
        mmapds.build(path)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        *(("convert", f"a.{suffix}") for suffix in ("parquet", "arrow", "feather", "h5")),
        *((use, "a.jsonl.gz") for use in ("show", "head", "report", "bench", "seekable", "index")),
    ],
)
def test_a_pipe_is_not_waited_for(tmp_path, monkeypatch, capsys, use, name):
    monkeypatch.chdir(tmp_path)
    os.mkfifo(name)
    assert main([use, name, *{"convert": ["-o", "b.mma"], "show": ["0"]}.get(use, [])]) == 1
    assert f"{name}: expected a regular file, found a FIFO" in capsys.readouterr().err
    assert os.listdir() == [name]
