"""The command that a message names mends what the message is about: each is run as it is printed."""

import bz2
import gzip
import json
import lzma
import os
import re
import shlex
import struct
import subprocess
import sys
import sysconfig
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import mmapds
from mmapds.convert import convert
from mmapds.errors import printable
from mmapds.index import verify as verify_module
from mmapds.index.__main__ import main
from mmapds.storage.index_file import Index
from tests.support.bounds import bounds_of, forge_bounds
from tests.support.commands import mmapds as command
from tests.support.files import flip, patched
from tests.support.index_file import verify
from tests.support.messages import check
from tests.support.worlds import world

RECORDS = 12_000
BETWEEN = 10_000  # a record between the blocks of the fingerprint


def run_remedy(error):
    """Run the command that a message ends with, which may be followed by a remark in parentheses."""
    found = re.fullmatch(r".*[;r] run: python -m mmapds\.index (.*?)(?: \([^()]*(\(.*\))?[^()]*\))?", str(error), re.S)
    assert found, error
    check(str(error))
    assert main(shlex.split(found[1])) == 0


@pytest.fixture
def corpus(write):
    """Records of 40 bytes, more than a fingerprint sees."""
    path = write(b"".join(b'{"n":%d,"id":%26d}\n' % (number % 7 + 1, number) for number in range(RECORDS)))
    mmapds.build(path, length="n")
    return path


def section(index, name, at=0):
    return Index(index).sections[name].offset + at


def grow(path, line='{"n":5}\n'):
    with open(path, "a") as file:
        file.write(line)


def with_a_computed_column(path):
    mmapds.add_column(path, "square", np.arange(RECORDS) ** 2)
    flip(f"{path}.mmx", section(f"{path}.mmx", "offsets"))


def another_number(path):
    flip(path, 40 * BETWEEN + 5)


def moved(path):
    """Let a line end one byte earlier."""
    with open(path, "rb") as file:
        line = file.readlines()[BETWEEN - 1]
    patched(path, 40 * (BETWEEN - 1), line.replace(b"  ", b" ", 1) + b" ")


def in_index(at):
    """What flips a bit of the index, in a section or at a place."""
    return lambda path: flip(f"{path}.mmx", section(f"{path}.mmx", at, 5) if isinstance(at, str) else at)


DAMAGE = {
    "a source that grew": (grow, "STALE: train.jsonl was [0-9]+ bytes when indexed and is [0-9]+ now"),
    "a source of a computed column": (
        lambda path: (mmapds.add_column(path, "square", np.arange(RECORDS) ** 2), flip(path, 5), os.utime(path)),
        r"STALE: .* now\); pass columns={'square': FUNCTION} to mmapds.build, or run: .* --force .which loses",
    ),
    "other content": (lambda path: flip(path, 5), "STALE: .*other content .same size, same time, fing"),
    "another number": (another_number, r"DAMAGED: column:length\[10000\] = 5, expected 4 \(record 10000 of .*jsonl\)"),
    "another line end": (moved, "DAMAGED: record 10000 of .* begins at byte 400000, expected byte 399999"),
    "a header": (in_index(30), "DAMAGED: "),
    "the first bytes": (in_index(3), "NOT AN INDEX: expected .* at byte 0, found "),
    "metadata": (lambda path: in_index(os.path.getsize(f"{path}.mmx") - 10)(path), "DAMAGED: header and metadata"),
    "an index cut short": (lambda path: os.truncate(f"{path}.mmx", 5000), "DAMAGED: expected "),
    "a computed column": (with_a_computed_column, r"--force \(which loses 'square', computed in Python\)$"),
    **{
        f"section {name}": (in_index(name), f"DAMAGED: section '{name}' does not match its checksum")
        for name in ("offsets", "column:length", "length_order")
    },
}


@pytest.mark.parametrize("name", DAMAGE)
def test_an_index_that_is_stale_or_damaged(corpus, tmp_path, monkeypatch, name):
    monkeypatch.setattr(verify_module, "_RECORDS", 1000)  # whose bounds are compared at a time
    damage, message = DAMAGE[name]
    damage(corpus)
    with pytest.raises((mmapds.StaleIndexError, mmapds.FormatError), match=message) as error:
        verify(Index(f"{corpus}.mmx"))
    assert sorted(os.listdir(tmp_path)) == ["train.jsonl", "train.jsonl.mmx"]
    run_remedy(error.value)
    verify(Index(f"{corpus}.mmx"))
    ds = mmapds.open(corpus)
    assert len(ds) == RECORDS + (damage is grow)
    assert name in ("a header", "the first bytes", "metadata", "an index cut short") or ds.columns == ["length"]


@pytest.mark.parametrize("text", [b'{"n":1}\n{"n":2}\n{"n":3}\n', b'\xef\xbb\xbf{"n":1}\r\n{"n":2}\r\n{"n":3}'])
def test_a_bound_inside_a_record_is_not_blamed_on_the_data(write, text):
    path = write(text)
    mmapds.build(path)
    first, second, *others = bounds_of(f"{path}.mmx")
    forge_bounds(f"{path}.mmx", [first, second + 3, *others])
    for on_error in ("raise", "skip"):
        with pytest.raises(mmapds.FormatError, match=r"record 1 of .*: expected a whole line, found ") as error:
            mmapds.open(path, on_error=on_error).take([1, 2])
    run_remedy(error.value)
    assert list(mmapds.open(path)) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_an_index_of_several_sources(write, tmp_path):
    """Only the user knows the sources, where the list of them is damaged."""
    paths, out = [write([1, 2], "a b.jsonl"), write([3], "b.jsonl")], str(tmp_path / "all.mmx")
    mmapds.build(paths, out=out)
    flip(out, section(out, "offsets"))
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


def test_missing_indexes(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(("a b-0.jsonl", "-n.jsonl")):
        write([number], name)
    for given, wanted in ((["a b-0.jsonl", "-n.jsonl"], [0, 1]), ("a b-0.jsonl", [0]), ("-n.jsonl", [1])):
        with pytest.raises(mmapds.IndexMissingError, match="not indexed yet") as error:
            mmapds.open(given)
        run_remedy(error.value)
        assert list(mmapds.open(given)) == wanted
        for index in tmp_path.glob("*.mmx"):
            index.unlink()
    write([2], "several.jsonl")
    mmapds.build(["a b-0.jsonl", "several.jsonl"], out="both.mmx")
    message = r"^several.jsonl: not indexed alone; open both.mmx, which has it, or run: "
    with pytest.raises(mmapds.IndexMissingError, match=message) as error:
        mmapds.open("several.jsonl")
    run_remedy(error.value)
    assert list(mmapds.open("several.jsonl")) == [2]


# ---- sources that other tools convert ------------------------------------------------------------------------------


def refused(work, *arguments, **options):
    with pytest.raises(mmapds.Error) as error:
        work(*arguments, **options)
    return str(error.value)


def run_shell(message):
    """Run the command that a message ends with; return the file that it writes."""
    check(message)
    command = re.sub("^python ", f"{sys.executable} ", message.rpartition("; run: ")[2])
    subprocess.run(command, shell=True, check=True)
    return command.rpartition(" > ")[2]


def arrow(_):
    feather.write_feather(pa.table({"n": [1, 2]}), "a b.arrow")
    return Path("a b.arrow").read_bytes()


@pytest.mark.parametrize(
    ("name", "make", "made"),
    [
        ("a b.jsonl.bz2", bz2.compress, "a b.plain.jsonl"),
        ("a b.jsonl.xz", lzma.compress, "a b.plain.jsonl"),
        ("a b.arrow", arrow, "a b.mma"),
        ("a b.jsonl.gz", lambda data: bytes(512).join(map(gzip.compress, data.splitlines(True))), "a b.plain.jsonl"),
    ],
)
def test_a_source_that_must_be_converted(tmp_path, monkeypatch, name, make, made):
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(data := make(b'{"n": 1}\n{"n": 2}\n'))
    run_shell(refused(mmapds.build, name))
    assert list(mmapds.open(made, build=True)) == [{"n": 1}, {"n": 2}]
    assert Path(name).read_bytes() == data


def test_records_that_are_compressed_whole_are_unpacked(tmp_path):
    records = tmp_path / "a.tfrecord"
    records.write_bytes(zlib.compress(struct.pack("<Q", 3) + bytes(4) + b"abc" + bytes(4)))
    message = refused(mmapds.build, records)
    assert "compressed (zlib)" in message
    assert Path(run_shell(message)).read_bytes()[12:15] == b"abc"


TEXTS = {
    "GB18030": "你好世界。今天天气很好、我们去公园散步。",
    "SHIFT_JIS": "こんにちは、世界。今日はいい天気ですね。",
    "EUC-KR": "안녕하세요 세계 여러분, 오늘은 날씨가 좋습니다",
    "CP1251": "Привет, мир! Это простой текст, который надо прочитать.",
    "CP1252": "Un café à l'école, garçon: größer, señor",
    "UTF-16": "any text",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_text_in_another_encoding_is_converted_to_what_it_says(tmp_path, encoding):
    text = json.dumps({"text": TEXTS[encoding]}, ensure_ascii=False) + "\n"
    path, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    path.write_bytes(text.encode(encoding))
    packed.write_bytes(gzip.compress(text.encode(encoding)))
    for each in (path, packed):
        made = run_shell(refused(mmapds.build, each))
        assert mmapds.open(made, build=True)[0] == json.loads(text)
    mmapds.build(path, format="jsonl")
    with pytest.raises(mmapds.DecodeError, match=rf"found {encoding}.*; convert it by iconv -f {encoding} -t UTF-8"):
        mmapds.open(path)[0]
    path.write_bytes(b"\x98\x81\xff\xff\n" * 9)
    assert refused(mmapds.build, path).endswith(f"found text that is not UTF-8; run: file {path}")


def test_nan_is_named_with_the_decoder_that_reads_it(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, -Infinity]}\n')
    assert "found -Infinity, which JSON lacks; give format='jsonl'" in refused(mmapds.build, path)
    path.write_text('{"x": NaN}\n{"x": 1}\n')
    assert "has NaN; open it with decode=json.loads; leave such" in refused(mmapds.build, path, validate=True)
    mmapds.build(path)
    assert refused(mmapds.open(path).__getitem__, 0).endswith("has NaN; open it with decode=json.loads (ds[0])")
    assert np.isnan(mmapds.open(path, decode=json.loads)[0]["x"])


def test_seconds_are_a_column_and_no_lengths_until_they_are_rounded(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"s": 1.5}\n{"s": 0.25}\n')
    assert "keep it by columns= under another name, or round it by" in refused(mmapds.build, path, length="s")
    mmapds.build(path, columns={"seconds": "s"})
    mmapds.add_column(path, "length", lambda sample: round(100 * sample["s"]))
    assert mmapds.open(path).lengths.tolist() == [150, 25]


# ---- commands as they are printed ----------------------------------------------------------------------------------


def test_a_printed_command_can_be_pasted(write, tmp_path):
    write([1], name := "-n $HOME`x` it's.jsonl")
    line = command("head", f"./{name}", cwd=tmp_path).stderr.rpartition("; run: ")[2].rstrip()
    assert printable(line) == line
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / f"{name}.mmx").exists()


def test_commands_are_those_of_the_tool_that_runs(write, tmp_path):
    write([1], "a.jsonl")
    assert "; run: python -m mmapds.index a.jsonl" in command("head", "a.jsonl", cwd=tmp_path).stderr
    feather.write_feather(pa.table({"x": [1]}), tmp_path / "t.arrow")
    script = os.path.join(sysconfig.get_path("scripts"), "mmapds")
    for given, said in (("head a.jsonl", "mmapds index a.jsonl"), ("index t.arrow", "mmapds convert t.arrow")):
        ran = subprocess.run([script, *given.split()], capture_output=True, text=True, check=False, cwd=tmp_path)
        assert f"; run: {said}" in ran.stderr


def test_a_conversion_that_is_run_again_keeps_the_lengths(tmp_path):
    pq.write_table(pa.table({"tokens": [[1], [1, 2]], "n": [5, 6]}), tmp_path / "t.parquet")
    for options, kept, lengths in (
        ({"length": "tokens"}, None, [1, 2]),
        ({}, "tokens", [1, 2]),
        ({"length": "n"}, None, [5, 6]),
    ):
        assert convert(tmp_path / "t.parquet", **options).kept_length == kept
        assert mmapds.open(tmp_path / "t.mma").lengths.tolist() == lengths
    assert convert(tmp_path / "t.parquet", fields=["tokens"]).kept_length is None, "the field is gone"


def test_a_shuffling_loader_of_several_processes_needs_a_sampler(tmp_path):
    code = """
loader = DataLoader(range(8), 2, shuffle=True)
say(len(list(loader)))
begin()
say(tried(lambda: list(loader)))
import torch.utils.data
for sampler in (DistributedSampler(range(8)), torch.utils.data.RandomSampler(range(8))):
    say(sum(map(len, DataLoader(range(8), 2, sampler=sampler))))
say(sum(map(len, DataLoader(range(8), 2))))
"""
    for said in world(code, tmp_path):
        assert said[0] == 4
        assert said[1].startswith("shuffle = True, expected a sampler that shares the samples among the 2 processes")
        check(said[1])
        assert said[2:] == [4, 8, 8]
