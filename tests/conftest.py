import json
import os
import sys
from types import SimpleNamespace

import pytest
from hypothesis import settings

import mmapds
from mmapds.cli.commands import index_main, main
from mmapds.storage.workers import cores

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of torch: the test processes already use the cores
pytest.register_assert_rewrite("tests.support")
from tests.support import wheel  # noqa: E402 - its assertions are rewritten

# A commit passes or fails whenever it is tested: its few examples are the same each time. `thorough` draws many others.
# How long an example takes tells how busy the machine is.
settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=500)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.hookimpl(optionalhook=True)  # some environments have no xdist
def pytest_xdist_auto_num_workers():
    """Run one process more than there are cores: some tests wait."""
    return cores() + 1


@pytest.fixture(autouse=True, scope="module")
def _hidden(request):
    """Hide extras and tools from the tests that `make dist` runs where they are missing."""
    with pytest.MonkeyPatch.context() as patch:
        for name in wheel.absent() if request.path.stem in wheel.tests() else ():
            patch.setitem(sys.modules, name, None)
        yield


@pytest.fixture
def write(tmp_path):
    """Write a file of bytes or of JSON records and return its path."""

    def write(content, name="train.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes):
            content = b"".join(json.dumps(record).encode() + b"\n" for record in content)
        path.write_bytes(content)
        return str(path)

    return write


@pytest.fixture
def opened(write):
    """Write, index and open."""

    def opened(content, name="train.jsonl", **options):
        return mmapds.open(write(content, name), build=True, **options)

    return opened


@pytest.fixture
def ran(capsys):
    """Run `mmapds` in this process; return the exit status, and what it prints on stdout and stderr."""

    def ran(*arguments):
        return main(list(map(str, arguments))), *capsys.readouterr()

    return ran


@pytest.fixture
def index(capsys):
    """Run `python -m mmapds.index`, or another command of mmapds, in this process; return how it ended."""

    def index(*arguments, tool=None):
        given = list(map(str, arguments))
        status = main([tool, *given]) if tool else index_main(given)
        said = capsys.readouterr()
        return SimpleNamespace(returncode=status, stdout=said.out, stderr=said.err)

    return index
