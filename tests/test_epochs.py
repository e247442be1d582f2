"""Epochs: where one ends and the next begins, what warns of a forgotten one, and evaluation without padding."""

import json
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch.distributed
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import (
    ChunkedSampler,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    OrderError,
    TokenBudgetBatchSampler,
    orders,
)
from tests.support.samplers import flat

LENGTHS = np.arange(200) % 13 + 1
KINDS = {
    "index": lambda **options: DistributedSampler(range(200), **options),
    "chunked": lambda **options: ChunkedSampler(range(200), 7, **options),
    "mixture": lambda **options: MixtureSampler([120, 80], [3, 2], epoch_size=200, **options),
    "batch": lambda **options: DistributedBatchSampler(range(200), 6, **options),
    "bucket": lambda **options: TokenBudgetBatchSampler(LENGTHS, 40, **options),
    "window": lambda **options: TokenBudgetBatchSampler(LENGTHS, 40, planner="window", **options),
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


def whole(make, epoch, **options):
    sampler = make(**options)
    sampler.set_epoch(epoch)
    return list(sampler)


# ---- the end of an epoch -------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("when", ["in the loop", "after it", "by its step", "by start_step"])
def test_a_state_of_the_end_of_an_epoch_goes_on_with_the_next(make, when, drop_last):
    options = {"num_replicas": 3, "rank": 1, "drop_last": drop_last}
    sampler = make(**options)
    sampler.set_epoch(4)
    if when == "by start_step":
        sampler = make(start_step=len(sampler), **options)
        sampler.set_epoch(4)
    elif when == "in the loop":
        for _ in sampler:
            state = sampler.state_dict()
    else:
        list(sampler)
    if when != "in the loop":
        state = sampler.state_dict(step=len(sampler) if when == "by its step" else None)
    state = json.loads(json.dumps(state))
    resumed = make(**options)
    resumed.load_state_dict(state)
    assert (resumed.epoch, resumed.first_step) == (5, 0)
    assert list(resumed) == whole(make, 5, **options), "without set_epoch"
    for loop in (range(resumed.epoch, 7), range(4, 7)):
        resumed = make(**options)
        resumed.load_state_dict(state)
        read = []
        for epoch in loop:
            resumed.set_epoch(epoch)
            read += resumed
        assert read == whole(make, 5, **options) + whole(make, 6, **options), "the finished epoch has nothing left"


@every_kind
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("eager", [False, True])
def test_a_stateful_loader_goes_on_with_the_next_epoch(make, workers, eager):
    def loader(sampler):
        batched = isinstance(sampler, BatchSampler)
        options = {"batch_sampler": sampler} if batched else {"sampler": sampler, "batch_size": 6}
        return StatefulDataLoader(range(200), num_workers=workers, **options)

    sampler = make()
    first = loader(sampler)
    assert sum(map(len, first)) == 200
    state = first.state_dict()
    sampler = make()
    resumed = loader(sampler)
    resumed.load_state_dict(state)
    if eager:
        iter(resumed)
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        read = flat(batch.tolist() for batch in resumed)
        batches = whole(make, epoch)
        assert read == (flat(batches) if isinstance(batches[0], list) else batches)


@pytest.mark.parametrize("n", [2, 20, 24, 30])
def test_a_stateful_loader_whose_workers_read_all_ahead_goes_on(n):
    def loader():
        sampler = DistributedBatchSampler(range(n), 6)
        return sampler, StatefulDataLoader(range(n), batch_sampler=sampler, num_workers=2)

    first = loader()[1]
    assert sum(map(len, first)) == n
    sampler, resumed = loader()
    resumed.load_state_dict(first.state_dict())
    for epoch in (1, 2):
        sampler.set_epoch(epoch)
        assert [batch.tolist() for batch in resumed] == whole(lambda: DistributedBatchSampler(range(n), 6), epoch)


@every_kind
def test_a_finished_epoch_may_be_chosen_again_after_another(make):
    sampler = make()
    sampler.load_state_dict(make().state_dict(step=len(sampler)))
    for epoch in (1, 0, 0):
        sampler.set_epoch(epoch)
        assert list(sampler) == whole(make, epoch)


# ---- a forgotten set_epoch -----------------------------------------------------------------------------------


@every_kind
def test_a_second_shuffled_pass_without_set_epoch_warns_once(make):
    sampler = make()
    list(islice(iter(sampler), 3))
    list(sampler)
    with pytest.warns(
        UserWarning, match="epoch = 0, expected a new one in a second pass; set it with set_epoch"
    ) as caught:
        list(sampler)
    assert caught[0].filename == __file__
    list(sampler)
    assert len(caught) == 1


@every_kind
def test_passes_that_do_not_warn(make):
    sampler = make()
    for epoch in (0, 1, 1, 2):
        sampler.set_epoch(epoch)
        list(sampler)
    sampler.load_state_dict(sampler.state_dict(step=3))
    list(sampler)
    peeked = make()
    next(iter(peeked))
    list(peeked)
    in_order = make(shuffle=False)
    list(in_order)
    list(in_order)


def test_setting_the_epoch_by_the_sampler_of_a_batch_sampler_does_not_warn():
    for make in (KINDS["batch"], KINDS["bucket"]):
        sampler = make()
        for epoch in (0, 1, 1):
            sampler.sampler.set_epoch(epoch)
            list(sampler)


def test_orders_that_never_change_do_not_warn():
    sampler = DistributedSampler(range(10), order=orders.Sequential(10))
    assert list(sampler) == list(sampler)


def test_a_resumed_pass_in_order_warns_as_its_steps_count_on():
    sampler = DistributedBatchSampler(range(100), 5, shuffle=False, start_step=10)
    list(sampler)
    with pytest.warns(UserWarning, match="in a second pass"):
        list(sampler)


# ---- which world ---------------------------------------------------------------------------------------------


@every_kind
def test_one_process_under_slurm_warns(make, monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "2")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    make()
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.warns(
        UserWarning, match="num_replicas = 1, expected 4, the tasks of this SLURM job; pass num_replicas="
    ) as caught:
        make()
    assert len(caught) == 1
    make(num_replicas=1, rank=0)
    make(num_replicas=4, rank=2)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "2")
    make()


@every_kind
def test_one_process_in_a_group_that_is_initialised_later_warns(make, monkeypatch):
    sampler, told, empty = make(), make(num_replicas=1, rank=0), make()
    next(iter(empty))
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 8)
    with pytest.warns(
        UserWarning, match="num_replicas = 1, expected 8, the processes of torch.distributed; pass"
    ) as caught:
        next(iter(sampler))
    assert len(caught) == 1
    next(iter(sampler))
    next(iter(told))


# ---- evaluation: every sample once -----------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_without_padding_every_sample_comes_once_over_all_ranks(world, shuffle):
    for n in (1, 2, 7, 8, 24, 100, 101, 103):
        samplers = [DistributedSampler(range(n), world, rank, shuffle, pad=False) for rank in range(world)]
        order = list(DistributedSampler(range(n), 1, 0, shuffle))
        for rank, sampler in enumerate(samplers):
            assert list(sampler) == order[rank::world]
            assert len(sampler) == sampler.num_samples == len(order[rank::world])
            assert sampler.total_size == n
        steps = -(-n // world)
        assert [samplers[0].indices_at(step).tolist() for step in range(steps)] == [
            order[i : i + world] for i in range(0, n, world)
        ]
        for size in (1, 3, 8):
            batches = [
                DistributedBatchSampler(range(n), size, world, rank, shuffle, pad=False) for rank in range(world)
            ]
            found = [list(sampler) for sampler in batches]
            for rank, sampler in enumerate(batches):
                mine = order[rank::world]
                assert found[rank] == [mine[i : i + size] for i in range(0, len(mine), size)]
                assert len(sampler) == -(-len(mine) // size)
            rows = [[each.tolist() for each in batches[0].indices_at(step)] for step in range(len(batches[0]))]
            assert [[row[rank] for row in rows if row[rank]] for rank in range(world)] == found


def test_an_evaluation_resumes():
    for make in (
        lambda rank: DistributedSampler(range(101), 3, rank, pad=False),
        lambda rank: DistributedBatchSampler(range(101), 4, 3, rank, pad=False),
    ):
        states = [make(rank).state_dict(step=5) for rank in range(3)]
        assert states[0] == states[1] == states[2]
        for rank in range(3):
            resumed = make(rank)
            resumed.load_state_dict(states[0])
            assert list(resumed) == list(make(rank))[5:]


def test_an_evaluation_ends_on_all_ranks_though_some_lack_the_last_step():
    for make in (
        lambda rank: DistributedSampler(range(10), 3, rank, pad=False),
        lambda rank: DistributedBatchSampler(range(9), 4, 2, rank, pad=False),
    ):
        samplers = [make(rank) for rank in range(2)]
        first = [list(sampler) for sampler in samplers]
        states = [sampler.state_dict() for sampler in samplers]
        assert len(first[0]) == len(first[1]) + 1
        assert states[0] == states[1]
        assert states[0]["position"] == states[0]["epoch_size"]
        for rank, sampler in enumerate(samplers):
            resumed = make(rank)
            resumed.load_state_dict(states[1])
            sampler.set_epoch(1)
            assert list(resumed) == list(sampler)
            assert resumed.epoch == 1


@pytest.mark.parametrize("make", [DistributedSampler, partial(DistributedBatchSampler, batch_size=1)])
def test_without_padding_all_ranks_take_the_same_start_step(make):
    """5 samples on 3 ranks: the last one has none in the second step."""
    for step, left in enumerate([[2, 2, 1], [1, 1, 0], [0, 0, 0]]):
        ranks = [make(range(5), num_replicas=3, rank=rank, pad=False, start_step=step) for rank in range(3)]
        assert [rank.current_pass.own_steps for rank in ranks] == left
        assert len({json.dumps(rank.state_dict()) for rank in ranks}) == 1
        assert [len(list(rank)) for rank in ranks] == left
    for rank in range(3):
        with pytest.raises(OrderError, match="start_step = 3, expected 0 to 2, the steps of an epoch"):
            make(range(5), num_replicas=3, rank=rank, pad=False, start_step=3)


def test_padding_cannot_be_refused_together_with_drop_last():
    for make in (DistributedSampler, lambda ds, **options: DistributedBatchSampler(ds, 2, **options)):
        with pytest.raises(OrderError, match="drop_last = True, expected False with pad=False"):
            make(range(10), drop_last=True, pad=False)


def test_a_view_of_each_rank_reads_every_sample_once(write):
    path = write(list(range(103)))
    ds = mmapds.open(path, build=True)
    read = [flat(batch.tolist() for batch in DataLoader(ds[rank::4], batch_size=8)) for rank in range(4)]
    assert sorted(flat(read)) == list(range(103))


# ---- what a sampler says of itself -----------------------------------------------------------------------------


def test_reprs():
    sampler = DistributedBatchSampler(range(2003), 32, 2, 1, seed=7)
    sampler.set_epoch(3)
    list(islice(iter(sampler), 10))
    assert repr(sampler) == (
        "<DistributedBatchSampler: 2,003 samples, batch size 32, seed 7, rank 1 of 2, epoch 3, position 640 of 2,003, "
        "32 steps>"
    )
    assert repr(DistributedSampler(range(10), 2, 0)) == (
        "<DistributedSampler: 10 samples, seed 0, rank 0 of 2, epoch 0, position 0 of 10, 5 steps>"
    )
    tokens = TokenBudgetBatchSampler([3] * 100, 30, num_replicas=2, rank=1)
    assert repr(tokens) == (
        "<TokenBudgetBatchSampler: 100 samples, max_tokens 30, planner 'bucket', seed 0, rank 1 of 2, epoch 0, "
        "position 0 of 10, 5 steps>"
    )
    for make in KINDS.values():
        assert "200 samples" in repr(make())


def test_the_state_of_a_batch_sampler_has_its_batch_size_and_converts():
    sampler = DistributedBatchSampler(range(100), 10)
    state = sampler.state_dict(step=3)
    assert state["batch_size"] == 10
    smaller = DistributedBatchSampler(range(100), 5)
    smaller.load_state_dict(state)
    assert smaller.first_step == 6
    assert smaller.state_dict() == {**state, "batch_size": 5}


# ---- what trainers hand in -------------------------------------------------------------------------------------


def test_a_sampler_that_a_trainer_injects_is_refused_in_our_words():
    injected = RandomSampler(range(10))
    for make in (KINDS["batch"], KINDS["bucket"]):
        make(sampler=None)
        with pytest.raises(
            OrderError, match=r"sampler: expected None, found RandomSampler; .*use_distributed_sampler=False"
        ):
            make(sampler=injected)
    with pytest.raises(OrderError, match="sampler: expected None, found RandomSampler"):  # as Lightning calls it
        DistributedBatchSampler(injected, batch_size=4, drop_last=False)


@every_kind
def test_integers_of_numpy_at_every_turn(make):
    i = np.int64
    options = {"num_replicas": i(2), "rank": i(1), "seed": i(5), "start_step": i(3)}
    sampler, plain = make(**options), make(num_replicas=2, rank=1, seed=5, start_step=3)
    for each in (sampler, plain):
        each.set_epoch(i(2) if each is sampler else 2)
    assert list(sampler) == list(plain)
    state = sampler.state_dict(step=i(7))
    assert json.loads(json.dumps(state)) == plain.state_dict(step=7)
    state = {**state, "epoch": i(2), "position": i(state["position"]), "epoch_size": i(state["epoch_size"])}
    sampler.load_state_dict(state)
    assert json.dumps(sampler.state_dict()) == json.dumps(plain.state_dict(step=7))
    assert np.array_equal(sampler.indices_at(i(8)), plain.indices_at(8)) or not isinstance(plain, DistributedSampler)
    assert type(sampler.epoch) is int
    excluded = make(**options, exclude={"steps": [(i(4), i(6))], "records": [i(1), (i(5), i(9))]})
    assert list(excluded) == list(
        make(num_replicas=2, rank=1, seed=5, start_step=3, exclude={"steps": [(4, 6)], "records": [1, (5, 9)]})
    )
    json.dumps(excluded.state_dict())
