"""What the documents say is run."""

import gzip
import itertools
import json
import os
import re
import shlex
import subprocess
import wave
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import mmapds
from mmapds import _native
from mmapds.cli.commands import main, new_parser
from mmapds.storage.index_file import Index
from tests.support import api
from tests.support.commands import run
from tests.support.compressed import ZSTD
from tests.support.docs import blocks, fenced, table
from tests.support.files import ROOT
from tests.support.mds import shard as mds_shard
from tests.support.objects import Server
from tests.support.reports import measure_in_this_process
from tests.support.samples import npy, write_documents, write_pair, write_tfrecords
from tests.support.tars import archive


def write_media():
    """Write recordings and pictures, and the manifests that name them."""
    for number in range(12):
        with wave.open(f"{number}.wav", "wb") as file:
            file.setparams((1, 2, 16_000, 0, "NONE", ""))
            file.writeframes(bytes(320 * (20 + number)))
        Image.new("RGB", (80, 60)).save(f"{number}.png")
    rows = [{"path": f"{number}.wav", "text": f"t{number}", "frames": 20 + number} for number in range(12)]
    pairs = [{"path": f"{number}.png", "caption": f"c{number}"} for number in range(12)]
    for name, lines in (("manifest", rows), ("captions", pairs)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.fixture
def files(tmp_path, write, monkeypatch):
    """What the pages read, in the working directory."""
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "text": "word " * (1 + i % 7), "tokens": [1] * (5 + i % 195)} for i in range(2000)]
    for name, end in {"train": 2000, "more": 300, "notes": 1, "part-0": 9, "part-1": 9}.items():
        write(records[:end], f"{name}.jsonl")
    mmapds.build("train.jsonl", length="items(tokens)")
    write(gzip.compress(b"1\n2\n"), "part-00.jsonl.gz")
    write(ZSTD["one"](b"1\n2\n"), "part-01.jsonl.zst")
    np.arange(2048 * 5, dtype=np.uint16).tofile("tokens.bin")
    header = np.array([20240520, 1, 2500, *[0] * 253], np.int32)
    write(header.tobytes() + np.arange(2500, dtype=np.uint16).tobytes(), "fineweb_train_000001.bin")
    write([{"messages": [{"content": "é" * (i % 9)}] * (i % 5)} for i in range(50)], "dialogues.jsonl")
    write_media()
    os.mkdir("samples")
    for number in range(3):
        np.savez(f"samples/{number}.npz", features=np.ones((number, 4)))
    np.save("features.npy", np.ones((7, 80), np.float32))
    for shard in range(3):
        samples = [{"json": b'{"label": %d}' % i, "npy": npy(np.zeros((2, i)))} for i in range(5)]
        members = [(f"{shard}/{i}.{name}", data) for i, each in enumerate(samples) for name, data in each.items()]
        write(archive(members), f"shards-{shard:06}.tar")
        write(records[:100], f"shards/part-{shard:03}.jsonl")
    write(archive(members), "shards-000.tar")
    rows = [{"label": i, "tokens": np.arange(1 + i % 5, dtype=np.int32)} for i in range(40)]
    write(mds_shard({"label": "int", "tokens": "ndarray:int32"}, rows), "mosaic/shard.00000.mds")
    write(b"\5hello\3you", "messages.pb")
    write_tfrecords("examples.tfrecord", ({"label": (i, "int")} for i in range(5)))
    write_pair(Path("corpus"), [[1, 2, 3], [4, 5]])
    for name in ("corpus", "part-0", "part-1"):
        pq.write_table(pa.table({"id": range(9), "tokens": [[i] * i for i in range(9)]}), f"{name}.parquet")
    with h5py.File("features.h5", "w") as file:
        file["speaker/utterance/feats"] = np.ones((3, 80))


# ---- pages for users

ELSEWHERE = {"clusters", "from-huggingface", "from-webdataset", "gallery", "parallel", "remote"}
"""Pages whose code other tests run, and look at what it leaves."""
PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md") if re.search("^```(py|sh)", path.read_text(), re.M))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("page", [page for page in PAGES if page not in ELSEWHERE])
def test_the_commands_and_the_code_of_a_page_run(page, write, capsys, monkeypatch):
    """From top to bottom. What they print or hold is asserted there, where it is worth it."""
    measure_in_this_process(monkeypatch)
    names = {"train_step": len, "mmapds": mmapds, "ds": mmapds.open("train.jsonl")}
    if page == "command-line":
        write([{"id": i, "text": "x" * (i % 20 * (i % 17))} for i in range(20_000)], "train.jsonl")
    for language, text in fenced(f"docs/{page}.md"):
        if language == "py":  # of trainers; tests of their own run it
            compile(text, page, "exec")
        elif language == "python" and "torchrun" not in text:
            exec(text, names)
        for line in text.splitlines() if language == "sh" and "torchrun" not in text else ():
            words = shlex.split(line.replace("python -m mmapds.index", "mmapds index"))
            name, *arguments = itertools.takewhile(">".__ne__, words)
            if arguments[0] == "bench":  # which takes its time: test_bench.py runs it
                new_parser(name, arguments).parse_args(arguments)
            else:
                assert (main(arguments) if name == "mmapds" else subprocess.call(words)) == 0, line
    if page == "command-line":
        printed, screens = capsys.readouterr().out, blocks("docs/command-line.md", "text")
        assert [screen in printed for screen in screens] == [True] * len(screens) != []


def test_the_readme_runs_from_top_to_bottom_is_killed_and_resumes_with_the_next_batch(tmp_path):
    """Each epoch has each sample once, over a run that is killed right after a save and the run that resumes it."""
    code = "".join(text for language, text in fenced("README.md") if language == "python")
    code = code.replace("loss.backward()\n", "loss.backward(); print('ids', epoch, batch['id'].tolist())\n")
    killed = code.replace("            save()\n", "            save(); epoch == 1 and os.kill(os.getpid(), 9)\n")
    given = []
    for text, status in ((killed, -9), (code, 0)):
        (tmp_path / "readme.py").write_text(text)
        ran = run("-u", "readme.py", cwd=tmp_path)
        assert ran.returncode == status, ran.stderr
        given += re.findall(r"^ids (\d) \[(.*)\]$", ran.stdout, re.MULTILINE)
    train, _ = mmapds.open(tmp_path / "train.jsonl").split([0.95, 0.05], seed=0)
    for number in "012":
        ids = [int(each) for epoch, batch in given if epoch == number for each in batch.split(", ")]
        assert sorted(ids) == sorted(sample["id"] for sample in train)


def test_the_page_of_object_stores_runs_with_credentials_of_the_environment(tmp_path):
    """Each object is fetched once to be indexed, and once for the cache; a second index fetches the new one alone."""
    (indexing, appending), (code,) = blocks("docs/remote.md", "sh"), blocks("docs/remote.md", "python")
    shards = [f"bucket/part-{i}.jsonl" for i in range(4)]
    with Server() as server:
        server.data = dict.fromkeys(shards, b'{"id": 1}\n' * 100)
        for words in (shlex.split(indexing)[1:], ["-c", f"train_step = len\n{code}"], shlex.split(appending)[1:]):
            ran = run(*(word.replace("/nvme", str(tmp_path)) for word in words), env=os.environ | server.environment)
            assert ran.returncode == 0, ran.stderr
            server.data["bucket/part-4.jsonl"] = b'{"id": 2}\n'
    assert [server.downloads()[shard] for shard in [*shards, "bucket/part-4.jsonl"]] == [2] * 4 + [1]
    assert ran.stdout.startswith("s3://bucket/corpus.mmx: 401 records")


def test_every_environment_variable_stands_in_a_table():
    read = [*(ROOT / "mmapds").rglob("*.py"), *(ROOT / "csrc").rglob("*.c")]
    found = {name for path in read for name in re.findall(r'"(MMAPDS_[A-Z_]+)"', path.read_text())}
    assert len(found) >= 4
    pages = "".join(path.read_text() for path in (ROOT / "docs").glob("*.md"))
    assert not [name for name in found if f"\n| `{name}` |" not in pages]


def test_the_page_of_public_names_is_that_of_the_code():
    """What is added in code is added there by the command; each has a sentence, and an example but for errors."""
    page = (ROOT / "docs/api.md").read_text()
    assert page == api.page(), f"run: {api.COMMAND}"
    entries = re.findall(r"^### `([\w.]+)`\n\n(.*)\n\n((?:.*\n)*?)(?=##|\Z)", page, re.MULTILINE)
    rows = re.findall(r"^\| `([\w.]+)(?:\(.*\))?` \| (.*) \|$", page, re.MULTILINE)
    named = [*rows, *((name, text) for name, text, _ in entries)]
    assert not [name for name, text in named if not re.fullmatch(r"[A-Z`].*\.", text)]
    assert not [name for name, _, rest in entries if "```python\n" not in rest]
    assert {f"mmapds.{name}" for name in api.public_names()} < {name for name, _ in named}


def test_the_notebook_runs_and_is_kept_without_output(tmp_path):
    """`make docs` runs it in Jupyter, and shows its two plots."""
    cells = json.loads((ROOT / "docs" / "quickstart.ipynb").read_text())["cells"]
    assert len(cells) == 12
    assert not any(cell.get("outputs") for cell in cells)
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert code.count("plt.show()") == 2
    (tmp_path / "quickstart.py").write_text(re.sub(r"^    %pip .*", "    pass", code, flags=re.MULTILINE))
    ran = run("quickstart.py", cwd=tmp_path, env=os.environ | {"MPLBACKEND": "agg"})
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.endswith("Each of 5000 records was seen once.\n")


@pytest.mark.parametrize("name", ["packs", "mesh", "flow"])
def test_a_picture_is_what_its_script_draws(name):
    pictures = ROOT / "docs" / "pictures"
    ran = run(pictures / f"draw_{name}.py", cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == (pictures / f"{name}.svg").read_text()


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 20), ("AGENTS.md", 10)])
def test_every_path_that_contributors_are_told_of_exists(page, least):
    found = re.findall(r"`(\w[\w./-]*/[\w./-]*)`", (ROOT / page).read_text())
    paths = {path for path in found if "..." not in path and ".venv" not in path}
    assert len(paths) >= least
    assert not [path for path in sorted(paths) if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]


# ---- specifications


def described(page):
    """The bytes of the file that a page dumps: all but its metadata, without lines of zeros; and those."""
    lines = [(int(line[:4], 16), bytes.fromhex(line[6:53])) for line in blocks(page)[-1].splitlines()]
    found = bytearray(lines[-1][0] + len(lines[-1][1]))
    for begin, data in lines:
        found[begin : begin + len(data)] = data
    (metadata,) = blocks(page, "json")
    return bytes(found) + json.dumps(json.loads(metadata)).encode()


def reader_of(page):
    """The function `read` that a page has."""
    (code,) = blocks(page, "python")
    names = {}
    exec(code, names)
    return names["read"]


def test_the_specification_of_indexes_dumps_and_reads_a_real_one(tmp_path):
    records, _ = blocks("docs/index-file.md")
    path = tmp_path / "three.jsonl"
    path.write_bytes(records.rstrip("\n").encode())
    os.utime(path, ns=(1_700_000_000 * 10**9,) * 2)
    mmapds.build(path)
    assert described("docs/index-file.md") == Path(f"{path}.mmx").read_bytes()
    assert reader_of("docs/index-file.md")(str(path)) == [b'{"id":1}', b'{"id":22}', b'{"id":333}']


def test_the_specification_of_array_files_dumps_and_reads_real_ones(tmp_path):
    read = reader_of("docs/array-file.md")
    two = [{"id": 7, "tokens": [1, 2, 3], "text": "ab"}, {"id": -1, "tokens": [9], "text": "\u00e9"}]
    with mmapds.Writer(tmp_path / "two.mma", {"id": "int64", "tokens": ("uint16", (None,)), "text": "str"}) as writer:
        for record in two:
            writer.write(record)
    assert described("docs/array-file.md") == (tmp_path / "two.mma").read_bytes()
    assert [{**each, "tokens": each["tokens"].tolist()} for each in read(tmp_path / "two.mma")] == two
    every = {
        "flag": ("bool", True),
        "half": ("float16", 1.5),
        "big": ("uint64", 2**64 - 1),
        "meta": ("json", {"a": [1]}),
        "raw": ("bytes", b"\0\1"),
        "grid": (("float32", (2, None, 3)), np.arange(24, dtype=np.float32).reshape(2, 4, 3)),
        "point": (("complex64", ()), np.array(1j, np.complex64)),
        "empty": (("int8", (None, 0)), np.empty((5, 0), np.int8)),
    }
    with mmapds.Writer(tmp_path / "every.mma", {name: kind for name, (kind, _) in every.items()}) as writer:
        writer.write({name: value for name, (_, value) in every.items()})
    (found,) = read(tmp_path / "every.mma")
    assert found.keys() == every.keys()
    for name, (_, value) in every.items():
        assert np.array_equal(found[name], value), name


def key_of(name):
    """The key and the extension that mmapds finds in a member's name."""
    _, _, key, members = _native.tar_members(archive([(name, b"")], "ustar"), 1)
    return None if key is None else (key, members[0][0])


def test_the_rule_of_keys_in_the_specification_is_that_of_the_core():
    split, meta = (re.compile(text.strip()) for text in blocks("docs/index-file.md", "re"))
    names = map("".join, itertools.chain.from_iterable(itertools.product("a_./", repeat=n) for n in range(1, 6)))
    more = itertools.product(["", "a", "a.b/", "x/"], ["__meta__"], ["", "/"], ["", ".json", "a"])
    for name in [*names, *map("".join, more)]:
        found = None if meta.match(name) else split.match(name)
        assert key_of(name) == (found and found.groups()), name


@pytest.mark.usefixtures("files")
def test_the_specification_names_the_parameters_of_every_format():
    with mmapds.Writer("x.mma", {"id": "int64"}) as writer:
        writer.write({"id": 1})
    write_documents(Path("x.ds"), [[1, 2]])
    options = {"messages.pb": {"format": "prefixed", "prefix": "varint"}}
    options["tokens.bin"] = {"format": "fixed", "dtype": "uint16", "header": 2}
    options["corpus.parquet"] = {"select": "id", "as_json": "id"}
    names = ["notes.jsonl", "features.npy", "examples.tfrecord", "shards-000000.tar", "corpus.bin", "x.mma", "x.ds"]
    names.append("mosaic/shard.00000.mds")
    found = [Index(str(mmapds.build(path, **options.get(path, {})))) for path in [*names, *options]]
    named, formats = {}, []
    for first, key, *_ in table("docs/index-file.md", "### Parameters"):
        formats = first or formats
        for name in formats:
            named.setdefault(name, set()).update(key)
    assert {index.format: set(index.parameters) for index in found} == named
