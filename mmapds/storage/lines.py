"""Lines of a source, as people count them."""

from .. import _native

_STEP = 1 << 20  # bytes copied at a time: counting in a map itself would take a copy of all of them


def line_at(source: _native.Map, offset: int) -> int:
    """Return the number of the line that holds the byte at `offset`, counted from 1."""
    view = memoryview(source)
    return 1 + sum(bytes(view[at : min(at + _STEP, offset)]).count(b"\n") for at in range(0, offset, _STEP))
