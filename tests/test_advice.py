"""What messages advise works as it is printed: in the shell, for any name, and in the words that the user typed."""

import os
import subprocess
import sys
import sysconfig

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from mmapds.cli.commands import main
from mmapds.convert import convert
from mmapds.errors import printable, tool
from tests.support.messages import check
from tests.support.worlds import world

SCRIPT = os.path.join(sysconfig.get_path("scripts"), "mmapds")


def ran(*arguments, cwd, tool=(sys.executable, "-m", "mmapds")):
    return subprocess.run([*tool, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


# ---- commands that are pasted -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["$HOME`x` it's.jsonl", "-n.jsonl"])
def test_a_printed_command_can_be_pasted(tmp_path, name):
    (tmp_path / name).write_text('{"n": 1}\n')
    said = ran("head", name if name[0] != "-" else f"./{name}", cwd=tmp_path).stderr
    command = said.rpartition("; run: ")[2].rstrip()
    assert printable(command) == command
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    pasted = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert pasted.returncode == 0, (command, pasted.stderr)
    assert (tmp_path / f"{name}.mmx").exists()


def test_commands_are_those_of_the_tool_that_runs(tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    assert "; run: mmapds index a.jsonl" in ran("head", "a.jsonl", cwd=tmp_path, tool=[SCRIPT]).stderr
    assert "; run: python -m mmapds.index a.jsonl" in ran("head", "a.jsonl", cwd=tmp_path).stderr
    pq.write_table(pa.table({"x": [1]}), tmp_path / "t.parquet")
    assert "; run: mmapds convert t.parquet" in ran("index", "t.parquet", cwd=tmp_path, tool=[SCRIPT]).stderr
    for started, expected in (("/usr/bin/mmapds", "mmapds index"), ("train.py", "python -m mmapds.index")):
        monkeypatch.setattr(sys, "argv", [started])
        assert tool("index") == expected
    monkeypatch.delattr(sys, "argv")
    assert tool("index") == "python -m mmapds.index"


# ---- what is advised --------------------------------------------------------------------------------------------


def test_a_saved_view_is_converted(opened, tmp_path):
    opened([{"n": 1}, {"n": 2}, {"n": 3}])[1:].save(tmp_path / "VIEW.mmx")
    assert convert(tmp_path / "VIEW.mmx").path == str(tmp_path / "VIEW.mma")
    assert [int(sample["n"]) for sample in mmapds.open(tmp_path / "VIEW.mma")] == [2, 3]


def test_a_conversion_that_is_run_again_keeps_the_lengths(tmp_path, capsys):
    path = str(tmp_path / "t.parquet")
    pq.write_table(pa.table({"tokens": [[1], [1, 2]], "n": [5, 6]}), path)
    assert main(["convert", path, "--length", "tokens"]) == main(["convert", path]) == 0
    assert "; length of 'tokens', as before; " in capsys.readouterr().out
    assert mmapds.open(tmp_path / "t.mma").lengths.tolist() == [1, 2]
    assert convert(tmp_path / "t.parquet", length="n").kept_length is None
    assert mmapds.open(tmp_path / "t.mma").lengths.tolist() == [5, 6]
    assert convert(tmp_path / "t.parquet", fields=["tokens"]).kept_length is None, "the field is gone"


def test_a_source_tree_that_is_not_built_says_so(tmp_path):
    tree = tmp_path / "tree"
    (tree / "mmapds/storage").mkdir(parents=True)
    source = os.path.dirname(mmapds.__file__)
    for name in ("__init__.py", "errors.py", "storage/__init__.py"):
        with open(os.path.join(source, name)) as file:
            (tree / "mmapds" / name).write_text(file.read())
    # Without site packages, whose hook for editable installs would find the core elsewhere.
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import mmapds"], capture_output=True, text=True, check=False, cwd=tree
    )
    assert f"ImportError: {tree}/mmapds: the core is not built here; run: pip install -e {tree} (" in found.stderr


# ---- several processes ------------------------------------------------------------------------------------------


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


# ---- columns of several indexes ---------------------------------------------------------------------------------


def words(sample):
    return len(sample["t"].split())


def test_info_says_that_a_column_is_of_several_things(write, capsys):
    a, b = (write([{"t": "wörd " * number} for number in range(1, 51)], f"{name}.jsonl") for name in "ab")
    mmapds.build(a, length="chars(t)")
    mmapds.build(b, length=words)
    for given, meaning in (([a], "chars(t)"), ([b], "function"), ([a, b], "several")):
        main(["info", *given])
        (line,) = (line for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["length"])
        assert line.split()[1] == meaning
