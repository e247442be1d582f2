"""Whether all ranks read the same epoch alike, compared before the first batch of a pass.

Ranks meet in the key-value store of torch.distributed: no collective operation is issued, so that nothing touches a
GPU, no backend has to be asked, and a rank that does not come can be named. The first rank that comes leaves what it
has as the reference; each other compares itself with that. So the work of a rank does not grow with their number.
"""

import itertools
import json
import os
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from numbers import Real
from typing import Any, NamedTuple, NoReturn

import numpy as np
from xxhash import xxh3_64

from ..errors import OrderError, names_its_arguments, shortened, warn
from ..storage.processes import seconds_of
from .epoch import EpochProgress

LIMIT = "MMAPDS_RANKS_SECONDS"
"""The environment variable that says how many seconds to wait for other ranks; 0 compares nothing."""
PATIENCE = 10.0
"""Seconds before a warning names the ranks that are waited for."""
_LONGEST_TIMEOUT = 10**9  # seconds: a timedelta holds not much more
_LONGEST_PAUSE = 0.1  # seconds between two looks into the store: many ranks share it
_MISSING = "ranks: expected"
_LINGER = 2.0  # seconds for other ranks to hear of an error
_SHOWN = 80  # characters of a value in a message
_NAMED = 8  # ranks in a message
_NAMES = {
    "n": "samples",
    "largest": "max_batch_size",
    "multiple": "batch_size_multiple",
    "quadratic": "quadratic_length",
}
"""What users call the keys of states."""


class _Session:
    """What this process keeps as long as a process group lasts."""

    def __init__(self, store: Any) -> None:
        self.store = weakref.ref(store)  # a group that is destroyed must be able to close it
        self.samplers = itertools.count()
        self.calls: dict[str, Iterator[int]] = {}


_session: _Session | None = None
_inherited: Any = None
"""The store of the process that this one was forked from. The two share a socket, on which only one may speak."""


def _after_fork() -> None:
    global _inherited
    _inherited = store_of_process() or _inherited  # or that of the process which this one's parent was forked from


def store_of_parent() -> Any:
    """Return the store of the process that this one was forked from, of which nothing may be asked; else None."""
    return _inherited


def store_of_process() -> Any:
    """Return the store of torch.distributed where it is initialised, else None; torch is not imported for this."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    if distributed.get_backend() == "fake":  # for trying things out: there are no other processes
        return None
    store = distributed.distributed_c10d._get_default_store()  # None for MPI
    return store if store is not _inherited else None


def _session_of(store: Any) -> _Session:
    global _session
    if _session is None or _session.store() is not store:
        _session = _Session(store)
    return _session


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class Stage(Enum):
    """What a rank has reached of a comparison."""

    NONE = "none"
    CAME = "came"
    AGREED = "agreed"
    FAILED = "failed"


class PassCheck:
    """Compares the passes of one sampler with those of the same sampler on other ranks.

    Samplers are matched by the order in which they begin their first pass; passes, by their number. A pass that is
    begun again without a change is the same pass, unless it was read to its end.
    """

    def __init__(self) -> None:
        self._session: _Session | None = None
        self._number = self._begun = 0
        self._fields: dict[str, str] | None = None  # of the pass that was begun last
        self._stage = Stage.NONE  # of the meeting for it

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return PassCheck, ()  # a copy of a sampler is another sampler

    def before(self, progress: EpochProgress, shared: Callable[[], Mapping[str, Any]]) -> None:
        """Compare the next pass where the sampler serves all processes of torch.distributed, and there are several.

        Raises:
          OrderError: another rank has other fields, or did not come.
        """
        replicas, rank = progress.sharding.num_replicas, progress.sharding.rank
        store = store_of_process() if replicas > 1 else None
        if store is None or replicas != sys.modules["torch.distributed"].get_world_size():
            return
        limit = _limit(store)
        if not limit:
            return
        session = _session_of(store)
        if self._session is not session:
            self._session, self._number = session, next(session.samplers)
            self._begun, self._fields = 0, None
        fields = shared()
        own = described(fields)
        is_again = own == self._fields and self._stage is not Stage.FAILED
        if not is_again or (self._stage is Stage.AGREED and progress.repeats_itself()):
            self._begun, self._fields, self._stage = self._begun + 1, own, Stage.NONE
        key, when = f"mmapds/pass/{self._number}/{self._begun}", f"in a pass of {fields['sampler']}"
        Meeting(store, key, range(replicas), rank, when).compare(own, limit, self._stage, self._reach)

    def _reach(self, stage: Stage) -> None:
        self._stage = stage


@names_its_arguments("mmapds.check_ranks")
def check_ranks(of: Any, *, group: Any = None, timeout: float | None = None) -> None:
    """Raise an error on every rank unless all ranks have the same sampler, or the same values.

    Samplers that serve all ranks of torch.distributed do this by themselves before each pass. Call it for others, as
    with `num_replicas=1` or some ranks only, and for loops of your own. All ranks of the group call it, the same
    number of times; where torch.distributed is not initialised, nothing happens.

    Args:
      of: a sampler or a stream, whose order, epoch, position, sizes and dataset are compared, but not its rank; or a
        dict of values, of which the reprs are.
      group: a process group of torch.distributed, instead of all ranks.
      timeout: seconds to wait for the other ranks, instead of those of `init_process_group`.
    Warns:
      UserWarning: ranks have not come after 10 seconds.
    Raises:
      OrderError: ranks differ, or one did not come; the message names rank, field and both values.
    """
    fields = of if isinstance(of, Mapping) else getattr(of, "_shared_by_ranks", None)
    if fields is None:
        raise OrderError(f"of: expected a sampler or a stream of mmapds, or a dict, found {type(of).__name__}")
    if timeout is not None and not (isinstance(timeout, Real) and 0 < timeout < _LONGEST_TIMEOUT):
        raise OrderError(f"timeout = {shortened(timeout)}, expected seconds above 0, below {_LONGEST_TIMEOUT:,}")
    store = store_of_process()
    if store is None:
        return
    distributed = sys.modules["torch.distributed"]
    ranks, own = distributed.get_process_group_ranks(group), distributed.get_rank()
    if own not in ranks or len(ranks) == 1:
        return
    if not isinstance(fields, Mapping):
        fields = fields()
    session = _session_of(store)
    name = xxh3_64(json.dumps(ranks).encode()).hexdigest()
    key = f"mmapds/call/{name}/{next(session.calls.setdefault(name, itertools.count()))}"
    meeting = Meeting(store, key, ranks, ranks.index(own), "in a call of check_ranks")
    meeting.compare(described(fields), timeout or _limit(store) or _limit_of(store))


class Meeting(NamedTuple):
    """One comparison: the keys below a prefix of the store, which the last rank to leave deletes."""

    store: Any
    key: str
    ranks: Any
    """The ranks that take part, as messages name them: a sequence."""
    place: int
    """Of this process among them."""
    when: str

    def compare(
        self,
        fields: dict[str, str],
        limit: float,
        stage: Stage = Stage.NONE,
        reach: Callable[[Stage], None] = lambda _: None,
    ) -> None:
        """Return once all ranks have come and have the same fields.

        Args:
          stage: what this rank has reached before: a signal may have ended its wait, or the process that waited for it.
          reach: takes each later stage.
        Raises:
          OrderError: they have not, or a rank did not come within the limit, in seconds.
        """
        if stage is Stage.AGREED:
            return
        deadline = time.monotonic() + limit
        with explaining_the_store():
            try:
                if stage is not Stage.CAME:
                    self._come(fields, deadline, limit)
                    reach(Stage.CAME)
                self._wait(deadline, limit)
            except OrderError:
                reach(Stage.FAILED)
                raise
            reach(Stage.AGREED)
            self._leave()

    def _come(self, fields: dict[str, str], deadline: float, limit: float) -> None:
        """Compare the fields with the reference."""
        store, place, ranks = self.store, self.place, self.ranks
        others = store.add(self._at(place), 1) - 1
        if store.add(f"{self.key}/came", 1) == 1:
            store.set(f"{self.key}/reference", json.dumps({"rank": ranks[place], "fields": fields}))
        if others:
            self._fail(f"rank = {ranks[place]} on two ranks, expected another on each; pass the rank of the process")
        self._wait_for("reference", deadline, limit)
        reference = json.loads(store.get(f"{self.key}/reference"))
        different = _difference((reference["rank"], reference["fields"]), (ranks[place], fields), self.when)
        if different:
            self._fail(different)
        if store.add(f"{self.key}/agreed", 1) == len(ranks) and not store.check([f"{self.key}/end"]):
            store.set(f"{self.key}/end", "-")  # not empty: that is not set, in some stores

    def _wait(self, deadline: float, limit: float) -> None:
        """Return once all ranks have come and agreed; this one has come."""
        self._wait_for("end", deadline, limit)
        end = self.store.get(f"{self.key}/end").decode()
        if end != "-":
            self._raise(end)

    def _leave(self) -> None:
        """Delete the keys of this rank; the last one deletes those of all."""
        self.store.delete_key(self._at(self.place))
        if self.store.add(f"{self.key}/left", 1) == len(self.ranks):
            for name in ("came", "reference", "agreed", "end", "left"):
                self.store.delete_key(f"{self.key}/{name}")

    def _at(self, place: int) -> str:
        return f"{self.key}/at/{place}"

    def _fail(self, message: str) -> NoReturn:
        """Raise an error, here and on the ranks that wait."""
        self.store.set(f"{self.key}/end", message)
        self._raise(message)

    def _raise(self, message: str) -> NoReturn:
        """Raise an error once the other ranks know of it: the one that ends the process may hold the store."""
        know, came = f"{self.key}/know", f"{self.key}/came"
        until = time.monotonic() + _LINGER
        are_missing = message.startswith(_MISSING)  # who come late, for once, hear of it too
        with suppress(RuntimeError):  # the store is gone: its process has waited for this one
            self.store.add(know, 1)
            while time.monotonic() < until:
                if self.store.add(know, 0) >= (self.store.add(came, 0) if are_missing else len(self.ranks)):
                    break
                time.sleep(_LONGEST_PAUSE / 10)
        raise OrderError(message)

    def _wait_for(self, name: str, deadline: float, limit: float) -> None:
        warn_at = deadline - limit + PATIENCE
        pause = 0.0005
        while not self.store.check([f"{self.key}/{name}"]):
            now = time.monotonic()
            if now >= deadline:
                missing, verb = self._missing()
                self._fail(
                    f"{_MISSING} {len(self.ranks)} within {limit:g} seconds, found {missing} missing; make every "
                    f"rank begin the same passes, or set {LIMIT}=0 to compare nothing ({self.when})"
                )
            if now >= warn_at:
                warn_at = deadline
                missing, verb = self._missing()
                warn(
                    f"{missing} {verb} not come after {PATIENCE:g} seconds, and rank {self.ranks[self.place]} waits up "
                    f"to {limit:g} ({self.when})",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)

    def _missing(self) -> tuple[str, str]:
        """Return the ranks that have not come, in words, and the verb for them."""
        found = [rank for place, rank in enumerate(self.ranks) if not self.store.check([self._at(place)])]
        named = ", ".join(map(str, found[:_NAMED])) + (f" and {len(found) - _NAMED} more" if found[_NAMED:] else "")
        return (f"rank {named}", "has") if len(found) == 1 else (f"ranks {named}", "have")


@contextmanager
def explaining_the_store() -> Iterator[None]:
    try:
        yield
    except OrderError:
        raise
    except RuntimeError as error:  # of torch, where rank 0 ended, or the store lacks an operation
        found = str(error).strip().partition("\n")[0]
        raise OrderError(
            f"torch.distributed: expected an answer of its store, found {type(error).__name__}: {found}; set {LIMIT}=0 "
            "to compare nothing (rank 0, which holds the store, may have ended)"
        ) from error


def described(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return fields as texts, those of an order beside the others; what it is made of comes last."""
    texts: dict[str, str] = {}
    for name, value in fields.items():
        if name == "order" and isinstance(value, Mapping):
            texts.update(described(dict(sorted(value.items(), key=lambda each: isinstance(each[1], Mapping)))))
        else:
            texts[_NAMES.get(name, str(name))] = _text(value)
    return texts


def _text(value: Any) -> str:
    text = repr(value.item() if isinstance(value, np.generic) else value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}... ({xxh3_64(text.encode()).hexdigest()})"


def _difference(one: tuple[int, dict[str, str]], other: tuple[int, dict[str, str]], when: str) -> str:
    """Return what differs between two ranks, in words, or nothing."""
    (rank, fields), (last, found) = sorted((one, other), key=lambda each: each[0])
    names = [name for name in {**fields, **found} if fields.get(name) != found.get(name)]
    if not names:
        return ""
    name = names[0]
    more = f", also different: {', '.join(names[1:])}" if names[1:] else ""
    return (
        f"{name} = {found.get(name)} on rank {last}, expected {fields.get(name)} as on rank {rank}; make the sampler "
        f"alike on all ranks ({when}{more})"
    )


def _limit(store: Any) -> float:
    """Return the seconds to wait for other ranks that the environment has, else those of torch.distributed.

    Raises:
      OrderError: the environment has something else.
    """
    given = seconds_of(LIMIT, OrderError)
    return _limit_of(store) if given is None else given


def _limit_of(store: Any) -> float:
    return float(store.timeout.total_seconds())
