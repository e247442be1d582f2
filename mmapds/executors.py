"""Engines that have no executor of their own, as executors for `mmapds.build` and `mmapds.convert.convert`.

Pools of processes, Dask's `Client.get_executor()`, loky, Parsl and mpi4py are executors already: give them as they are.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


def dask(address: str) -> Any:
    """Return an executor of a Dask cluster.

    Args:
      address: of its scheduler, such as "tcp://10.0.0.1:8786".
    Raises:
      ModuleNotFoundError: there is no distributed; the message says how to get it.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise _missing("mmapds.executors.dask", "distributed", "'mmapds[dask]'") from None
    client: Any = Client(address)  # type: ignore[no-untyped-call]
    return client.get_executor()


def ray(address: str | None = None, **options: Any) -> "Ray":
    """Return an executor of a Ray cluster.

    Args:
      address: of the cluster, such as "auto"; by default that of this process, or a cluster of this machine alone.
      **options: of every task, as `ray.remote` takes them: `num_cpus`, `resources`, `max_retries`, `runtime_env`.
    Raises:
      ModuleNotFoundError: there is no ray; the message says how to get it.
    """
    return Ray(address, options)


class Ray:
    """An executor of a Ray cluster; see `ray`."""

    def __init__(self, address: str | None, options: dict[str, Any]) -> None:
        try:
            import ray
        except ModuleNotFoundError:
            raise _missing("mmapds.executors.ray", "ray", "'mmapds[ray]'") from None
        if not ray.is_initialized():
            ray.init(address=address)
        self._remote = ray.remote(**options) if options else ray.remote

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Run a function in a task of the cluster; return a future of what it returns."""
        return self._remote(function).remote(*arguments).future()  # type: ignore[no-any-return]


def submitit(folder: str, **parameters: Any) -> "Submitit":
    """Return an executor whose tasks are jobs of Slurm, each submitted by submitit.

    Args:
      folder: for logs and results, which all nodes share.
      **parameters: of the jobs, as `AutoExecutor.update_parameters` takes them: `timeout_min`, `slurm_partition`.
    Raises:
      ModuleNotFoundError: there is no submitit.
    """
    try:
        import submitit
    except ModuleNotFoundError:
        raise _missing("mmapds.executors.submitit", "submitit", "submitit") from None
    executor = submitit.AutoExecutor(folder=folder)
    executor.update_parameters(**parameters)
    return Submitit(executor)


class Submitit:
    """An executor whose tasks are jobs of submitit; see `submitit`. A job that was submitted is not cancelled.

    Args:
      executor: one of submitit's, whose `submit` returns a job with `result()`.
    """

    def __init__(self, executor: Any) -> None:
        self._executor = executor

    def submit(self, function: Callable[..., Any], *arguments: Any) -> "Future[Any]":
        """Submit a job that runs a function; return a future of what it returns."""
        job, future = self._executor.submit(function, *arguments), Future[Any]()
        future.set_running_or_notify_cancel()

        def settle() -> None:
            try:
                future.set_result(job.result())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=settle, daemon=True).start()
        return future


def _missing(name: str, package: str, wanted: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"{name} needs {package}; run: pip install {wanted}", name=package)
