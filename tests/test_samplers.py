"""Samplers: torch's counts and rules, the world, what is excluded, orders, and bad input."""

import copy
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch.distributed
import torch.utils.data
from torch.utils.data.distributed import DistributedSampler as TorchSampler

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    OrderError,
    PackingBatchSampler,
    TokenBudgetBatchSampler,
    orders,
)
from tests.support.messages import check
from tests.support.sampler_kinds import KINDS, LENGTHS, N, epoch_of, every_kind, ranks_of, records_in, union

WORLDS = [1, 2, 3, 5, 8, 40]


# ---- torch's own rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("drop_last", [False, True])
def test_counts_padding_and_order_are_torchs(world, drop_last):
    for n in range(1, 42):
        for rank in range(world):
            for shuffle in (False, True):
                ours = DistributedSampler(range(n), world, rank, shuffle, 0, drop_last)
                theirs = TorchSampler(range(n), world, rank, shuffle, 0, drop_last)
                counts = [(len(each), each.num_samples, each.total_size) for each in (ours, theirs)]
                assert counts[0] == counts[1]
                if not shuffle:
                    assert list(ours) == list(theirs)
        if not drop_last:
            everyone = union([DistributedSampler(range(n), world, rank, True, 1) for rank in range(world)])
            first = everyone[:n]
            assert sorted(first) == list(range(n))
            assert everyone == (first * math.ceil(len(everyone) / n))[: len(everyone)], "filled up from the beginning"


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_are_those_of_a_batch_sampler_over_the_sampler(world, drop_last):
    for n in range(1, 30):
        for batch in (1, 2, 3, 7, 40):
            if drop_last and n < world * batch:
                continue
            for rank in range(world):
                ours = DistributedBatchSampler(range(n), batch, world, rank, drop_last=drop_last)
                inner = DistributedSampler(range(n), world, rank)
                theirs = list(torch.utils.data.BatchSampler(inner, batch, drop_last=False))
                theirs = theirs[: n // (world * batch)] if drop_last else theirs
                assert (list(ours), len(ours)) == (theirs, len(theirs))


def test_public_attributes_and_classes():
    sampler = DistributedSampler(range(10), 2, 1, seed=5)
    assert isinstance(sampler, TorchSampler)
    assert (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed) == (2, 1, 0, 5)
    assert (sampler.shuffle, sampler.drop_last, sampler.dataset) == (True, False, range(10))
    batches = DistributedBatchSampler(range(10), 4)
    assert isinstance(batches, torch.utils.data.BatchSampler)
    assert (batches.batch_size, batches.drop_last) == (4, False)
    assert isinstance(batches.sampler, DistributedSampler)


def test_a_single_process_gets_the_global_sequence():
    whole = list(DistributedSampler(range(100), 1, 0, seed=2))
    assert union([DistributedSampler(range(100), 4, rank, seed=2) for rank in range(4)]) == whole


def test_more_replicas_than_samples():
    found = [list(DistributedSampler(range(3), 8, rank)) for rank in range(8)]
    assert [len(each) for each in found] == [1] * 8
    assert {record for each in found for record in each} == {0, 1, 2}
    assert all(len(list(DistributedBatchSampler(range(3), 2, 8, rank))) == 1 for rank in range(8))


def test_epochs_and_batches_of_any_size_cost_nothing():
    n = 2**62
    for exclude in (None, [(3, 10**9), n - 1]):
        assert 0 <= next(iter(DistributedSampler(range(n), 2, 1, exclude=exclude))) < n
    assert next(iter(DistributedSampler(range(n), 1, 0, shuffle=False, exclude=[(0, 10)]))) == n // 2
    assert next(iter(DistributedBatchSampler(range(20), 2**62, 4, 1)))


# ---- the world -------------------------------------------------------------------------------------------------


def test_the_world_comes_from_the_environment(monkeypatch):
    assert (DistributedSampler(range(9)).num_replicas, DistributedSampler(range(9)).rank) == (1, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    found = DistributedSampler(range(9))
    assert (found.num_replicas, found.rank) == (4, 3)
    assert DistributedSampler(range(9), rank=0).rank == 0, "0 is a rank, not an omission"
    assert DistributedSampler(range(9), num_replicas=5).rank == 3
    monkeypatch.delenv("RANK")
    with pytest.raises(OrderError, match=r"rank = None, expected 0 to 1 .*; pass rank=, set RANK, or initialise"):
        DistributedSampler(range(10), num_replicas=2)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(OrderError, match="num_replicas = 'two', expected an integer"):
        DistributedSampler(range(10))


@every_kind
def test_the_world_comes_from_torch_distributed_before_the_environment(make, monkeypatch, tmp_path):
    before = make()
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert "rank 0 of 1" in repr(make())
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        with pytest.warns(UserWarning, match="num_replicas = 1, expected 2, the processes of torch.distributed"):
            next(iter(before))
    finally:
        torch.distributed.destroy_process_group()


def test_one_process_under_slurm_warns(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.warns(UserWarning, match="num_replicas = 1, expected 4, the tasks of this SLURM job; pass"):
        DistributedSampler(range(9))
    DistributedSampler(range(9), 4, 1)


# ---- steps -----------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("exclude", [None, [3, (10, 30)]])
def test_indices_at_says_what_made_up_a_step(make, exclude):
    samplers = [make(num_replicas=3, rank=rank, exclude=exclude) for rank in range(3)]
    for sampler in samplers:
        sampler.set_epoch(2)
    for number, step in enumerate(zip(*samplers, strict=True)):
        for integers in (int, np.int8, np.uint64):
            found = samplers[0].indices_at(integers(number))
            assert [each.tolist() for each in found] == list(step)
    with pytest.raises(IndexError, match=rf"step {number + 1} is out of range for the {number + 1} steps of an epoch"):
        samplers[0].indices_at(number + 1)
    with pytest.raises(IndexError):
        samplers[0].indices_at(-1)


def test_indices_at_after_a_resume_in_another_world():
    state = DistributedSampler(range(100), 2, 0).state_dict(step=9)  # 18 positions, which are no whole steps of 4
    four = DistributedSampler(range(100), 4, 0)
    four.load_state_dict(state)
    whole = list(DistributedSampler(range(100), 1, 0))
    assert four.indices_at(4).tolist() == whole[18:22]
    assert four.indices_at(1).tolist() == whole[4:8]
    assert next(iter(four)) == whole[18]


@pytest.mark.parametrize("world", [1, 2, 3, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_padding_every_sample_comes_once_over_all_ranks(world, shuffle):
    for n in (1, 2, 20, 21, 41):
        options = {"shuffle": shuffle, "pad": False}
        single = [DistributedSampler(range(n), world, rank, **options) for rank in range(world)]
        batches = [DistributedBatchSampler(range(n), 5, world, rank, **options) for rank in range(world)]
        for samplers in (single, batches):
            found = [list(sampler) for sampler in samplers]
            assert sorted(record for steps in found for record in records_in(steps)) == list(range(n))
            assert [len(steps) for steps in found] == [len(sampler) for sampler in samplers]
            assert max(map(len, found)) - min(map(len, found)) <= 1
            last = samplers[0]._sharding.steps(n) - 1
            assert sum(len(np.atleast_1d(each)) for each in samplers[0].indices_at(last)) == n - last * (
                world * (5 if samplers is batches else 1)
            )


def test_without_padding_a_rank_that_lacks_the_last_step_waits_for_the_others():
    samplers = [DistributedSampler(range(7), 2, rank, pad=False) for rank in range(2)]
    iterators = [iter(sampler) for sampler in samplers]
    for _ in range(3):
        states = [
            next(iterator) is not None and sampler.state_dict()
            for iterator, sampler in zip(iterators, samplers, strict=True)
        ]
        assert states[0] == states[1]
    assert [len(list(iterator)) for iterator in iterators] == [1, 0]
    assert samplers[0].state_dict() == samplers[1].state_dict()
    assert samplers[0].state_dict()["position"] == 7


# ---- exclude ---------------------------------------------------------------------------------------------------

EXCLUDED = {3, 100, *range(10, 30)}
EXCLUDE = [3, (10, 30), (12, 25), np.int64(100)]


@every_kind
@pytest.mark.parametrize("world", [1, 3])
def test_excluded_records_are_replaced_and_nothing_else_changes(make, world):
    whole = [step for sampler in ranks_of(make, world) for step in sampler]
    samplers = [make(num_replicas=world, rank=rank, exclude=EXCLUDE) for rank in range(world)]
    found = [step for sampler in samplers for step in sampler]
    assert not EXCLUDED & set(records_in(found))
    assert set(range(N)) - set(records_in(found)) == EXCLUDED
    for before, after in zip(whole, found, strict=True):
        if not EXCLUDED & set(np.atleast_1d(before).tolist()):
            assert after == before
    assert {len(sampler) for sampler in samplers} == {len(make(num_replicas=world, rank=0))}
    plain = make(num_replicas=world, rank=0)
    assert samplers[0].state_dict() == plain.state_dict(step=len(plain)), "states know nothing of it"
    plain.load_state_dict(samplers[0].state_dict(step=3))


def test_the_record_half_an_epoch_further_on_is_read_instead():
    whole = list(DistributedSampler(range(100), 1, 0))
    gone = {whole[3], whole[90], whole[40]}
    found = list(DistributedSampler(range(100), 1, 0, exclude=gone))
    assert found[3] == whole[53]
    assert found[90] == whole[41], "round the end, and the next where that one is excluded too"
    assert [each for p, each in enumerate(found) if p not in (3, 40, 90)] == [
        each for p, each in enumerate(whole) if p not in (3, 40, 90)
    ]
    in_order = list(DistributedSampler(range(9), 1, 0, shuffle=False, exclude=[(0, 8)]))
    assert in_order == [8] * 9


def test_a_batch_of_a_budget_keeps_its_size_and_a_pack_gets_smaller():
    whole = list(TokenBudgetBatchSampler(LENGTHS, 40, num_replicas=1, rank=0))
    victim = max(whole, key=len)
    for keep in (1, 0):
        gone = victim[keep:]
        found = list(TokenBudgetBatchSampler(LENGTHS, 40, num_replicas=1, rank=0, exclude=gone))
        at = whole.index(victim)
        if keep:
            assert found[at] == [victim[0]] * len(victim)
        else:
            assert found[at] in (whole[at - 1], whole[at + 1] if at + 1 < len(whole) else None)
    packs = list(PackingBatchSampler(LENGTHS, 40, num_replicas=1, rank=0))
    found = list(PackingBatchSampler(LENGTHS, 40, num_replicas=1, rank=0, exclude=[packs[5][0], *packs[7]]))
    assert found[5] == packs[5][1:]
    assert found[7] in (packs[6], packs[8])


@every_kind
@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (5, r"exclude = 5, expected record numbers and ranges, as in \[17, \(500, 600\)\]"),
        ({"records": [1]}, r"exclude = \{'records': \[1\]\}, expected record numbers and ranges"),
        (np.ones(N, bool), r"exclude = a mask, expected record numbers and ranges"),
        ([1.5], r"exclude\[0\] = 1\.5, expected a number, or \(begin, end\) with 0 <= begin <= end"),
        ([1, True], r"exclude\[1\] = True, expected a number"),
        ([(5, 3)], r"exclude\[0\] = \(5, 3\), expected"),
        ([[1, 2, 3]], r"exclude\[0\] = \[1, 2, 3\], expected"),
        ([(-1, 3)], r"exclude\[0\] = \(-1, 3\), expected"),
        ([0, N], rf"exclude\[1\] = {N}, expected records below {N}, those of the dataset"),
        ([2**70], r"exclude\[0\] = 1180591620717411303424, expected a number"),
    ],
)
def test_exclusions_that_cannot_be_understood(make, exclude, message):
    with pytest.raises(OrderError, match=f"^{message}") as raised:
        make(exclude=exclude)
    check(str(raised.value))


@every_kind
def test_an_epoch_of_which_all_is_excluded_is_an_error(make):
    with pytest.raises(OrderError, match="exclude: expected records that are left in epoch 0, found all excluded"):
        list(make(exclude=[(0, N)]))


def test_nothing_is_excluded_from_an_exact_evaluation():
    for make in (DistributedSampler, lambda ds, **options: DistributedBatchSampler(ds, 4, **options)):
        with pytest.raises(
            OrderError, match=r"exclude: expected None with pad=False, .*; leave records out with a view"
        ):
            make(range(10), exclude=[3], pad=False)
        with pytest.raises(OrderError, match="drop_last = True, expected False with pad=False, which leaves no sample"):
            make(range(10), drop_last=True, pad=False)


# ---- orders ----------------------------------------------------------------------------------------------------


class Backwards:
    """An order of a user's own."""

    def __init__(self, n, described=None):
        self.n = n
        self.described = {"order": "backwards", "n": n} if described is None else described

    def __len__(self):
        return self.n

    def at(self, epoch, positions):
        return (self.n - 1 - positions + epoch) % self.n

    def describe(self):
        return self.described


@pytest.mark.parametrize("world", [1, 3])
def test_an_order_of_ones_own(world):
    samplers = [DistributedSampler(range(100), world, rank, order=Backwards(100), exclude=[7]) for rank in range(world)]
    expected = [*range(99, -1, -1)]
    expected[92] = expected[42]
    assert union(samplers)[:100] == expected
    batches = DistributedBatchSampler(range(100), 8, order=Backwards(100), epoch_size=20)
    assert records_in(batches) == [*range(99, 79, -1)]
    budget = TokenBudgetBatchSampler([3] * 100, 9, planner="window", order=Backwards(100), shuffle=False)
    assert sorted(records_in(budget)) == list(range(100))


def test_an_order_is_of_as_many_records_as_the_dataset():
    fitting = [orders.Sequential(10), orders.Shuffled(10), orders.Chunked(10, 3), orders.Mixture([4, 6], [1, 1])]
    fitting += [orders.Resampled(10, 3), orders.Resampled(10, 300), Backwards(10)]
    for order in fitting:
        assert len(list(DistributedSampler(range(10), order=order))) == len(order)
        if hasattr(order, "records"):
            for other in (9, 11):
                message = f"expected one of {other} records, as the dataset has, found one of 10"
                with pytest.raises(OrderError, match=message):
                    DistributedSampler(range(other), order=order)


def test_a_batch_sampler_over_a_sampler_has_its_order_and_world():
    for inner in (
        DistributedSampler(range(21), 2, 1, seed=3, exclude=[4]),
        ChunkedSampler(range(21), 4, 2, 1, seed=3),
        MixtureSampler([12, 9], [1, 1], 2, 1, seed=3),
    ):
        expected = [inner.indices_at(step)[1] for step in range(len(inner))]
        batches = DistributedBatchSampler(inner, 4)
        assert records_in(batches) == expected
        assert records_in(DistributedBatchSampler(copy.deepcopy(inner), 4, start_step=2)) == expected[8:]
        with pytest.raises(OrderError, match=r"^seed: expected None beside a sampler; give it to the sampler$"):
            DistributedBatchSampler(inner, 4, seed=1)
        with pytest.raises(OrderError, match=r"^exclude: expected None beside a sampler; give it to the sampler$"):
            DistributedBatchSampler(inner, 4, exclude=[1])
    for options, name in (({"drop_last": True}, "drop_last"), ({"pad": False}, "pad")):
        with pytest.raises(
            OrderError, match=rf"^{name} = \w+ in the sampler, expected \w+; give it to the batch sampler"
        ):
            DistributedBatchSampler(DistributedSampler(range(21), 2, 1, **options), 4)
        DistributedBatchSampler(DistributedSampler(range(21), 2, 1, **options), 4, **options)


def test_chunks_and_mixtures_follow_the_sources_of_a_dataset(write):
    for shard, size in enumerate([5, 17, 0, 8]):
        write(list(range(size)), f"d/{shard}.jsonl")
    ds = mmapds.open(os.path.dirname(write([], "d/9.jsonl")), build=True)
    found = list(ChunkedSampler(ds, 4, mix_chunks=1))
    assert sorted(found) == list(range(30))
    chunks = np.split(found, np.flatnonzero(np.abs(np.diff(np.searchsorted([5, 22], found, side="right")))) + 1)
    assert all(len({int(np.searchsorted([5, 22], each, side="right")) for each in chunk}) == 1 for chunk in chunks)
    crossing = list(ChunkedSampler(ds, 4, mix_chunks=1, cross_sources=True))
    assert any({4, 5} <= set(crossing[at : at + 4]) for at in range(0, 28, 4)) or {28, 29} <= set(crossing[:2])
    mixed = MixtureSampler(mmapds.concat([ds]), [1, 1, 0, 1, 0])
    assert set(np.searchsorted(ds.source_starts, list(mixed), side="right")) <= {1, 2, 4}


def test_no_shuffle():
    assert list(ChunkedSampler(range(10), 3, shuffle=False)) == list(range(10))
    assert list(MixtureSampler([2, 2], [1, 1], shuffle=False, epoch_size=4)) in ([0, 2, 1, 3], [2, 0, 3, 1])


@pytest.mark.parametrize("kind", [np.uint8, np.array, torch.tensor])
def test_sizes_of_a_mixture_may_be_of_any_integer_type(kind):
    expected = list(MixtureSampler([200, 100], [1, 1]))
    assert list(MixtureSampler([kind(200), kind(100)], [1, 1])) == expected
    assert list(MixtureSampler([kind(200), 100], [1, 1])) == expected
    assert len(MixtureSampler([np.uint64(2**53 + 1), 4], [1, 1]).sampled) == 2**53 + 5


# ---- bad input -------------------------------------------------------------------------------------------------

BAD = [
    (lambda: DistributedSampler(range(10), 2, 2), r"^rank = 2, expected 0 to 1 \(num_replicas = 2\)$"),
    (lambda: DistributedSampler(range(10), 2, -1), "rank = -1, expected 0 to 1"),
    *((lambda n=n: DistributedSampler(range(10), n, 0), "num_replicas = ") for n in (0, -1, 1.5, "a", True)),
    (
        lambda: DistributedSampler([]),
        r"dataset: expected one sample or more, found 0 .the dataset or the view is empty",
    ),
    (lambda: DistributedSampler(range(10), 2, 0, start_step=-1), "start_step = -1, expected 0 to 5"),
    (lambda: DistributedSampler(range(10), 2, 0, start_step=6), "start_step = 6, expected 0 to 5"),
    (lambda: DistributedSampler(range(10), epoch_size=0), "epoch_size = 0, expected 1 to 10"),
    (lambda: DistributedSampler(range(10), epoch_size=11), "expected 1 to 10$"),
    (lambda: DistributedSampler(range(10), order=[1, 2]), r"order: expected an order with at\(\), .*, found list"),
    (
        lambda: DistributedSampler(range(10), seed=1, order=orders.Shuffled(10)),
        "seed = 1, expected None beside an order, which has its own; give it to the order",
    ),
    (
        lambda: DistributedSampler(range(10), order=Backwards(10, 5)),
        "^order: expected describe.. of Backwards .*, found 5$",
    ),
    (
        lambda: TokenBudgetBatchSampler([1] * 10, 9, planner="window", order=Backwards(10, {"a": np.arange(2)})),
        "^order: expected describe.. of Backwards to return a dict that JSON can hold, found {'a': ",
    ),
    (lambda: TokenBudgetBatchSampler([1, 2], 9, planner="window", order=[0, 1]), "order: expected an order with at"),
    (lambda: ChunkedSampler(range(10), 0), "chunk_size = 0"),
    (lambda: ChunkedSampler(range(10), np.array([1, 2])), r"^chunk_size = array\(\[1, 2\]\), expected an integer"),
    (lambda: MixtureSampler([10, 5], [1]), r"weights = \[1\], expected one number for each of 2 datasets"),
    (lambda: MixtureSampler([10], [-1]), "expected finite numbers of 0 or more"),
    (lambda: MixtureSampler([10], [float("nan")]), "expected finite numbers of 0 or more"),
    (lambda: MixtureSampler([10, 5], None), "^weights = None, expected one number for each of 2 datasets$"),
    (lambda: MixtureSampler({1, 2}, [1]), "expected a list of datasets or sizes, found set"),
    (lambda: MixtureSampler([np.int64(5), 2**64], [1, 1]), r"sizes\[1\] = 18446744073709551616, expected an integer"),
    (lambda: MixtureSampler([None, 3], [1, 1]), r"sizes\[0\] = None, expected an integer of 0 or more"),
    (lambda: DistributedBatchSampler(range(10), 0), "batch_size = 0, expected an integer of 1 or more"),
    (lambda: DistributedBatchSampler(range(10), 2.0), "batch_size = 2.0"),
    (
        lambda: DistributedBatchSampler(range(10), 2, sampler=range(10)),
        "sampler: expected None, found range; make Light",
    ),
    (
        lambda: DistributedBatchSampler(torch.utils.data.SequentialSampler(range(10)), 2),
        "sampler: expected None, found SequentialSampler; make Lightning's Trainer with use_distributed_sampler=False",
    ),
    *(
        (lambda path=path: DistributedSampler(path), "^dataset = b?'c.jsonl', expected a dataset; open it first")
        for path in ("c.jsonl", b"c.jsonl", Path("c.jsonl"))
    ),
    (lambda: MixtureSampler([[0], "c.jsonl"], [1, 1]), r"^datasets\[1\] = 'c.jsonl', expected a dataset"),
    (lambda: TokenBudgetBatchSampler("c.jsonl", 4), "^dataset_or_lengths = 'c.jsonl', expected a dataset"),
    (lambda: DistributedSampler(range(10)).set_epoch("1"), "^epoch = '1', expected an integer"),
    (lambda: DistributedSampler(range(10)).indices_at(1.5), "^step = 1.5, expected an integer"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_arguments(make, message):
    with pytest.raises(OrderError, match=message) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    check(str(caught.value))


@every_kind
def test_integers_of_numpy_are_taken_everywhere(make):
    two, one = np.int64(2), np.int64(1)
    plain = make(num_replicas=2, rank=1, seed=7, start_step=2)
    sampler = make(num_replicas=two, rank=one, seed=np.int64(7), start_step=two)
    sampler.set_epoch(np.int64(3))
    plain.set_epoch(3)
    assert sampler.state_dict(step=np.int64(4)) == plain.state_dict(step=4)
    assert list(sampler) == list(plain) == epoch_of(make, 3, num_replicas=2, rank=1, seed=7)[2:]


def test_kinds_are_all_there():
    assert len(KINDS) == 8
