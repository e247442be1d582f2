"""Ranks that agree read on undisturbed; of others, every rank says which one has what else."""

import copy
import itertools
import os
import pickle
import re
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

import mmapds
from mmapds import DistributedBatchSampler, DistributedSampler, OrderError, TokenBudgetBatchSampler, check_ranks
from mmapds.samplers import ranks
from tests.support.messages import check
from tests.support.worlds import world

KINDS = """
import numpy as np
LENGTHS = np.arange(2003) % 13 + 1
KINDS = {
    "index": lambda n=2003, **options: DistributedSampler(range(n), **options),
    "chunked": lambda n=2003, **options: ChunkedSampler(range(n), 7, **options),
    "mixture": lambda n=2003, **options: MixtureSampler([n - 800, 800], [3, 2], **options),
    "batch": lambda n=2003, size=6, **options: DistributedBatchSampler(range(n), size, **options),
    "bucket": lambda n=2003, budget=40, **options: TokenBudgetBatchSampler(LENGTHS[:n], budget, **options),
    "window": lambda n=2003, budget=40, **options: TokenBudgetBatchSampler(
        LENGTHS[:n], budget, planner="window", **options),
}
"""
DIFFERENCES = [  # of which sampler, what the last rank has instead, the epoch that it chooses, and the message
    *(
        (kind, {"seed": 1}, 0, "seed = 1 on rank LAST, expected 0 as on rank ")
        for kind in ("index", "chunked", "mixture", "batch", "bucket", "window")
    ),
    *(
        (kind, {}, 3, "epoch = 3 on rank LAST, expected 0 as on rank ")
        for kind in ("index", "chunked", "mixture", "batch", "bucket", "window")
    ),
    ("index", {"n": 2002}, 0, "samples = 2002 on rank LAST, expected 2003 as on rank "),
    ("batch", {"n": 1503}, 0, "samples = 1503 on rank LAST, expected 2003 as on rank "),
    ("bucket", {"n": 2002}, 0, "samples = 2002 on rank LAST, expected 2003 as on rank "),
    ("window", {"n": 2002}, 0, "samples = 2002 on rank LAST, expected 2003 as on rank "),
    ("mixture", {"n": 2002}, 0, None),
    ("batch", {"size": 7}, 0, "batch_size = 7 on rank LAST, expected 6 as on rank "),
    ("bucket", {"budget": 50}, 0, "max_tokens = 50 on rank LAST, expected 40 as on rank "),
    ("window", {"budget": 50}, 0, "max_tokens = 50 on rank LAST, expected 40 as on rank "),
    ("bucket", {"max_batch_size": 9}, 0, "max_batch_size = 9 on rank LAST, expected 2147483648 as on rank "),
    ("index", {"shuffle": False}, 0, "order = 'sequential' on rank LAST, expected 'shuffled' as on rank "),
    ("index", {"drop_last": True}, 0, "drop_last = True on rank LAST, expected False as on rank "),
    ("batch", {"pad": False}, 0, "pad = False on rank LAST, expected True as on rank "),
    ("batch", {"start_step": 9}, 0, "first_step = 9 on rank LAST, expected 0 as on rank "),
    ("index", {"exclude": {"records": [7]}}, 0, None),
]


@pytest.mark.parametrize(("size", "tcp"), [(2, True), (3, False)])
def test_every_rank_says_what_differs(tmp_path, size, tcp):
    cases = [each[:3] for each in DIFFERENCES]
    code = f"""
{KINDS}
begin()
for kind, options, epoch in {cases!r}:
    sampler = KINDS[kind](**(options if rank == world - 1 else {{}}))
    sampler.set_epoch(epoch if rank == world - 1 else 0)
    say(tried(lambda: list(sampler)))
"""
    said = world(code, tmp_path, size, tcp, MMAPDS_RANKS_SECONDS="60")
    last = size - 1
    for k, (kind, options, _, expected) in enumerate(DIFFERENCES):
        for rank in range(size):
            message = said[rank][k]
            assert isinstance(message, str), (kind, options)
            check(message)
            assert f" on rank {last}, expected " in message
            if expected is not None:
                assert message.startswith(expected.replace("LAST", str(last))), message
            assert "; make the sampler alike on all ranks (in a pass of " in message


def test_batch_sizes_of_loaders_are_compared(tmp_path):
    code = """
begin()
for workers in ({}, {"num_workers": 1}, {"num_workers": 1, "workers": "processes"}):
    for options in ({"batch_size": 4 + rank}, {"batch_size": 4, "drop_last": rank == 1}, {"batch_size": 4}):
        loader = DataLoader(range(2003), sampler=DistributedSampler(range(2003)), **options, **workers)
        say(tried(lambda: len(list(loader))))
sampler = DistributedSampler(range(2003))
for size in (4, 6):  # one sampler, two loaders
    say(tried(lambda: len(list(DataLoader(range(2003), sampler=sampler, batch_size=size)))))
    sampler.set_epoch(1)
"""
    for said in world(code, tmp_path, MMAPDS_RANKS_SECONDS="60"):
        for size, drop_last, agreed in zip(said[0:9:3], said[1:9:3], said[2:9:3], strict=True):
            check(size)
            check(drop_last)
            assert size.startswith("batch_size = 5 on rank 1, expected 4 as on rank 0; make the sampler alike on all")
            assert drop_last.startswith("loader.drop_last = True on rank 1, expected False as on rank 0; make the ")
            assert agreed == 251
        assert said[9:] == [251, 167]


def test_a_rank_that_ends_at_once_leaves_no_other_without_a_reason(tmp_path):
    code = """
begin()
say(tried(lambda: list(DistributedSampler(range(100), seed=rank // 2))))
os._exit(0)  # that of rank 0 takes the store with it
"""
    for said in world(code, tmp_path, 3, tcp=True, MMAPDS_RANKS_SECONDS="60"):
        assert re.match("seed = 1 on rank 2, expected 0 as on rank [01]; ", said[0]), said


def test_ranks_that_agree_read_what_they_read_alone(tmp_path):
    code = f"""
{KINDS}
for grouped in (False, True):
    if grouped:
        begin()
        samplers = {{kind: make() for kind, make in KINDS.items()}}  # train and valid, in turn, and so on
        evaluated = DistributedSampler(range(1), pad=False)
    else:
        samplers = {{kind: make(num_replicas=world, rank=rank) for kind, make in KINDS.items()}}
        evaluated = DistributedSampler(range(1), world, rank, pad=False)
    read = []
    for epoch in (0, 1, 5):
        for sampler in samplers.values():
            sampler.set_epoch(epoch)
            next(iter(sampler))  # as trainers do
            read.append(list(sampler))
            read.append(list(evaluated))
    state = samplers["batch"].state_dict(step=20)
    samplers["batch"].load_state_dict(state)
    read.append(list(samplers["batch"]))
    say(read)
store = dist.distributed_c10d._get_default_store()
dist.barrier()
say(store.num_keys() if rank == 0 else 0)
for _ in range(20):
    for sampler in samplers.values():
        sampler.set_epoch(sampler.epoch + 1)
        next(iter(sampler))
dist.barrier()
say(store.num_keys() if rank == 0 else 0)
"""
    for alone, grouped, before, after in world(code, tmp_path, 3, tcp=True):
        assert alone == grouped
        assert after <= before + 6 * 3, "what was compared is deleted"


def test_a_forgotten_set_epoch_is_found_in_the_second_pass(tmp_path):
    code = """
import warnings
warnings.simplefilter("ignore")
begin()
train, valid = DistributedBatchSampler(range(100), 4), DistributedBatchSampler(range(50), 4, shuffle=False)
for epoch in (0, 1):
    if rank == 0:
        train.set_epoch(epoch)
    say(tried(lambda: len(list(train))))
    say(tried(lambda: len(list(valid))))
"""
    for said in world(code, tmp_path, MMAPDS_RANKS_SECONDS="60"):
        assert said[:2] == [13, 7]
        assert said[2].startswith("epoch = 0 on rank 1, expected 1 as on rank 0; make the sampler alike on all ranks")
        assert said[3] == 7


def test_a_wait_that_a_signal_ends_is_taken_up_again(tmp_path):
    code = """
import signal
begin()
class Stop(Exception):
    pass
def stop(*_):
    raise Stop
signal.signal(signal.SIGALRM, stop)
sampler = DistributedBatchSampler(range(100), 4)
for epoch in (0, 1):
    sampler.set_epoch(epoch)
    if rank == 0:
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            list(sampler)
        except Stop:
            sampler.set_epoch(epoch)
        dist.barrier()
    else:
        dist.barrier()
    say(tried(lambda: len(list(sampler))))
"""
    for said in world(code, tmp_path, MMAPDS_RANKS_SECONDS="20"):
        assert said == [13, 13]


class Stop(BaseException):
    pass


class Stopping:
    """A store at one of whose operations a signal comes: before it is done, or after it."""

    def __init__(self, store, number, is_done):
        self._store, self._left, self._is_done = store, number, is_done

    def __getattr__(self, name):
        def operation(*arguments):
            self._left -= 1
            if self._left == 0 and not self._is_done:
                raise Stop
            found = getattr(self._store, name)(*arguments)
            if self._left == 0:
                raise Stop
            return found

        return operation


@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("seed", [0, 1], ids=["alike", "another"])
def test_a_rank_that_is_stopped_anywhere_comes_again(seed, is_first, monkeypatch):
    monkeypatch.setattr(ranks, "_LINGER", 0.2)
    stopped = 0
    for number, is_done in itertools.product(range(1, 30), (False, True)):
        store, stages = dist.HashStore(), [ranks.Stage.BEGUN]

        def come(place, seed, through, stages=stages, after=0.0):
            time.sleep(after)
            meeting = ranks.Meeting(through, "meeting", range(2), place, f"token {place}", "in a test")
            try:
                meeting.compare({"seed": str(seed)}, 20, *((stages[-1], stages.append) if place else ()))
            except OrderError as error:
                return str(error)

        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(come, 0, 0, store, after=0.02 * is_first)
            while not (is_first or store.check(["meeting/at/0"])):
                time.sleep(0.001)
            try:
                found = come(1, seed, Stopping(store, number, is_done))
            except Stop:
                stopped += 1
                found = come(1, seed, store)
            assert other.result() == found
        assert (found or "").startswith("seed = 1 on rank 1, expected 0 as on rank 0" if seed else "")
    assert stopped > 8


def test_a_rank_that_does_not_come_is_named(tmp_path):
    code = """
import warnings
from mmapds.samplers import ranks
ranks.PATIENCE = 0.1
begin()
sampler = DistributedBatchSampler(range(100), 4)
dist.barrier()
if rank != 1:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        say(tried(lambda: list(sampler)))
    say([str(each.message) for each in caught])
dist.barrier()
"""
    said = world(code, tmp_path, 3, MMAPDS_RANKS_SECONDS="4")
    assert said[1] == []
    for rank in (0, 2):
        check(said[rank][0])
        assert said[rank][0] == (
            "ranks: expected 3 within 4 seconds, found rank 1 missing; make every rank begin the same passes, or set "
            "MMAPDS_RANKS_SECONDS=0 to compare nothing (in a pass of DistributedBatchSampler)"
        )
        assert said[rank][1][-1] == (
            f"rank 1 has not come after 0.1 seconds, and rank {rank} waits up to 4 (in a pass of "
            "DistributedBatchSampler)"
        )


def test_a_rank_that_is_late_makes_no_error(tmp_path):
    code = """
begin()
sampler = DistributedBatchSampler(range(100), 4)
if rank == 1:
    dist.distributed_c10d._get_default_store().wait(["mmapds/pass/0/1/at/0"])  # rank 0 waits already
say(len(list(sampler)))
"""
    assert world(code, tmp_path) == [[13], [13]]


def test_two_ranks_that_were_given_the_same_rank(tmp_path):
    code = """
begin()
say(tried(lambda: list(DistributedBatchSampler(range(100), 4, num_replicas=world, rank=rank % 2))))
"""
    for said in world(code, tmp_path, 3, MMAPDS_RANKS_SECONDS="60"):
        check(said[0])
        assert said[0].startswith("rank = 0 on two ranks, expected another on each; pass the rank of the process")


def test_what_is_not_compared(tmp_path):
    code = """
from torch.utils.data import DataLoader
begin()
# One process of many: accelerate's prepare, evaluation on rank 0, tensor parallel ranks that share a sampler's rank.
say(len(list(DistributedBatchSampler(range(100), 4, num_replicas=1, rank=0, seed=rank))))
if rank == 0:
    say(len(list(DistributedSampler(range(100), num_replicas=1, rank=0))))
    say(len(list(DistributedSampler(range(100), num_replicas=2, rank=0))))
say(len(list(DistributedSampler(range(100), num_replicas=2, rank=rank % 2, seed=rank))))
# Nothing is asked of the store in the workers of a loader, which have the group of their parent.
class Reads:
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return len(list(DistributedSampler(range(100), seed=i, num_replicas=world, rank=rank)))
for batch in DataLoader(Reads(), num_workers=1):
    assert batch.tolist() == [25]
os.environ["MMAPDS_RANKS_SECONDS"] = "0"
say(len(list(DistributedSampler(range(100), seed=rank))))
"""
    said = world(code, tmp_path, 4)
    assert said == [[25, 100, 50, 50, 25], *[[25, 50, 25]] * 3]


def test_check_ranks(tmp_path):
    code = """
begin()
part = dist.new_group([0, 2])
mine = lambda seed: DistributedBatchSampler(range(100), 4, num_replicas=1, rank=0, seed=seed)
for _ in range(2):
    say(tried(lambda: check_ranks(mine(0))))
say(tried(lambda: check_ranks(mine(rank))))
say(tried(lambda: check_ranks(mine(rank % 2), group=part)))
say(tried(lambda: check_ranks(mine(rank), group=part)))
say(tried(lambda: check_ranks({"steps": 7, "shards": ["a", rank // 2]})))
if rank:
    say(tried(lambda: check_ranks({"steps": 7}, timeout=1)))
"""
    said = world(code, tmp_path, 3)
    for rank, (one, two, seeds, part, parts, values, *missing) in enumerate(said):
        assert (one, two, part) == (None, None, None)
        assert re.match(r"seed = [12] on rank [12], expected [01] as on rank [01]; ", seeds), seeds
        if rank == 1:
            assert parts is None
        else:
            check(parts)
            assert parts == (
                "seed = 2 on rank 2, expected 0 as on rank 0; make the sampler alike on all ranks (in a call of "
                "check_ranks)"
            )
        assert values.startswith("shards = ['a', 1] on rank 2, expected ['a', 0] as on rank ")
        if rank:
            assert missing[0].startswith("ranks: expected 3 within 1 seconds, found rank 0 missing; ")


def test_another_group_begins_anew(tmp_path):
    code = """
for turn in range(3):
    if rank == 0 and turn == 1:
        list(DistributedSampler(range(100), num_replicas=2, rank=0))
    dist.init_process_group("gloo", os.environ["MEET"].replace("?", f"{turn}?"))
    if rank == 0 and turn == 1:
        sampler = DistributedSampler(range(100))
    say(len(list(DistributedSampler(range(100)))))
    dist.barrier()
    dist.destroy_process_group()
"""
    assert world(code, tmp_path) == [[50, 50, 50]] * 2


def test_data_that_differ_are_found_wherever_they_lie(tmp_path):
    for rank in range(2):
        os.mkdir(tmp_path / f"{rank}")
        for name, last in (("same", 0), ("other", rank)):
            path = tmp_path / f"{rank}" / f"{name}.jsonl"
            path.write_text("".join(f'{{"n": {i}}}\n' for i in [*range(1, 99), 100 + last]))
            mmapds.build(path, length="n")
    code = f"""
begin()
for name in ("same", "other"):
    ds = mmapds.open(f"{tmp_path}/{{rank}}/{{name}}.jsonl")
    for make in (
        lambda: DistributedBatchSampler(ds, 4),
        lambda: ChunkedSampler(ds, 4),
        lambda: MixtureSampler([ds, ds[:5]], [1, 1]),
        lambda: DistributedSampler(ds[::2]),
        lambda: TokenBudgetBatchSampler(ds[:90], 400),
    ):
        say(tried(lambda: len(list(make())) and "read"))
"""
    for said in world(code, tmp_path, MMAPDS_RANKS_SECONDS="60"):
        assert said[:5] == ["read"] * 5
        for message in said[5:]:
            assert re.match(r"dataset = '[0-9a-f ]+' on rank 1, expected '[0-9a-f ]+' as on rank 0; ", message), message


# ---- in one process ------------------------------------------------------------------------------------------


def test_a_fingerprint_is_of_sources_and_rows(write):
    one, same, other = (
        mmapds.open(write(values, name), build=True)
        for values, name in (([1, 2, 3], "a.jsonl"), ([1, 2, 3], "b.jsonl"), ([1, 2, 4], "c.jsonl"))
    )
    assert re.fullmatch("[0-9a-f]{16}", one.fingerprint)
    assert one.fingerprint == same.fingerprint != other.fingerprint
    views = [one, one[:2], one[1:], one[::-1], one[[0, 2]], one[:0], mmapds.concat([one, same])]
    assert len({view.fingerprint for view in views}) == len(views)
    assert one[[0, 1]].fingerprint == one[:2].fingerprint == same[:2].fingerprint


def test_nothing_happens_without_a_group():
    check_ranks(DistributedSampler(range(10)))
    check_ranks({"seed": 1})
    list(DistributedSampler(range(10), 2, 0))


def test_arguments_of_check_ranks():
    for wrong in (
        lambda: check_ranks([1]),
        lambda: check_ranks({}, timeout=0),
        lambda: check_ranks({}, timeout=float("nan")),
        lambda: check_ranks({}, timeout=10**400),
        lambda: check_ranks({}, timeout="60"),
    ):
        with pytest.raises(OrderError, match=r"expected (a|seconds)") as error:
            wrong()
        check(str(error.value))


def test_a_limit_that_is_not_a_number(monkeypatch):
    monkeypatch.setenv(ranks.LIMIT, "soon")
    with pytest.raises(OrderError, match=f"{ranks.LIMIT} = 'soon', expected a number of seconds, 0 or more") as error:
        ranks._limit(None)
    check(str(error.value))


def test_copies_of_a_sampler_are_other_samplers():
    sampler = DistributedBatchSampler(range(100), 4)
    next(iter(sampler))
    for made in (copy.deepcopy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert made._ranks is not sampler._ranks
        assert list(made) == list(DistributedBatchSampler(range(100), 4))
    assert TokenBudgetBatchSampler([3] * 20, 30)._data.mark != TokenBudgetBatchSampler([4] * 20, 30)._data.mark
