"""`loader.epochs`, `loader.steps`, and functions of `ds.map` that draw random numbers for an epoch."""

import itertools
import pickle

import numpy as np
import pytest
from torch.utils.data import BatchSampler, DataLoader

import mmapds
from mmapds.errors import Error

N = 100


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("epochs") / "a.jsonl"
    path.write_text("".join(f'{{"n": {n}}}\n' for n in range(N)))
    return mmapds.open(path, build=True)


def drawn(sample, random):
    return sample["n"], int(random.integers(1 << 60))


def drawn_of_batch(samples, randoms):
    return [drawn(sample, random) for sample, random in zip(samples, randoms, strict=True)]


SAMPLERS = [
    lambda ds: {"batch_sampler": mmapds.DistributedBatchSampler(ds, 16, seed=3)},
    lambda ds: {"sampler": mmapds.DistributedSampler(ds, seed=3), "batch_size": 16},
    lambda ds: {"batch_sampler": BatchSampler(mmapds.DistributedSampler(ds, seed=3), 16, False)},
    lambda _: {"shuffle": True, "batch_size": 16},
]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_loop_that_was_killed_goes_on_with_the_numbers_it_had(ds, sampler):
    def run(stop=None, state=None):
        loader = mmapds.DataLoader(ds, **sampler(ds), collate_fn=lambda batch: [each["n"] for each in batch])
        if state is not None:
            loader.load_state_dict(state)
        seen = []
        for epoch in loader.epochs(3):
            for step, batch in loader.steps():
                seen.append((epoch, step, batch))
                if len(seen) == stop:
                    return seen, loader.state_dict()
        return seen, None

    whole, _ = run()
    assert [seen[:2] for seen in whole] == list(itertools.product(range(3), range(7)))
    for stop in (3, 7, 10, 20):
        first, state = run(stop)
        assert first + run(state=state)[0] == whole


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("sampler", [*SAMPLERS, lambda ds: {"sampler": mixture(ds), "batch_size": 7}])
def test_the_records_of_a_step_are_those_of_its_batch(ds, sampler, drop_last):
    options = sampler(ds) | ({"drop_last": drop_last} if "batch_size" in sampler(ds) else {})
    loader = mmapds.DataLoader(ds, **options, collate_fn=lambda batch: [each["n"] for each in batch])
    for position in (0, 33, 40):
        loader.load_state_dict({**loader.state_dict(), "position": position, "epoch": 1})
        for step, batch in loader.steps():
            assert [each.tolist() for each in loader.indices_at(step)] == [batch]
        assert len(loader.indices_at(0)[0]) == len(loader.indices_at(1)[0]) == len(loader.indices_at(2)[0]) > 6
        with pytest.raises(IndexError, match=f"^step {step + 1} is out of range for the {step + 1} steps of an epoch$"):
            loader.indices_at(step + 1)


def mixture(ds, **options):
    return mmapds.MixtureSampler([ds[:60], ds[60:]], [2, 1], seed=3, **options)


@pytest.mark.parametrize(("records", "size"), [(18, 5), (18, 4), (17, 4), (16, 4)])
def test_the_records_of_a_step_are_those_of_all_ranks(records, size):
    """Without padding, after the last batch of a rank nothing is read again."""
    samplers = [mmapds.DistributedSampler(range(records), 4, rank, pad=False) for rank in range(4)]
    loaders = [mmapds.DataLoader(range(records), size, sampler=each, collate_fn=list) for each in samplers]
    for step in range(-(-records // (4 * size))):
        found = [list(each) for each in loaders[0].indices_at(step)]
        loops = [itertools.islice(loader.steps(), step, step + 1) for loader in loaders]
        read = [batch for loop in loops for _, batch in loop]
        assert found == read
        for loader in loaders:
            loader.set_epoch(0)
    for loader in loaders:
        assert list(loader)
    assert {str(loader.state_dict()) for loader in loaders} == {str(loaders[0].state_dict())}


def test_batches_of_an_optimizer_step_come_together_and_a_checkpoint_is_behind_all_of_them(ds):
    def new():
        return mmapds.DataLoader(ds, 8, sampler=mmapds.DistributedSampler(ds, seed=3), num_workers=2, collate_fn=list)

    whole, loader = [batch for _, batch in new().steps()], new()
    saved, numbers = [], []
    for step, batches in loader.steps(accumulate=3):
        assert batches == whole[3 * step : 3 * step + 3]
        numbers.append(step)
        saved.append(loader.state_dict())
    assert numbers == [0, 1, 2, 3, 4], "13 batches"
    for step, state in enumerate(saved[:-1]):
        again = new()
        again.load_state_dict(state)
        groups = list(again.steps(accumulate=3))
        assert [number for number, _ in groups] == numbers[step + 1 :]
        assert [batch for _, group in groups for batch in group] == whole[3 * step + 3 :]
    with pytest.raises(mmapds.OrderError, match="accumulate = 0, expected an integer of 1 or more"):
        loader.steps(accumulate=0)


def test_the_error_of_a_batch_keeps_the_batches_before_it():
    def collate(batch):
        if 5 in batch:
            raise ValueError("five")
        return batch

    loop = iter(mmapds.DataLoader(range(9), collate_fn=collate).steps(accumulate=3))
    assert next(loop) == (0, [[0], [1], [2]])
    with pytest.raises(ValueError, match="five"):
        next(loop)
    assert list(loop) == [(1, [[3], [4], [6]]), (2, [[7], [8]])]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_epochs_that_are_over_are_not_read_again(ds, sampler):
    loader = mmapds.DataLoader(ds, **sampler(ds), collate_fn=list)
    loader.load_state_dict({**loader.state_dict(), "position": 56})
    numbers = [[step for step, _ in loader.steps()] for _ in loader.epochs(2)]
    assert numbers == [[4, 5, 6], [*range(7)]]
    assert list(loader.epochs(4)) == [2, 3]


def test_random_numbers_depend_on_seed_epoch_and_record_alone(ds):
    mapped = ds.map(drawn, seed=7)
    wanted = list(mapped)
    assert len({number for _, number in wanted}) == N
    batched = ds.map(drawn_of_batch, batched=True, seed=7)
    mask = np.arange(N) % 3 == 0
    for found, numbers in [
        (mapped.take([5, 3, -1]), [5, 3, N - 1]),
        ([mapped[-1]], [N - 1]),
        (batched.take([9, 2]), [9, 2]),
        (mapped[mask][::-1].take([0, 2]), [99, 93]),
        (ds[50:].map(drawn, seed=7).take([1]), [51]),
        ([each["a"] for each in mmapds.zip(a=mapped, b=ds).take([8])], [8]),
        (pickle.loads(pickle.dumps(mapped)).take([7]), [7]),
    ]:
        assert found == [wanted[n] for n in numbers]
    assert ds.map(drawn, seed=8)[0] != wanted[0]
    view = mapped[2:]
    mapped.set_epoch(1)
    assert view[0][1] != wanted[2][1]
    assert pickle.loads(pickle.dumps(mapped))[2] == view[0]
    mapped.set_epoch(0)
    with pytest.raises(Error, match=r"expected function .*drawn \(seed 7\), as in datasets\[0\], found .*\(seed 8\)"):
        mmapds.concat([mapped, ds.map(drawn, seed=8)])


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}, {"num_workers": 2, "workers": "processes"}])
def test_a_loader_sets_the_epoch_of_the_samples_that_it_reads(ds, how):
    loader = mmapds.DataLoader(
        ds.map(drawn, seed=7), 10, shuffle=True, collate_fn=list, persistent_workers=False, **how
    )
    expected = ds.map(drawn, seed=7)
    orders = []
    for epoch in loader.epochs(2):
        found = list(itertools.chain(*loader))
        expected.set_epoch(epoch)
        assert sorted(found) == list(expected)
        orders.append(found)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_sets_the_epoch_of_its_samples(ds, workers):
    mapped = ds.map(drawn, seed=7)
    stream, expected = mapped.stream(batch_size=10), ds.map(drawn, seed=7)
    for epoch in range(2):
        stream.set_epoch(epoch)
        expected.set_epoch(epoch)
        batches = DataLoader(
            stream, batch_size=None, num_workers=workers, multiprocessing_context="fork" if workers else None
        )
        assert sorted(map(tuple, itertools.chain(*batches))) == list(expected)


def test_a_worker_warns_once_if_nobody_set_the_epoch(ds, monkeypatch):
    """Otherwise every epoch would have the same random numbers."""
    monkeypatch.setattr("mmapds.dataset.randomness.is_worker", lambda: True)
    mapped, told = ds.map(drawn, seed=7), ds.map(drawn, seed=7)
    with pytest.warns(UserWarning, match=r"map\(seed=7\): expected set_epoch before the workers start"):
        mapped.take([1, 2])
    told.set_epoch(0)
    assert mapped.take([3]) == told.take([3]) == [told[3]]


def test_a_loader_of_another_part_leaves_the_epoch_as_it_is(ds):
    mapped = mmapds.zip(a=ds.map(drawn, seed=7).map(list))
    train = mmapds.DataLoader(mapped[:80], 10, collate_fn=list)
    expected = mapped[:80]
    expected.set_epoch(2)
    train.set_epoch(2)
    found = []
    for batch in train:
        found += batch
        assert len(list(mmapds.DataLoader(mapped[80:], 10, collate_fn=list))) == 2
    assert found == list(expected)
