"""The processes that share an epoch, and a check before the first batch that all ranks have the same sampler.

Every rank writes its values into the key-value store of torch.distributed. The first rank compares them and writes one
verdict; the other ranks wait for it. This needs no collective operation: it uses no GPU, and can name a missing rank.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple

import numpy as np
from xxhash import xxh3_64

from ..errors import OrderError, shortened, warn
from ..orders.basic import integer

_MODEL_PARALLEL = {"tp", "cp", "pp", "sp", "tensor_parallel", "context_parallel", "pipeline_parallel"}
"""Names that dimensions of a mesh often have, if their ranks share a batch."""


class World(NamedTuple):
    """The number of processes that share an epoch, and the rank of this one."""

    num_replicas: int
    rank: int
    origin: str
    """The origin of `num_replicas`: "mesh", "given", "group", "environment", or "nowhere" for the default of 1."""

    @classmethod
    def of(cls, num_replicas: int | None, rank: int | None, mesh: Any = None) -> "World":
        """Return the world from the arguments, torch.distributed or the environment; by default, a single process.

        Warns of the default in a SLURM job of several tasks.

        Raises:
          OrderError: rank is outside [0, num_replicas), or unknown; or the mesh does not hold this process.
        """
        if mesh is not None:
            for name, given in {"num_replicas": num_replicas, "rank": rank}.items():
                if given is not None:
                    raise OrderError(f"{name} = {shortened(given)}, expected None beside mesh=, which has it")
            return cls(*_place_in(mesh), "mesh")
        group = process_group()
        origin = "given" if num_replicas is not None else "group"
        if num_replicas is None and group is None:
            origin = "environment" if "WORLD_SIZE" in os.environ else "nowhere"
        if num_replicas is None:
            num_replicas = group.get_world_size() if group is not None else _from_environment("WORLD_SIZE", "1")
        num_replicas = integer("num_replicas", num_replicas, 1)
        if rank is None:
            if num_replicas > 1 and group is None and "RANK" not in os.environ:
                raise OrderError(
                    f"rank = None, expected 0 to {num_replicas - 1} (num_replicas = {num_replicas}); "
                    "pass rank=, set RANK, or initialise torch.distributed"
                )
            rank = group.get_rank() if group is not None else _from_environment("RANK", "0")
        rank = integer("rank", rank)
        if not 0 <= rank < num_replicas:
            raise OrderError(
                f"rank = {shortened(rank)}, expected 0 to {num_replicas - 1} (num_replicas = {num_replicas})"
            )
        tasks = os.environ.get("SLURM_NTASKS", "") if "SLURM_PROCID" in os.environ else ""
        if origin == "nowhere" and tasks.isdecimal() and int(tasks) > 1:
            _warn_of_a_single_process(f"{tasks}, the tasks of this SLURM job")
            origin = "given"  # one warning is enough
        return cls(num_replicas, rank, origin)

    def check(self) -> None:
        """Warn, at the start of an iterator, if this world does not match the processes of torch.distributed."""
        group = process_group()
        if self.origin == "nowhere" and group is not None and (processes := group.get_world_size()) > 1:
            _warn_of_a_single_process(f"{processes}, the processes of torch.distributed")
        if self.origin == "environment" and group is None and self.num_replicas > 1:
            warn(
                f"WORLD_SIZE = {self.num_replicas}, expected torch.distributed to be initialised; call "
                "torch.distributed.init_process_group(), or pass num_replicas= and rank= (each process reads its share "
                "of the samples, and trains a model of its own)"
            )


def _place_in(mesh: Any) -> tuple[int, int]:
    """Return the size of a DeviceMesh or a ProcessGroup, and the place of this process in it, in row-major order."""
    group = process_group()
    if group is None:
        raise OrderError(
            "mesh: expected a process group of torch.distributed, found none; make it first, with init_process_group()"
        )
    if isinstance(mesh, group.device_mesh.DeviceMesh):
        shape, coordinate = tuple(mesh.shape), mesh.get_coordinate()
        if parallel := _MODEL_PARALLEL.intersection(mesh.mesh_dim_names or ()):
            found = ", ".join(map(repr, sorted(parallel)))
            warn(
                f"mesh: expected dimensions of data parallel ranks, found {found}; give those alone, as mesh['dp'] "
                "(each rank reads samples of its own)"
            )
        place = None if coordinate is None else int(np.ravel_multi_index(coordinate, shape))
        size = int(np.prod(shape))
    elif isinstance(mesh, group.ProcessGroup):
        try:
            size, place = mesh.size(), group.get_rank(mesh)
        except ValueError:
            raise OrderError("mesh: expected a process group, found one that was destroyed") from None
    elif mesh is group.GroupMember.NON_GROUP_MEMBER:
        place = None
    else:
        raise OrderError(f"mesh: expected a DeviceMesh or a ProcessGroup of torch.distributed, found {shortened(mesh)}")
    if place is None:
        raise OrderError(
            f"mesh: expected one with rank {group.get_rank()} in it, found another; give each rank its own mesh"
        )
    return size, place


def process_group() -> Any:
    """Return torch.distributed if it is initialised, or None; never import it."""
    found = sys.modules.get("torch.distributed")
    return found if found is not None and found.is_available() and found.is_initialized() else None


def _warn_of_a_single_process(expected: str) -> None:
    warn(
        f"num_replicas = 1, expected {expected}; pass num_replicas= and rank=, or initialise torch.distributed before "
        "the sampler is made (each process reads all samples)",
    )


def _from_environment(name: str, default: str) -> Any:
    """Return a variable as an int; if it is not one, as text, which `integer` refuses."""
    found = os.environ.get(name, default)
    return int(found) if found.isdecimal() else found


# ---- the comparison -------------------------------------------------------------------------------------------------


LIMIT = "MMAPDS_RANKS_SECONDS"
"""The environment variable for the seconds to wait for other ranks; 0 turns the comparison off."""
_LONGEST = 10**9  # seconds of a timeout
_LINGER = 5.0  # seconds that the first rank, whose process may hold the store, waits for other ranks to read an error
_ALIKE = "-"
_SHOWN = 80  # characters of a value in a message
_inherited: Any = None
"""The store of the parent of a forked process. Both share a socket, which only the parent may use."""


def _after_fork() -> None:
    global _inherited
    _inherited = _store() or _inherited


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _store() -> Any:
    """Return the store of the process group; None without a group, for MPI or "fake", and in forked children."""
    group = process_group()
    if group is None or group.get_backend() == "fake":
        return None
    store = group.distributed_c10d._get_default_store()
    return None if store is _inherited else store


def compare_before_first_batch(fields: Mapping[str, Any], world: World) -> None:
    """Compare a sampler with those of all other ranks, if all of them share its epoch.

    Ranks match samplers by the order in which these start.

    Raises:
      OrderError: another rank has other fields, or is missing.
    """
    store = _store() if world.num_replicas > 1 or world.origin == "mesh" else None
    if store is None:
        return
    processes, limit = process_group().get_world_size(), _limit_of(store)
    if limit and processes > 1 and (world.origin == "mesh" or world.num_replicas == processes):
        when = f"before the first batch of {fields['sampler']}"
        sharing = max(processes // world.num_replicas, 1)
        _Comparison(store, "samplers", range(processes), limit, when, sharing).run(fields, world.rank)


def check_ranks(of: Any, *, group: Any = None, timeout: float | None = None) -> None:
    """Raise an error on every rank unless all ranks have the same sampler, or the same values.

        mmapds.check_ranks({"learning rate": 3e-4, "seed": 7})

    A sampler over all ranks of torch.distributed does this before its first batch. Call it for other samplers, such as
    those with `num_replicas=1`, for streams, or at any other time. All ranks of the group must call it equally often;
    without torch.distributed it does nothing.

    Args:
      of: a sampler or a stream, to compare order, epoch, position, sizes and dataset; or a dict, to compare the reprs
        of its values.
      group: a process group of torch.distributed, instead of all ranks.
      timeout: seconds to wait for the other ranks; by default, the timeout of `init_process_group`.
    Raises:
      OrderError: ranks differ, or one is missing; the message names rank, field and both values.
    """
    fields = of if isinstance(of, Mapping) else getattr(of, "_shared_by_ranks", None)
    if fields is None:
        raise OrderError(f"of: expected a sampler or a stream of mmapds, or a dict, found {type(of).__name__}")
    if timeout is not None and not (isinstance(timeout, Real) and 0 < timeout < _LONGEST):
        raise OrderError(f"timeout = {shortened(timeout)}, expected seconds above 0, below {_LONGEST:,}")
    store = _store()
    ranks = [] if store is None else process_group().get_process_group_ranks(group or process_group().group.WORLD)
    if len(ranks) > 1 and process_group().get_rank() in ranks:
        name = f"calls/{xxh3_64(json.dumps(ranks).encode()).hexdigest()}"
        limit = timeout or _limit_of(store) or store.timeout.total_seconds()
        comparison = _Comparison(store, name, ranks, limit, "in check_ranks")
        comparison.run(fields if isinstance(fields, Mapping) else fields())


class _Comparison(NamedTuple):
    """One of the comparisons with the same name."""

    store: Any
    name: str
    ranks: Sequence[int]
    limit: float  # seconds to wait for other ranks
    when: str
    sharing: int = 1
    """How many ranks may have the same rank in their samplers."""

    def run(self, fields: Mapping[str, Any], rank: int | None = None) -> None:
        """Wait until all ranks have joined with the same fields.

        Args:
          rank: rank of the sampler.
        Raises:
          OrderError: fields differ, or a rank is missing.
        """
        own = process_group().get_rank()
        try:
            count = self.store.add(f"mmapds/{self.name}/count/{own}", 1) - 1
            key = f"mmapds/{self.name}/{count}"
            self.store.set(f"{key}/{own}", json.dumps([rank, _described(fields)]))
            verdict = self._judge(key) if own == self.ranks[0] else self._hear(key, own)
        except RuntimeError as error:  # from torch: the process that holds the store has ended
            found = str(error).strip().partition("\n")[0]
            raise OrderError(
                f"torch.distributed: expected an answer of its store, found {type(error).__name__}: {found}; set "
                f"{LIMIT}=0 to compare nothing (rank 0, which holds the store, may have ended)"
            ) from error
        if verdict != _ALIKE:
            raise OrderError(verdict)

    def _judge(self, key: str) -> str:
        """Compare all ranks; write and return the verdict."""
        keys = {rank: f"{key}/{rank}" for rank in self.ranks}
        is_whole = self._wait(list(keys.values()), self.limit)
        absent = [] if is_whole else [rank for rank in keys if not self.store.check([keys[rank]])]
        verdict = self._absence(absent) if absent else self._difference(keys)
        self.store.set(f"{key}/verdict", verdict)
        if verdict != _ALIKE:
            self._wait([f"{keys[rank]}/heard" for rank in self.ranks[1:] if rank not in absent], _LINGER)
        return verdict

    def _hear(self, key: str, own: int) -> str:
        """Wait for the verdict of the first rank, and return it."""
        first, verdict = self.ranks[0], f"{key}/verdict"
        if not self._wait([verdict], self.limit):
            has_come = self.store.check([f"{key}/{first}"])  # it joined later, so its own timeout ends later
            if not has_come or not self._wait([verdict], self.limit + _LINGER):
                return self._absence([first])
        found = str(self.store.get(verdict).decode())
        self.store.set(f"{key}/{own}/heard", "")
        return found

    def _absence(self, absent: list[int]) -> str:
        named = f"rank{'s' * (len(absent) > 1)} {shortened(absent)[1:-1]}"
        return (
            f"ranks: expected {len(self.ranks)} within {self.limit:g} seconds, found {named} missing; make every rank "
            f"begin the same samplers, or set {LIMIT}=0 to compare nothing ({self.when})"
        )

    def _difference(self, keys: Mapping[int, str]) -> str:
        """Return the message about the first rank whose fields differ from those of the first one, or `_ALIKE`."""
        (first, (place, expected)), *others = ((rank, json.loads(self.store.get(key))) for rank, key in keys.items())
        owners = {place: [first]}
        for rank, (place, fields) in others:
            names = [name for name in {**expected, **fields} if expected.get(name) != fields.get(name)]
            if names:
                more = f", also different: {', '.join(names[1:])}" if names[1:] else ""
                how = (
                    "give mesh= on all ranks or on none"
                    if names[0] == "num_replicas"
                    else "make the sampler alike on all ranks"
                )
                return (
                    f"{names[0]} = {fields.get(names[0])} on rank {rank}, expected {expected.get(names[0])} as on rank "
                    f"{first}; {how} ({self.when}{more})"
                )
            owners.setdefault(place, []).append(rank)
            if place is not None and len(owners[place]) > self.sharing:
                *some, last = map(str, owners[place])
                most = "another on each" if self.sharing == 1 else f"it on {self.sharing}"
                found = f"rank = {place} on ranks {', '.join(some)} and {last}"
                return f"{found}, expected {most}; pass the rank of the process, or mesh="
        return _ALIKE

    def _wait(self, keys: list[str], seconds: float) -> bool:
        """Wait until all keys are set; return whether they are. Signals are handled every second."""
        deadline = time.monotonic() + seconds
        while keys and not self.store.check(keys):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            with suppress(RuntimeError):  # a timeout; if the store is lost, check() raises again
                self.store.wait(keys, timedelta(seconds=min(left, 1.0)))
        return True


def _described(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields as text; long text is cut, with a hash."""
    texts: dict[str, str] = {}
    for name, value in fields.items():
        text = repr(value.item() if isinstance(value, np.generic) else value)
        is_long = len(text) > _SHOWN
        texts[str(name)] = f"{text[:40]}... ({xxh3_64(text.encode()).hexdigest()})" if is_long else text
    return texts


def _limit_of(store: Any) -> float:
    """Return the seconds to wait for other ranks, from the environment or the process group."""
    return float(os.environ.get(LIMIT) or store.timeout.total_seconds())
