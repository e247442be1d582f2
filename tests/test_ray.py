"""Building and converting on a Ray cluster of this machine; `make test-ray`."""

import os

import pytest

import mmapds
from mmapds import executors
from tests.support.engines import JOBS, Killing, small_tasks

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]  # ray warns of this and that


@pytest.fixture(scope="module")
def cluster():
    """Two workers on this machine, which can import these tests."""
    import ray

    environment = {"env_vars": {"PYTHONPATH": os.getcwd()}}
    ray.init(num_cpus=2, object_store_memory=100 << 20, include_dashboard=False, runtime_env=environment)
    yield executors.ray(max_retries=3)
    ray.shutdown()


@pytest.fixture
def corpus(write):
    """Sources, and tasks of a few records."""
    sizes = (10, 0, 900, 3, 40, 50)
    lines = [[{"text": "x" * (n % 70), "tokens": [n] * (n % 5)} for n in range(size)] for size in sizes]
    with small_tasks(1_000):
        yield [write(each, f"{number}.jsonl") for number, each in enumerate(lines)]


@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_what_is_written_on_ray_though_a_worker_is_killed(cluster, corpus, tmp_path, job):
    expected = job(corpus, tmp_path / "here")
    killing = Killing(cluster, tmp_path / "killed")
    assert job(corpus, tmp_path / "all", executor=killing) == expected
    assert killing.marker.exists()
    assert not list(tmp_path.glob("all.*.parts"))


def test_a_task_that_is_lost_for_good_is_an_error(corpus, tmp_path):
    killing = Killing(executors.ray(max_retries=0), tmp_path / "killed")
    with pytest.raises(mmapds.Error, match=r"^executor: lost the task of .*\.jsonl: WorkerCrashedError: "):
        JOBS["build"](corpus, tmp_path / "all", executor=killing)
