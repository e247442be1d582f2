"""What the documents say is run."""

import itertools
import os
import re
import shlex
import sys
from pathlib import Path

import h5py
import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmapds
from mmapds import _native, takes_location, takes_view
from mmapds.cli.commands import main
from mmapds.formats.expressions import MEASURES, Expression
from mmapds.index import __main__ as index
from mmapds.storage.index_file import Index
from tests.support import api
from tests.support.commands import python, run
from tests.support.docs import blocks, fenced
from tests.support.files import ROOT
from tests.support.samples import npy, write_pair, write_tfrecords
from tests.support.tars import archive


@pytest.fixture
def three(tmp_path):
    path = tmp_path / "three.jsonl"
    path.write_bytes(blocks("docs/index-file.md")[0].rstrip("\n").encode())
    os.utime(path, ns=(1_700_000_000 * 10**9,) * 2)
    mmapds.build(path)
    return path


def test_the_dump_is_of_a_real_index(three):
    dump = blocks("docs/index-file.md")[1]
    described = bytes.fromhex("".join(line[6:53] for line in dump.splitlines()))
    assert described == Path(f"{three}.mmx").read_bytes()


def test_the_reader_in_the_specification_reads(three):
    (code,) = blocks("docs/index-file.md", "python")
    names = {}
    exec(code, names)
    assert names["read"](str(three)) == [b'{"id":1}', b'{"id":22}', b'{"id":333}']
    assert sum(bool(line) for line in code.splitlines()) <= 10


def key_of(name):
    """The key and the extension that mmapds finds in a member's name."""
    _, _, key, members = _native.tar_members(archive([(name, b"")], "ustar"), 1)
    return None if key is None else (key, members[0][0])


def test_the_rule_of_keys_in_the_specification_is_that_of_the_core():
    split, meta = (re.compile(text.strip()) for text in blocks("docs/index-file.md", "re"))
    names = map("".join, itertools.chain.from_iterable(itertools.product("a_./", repeat=n) for n in range(1, 6)))
    more = [
        "".join(parts)
        for parts in itertools.product(["", "a", "a.b/", "x/"], ["__meta__"], ["", "/"], ["", ".json", "a"])
    ]
    for name in [*names, *more]:
        found = None if meta.match(name) else split.match(name)
        assert key_of(name) == (found and found.groups()), name


def test_the_examples_of_keys_in_the_specification_hold():
    text = (ROOT / "docs/index-file.md").read_text()
    (table,) = re.findall(r"^\| name \| key \| extension \|\n(?:\|.*\n)+", text, re.MULTILINE)
    rows = [[re.findall(r"`(.+?)`", cell) for cell in row.split("|")[1:-1]] for row in table.splitlines()[2:]]
    assert len(rows) == 7
    for names, key, extension in rows:
        for name in names:
            assert key_of(name) == ((*key, *extension) or None), name


def parameters_in_the_specification():
    """The keys of `parameters` that the specification names, by format."""
    text = (ROOT / "docs/index-file.md").read_text()
    section = text[text.index("### Parameters") : text.index("## Sections")]
    named, formats = {}, []
    for row in re.findall(r"^\|.*\|$", section, re.MULTILINE)[2:]:
        first, key = (re.findall(r"`(\w+)`", cell) for cell in row.split("|")[1:3])
        formats = first or formats
        for name in formats:
            named.setdefault(name, set()).update(key)
    return named


def test_the_specification_names_the_parameters_of_every_format(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files_of_every_format()
    with mmapds.Writer("x.mma", {"id": "int64"}) as writer:
        writer.write({"id": 1})
    mmapds.build("messages.pb", format="prefixed", prefix="varint")
    mmapds.build("tokens.bin", format="fixed", dtype="uint16")
    built = ["notes.jsonl", "features.npy", "examples.tfrecord", "shards-000000.tar", "corpus.bin"]
    for path in built:
        mmapds.build(path)
    found = [Index(f"{path}.mmx") for path in [*built, "x.mma", "messages.pb", "tokens.bin"]]
    assert {index.format: set(index.parameters) for index in found} == parameters_in_the_specification()


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.mma"
    schema = {"id": "int64", "tokens": ("uint16", (None,)), "text": "str"}
    with mmapds.Writer(path, schema, index=False) as writer:
        writer.write({"id": 7, "tokens": [1, 2, 3], "text": "ab"})
        writer.write({"id": -1, "tokens": [9], "text": "\u00e9"})
    return path


def test_the_dump_is_of_a_real_array_file(two):
    (dump,) = blocks("docs/array-file.md")
    described = bytes.fromhex("".join(line[6:53] for line in dump.splitlines()))
    assert described == two.read_bytes()


def test_the_reader_of_array_files_reads(two, tmp_path):
    (code,) = blocks("docs/array-file.md", "python")
    names = {}
    exec(code, names)
    one, other = names["read"](two)
    assert (one["id"], one["tokens"].tolist(), one["text"]) == (7, [1, 2, 3], "ab")
    assert (other["id"], other["tokens"].tolist(), other["text"]) == (-1, [9], "\u00e9")
    every = {
        "flag": "bool",
        "half": "float16",
        "big": "uint64",
        "meta": "json",
        "raw": "bytes",
        "grid": ("float32", (2, None, 3)),
        "point": ("complex64", ()),
        "empty": ("int8", (None, 0)),
    }
    record = {"flag": True, "half": 1.5, "big": 2**64 - 1, "meta": {"a": [1]}, "raw": b"\0\1"}
    record |= {"grid": np.arange(24, dtype=np.float32).reshape(2, 4, 3), "point": np.array(1j, np.complex64)}
    record |= {"empty": np.empty((5, 0), np.int8)}
    with mmapds.Writer(tmp_path / "every.mma", every) as writer:
        writer.write(record)
    (found,) = names["read"](tmp_path / "every.mma")
    assert found.keys() == record.keys()
    for name, value in mmapds.open(tmp_path / "every.mma")[0].items():
        assert np.array_equal(found[name], value), name
        assert np.array_equal(found[name], record[name]), name


def readme_script():
    """The README from top to bottom, as one who reads it would run it."""
    lines = ["import subprocess"]
    for language, text in fenced("README.md"):
        if language == "sh":
            lines += [f"subprocess.run({text!r}, shell=True, check=True)"]
        elif language == "python":
            lines += [text]
        else:
            assert language == "console", language  # what is not run in a test: installing
    return "\n".join(lines)


def test_the_readme_runs_from_top_to_bottom_and_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "readme.py"
    script.write_text(readme_script() + "\nassert len(ds) == 1584, len(ds)\nassert samples[0] == train[3]\n")
    environment = os.environ | {"PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"}
    first = run(script, env=environment)
    assert first.returncode == 0, first.stderr
    steps = re.findall(r"epoch (\d), step (\d+) of (\d+)", first.stdout)
    assert {epoch for epoch, _, _ in steps} == {"0", "1"}
    again = run(script, env=environment)
    assert again.returncode == 0, again.stderr
    assert re.search(r"goes on in epoch 1 at step \d+ of \d+", again.stdout)
    assert not set(re.findall(r"epoch \d, step \d+", again.stdout)) & {f"epoch {e}, step {s}" for e, s, _ in steps}


def test_the_samplers_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "tokens": [1] * (5 + i * 7919 % 200)} for i in range(5000)]
    Path("train.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    mmapds.build("train.jsonl", length="items(tokens)")
    names = {}
    for code in blocks("docs/samplers.md", "python"):
        exec(code, names)
    assert sorted(names["sampler"]) == list(range(5000))
    resumed = mmapds.DistributedBatchSampler(names["ds"], batch_size=32)
    resumed.load_state_dict(names["train"]())
    assert next(iter(resumed)) == resumed.indices_at(10)[0].tolist()


def test_the_page_of_datasets_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "text": "word " * (1 + i % 7), "tokens": [1] * (i % 200)} for i in range(2000)]
    Path("train.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    mmapds.build("train.jsonl", length="items(tokens)")
    names = {}
    for code in blocks("docs/datasets.md", "python"):
        exec(code, names)


def test_the_page_of_datasets_has_every_expression():
    """A row of its table each: a field, a nested one, and the measures of a string, a list and a record."""
    text = (ROOT / "docs/datasets.md").read_text()
    table = re.findall(r"^\| `([\w.]+|\w*\(\w*\))` \| ", text[text.index("| expression |") :], re.MULTILINE)
    assert {re.sub(r"\(\w+\)", "()", each) for each in table if "(" in each} == {f"{name}()" for name in MEASURES}
    assert len({Expression.parse("x", each) for each in table}) == len(table) == 6


def test_the_page_of_the_loader_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").write_bytes(b"".join(b'{"id": %d}\n' % i for i in range(1000)))
    mmapds.build("train.jsonl")
    trained = []
    names = {"train_step": trained.append}
    for code in blocks("docs/loader.md", "python"):
        exec(code, names)
    assert sum(map(len, trained)) == 2 * 1000
    assert next(iter(names["loader"]))[0]["id"] == names["sampler"].indices_at(10)[0][0]
    assert "'wait_p50': " in capsys.readouterr().out


@pytest.fixture
def tokens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "tokens": [1] * (5 + i * 7919 % 200)} for i in range(5000)]
    Path("train.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in records))
    mmapds.build("train.jsonl", length="items(tokens)")


def torchrun(ranks, script):
    """Run a script on CPUs alone; return what it printed."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
    Path("train.py").write_text(script)
    ran = run("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "train.py", env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.usefixtures("tokens")
def test_the_script_of_the_training_page_runs_and_goes_on():
    for ranks in (2, 1):  # the second one goes on from the last checkpoint of the first
        torchrun(ranks, blocks("docs/training.md", "python")[0])
        state = torch.load("last.pt", weights_only=True)["loader"]
        assert state["epoch"] == 2
        sampler = mmapds.TokenBudgetBatchSampler(mmapds.open("train.jsonl"), max_tokens=4096, num_replicas=1, rank=0)
        sampler.load_state_dict(state)
        assert 0 < sampler.first_step < len(sampler)


@pytest.mark.usefixtures("tokens")
@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="this system does not name threads")
def test_no_thread_of_gloo_outlives_the_script_of_the_training_page():
    """One that frees work of the last step needs Python: it would abort the process where Python has ended."""
    Path("threads.py").write_text("""
import contextlib, os

def say():
    names = []
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended since
            names.append(open(f"/proc/self/task/{task}/comm").read())
    print(sorted(names))
""")
    script = "import threads\n" + blocks("docs/training.md", "python")[0] + "    threads.say()\n"
    script = re.sub(r"^( *)(?=dist\.destroy)", r"\1threads.say()\n\1", script, flags=re.M)
    before, after = torchrun(1, script).splitlines()
    assert "gloo" in before
    assert "gloo" not in after


@pytest.mark.usefixtures("tokens")
def test_the_rest_of_the_training_page_runs():
    names = {"mmapds": mmapds, "ds": mmapds.open("train.jsonl")}
    for code in blocks("docs/training.md", "python")[1:]:
        exec(code, names)
    assert names["stream"].first_step == 10
    assert sum(map(len, names["stream"])) == 5000 - 10 * 32
    for code in blocks("docs/training.md", "py"):  # of trainers; tests of their own run it
        compile(code, "docs/training.md", "exec")


def test_every_environment_variable_stands_in_the_training_page():
    read = [*(ROOT / "mmapds").rglob("*.py"), *(ROOT / "csrc").rglob("*.c")]
    found = {name for path in read for name in re.findall(r'"(MMAPDS_[A-Z_]+)"', path.read_text())}
    assert len(found) >= 4
    table = (ROOT / "docs/training.md").read_text()
    assert not [name for name in found if f"| `{name}` |" not in table]


def files_of_every_format():
    """What the commands of the pages on formats and converting read."""
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


def run_commands_and_code(page):
    """Run the commands of a page, then its code; return the names that this defines."""
    commands = {"mmapds.index": index.main, "mmapds": main}
    for line in "".join(blocks(page, "sh")).splitlines():
        python, dash_m, module, *arguments = shlex.split(line)
        assert (python, dash_m) == ("python", "-m")
        assert commands[module](arguments) == 0, line
    names = {}
    for code in blocks(page, "python"):
        exec(code, names)
    return names


def test_the_formats_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files_of_every_format()
    names = run_commands_and_code("docs/formats.md")
    assert names["blocks"][3].tolist() == list(range(2048 * 3, 2048 * 4))
    assert len(names["features"]) == 7


def test_the_page_on_converting_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files_of_every_format()
    names = run_commands_and_code("docs/converting.md")
    assert names["tokens"].tolist() == [3, 3, 3]
    assert mmapds.open("features.mma")[0]["__key__"] == "speaker/utterance"
    assert mmapds.open("notes.mma")[0]["tokens"].dtype == np.uint16
    assert (len(mmapds.open("shards.mma")), len(mmapds.open("parts.mmx"))) == (15, 18)


def test_the_decoder_of_the_formats_page_pickles(tmp_path):
    write_pair(tmp_path / "corpus", [[1, 2, 3], [4, 5]])
    (example,) = (code for code in blocks("docs/formats.md", "python") if "takes_location" in code)
    build = "import mmapds, pickle\nmmapds.build('corpus.bin')\n"
    python(f"{build}{example}\nassert pickle.loads(pickle.dumps(placed))[1]['byte'] == 6", cwd=tmp_path)


def test_a_marked_class_gives_its_marks_to_its_objects(three):
    @takes_location
    @takes_view
    class Decoder:
        def __call__(self, record, location):
            return type(record), location

    ds = mmapds.open(three, decode=Decoder())
    assert ds[1] == (memoryview, ds.where(1))


def test_the_page_of_public_names_is_that_of_the_code():
    """What is added in code is added there by the command."""
    assert (ROOT / "docs/api.md").read_text() == api.page(), f"run: {api.COMMAND}"


def test_every_public_name_has_a_sentence_and_an_example():
    """An abstract class and errors are made by nobody."""
    page = api.page()
    entries = re.findall(r"^### `([\w.]+)`\n\n(.*)\n\n((?:.*\n)*?)(?=##|\Z)", page, re.MULTILINE)
    rows = re.findall(r"^\| `([\w.]+)(?:\(.*\))?` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 40
    assert not [name for name, text in rows if not re.fullmatch(r"[A-Z`].*\.", text)]
    assert not [name for name, text, _ in entries if not re.fullmatch(r"[A-Z`].*\.", text)]
    assert not [name for name, _, rest in entries if "```python\n" not in rest]
    found = {name for name, *_ in entries} | {name for name, _ in rows}
    assert {f"mmapds.{name}" for name in api.public_names()} < found


def test_the_examples_of_public_names_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = [{"id": i, "text": "word " * (1 + i % 7), "tokens": [1] * (1 + i % 200)} for i in range(1000)]
    for name, some in (("train", records), ("more", records[:300]), ("part-0", records[:20]), ("part-1", records[20:])):
        Path(f"{name}.jsonl").write_bytes(b"".join(orjson.dumps(record) + b"\n" for record in some))
    names = {}
    for code in blocks("docs/api.md", "python"):
        exec(code, names)
    assert (len(names["ds"]), len(names["both"]), names["position"]) == (1000, 1300, 0)


def test_the_example_of_the_array_file_runs(tmp_path):
    (example,) = blocks("docs/arrays.md", "python")
    checks = "\nassert len(ds) == 1000 and ds.column('id')[7] == 7 and ds[7]['feats'].shape[1] == 80 and len(sampler)\n"
    python(example + checks, cwd=tmp_path)


def contributing():
    return (ROOT / "CONTRIBUTING.md").read_text()


def test_every_path_that_contributing_names_exists():
    paths = {path for path in re.findall(r"`(\w[\w./-]*/[\w./-]*)`", contributing()) if "..." not in path}
    assert len(paths) > 20
    assert not [path for path in sorted(paths) if not (ROOT / path).exists() and not (ROOT / f"{path}.py").exists()]
