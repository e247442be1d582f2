"""Tars: made by tarfile, and read with it by the rules of WebDataset."""

import io
import re
import tarfile

import mmapds

DIALECTS = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}


def archive(files, dialect="pax", **options):
    """A tar of (name, bytes) pairs; a TarInfo stands for a member without bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=DIALECTS[dialect], **options) as tar:
        for each in files:
            if isinstance(each, tarfile.TarInfo):
                tar.addfile(each)
            else:
                tar.addfile(sized(*each), io.BytesIO(each[1]))
    return out.getvalue()


def sized(name, data):
    """The header of a member."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    return info


def special(name, kind, **fields):
    """The header of what is not a plain file."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def members_of(count=20, directory=""):
    """Members of some samples: (name, bytes) pairs."""
    return [
        (f"{directory}s{i:04}.{extension}", f"{i} {extension}".encode() * i)
        for i in range(count)
        for extension in ("jpg", "JSON", "seg.png")
    ]


def with_checksum(data, at):
    """The archive with the checksum of the header at a byte made right."""
    data = bytearray(data)
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def pax(*records):
    """An extended header of these records, and a member."""
    body = b"".join(records)
    header = special("x", b"x", size=len(body)).tobuf(tarfile.USTAR_FORMAT)
    return header + body.ljust(-(-len(body) // 512) * 512, b"\0") + archive([("a.txt", b"12345")], "ustar")


def key_of(name):
    """The key and the extension of a member: the path up to the first dot of its base name, and what follows."""
    match = re.match(r"((?:.*/)?[^.]+)\.([^/]*)$", name)
    return match.groups() if match else (None, None)


def by_tarfile(*paths):
    """All samples by the rules of WebDataset, read with tarfile."""
    samples = []
    for path in map(str, paths):
        sample = {}
        with tarfile.open(path) as tar:
            for member in filter(tarfile.TarInfo.isreg, tar):
                key, extension = key_of(member.name)
                if key is None or re.match(r"__[^/]*__(/|$)", member.name):  # such names hold what describes the tar
                    continue
                if sample.get("__key__") != key:
                    sample = {"__key__": key, "__url__": path}
                    samples.append(sample)
                if extension.lower() in sample:
                    raise ValueError("duplicate file name")
                sample[extension.lower()] = tar.extractfile(member).read()
    return samples


def check_against_tarfile(path):
    """Open an indexed tar, check that it gives and finds what tarfile gives, and return the dataset."""
    ds = mmapds.open(path)
    samples = by_tarfile(path)
    assert list(ds) == samples
    assert [list(sample) for sample in ds] == [list(sample) for sample in samples]
    firsts = {}
    for i, sample in enumerate(samples):
        firsts.setdefault(sample["__key__"], i)
    assert {key: ds.find(key) for key in firsts} == firsts
    return ds
