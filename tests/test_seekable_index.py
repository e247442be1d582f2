"""The index that `mmapds.seekable` makes as it writes: the one that `mmapds.build` makes of the file."""

import gzip
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.compression import zstd_source
from mmapds.index.verify import verify
from mmapds.storage import spool
from mmapds.storage.index_file import Index
from tests.support.zstd_files import zstd

LINES = [b'{"id": %d, "text": "%s"}\n' % (n, b"some words " * (n % 40)) for n in range(1500)]
TEXT = b"".join(LINES)


def assert_as_built(path):
    """That the index of a file is that which `mmapds.build` makes of it, byte for byte."""
    made = Path(f"{path}.mmx").read_bytes()
    os.remove(f"{path}.mmx")
    mmapds.build(path)
    assert Path(f"{path}.mmx").read_bytes() == made
    verify(Index(f"{path}.mmx"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    lines=st.lists(
        st.sampled_from([b"{}", b"", b" ", b"\r", b"[1]\r", b'"' + b"x" * 4093 + b'"', b'"' + b"y" * 9000 + b'"'])
    ),
    has_mark=st.booleans(),
    is_ended=st.booleans(),
    workers=st.sampled_from([1, 3]),
)
@example(lines=[], has_mark=False, is_ended=False, workers=1)
@example(lines=[], has_mark=True, is_ended=False, workers=3)
@example(lines=[b'"' + b"x" * 4093 + b'"'] * 50, has_mark=True, is_ended=True, workers=3)
def test_it_is_the_index_that_build_makes(tmp_path, lines, has_mark, is_ended, workers):
    data = (b"\xef\xbb\xbf" if has_mark else b"") + b"\n".join(lines) + (b"\n" if is_ended else b"")
    (tmp_path / "a.jsonl").write_bytes(data)
    assert_as_built(mmapds.seekable(tmp_path / "a.jsonl", frame=4096, workers=workers, force=True).path)


@pytest.mark.parametrize(("name", "make"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.json", bytes)])
def test_nothing_is_decoded_for_it(write, monkeypatch, name, make):
    with monkeypatch.context() as patched:
        patched.setattr(zstd_source, "ZstdSource", None)
        path = mmapds.seekable(write(make(TEXT), name), frame=8192).path
    ds = mmapds.open(path)
    assert [ds.raw(number) + b"\n" for number in range(len(ds))] == LINES
    assert_as_built(path)


def test_numbers_that_go_to_the_disk(write, monkeypatch):
    monkeypatch.setattr(spool, "_IN_MEMORY", 1000)
    path = mmapds.seekable(write(TEXT * 100), frame=4096).path
    assert len(mmapds.open(path)) == 150_000
    assert_as_built(path)
    assert sorted(os.listdir(os.path.dirname(path))) == ["train.jsonl", "train.jsonl.zst", "train.jsonl.zst.mmx"]


def test_an_index_that_is_there_keeps_its_columns(write):
    source = write(TEXT)
    path = mmapds.seekable(source).path
    mmapds.build(path, length="id")
    write(b"".join(LINES[:9]))
    mmapds.seekable(source, force=True)
    assert mmapds.open(path).lengths.tolist() == list(range(9))
    verify(Index(f"{path}.mmx"))


def test_a_file_that_is_replaced_meanwhile_is_scanned(write, monkeypatch):
    from mmapds.recompress.known_lines import KnownLines

    build, source = KnownLines.build, write(TEXT)

    def replace(self, path, workers):
        Path(path).write_bytes(zstd.compress(b"{}\n" * 7))
        build(self, path, workers)

    monkeypatch.setattr(KnownLines, "build", replace)
    assert len(mmapds.open(mmapds.seekable(source).path)) == 7


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.json.gz"])
def test_a_json_array_is_refused_before_anything_is_written(write, tmp_path, name):
    data = json.dumps([{"n": 1}, {"n": 2}], indent=1).encode()
    path = write(gzip.compress(data) if name.endswith("gz") else data, name)
    with pytest.raises(mmapds.FormatError, match=r"expected a record a line, found one JSON array; give .*; run: "):
        mmapds.seekable(path)
    assert os.listdir(tmp_path) == [name]
    assert mmapds.seekable(path, index=False).text == len(data)
