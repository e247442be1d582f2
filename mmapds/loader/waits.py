"""How long a trainer waited for its batches."""

from array import array
from typing import Any

_KEPT = 4096  # waits that percentiles are of


class Waits:
    """Counts batches, records and the seconds that the trainer waited, in one pass."""

    def __init__(self) -> None:
        self._begin: float | None = None
        self._end = 0.0
        self._batches = 0
        self._records = 0
        self._total = 0.0
        self._longest = 0.0
        self._stalls = 0
        self._last = array("d")

    def add(self, begin: float, end: float, records: int) -> None:
        """Count a batch that was asked for and delivered at these times, in seconds."""
        wait = end - begin
        if self._begin is None:
            self._begin = begin
        self._end = end
        if self._batches < _KEPT:
            self._last.append(wait)
        else:
            self._last[self._batches % _KEPT] = wait
        self._batches += 1
        self._records += records
        self._total += wait
        if wait > self._longest:
            self._longest = wait

    def add_stall(self) -> None:
        """Count a wait that was long enough to be reported."""
        self._stalls += 1

    def report(self) -> dict[str, Any]:
        """Return the figures; `DataLoader.stats` says what they are."""
        seconds = 0.0 if self._begin is None else self._end - self._begin
        waits = sorted(self._last)

        def percentile(share: float) -> float:
            return waits[min(int(share * len(waits)), len(waits) - 1)] if waits else 0.0

        return {
            "batches": self._batches,
            "records": self._records,
            "seconds": seconds,
            "records_per_second": self._records / seconds if seconds else 0.0,
            "wait": self._total,
            "wait_p50": percentile(0.5),
            "wait_p99": percentile(0.99),
            "wait_max": self._longest,
            "stalls": self._stalls,
        }
