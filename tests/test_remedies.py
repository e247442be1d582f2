"""The command that a message names mends what the message is about: each is run, and the index verified after it."""

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
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.bounds import bounds_of, forge_bounds
from tests.support.files import flip, patched
from tests.support.tars import archive


def run_remedy(message):
    """Run the command that a message ends with, which may be followed by a remark in parentheses."""
    found = re.fullmatch(r".*; run: (python -m mmapds\.index .*?)(?: \([^()]*(\(.*\))?[^()]*\))?", str(message), re.S)
    assert found, message
    _, *arguments = shlex.split(found[1])
    ran = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "up to date" not in ran.stdout
    return ran


@pytest.fixture
def corpus(write):
    path = write([{"n": number % 7 + 1, "text": "x" * (number % 40)} for number in range(2000)])
    mmapds.build(path, length="n")
    return path


def section(index, name):
    return Index(index).sections[name].offset


def overwrite(index, name, begin, size):
    """Fill part of a section with ones, whose checksum is not looked at when it is opened."""
    patched(index, section(index, name) + begin, b"\xff" * size)


def mended(path, kind, message):
    """The error that says what is wrong, and after its command none."""
    index = path if path.endswith(".mmx") else f"{path}.mmx"
    with pytest.raises(kind, match=message) as error:
        verify(Index(index))
    run_remedy(error.value)
    verify(Index(index))
    assert len(mmapds.open(path)) == Index(index).records


def test_a_source_that_grew(corpus):
    with open(corpus, "a") as file:
        file.write('{"n": 5}\n')
    mended(corpus, mmapds.StaleIndexError, "STALE: train.jsonl was [0-9]+ bytes when indexed and is [0-9]+ now")
    assert len(mmapds.open(corpus)) == 2001
    assert mmapds.open(corpus).columns == ["length"]


@pytest.mark.parametrize("time", ["same", "another"])
def test_a_source_with_other_content(corpus, time):
    flip(corpus, 6)  # a digit
    if time == "another":
        os.utime(corpus)
    mended(corpus, mmapds.StaleIndexError, f"STALE: .*train.jsonl has other content .same size, {time} time, fingerp")


def test_a_source_whose_records_lie_elsewhere(write):
    path = write(b"1\n" * 500_000)
    mmapds.build(path)
    flip(path, 500_001)  # a newline that the fingerprint does not see
    mended(
        path, mmapds.FormatError, "DAMAGED: record 250001 of .*train.jsonl begins at byte 500002, expected byte 500004"
    )


def test_a_column_of_other_numbers(write):
    path = write(b'{"n": 1}\n' * 40_000)
    mmapds.build(path, length="n")
    flip(path, 9 * 20_000 + 6)
    mended(path, mmapds.FormatError, r"column:length\[20000\] = 1, expected 0 \(record 20000 of .*train.jsonl\)")


@pytest.mark.parametrize("name", ["offsets", "column:length", "length_order", "length_values", "length_counts"])
def test_a_damaged_section(corpus, name):
    flip(f"{corpus}.mmx", section(f"{corpus}.mmx", name) + 5)
    mended(corpus, mmapds.FormatError, f"DAMAGED: section '{name}' does not match its checksum")
    assert mmapds.open(corpus).columns == ["length"]


@pytest.mark.parametrize("at", [3, 16, 30, 50, -10])
def test_a_damaged_header(corpus, at):
    flip(f"{corpus}.mmx", at % os.path.getsize(f"{corpus}.mmx"))
    with pytest.raises(mmapds.FormatError, match=r"DAMAGED: |NOT AN INDEX: expected .* at byte 0, found ") as error:
        mmapds.open(corpus)
    run_remedy(error.value)
    assert len(mmapds.open(corpus)) == 2000


def test_a_damaged_index_of_several_sources_names_what_only_the_user_knows(write, tmp_path):
    write([1, 2], "a.jsonl"), write([3], "b.jsonl")
    out = tmp_path / "all.mmx"
    mmapds.build([tmp_path / "a.jsonl", tmp_path / "b.jsonl"], out=out)
    flip(out, 50)
    with pytest.raises(mmapds.FormatError) as error:
        mmapds.open(out)
    message = str(error.value)
    assert message.endswith(f"; run: python -m mmapds.index SOURCE... -o {out}")
    run_remedy(message.replace("SOURCE...", f"{tmp_path}/a.jsonl {tmp_path}/b.jsonl"))
    assert list(mmapds.open(out)) == [1, 2, 3]


def test_an_index_of_several_sources(write, tmp_path):
    first, second = write([1, 2], "a.jsonl"), write([3], "b.jsonl")
    out = str(tmp_path / "all.mmx")
    mmapds.build([first, second], out=out)
    flip(out, section(out, "offsets"))
    mended(out, mmapds.FormatError, "DAMAGED: section 'offsets' does not match its checksum")
    with open(second, "a") as file:
        file.write("4\n")
    mended(out, mmapds.StaleIndexError, "STALE: b.jsonl was 2 bytes when indexed and is 4 now")
    assert list(mmapds.open(out)) == [1, 2, 3, 4]


def test_an_index_with_a_column_that_was_computed_in_python(corpus):
    """Its command refuses to lose the column, but for --force."""
    mmapds.add_column(corpus, "square", np.arange(2000) ** 2)
    before = os.path.getsize(corpus)
    with open(corpus, "a") as file:
        file.write('{"n": 5}\n')
    with pytest.raises(mmapds.StaleIndexError, match=r"; run: python -m mmapds\.index \S+$"):
        mmapds.open(corpus)
    with pytest.raises(mmapds.ColumnError, match="column 'square' was computed in Python and a rebuild loses it"):
        mmapds.build(corpus)
    os.truncate(corpus, before)
    flip(f"{corpus}.mmx", section(f"{corpus}.mmx", "offsets"))
    mended(corpus, mmapds.FormatError, r"; run: .* --force \(which loses 'square', computed in Python\)$")
    assert mmapds.open(corpus).columns == ["length"]


def test_bounds_that_do_not_fit_the_source(corpus):
    overwrite(f"{corpus}.mmx", "offsets", 0, 64)
    with pytest.raises(
        mmapds.FormatError, match=r"DAMAGED: record 0 of .*: expected bytes within 0 to \d+, found"
    ) as error:
        mmapds.open(corpus)[0]
    run_remedy(error.value)
    assert mmapds.open(corpus)[0]["n"] == 1


def test_a_missing_index(write):
    path = write([1, 2])
    with pytest.raises(mmapds.IndexMissingError) as error:
        mmapds.open(path)
    run_remedy(error.value)
    assert list(mmapds.open(path)) == [1, 2]
    os.unlink(f"{path}.mmx")
    with pytest.raises(mmapds.IndexMissingError) as error:
        Index(f"{path}.mmx")
    run_remedy(error.value)
    assert list(mmapds.open(path)) == [1, 2]


def test_missing_indexes_of_a_pattern(write, tmp_path):
    write([1], "a b-0.jsonl"), write([2], "a b-1.jsonl")
    with pytest.raises(mmapds.IndexMissingError, match="and 1 more: not indexed yet") as error:
        mmapds.open(tmp_path / "a b-*.jsonl")
    run_remedy(error.value)
    assert list(mmapds.open(tmp_path / "a b-*.jsonl")) == [1, 2]


def run_tool(message):
    """Run the command that a message ends with, of whatever program, with this Python as `python`."""
    command = re.sub("^python ", f"{sys.executable} ", str(message).rpartition("; run: ")[2])
    ran = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(("suffix", "compress"), [("bz2", bz2.compress), ("xz", lzma.compress)])
def test_a_compressed_source(tmp_path, suffix, compress):
    path = tmp_path / f"a b.jsonl.{suffix}"
    path.write_bytes(compress(b'{"n": 1}\n{"n": 2}\n'))
    with pytest.raises(mmapds.SourceError, match="compressed") as error:
        mmapds.build(path)
    run_tool(error.value)
    assert list(mmapds.open(tmp_path / "a b.plain.jsonl", build=True)) == [{"n": 1}, {"n": 2}]
    assert path.exists()


def test_a_zipped_source(tmp_path, monkeypatch):
    if not shutil.which("unzip"):
        pytest.skip("this machine has no unzip")
    monkeypatch.chdir(tmp_path)  # where unzip puts the files
    with zipfile.ZipFile("a b.zip", "w") as zipped:
        zipped.writestr("a.jsonl", "1\n2\n")
    with pytest.raises(mmapds.SourceError, match=r"compressed \(zip\)") as error:
        mmapds.build("a b.zip")
    run_tool(error.value)
    assert list(mmapds.open("a.jsonl", build=True)) == [1, 2]


def test_a_source_that_must_be_converted(tmp_path):
    path = tmp_path / "a b.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2]}), path)
    with pytest.raises(mmapds.FormatError, match="is not read in place") as error:
        mmapds.build(path)
    run_tool(error.value)
    (converted,) = tmp_path.glob("*.mma")
    assert [record["n"] for record in mmapds.open(converted, build=True)] == [1, 2]


def test_damaged_keys(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(archive([(f"{number}.txt", b"x") for number in range(10)]))
    mmapds.build(path)
    overwrite(f"{path}.mmx", "key_records", 0, 40)
    with pytest.raises(
        mmapds.FormatError, match=r"DAMAGED: key_records\[\d\] = 4294967295 is out of range for 10 records"
    ) as error:
        mmapds.open(path).find("3")
    run_remedy(error.value)
    assert mmapds.open(path).find("3") == 3


def test_a_damaged_length_order(corpus):
    pytest.importorskip("torch")
    overwrite(f"{corpus}.mmx", "length_order", 0, 8000)
    sampler = mmapds.TokenBudgetBatchSampler(mmapds.open(corpus), 100)
    with pytest.raises(mmapds.FormatError, match=f"{corpus}.mmx: DAMAGED: ") as error:
        next(iter(sampler))
    run_remedy(error.value)
    sampler = mmapds.TokenBudgetBatchSampler(mmapds.open(corpus), 100)
    assert sorted(record for batch in sampler for record in batch) == list(range(2000))


@pytest.mark.parametrize(
    "meet",
    [
        lambda ds, _: ds[4],
        lambda _, out: verify(Index(out)),
    ],
)
def test_a_missing_shard(write, tmp_path, meet):
    paths = [write([{"n": number}] * 3, f"a b-{number}.jsonl") for number in range(3)]
    out = str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out, length="n", columns={"size": "bytes()"}, validate=True)
    ds = mmapds.open(out)
    os.remove(paths[1])
    with pytest.raises(mmapds.SourceError, match=rf"a b-1.jsonl: no such file or directory \(a source of {out}\)$"):
        meet(ds, out)


def test_an_index_that_was_cut_while_it_was_open(write, tmp_path):
    paths = [write([{"n": 1}] * 2000, "a.jsonl"), write([{"n": 2}] * 2000, "b.jsonl")]
    out = str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out, length="n")
    ds = mmapds.open(out)
    os.truncate(out, 100)
    with pytest.raises(mmapds.FormatError, match=r"expected \d+ bytes, as when .* found fewer$"):
        list(ds)
    mmapds.build(paths, out=out, length="n")
    assert len(mmapds.open(out).lengths) == 4000


@pytest.mark.parametrize("on_error", ["raise", "skip"])
@pytest.mark.parametrize("text", [b'{"n": 1}\n{"n": 2}\n{"n": 3}\n', b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n{"n": 3}'])
def test_a_bound_inside_a_record_is_not_blamed_on_the_data(write, text, on_error):
    path = write(text)
    mmapds.build(path)
    first, second, *others = bounds_of(f"{path}.mmx")
    forge_bounds(f"{path}.mmx", [first, second + 3, *others])
    for record in (1, 0) if text.startswith(b"{") else (1,):
        with pytest.raises(
            mmapds.FormatError, match=f"DAMAGED: record {record} of .*: expected a whole line, found "
        ) as error:
            mmapds.open(path, on_error=on_error).take([record, 2])
    run_remedy(error.value)
    assert list(mmapds.open(path)) == [{"n": 1}, {"n": 2}, {"n": 3}]
