"""What a new format needs: one subclass of `Format`, and one entry in the registry."""

from array import array
from pathlib import Path

import pytest

import mmapds
from mmapds import _native, formats
from mmapds.formats.format import End, Format, Layout, Piece
from mmapds.index.build import Request, build_each
from mmapds.storage.index_file import Index
from tests.support.commands import command

TEXT = b"one;two;;three;"
RECORDS = ["one;", "two;", ";", "three;"]


class Semicolons(Format):
    """Records of text, each of which ends in a semicolon."""

    name = "semicolons"
    suffixes = (".semi",)

    def parameters(self, given, sources):
        return {}

    def layout(self, parameters, source):
        return Layout(_native.FRAMING_NONE)

    def decoder(self, parameters):
        return "text"

    def scan(self, sources, parameters, measuring, *, workers):
        for number, source in enumerate(sources):
            text = Path(source.path).read_bytes()
            ends = [at + 1 for at, byte in enumerate(text) if byte == ord(";")]
            starts = [0, *ends][: len(ends)]
            sizes = array("Q", (end - start for start, end in zip(starts, ends, strict=True)))
            columns = measuring.sizes(memoryview(sizes))
            end = End(len(ends), ends[-1] if ends else 0)
            yield Piece(number, memoryview(array("Q", starts)), columns, 0, source.size, end)


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(formats.FORMATS, Semicolons.name, Semicolons())


def test_an_instance_is_enough_to_index(write):
    path = write(TEXT, "x.semi")
    (built,) = build_each([path], Request(Semicolons()))
    assert built.fresh
    index = Index(path + ".mmx")
    assert (index.format, index.records, index.parameters) == ("semicolons", 4, {})


@pytest.mark.usefixtures("registered")
def test_an_entry_in_the_registry_makes_it_known_by_name(write):
    path = write(TEXT, "x.bin")
    mmapds.build(path, format="semicolons", length="bytes()")
    ds = mmapds.open(path)
    assert list(ds) == RECORDS
    assert ds.__getitems__([3, 0]) == ["three;", "one;"]
    assert ds.lengths.tolist() == list(map(len, RECORDS))
    assert list(mmapds.open(path, decode="bytes")) == [record.encode() for record in RECORDS]


@pytest.mark.usefixtures("registered")
def test_files_are_known_by_its_suffix(write):
    paths = [write(TEXT, "x.semi"), write(b"", "y.semi")]
    mmapds.build(paths, out=paths[0] + ".mmx", workers=2)
    assert list(mmapds.open(paths[0] + ".mmx")) == RECORDS


@pytest.mark.usefixtures("registered")
def test_the_defaults_serve_it(write):
    path = write(TEXT, "x.semi")
    mmapds.build(path)
    with pytest.raises(mmapds.FormatError, match="expected records with keys, found format 'semicolons'"):
        formats.by_name("semicolons").key(b"one;")
    with pytest.raises(mmapds.FormatError, match="prefix = 'u32le', expected no options for format 'semicolons'"):
        mmapds.build(path, prefix="u32le", force=True)
    with pytest.raises(mmapds.FormatError, match="decode = 'files', expected 'json', 'text', 'bytes', 'tf_example' or"):
        mmapds.open(path, decode="files")
    with pytest.raises(mmapds.ColumnError, match=r"expected bytes\(\) for records that are not JSON, found 'n'"):
        mmapds.build(path, length="n")
    assert "VERSION: expected one of the formats" in command("--verify", path).stderr


def test_what_is_abstract_must_be_defined():
    with pytest.raises(TypeError, match="abstract method"):
        type("Empty", (Format,), {"name": "empty"})()
