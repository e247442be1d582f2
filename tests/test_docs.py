"""What the documents say is run."""

import os
import re
import shlex
from pathlib import Path

import h5py
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from mmapds.convert import __main__ as convert
from mmapds.index import __main__ as index
from tests.support.commands import python, run
from tests.support.files import ROOT
from tests.support.samples import npy, write_pair, write_tfrecords
from tests.support.tars import archive


def blocks(document, language=""):
    """The fenced blocks of a document in one language."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)
    return [text for found, text in fenced if found == language]


@pytest.fixture
def three(tmp_path):
    path = tmp_path / "three.jsonl"
    path.write_bytes(blocks("docs/format.md")[0].rstrip("\n").encode())
    os.utime(path, ns=(1_700_000_000 * 10**9,) * 2)
    mmapds.build(path)
    return path


def test_the_dump_is_of_a_real_index(three):
    dump = blocks("docs/format.md")[1]
    described = bytes.fromhex("".join(line[6:53] for line in dump.splitlines()))
    assert described == Path(f"{three}.mmx").read_bytes()


def test_the_reader_in_the_specification_reads(three):
    (code,) = blocks("docs/format.md", "python")
    names = {}
    exec(code, names)
    assert names["read"](str(three)) == [b'{"id":1}', b'{"id":22}', b'{"id":333}']
    assert len(code.strip().splitlines()) <= 10


def test_the_readme_example_runs(tmp_path):
    """As a script: what DataLoader workers send must come from a module that they can import."""
    (tmp_path / "train.jsonl").write_bytes(b"".join(b'{"id": %d, "text": "some text"}\n' % i for i in range(2000)))
    (example, typed, resume, budget) = blocks("README.md", "python")
    checks = [
        "import mmapds",
        "mmapds.build('train.jsonl')",
        "train_step = len",
        example,
        "assert len(ds) == 2000",
        typed,
        "assert ds[3].text == 'some text'",
        resume,
        "assert state['position'] == 21 * 64",
        "mmapds.build('train.jsonl', length='chars(text)')",
        budget,
        "assert sorted(id for batch in loader for id in batch['id'].tolist()) == list(range(2000))",
    ]
    script = tmp_path / "readme.py"
    script.write_text("\n".join(checks))
    ran = run(script, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr


def test_the_samplers_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "tokens": [1] * (5 + i * 7919 % 200)} for i in range(5000)]
    Path("train.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    mmapds.build("train.jsonl", length="items(tokens)")
    names = {}
    for code in blocks("docs/samplers.md", "python"):
        exec(code, names)
    assert sorted(names["sampler"]) == list(range(5000))
    assert next(iter(names["resumed"])) == names["batches"].indices_at(10)[0].tolist()


def files_of_every_format():
    """What the commands of the page of formats read."""
    np.arange(2048 * 5, dtype=np.uint16).tofile("tokens.bin")
    np.save("features.npy", np.ones((7, 80), np.float32))
    for shard in range(3):
        samples = [{"json": b'{"label": %d}' % i, "npy": npy(np.zeros((2, i)))} for i in range(5)]
        files = [(f"{shard}/{i}.{name}", data) for i, each in enumerate(samples) for name, data in each.items()]
        Path(f"shards-{shard:06}.tar").write_bytes(archive(files))
    Path("messages.pb").write_bytes(b"\5hello\3you")
    write_tfrecords("examples.tfrecord", ({"label": (i, "int")} for i in range(5)))
    write_pair(Path("corpus"), [[1, 2, 3], [4, 5]])
    for name in ("corpus", "part-0", "part-1"):
        pq.write_table(pa.table({"id": range(9), "tokens": [[i] * i for i in range(9)]}), f"{name}.parquet")
    with h5py.File("features.h5", "w") as file:
        file["speaker/utterance/feats"] = np.ones((3, 80))
    Path("notes.jsonl").write_bytes(b'{"id": 1, "tokens": [1, 65535]}\n')


def test_the_formats_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files_of_every_format()
    commands = {"mmapds.index": index.main, "mmapds.convert": convert.main}
    for line in "".join(blocks("docs/formats.md", "sh")).splitlines():
        python, dash_m, module, *arguments = shlex.split(line)
        assert (python, dash_m) == ("python", "-m")
        assert commands[module](arguments) == 0, line
    names = {}
    for code in blocks("docs/formats.md", "python"):
        exec(code, names)
    assert names["blocks"][3].tolist() == list(range(2048 * 3, 2048 * 4))
    assert len(names["features"]) == 7
    assert names["tokens"].tolist() == [3, 3, 3]
    assert mmapds.open("features.mma")[0]["__key__"] == "speaker/utterance"
    assert mmapds.open("notes.mma")[0]["tokens"].dtype == np.uint16
    assert (len(mmapds.open("shards.mma")), len(mmapds.open("parts.mmx"))) == (15, 18)


def test_every_link_in_the_documents_leads_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_example_of_the_array_file_runs(tmp_path):
    (example,) = blocks("docs/arrays.md", "python")
    checks = "\nassert len(ds) == 1000 and ds.column('id')[7] == 7 and ds[7]['feats'].shape[1] == 80 and len(sampler)\n"
    python(example + checks, cwd=tmp_path)
