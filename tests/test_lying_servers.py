"""What a server may send, however wrong: right bytes or an error of ours, soon, without a secret, in little memory."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from xxhash import xxh3_128

from mmapds import Error
from mmapds.remote import stores, transfer
from mmapds.remote.cache import Item
from mmapds.remote.objects import Objects
from mmapds.remote.secrets import hidden
from mmapds.remote.stores import FailedError, RefusedError, store_of
from tests.support.liar import Liar
from tests.support.objects import SECRET, Server
from tests.support.torture import HANGS

DATA = os.urandom(5000)


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """Waits of milliseconds instead of seconds, and small parts."""
    for name, value in {"_FIRST_WAIT": 0.001, "_LONGEST_WAIT": 0.002, "_LONGEST_AFTER": 0.01, "PART": 2000}.items():
        monkeypatch.setattr(transfer, name, value)
    for name, value in {"_TIMEOUT": 0.1, "_CONNECT": 0.1, "_SLOWEST": 1000}.items():
        monkeypatch.setattr(stores, name, value)


def downloaded(url, options, path):
    """Look at an object and download it, as the child process does; return its bytes, or the error."""
    path.write_bytes(bytes(len(DATA)))
    store = store_of(url, options)
    try:
        [[head]] = transfer._head(store, url)
        if head.size != len(DATA):
            return RefusedError("stale", "of another size")
        list(transfer._get(store, url, str(path), head.size, head.etag, xxh3_128(DATA).hexdigest()))
    except (RefusedError, FailedError) as error:
        return error
    return path.read_bytes()


@pytest.mark.parametrize("answers", [500, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_every_answer_gives_right_bytes_or_an_error_of_ours_in_bounded_time(tmp_path, answers):
    options = {"headers": {"Authorization": f"Bearer {SECRET}"}}
    with Liar(DATA) as liar, ThreadPoolExecutor(8) as pool:

        def attempt(number):
            begun = time.monotonic()
            found = downloaded(liar.url, options, tmp_path / str(number))
            (tmp_path / str(number)).unlink()
            return found, time.monotonic() - begun

        numbers, found = count(), []
        while len(liar.seen) < answers:
            found += pool.map(attempt, [next(numbers) for _ in range(8)])
    outcomes = [each for each, _ in found]
    errors = [hidden(transfer._described(each)[1], options) for each in outcomes if not isinstance(each, bytes)]
    assert {each for each in outcomes if isinstance(each, bytes)} == {DATA}
    assert len(errors) > len(found) / 10
    assert not [text for text in errors if SECRET in text or not text.isprintable()]
    assert max(seconds for _, seconds in found) < HANGS / 10


def anonymous(process):
    """Anonymous memory of a process, in bytes."""
    with open(f"/proc/{process}/smaps_rollup") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("Anonymous:"))


def downloaders():
    """The processes that download for this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(each) for each in children if "transfer" in Path(f"/proc/{each}/cmdline").read_text()]


def test_the_process_that_downloads_stays_small(tmp_path):
    """Sixteen objects at a time, from a server that is faster than the disk; one that claims to be of 8 TiB."""
    with Server() as server, ThreadPoolExecutor(17) as pool:
        data = bytes(24 << 20)
        server.data.update({f"b/{number}": data for number in range(16)})
        objects = Objects(str(tmp_path / "cache"), None, server.options)
        heads = [objects.head(f"s3://b/{number}") for number in range(16)]
        found = [pool.submit(objects.fetch, Item(*head)) for head in heads]
        claimed = pool.submit(objects.fetch, Item(*heads[0]._replace(size=1 << 43)))
        [child] = downloaders()
        most = 0
        while not all(each.done() for each in found):
            most = max(most, anonymous(child))
        with pytest.raises(Error, match=r"STALE: was 8,796,093,022,208 bytes when indexed, and is another object of"):
            claimed.result()
        assert [os.path.getsize(each.result()) for each in found] == [len(data)] * 16
    assert most < 100e6
