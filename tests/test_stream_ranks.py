"""Streams in workers of a loader: ranks that differ say so, and those that agree read on undisturbed."""

import os
import re

import pytest

from mmapds.samplers import ranks, stream_ranks
from tests.support.messages import check
from tests.support.worlds import world

BEFORE = """
import warnings
from torch.utils.data import DataLoader
ds = mmapds.open({path!r})

def read(stream, workers=2, **options):
    size = None if stream._in_batches else 4
    loader = DataLoader(stream, batch_size=size, num_workers=workers, collate_fn=list, **options)
    return [sample["id"] for batch in loader for sample in batch]

def reason(function):
    # torch says in which worker an error was raised, and shows its traceback
    return tried(function).rpartition("mmapds.errors.OrderError: ")[2].strip()
"""


@pytest.fixture
def before(opened):
    ds = opened([{"id": i} for i in range(203)])
    return BEFORE.format(path=ds.sources[0])


def test_every_rank_says_what_differs(tmp_path, before):
    code = f"""{before}
from mmapds.samplers import ranks
begin()

def forked(work):
    child = os.fork()
    if not child:
        os._exit(work())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

speaks = lambda: int(ranks.store_of_process() is not None or ranks.store_of_parent() is None)
say([speaks(), forked(speaks), forked(lambda: forked(speaks))])
for options in ({{}}, {{"batch_size": 4}}):
    say(reason(lambda: read(ds.stream(shuffle=True, seed=rank, **options))))
spawn = {{"workers": 1, "multiprocessing_context": "spawn"}}
say(reason(lambda: read(ds.stream(shuffle=True, seed=rank), **spawn)))
say(reason(lambda: read(ds.stream(batch_size=4 + rank), workers=1)))
say(reason(lambda: read((ds[::-1] if rank else ds).stream(shuffle=True), workers=1)))
say(reason(lambda: str(len(read(ds.stream(shuffle=True), workers=1)))))
"""
    expected = ["seed = 1", "seed = 1", "seed = 1", "batch_size = 5", "dataset = "]
    for forks, *different, agreed in world(code, tmp_path, tcp=True, MMAPDS_RANKS_SECONDS="60"):
        assert forks == [1, 0, 0], "a process speaks on its own store alone"
        for message, begin in zip(different, expected, strict=True):
            check(message)
            assert message.startswith(begin), message
            assert " on rank 1, expected " in message
            assert "; make the sampler alike on all ranks (in a pass of Distributed" in message
        assert agreed == "102"


def test_ranks_that_agree_read_what_they_read_alone(tmp_path, before):
    code = f"""{before}
warnings.simplefilter("ignore")
for grouped in (False, True):
    if grouped:
        begin()
        world_of = {{}}
    else:
        world_of = {{"num_replicas": world, "rank": rank}}
    streams = [ds.stream(shuffle=True, **world_of), ds.stream(batch_size=4, **world_of)]
    found = []
    for epoch in (0, 1):
        for stream in streams:
            stream.set_epoch(epoch)
            if rank == 0 and epoch == 0:  # looks at a batch first, alone: the others come later
                next(iter(DataLoader(stream, batch_size=None, num_workers=1)))
            found.append(read(stream, workers=1))
    found.append(read(streams[1], workers=1))  # in file order, which no epoch changes
    state = streams[1].state_dict(step=10)
    streams[1].load_state_dict(state)
    found.append(read(streams[1]))
    say(found)
for seed in (0, rank):
    say(tried(lambda: check_ranks(ds.stream(shuffle=True, seed=seed, num_replicas=1, rank=0))))
os.environ["MMAPDS_RANKS_SECONDS"] = "2"
if rank == 0:
    streams[0].set_epoch(7)  # the others forget it, and begin again what they have agreed on
say(reason(lambda: str(len(read(streams[0], workers=1)))))
say(len(read(ds.stream(shuffle=True, num_replicas=1, rank=0, seed=rank), workers=1)))
os.environ["MMAPDS_RANKS_SECONDS"] = "0"
say(len(read(ds.stream(shuffle=True, seed=rank), workers=1)))
os.environ["MMAPDS_RANKS_SECONDS"] = "1"
if rank == 0:
    say(reason(lambda: read(streams[0], workers=1)))
dist.barrier()
"""
    said = world(code, tmp_path, 3, MMAPDS_RANKS_SECONDS="60")
    for rank, (alone, grouped, same, different, forgotten, one, unchecked, *_) in enumerate(said):
        assert alone == grouped
        assert len(alone[-1]) < len(alone[-2])
        assert same is None
        assert re.match(r"seed = [12] on rank [12], expected [01] as on rank [01]; ", different)
        missing = "ranks: expected 3 within 2 seconds, found ranks 1, 2 missing; "
        assert forgotten == "68" if rank else forgotten.startswith(missing)
        assert (one, unchecked) == (203, 68)
    check(said[0][-1])
    assert said[0][-1].startswith(
        "ranks: expected 3 within 1 seconds, found ranks 1, 2 missing; make every rank begin "
    )


def test_a_look_near_the_end_of_an_epoch_is_compared_alike_on_ranks_of_another_speed(tmp_path, before):
    """On one rank the worker comes to the end of the pass while the trainer looks at a batch, on the other not."""
    code = f"""{before}
begin()
for is_chosen in (True, False):
    stream = ds.stream(batch_size=4, shuffle=True, start_step=22)
    if is_chosen:
        stream.set_epoch(0)
    iterator = iter(DataLoader(stream, batch_size=None, num_workers=2, collate_fn=list))
    next(iterator)
    if rank == 0:
        time.sleep(1)
    del iterator
    for epoch in (0, 1):
        stream.set_epoch(epoch)
        say(reason(lambda: str(len(read(stream)))))
"""
    for said in world(code, tmp_path, tcp=True, MMAPDS_RANKS_SECONDS="20"):
        assert said == ["14", "102"] * 2


def test_a_worker_that_is_killed_while_it_waits_leaves_ranks_at_the_same_pass(tmp_path, before):
    code = f"""{before}
import signal
begin()
stream = ds.stream(shuffle=True)
for epoch in (0, 1):
    stream.set_epoch(epoch)
    for late in (0, 1):
        if rank == late:
            iterator = iter(DataLoader(stream, num_workers=1, collate_fn=list))
            if late:
                next(iterator)
            else:
                time.sleep(3)
                os.kill(iterator._workers[0].pid, signal.SIGKILL)
            del iterator
        dist.barrier()
    say(reason(lambda: str(len(read(stream, workers=1)))))
"""
    for said in world(code, tmp_path, tcp=True, MMAPDS_RANKS_SECONDS="20"):
        assert said == ["102", "102"]


def test_a_store_that_workers_cannot_open_is_told(opened, monkeypatch):
    ds = opened([{"id": i} for i in range(9)])
    stream = ds.stream(num_replicas=2, rank=0)
    stream._check._place = stream_ranks.StorePlace("HashStore", 2, 60.0)
    with pytest.warns(UserWarning, match="found HashStore; use mmapds.check_ranks") as found:
        stream._check.before(stream.sampler._synchronised(), stream._shared_by_ranks)
    check(str(found[0].message))
    monkeypatch.setenv(ranks.LIMIT, "0")
    stream._check.before(stream.sampler._synchronised(), stream._shared_by_ranks)


def test_each_try_of_torchrun_has_keys_of_its_own(opened, monkeypatch):
    stream = opened([{"id": i} for i in range(9)]).stream(num_replicas=2, rank=0)
    keys = []
    for count in "01":
        monkeypatch.setitem(os.environ, "TORCHELASTIC_RESTART_COUNT", count)
        keys.append(stream._check._key)
    assert len(set(keys)) == 2
