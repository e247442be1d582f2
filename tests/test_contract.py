"""What every sampler promises, alone and in every loader: each sample once an epoch, in equal steps, from any stop."""

import random
from collections import Counter
from itertools import islice

import pytest
import torch.utils.data
from torch.utils.data import BatchSampler
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from tests.support.sampler_kinds import KINDS, N, every_kind, ranks_of, records_in

EPOCHS = 3


def check_epoch(read, world):
    """Hold that an epoch has every sample, and no more of them twice than fill up its last step."""
    found = Counter(read)
    assert set(found) == set(range(N))
    assert found.total() - N < world


# ---- alone -----------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_sample_comes_once_an_epoch_in_equal_steps_and_in_a_new_order(make, world):
    samplers, before = ranks_of(make, world), None
    for epoch in range(EPOCHS):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        of_ranks = [list(sampler) for sampler in samplers]
        assert {len(steps) for steps in of_ranks} == {len(sampler) for sampler in samplers}
        check_epoch([record for steps in of_ranks for record in records_in(steps)], world)
        assert of_ranks[0] != before
        before = of_ranks[0]


@every_kind
def test_a_stop_at_any_step_leaves_the_rest_of_the_epoch(make):
    sampler = make(num_replicas=2, rank=1)
    whole = list(sampler)
    for stop in range(len(whole)):
        given = make(num_replicas=2, rank=1)
        list(islice(iter(given), stop))
        for state in (given.state_dict(), sampler.state_dict(step=stop)):
            resumed = make(num_replicas=2, rank=1)
            resumed.load_state_dict(state)
            assert (resumed.epoch, resumed.first_step, len(resumed)) == (0, stop, len(whole))
            assert list(resumed) == whole[stop:]


@every_kind
@pytest.mark.parametrize("seed", range(8))
def test_a_job_stopped_twice_goes_on_in_any_world_with_any_batch_size(make, seed):
    chance, state, read = random.Random(seed), None, []
    for part in range(3):
        world, size = chance.choice((1, 2, 3, 4)), chance.choice((1, 3, 4))
        samplers = ranks_of(make, world, size)
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        first, steps = samplers[0].first_step, list(zip(*samplers, strict=True))
        assert first + len(steps) == len(samplers[0])
        stop = chance.randrange(1 + len(steps) // 3) if part < 2 else len(steps)
        read += records_in(each for step in steps[:stop] for each in step)
        states = [sampler.state_dict(step=first + stop) for sampler in samplers]
        assert all(each == states[0] for each in states)
        state = states[0]
    check_epoch(read, 5)
    ended = make(num_replicas=2, rank=0)
    ended.load_state_dict(state)
    assert (ended.epoch, ended.first_step) == (1, 0)


# ---- under loaders ---------------------------------------------------------------------------------------------


class Loop:
    """A training loop over a loader, as the documents show it for that loader."""

    def __init__(self, sampler, load, size, saved):
        self._sampler = sampler
        self._in_batches = isinstance(sampler, BatchSampler)
        self._first, self.saved = 0, None
        self.loader = load(batch_sampler=sampler) if self._in_batches else load(sampler=sampler, batch_size=size)
        self._is_plain = type(self.loader) is torch.utils.data.DataLoader
        if saved is not None:
            state, self._first = saved
            (sampler if self._is_plain else self.loader).load_state_dict(state)

    def run(self, stop):
        """Yield epoch and records of each batch; after `stop` batches, keep what a checkpoint has."""
        for epoch in range(self._first, EPOCHS):
            self._sampler.set_epoch(epoch)
            step = self._sampler.first_step
            for batch in self.loader:
                step += 1 if self._in_batches else len(batch)
                stop -= 1
                yield epoch, batch
                if stop == 0:
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
    "torchdata, 2 workers": over(StatefulDataLoader, num_workers=2),
}
CASES = [
    *((kind, load, 7) for kind in KINDS for load in LOADERS),
    *((kind, load, "end") for kind in KINDS for load in LOADERS if "workers" not in load and load != "processes"),
    *(("batch", load, "end") for load in ("torch, 2 workers", "processes", "torchdata, 2 workers")),
]


@pytest.mark.parametrize(("kind", "load", "first"), CASES)
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
