"""The loader's batches are torch's, whatever makes them; and it can be used wherever torch's can."""

import copy
import pickle
import re
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, RandomSampler, WeightedRandomSampler

import mmapds
from mmapds import (
    ChunkedSampler,
    DataLoader,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    OrderError,
    TokenBudgetBatchSampler,
    pad_collate,
)
from tests.support.files import ROOT
from tests.support.loading import (
    KINDS,
    Blocking,
    Numbers,
    as_list,
    every_kind,
    expect_no_threads,
    loader_threads,
    ours,
    torchs,
)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    expect_no_threads()


# ---- the same batches ----------------------------------------------------------------------------------------


def samplers(n, seed):
    """Arguments that choose what is sampled, made anew for each loader."""
    return {
        "in order": lambda: {"batch_size": 7},
        "shuffled": lambda: {"batch_size": 7, "shuffle": True},
        "shuffled by a generator": lambda: {
            "batch_size": 7,
            "shuffle": True,
            "generator": torch.Generator().manual_seed(seed),
        },
        "tail dropped": lambda: {"batch_size": 4, "drop_last": True},
        "no batches": lambda: {"batch_size": None},
        "no batches, shuffled": lambda: {"batch_size": None, "shuffle": True},
        "torch's sampler": lambda: {"batch_size": 5, "sampler": WeightedRandomSampler([1.0] * n, 2 * n)},
        "a list": lambda: {"batch_size": 3, "sampler": list(range(0, n, 2))},
        "a list of batches": lambda: {"batch_sampler": [[0], [n - 1, 0]]},
        "torch's batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(n)), 6, True)},
        "a sampler": lambda: {"batch_size": 6, "sampler": DistributedSampler(range(n), 2, 1, seed=seed)},
        "batches": lambda: {"batch_sampler": DistributedBatchSampler(range(n), 6, 2, 0, seed=seed)},
    }


@settings(max_examples=150)
@given(
    n=st.integers(1, 60),
    seed=st.integers(0, 99),
    kind=st.sampled_from(list(samplers(1, 0))),
    workers=st.integers(0, 3),
    prefetch=st.none() | st.integers(1, 9),
)
def test_batches_are_those_of_torch(n, seed, kind, workers, prefetch):
    make = samplers(n, seed)[kind]
    torch.manual_seed(seed)
    expected = [torchs(Numbers(n), **make()) for _ in range(2)]
    after = torch.rand(1)
    torch.manual_seed(seed)
    loader = ours(Numbers(n), **make(), num_workers=workers, prefetch=prefetch if workers else None)
    assert len(loader) == len(expected[0])
    assert list(loader) == expected[0]
    if "generator" not in kind:
        torch.manual_seed(seed)
        assert [list(ours(Numbers(n), **make(), num_workers=workers)) for _ in range(2)] == expected
        assert torch.rand(1) == after, "as many random numbers are drawn"


@every_kind
@pytest.mark.parametrize("kind", ["shuffled", "no batches", "a sampler", "batches"])
def test_every_kind_of_worker_gives_the_same(options, kind):
    make = samplers(50, 0)[kind]
    torch.manual_seed(0)
    expected = torchs(Numbers(50), **make())
    torch.manual_seed(0)
    assert list(ours(Numbers(50), **make(), **options)) == expected


@every_kind
def test_array_files_are_padded_alike(tmp_path, options):
    with mmapds.Writer(tmp_path / "a.mma", {"id": "int64", "x": ("float32", (None, 3))}) as writer:
        for i in range(60):
            writer.write({"id": i, "x": np.full((i % 7, 3), i, np.float32)})
    ds = mmapds.open(tmp_path / "a.mma")
    batches = list(DistributedBatchSampler(ds, 8))
    expected = list(torch.utils.data.DataLoader(ds, batch_sampler=batches, collate_fn=pad_collate))
    found = list(DataLoader(ds, batch_sampler=batches, collate_fn=pad_collate, **options))
    assert len(found) == len(expected) == 8
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_default_collate_is_torchs():
    (batch,) = DataLoader(Numbers(3), batch_size=3, num_workers=1)
    assert torch.equal(batch, torch.tensor([0, 1, 2]))


def test_the_default_collate_refuses_numbers_behind_a_mask():
    samples = [{"x": np.ma.array([1, 2], mask=mask)} for mask in ([0, 0], [0, 1])]
    assert next(iter(DataLoader(samples[:1], batch_size=1)))["x"].tolist() == [[1, 2]]
    with pytest.raises(
        mmapds.CollateError, match=r"samples\[1\]: expected numbers without a mask, found 1 of 2 masked"
    ):
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


def test_slow_batches_come_in_order():
    ds = Blocking(40, at=0)  # the first batch is the last to be made
    loader = ours(ds, batch_size=4, num_workers=2, prefetch=5)
    batches = iter(loader)
    threading.Thread(target=lambda: (ds.reached.wait(60), ds.free.set())).start()
    assert [index for batch in batches for index in batch] == list(range(40))


# ---- what is held --------------------------------------------------------------------------------------------


class Held(list):
    """A batch that is counted while it exists."""

    alive, most = 0, 0
    lock = threading.Lock()

    def __init__(self, samples):
        super().__init__(samples)
        with Held.lock:
            Held.alive += 1
            Held.most = max(Held.most, Held.alive)

    def __del__(self):
        with Held.lock:
            Held.alive -= 1


@pytest.mark.parametrize(("workers", "prefetch", "bound"), [(1, 1, 1), (2, 3, 3), (2, None, 4), (3, 7, 7)])
def test_no_more_batches_exist_than_were_asked_for(workers, prefetch, bound):
    Held.alive = Held.most = 0
    loader = DataLoader(Numbers(400), batch_size=4, num_workers=workers, prefetch=prefetch, collate_fn=Held)
    batches, count = iter(loader), 0
    while next(batches, None) is not None:  # keeps none
        count += 1
    assert count == 100
    assert 1 <= Held.most <= bound + 1
    assert Held.alive == 0


def test_nothing_is_drawn_and_no_thread_started_before_the_first_batch():
    sampler = DistributedBatchSampler(range(50), 5)
    loader = ours(Numbers(50), batch_sampler=sampler, num_workers=2)
    batches = iter(loader)
    assert len(batches) == 10
    assert not loader_threads()
    loader.set_epoch(3)
    expected = DistributedBatchSampler(range(50), 5)
    expected.set_epoch(3)
    assert list(batches) == list(expected)


# ---- a DataLoader of torch's ---------------------------------------------------------------------------------


def test_it_is_a_loader_of_torchs_with_its_attributes():
    sampler, generator = DistributedSampler(range(9)), torch.Generator()
    ds = Numbers(9)
    loader = ours(ds, 2, None, sampler, num_workers=2, drop_last=True, timeout=5, generator=generator)
    assert isinstance(loader, torch.utils.data.DataLoader)
    assert loader.dataset is ds
    assert loader.sampler is sampler
    assert loader.batch_sampler.sampler is sampler
    assert loader.generator is generator
    assert loader.collate_fn is as_list
    assert (loader.batch_size, loader.drop_last, loader.num_workers, loader.timeout) == (2, True, 2, 5)
    assert (loader.pin_memory, loader.persistent_workers, loader.prefetch_factor) == (False, False, 2)
    assert (loader.workers, loader.prefetch, loader.in_order) == ("threads", None, True)


def test_it_can_be_made_again_from_its_attributes():
    """As Lightning does to give a loader another sampler: each argument is an attribute of the same name."""
    loader = ours(Numbers(), 5, num_workers=2, prefetch=7, stall_after=9.0)
    assert loader.prefetch_factor == 4
    names = ("num_workers", "collate_fn", "workers", "prefetch", "prefetch_factor", "stall_after")
    again = DataLoader(loader.dataset, loader.batch_size, **{name: getattr(loader, name) for name in names})
    assert list(again) == list(loader)


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
        {"batch_sampler": BatchSampler(DistributedSampler(range(30)), 4, True)},
    ):
        loader = ours(Numbers(30), **options)
        first = list(loader)
        loader.set_epoch(1)
        assert list(loader) != first
        loader.set_epoch(0)
        assert list(loader) == first
    ours(Numbers(3)).set_epoch(1)  # a sampler without epochs


def test_set_epoch_of_the_batches_reaches_the_sampler():
    """Loaders that others make of a loader's batches, to skip some of them, have nothing else."""
    sampler = DistributedSampler(range(30))
    loader = ours(Numbers(30), batch_size=4, sampler=sampler)
    copy.deepcopy(loader).batch_sampler.set_epoch(3)
    assert sampler.epoch == 0
    loader.batch_sampler.set_epoch(3)
    assert sampler.epoch == 3


def test_pinning_without_a_device_warns():
    if torch.cuda.is_available():
        (batch,) = DataLoader(Numbers(2), batch_size=2, pin_memory=True, num_workers=1)
        assert batch.is_pinned()
        return
    with pytest.warns(UserWarning, match="pin_memory = True, expected a CUDA device, found none"):
        assert list(ours(Numbers(2), batch_size=2, pin_memory=True, num_workers=1)) == [[0, 1]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": "thread"}, "workers = 'thread', expected 'threads' or 'processes'"),
        ({"workers": 2}, "workers = 2, expected 'threads' or 'processes'; give num_workers=2"),
        ({"prefetch": 3}, "prefetch = 3, expected None with num_workers = 0"),
        ({"num_workers": 2, "prefetch": 0}, "prefetch = 0, expected an integer of 1 or more"),
        ({"num_workers": 2, "prefetch": "4"}, "prefetch = '4', expected an integer of 1 or more"),
        ({"num_workers": 2, "prefetch": 2.5}, "prefetch = 2.5, expected an integer of 1 or more"),
        ({"num_workers": 2, "prefetch": True}, "prefetch = True, expected an integer of 1 or more"),
        ({"num_workers": "2"}, "num_workers = '2', expected an integer of 0 or more"),
        ({"num_workers": -1}, "num_workers = -1, expected an integer of 0 or more"),
        ({"num_workers": 2, "prefetch_factor": 0}, "prefetch_factor = 0, expected an integer of 1 or more"),
        ({"num_workers": 2, "prefetch_factor": 2.5}, "prefetch_factor = 2.5, expected an integer of 1 or more"),
        ({"num_workers": 2, "prefetch": 6, "prefetch_factor": 2}, "prefetch_factor = 2, expected None or 3"),
        ({"stall_after": 0}, "stall_after = 0, expected seconds above 0, or None"),
        ({"stall_after": "60"}, "stall_after = '60', expected seconds above 0, or None"),
        ({"stall_after": float("nan")}, "stall_after = nan, expected seconds above 0, or None"),
        ({"num_workers": 1, "timeout": "60"}, "timeout = '60', expected up to 2,000,000 seconds, or 0 for any time"),
        ({"num_workers": 1, "timeout": None}, "timeout = None, expected up to 2,000,000 seconds, or 0 for any time"),
        ({"num_workers": 1, "timeout": -1}, "timeout = -1, expected up to 2,000,000 seconds, or 0 for any time"),
        ({"num_workers": 1, "timeout": 10**400}, "expected up to 2,000,000 seconds, or 0 for any time"),
        ({"num_workers": 1, "stall_after": float("nan")}, "stall_after = nan, expected seconds above 0, or None"),
        ({"timeout": 3}, "timeout = 3, expected 0 with num_workers = 0"),
        ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context = 'spawn', expected None"),
        ({"num_workers": 1, "in_order": False}, "in_order = False, expected True"),
        ({"batch_size": 2, "batch_sampler": [[0]]}, "batch_sampler option is mutually exclusive"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DataLoader(Numbers(), **options)


def test_an_iterable_dataset_is_refused():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(range(3))

    with pytest.raises(OrderError, match=r"dataset: expected a length and dataset\[i\], found Stream"):
        DataLoader(Stream())


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
    "in torch's batches": lambda ds: {"batch_sampler": BatchSampler(DistributedSampler(ds), 5, False)},
    "chunks": lambda ds: {"batch_size": 5, "sampler": ChunkedSampler(ds, 4)},
    "mixed": lambda ds: {"batch_size": 5, "sampler": MixtureSampler(ds, [1.0])},
    "mixed, of several": lambda ds: {"batch_size": 5, "sampler": MixtureSampler([ds[:20], ds[20:]], [0.5, 0.5])},
    "budget": lambda ds: {"batch_sampler": TokenBudgetBatchSampler(ds, 40)},
}
every_sampler = pytest.mark.parametrize("sampling", SAMPLERS.values(), ids=SAMPLERS)


@every_sampler
@pytest.mark.parametrize(("of", "over"), [(40, 60), (60, 40)], ids=["fewer", "more"])
def test_a_sampler_of_another_number_of_samples_is_refused(ds, sampling, of, over):
    given = sampling(ds[:of])
    name = "batch_sampler" if "batch_sampler" in given else "sampler"
    message = (
        f"{name}: expected one of the {over} samples of the dataset, found one of {of}; make both of the same view"
    )
    with pytest.raises(OrderError, match=f"^{message}$"):
        DataLoader(ds[:over], **given)


@every_sampler
def test_a_sampler_of_other_rows_is_refused(ds, sampling):
    with pytest.raises(OrderError, match="the 30 samples of the dataset, found one of 30 other samples of its sources"):
        DataLoader(ds[30:], **sampling(ds[:30]))


@every_sampler
def test_a_sampler_of_the_same_records_is_taken(ds, sampling, opened):
    beside = opened([{"id": i} for i in range(60)], name="beside.jsonl")
    for dataset in (
        ds[:],
        ds.map(str),
        mmapds.zip(a=ds, b=beside),
        ds[np.ones(60, bool)],
        mmapds.zip(a=ds[:].map(str)),
    ):
        for sampled, loaded in ((ds, dataset), (dataset, ds), (dataset, dataset), (ds, Numbers(60))):
            assert len(list(DataLoader(loaded, **{**sampling(sampled), "collate_fn": str})))


def test_a_mixture_of_datasets_in_another_order_is_refused(ds, opened):
    x, y, few = ds[:30], ds[30:], opened([{"id": i} for i in range(4)], name="few.jsonl")
    message = (
        "^sampler: expected one of the {0} samples of the dataset, found one of {0} other samples of its sources; make "
        "both of the same datasets, in the same order$"
    )
    for mixed, loaded in [
        ([x, y], y + x),
        ([x, y], ds[::-1]),
        ([few, ds], ds + few),
        ([few[:2], few[2:], ds], few[2:] + few[:2] + ds),
        ([ds[:28], ds[28:30], ds[30:32], ds[32:]], ds[:28] + ds[30:32] + ds[28:30] + ds[32:]),
        ([30, y], y + x),
    ]:
        sampler = MixtureSampler(mixed, [1] * len(mixed))
        with pytest.raises(OrderError, match=message.format(len(loaded))):
            DataLoader(loaded, batch_size=5, sampler=sampler)
        with pytest.raises(OrderError, match="in the same order"):
            DataLoader(loaded, batch_sampler=DistributedBatchSampler(sampler, 5))
    for mixed, loaded in [([x, y], ds), ([x, y], x + y), ((x.map(str), y), ds), ([30, y], x + y), ([30, 30], y + x)]:
        assert len(list(DataLoader(loaded, batch_size=5, sampler=MixtureSampler(mixed, [1, 1]), collate_fn=str)))


def test_a_sampler_of_parallel_data_or_of_sizes_is_taken(ds, opened):
    parallel = opened([{"target": i} for i in range(60)], name="targets.jsonl")
    both = mmapds.concat([ds, ds[:20]])
    for dataset, sampler in [
        (parallel, TokenBudgetBatchSampler(ds, 40)),
        (ds, TokenBudgetBatchSampler([3] * 60, 40)),
        (both, DistributedBatchSampler(range(80), 5)),
        (both, DistributedBatchSampler(DistributedSampler(both, epoch_size=30), 5)),
        (both, BatchSampler(MixtureSampler([ds, 20], [0.5, 0.5]), 5, True)),
        (ds, DistributedBatchSampler(ds, 5, order=mmapds.orders.Resampled(60, 200))),
    ]:
        assert len(list(DataLoader(dataset, batch_sampler=sampler, collate_fn=list))) == len(sampler)


def test_a_dataset_without_a_length_takes_any_sampler():
    class Endless:
        def __getitem__(self, i):
            return i

    assert (
        next(iter(DataLoader(Endless(), batch_size=3, sampler=DistributedSampler(range(9), shuffle=False)))).sum() == 3
    )


def test_a_sampler_in_the_place_of_another_is_refused(ds):
    for batches in (TokenBudgetBatchSampler(ds, 40), DistributedBatchSampler(ds, 5)):
        with pytest.raises(
            OrderError, match=r"^sampler: expected one of single .* found \w+, .*; give it as batch_sampler=$"
        ):
            DataLoader(ds, sampler=batches)
    with pytest.raises(
        OrderError, match=r"^batch_sampler: expected one of batches, found DistributedSampler, .*; give it as"
    ):
        DataLoader(ds, batch_sampler=DistributedSampler(ds))


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (DistributedSampler, "dataset"),
        (lambda path: DistributedBatchSampler(path, 4), "dataset"),
        (lambda path: ChunkedSampler(path, 4), "dataset"),
        (lambda path: MixtureSampler([[0], path], [1, 1]), r"datasets\[1\]"),
        (lambda path: TokenBudgetBatchSampler(path, 4), "dataset_or_lengths"),
    ],
)
@pytest.mark.parametrize("path", ["c.jsonl", b"c.jsonl", Path("c.jsonl")])
def test_a_path_is_not_a_dataset_of_so_many_letters(make, name, path):
    with pytest.raises(OrderError, match=rf"^{name} = b?'c.jsonl', expected a dataset; open it first: mmapds.open\("):
        make(path)


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
    table = (ROOT / "docs/loader.md").read_text()
    rows = "".join(re.findall(r"^\| (`.+?`) \|", table[table.index("## Data or network") :], re.MULTILINE))
    named = re.findall(r"`(\w+)`", rows)
    stats = DataLoader(Numbers()).stats()
    assert sorted(named) == sorted(stats)
    assert all(f"`{name}`" in DataLoader.stats.__doc__ for name in stats)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_wait_for_another_rank_is_none_for_data(workers, monkeypatch):
    class Slow(Numbers):
        def __getitem__(self, i):
            time.sleep(0.1)
            return i

    sampler = DistributedBatchSampler(range(20), 5)
    monkeypatch.setattr(sampler, "_compare_ranks", lambda: time.sleep(2))
    loader = ours(Slow(20), batch_sampler=sampler, num_workers=workers, timeout=workers * 1.5, stall_after=0.1)
    with pytest.warns(RuntimeWarning, match=r"found it (not ready|delivered) after [01]\.") as said:
        next(iter(loader))
    assert len(said) == 1


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_stall_is_reported_with_rank_and_records_while_it_lasts():
    ds = Blocking(40, at=30)
    sampler = DistributedBatchSampler(ds, 10, 4, 3, shuffle=False)
    loader = ours(ds, batch_sampler=sampler, num_workers=1, stall_after=0.01)
    ds.at = next(iter(sampler))[0]
    batches = iter(loader)
    message = r"stall_after = 0.01, expected batch 0 within 0.01 s, .* on rank 3: .*, records 3, 7, .* \(10 in all\)"
    with pytest.raises(RuntimeWarning, match=message):
        next(batches)
    assert loader.stats()["stalls"] == 1
    ds.free.set()
    assert next(batches)[0] == 3, "nothing is lost"


@pytest.mark.parametrize("kind", ["alone", "processes"])
def test_elsewhere_it_is_reported_afterwards(kind):
    loader = ours(Numbers(4), batch_size=4, stall_after=1e-9, **KINDS[kind])
    with pytest.warns(RuntimeWarning, match="expected batch 0 within 1e-09 s, .* on rank 0: .*, records 0, 1, 2, 3$"):
        assert list(loader) == [[0, 1, 2, 3]]
    assert loader.stats()["stalls"] == 1
