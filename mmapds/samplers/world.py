"""Which processes share an epoch."""

import os
import sys
from typing import Any, NamedTuple

from ..errors import OrderError, shortened, warn
from ..orders.basic import integer


class World(NamedTuple):
    """The processes that share an epoch, and which one this is."""

    num_replicas: int
    rank: int
    is_assumed: bool
    """A single process, as nothing names a number of processes."""

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None) -> "World":
        """Return the world as given, else from torch.distributed, else from the environment, else a single process.

        Warns where SLURM started several tasks, and nothing says how they share the epoch.

        Raises:
          OrderError: rank is outside [0, num_replicas), or not known.
        """
        group = process_group()
        is_assumed = num_replicas is None and group is None and "WORLD_SIZE" not in os.environ
        if num_replicas is None:
            num_replicas = group.get_world_size() if group is not None else _from_environment("WORLD_SIZE", 1)
        num_replicas = integer("num_replicas", num_replicas, 1)
        if rank is None:
            if num_replicas > 1 and group is None and "RANK" not in os.environ:
                raise OrderError(
                    f"rank = None, expected 0 to {num_replicas - 1} (num_replicas = {num_replicas}); "
                    "pass rank=, set RANK, or initialise torch.distributed"
                )
            rank = group.get_rank() if group is not None else _from_environment("RANK", 0)
        rank = integer("rank", rank)
        if not 0 <= rank < num_replicas:
            raise OrderError(
                f"rank = {shortened(rank)}, expected 0 to {num_replicas - 1} (num_replicas = {num_replicas})"
            )
        tasks = os.environ.get("SLURM_NTASKS", "") if "SLURM_PROCID" in os.environ else ""
        if is_assumed and tasks.isdecimal() and int(tasks) > 1:
            _warn_of_a_single_process(f"{tasks}, the tasks of this SLURM job")
            is_assumed = False  # one warning is enough
        return cls(num_replicas, rank, is_assumed)

    def check(self) -> None:
        """Warn where torch.distributed was initialised with several processes after a single one was assumed."""
        group = process_group() if self.is_assumed else None
        if group is not None and (processes := group.get_world_size()) > 1:
            _warn_of_a_single_process(f"{processes}, the processes of torch.distributed")


def process_group() -> Any:
    """Return torch.distributed where it is initialised, else None; it is not imported for this."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


def _warn_of_a_single_process(expected: str) -> None:
    warn(
        f"num_replicas = 1, expected {expected}; pass num_replicas= and rank=, or initialise torch.distributed before "
        "the sampler is made (each process reads all samples)",
    )


def _from_environment(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise OrderError(f"{name} = {text!r} in the environment, expected an integer") from None
