"""What every sampler promises, alone and under loaders: each sample once an epoch, in equal steps, from any stop."""

import copy
import json
import math
import os
from collections import Counter
from itertools import islice, product

import numpy as np
import pytest
import torch.distributed
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler
from torch.utils.data.distributed import DistributedSampler as TorchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

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
from tests.support import vectors
from tests.support.messages import check
from tests.support.sampler_kinds import KINDS, LENGTHS, N, every_kind, ranks_of, records_in, union

EPOCHS = 3


def check_epoch(read, world):
    """Hold that an epoch has every sample, and no more of them twice than fill up its last step."""
    found = Counter(read)
    assert set(found) == set(range(N))
    assert found.total() - N < world


def at_all_steps(sampler):
    """The steps of all ranks, as one of them says."""
    return [tuple(each.tolist() for each in sampler.indices_at(step)) for step in range(len(sampler))]


# ---- alone -----------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_comes_once_an_epoch_in_equal_steps_and_in_a_new_order(make, world):
    samplers, before = ranks_of(make, world), None
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(np.int64(epoch))
        steps = list(zip(*samplers, strict=True))
        assert {len(sampler) for sampler in samplers} == {len(steps)}
        check_epoch([record for step in steps for record in records_in(step)], world)
        assert at_all_steps(samplers[0]) == steps != before
        before = steps
    for outside in (len(steps), -1):
        with pytest.raises(IndexError, match=f"step {outside} is out of range for the {len(steps)} steps of an epoch"):
            samplers[0].indices_at(outside)


@every_kind
@given(parts=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.floats(0, 0.4)), min_size=3, max_size=3))
def test_a_job_stopped_twice_goes_on_in_any_world_with_any_batch_size(make, parts):
    state, read = None, []
    for number, (world, size, share) in enumerate(parts, 1):
        samplers = ranks_of(make, world, size)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        first = samplers[0].first_step
        left = at_all_steps(samplers[0])[first:]
        steps = list(zip(*samplers, strict=True))
        assert steps == left
        stop = int(share * len(steps)) if number < len(parts) else len(steps)
        read += records_in(each for step in steps[:stop] for each in step)
        states = [sampler.state_dict(step=first + stop) for sampler in samplers]
        assert all(each == states[0] for each in states)
        state = states[0]
    check_epoch(read, 5)
    ended = make(num_replicas=2, rank=0)
    ended.load_state_dict(state)
    assert (ended.epoch, ended.first_step) == (1, 0)


def test_samplers_plans_and_orders_are_as_they_were_frozen():
    found, frozen = vectors.compute(), json.loads(vectors.PATH.read_text())
    assert list(found) == list(frozen)
    assert [name for name in found if found[name] != frozen[name]] == []


# ---- under loaders ---------------------------------------------------------------------------------------------


class Loop:
    """A training loop over a loader, as the documents show it for that loader."""

    def __init__(self, sampler, load, size, saved):
        self._sampler, self.saved = sampler, None
        self._in_batches = isinstance(sampler, BatchSampler)
        self.loader = load(batch_sampler=sampler) if self._in_batches else load(sampler=sampler, batch_size=size)
        self._is_plain = type(self.loader) is torch.utils.data.DataLoader
        state, self._first = saved or (None, 0)
        if state:
            (sampler if self._is_plain else self.loader).load_state_dict(state)

    def run(self, stop):
        """Yield epoch and records of each batch; after `stop` of them, or "after" an epoch, keep a checkpoint."""
        for epoch in range(self._first, EPOCHS):
            self._sampler.set_epoch(epoch)
            step, place = self._sampler.first_step, 0
            for place, batch in enumerate(self.loader, 1):
                step += 1 if self._in_batches else len(batch)
                yield epoch, batch
                if place == stop:
                    break
            if stop in (place, "after"):
                state = self._sampler.state_dict(step=step) if self._is_plain else self.loader.state_dict()
                self.saved = state, epoch
                return


def over(cls, **options):
    return lambda **sampling: cls(range(N), collate_fn=list, **options, **sampling)


LOADERS = {
    "torch": over(torch.utils.data.DataLoader),
    "torch, 2 workers": over(torch.utils.data.DataLoader, num_workers=2),
    "threads": over(mmapds.DataLoader, num_workers=2),
    "processes": over(mmapds.DataLoader, num_workers=2, workers="processes"),
    "torchdata": over(StatefulDataLoader),
    "torchdata, 2 workers": over(StatefulDataLoader, num_workers=2, persistent_workers=True),
}


@pytest.mark.parametrize("load", LOADERS)
@pytest.mark.parametrize(("kind", "first"), [("index", 7), ("batch", "end"), ("window", "after"), ("packs", 1)])
def test_a_loop_stopped_twice_reads_every_sample_once_an_epoch(kind, load, first):
    saved, read = None, []
    for world, size, stop in ((1, 4, first), (2, 3, 5), (1, 5, 0)):
        loops = [Loop(sampler, LOADERS[load], size, saved) for sampler in ranks_of(KINDS[kind], world, size)]
        stop = len(loops[0].loader) if stop == "end" else stop
        steps = list(zip(*(loop.run(stop) for loop in loops), strict=True))
        read += [each for step in steps for each in step]
        saved = loops[0].saved
    for epoch in range(EPOCHS):
        check_epoch([record for e, batch in read for record in batch if e == epoch], 2)


def test_a_loop_after_a_broken_one_of_torchs_workers_is_warned():
    sampler = DistributedBatchSampler(range(64), 4)
    loader = torch.utils.data.DataLoader(range(64), batch_sampler=sampler, num_workers=2, collate_fn=list)
    next(iter(loader))
    with pytest.warns(match=r"epoch = 0, expected set_epoch\(\), .* found a broken loop of torch's workers"):
        next(iter(loader))
    sampler.load_state_dict(sampler.state_dict(step=2))
    whole = [list(loader), list(loader)]
    sampler.set_epoch(0)
    assert (len(whole[0]), len(whole[1])) == (14, 16)
    assert list(loader)[2:] == whole[0]
    next(iter(loader))
    sampler.set_epoch(1)
    assert list(loader) == whole[1]


@pytest.mark.parametrize("options", [{}, {"drop_last": True}])
@every_kind
def test_a_summary_counts_what_all_ranks_get(make, options):
    samplers = [make(num_replicas=3, rank=rank, **options) for rank in range(3)]
    steps = list(zip(*samplers, strict=True))
    batches = [np.atleast_1d(batch) for step in steps for batch in step]
    samplers[0].set_epoch(0)
    found, sizes = samplers[0].summary(), [len(batch) for batch in batches]
    assert (found.samples + found.repeated, found.steps, found.batches) == (sum(sizes), len(steps), len(sizes))
    assert (found.largest, found.dropped) == (max(sizes), (N - found.samples) if options else 0)
    tokens = "" if found.tokens is None else f" of {found.tokens:,} tokens"
    assert f"{found.samples} samples{tokens} in {len(sizes)} batches, {len(steps)} steps\n" in str(found)
    if found.tokens is not None:
        assert found.tokens == sum(samplers[0].total_at(step) for step in range(len(steps)))


def test_a_summary_of_fixed_batches_shows_what_a_budget_would_save(write):
    path = write([{"n": [0] * (1 + i * 7 % 50)} for i in range(400)])
    mmapds.build(path, length="items(n)")
    ds = mmapds.open(path)
    sampler = DistributedBatchSampler(ds, 8, 2, 0)
    of_ranks = [[ds.lengths[batch] for batch in sampler.indices_at(step)] for step in range(len(sampler))]
    padded = np.array([[8 * max(batch) for batch in step] for step in of_ranks])
    summary = sampler.summary()
    assert summary.padding == pytest.approx(1 - ds.lengths.sum() / padded.sum())
    assert summary.imbalance == pytest.approx(np.mean(padded.max(1) / padded.mean(1)))
    assert summary.padding > 5 * TokenBudgetBatchSampler(ds, 400).summary().padding
    assert DistributedSampler(ds).summary().padding is DistributedBatchSampler(range(9), 2).summary().padding is None


# ---- torch's own rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world", [1, 2, 3, 8, 40])
def test_counts_padding_order_and_batches_are_torchs(drop_last, world):
    for n in range(1, 42):
        for rank in range(world):
            ours = DistributedSampler(range(n), world, rank, False, 0, drop_last)
            theirs = TorchSampler(range(n), world, rank, False, 0, drop_last)
            assert list(ours) == list(theirs)
            for each in (ours, DistributedSampler(range(n), world, rank, True, 1, drop_last)):
                counts = len(each), each.num_samples, each.total_size
                assert counts == (len(theirs), theirs.num_samples, theirs.total_size)
            for size in (1, 3, 7, 40) if rank < 2 else ():
                batches = DistributedBatchSampler(range(n), size, world, rank, seed=1, drop_last=drop_last)
                theirs = list(BatchSampler(DistributedSampler(range(n), world, rank, seed=1), size, False))
                theirs = theirs[: n // (world * size)] if drop_last else theirs
                assert (list(batches), len(batches)) == (theirs, len(theirs))
        if not drop_last:
            everyone = union([DistributedSampler(range(n), world, rank, True, 1) for rank in range(world)])
            first = list(DistributedSampler(range(n), 1, 0, True, 1))
            assert everyone == (first * math.ceil(len(everyone) / n))[: len(everyone)], "filled up from its start"


def test_public_attributes_and_classes():
    sampler, batches = DistributedSampler(range(10), 2, 1, seed=5), DistributedBatchSampler(range(10), 4)
    assert (isinstance(sampler, TorchSampler), isinstance(batches, BatchSampler)) == (True, True)
    found = (sampler.num_replicas, sampler.rank, sampler.epoch, sampler.seed, sampler.shuffle, sampler.drop_last)
    assert (*found, sampler.dataset, batches.batch_size) == (2, 1, 0, 5, True, False, range(10), 4)
    assert not hasattr(KINDS["bucket"](), "batch_size"), "trainers ask for it, and say what to do where there is none"


def test_epochs_and_batches_of_any_size_cost_nothing():
    n = 2**62
    for exclude in (None, [(3, 10**9), n - 1]):
        assert 0 <= next(iter(DistributedSampler(range(n), 2, 1, exclude=exclude))) < n
    assert next(iter(DistributedBatchSampler(range(20), n, 4, 1)))


def test_without_padding_every_sample_comes_once_over_all_ranks():
    for world, n, (kind, size) in product((1, 2, 3, 7), (1, 2, 20, 21, 41), (("index", 1), ("batch", 4))):
        samplers = [KINDS[kind](n, num_replicas=world, rank=rank, pad=False) for rank in range(world)]
        last = [np.atleast_1d(each) for each in samplers[0].indices_at(-(-n // (world * size)) - 1)]
        found = [list(sampler) for sampler in samplers]
        assert sorted(record for steps in found for record in records_in(steps)) == list(range(n))
        assert [len(steps) for steps in found] == [len(sampler) for sampler in samplers]
        assert max(map(len, found)) - min(map(len, found)) <= 1
        assert sum(map(len, last)) == (n - 1) % (world * size) + 1


def test_without_padding_a_rank_that_lacks_the_last_step_waits_for_the_others():
    samplers = [DistributedSampler(range(7), 2, rank, pad=False) for rank in range(2)]
    iterators = [iter(sampler) for sampler in samplers]
    for steps, expected in ((3, [3, 3]), (9, [1, 0])):
        assert [len(list(islice(iterator, steps))) for iterator in iterators] == expected
        assert samplers[0].state_dict() == samplers[1].state_dict()
    assert samplers[0].state_dict()["position"] == 7


# ---- the world -------------------------------------------------------------------------------------------------


def test_the_world_comes_from_the_environment(monkeypatch):
    def world(**given):
        sampler = DistributedSampler(range(9), **given)
        return sampler.num_replicas, sampler.rank

    assert world() == (1, 0)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    assert (world(), world(rank=0), world(num_replicas=5)) == ((4, 3), (4, 0), (5, 3)), "0 is a rank, not an omission"
    monkeypatch.delenv("RANK")
    with pytest.raises(OrderError, match=r"rank = None, expected 0 to 1 .*; pass rank=, set RANK, or initialise"):
        world(num_replicas=2)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(OrderError, match="num_replicas = 'two', expected an integer"):
        world()


def test_the_world_comes_from_torch_distributed_before_the_environment(monkeypatch, tmp_path):
    kinds = ("index", "batch", "bucket")
    before = [KINDS[kind]() for kind in kinds]
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "3")
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert all("rank 0 of 1" in repr(KINDS[kind]()) for kind in kinds)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
        for sampler in before:
            with pytest.warns(UserWarning, match="num_replicas = 1, expected 2, the processes of torch.distributed"):
                next(iter(sampler))
    finally:
        torch.distributed.destroy_process_group()


def test_one_process_under_slurm_warns(monkeypatch):
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    DistributedSampler(range(9), 4, 1)
    with pytest.warns(UserWarning, match="num_replicas = 1, expected 4, the tasks of this SLURM job; pass"):
        DistributedSampler(range(9))


# ---- exclude ---------------------------------------------------------------------------------------------------

EXCLUDED = {3, 100, *range(10, 30)}
EXCLUDE = [3, (10, 30), (12, 25), np.int64(100)]


@every_kind
def test_excluded_records_are_replaced_and_nothing_else_changes(make):
    for world in (1, 3):
        plain = ranks_of(make, world)
        samplers = [make(num_replicas=np.int64(world), rank=np.int8(r), exclude=EXCLUDE) for r in range(world)]
        whole, found = union(plain), union(samplers)
        assert [each for step in at_all_steps(samplers[0]) for each in step] == found
        assert set(range(N)) - set(records_in(found)) == EXCLUDED
        for before, after in zip(whole, found, strict=True):
            if not EXCLUDED & set(np.atleast_1d(before).tolist()):
                assert after == before
        assert samplers[0].state_dict() == plain[0].state_dict(), "states know nothing of it"
    with pytest.raises(OrderError, match="exclude: expected records to read in epoch 0, found all excluded"):
        list(make(exclude=[(0, N)]))


def test_the_record_half_an_epoch_further_on_is_read_instead():
    whole = list(DistributedSampler(range(100), 1, 0))
    found = list(DistributedSampler(range(100), 1, 0, exclude={whole[3], whole[90], whole[40]}))
    assert found[3] == whole[53]
    assert found[90] == whole[41], "round the end, and the next where that one is excluded too"
    in_order = list(DistributedSampler(range(9), 1, 0, shuffle=False, exclude=[(0, 8)]))
    assert in_order == [8] * 9


def test_a_batch_of_a_budget_keeps_its_size_and_a_pack_gets_smaller():
    whole = list(TokenBudgetBatchSampler(LENGTHS, 40, num_replicas=1, rank=0))
    victim = max(whole, key=len)
    at = whole.index(victim)
    for keep in (1, 0):
        found = list(TokenBudgetBatchSampler(LENGTHS, 40, num_replicas=1, rank=0, exclude=victim[keep:]))
        assert found[at] == [victim[0]] * len(victim) if keep else found[at] in (whole[at - 1], whole[at + 1])
    packs = list(PackingBatchSampler(LENGTHS, 40, num_replicas=1, rank=0))
    found = list(PackingBatchSampler(LENGTHS, 40, num_replicas=1, rank=0, exclude=[packs[5][0], *packs[7]]))
    assert found[5] == packs[5][1:]
    assert found[7] in (packs[6], packs[8])


# ---- orders ----------------------------------------------------------------------------------------------------


class Sources:
    """The length and the sources of a dataset."""

    source_starts = None

    def __init__(self, starts):
        self.source_starts = starts

    def __len__(self):
        return int(self.source_starts[-1])


class Own:
    """An order of a user's own: the records backwards, or what a function makes of positions."""

    def __init__(self, n, at=None, described=None):
        self.n, self._at, self.described = n, at, {"order": "own", "n": n} if described is None else described

    def __len__(self):
        return self.n

    def at(self, epoch, positions):
        return self._at(positions) if self._at else (self.n - 1 - positions + epoch) % self.n

    def describe(self):
        return self.described


def test_an_order_of_ones_own():
    for world in (1, 3):
        samplers = [DistributedSampler(range(100), world, rank, order=Own(100), exclude=[7]) for rank in range(world)]
        assert union(samplers)[:100] == [*range(99, 7, -1), 57, *range(6, -1, -1)]
    batches = DistributedBatchSampler(range(100), 8, order=Own(100), epoch_size=20)
    assert records_in(batches) == [*range(99, 79, -1)]
    budget = TokenBudgetBatchSampler([3] * 100, 9, planner="window", order=Own(100), shuffle=False)
    assert sorted(records_in(budget)) == list(range(100))
    order = Own(6, lambda positions: positions[::-1].astype(np.uint64))
    assert list(DistributedBatchSampler(range(6), 3, 1, 0, order=order)) == [[5, 4, 3], [2, 1, 0]]


def test_a_batch_sampler_over_a_sampler_has_its_order_and_world():
    for inner in (
        DistributedSampler(range(21), 2, 1, seed=3, exclude=[4]),
        ChunkedSampler(range(21), 4, 2, 1, seed=3),
        MixtureSampler([12, 9], [1, 1], 2, 1, seed=3),
    ):
        expected = [inner.indices_at(step)[1] for step in range(len(inner))]
        assert records_in(DistributedBatchSampler(copy.deepcopy(inner), 4, start_step=2)) == expected[8:]
        assert records_in(DistributedBatchSampler(inner, 4)) == expected
    for options in ({"drop_last": True}, {"pad": False}):
        DistributedBatchSampler(DistributedSampler(range(21), 2, 1, **options), 4, **options)


@pytest.mark.parametrize("size", [None, 5])
@pytest.mark.parametrize(("nodes", "later"), [(4, 4), (4, 2), (3, 6), (8, 1)])
def test_nodes_with_lanes_read_sources_of_their_own_even_after_a_resume(nodes, later, size):
    starts = np.cumsum([0, *[40, 41] * 24])
    read, state = [], None
    for now in (nodes, later):  # nodes of two ranks
        order = {"drop_last": True, "mix_chunks": 2, "lanes": now}
        samplers = [ChunkedSampler(Sources(starts), 64, 2 * now, rank, **order) for rank in range(2 * now)]
        samplers = [DistributedBatchSampler(each, size, drop_last=True) if size else each for each in samplers]
        for sampler in samplers if state else ():
            sampler.load_state_dict(state)
            assert sampler.state_dict() == state, "the lanes are those of the state"
        left = len(samplers[0]) - samplers[0].first_step
        steps = [list(sampler) for sampler in samplers]
        assert {len(each) for each in steps} == {left}
        records = [records_in(steps[2 * node] + steps[2 * node + 1]) for node in range(now)]
        sources = sum(len(np.unique(np.searchsorted(starts, each, side="right"))) for each in records)
        assert sources <= max(now // nodes, 1) * (48 + 2 * (nodes - 1)), "an edge is in one mix, of two sources"
        middle = len(samplers[0]) if state else len(samplers[0]) // 2
        read += records_in(step for each in steps for step in each[:middle])
        state = samplers[0].state_dict(step=middle)
    assert len(read) == len(set(read)) > starts[-1] - 2 * later * (size or 1)


def test_chunks_and_mixtures_follow_the_sources_of_a_dataset(write):
    for shard, size in enumerate([5, 17, 0, 8]):
        write(list(range(size)), f"d/{shard}.jsonl")
    ds = mmapds.open(os.path.dirname(write([], "d/9.jsonl")), build=True)

    for options, records in (({}, ds), ({"cross_sources": True}, 30)):
        expected = list(DistributedSampler(ds, order=orders.Chunked(records, 4, mix_chunks=1)))
        assert list(ChunkedSampler(ds, 4, mix_chunks=1, **options)) == expected
    assert orders.Chunked(ds, 4).chunk_starts.tolist() == [0, 4, 5, 9, 13, 17, 21, 22, 26, 30]
    mixed = MixtureSampler(mmapds.concat([ds]), [1, 1, 0, 1, 0])
    assert set(np.searchsorted(ds.source_starts, list(mixed), side="right")) <= {1, 2, 4}
    assert list(ChunkedSampler(range(10), 3, shuffle=False)) == list(range(10))
    assert list(MixtureSampler([2, 2], [1, 1], shuffle=False, epoch_size=4)) in ([0, 2, 1, 3], [2, 0, 3, 1])
    for size in (np.uint8(200), np.array(200), torch.tensor(200), range(200)):
        assert list(MixtureSampler([size, 100], [1, 1])) == list(MixtureSampler([200, 100], [1, 1]))


# ---- bad input -------------------------------------------------------------------------------------------------


def window(order):
    return TokenBudgetBatchSampler([1] * 10, 9, planner="window", order=order)


def own(at):
    return DistributedBatchSampler(range(6), 6, order=Own(6, at))


def over_sampler(inner=(), **options):
    return DistributedBatchSampler(DistributedSampler(range(21), 2, 1, **dict(inner)), 4, **options)


ANSWER = r"order: expected at\(\) of Own to return an int64 array of shape \(6,\), found "
BAD = [
    (lambda: KINDS["index"](exclude=5), r"exclude = 5, expected record numbers and ranges, as in \[17, \(500, 600\)\]"),
    (
        lambda: KINDS["index"](exclude={"records": [1]}),
        r"exclude = \{'records': \[1\]\}, expected record numbers and r",
    ),
    (lambda: KINDS["bucket"](exclude=np.ones(N, bool)), r"exclude = a mask, expected record numbers and ranges"),
    (
        lambda: KINDS["index"](exclude=[1, True]),
        r"exclude\[1\] = True, expected a number, or \(begin, end\) with 0 <= ",
    ),
    (lambda: KINDS["index"](exclude=[(5, 3)]), r"exclude\[0\] = \(5, 3\), expected"),
    (lambda: KINDS["bucket"](exclude=[0, N]), rf"exclude\[1\] = {N}, expected records below {N}, those of the dataset"),
    (lambda: list(own(lambda positions: positions.tolist())), ANSWER + "list of shape None"),
    (lambda: list(own(lambda positions: positions[:3])), ANSWER + r"int64 of shape \(3,\)"),
    (lambda: list(window(Own(10, lambda positions: positions / 1))), "order: expected at.. of Own to return an int64"),
    (lambda: DistributedSampler(range(10), 2, 2), r"rank = 2, expected 0 to 1 \(num_replicas = 2\)$"),
    (lambda: DistributedSampler([1] * 9, order=orders.Shuffled(10)), "order: expected one of 9 records, .* one of 10$"),
    (
        lambda: over_sampler(num_replicas=4, rank=1),
        r"num_replicas = 4, expected \d+, as in the sampler; give it to the sampler$",
    ),
    (lambda: over_sampler(seed=1), "seed: expected None beside a sampler; give it to the sampler$"),
    (lambda: over_sampler({"pad": False}), "pad = False in the sampler, expected True; give it to the batch sampler"),
    (lambda: DistributedSampler([]), "dataset: expected one sample or more, found 0 .the dataset or the view is empty"),
    (lambda: DistributedSampler(range(10), 2, 0, start_step=6), "start_step = 6, expected 0 to 5"),
    (lambda: DistributedSampler(range(10), epoch_size=11), "epoch_size = 11, expected 1 to 10$"),
    (lambda: DistributedSampler(range(10), order=[1]), r"order: expected an order with at\(\), .*, found list"),
    (lambda: DistributedSampler(range(10), seed=1, order=Own(10)), "seed = 1, expected None together with order=; .*$"),
    (lambda: window(Own(10, None, {"a": np.arange(2)})), "order: expected describe.. of Own .* can hold, found {'a': "),
    (lambda: DistributedSampler(range(9), exclude=[3], pad=False), "exclude: expected None with pad=False, .* a view"),
    (lambda: DistributedSampler([1], drop_last=True, pad=False), "drop_last = True, expected False with pad=False"),
    (lambda: MixtureSampler([10, 5], None), "weights = None, expected one number for each of 2 datasets$"),
    (lambda: MixtureSampler({1, 2}, [1]), "datasets: expected a list of datasets or sizes, found set"),
    (lambda: MixtureSampler([[0], "c.jsonl"], [1, 1]), r"datasets\[1\] = 'c.jsonl', expected a dataset"),
    (lambda: DistributedBatchSampler(range(10), 0), "batch_size = 0, expected an integer of 1 or more"),
    (
        lambda: DistributedBatchSampler(torch.utils.data.SequentialSampler([1]), 2),
        "sampler: expected None, found SequentialSampler; make Lightning's Trainer with use_distributed_sampler=False",
    ),
    (lambda: ChunkedSampler("c.jsonl", 2), "dataset = 'c.jsonl', expected a dataset; open it first"),
    (lambda: DistributedSampler(range(10)).set_epoch("1"), "epoch = '1', expected an integer"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_bad_arguments_are_named(make, message):
    with pytest.raises(OrderError, match=f"^{message}") as caught:
        make()
    assert isinstance(caught.value, ValueError)
    check(str(caught.value))


def test_a_state_of_another_inner_order_names_what_differs():
    class Outer:
        def __init__(self, seed):
            self.inner = orders.Shuffled(10, seed)

        def __len__(self):
            return 10

        def at(self, epoch, positions):
            return self.inner.at(epoch, positions)

        def describe(self):
            return {"order": "outer", "inner": self.inner.describe()}

    one, other = (DistributedSampler(range(10), 1, 0, order=Outer(seed)) for seed in (1, 2))
    with pytest.raises(
        mmapds.StateError, match=r"of another order: expected inner.seed = 2, found 1; make the sampler"
    ):
        other.load_state_dict(one.state_dict(step=3))
