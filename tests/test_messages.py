"""Messages follow the forms of CONTRIBUTING.md: a place, what was expected, what was found, and what to do."""

import ast
import io
import os
import re
import struct
import subprocess
import sys
import tarfile
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmapds
from mmapds import orders
from mmapds.convert import convert

ROOT = Path(__file__).parent.parent

VERBS = (
    "add|build|cast|choose|compute|convert|copy|decompress|define|delete|drop|give|index|keep|leave|load|make|name|open|pass|"
    "remove|rename|save|set|upgrade|use|write|run"
)
"""How a remedy begins that is not a command."""

TOKENS = {
    "ARGUMENT": (
        r"(?:--[a-z-]+(?: [^\s:]+)?|[A-Za-z_]\w*)(?: '[^'\n]*'| \"[^\"\n]*\")?(?:\[[^\]\n]*\]|\.\w+)*(?:, [a-z_]+)?"
    ),
    "PATH": r"(?=[^:\n]*[./])\S[^:\n]*",
    "LINE": r"\d+",
    "N": r"-?\d+",
    "UNIT": "record|row|sequence",
    "KIND": "STALE|DAMAGED|VERSION|NOT AN INDEX|NOT AN ARRAY FILE",
    "VALUE": r"[^\n]+?",
    "WHAT": r"[^;\n]+?(?:; nothing was changed)?",
    "X": r"[^;\n]+?",
    "Y": r"[^;\n]+?",
    "RANGE": r"[\w ]*\d[\w ]*",
    "SYSTEM": "no such file(?: or directory)?|permission denied|is a directory|not a directory|no space left on device",
    "REASON": r"[^\n]+?",
    "REMEDY": rf"(?:run: |(?:{VERBS}) )[^\n]+?",
    "NAME": r"[\w.]+(?: = '\w+')?",
    "PACKAGE": r"\w+",
}

BANNED = [
    r"\b(?:is|are|or) no(?:ne)?\b(?! such)",
    r"\bha(?:s|ve) not\b",
    r"\b(?:is|are) said\b",
    r"\bsays? of\b",
    r"\bof which\b",
    r"\b(?:in )?what (?:is|are)\b",
    r"\bgoes? with\b",
    r"\b(?:tells?|told)\b",
    r"\bwithout a word\b",
    r"\bwent away\b",
    r"\bexpected some\b",
    r"\bas (?:many|much)\b",
    r"\b(?:not that|not those) of\b",
    r"\bthemselves\b",
    r"\bnot as specified\b",
    r"\bcut short\b",
    r"\bmakes? no sense\b",
    r"\brank should be\b",
    r"\?",
    r"^\w+=(?:\{\}|')",  # not "ARGUMENT = VALUE"
]


def forms():
    """Each form of CONTRIBUTING.md: how it is written, what matches it, and an example."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    table = text[text.index("## Messages") : text.index("## Map of the code")]
    rows = re.findall(r"^\| `([^`]+)` \| (`.+`) \|$", table, re.MULTILINE)
    return [(form, pattern(form), example.strip("`").strip()) for form, example in rows]


def pattern(form):
    """The regular expression of a form, with the remedy and the remark that may end it."""
    token = "|".join(rf"\b{name}\b" for name in TOKENS)
    parts = re.split(rf"(\[|\]|{token})", form)
    text = "".join({"[": "(?:", "]": ")?"}.get(part) or named(part) for part in parts)
    remedy = "" if form.endswith("REMEDY") else rf"(?:; {TOKENS['REMEDY']})?"
    return re.compile(rf"{text}{remedy}(?: \(.+\))?")


def named(part):
    return f"(?:{TOKENS[part]})" if part in TOKENS else re.escape(part)


def check(message):
    """Assert that a message has one of the forms, and none of the phrases that readers stumble over."""
    assert any(found.fullmatch(message) for _, found, _ in forms()), f"no form of CONTRIBUTING.md: {message}"
    assert not (phrases := banned(message)), f"{phrases}: {message}"
    expects = r"\bexpected |\bout of range for |; (?:run: |(?:%s) )|: not |^%s: (?:%s)"
    assert re.search(expects % (VERBS, TOKENS["PATH"], TOKENS["SYSTEM"]), message), message


def banned(text):
    """The phrases in a text that no message may have, without what it quotes of the user's."""
    return [phrase for phrase in BANNED if re.search(phrase, re.sub(r"; run: .*", "", text))]


def test_every_example_has_its_form():
    assert len(forms()) > 10
    for form, found, example in forms():
        assert found.fullmatch(example), form
        check(example)


# ---- errors of every kind ---------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def file(name, content):
    Path(name).write_bytes(content)
    return name


def jsonl(content=b'{"n": 1, "s": "one"}\n{"n": 2, "s": "two"}\n{"n": 3, "s": "three"}\n', **options):
    name = file("train.jsonl", content)
    mmapds.build(name, **options)
    return name


def indexed(name):
    mmapds.build(file(name, b"1\n"))
    return name


def dataset(**options):
    return mmapds.open(jsonl(length="n"), **options)


def archive(*members, name="a.tar"):
    with tarfile.open(name, "w") as out:
        for member in members or ("0.txt", "1.txt"):
            entry = tarfile.TarInfo(member)
            entry.size = 1
            out.addfile(entry, io.BytesIO(b"x"))
    return name


def arrays(name="a.mma", schema=None, **options):
    schema = schema or {"x": ("float32", (None, 2)), "id": "int64"}
    with mmapds.Writer(name, schema, **options) as writer:
        for number in range(20):
            writer.write({"x": np.zeros((number, 2), np.float32), "id": number})
    return name


def megatron(code=8, begin=4, version=1, magic=b"MMIDIDX\0\0"):
    file("corpus.bin", bytes(8))
    body = struct.pack("<QBQQ", version, code, 2, 2) + struct.pack("<2i2q2q", 2, 2, 0, begin, 0, 2)
    file("corpus.idx", magic + body)
    return "corpus.bin"


def overwrite(name, at, data):
    found = os.stat(name)
    with open(name, "r+b") as out:
        out.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
        out.write(data)
    os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
    return name


def cut(name, size):
    os.truncate(name, size if size >= 0 else os.path.getsize(name) + size)
    return name


def grown():
    jsonl()
    with open("train.jsonl", "ab") as out:
        out.write(b'{"n": 4}\n')
    return "train.jsonl"


def written_again():
    path = jsonl()
    size = os.path.getsize(path)
    with open(path, "r+b") as file:
        file.write(b" " * size)
    os.utime(path, ns=(5, 5))
    return "train.jsonl"


def outside():
    os.mkdir("elsewhere")
    return mmapds.build(jsonl(), out="elsewhere/all.mmx")


def index_of(name, at, data):
    return overwrite(f"{name}.mmx", at, data)


def opened():
    return mmapds.open("train.jsonl")


def with_a_shard_missing():
    paths = [file(f"{number}.jsonl", b"1\n") for number in range(2)]
    mmapds.build(paths, out="all.mmx")
    os.remove(paths[0])
    return "all.mmx"


def writer(schema=None, **options):
    return mmapds.Writer("out.mma", schema or {"id": "int64", "name": "str"}, **options)


def written(record, schema=None):
    with writer(schema) as out:
        out.write(record)


def inferred(record):
    with mmapds.Writer("out.mma") as out:
        out.write(record)


def closed():
    out = writer()
    out.close()
    out.write({"id": 1, "name": "a"})


def command(*arguments):
    """What a command says on stderr, as an error."""
    ran = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 1, ran
    raise mmapds.Error(ran.stderr.removesuffix("\n"))


def collate(*samples, **options):
    return mmapds.pad_collate(list(samples), **options)


def table(name="t.parquet", **columns):
    pq.write_table(pa.table(columns), name)
    return name


def groups():
    with h5py.File("g.h5", "w") as out:
        out["a"], out["b"] = np.ones(3), np.ones(4)
    return "g.h5"


def linked():
    with h5py.File("l.h5", "w") as out:
        out["a"] = h5py.ExternalLink("g.h5", "/a")
    return "l.h5"


def state(**changes):
    sampler = mmapds.DistributedSampler(range(10), 1, 0)
    found = sampler.state_dict() | changes
    mmapds.DistributedSampler(range(10), 1, 0).load_state_dict(found)


def tokens(lengths=(3, 4, 5, 6), max_tokens=10, **options):
    sampler = mmapds.TokenBudgetBatchSampler(list(lengths), max_tokens, **({"num_replicas": 1, "rank": 0} | options))
    return list(sampler)


class Twice(orders.Sequential):
    """A broken order: every position has record 0."""

    def at(self, _, positions):
        return np.zeros_like(positions)


distributed = partial(mmapds.DistributedSampler, range(10))
floats = partial(torch.zeros, dtype=torch.float32)


def zipped(ds=None):
    ds = ds or dataset()
    return mmapds.zip(a=ds, b=ds[::-1])


WITH_NUMBERS = {
    # Orders and samplers
    "permutation of none": lambda: mmapds.Permutation(0),
    "permutation position": lambda: mmapds.Permutation(5)[5],
    "permutation positions": lambda: mmapds.Permutation(5)[np.array([1, 7])],
    "chunk size": lambda: orders.Chunked(10, 0),
    "chunk starts": lambda: orders.Chunked([1, 5], 2),
    "mixture counts": lambda: orders.Mixture([5, 5], [1]),
    "mixture weights": lambda: orders.Mixture([5, 5], [0, 0]),
    "mixture negative weight": lambda: orders.Mixture([5, 5], [-1, 2]),
    "mixture empty member": lambda: orders.Mixture([0, 5], [1, 1]),
    "num_replicas": lambda: distributed(0, 0),
    "rank": lambda: distributed(2, 2),
    "rank below": lambda: distributed(2, -1),
    "no rank": lambda: distributed(2),
    "start step": lambda: distributed(1, 0, start_step=11),
    "epoch size": lambda: distributed(1, 0, epoch_size=11),
    "exclusion that ends first": lambda: distributed(1, 0, exclude={"steps": [(5, 2)]}),
    "step of the epoch": lambda: distributed(1, 0).indices_at(10),
    "empty dataset": lambda: mmapds.DistributedSampler([]),
    "empty dataset in chunks": lambda: mmapds.ChunkedSampler([], 3),
    "step of a pass": lambda: distributed(1, 0).state_dict(step=11),
    "batch size": lambda: mmapds.DistributedBatchSampler(range(10), 0, num_replicas=1, rank=0),
    "state of a version": lambda: state(version=99),
    "state's position": lambda: state(position=11),
    "state of another size": lambda: state(epoch_size=11),
    # Token budgets
    "max_tokens": lambda: tokens(max_tokens=0),
    "no lengths": lambda: tokens([]),
    "length 0": lambda: tokens([0, 3]),
    "length below 0": lambda: tokens([1, -3]),
    "length NaN": lambda: tokens([1.0, float("nan")]),
    "lengths of two axes": lambda: tokens(np.ones((2, 2), int)),
    "over the budget": lambda: tokens([3, 50]),
    "nothing left": lambda: tokens(min_length=100),
    "fewer samples than ranks": lambda: tokens(num_replicas=9, rank=0),
    "no step is left": lambda: tokens(max_tokens=100, num_replicas=4, rank=0, drop_last=True),
    "target lengths": lambda: tokens(target_lengths=[1]),
    "group size of windows": lambda: tokens(planner="window", group_size=2),
    "order of another size": lambda: tokens(planner="window", order=orders.Shuffled(7)),
    "order that repeats": lambda: tokens(planner="window", order=Twice(4)),
    # Datasets and views
    "index": lambda: dataset()[3],
    "index of a view": lambda: dataset()[1:][2],
    "indices": lambda: dataset()[[0, 7]],
    "batch": lambda: dataset().__getitems__([0, -9]),
    "stream of nothing": lambda: dataset()[:0].stream(),
    "state of another worker of a stream": lambda: (
        dataset().stream().load_state_dict({"sampler": {}, "worker": 1, "num_workers": 2, "given": 0})
    ),
    "mask": lambda: dataset()[np.array([True, False])],
    "fractions": lambda: dataset().split([0.5, 0.6]),
    "two indices": lambda: dataset()[np.zeros((2, 2), int)],
    # Collate
    "no samples": lambda: collate(),
    "pad value": lambda: collate([1], [2], pad_value=2**70),
    "pad value of a type": lambda: collate(floats(2).to(torch.int8), floats(3).to(torch.int8), pad_value=300),
    "max_length": lambda: collate([1], max_length=0),
    "items of tuples": lambda: collate(([1], 2), ([1], 2, 3)),
    "shapes": lambda: collate(np.ones((2, 3)), np.ones((2, 4))),
    "a large integer": lambda: collate([1, 2**70]),
    # Indexes: stale, damaged, of another version
    "grown": lambda: mmapds.open(grown()),
    "truncated index": lambda: mmapds.open(cut(f"{jsonl()}.mmx", -5)),
    "size in a header": lambda: mmapds.open(index_of(jsonl(), 40, b"\xff")),
    "version of an index": lambda: mmapds.open(index_of(jsonl(), 8, b"\x07")),
    "bounds": lambda: mmapds.open(index_of(jsonl(), 64, b"\xff" * 8))[0],
    "version of an array file": lambda: mmapds.build(overwrite(arrays(index=False), 8, b"\x07")),
    "truncated array file": lambda: mmapds.build(cut(arrays(index=False), 1000)),
    "array file without its end": lambda: mmapds.build(cut(arrays(index=False), -5)),
    # Sources
    "record that is not whole": lambda: mmapds.build(file("r.bin", bytes(10)), format="fixed", record_bytes=4),
    "prefix at the end": lambda: mmapds.build(file("r.pb", b"\2\0\0\0hi\0\0"), format="prefixed"),
    "size beyond the end": lambda: mmapds.build(file("r.pb", b"\x09\0\0\0hi"), format="prefixed"),
    "long varint": lambda: mmapds.build(file("r.pb", b"\xff" * 12), format="prefixed", prefix="varint"),
    "crc": lambda: mmapds.build(file("r.tfrecord", bytes(32))),
    "record_bytes": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", record_bytes=0),
    "record_bytes and dtype": lambda: mmapds.build(
        file("r.bin", bytes(8)), format="fixed", record_bytes=3, dtype="uint16"
    ),
    "shape": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="uint16", shape="0"),
    "npy with too few": lambda: mmapds.build(cut(saved(np.ones((9, 4))), -64)),
    "truncated tar": lambda: mmapds.build(cut(archive(), 1300)),
    "garbage in a tar": lambda: mmapds.build(overwrite(archive(), 1030, b"!!!!")),
    "extension twice": lambda: mmapds.build(archive("0.txt", "0.txt")),
    "sequence that begins elsewhere": lambda: mmapds.build(megatron(begin=6)),
    "type of tokens": lambda: mmapds.build(megatron(code=99)),
    "more tokens than bytes": lambda: mmapds.build(cut(megatron(), 6)),
    "fewer tokens than bytes": lambda: mmapds.build(overwrite(megatron(), 8, b"more")),
    "version of megatron": lambda: mmapds.build(megatron(version=2)),
    "workers": lambda: mmapds.build(file("a.jsonl", b"1\n"), workers=0),
    # Columns
    "field that is missing": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n{}\n'), length="n"),
    "field of another type": lambda: mmapds.build(file("a.jsonl", b'{"n": "x"}\n'), length="n"),
    "field of no object": lambda: mmapds.build(file("a.jsonl", b"7\n"), length="n"),
    "not JSON": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n{"n": \n'), length="n"),
    "long path": lambda: mmapds.build(file("a.jsonl", b"{}\n"), length=".".join("a" * 99)),
    "values": lambda: mmapds.add_column(jsonl(), "x", [1, 2]),
    "negative lengths": lambda: mmapds.add_column(jsonl(), "length", [1, -1, 2]),
    "column workers": lambda: mmapds.add_column(jsonl(), "x", len, workers=0),
    "two indexes": lambda: mmapds.add_column([jsonl(), indexed("b.jsonl")], "x", [1]),
    "not a number": lambda: mmapds.add_column(jsonl(), "x", repr),
    # Records that cannot be decoded
    "column that no record has": lambda: mmapds.build(file("a.jsonl", b'{"n": 1}\n'), length="m", missing="skip"),
    "bad lines alone": lambda: mmapds.build(file("a.jsonl", b"bad\nworse\n"), bad="skip"),
    "line with a computed column": lambda: (mmapds.add_column(jsonl(b"1\nbad\n"), "x", [1, 2]), opened()[1])[1],
    "line of a decoder": lambda: mmapds.open(jsonl(b"1\n\xff\n"), decode="text")[1],
    "bound inside a record": lambda: mmapds.open(index_of(jsonl(), 72, b"\x03" + bytes(7)))[0],
    "dataset with a share and no records": lambda: mmapds.MixtureSampler([0, 5], [1, 1]),
    "order beside a seed": lambda: distributed(1, 0, order=orders.Sequential(10), seed=3),
    "order of other records": lambda: distributed(1, 0, order=orders.Resampled(9, 10)),
    "broken line": lambda: mmapds.open(jsonl(b'{"n": 1}\n{"n": \n'))[1],
    "broken text": lambda: mmapds.open(jsonl(b"\xff\n"), decode="text")[0],
    "broken example": lambda: mmapds.open(
        mmapds.build(file("r.pb", b"\2\0\0\0\x0a\x7f"), format="prefixed"), decode="tf_example"
    )[0],
    "samples of a mapped batch": lambda: dataset().map(lambda _: [1, 2], batched=True).take([0, 1, 2]),
    "samples of a mapped zip": lambda: zipped().map(lambda _: [1, 2], batched=True).take([0]),
    "zip of other lengths": lambda: mmapds.zip(a=dataset(), b=dataset()[1:]),
    "zip without names": lambda: mmapds.zip(dataset(), dataset()),
    "zip nothing": lambda: mmapds.zip(),
    "columns of one name": lambda: zipped(mmapds.open(jsonl(length="n"))).lengths,
    # Writer and convert
    "field too large": lambda: written({"id": 2**70, "name": "a"}),
    "field of a type": lambda: written({"id": 1, "name": 2}),
    "field missing in a record": lambda: written({"id": 1}),
    "record that is a list": lambda: written([1, 2]),
    "axes": lambda: written({"x": np.ones((2, 3))}, {"x": ("float64", (None, 4))}),
    "too many axes": lambda: writer({"x": ("float32", (1,) * 9)}),
    "infinity in JSON": lambda: written({"x": [float("inf")]}, {"x": "json"}),
    "infer": lambda: convert(jsonl(), "b.mma", infer=0),
    "rows": lambda: convert(groups(), "b.mma"),
    "null": lambda: convert(table(x=[1, None]), "b.mma"),
    "numbers that do not fit": lambda: convert(table(x=[[1, 70000]]), "b.mma", schema={"x": ("uint16", (None,))}),
    "several sources": lambda: convert([jsonl(), arrays()]),
}

WITHOUT_NUMBERS = {
    "JSON array": lambda: mmapds.build(file("a.json", b'[\n{"n": 1},\n{"n": 2}\n]\n')),
    "JSON over lines": lambda: mmapds.build(file("a.json", b'{\n "n": 1\n}\n')),
    "table": lambda: mmapds.build(file("a.csv", b"a,b\n1,2\n")),
    "tabs": lambda: mmapds.build(file("a.tsv", b"a\tb\n1\t2\n")),
    "UTF-16": lambda: mmapds.build(file("a.jsonl", '{"n": 1}\n'.encode("utf-16"))),
    "compressed by another name": lambda: mmapds.build(file("a.txt", b"\x1f\x8b\x08\0")),
    "missing shard": lambda: mmapds.open(with_a_shard_missing())[0],
    "bad": lambda: mmapds.build(jsonl(), bad="drop"),
    "bad without validate": lambda: mmapds.build(jsonl(), bad="skip", validate=False),
    "bad of a tar": lambda: mmapds.build(archive(), bad="skip"),
    "on_error": lambda: dataset(on_error="ignore"),
    "argument of build": lambda: mmapds.build(jsonl(), lenght="n"),
    "argument of another function": lambda: mmapds.build(jsonl(), decode="json"),
    "argument of open": lambda: mmapds.open(jsonl(), bild=True),
    "misspelt column": lambda: dataset().column("lenght"),
    "open nothing": lambda: mmapds.open([]),
    "open a missing file": lambda: mmapds.open("absent.jsonl"),
    "open an empty directory": lambda: mmapds.open("."),
    "open a pattern": lambda: mmapds.open("*.jsonl"),
    "open without an index": lambda: mmapds.open(file("a.jsonl", b"1\n")),
    "open a missing index": lambda: mmapds.open("absent.mmx"),
    "open what is converted": lambda: mmapds.open(table(x=[1])),
    "index that is text": lambda: mmapds.open(file("a.mmx", b"hello" * 20)),
    "index that is a directory": lambda: (os.mkdir("d.mmx"), mmapds.open(["d.mmx"]))[1],
    "written again": lambda: mmapds.open(written_again()),
    "source outside": lambda: mmapds.open(outside()),
    "checksum of an index": lambda: mmapds.open(index_of(jsonl(), -2, b"!")),
    "reserved": lambda: mmapds.open(index_of(jsonl(), 48, b"\1")),
    "access": lambda: dataset(access="fast"),
    "decode": lambda: dataset(decode="xml"),
    "decode of another format": lambda: dataset(decode="wds"),
    "decode torch": lambda: dataset(decode="torch"),
    "no column": lambda: mmapds.open(jsonl()).lengths,
    "no keys": lambda: dataset().find("x"),
    "no such key": lambda: mmapds.open(mmapds.build(archive())).find("x"),
    "a key that is a number": lambda: mmapds.open(mmapds.build(archive())).find(3),
    "index of floats": lambda: dataset()[[0.5]],
    "index of a name": lambda: dataset()["length"],
    "name of other libraries": lambda: dataset().select,
    "stream by no sampler": lambda: dataset().stream(range(3)),
    "stream by a sampler and more": lambda: dataset().stream(distributed(1, 0), seed=1),
    "concat nothing": lambda: mmapds.concat([]),
    "concat what is not of mmapds": lambda: mmapds.concat([dataset(), [1]]),
    "concat what is mapped otherwise": lambda: mmapds.concat([dataset().map(len), dataset().map(repr)]),
    "concat what is mapped and what is not": lambda: mmapds.concat([dataset(), dataset().map(len)]),
    "map what is no function": lambda: dataset().map("upper"),
    "concat zips of other names": lambda: zipped() + mmapds.zip(a=dataset()),
    "zip what is not of mmapds": lambda: mmapds.zip(a=dataset(), b=[1, 2, 3]),
    "column of no zipped dataset": lambda: zipped().column("n"),
    "column that a zipped dataset lacks": lambda: zipped().column("b.n"),
    "concat what differs": lambda: mmapds.concat([dataset(), dataset(decode="bytes")]),
    "build nothing": lambda: mmapds.build([]),
    "build a missing file": lambda: mmapds.build("absent.jsonl"),
    "build a directory": lambda: (os.mkdir("d"), mmapds.build([file("d/a.jsonl", b"1\n"), "d/none"]))[1],
    "build a compressed file": lambda: mmapds.build(file("a.jsonl", b"\x1f\x8b\x08\0")),
    "build an index": lambda: mmapds.build(f"{jsonl()}.mmx", out="b.mmx"),
    "build into a directory": lambda: mmapds.build(jsonl(), out="."),
    "build into nowhere": lambda: mmapds.build(jsonl(), out="absent/a.mmx"),
    "format": lambda: mmapds.build(jsonl(), format="csv"),
    "format that is converted": lambda: mmapds.build(jsonl(), format="parquet"),
    "unknown bytes": lambda: mmapds.build(file("a.bin", bytes(9))),
    "option": lambda: mmapds.build(jsonl(), prefix="varint"),
    "prefix": lambda: mmapds.build(file("r.pb", b""), format="prefixed", prefix="u16"),
    "truncated": lambda: mmapds.build(archive(), truncated="keep"),
    "dtype": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="uint17"),
    "dtype of objects": lambda: mmapds.build(file("r.bin", bytes(8)), format="fixed", dtype="O"),
    "two formats": lambda: mmapds.build([jsonl(), archive()], out="b.mmx"),
    "npy in Fortran order": lambda: mmapds.build(saved(np.asfortranarray(np.ones((3, 4))))),
    "npy of one number": lambda: mmapds.build(saved(np.float64(1))),
    "not an npy": lambda: mmapds.build(file("a.npy", b"hello")),
    "npy files that differ": lambda: mmapds.build([saved(np.ones(3)), saved(np.ones(3, int), "b.npy")], out="b.mmx"),
    "megatron without its idx": lambda: (os.unlink(megatron()[:-3] + "idx"), build_as("corpus.bin", "megatron"))[1],
    "idx itself": lambda: (megatron(), mmapds.build("corpus.idx"))[1],
    "idx of something else": lambda: build_as(megatron(magic=b"MMXXXXX\0\0"), "megatron"),
    "array file that is text": lambda: mmapds.build(file("a.mma", b"hello" * 20)),
    "unfinished array file": lambda: mmapds.build(file("a.mma", bytes(200))),
    "schema of an array file": lambda: mmapds.build(overwrite(arrays(index=False), 90, b"!!")),
    "array files that differ": lambda: mmapds.build(
        [arrays(index=False), arrays("b.mma", {"x": ("float32", (None, 2)), "id": "int32"}, index=False)], out="b.mmx"
    ),
    "expression": lambda: mmapds.build(jsonl(), length="words(s)"),
    "missing": lambda: mmapds.build(jsonl(), length="n", missing="drop"),
    "column of what is not JSON": lambda: mmapds.build(archive(), length="n"),
    "column of an array file": lambda: mmapds.build(arrays(index=False), columns={"y": "y"}),
    "validate what is not JSON": lambda: mmapds.build(archive(), validate=True),
    "computed column is lost": lambda: (mmapds.add_column(jsonl(), "x", [1, 2, 3]), mmapds.build(grown_again()))[1],
    "column without a name": lambda: mmapds.add_column(jsonl(), "", [1, 2, 3]),
    "column of text": lambda: mmapds.add_column(jsonl(), "x", ["a", "b", "c"]),
    "column of the sources": lambda: mmapds.add_column(arrays(), "id", [1] * 20),
    "length that may be negative": lambda: mmapds.build(file("a.jsonl", b'{"n": -1}\n'), length="n"),
    "stop": lambda: orders.Mixture([5, 5], [1, 1], stop="never"),
    "seed": lambda: orders.Shuffled(5, seed="a"),
    "not an order": lambda: distributed(1, 0, order=[1, 2]),
    "exclude": lambda: distributed(1, 0, exclude={"epochs": [1]}),
    "drop_last without padding": lambda: distributed(1, 0, drop_last=True, pad=False),
    "sampler of a trainer": lambda: mmapds.DistributedBatchSampler(range(10), 2, sampler=distributed(1, 0)),
    "subset": lambda: mmapds.TokenBudgetBatchSampler(torch.utils.data.Subset(mmapds.open(jsonl(length="n")), [0]), 10),
    "not a state": lambda: distributed(1, 0).load_state_dict([1]),
    "state without keys": lambda: distributed(1, 0).load_state_dict({"epoch": 0}),
    "state's order": lambda: state(order=None),
    "state's exclusions": lambda: state(exclude=3),
    "positions of floats": lambda: mmapds.Permutation(5)[np.array([0.5])],
    "datasets": lambda: mmapds.MixtureSampler({1, 2}, [1, 1]),
    "cost": lambda: tokens(cost="mean"),
    "planner": lambda: tokens(planner="greedy"),
    "order with buckets": lambda: tokens(order=orders.Sequential(4)),
    "lengths": lambda: mmapds.TokenBudgetBatchSampler("abc", 10),
    "lengths of text": lambda: tokens(["a", "b"]),
    "order cache": lambda: tokens(np.arange(1, 9), order_cache=file("cache", b"hello")),
    "order cache of no file": lambda: tokens(np.arange(1, 9), order_cache="."),
    "order cache in nowhere": lambda: tokens(np.arange(1, 9), order_cache="absent/cache"),
    "samples": lambda: mmapds.pad_collate({"a": 1}),
    "truncate": lambda: collate([1], truncate="middle"),
    "kinds": lambda: collate([1, 2], 3),
    "fields": lambda: collate({"a": 1}, {"b": 1}),
    "pad value of a field": lambda: collate({"a": [1]}, {"a": [2]}, pad_value={"b": 1}),
    "pad value that is text": lambda: collate([1], [2], pad_value="x"),
    "pad value of no fields": lambda: collate({"a": [1]}, {"a": [2]}, pad_value={"a": {"b": 1}}),
    "mask of no field": lambda: collate({"a": 1}, mask="m"),
    "masks that differ": lambda: collate({"a": [1], "b": []}, mask="m"),
    "mask that is a field": lambda: collate({"a": [1]}, mask="a"),
    "field of lengths": lambda: collate({"a": [1], "a_lengths": 1}),
    "complex": lambda: collate(np.ones(2, complex)),
    "field name": lambda: writer({"a(b)": "str"}),
    "field type": lambda: writer({"a": "text"}),
    "array type": lambda: writer({"a": ("float31", (None,))}),
    "field neither": lambda: writer({"a": 3}),
    "schema": lambda: mmapds.Writer("out.mma", [1]),
    "columns that clash": lambda: writer({"a": ("int8", (None,)), "a_length": "int8"}),
    "length field": lambda: writer({"a": "str"}, length="b"),
    "float length": lambda: writer({"length": "float32"}),
    "suffix of an array file": lambda: mmapds.Writer("out.bin", {"a": "str"}),
    "closed writer": closed,
    "record without fields": lambda: inferred({}),
    "record of null": lambda: inferred({"a": None}),
    "record of an object": lambda: inferred({"a": object()}),
    "bytes in JSON": lambda: written({"x": [b"a"]}, {"x": "json"}),
    "convert nothing": lambda: convert([]),
    "convert into the source": lambda: convert(arrays(), "a.mma"),
    "convert into nowhere": lambda: convert(jsonl(), "absent/b.mma"),
    "convert fields": lambda: convert(table(x=[1]), "b.mma", fields=["y"]),
    "convert a list of fields": lambda: convert(table(x=[1]), "b.mma", fields="x"),
    "convert missing": lambda: convert(table(x=[1]), "b.mma", missing="drop"),
    "convert decode": lambda: convert(table(x=[1]), "b.mma", decode="json"),
    "convert two formats": lambda: convert([table(x=[1]), jsonl()], "b.mma"),
    "convert what is damaged": lambda: convert(file("a.parquet", b"PAR1 PAR1"), "b.mma"),
    "convert damaged HDF5": lambda: convert(file("a.h5", b"\x89HDF\r\n\x1a\n"), "b.mma"),
    "convert tables that differ": lambda: convert([table(x=[1]), table("u.parquet", x=["a"])], "b.mma"),
    "convert what lies elsewhere": lambda: convert(linked(), "b.mma"),
    "convert a group": lambda: convert(groups(), "b.mma", group="c"),
    "convert records": lambda: convert(groups(), "b.mma", records="columns"),
    "command: column": lambda: command("mmapds.index", jsonl(), "--column", "n"),
    "command: missing": lambda: command("mmapds.index", jsonl(), "--missing", "few"),
    "command: verify": lambda: command("mmapds.index", overwrite(jsonl(), 6, b"9"), "--verify"),
    "command: schema": lambda: command("mmapds.convert", jsonl(), "--schema", "absent.json"),
}


def saved(array, name="a.npy"):
    np.save(name, array)
    return name


def build_as(name, chosen):
    return mmapds.build(name, format=chosen)


def grown_again():
    with open("train.jsonl", "ab") as out:
        out.write(b'{"n": 4}\n')
    return "train.jsonl"


def message(provoke):
    with pytest.raises((mmapds.Error, ValueError, IndexError, TypeError, AttributeError)) as error:
        provoke()
    return str(error.value)


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_an_error_about_sizes_and_places_has_a_number(name):
    found = message(WITH_NUMBERS[name])
    check(found)
    assert re.search(r"\d", found), found


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_an_error_has_a_form(name):
    check(message(WITHOUT_NUMBERS[name]))


# ---- what stands in the code ------------------------------------------------------------------------------------


def literals(path):
    """The strings in a module that people read, with {} for what is filled in: all with a space but docstrings."""
    tree = ast.parse(path.read_text())
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    plain = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = None
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inner | plain:
            text = node.value
        if text and " " in text:
            yield node.lineno, text


def raised_in_c(path):
    """The texts that the binding raises."""
    text = path.read_text()
    for found in re.finditer(r"PyErr_(?:Format|SetString)\(.*?\);", text, re.DOTALL):
        parts = re.findall(r'"((?:[^"\\]|\\.)*)"', found[0])
        yield text.count("\n", 0, found.start()) + 1, "".join(parts)


def test_no_literal_has_a_phrase_that_readers_stumble_over():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "mmapds").rglob("*.py"))
        for line, text in literals(path)
        if banned(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_binding_says_what_it_expected():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "csrc").rglob("*.c"))
        for line, text in raised_in_c(path)
        if banned(text) or not re.search(r"\bexpected |out of range for |^%s: %s$|became shorter", text)
    ]
    assert not offenders, "\n".join(offenders)
