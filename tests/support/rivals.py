"""Stand-ins for the jobs of rivals: some answer, some take too much, some fail."""

import os
import signal

from bench.support.memory import anonymous

MB = 10**6


def hold(size):
    """Hold memory of its own, and say how much there was before."""
    before = anonymous()
    held = bytes(bytearray(os.urandom(MB)) * (size // MB))
    return {"before": before, "held": len(held)}


def grow_in_children(size, children):
    """Hold memory in children, none of which has much, and wait."""
    for _ in range(children):
        if not os.fork():
            held = bytearray(os.urandom(MB)) * (size // MB)
            signal.pause()
            del held
    signal.pause()


def go_on():
    """Never end."""
    while True:
        pass


def fail():
    """Fail, after printing."""
    print("what was printed")
    raise ValueError("what went wrong")


def end():
    """Say nothing."""
    os._exit(3)
