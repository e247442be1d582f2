"""Engines that have no executor of their own, as executors for `mmapds.build` and `mmapds.convert.convert`.

Pools of processes, Dask's `Client.get_executor()`, loky, Parsl and mpi4py are executors already: give them as they are.
"""

import threading
from concurrent.futures import Future
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def dask(address: str) -> Any:
    """Return an executor of a Dask cluster.

    Args:
      address: of its scheduler, such as "tcp://10.0.0.1:8786".
    Raises:
      ModuleNotFoundError: there is no distributed; the message says how to get it.
    """
    return _imported("distributed", "dask", "'mmapds[dask]'").Client(address).get_executor()


def ray(address: str | None = None, **options: Any) -> Any:
    """Return an executor of a Ray cluster.

    Args:
      address: of the cluster, such as "auto"; by default that of this process, or a cluster of this machine alone.
      **options: of every task, as `ray.remote` takes them: `num_cpus`, `resources`, `max_retries`, `runtime_env`.
    Raises:
      ModuleNotFoundError: there is no ray; the message says how to get it.
    """
    engine = _imported("ray", "ray", "'mmapds[ray]'")
    if not engine.is_initialized():
        engine.init(address=address)
    remote = engine.remote(**options) if options else engine.remote
    return SimpleNamespace(submit=lambda function, *arguments: remote(function).remote(*arguments).future())


def submitit(folder: str, **parameters: Any) -> Any:
    """Return an executor whose tasks are jobs of Slurm, each submitted by submitit. Jobs are not cancelled.

    Args:
      folder: for logs and results, which all nodes share.
      **parameters: of the jobs, as `AutoExecutor.update_parameters` takes them: `timeout_min`, `slurm_partition`.
    Raises:
      ModuleNotFoundError: there is no submitit; the message says how to get it.
    """
    engine = _imported("submitit", "submitit", "submitit").AutoExecutor(folder=folder)
    engine.update_parameters(**parameters)
    return SimpleNamespace(submit=lambda function, *arguments: _future(engine.submit(function, *arguments)))


def _future(job: Any) -> "Future[Any]":
    """Return a future of what the `result` of a job returns, or raises."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()

    def settle() -> None:
        try:
            future.set_result(job.result())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=settle, daemon=True).start()
    return future


def _imported(package: str, engine: str, wanted: str) -> Any:
    try:
        return import_module(package)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"mmapds.executors.{engine} needs {package}; run: pip install {wanted}", name=package
        ) from None
