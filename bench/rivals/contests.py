"""The contests: what is asked of each rival, in turn, once all have given the right answers."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.support.data import jsonl

from . import samplers, stores
from .process import LIMITS, JobError, Limits, run

LINE = 306  # bytes of a line of `jsonl`, on average
SMALL = 1_000_000  # bytes of the source of which whole epochs are compared
PREPARING = Limits(seconds=600)
COVERED = 20_000  # records of the epochs that samplers and planners must cover
EFFICIENCY = 100_000  # records of the epochs whose batches are looked at

Facts = dict[str, Any]


class DifferentError(Exception):
    """A rival does other work than the rest."""


class Plan(NamedTuple):
    """How much is measured."""

    folder: Path
    """What rivals write is put here, and removed at the end."""
    records: int = 1_000_000
    """About how many a source of stores has."""
    largest: int = 10**9
    """Of the epochs of samplers."""
    rounds: int = 3
    """In each, all rivals are measured in turn; where a job takes long, in one."""
    seconds: float = 1.0
    """How long a way to read is timed."""
    workers: int = 2
    limits: Limits = LIMITS
    say: Callable[[str], object] = print


def check(name: str, right: Facts, found: Facts) -> None:
    """Raise DifferentError where an answer is not the right one."""
    for key, value in found.items():
        if right[key] != value:
            raise DifferentError(f"{name}: {key}: expected {right[key]}, found {value}")


def stores_facts(plan: Plan, names=stores.NAMES, jobs="bench.rivals.stores.jobs") -> Facts:
    """Return what each way to keep records takes to write, open and read."""
    found: Facts = {name: {} for name in names}
    small, large = (str(jsonl(size)) for size in (SMALL, plan.records * LINE))
    for source, which in ((small, "small"), (large, "large")):
        right = _done(f"{jobs}:expected", source=source, has_epoch=which == "small")
        for name in names:
            where = {"name": name, "source": source, "folder": str(_fresh(plan.folder / which / name))}
            found[name]["prepare"] = _done(f"{jobs}:prepare", PREPARING, **where)
            plan.say(f"stores: {name} wrote {right['records']:,} records")
            asked = {"records": right["records"], "has_epoch": which == "small"}
            answered = _done(f"{jobs}:answers", PREPARING, **where, **asked)
            check(name, right, answered.pop("answers"))
            found[name] |= answered
    records = {"records": right["records"]}
    sources = {"small": small, "large": large}
    places = {name: [[sources[which], str(plan.folder / which / name)] for which in sources] for name in names}
    for number in range(plan.rounds):
        for name in names:
            measured = _done(f"{jobs}:measure", name=name, places=places[name], **records, seconds=plan.seconds)
            found[name].setdefault("rounds", []).append(measured)
        plan.say(f"stores: round {number + 1} of {plan.rounds}")
    for name in names:
        if "workers" not in found[name]["cannot"]:
            source, folder = places[name][1]
            where = {"name": name, "source": source, "folder": folder}
            found[name]["workers"] = _done(f"{jobs}:workers", **where, count=plan.workers)["workers"]
        plan.say(f"stores: {name} read in {plan.workers} workers")
    nothing = _done(f"{jobs}:workers_without_data", **records, count=plan.workers)["workers"]
    shutil.rmtree(plan.folder)
    return {**records, "bytes": Path(large).stat().st_size, "without_data": nothing, "rivals": found}


def samplers_facts(plan: Plan, names=samplers.NAMES, jobs="bench.rivals.samplers.jobs") -> Facts:
    """Return what each way to shuffle takes to the first index of an epoch, for epochs of more and more records."""
    found = _answered(plan, names, jobs, {}, n=COVERED + 7)  # which is no multiple of the ranks
    _grow(plan, found, _powers(plan.largest), f"{jobs}:measure")
    return {"rivals": found}


def planners_facts(plan: Plan, names: tuple[str, ...], is_packed: bool, jobs="bench.rivals.planners.jobs") -> Facts:
    """Return what each planner takes to the first batch and to resume, and how full its batches are."""
    places = {name: {"folder": str(_fresh(plan.folder / name))} for name in names}
    found = _answered(plan, names, jobs, places, n=COVERED)
    for name in names:
        _done(f"{jobs}:prepare", PREPARING, name=name, n=EFFICIENCY, **places[name])
        epoch = run(f"{jobs}:epoch", plan.limits, name=name, n=EFFICIENCY, **places[name], is_packed=is_packed)
        found[name]["epoch"] = epoch
        if "batches" in epoch and "resume" not in found[name]["cannot"]:
            found[name]["resume"] = _resumed(plan, jobs, name, epoch["batches"] // 2, places[name])
        plan.say(f"planners: {name} planned {EFFICIENCY:,} records")
    _grow(plan, found, _powers(min(plan.largest, 10**6 if is_packed else 10**7)), f"{jobs}:plan", places)
    shutil.rmtree(plan.folder)
    return {"records": EFFICIENCY, "rivals": found}


def _answered(plan: Plan, names, jobs: str, places: dict[str, Facts], n: int) -> Facts:
    """Return what is said of each rival, once all have given the right answer."""
    right, found = _done(f"{jobs}:expected", n=n), {}
    for name in names:
        if name in places:
            _done(f"{jobs}:prepare", PREPARING, name=name, n=n, **places[name])
        answered = _done(f"{jobs}:answers", PREPARING, name=name, n=n, **places.get(name, {}))
        check(name, right, answered.pop("answers"))
        found[name] = {**answered, "sizes": {}}
        plan.say(f"{name}: the right answer for {n:,} records")
    return found


def _resumed(plan: Plan, jobs: str, name: str, step: int, place: Facts) -> Facts:
    """Return what it takes to go on after some batches; the batch that comes must be the one that would have come."""
    saved = _done(f"{jobs}:save", PREPARING, name=name, n=EFFICIENCY, **place, step=step)
    resumed = run(f"{jobs}:resume", plan.limits, name=name, n=EFFICIENCY, **place)
    if "stopped" not in resumed:
        check(name, {"batch": saved["batch"]}, {"batch": resumed.pop("batch")})
    return resumed


def _grow(plan: Plan, found: Facts, sizes, function: str, places: dict[str, Facts] | None = None) -> None:
    """Measure all rivals in turn, with more and more records, until a limit stops them."""
    running = list(found)
    for n in sizes:
        for name in running if places else ():
            _done(function.replace(":plan", ":prepare"), PREPARING, name=name, n=n, **places[name])
        for number in range(plan.rounds):
            for name in list(running):
                begin = time.monotonic()
                measured = run(function, plan.limits, name=name, n=n, **(places or {}).get(name, {}))
                found[name]["sizes"].setdefault(str(n), []).append(measured)
                if "stopped" in measured:
                    running.remove(name)
                plan.say(f"{name}: {n:,} records, round {number + 1}, {time.monotonic() - begin:.1f} s")
            if n >= 10**8:
                break


def _powers(largest: int) -> list[int]:
    """Return 100,000 and its multiples by 10, up to the largest."""
    return [10**power for power in range(5, 10) if 10**power <= largest] or [largest]


def _fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _done(function: str, limits: Limits = PREPARING, **arguments: Any) -> Facts:
    """Run a job that must not be stopped by a limit."""
    found = run(function, limits, **arguments)
    if "stopped" in found:
        raise JobError(f"{function}: {arguments}: {found['stopped']}")
    return found
