"""Building and converting on a Ray cluster of this machine; `make test-ray`."""

import os
import signal

import pytest

import mmapds
from mmapds import executors
from mmapds.convert import convert, distributed
from mmapds.index import distribute
from mmapds.index.tasks import run_task
from tests.support.indexes import built

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # ray warns of this and that


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine."""
    import ray

    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False)
    yield executors.ray(max_retries=3)
    ray.shutdown()


@pytest.fixture
def corpus(write, monkeypatch):
    """Sources, and tasks of a few records."""
    monkeypatch.setattr(distribute, "GROUP", 3_000)
    monkeypatch.setattr(distribute, "STRETCH", 8_000)
    sizes = (10, 0, 900, 3, 40)
    return [write([{"text": "x" * (n % 70)} for n in range(size)], f"{k}.jsonl") for k, size in enumerate(sizes)]


def test_an_index_is_built_on_ray(cluster, corpus, tmp_path):
    direct = built(corpus, tmp_path / "all.mmx", length="chars(text)")
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", length="chars(text)", executor=cluster)
    assert out.read_bytes() == direct


def test_sources_are_converted_on_ray(cluster, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "GROUP", 3_000)
    convert(corpus, tmp_path / "direct.mma")
    convert(corpus, tmp_path / "all.mma", executor=cluster)
    assert (tmp_path / "all.mma").read_bytes() == (tmp_path / "direct.mma").read_bytes()


def test_a_worker_of_ray_is_killed(cluster, corpus, tmp_path):
    marker = str(tmp_path / "killed")

    def run_or_die(text):
        if not os.path.exists(marker):
            open(marker, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return run_task(text)

    class Killing:
        def submit(self, _, text):
            return cluster.submit(run_or_die, text)

    direct = built(corpus, tmp_path / "all.mmx", length="chars(text)")
    out = mmapds.build(corpus, out=tmp_path / "all.mmx", length="chars(text)", executor=Killing())
    assert out.read_bytes() == direct
    assert os.path.exists(marker)


def test_an_error_of_the_data_is_raised_with_its_place(cluster, corpus, tmp_path, write):
    bad = write(b'{"text": 5}\n', "bad.jsonl")
    with pytest.raises(mmapds.ColumnError, match=r"bad\.jsonl:1 \(byte 0\): expected a string at `text`"):
        mmapds.build([*corpus, bad], out=tmp_path / "all.mmx", length="chars(text)", executor=cluster)
