"""What builds the parts of an index, or of an array file."""

from typing import Any, NamedTuple


class Engine(NamedTuple):
    """What runs tasks; see `driver`."""

    executor: Any
    directory: str | None = None
    """For the parts; by default that of the file to write, with `.parts` behind its name."""
    workers: int = 1
    """Threads of a task."""
