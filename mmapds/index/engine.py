"""What builds the parts of an index."""

from typing import Any, NamedTuple


class Engine(NamedTuple):
    """What builds parts; see `distribute`."""

    executor: Any
    directory: str | None = None
    """For the parts; by default that of the index, with `.parts` behind its name."""
    workers: int = 1
    """Threads of a task."""
