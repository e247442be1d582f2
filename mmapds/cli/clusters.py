"""The options of command lines that choose a cluster to run tasks."""

import argparse

from .. import cli
from ..clusters import Engine
from ..errors import Error

_CLUSTERS = ("dask", "ray")


def add_engine_options(parser: argparse.ArgumentParser, *, work: str, out: str) -> None:
    """Add the options for clusters to a parser.

    Args:
      work: what they do there.
      out: what the help calls the file to write.
    """
    parser.add_argument("--dask", metavar="ADDRESS", help=f"{work} on a Dask cluster: the address of its scheduler")
    parser.add_argument("--ray", metavar="ADDRESS", help=f"{work} on a Ray cluster: its address, or auto")
    parser.add_argument("--parts", metavar="DIR", help=f"with these: what tasks leave; default: {out}.parts")


def chosen_cluster(options: argparse.Namespace) -> str | None:
    """Return the name of the cluster that options choose, if there is one.

    Raises:
      UsageError: they choose two, or say something about none.
    """
    given = [name for name in _CLUSTERS if getattr(options, name) is not None]
    if options.parts is not None and not given:
        raise cli.UsageError("--parts: expected --dask or --ray with it, found neither; leave it out")
    if len(given) > 1:
        raise cli.UsageError("--ray: expected one cluster, found --dask, too; choose one of them")
    return given[0] if given else None


def engine_of(options: argparse.Namespace, workers: int = 1) -> Engine | None:
    """Return the cluster that options choose, connected; None without one.

    Raises:
      UsageError: as `chosen_cluster`.
      Error: there is no such cluster, or a package is missing.
    """
    cluster = chosen_cluster(options)
    if cluster is None:
        return None
    from .. import executors  # start-up time: most commands have none

    try:
        executor = getattr(executors, cluster)(getattr(options, cluster))
    except (ModuleNotFoundError, OSError, TimeoutError) as error:
        raise Error(f"--{cluster}: {error}") from None
    return Engine(executor, options.parts, workers)
