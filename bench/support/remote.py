"""A corpus in an object store: a server in a process of its own, and what a cache must fetch at least."""

import io
import multiprocessing
import os
import tarfile
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path

import orjson

from tests.support.objects import Server


def corpus(folder, shards, records, size):
    """Write files of records of `size` bytes each; return the bytes of a file."""
    folder.mkdir(parents=True)
    text = "x" * (size - 64)
    for shard in range(shards):
        lines = (orjson.dumps({"shard": shard, "number": number, "text": text}) for number in range(records))
        (folder / f"part-{shard:04}.jsonl").write_bytes(b"".join(line.ljust(size - 1) + b"\n" for line in lines))
    return records * size


def tars(folder, into, records, size):
    """Write the files of a corpus as tars, a member for each record."""
    into.mkdir(parents=True)
    for path in sorted(folder.glob("*.jsonl")):
        with path.open("rb") as lines, tarfile.open(into / f"{path.stem}.tar", "w") as tar:
            for number in range(records):
                member = tarfile.TarInfo(f"{path.stem}-{number}.json")
                member.size = size
                tar.addfile(member, io.BytesIO(lines.read(size)))


class Store:
    """An object store that holds the files of a folder; use it in a `with` statement.

    It runs in a process of its own, so that it takes nothing from the trainer's process.

    Args:
      folder: a file `a/b` in it is the object `s3://a/b`.
      bandwidth: bytes a second, of all answers together.
    """

    def __init__(self, folder, bandwidth=float("inf")):
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, str(folder), bandwidth), daemon=True)

    def __enter__(self):
        self._process.start()
        self.options = self._pipe.recv()
        return self

    def __exit__(self, *_):
        self._pipe.send("end")
        self._process.join()

    def take(self):
        """Return the requests since the last call as (method, object, bytes sent)."""
        self._pipe.send("take")
        return self._pipe.recv()

    def sent(self):
        """Return the bytes that were sent of each object since the last call."""
        total = Counter()
        for _, name, sent in self.take():
            total[name] += sent
        return total


def _serve(pipe, folder, bandwidth):
    with Server() as server:
        server.bandwidth = bandwidth
        for path in Path(folder).rglob("*.*"):
            name = str(path.relative_to(folder))
            server.data[name] = path.read_bytes()
            server.etags[name] = server.etag(name)
        pipe.send(server.options)
        while pipe.recv() == "take":
            pipe.send([(each.method, each.name, each.sent) for each in server.requests])
            server.requests.clear()
    os._exit(0)


def belady(reads, room):
    """Return how many objects a cache for `room` of them fetches, if it evicts what is needed last."""
    uses, kept, fetched = defaultdict(deque), set(), 0
    for time, each in enumerate(reads):
        uses[each].append(time)
    for each in reads:
        uses[each].popleft()
        if each not in kept:
            fetched += 1
            if len(kept) == room:
                kept.remove(max(kept, key=lambda other: uses[other][0] if uses[other] else len(reads)))
            kept.add(each)
    return fetched


def lru(reads, room):
    """Return the same of a cache that evicts what was used longest ago."""
    kept, fetched = OrderedDict(), 0
    for each in reads:
        if each not in kept:
            fetched += 1
            if len(kept) == room:
                kept.popitem(last=False)
        kept[each] = True
        kept.move_to_end(each)
    return fetched
