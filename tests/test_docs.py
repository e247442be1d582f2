"""What the documents say is run."""

import os
import re
from pathlib import Path

import pytest

import mmapds

ROOT = Path(__file__).parent.parent


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


def test_the_readme_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_bytes(b"".join(b'{"id": %d, "text": "some text"}\n' % i for i in range(2000)))
    mmapds.build("train.jsonl")
    (example, typed, resume) = blocks("README.md", "python")
    names = {"train_step": len}
    exec(example, names)
    assert len(names["ds"]) == 2000
    exec(typed, names)
    assert names["ds"][3].text == "some text"
    exec(resume, names)
    assert names["state"]["position"] == 21 * 64


def test_the_samplers_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(5000)))
    mmapds.build("train.jsonl")
    names = {}
    for code in blocks("docs/samplers.md", "python"):
        exec(code, names)
    assert sorted(names["sampler"]) == list(range(5000))
    assert next(iter(names["resumed"])) == names["batches"].indices_at(10)[0].tolist()


def test_every_link_in_the_documents_leads_somewhere():
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"
