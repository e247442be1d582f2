"""A process that writes to a file at every moment while others read it."""

import os
import subprocess
import sys
from contextlib import contextmanager

WRITER = """
import mmap, os, random, sys
path, seed, begin, parent = sys.argv[1], *map(int, sys.argv[2:])
random = random.Random(seed)
with open(path, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), 0)
good = bytes(mapped)
ODD = b'\\n\\r "\\\\[]{},:-019eu.x/\\0\\x01\\x7f\\x80\\xe2\\xff'
print(flush=True)
while os.getppid() == parent:
    places = [random.randrange(begin, len(good)) for _ in range(random.choice([1, 4, 32]))]
    if random.random() < 0.5:
        places = range(places[0], min(places[0] + random.choice([2, 8, 64]), len(good)))
    others = [random.choice([random.choice(ODD), random.randrange(256), good[at] ^ 1]) for at in places]
    if random.random() < 0.5:
        others = others[:1] * len(others)
    for _ in range(random.choice([1, 30, 300])):
        for at, other in zip(places, others):
            mapped[at] = other
        for at in places:
            mapped[at] = good[at]
    if random.random() < 0.2:
        mapped[places[0]] = others[0]  # which stays
    if random.random() < 0.02:
        mapped[:] = good
"""


@contextmanager
def written_to(random, path, begin=0):
    """Let another process write to a file, from byte `begin` on: any bytes in any places, and mostly the first ones
    again.
    """
    command = [sys.executable, "-c", WRITER, path, str(random.randrange(2**32)), str(begin), str(os.getpid())]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        writer.stdout.readline()
        yield
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
