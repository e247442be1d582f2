"""The command that a message names mends what the message is about: each is run, and the index is verified after it."""

import bz2
import lzma
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import mmapds
from mmapds.index.__main__ import main
from mmapds.storage.index_file import Index
from tests.support.bounds import bounds_of, forge_bounds
from tests.support.files import flip, patched
from tests.support.index_file import verify
from tests.support.tars import archive


def run_remedy(error):
    """Run the command that a message ends with, which may be followed by a remark in parentheses."""
    found = re.fullmatch(r".*; run: python -m mmapds\.index (.*?)(?: \([^()]*(\(.*\))?[^()]*\))?", str(error), re.S)
    assert found, error
    assert main(shlex.split(found[1])) == 0


@pytest.fixture
def corpus(write):
    path = write([{"n": number % 7 + 1, "text": "x" * (number % 40)} for number in range(2000)])
    mmapds.build(path, length="n")
    return path


def offset(index, name):
    return Index(index).sections[name].offset


def grow(path, line='{"n": 5}\n'):
    with open(path, "a") as file:
        file.write(line)


def touched(path):
    flip(path, 6)
    os.utime(path)


def forged(path, name, data):
    """Write other bytes to a section, whose checksum is not looked at when it is opened."""
    patched(f"{path}.mmx", offset(f"{path}.mmx", name), data)


DAMAGE = {
    "a source that grew": (grow, "STALE: train.jsonl was [0-9]+ bytes when indexed and is [0-9]+ now"),
    "other content of the same time": (
        lambda path: flip(path, 6),
        "STALE: .*train.jsonl has other .*, same time, fing",
    ),
    "other content of another time": (touched, "STALE: .*train.jsonl has other content .same size, another time, fing"),
    "a header": (lambda path: flip(f"{path}.mmx", 30), "DAMAGED: "),
    "the first bytes": (lambda path: flip(f"{path}.mmx", 3), "NOT AN INDEX: expected .* at byte 0, found "),
    "metadata": (lambda path: flip(f"{path}.mmx", os.path.getsize(f"{path}.mmx") - 10), "DAMAGED: header and metadata"),
    **{
        f"section {name}": (
            lambda path, name=name: flip(f"{path}.mmx", offset(f"{path}.mmx", name) + 5),
            f"DAMAGED: section '{name}' does not match its checksum",
        )
        for name in ("offsets", "column:length", "length_order")
    },
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_index_that_is_stale_or_damaged(corpus, name):
    damage, message = DAMAGE[name]
    damage(corpus)
    with pytest.raises((mmapds.StaleIndexError, mmapds.FormatError), match=message) as error:
        verify(Index(f"{corpus}.mmx"))
    run_remedy(error.value)
    verify(Index(f"{corpus}.mmx"))
    ds = mmapds.open(corpus)
    assert len(ds) == (2001 if damage is grow else 2000)
    assert name in ("a header", "the first bytes", "metadata") or ds.columns == ["length"]


@pytest.mark.parametrize(
    ("line", "flipped", "options", "message"),
    [
        (b"1\n", 500_001, {}, r"record 250001 of .*train.jsonl begins at byte 500002, expected byte 500004"),
        (
            b'{"n": 1}\n',
            450_006,
            {"length": "n"},
            r"column:length\[50000\] = 1, expected 0 \(record 50000 of .*jsonl\)",
        ),
    ],
    ids=["a line end", "a number"],
)
def test_a_change_that_the_fingerprint_does_not_see(write, line, flipped, options, message):
    path = write(line * 400_000)
    mmapds.build(path, **options)
    flip(path, flipped)
    with pytest.raises(mmapds.FormatError, match=f"DAMAGED: {message}") as error:
        verify(Index(f"{path}.mmx"))
    run_remedy(error.value)
    verify(Index(f"{path}.mmx"))


def test_bytes_of_an_index_that_are_not_checked_when_it_is_opened(corpus, tmp_path):
    forged(corpus, "offsets", b"\xff" * 64)
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: record 0 of .*: expected bytes within 0 to \d+,") as error:
        mmapds.open(corpus)[0]
    run_remedy(error.value)
    assert mmapds.open(corpus)[0]["n"] == 1

    forged(corpus, "length_order", b"\xff" * 8000)
    with pytest.raises(mmapds.FormatError, match=f"{corpus}.mmx: DAMAGED: ") as error:
        next(iter(mmapds.TokenBudgetBatchSampler(mmapds.open(corpus), 100)))
    run_remedy(error.value)
    batches = mmapds.TokenBudgetBatchSampler(mmapds.open(corpus), 100)
    assert sorted(record for batch in batches for record in batch) == list(range(2000))

    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{number}.txt", b"x") for number in range(10)]))
    mmapds.build(path)
    forged(path, "key_records", b"\n\0\0\0" * 10)
    with pytest.raises(mmapds.FormatError, match=r"key_records\[\d\] = 10 is out of range for 10 rec") as error:
        mmapds.open(path).find("3")
    run_remedy(error.value)
    assert mmapds.open(path).find("3") == 3


def test_an_index_of_several_sources(write, tmp_path):
    """Only the user knows the sources, where the list of them is damaged."""
    paths, out = [write([1, 2], "a b.jsonl"), write([3], "b.jsonl")], str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out)
    flip(out, offset(out, "offsets"))
    with pytest.raises(mmapds.FormatError, match="DAMAGED: section 'offsets'") as error:
        verify(Index(out))
    run_remedy(error.value)
    grow(paths[1], "4\n")
    with pytest.raises(mmapds.StaleIndexError, match=r"STALE: b.jsonl was 2 bytes when indexed and is 4 now") as error:
        mmapds.open(out)
    run_remedy(error.value)
    flip(out, 50)
    with pytest.raises(mmapds.FormatError, match=f"; run: python -m mmapds.index SOURCE... -o {out}$") as error:
        mmapds.open(out)
    run_remedy(str(error.value).replace("SOURCE...", shlex.join(paths)))
    assert list(mmapds.open(out)) == [1, 2, 3, 4]


def test_an_index_with_a_column_that_was_computed_in_python(corpus):
    """Its command refuses to lose the column, except with --force."""
    mmapds.add_column(corpus, "square", np.arange(2000) ** 2)
    flip(f"{corpus}.mmx", offset(f"{corpus}.mmx", "offsets"))
    with pytest.raises(mmapds.FormatError, match=r"--force \(which loses 'square', computed in Python\)$") as error:
        verify(Index(f"{corpus}.mmx"))
    run_remedy(error.value)
    assert mmapds.open(corpus).columns == ["length"]


def test_missing_indexes(write):
    paths = [write([1], "a b-0.jsonl"), write([2], "-n.jsonl")]
    for find, wanted in ((lambda: mmapds.open(paths), [1, 2]), (lambda: mmapds.open(paths[0]), [1])):
        with pytest.raises(mmapds.IndexMissingError, match="not indexed yet") as error:
            find()
        run_remedy(error.value)
        assert list(find()) == wanted
        os.unlink(f"{paths[0]}.mmx")


def test_a_source_by_a_name_that_looks_like_an_option(write, tmp_path, monkeypatch):
    write([1], "-n.jsonl")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mmapds.IndexMissingError, match=r"run: python -m mmapds.index \./-n\.jsonl") as error:
        mmapds.open("-n.jsonl")
    run_remedy(error.value)


NEEDS_UNZIP = pytest.mark.skipif(not shutil.which("unzip"), reason="this machine has no unzip")


def zipped(data):
    with zipfile.ZipFile("a b.zip", "w") as file:
        file.writestr("a.jsonl", data)
    with open("a b.zip", "rb") as file:
        return file.read()


def parquet(_):
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), "a b.parquet")
    with open("a b.parquet", "rb") as file:
        return file.read()


@pytest.mark.parametrize(
    ("name", "make", "found"),
    [
        ("a b.jsonl.bz2", bz2.compress, "a b.plain.jsonl"),
        ("a b.jsonl.xz", lzma.compress, "a b.plain.jsonl"),
        pytest.param("a b.zip", zipped, "a.jsonl", marks=NEEDS_UNZIP),
        ("a b.parquet", parquet, "a b.mma"),
    ],
)
def test_a_source_that_must_be_converted(tmp_path, monkeypatch, name, make, found):
    monkeypatch.chdir(tmp_path)
    data = make(b'{"n": 1}\n{"n": 2}\n')
    (tmp_path / name).write_bytes(data)
    with pytest.raises((mmapds.SourceError, mmapds.FormatError), match=r"compressed \(|is not read in place") as error:
        mmapds.build(name)
    command = re.sub("^python ", f"{sys.executable} ", str(error.value).rpartition("; run: ")[2])
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert list(mmapds.open(found, build=True)) == [{"n": 1}, {"n": 2}]
    assert (tmp_path / name).read_bytes() == data


def test_an_index_that_was_cut_while_it_was_open(corpus):
    ds = mmapds.open(corpus)
    os.truncate(f"{corpus}.mmx", 100)
    with pytest.raises(mmapds.FormatError, match=r"expected \d+ bytes, as when .* found fewer$"):
        list(ds)


@pytest.mark.parametrize("text", [b'{"n": 1}\n{"n": 2}\n{"n": 3}\n', b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n{"n": 3}'])
def test_a_bound_inside_a_record_is_not_blamed_on_the_data(write, text):
    path = write(text)
    mmapds.build(path)
    first, second, *others = bounds_of(f"{path}.mmx")
    forge_bounds(f"{path}.mmx", [first, second + 3, *others])
    for on_error in ("raise", "skip"):
        with pytest.raises(
            mmapds.FormatError, match=r"DAMAGED: record 1 of .*: expected a whole line, found "
        ) as error:
            mmapds.open(path, on_error=on_error).take([1, 2])
    run_remedy(error.value)
    assert list(mmapds.open(path)) == [{"n": 1}, {"n": 2}, {"n": 3}]
