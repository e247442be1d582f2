"""Ranks that agree read on undisturbed; of others, every rank says which one has what else."""

import re

import pytest

import mmapds
from mmapds import OrderError, check_ranks
from tests.support.messages import check
from tests.support.worlds import world

DIFFERENCES = [  # of which sampler, what the last rank has instead, the epoch that it sets, and what is named
    *((kind, {"seed": 1}, 0, "seed = 1 on rank 2, expected 0") for kind in ("index", "chunked", "mixture", "packs")),
    *((kind, {}, 3, "epoch = 3 on rank 2, expected 0") for kind in ("batch", "window")),
    *((kind, {"n": 199}, 0, "records = 199 on rank 2, expected 200") for kind in ("index", "bucket")),
    ("batch", {"size": 7}, 0, "batch_size = 7 on rank 2, expected 4"),
    ("bucket", {"budget": 50}, 0, "max_tokens = 50 on rank 2, expected 40"),
    ("index", {"shuffle": False}, 0, "order = 'sequential' on rank 2, expected 'shuffled'"),
    ("index", {"drop_last": True}, 0, "drop_last = True on rank 2, expected False"),
    ("batch", {"pad": False}, 0, "pad = False on rank 2, expected True"),
    ("batch", {"start_step": 9}, 0, "first_step = 9 on rank 2, expected 0"),
    ("index", {"exclude": [7]}, 0, "exclude = "),
]
SIZES = ["loader.batch_size = 5 on rank 2, expected 4", "loader.drop_last = True on rank 2, expected False"]


def test_ranks_that_agree_read_what_they_read_alone_and_every_rank_says_what_differs(tmp_path, write):
    for rank in range(3):
        for name, last in (("same", 0), ("other", rank == 2)):
            mmapds.build(write([{"n": i} for i in [*range(1, 99), 100 + last]], f"{rank}/{name}.jsonl"), length="n")
    code = f"""
from tests.support.sampler_kinds import KINDS
alone = [list(make(num_replicas=world, rank=rank)) for make in KINDS.values()]
begin()
samplers = [make() for make in KINDS.values()]
for sampler in samplers:
    next(iter(sampler))  # as trainers do
assert [list(sampler) for sampler in samplers] == alone
if rank == 1:  # may read an epoch more than others: they are compared once, before a sampler's first batch
    samplers[0].set_epoch(9)
    list(samplers[0])
is_other = rank == 2
for kind, options, epoch in {[each[:3] for each in DIFFERENCES]!r}:
    sampler = KINDS[kind](**(options if is_other else {{}}))
    sampler.set_epoch(epoch if is_other else 0)
    say(tried(lambda: list(sampler)))
for workers in ({{}}, {{"num_workers": 1}}, {{"num_workers": 1, "workers": "processes"}}):
    for options in ({{"batch_size": 4 + is_other}}, {{"batch_size": 4, "drop_last": is_other}}):
        loader = DataLoader(range(200), sampler=DistributedSampler(range(200)), **options, **workers)
        say(tried(lambda: len(list(loader))))
same, ds = (mmapds.open(f"{tmp_path}/{{rank}}/{{name}}.jsonl") for name in ("same", "other"))
for make in (
    lambda: DistributedBatchSampler(ds, 4),
    lambda: MixtureSampler([ds, ds[:5]], [1, 1]),
    lambda: TokenBudgetBatchSampler(ds[:90], 400),
):
    say(tried(lambda: list(make())))
say(tried(lambda: list(DistributedBatchSampler(range(100), 4, num_replicas=world, rank=rank % 2))))
say(len(list(DistributedBatchSampler(same[:90], 5))))  # which lies elsewhere on each rank
"""
    *said, same_rank, agreed = zip(*world(code, tmp_path, 3, tcp=True, MMAPDS_RANKS_SECONDS="60"), strict=True)
    expected = [*(each[3] for each in DIFFERENCES), *SIZES * 3, *["dataset = "] * 3]
    for messages, start in zip(said, expected, strict=True):
        message = messages[0]
        assert messages == (message,) * 3, "all ranks say the same"
        check(message)
        assert message.startswith(start), message
        assert re.search(r" on rank 2, expected .* as on rank 0; make the sampler alike on all ranks \(", message)
        assert re.search(r" \(before the first batch of \w+(, also different: .*)?\)$", message), message
    assert (
        same_rank
        == ("rank = 0 on ranks 0 and 2, expected another on each; pass the rank of the process, or mesh=",) * 3
    )
    assert agreed == (6, 6, 6)


def test_a_rank_that_does_not_come_in_time(tmp_path):
    code = """
begin()
if rank != 1:
    say(tried(lambda: list(DistributedBatchSampler(range(100), 4))))
dist.barrier()
"""
    missing = (
        "ranks: expected 3 within 3 seconds, found rank 1 missing; make every rank begin the same samplers, or set "
        "MMAPDS_RANKS_SECONDS=0 to compare nothing (before the first batch of DistributedBatchSampler)"
    )
    check(missing)
    assert world(code, tmp_path, 3, MMAPDS_RANKS_SECONDS="3") == [[missing], [], [missing]]


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
    assert world(code, tmp_path, 4) == [[25, 100, 50, 50, 25], *[[25, 50, 25]] * 3]


def test_check_ranks(tmp_path):
    code = """
begin()
part = dist.new_group([0, 2])
mine = lambda seed: DistributedBatchSampler(range(100), 4, num_replicas=1, rank=0, seed=seed)
for of, group in ((mine(0), None), (mine(0), None), (mine(rank % 2), part), (mine(rank), None), (mine(rank), part)):
    say(tried(lambda: check_ranks(of, group=group)))
say(tried(lambda: check_ranks({"steps": 7, "shards": ["a", rank // 2]})))
if rank:
    say(tried(lambda: check_ranks({"steps": 7}, timeout=1)))
"""
    for rank, (one, two, part, seeds, parts, values, *missing) in enumerate(world(code, tmp_path, 3)):
        assert (one, two, part) == (None, None, None)
        assert seeds.startswith("seed = 1 on rank 1, expected 0 as on rank 0; "), seeds
        of_part = "seed = 2 on rank 2, expected 0 as on rank 0; make the sampler alike on all ranks (in check_ranks)"
        assert parts == (None if rank == 1 else of_part)
        assert values.startswith("shards = ['a', 1] on rank 2, expected ['a', 0] as on rank 0; ")
        assert not rank or missing[0].startswith("ranks: expected 3 within 1 seconds, found rank 0 missing; ")


def test_arguments_of_check_ranks():
    check_ranks({"seed": 1})  # which does nothing without a group
    for of, timeout, message in [
        *(({}, timeout, r"timeout = .*, expected seconds above 0, below") for timeout in (float("nan"), 10**400, "60")),
        ([1], None, "of: expected a sampler or a stream of mmapds, or a dict, found list"),
    ]:
        with pytest.raises(OrderError, match=message) as error:
            check_ranks(of, timeout=timeout)
        check(str(error.value))
