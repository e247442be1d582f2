"""How long things take. These machines are noisy: a figure is a ratio to a limit or a rival timed in turn with it."""

import gc
import os
import time
from collections.abc import Callable


def timed(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def ratios(ours: Callable[[], object], rival: Callable[[], object], rounds: int) -> list[float]:
    """Time two calls in turn, A B A B, after each was called once; return the ratio of each pair."""
    ours(), rival()
    found = []
    for _ in range(rounds):
        gc.collect()
        first = timed(ours)
        gc.collect()
        found.append(first / timed(rival))
    return found


def repeated(work: Callable[[], object], times: int) -> Callable[[], None]:
    """Many calls as one, for work of microseconds; each result is dropped before the next call."""

    def repeated() -> None:
        for _ in range(times):
            work()

    return repeated


def processor_seconds(work: Callable[[], object]) -> float:
    """Seconds of all cores that a call takes, in this process and in those that it starts and waits for."""
    before = os.times()
    work()
    return sum(os.times()[:4]) - sum(before[:4])


def processor_ratios(ours: Callable[[], object], rival: Callable[[], object], rounds: int) -> list[float]:
    """Take the processor's time for two calls in turn; return the ratio of each pair, of which the caller warms up."""
    return [processor_seconds(ours) / processor_seconds(rival) for _ in range(rounds)]
