"""Whether all ranks read the same epoch alike, compared before the first batch of a pass.

Ranks meet in the key-value store of torch.distributed: no collective operation is issued, so that nothing touches a
GPU, no backend has to be asked, and a rank that does not come can be named. The first rank that comes leaves what it
has as the reference; each other compares itself with that. So the work of a rank does not grow with their number.
"""

import itertools
import json
import os
import secrets
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from numbers import Real
from typing import Any, NamedTuple

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
_ALIKE = "-"  # an end without an error; not empty, which is not there for some stores
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
        self.checks: list[weakref.ref[PassCheck]] = []  # of samplers, in the order in which they began
        self.calls: dict[str, Iterator[int]] = {}

    def number_of(self, check: "PassCheck") -> int:
        """Return the number of a sampler among those that begin a pass, also where a signal came the last time."""
        for number, known in enumerate(self.checks):
            if known() is check:
                return number
        self.checks.append(weakref.ref(check))
        return len(self.checks) - 1


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

    BEGUN = "begun"
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
        self._stage = Stage.BEGUN  # of the meeting for it
        self._token = new_token()

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
            self._number = session.number_of(self)
            self._begun, self._fields = 0, None
            self._session = session
        fields = shared()
        own = described(fields)
        is_again = own == self._fields and self._stage is not Stage.FAILED
        if not is_again or (self._stage is Stage.AGREED and progress.repeats_itself()):
            self._begun, self._fields, self._stage = self._begun + 1, own, Stage.BEGUN
        key, when = f"mmapds/pass/{self._number}/{self._begun}", f"in a pass of {fields['sampler']}"
        token = f"{self._token}/{os.getpid()}"
        Meeting(store, key, range(replicas), rank, token, when).compare(own, limit, self._stage, self._reach)

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
    meeting = Meeting(store, key, ranks, ranks.index(own), new_token(), "in a call of check_ranks")
    meeting.compare(described(fields), timeout or _limit(store) or _limit_of(store))


class Meeting(NamedTuple):
    """One comparison: the keys below a prefix of the store. The last rank to leave deletes them, after an agreement.

    A signal, or its end, may stop a process anywhere, and the rank comes again. So what decides is set once, by
    compare_set; numbers that are counted up only say when to look, and how long to linger.
    """

    store: Any
    key: str
    ranks: Any
    """The ranks that take part, as messages name them: a sequence."""
    place: int
    """Of this process among them."""
    token: str
    """What this rank has whenever it comes, and no other one."""
    when: str

    def compare(
        self,
        fields: dict[str, str],
        limit: float,
        stage: Stage = Stage.BEGUN,
        reach: Callable[[Stage], None] = lambda _: None,
    ) -> None:
        """Return once all ranks have come and have the same fields.

        Args:
          stage: what this rank has reached before.
          reach: takes each later stage.
        Raises:
          OrderError: they have not, or a rank did not come within the limit, in seconds.
        """
        if stage is Stage.AGREED:
            return
        deadline = time.monotonic() + limit
        with explaining_the_store():
            end = self._come(fields) or self._wait(deadline, limit)
            if end == _ALIKE:
                reach(Stage.AGREED)
                self._leave()
                return
            with suppress(RuntimeError):  # the store is gone: the reason is known
                self._linger(end)
            with suppress(RuntimeError):
                reach(Stage.FAILED)  # only now: until then a rank that is stopped hears the reason when it comes again
        raise OrderError(end)

    def _come(self, fields: dict[str, str]) -> str:
        """Compare the fields with the reference; return how the meeting ends, or nothing if that is not known yet."""
        store, own = self.store, self.ranks[self.place]
        mine = json.dumps({"rank": own, "token": self.token, "fields": fields})
        reference = json.loads(store.compare_set(f"{self.key}/reference", "", mine))
        if reference["rank"] != own or reference["token"] == self.token:
            different = _difference((reference["rank"], reference["fields"]), (own, fields), self.when)
            if different:
                return self._failed(different)
            if store.compare_set(self._at(self.place), "", self.token).decode() == self.token:
                has_all = store.add(f"{self.key}/came", 1) >= len(self.ranks) and not self._missing()
                return self._end(_ALIKE) if has_all else ""
        return self._failed(f"rank = {own} on two ranks, expected another on each; pass the rank of the process")

    def _wait(self, deadline: float, limit: float) -> str:
        """Return how the meeting ends, to which this rank has come."""
        warn_at = deadline - limit + PATIENCE
        pause = 0.0005
        while not self.store.check([f"{self.key}/end"]):
            now = time.monotonic()
            if now >= min(deadline, warn_at):
                missing = self._missing()
                if not missing:  # the last one was stopped as it said so
                    return self._end(_ALIKE)
                named, has = _named(missing), "has" if len(missing) == 1 else "have"
                if now >= deadline:
                    return self._end(
                        f"{_MISSING} {len(self.ranks)} within {limit:g} seconds, found {named} missing; make "
                        f"every rank begin the same passes, or set {LIMIT}=0 to compare nothing ({self.when})"
                    )
                warn_at = deadline
                warn(
                    f"{named} {has} not come after {PATIENCE:g} seconds, and rank {self.ranks[self.place]} waits up to "
                    f"{limit:g} ({self.when})",
                )
            time.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        return str(self.store.get(f"{self.key}/end").decode())

    def _leave(self) -> None:
        """Delete the key of this rank; the last one deletes those of all."""
        self.store.delete_key(self._at(self.place))
        if self.store.add(f"{self.key}/left", 1) == len(self.ranks):
            for name in ("reference", "came", "end", "left"):
                self.store.delete_key(f"{self.key}/{name}")

    def _at(self, place: int) -> str:
        return f"{self.key}/at/{place}"

    def _end(self, how: str) -> str:
        """End the meeting, for all ranks, unless it has ended; return how it has."""
        return str(self.store.compare_set(f"{self.key}/end", "", how).decode())

    def _failed(self, why: str) -> str:
        """End the meeting; return why, or why another rank has ended it before."""
        end = self._end(why)
        return why if end == _ALIKE else end  # which is that of an earlier group, over the same store

    def _linger(self, end: str) -> None:
        """Wait until the other ranks know of an error, for a while: the process that it ends may hold the store."""
        know, came = f"{self.key}/know", f"{self.key}/came"
        until = time.monotonic() + _LINGER
        are_missing = end.startswith(_MISSING)  # who come late, for once, hear of it too
        self.store.add(know, 1)
        while time.monotonic() < until:
            if self.store.add(know, 0) >= (self.store.add(came, 0) if are_missing else len(self.ranks)):
                break
            time.sleep(_LONGEST_PAUSE / 10)

    def _missing(self) -> list[int]:
        """Return the ranks that have not come."""
        if self.store.check([self._at(place) for place in range(len(self.ranks))]):
            return []
        return [rank for place, rank in enumerate(self.ranks) if not self.store.check([self._at(place)])]


def _named(ranks: list[int]) -> str:
    """Return ranks in words."""
    named = ", ".join(map(str, ranks[:_NAMED])) + (f" and {len(ranks) - _NAMED} more" if ranks[_NAMED:] else "")
    return f"rank {named}" if len(ranks) == 1 else f"ranks {named}"


def new_token() -> str:
    """Return what nobody else has."""
    return secrets.token_hex(8)


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
