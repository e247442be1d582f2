"""Which processes share an epoch."""

import os
import sys
from typing import Any, NamedTuple

from ..errors import OrderError, shortened, warn
from ..orders.basic import integer

_FRAMES = 24  # of torch, torchdata and accelerate, between a sampler and the loop


class World(NamedTuple):
    """The processes that share an epoch, and which one this is."""

    num_replicas: int
    rank: int
    assumed: bool
    """A single process, as nothing names a number of processes."""

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None) -> "World":
        """Return the world as given, else from torch.distributed, else from the environment, else a single process.

        Warns where SLURM started several tasks, and nothing says how they share the epoch.

        Raises:
          OrderError: rank is outside [0, num_replicas), or not known.
        """
        group = _group()
        assumed = num_replicas is None and group is None and "WORLD_SIZE" not in os.environ
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
        if assumed and tasks.isdecimal() and int(tasks) > 1:
            _warn_of_a_single_process(f"{tasks}, the tasks of this SLURM job")
            assumed = False  # once is enough
        return cls(num_replicas, rank, assumed)


def _group() -> Any:
    """Return torch.distributed where it is initialised, else None; it is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    return (
        distributed if distributed is not None and distributed.is_available() and distributed.is_initialized() else None
    )


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


def warn_if_others() -> None:
    """Warn where torch.distributed was initialised with several processes, after a sampler assumed one."""
    group = _group()
    if group is not None and (processes := group.get_world_size()) > 1:
        _warn_of_a_single_process(f"{processes}, the processes of torch.distributed")


def refuse_to_repeat(shuffles: bool) -> None:
    """Refuse a shuffling loader of which each process of torch.distributed would read everything, in its own order.

    Raises:
      OrderError: it is one, and there are several processes.
    """
    group = _group() if shuffles else None
    if group is not None and (processes := group.get_world_size()) > 1:
        raise OrderError(
            f"shuffle = True, expected a sampler that shares the samples among the {processes} processes of "
            "torch.distributed; give sampler=mmapds.DistributedSampler(dataset), or "
            "sampler=torch.utils.data.RandomSampler(dataset) where each of them has to read everything"
        )


def refuse_second_sharding(num_replicas: int, *, cuts: bool = True) -> None:
    """Refuse to begin a pass for an accelerate loader that shares the batches of a rank among ranks once more.

    A pass knows neither its loader nor what stands between them, so this looks at who asks for its first batch.

    Args:
      cuts: whether batches may be cut into equal parts, as they all have one size.
    Raises:
      OrderError: there is such a loader, or one that cuts batches which it may not.
    """
    accelerate = sys.modules.get("accelerate.data_loader")
    frame = sys._getframe(1) if accelerate is not None and (num_replicas > 1 or not cuts) else None
    for _ in range(_FRAMES):
        if frame is None:
            return
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            caller = frame.f_locals.get("self")
            if isinstance(caller, (accelerate.BatchSamplerShard, accelerate.DataLoaderDispatcher)):  # type: ignore[union-attr]
                processes = getattr(caller, "num_processes", None) or caller.state.num_processes
                if processes > 1 and not cuts and isinstance(caller, accelerate.DataLoaderDispatcher):  # type: ignore[union-attr]
                    raise OrderError(
                        "dispatch_batches = True, expected False with batches of different sizes; give "
                        f"dispatch_batches=False (it cuts each into {processes} equal parts and leaves out the rest)"
                    )
                if processes > 1 and num_replicas > 1:
                    raise OrderError(
                        f"num_replicas = {num_replicas}, expected 1 under accelerate's prepare(), which shares batches "
                        f"among {processes} processes itself; make the sampler with num_replicas=1 and rank=0, or do "
                        "not prepare its loader"
                    )
        frame = frame.f_back
