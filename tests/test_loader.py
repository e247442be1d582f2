"""The loader's batches are torch's, whatever makes them; and it can be used wherever torch's can."""

import copy
import inspect
import pickle
import re
import time
import weakref
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils import data

import mmapds
from mmapds import DataLoader, DistributedBatchSampler, DistributedSampler, MixtureSampler, OrderError, StateError
from tests.support.docs import table
from tests.support.loading import KINDS, Blocking, Numbers, every_kind, expect_no_threads, loader_threads, ours, torchs


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    expect_no_threads()


# ---- the same batches ----------------------------------------------------------------------------------------


def samplers(n, seed):
    """Arguments that choose what is sampled, made anew for each loader."""
    return {
        "in order": lambda: {"batch_size": 7},
        "tail dropped": lambda: {"batch_size": 4, "drop_last": True},
        "no batches": lambda: {"batch_size": None},
        "torch's sampler": lambda: {"batch_size": 5, "sampler": data.DistributedSampler(range(n), 2, 1, seed=seed)},
        "a list": lambda: {"batch_size": 3, "sampler": list(range(0, n, 2))},
        "a list of batches": lambda: {"batch_sampler": [[0], [n - 1, 0]]},
        "torch's batches": lambda: {"batch_sampler": data.BatchSampler(range(n), 6, True)},
        "a sampler": lambda: {"batch_size": 6, "sampler": DistributedSampler(range(n), 2, 1, seed=seed)},
        "batches": lambda: {"batch_sampler": DistributedBatchSampler(range(n), 6, 2, 0, seed=seed)},
    }


THREADS = st.fixed_dictionaries({"num_workers": st.integers(1, 3), "prefetch": st.none() | st.integers(1, 9)})


@pytest.mark.parametrize("kind", samplers(1, 0))
@settings(max_examples=20)
@given(n=st.integers(1, 60), seed=st.integers(0, 99), options=st.just({}) | THREADS)
@example(n=50, seed=0, options=KINDS["processes"])
def test_batches_are_those_of_torch(kind, n, seed, options):
    make = samplers(n, seed)[kind]
    expected, loader = torchs(Numbers(n), **make()), ours(Numbers(n), **make(), **options)
    assert len(loader) == len(expected)
    assert list(loader) == expected


@every_kind
def test_a_loader_without_a_sampler_makes_one(options):
    loader, sampler = ours(Numbers(50), shuffle=True, batch_size=7, **options), DistributedSampler(range(50))
    for epoch in range(3):
        sampler.set_epoch(epoch)
        assert [index for batch in loader for index in batch] == list(sampler)
    assert len(list(islice(loader, 2))) == 2
    again = ours(Numbers(50), shuffle=True, batch_size=5, **options)
    again.load_state_dict(loader.state_dict())
    sampler.set_epoch(3)
    assert [index for batch in again for index in batch] == list(sampler)[14:]
    with pytest.raises(StateError, match="seed"):
        ours(Numbers(50), shuffle=True, generator=torch.Generator().manual_seed(1)).load_state_dict(loader.state_dict())
    ordered = ours(Numbers(50), batch_size=7, **options)
    assert list(ordered) == list(ordered) == torchs(Numbers(50), batch_size=7)


def test_states_are_those_of_a_sampler_of_ours_in_order():
    with pytest.raises(StateError, match=r"^sampler: expected one of mmapds, found range, which has no state; give"):
        DataLoader(Numbers(), sampler=range(9)).state_dict()
    with pytest.raises(StateError, match=r"^in_order = False, expected True for states"):
        DataLoader(Numbers(), num_workers=1, workers="processes", in_order=False).state_dict()


def test_the_default_collate_says_what_it_cannot_take():
    samples = [{"x": np.ma.array([1, 2], mask=mask)} for mask in ([0, 0], [0, 1])]
    assert next(iter(DataLoader(samples[:1])))["x"].tolist() == [[1, 2]]
    with pytest.raises(mmapds.CollateError, match=r"samples\[1\]: expected numbers without a mask, found 1 masked"):
        list(DataLoader(samples, batch_size=2))


def test_a_batch_is_taken_at_once():
    class Counting(Numbers):
        def __getitems__(self, indices):
            taken.append(indices)
            return indices

    taken = []
    assert list(ours(Counting(10), batch_size=4, num_workers=2)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert sorted(taken) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


@every_kind
def test_loops_in_loops_and_side_by_side(options):
    loader = ours(Numbers(12), batch_size=4, **options)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [(one, other) for one in loader for other in loader] == [(one, other) for one in whole for other in whole]
    assert [list(pair) for pair in zip(loader, loader, strict=True)] == [[each, each] for each in whole]


@pytest.mark.parametrize(("workers", "prefetch", "bound"), [(1, 1, 1), (2, 3, 3), (2, None, 4), (3, 7, 7)])
def test_no_more_batches_exist_than_were_asked_for(workers, prefetch, bound):
    alive, made, delivered = weakref.WeakSet(), [], 0

    class Batch:
        def __init__(self, samples):
            alive.add(self)
            made.append(len(alive))

    batches = iter(DataLoader(Numbers(120), 4, num_workers=workers, prefetch=prefetch, collate_fn=Batch))
    while next(batches, None) is not None:  # keeps none
        delivered += 1
        for _ in range(2000):
            if len(made) < min(delivered + bound, 30):
                time.sleep(0.001)
        time.sleep(0.002)
        assert len(made) == min(delivered + bound, 30)
    assert max(made) <= bound + 1
    assert not alive


def test_nothing_is_drawn_and_no_thread_started_before_the_first_batch():
    sampler, expected = (DistributedBatchSampler(range(50), 5) for _ in range(2))
    loader = ours(Numbers(50), batch_sampler=sampler, num_workers=2)
    batches = iter(loader)
    assert (len(batches), loader_threads()) == (10, [])
    loader.set_epoch(3)
    expected.set_epoch(3)
    assert list(batches) == list(expected)


# ---- a DataLoader of torch's ---------------------------------------------------------------------------------


def test_it_is_a_loader_of_torchs_with_its_attributes():
    sampler, ds, generator = [*range(8, -1, -1)], Numbers(9), torch.Generator()
    given = {"dataset": ds, "batch_size": 2, "sampler": sampler, "num_workers": 2, "drop_last": True, "timeout": 5}
    given |= {"generator": generator, "collate_fn": list, "prefetch": 7, "stall_after": 9.0}
    loader = DataLoader(**given)
    assert isinstance(loader, data.DataLoader)
    assert loader.batch_sampler.sampler is sampler
    given |= {"pin_memory": False, "persistent_workers": False, "prefetch_factor": 4, "workers": "threads"}
    given |= {"in_order": True, "worker_init_fn": None, "multiprocessing_context": None}
    assert {name: getattr(loader, name) for name in given} == given
    assert given.keys() | {"shuffle", "batch_sampler"} == inspect.signature(DataLoader).parameters.keys()
    assert list(DataLoader(**given)) == list(loader), "as Lightning makes it again, with another sampler"
    assert DataLoader(ds, 2, None, sampler, num_workers=2).prefetch_factor == 2


@every_kind
def test_copies_are_loaders_of_their_own(options):
    loader = ours(Numbers(30), batch_sampler=DistributedBatchSampler(range(30), 4), **options)
    others = [copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))]
    expected = list(loader)
    for other in others:
        assert other.state_dict()["position"] == 0
        assert list(other) == expected
        assert other.state_dict() == loader.state_dict()


def test_set_epoch_reaches_the_sampler():
    for options in (
        {"batch_size": 4, "sampler": DistributedSampler(range(30))},
        {"batch_size": None, "sampler": DistributedSampler(range(30))},
        {"batch_sampler": DistributedBatchSampler(range(30), 4)},
        {"batch_sampler": data.BatchSampler(DistributedSampler(range(30)), 4, True)},
    ):
        loader = ours(Numbers(30), **options)
        first = list(loader)
        loader.set_epoch(1)
        assert list(loader) != first
        loader.set_epoch(0)
        assert list(loader) == first
    ours(Numbers(3), sampler=range(3)).set_epoch(1)  # a sampler without epochs
    loader = ours(Numbers(30), batch_size=4, sampler=DistributedSampler(range(30)))
    copy.deepcopy(loader).batch_sampler.set_epoch(3)  # loaders of others, which skip some batches, have nothing else
    assert loader.sampler.epoch == 0
    loader.batch_sampler.set_epoch(3)
    assert loader.sampler.epoch == 3


def test_pinning_without_a_device_warns():
    if torch.cuda.is_available():
        (batch,) = DataLoader(Numbers(2), batch_size=2, pin_memory=True, num_workers=1)
        assert batch.is_pinned()
        return
    with pytest.warns(UserWarning, match="pin_memory = True, expected a CUDA device, found none"):
        assert list(ours(Numbers(2), batch_size=2, pin_memory=True, num_workers=1)) == [[0, 1]]


SECONDS = "expected seconds, or 0 for any time"
BAD = [
    ({"workers": "thread"}, "workers = 'thread', expected 'threads' or 'processes'"),
    ({"workers": 2}, "workers = 2, expected 'threads' or 'processes'"),
    ({"num_workers": -1}, "num_workers = -1, expected an integer of 0 or more"),
    ({"prefetch": 3}, "prefetch_factor option could only be specified in multiprocessing"),
    ({"num_workers": 2, "prefetch": 0}, "prefetch = 0, expected an integer of 1 or more"),
    ({"num_workers": 2, "prefetch_factor": 2.5}, "prefetch_factor = 2.5, expected an integer of 1 or more"),
    ({"stall_after": 0}, "stall_after = 0, expected seconds above 0, or None"),
    ({"stall_after": "60"}, "stall_after = '60', expected seconds above 0, or None"),
    ({"num_workers": 1, "stall_after": float("nan")}, "stall_after = nan, expected seconds above 0, or None"),
    ({"timeout": 3}, "timeout = 3, expected 0 with num_workers = 0"),
    ({"num_workers": 1, "timeout": "60"}, f"timeout = '60', {SECONDS}"),
    ({"num_workers": 1, "timeout": -1}, f"timeout = -1, {SECONDS}"),
    ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context = 'spawn', expected None"),
    ({"num_workers": 1, "in_order": False}, "in_order = False, expected True"),
    ({"batch_size": 2, "batch_sampler": [[0]]}, "batch_sampler option is mutually exclusive"),
    ({"dataset": data.ChainDataset([])}, "dataset: expected a length and dataset[i], found ChainDataset"),
    ({"sampler": DistributedBatchSampler(range(9), 5)}, "sampler: expected one of single samples, found Distributed"),
    ({"batch_sampler": DistributedSampler(range(9))}, "batch_sampler: expected one of batches, found DistributedSamp"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_arguments_that_are_out_of_range_or_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        DataLoader(**{"dataset": Numbers(), **options})
    assert isinstance(raised.value, OrderError) == (" option " not in message), "torch's speak of options"


# ---- samplers ------------------------------------------------------------------------------------------------


@pytest.fixture
def ds(write):
    path = write([{"n": i % 9 + 1} for i in range(60)])
    mmapds.build(path, length="n")
    return mmapds.open(path)


SAMPLERS = {
    "single": lambda ds: {"batch_size": 5, "sampler": DistributedSampler(ds)},
    "single, alone": lambda ds: {"batch_size": None, "sampler": DistributedSampler(ds)},
    "in batches": lambda ds: {"batch_sampler": DistributedBatchSampler(ds, 5)},
    "in torch's batches": lambda ds: {"batch_sampler": data.BatchSampler(DistributedSampler(ds), 5, False)},
    "chunks": lambda ds: {"batch_size": 5, "sampler": mmapds.ChunkedSampler(ds, 4)},
    "mixed": lambda ds: {"batch_size": 5, "sampler": MixtureSampler(ds, [1.0])},
    "mixed, of several": lambda ds: {"batch_size": 5, "sampler": MixtureSampler([ds[:20], ds[20:]], [0.5, 0.5])},
    "budget": lambda ds: {"batch_sampler": mmapds.TokenBudgetBatchSampler(ds, 40)},
}


@pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)
def test_a_sampler_of_other_samples_is_refused_and_one_of_the_same_is_taken(ds, opened, sampling):
    name = "batch_sampler" if "batch_sampler" in sampling(ds) else "sampler"
    for sampled, loaded, message in [
        (ds[:40], ds, "60 samples of the dataset, found one of 40; make both of the same view$"),
        (ds, ds[:40], "40 samples of the dataset, found one of 60; make both of the same view$"),
        (ds[:30], ds[30:], "30 samples of the dataset, found one of 30 other samples of its sources; make both of"),
    ]:
        with pytest.raises(OrderError, match=f"^{name}: expected one of the {message}"):
            DataLoader(loaded, **sampling(sampled))
    beside = opened([{"id": i} for i in range(60)], name="beside.jsonl")
    all_of_it = ds[np.ones(60, bool)]
    for dataset in (ds[:], ds.map(str), mmapds.zip(a=ds, b=beside), all_of_it, mmapds.zip(a=ds[:].map(str))):
        for sampled, loaded in ((ds, dataset), (dataset, ds), (dataset, dataset), (ds, Numbers(60))):
            assert len(list(DataLoader(loaded, **{**sampling(sampled), "collate_fn": str})))


def test_a_mixture_of_datasets_in_another_order_is_refused(ds, opened):
    x, y, long = ds[:30], ds[30:], ds + ds + ds
    a, b = (opened([{"id": 0}], name=name) for name in ("a.jsonl", "b.jsonl"))
    message = (
        "the {0} samples of the dataset, found one of {0} other samples of its sources; make both of the same view$"
    )
    for mixed, loaded in [
        ([x, y], y + x),
        ([x, y], ds[::-1]),
        ([a, ds], ds + a),
        ([x[:2], x[2:4], ds], x[2:4] + x[:2] + ds),
        ([long, a, b, long], long + b + a + long),
    ]:
        sampler = MixtureSampler(mixed, [1] * len(mixed))
        for sampling in ({"sampler": sampler}, {"batch_sampler": DistributedBatchSampler(sampler, 5)}):
            with pytest.raises(OrderError, match=message.format(len(loaded))):
                DataLoader(loaded, **sampling)


def test_a_sampler_of_parallel_data_or_of_sizes_is_taken_and_any_over_data_without_a_length(ds, opened):
    x, y, both = ds[:30], ds[30:], ds + ds[:20]
    for sampler, loaded in [
        *((MixtureSampler(mixed, [1, 1]), x + y) for mixed in ([x, y], [x.map(str), y], [30, y])),
        (MixtureSampler([x, y], [1, 1]), ds),
        (MixtureSampler([30, 30], [1, 1]), y + x),
        (MixtureSampler([ds, 20], [0.5, 0.5]), both),
        (DistributedSampler(both, epoch_size=30), both),
        (mmapds.TokenBudgetBatchSampler(ds, 40), opened([{"target": i} for i in range(60)], name="targets.jsonl")),
        (mmapds.TokenBudgetBatchSampler([3] * 60, 40), ds),
        (DistributedBatchSampler(range(80), 5), both),
        (DistributedBatchSampler(ds, 5, order=mmapds.orders.Resampled(60, 200)), ds),
        (DistributedBatchSampler(range(9), 3), type("Endless", (), {"__getitem__": lambda _, i: i})()),
    ]:
        batches = sampler if isinstance(sampler, data.BatchSampler) else data.BatchSampler(sampler, 5, True)
        assert len(list(DataLoader(loaded, batch_sampler=batches, collate_fn=list))) == len(batches)


# ---- figures -------------------------------------------------------------------------------------------------


@every_kind
def test_figures_count_what_was_delivered(options):
    loader = ours(Numbers(23), batch_size=5, **options)
    assert loader.stats()["batches"] == 0
    batches = iter(loader)
    next(batches), next(batches)
    stats = loader.stats()
    assert (stats["batches"], stats["records"], stats["stalls"]) == (2, 10, 0)
    assert 0 < stats["wait_p50"] <= stats["wait_p99"] <= stats["wait_max"] <= stats["wait"] <= stats["seconds"]
    list(batches)
    assert (loader.stats()["batches"], loader.stats()["records"]) == (5, 23)
    list(loader)
    assert loader.stats()["records"] == 23, "each pass counts anew"


def test_the_documents_name_every_figure():
    named = [name for names, *_ in table("docs/loader.md", "## Data or network") for name in names]
    stats = DataLoader(Numbers()).stats()
    assert sorted(named) == sorted(stats)
    assert all(f"`{name}`" in DataLoader.stats.__doc__ for name in stats)


@every_kind
def test_the_wait_for_another_rank_is_none_for_data(options, monkeypatch):
    class Slow(Numbers):
        def __getitem__(self, i):
            time.sleep(0.02)
            return i

    clock, waited = time.perf_counter, []
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + sum(waited))
    monkeypatch.setattr("mmapds.samplers.resumable.compare_before_first_batch", lambda *_: waited.append(1000))
    sampler = DistributedBatchSampler(range(20), 5)
    loader = ours(Slow(20), batch_sampler=sampler, timeout=500 if options else 0, stall_after=0.05, **options)
    with pytest.warns(RuntimeWarning, match=r"found it (not ready|delivered) after \d\d?\.") as said:
        next(iter(loader))
    assert (len(said), waited) == (1, [1000])


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_stall_is_reported_with_rank_and_records_while_it_lasts():
    ds = Blocking(40, at=30)
    sampler = DistributedBatchSampler(ds, 10, 4, 3, shuffle=False)
    loader = ours(ds, batch_sampler=sampler, num_workers=1, stall_after=0.01)
    ds.at = next(iter(sampler))[0]
    batches = iter(loader)
    expected = r"expected batch 0 within 0.01 s, .* on rank 3: .*, records 3, 7, .* \(10 in all\)"
    with pytest.raises(RuntimeWarning, match=f"^stall_after = 0.01, {expected}"):
        next(batches)
    assert loader.stats()["stalls"] == 1
    ds.free.set()
    assert next(batches)[0] == 3, "nothing is lost"


@pytest.mark.parametrize("kind", ["alone", "processes"])
def test_elsewhere_it_is_reported_afterwards(kind):
    loader = ours(Numbers(4), batch_size=4, stall_after=1e-9, **KINDS[kind])
    with pytest.warns(RuntimeWarning, match="expected batch 0 within 1e-09 s, .* on rank 0: .*, records 0, 1, 2, 3 "):
        assert list(loader) == [[0, 1, 2, 3]]
    assert loader.stats()["stalls"] == 1
