"""Whether the workers of all ranks read the same pass of a stream, compared before its first item.

A stream is read in worker processes, which cannot use the store of torch.distributed that their rank has: a forked one
shares its socket with the rank, and a spawned one has no group. So the first worker of each rank opens a connection of
its own, and compares what samplers compare in the rank itself; see `ranks`.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any, NamedTuple

from xxhash import xxh3_64

from ..errors import OrderError, warn
from ..storage.processes import is_spawning, seconds_of
from .epoch import EpochProgress
from .ranks import LIMIT, Meeting, Stage, described, explaining_the_store, new_token, store_of_parent, store_of_process

_streams = itertools.count()


class StorePlace(NamedTuple):
    """Where the store of a process group is, for processes that need a connection of their own."""

    kind: str
    """That of the store, for messages."""
    ranks: int
    """How many the group has."""
    seconds: float
    """How long they wait for one another."""
    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def of(cls, store: Any) -> "StorePlace":
        """Return where the store of the process group is; nothing is asked of it."""
        ranks, seconds = sys.modules["torch.distributed"].get_world_size(), store.timeout.total_seconds()
        while hasattr(store, "underlying_store"):
            store = store.underlying_store
        kind, path = type(store).__name__, getattr(store, "path", "")
        if path:
            return cls(kind, ranks, seconds, path=path)
        return cls(kind, ranks, seconds, getattr(store, "host", ""), getattr(store, "port", 0))

    @property
    def is_known(self) -> bool:
        """Whether another process can find it."""
        return bool(self.host or self.path)

    def connect(self) -> Any:
        """Return a connection to the store.

        Raises:
          RuntimeError: nobody answers.
        """
        distributed: Any = import_module("torch.distributed")  # which few processes need

        timeout = timedelta(seconds=self.seconds)
        if self.path:
            store = distributed.FileStore(self.path)
            store.set_timeout(timeout)
            return store
        return distributed.TCPStore(self.host, self.port, is_master=False, timeout=timeout, wait_for_workers=False)


class StreamCheck:
    """Compares the passes of one stream, in worker processes, with those of the same stream on other ranks.

    Streams are matched by the order in which ranks make them. A pass that is begun again without a change is the same
    pass, whatever workers have drawn of it: how far they run ahead is chance, and another on each rank. The other
    passes are matched by their number. The store holds that number, as each pass may be that of new processes.
    """

    def __init__(self) -> None:
        self._number = next(_streams)
        self._token = new_token()
        self._place: StorePlace | None = None  # in a spawned worker

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": self._place or _place_for_spawned()}

    def before(self, progress: EpochProgress, shared: Callable[[], Mapping[str, Any]]) -> None:
        """Compare the next pass, where the sampler serves all processes of torch.distributed, and there are several.

        For the first worker of a rank alone.

        Raises:
          OrderError: another rank has other fields, or did not come.
        """
        replicas, rank, parent = progress.sharding.num_replicas, progress.sharding.rank, store_of_parent()
        place = self._place or (StorePlace.of(parent) if parent is not None and replicas > 1 else None)
        if place is None or replicas != place.ranks:
            return
        given = seconds_of(LIMIT, OrderError)
        limit = place.seconds if given is None else given
        if not limit:
            return
        if not place.is_known:
            _warn_of_a_store(place)
            return
        fields = shared()
        mine = described(fields)
        with explaining_the_store():
            store = place.connect()
            begun = _BegunPasses(store, f"{self._key}/passes/{rank}", xxh3_64(json.dumps(mine).encode()).hexdigest())
            key, when = f"{self._key}/{begun.number}", f"in a pass of {fields['sampler']}"
            token = f"{self._token}/{os.getppid()}"
            Meeting(store, key, range(replicas), rank, token, when).compare(mine, limit, begun.stage, begun.reach)

    @property
    def _key(self) -> str:
        """What the keys of the stream begin with: torchrun may start all ranks again beside the same store."""
        run = "/".join(os.environ.get(f"TORCHELASTIC_{name}", "") for name in ("RUN_ID", "RESTART_COUNT"))
        return f"mmapds/stream/{run}/{self._number}"


class _BegunPasses:
    """How many passes of a stream this rank has begun, in the store.

    Args:
      mark: what tells the next pass from the last one.
    Attributes:
      number: that of the next pass.
      stage: what workers that are gone have reached of the meeting for it.
    """

    def __init__(self, store: Any, key: str, mark: str) -> None:
        self._store, self._key, self._mark = store, key, mark
        number, last, reached = store.get(key).decode().split() if store.check([key]) else ("0", "", "failed")
        self.number, self.stage = int(number), Stage(reached)
        if last != mark or self.stage is Stage.FAILED:
            self.number, self.stage = self.number + 1, Stage.BEGUN
            self.reach(Stage.BEGUN)

    def reach(self, stage: Stage) -> None:
        """Take note of a stage of the meeting for the next pass."""
        self._store.set(self._key, f"{self.number} {self._mark} {stage.value}")


def _place_for_spawned() -> StorePlace | None:
    """Return where the store of this process is, while it pickles for one that is spawned."""
    store = store_of_process() if is_spawning() else None
    return None if store is None else StorePlace.of(store)


def _warn_of_a_store(place: StorePlace) -> None:
    warn(
        f"torch.distributed: expected a TCPStore or a FileStore, which workers of a loader can open, found {place.kind}"
        "; use mmapds.check_ranks(stream) before each pass (workers read without a comparison)",
    )
