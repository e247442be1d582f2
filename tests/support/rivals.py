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


def allocate(size):
    """Ask for memory at once."""
    return {"held": len(bytearray(size))}


def allocate_as_torch_does(size):
    """Ask for more than there is, of a library with an error of its own."""
    raise RuntimeError(f"DefaultCPUAllocator: can't allocate memory: you tried to allocate {size} bytes.")


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


def leave_a_child():
    """End before a child does."""
    pid = os.fork()
    if not pid:
        signal.pause()
    return {"pid": pid}


def fail():
    """Fail, after printing."""
    print("what was printed")
    raise ValueError("what went wrong")


def end():
    """Say nothing."""
    os._exit(3)
