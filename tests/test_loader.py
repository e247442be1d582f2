"""The loader's batches are torch's, whatever makes them, and nothing is lost or left behind, however a loop ends."""

import copy
import gc
import inspect
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils import data

import mmapds
from mmapds import DataLoader, DistributedBatchSampler, DistributedSampler, MixtureSampler, OrderError, StateError
from tests.support.commands import run
from tests.support.files import ROOT
from tests.support.loading import (
    KINDS,
    Blocking,
    Numbers,
    as_list,
    every_kind,
    expect_no_threads,
    failing,
    loader_threads,
    ours,
)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.enable()
    expect_no_threads()


# ---- the same batches ----------------------------------------------------------------------------------------


def samplers(n, seed):
    """Arguments that choose samples, by kind."""
    return {
        "in order": {"batch_size": 7},
        "tail dropped": {"batch_size": 4, "drop_last": True},
        "no batches": {"batch_size": None},
        "torch's sampler": {"batch_size": 5, "sampler": data.DistributedSampler(range(n), 2, 1, seed=seed)},
        "a list of batches": {"batch_sampler": [[0], [n - 1, 0]]},
        "a sampler": {"batch_size": 6, "sampler": DistributedSampler(range(n), 2, 1, seed=seed)},
        "batches": {"batch_sampler": DistributedBatchSampler(range(n), 6, 2, 0, seed=seed)},
    }


THREADS = st.fixed_dictionaries({"num_workers": st.integers(1, 3), "prefetch": st.none() | st.integers(1, 9)})


@given(st.sampled_from([*samplers(1, 0)]), st.integers(1, 60), st.integers(0, 99), st.just({}) | THREADS)
@example("batches", 50, 0, KINDS["processes"])
@example("no batches", 50, 0, KINDS["processes"])
def test_batches_are_those_of_torch(kind, n, seed, options):
    expected = list(data.DataLoader(Numbers(n), collate_fn=as_list, **samplers(n, seed)[kind]))
    loader = ours(Numbers(n), **samplers(n, seed)[kind], **options)
    assert (len(loader), list(loader)) == (len(expected), expected)


@pytest.mark.parametrize("how", [{}, {"num_workers": 2}])
def test_a_tail_that_drop_last_leaves_is_of_the_last_batch_in_a_state(how):
    """Then nothing is left of the epoch: the next one follows, and no loop is empty."""
    loader = ours(Numbers(10), 4, sampler=DistributedSampler(range(10), seed=3), drop_last=True, **how)
    for step, batch in enumerate(loader, 1):
        assert len(batch) == 4
        state = loader.state_dict()
        assert (state["epoch"], state["position"]) == (0, 4 if step == 1 else 10)
    again = ours(Numbers(10), 4, sampler=DistributedSampler(range(10), seed=3), drop_last=True)
    again.load_state_dict(state)
    assert (again.sampler.epoch, len(list(again))) == (1, 2)


def test_pinning_without_an_accelerator_warns_and_gives_the_batches(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.warns(
        UserWarning, match="pin_memory = True, expected a CUDA device, found none; batches are not pinned"
    ):
        assert list(ours(Numbers(5), 4, pin_memory=True, num_workers=2)) == [[0, 1, 2, 3], [4]]


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
    assert list(ordered) == list(ordered) == [[*range(k, min(k + 7, 50))] for k in range(0, 50, 7)]


@every_kind
def test_loops_in_loops_and_side_by_side(options):
    loader = ours(Numbers(12), batch_size=4, **options)
    whole = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert [(one, other) for one in loader for other in loader] == [(one, other) for one in whole for other in whole]
    assert [list(pair) for pair in zip(loader, loader, strict=True)] == [[each, each] for each in whole]


@pytest.mark.parametrize(("prefetch", "bound"), [(3, 3), (None, 4)])
def test_no_more_batches_exist_than_were_asked_for(prefetch, bound):
    made, changed = [], threading.Condition()

    def collate(samples):
        with changed:
            made.append(samples)
            changed.notify()

    batches = iter(DataLoader(Numbers(120), 4, num_workers=2, prefetch=prefetch, collate_fn=collate))
    for delivered in range(1, 31):
        next(batches)
        with changed:
            assert changed.wait_for(lambda: len(made) >= min(delivered + bound, 30), 60)  # noqa: B023 - called here
            assert len(made) <= delivered + bound


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
    assert given.keys() | {"shuffle", "batch_sampler", "mesh"} == inspect.signature(DataLoader).parameters.keys()
    assert list(DataLoader(**given)) == list(loader), "as Lightning makes it again, with another sampler"
    assert list(pickle.loads(pickle.dumps(ours(ds, 2)))) == list(copy.deepcopy(ours(ds, 2))) == list(ours(ds, 2))
    assert DataLoader(ds, 2, None, sampler, num_workers=2).prefetch_factor == 2


BAD = [
    ({"prefetch": 3}, "prefetch_factor option could only be specified in multiprocessing"),
    ({"num_workers": 2, "prefetch_factor": 2.5}, "prefetch_factor = 2.5, expected an integer of 1 or more"),
    ({"timeout": 3}, "timeout = 3, expected 0 with num_workers = 0"),
    ({"num_workers": 1, "multiprocessing_context": "spawn"}, "multiprocessing_context = 'spawn', expected None"),
    ({"num_workers": 1, "in_order": False}, "in_order = False, expected True"),
    ({"dataset": data.ChainDataset([])}, "dataset: expected a length and dataset[i], found ChainDataset"),
    ({"sampler": DistributedBatchSampler(range(9), 5)}, "sampler: expected one of single samples, found Distributed"),
    ({"batch_sampler": DistributedSampler(range(9))}, "batch_sampler: expected one of batches, found DistributedSamp"),
]


def test_arguments_that_are_out_of_range_or_contradict_each_other_are_refused():
    for options, message in BAD:
        with pytest.raises(ValueError, match=re.escape(message)) as raised:
            DataLoader(**{"dataset": Numbers(), **options})
        assert isinstance(raised.value, OrderError) == (" option " not in message), "torch's speak of options"
    for options, message in [
        ({"sampler": range(9)}, r"^sampler: expected one of mmapds, found range, which has no state; give"),
        ({"num_workers": 1, "workers": "processes", "in_order": False}, "^in_order = False, expected True for states"),
    ]:
        with pytest.raises(StateError, match=message):
            DataLoader(Numbers(), **options).state_dict()
    with pytest.raises(mmapds.CollateError, match=r"samples\[1\]: expected numbers without a mask, found 1 masked"):
        list(DataLoader([{"x": np.ma.array([1, 2], mask=[0, k])} for k in (0, 1)], batch_size=2))


# ---- samplers ------------------------------------------------------------------------------------------------


def test_a_sampler_of_other_samples_is_refused_and_one_of_the_same_is_taken(opened, write):
    path = write([{"n": i % 9 + 1} for i in range(60)])
    mmapds.build(path, length="n")
    ds = mmapds.open(path)
    x, y, a, both = ds[:30], ds[30:], opened([{"id": 0}], name="a.jsonl"), ds + ds
    beside = opened([{"id": i} for i in range(60)], name="beside.jsonl")
    views = [ds[:], ds.map(str), mmapds.zip(a=ds, b=beside), ds[np.ones(60, bool)], mmapds.zip(a=ds[:].map(str))]
    mixed, budget, batches = MixtureSampler, mmapds.TokenBudgetBatchSampler, DistributedBatchSampler
    taken = [
        *((DistributedSampler(one), other) for view in views for one, other in ((ds, view), (view, ds), (view, view))),
        *((mixed(parts, [1, 1]), x + y) for parts in ([x, y], [x.map(str), y], [30, y])),
        (DistributedSampler(both, epoch_size=30), both),
        (budget(ds, 40), beside),
        (batches(ds, 5, order=mmapds.orders.Resampled(60, 200)), ds),
        (batches(range(9), 3), type("Endless", (), {"__getitem__": lambda _, i: i})()),
    ]
    refused = [
        (DistributedSampler(ds[:40]), ds, "60 samples of the dataset, found one of 40; make both of the same view"),
        (budget(ds, 40), ds[:40], "40 samples of the dataset, found one of 60; make both of the same view"),
        (
            data.BatchSampler(mixed([x[:10], x[10:]], [1, 1]), 5, True),
            y,
            "30 samples .*, found one of 30 other samples",
        ),
        (mixed([x, y], [1, 1]), y + x, "60 samples of the dataset, found one of 60 other samples of its sources"),
        (batches(mixed([a, ds], [1, 1]), 5), ds + a, "61 samples of the dataset, found one of 61 other"),
        (mixed([both, a, x, both], [1] * 4), both + x + a + both, "271 samples of the dataset, found one of 271 other"),
    ]

    def loader_of(sampler, dataset):
        name = "batch_sampler" if isinstance(sampler, data.BatchSampler) else "sampler"
        return DataLoader(dataset, collate_fn=str, **{name: sampler})

    for sampler, dataset in taken:
        assert next(iter(loader_of(sampler, dataset)))
    for sampler, dataset, message in refused:
        with pytest.raises(OrderError, match=f"sampler: expected a sampler of the {message}"):
            loader_of(sampler, dataset)


LONGER = np.where(np.arange(40) % 8 == 5, 9, 5)
"""Lengths of samples whose stored length is 5."""


def packs(**options):
    return mmapds.PackingBatchSampler([5] * 40, 20, seed=3, **options)


def budget(**options):
    return mmapds.TokenBudgetBatchSampler([5] * 40, 20, seed=3, **options)


PLANS = {
    "flash": (packs, {"layout": "flash"}),
    "hf": (packs, {"layout": "hf"}),
    "megatron": (partial(packs, packs_per_batch=2), {"layout": "megatron"}),
    "segments": (packs, {"layout": "segments"}),
    "packed budget": (partial(budget, cost="sum"), {"layout": "flash"}),
    "padded": (budget, {}),
    "masked": (budget, {"mask": "attention_mask", "lengths": False}),
    "mixture": (lambda: mmapds.MixtureBatchSampler([budget(), budget()], [1, 1]), {}),
}


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 1, "workers": "processes"}])
@pytest.mark.parametrize("plan", PLANS)
def test_a_batch_over_the_limit_of_its_plan_is_warned_of_once(plan, options):
    make, how = PLANS[plan]
    texts = [{"input_ids": np.zeros(n, int)} for n in LONGER]
    collate = partial(mmapds.pack_collate if "layout" in how else mmapds.pad_collate, **how)
    loader = DataLoader(texts * (1 + (plan == "mixture")), batch_sampler=make(), collate_fn=collate, **options)
    with pytest.warns(match=r"^record \d+: expected 5 tokens, its stored length, found 9; .* version=") as caught:
        assert [*loader, *loader]
    (warned,) = (each for each in caught if "stored length" in str(each.message))  # Python warns of forks too
    assert LONGER[int(re.findall(r"^record (\d+)", str(warned.message))[0]) % 40] == 9


def test_a_batch_within_its_plan_or_that_does_not_tell_is_not_warned_of():
    plain = [{"input_ids": np.full(5, i), "vector": np.zeros(99, np.float32)} for i in range(40)]
    for batches, collate in (
        (packs(), partial(mmapds.pack_collate, pad_to=24, lists=["vector"])),
        (packs(), list),
        (budget(), partial(mmapds.pad_collate, pad_to_multiple_of=8)),
        (budget(), lambda samples: {"vector": torch.zeros(len(samples), 99)}),
        (budget(), lambda samples: torch.zeros(len(samples), 99)),
    ):
        assert list(DataLoader(plain, batch_sampler=batches, collate_fn=collate))


# ---- figures -------------------------------------------------------------------------------------------------


@every_kind
def test_figures_count_what_was_delivered(options):
    loader = ours(Numbers(23), batch_size=5, **options)
    for passes in range(2):  # each counts anew
        assert loader.stats()["records"] == 23 * passes
        batches = iter(loader)
        next(batches), next(batches)
        stats = loader.stats()
        assert (stats["batches"], stats["records"], stats["stalls"]) == (2, 10, 0)
        assert 0 < stats["wait_p50"] <= stats["wait_p99"] <= stats["wait_max"] <= stats["wait"] <= stats["seconds"]
        list(batches)


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_stall_is_reported_with_rank_and_records_while_it_lasts():
    ds = Blocking(40, at=3)
    sampler = DistributedBatchSampler(ds, 10, 4, 3, shuffle=False)
    loader = ours(ds, batch_sampler=sampler, num_workers=1, stall_after=0.01)
    batches = iter(loader)
    expected = r"expected batch 0 within 0.01 s, .* on rank 3: .*, records 3, 7, .* \(10 in all\)"
    with pytest.raises(RuntimeWarning, match=f"^stall_after = 0.01, {expected}"):
        next(batches)
    assert loader.stats()["stalls"] == 1
    ds.free.set()
    assert next(batches)[0] == 3, "nothing is lost"
    for kind in ("alone", "processes"):  # where it is reported afterwards
        with pytest.warns(
            RuntimeWarning, match="expected batch 0 within 1e-09 s, .* on rank 0: .*, records 0, 1, 2, 3 "
        ):
            list(ours(Numbers(4), batch_size=4, stall_after=1e-9, **KINDS[kind]))


# ---- errors --------------------------------------------------------------------------------------------------


@every_kind
def test_an_error_is_raised_in_its_turn_and_the_loop_goes_on(opened, options):
    broken = opened(b"".join(b"%d\n" % i if i != 11 else b"{oops}\n" for i in range(30)))
    for dataset, error, message in [
        (broken, mmapds.DecodeError, r"train.jsonl:12 \(byte \d+\): not JSON"),
        (failing(30, 11, ZeroDivisionError), ZeroDivisionError, "record 11"),
    ]:
        loader = ours(dataset, batch_size=5, **options)
        batches = iter(loader)
        assert [next(batches), next(batches)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        with pytest.raises(error, match=message) as raised:
            next(batches)
        if dataset is not broken and "workers" not in options:
            assert raised.traceback[-1].name == "_happen", "it leads into the thread"
        assert (loader.state_dict()["position"], next(batches)[0], loader.state_dict()["position"]) == (10, 15, 20)
        assert [batch[0] for batch in batches] == [20, 25]


def end_early(_):
    raise StopIteration


RAISED = [
    ("alone threads", failing(9, 4, StopIteration), {}, RuntimeError, "a dataset or a collate_fn raised StopIt"),
    ("alone threads processes", Numbers(), {"sampler": failing(9, 4, OSError)}, OSError, "record 4"),
    ("threads", Numbers(), {"worker_init_fn": lambda _: 1 // 0}, ZeroDivisionError, "integer division"),
    (
        "threads processes",
        Numbers(),
        {"worker_init_fn": end_early},
        RuntimeError,
        "worker_init_fn raised StopIteration",
    ),
]


def test_what_a_dataset_or_a_sampler_or_a_function_raises_reaches_the_trainer():
    for kinds, dataset, options, error, message in RAISED:
        for kind in kinds.split():
            with pytest.raises(error, match=message):
                list(ours(dataset, **options, **KINDS[kind]))


@pytest.mark.parametrize(("kind", "events"), [("threads", threading), ("processes", multiprocessing)])
def test_a_batch_that_takes_too_long_is_an_error_and_can_be_waited_for_again(kind, events):
    ds = Blocking(20, 6, events)
    loader = ours(ds, batch_sampler=DistributedBatchSampler(ds, 5, shuffle=False), timeout=0.05, **KINDS[kind])
    batches = iter(loader)

    def wait():
        while True:  # processes may take as long to start, and the machine may be slow
            with suppress(RuntimeError):
                return next(batches)

    found = [wait()]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"expected batch 1 within .* 5, 6, |^DataLoader timed out"):
            next(batches)
        assert loader.state_dict()["position"] == 5
    ds.free.set()
    assert [*found, *(wait() for _ in range(3))] == [[*range(k, k + 5)] for k in range(0, 20, 5)]


def kill(_):  # processes that are not forked unpickle it
    os.kill(os.getpid(), 9)


def test_a_process_that_dies_is_an_error_that_names_its_signal():
    sampler, had = DistributedBatchSampler(range(20), 1, shuffle=False), []
    with pytest.raises(mmapds.Error, match=r"num_workers: .* worker process \d+ .* that it was ended by SIGKILL; make"):
        had.extend(ours(Numbers(20, 7, kill), batch_sampler=sampler, **KINDS["processes"]))
    assert sampler.state_dict()["position"] == len(had), "the state goes on after the last batch that the trainer has"


# ---- the first thing that workers do -------------------------------------------------------------------------


def test_threads_begin_with_a_function_whose_seeds_are_not_the_trainers(request):
    def seed(number):
        random.seed(number), np.random.seed(number), torch.manual_seed(number)
        numbers.append(number)

    def drawn_after(function):
        seed(9)
        assert list(ours(Numbers(9), num_workers=3, worker_init_fn=function)) == [[i] for i in range(9)]
        return random.random(), np.random.random(), torch.rand(1).item()

    request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
    torch.set_num_threads(3)
    numbers = []
    assert drawn_after(seed) == drawn_after(None)
    assert sorted(numbers) == [0, 1, 2, 9, 9]
    assert list(DataLoader(Numbers(4), num_workers=2, collate_fn=lambda _: torch.get_num_threads())) == [1] * 4
    assert [torch.get_num_threads(), ThreadPoolExecutor(1).submit(torch.get_num_threads).result()] == [3] * 2


# ---- the end of a loop, and of the process -------------------------------------------------------------------


def test_threads_end_with_their_loop_however_it_ends():
    gc.disable()  # the last reference frees them, not the collector of cycles
    with suppress(ZeroDivisionError):
        list(ours(failing(900, 850, ZeroDivisionError), num_workers=2))
    expect_no_threads()
    batches = iter(ours(Numbers(900), num_workers=2))
    next(batches)
    assert len(loader_threads()) == 2
    del batches
    expect_no_threads()
    batches = iter(ours(Numbers(20), num_workers=2))
    assert len(list(batches)) == 20
    assert not loader_threads()
    assert next(batches, None) is None


BEFORE = """
import torch  # first, as trainers do: weak references that it has are finalized last
import atexit, os, signal, sys, threading, time
atexit.register(lambda: print(len(loader_threads()), "left"))  # runs after what the loader registers
import mmapds.storage.workers
from tests.support.loading import Blocking, Numbers, loader_threads, ours
mmapds.storage.workers._AT_EXIT = 1
"""
SCRIPTS = {  # with exit code, and output without the places of a traceback
    "that left a loop whose threads are at work": (
        """
leaving = threading.Event()
batches = iter(ours(Numbers(900, 4, lambda _: (leaving.wait(60), sum(range(3 * 10**7)))), num_workers=2))
next(batches)
del batches
leaving.set()
""",
        (0, "0 left\n"),
    ),
    "that is interrupted as it waits for a batch": (
        """
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
ds = Blocking(900, at=40)
threading.Thread(target=lambda: (ds.reached.wait(60), time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT))).start()
for batch in ours(ds, batch_size=4, num_workers=2):
    pass
""",
        (-2, "KeyboardInterrupt\n1 left\n"),
    ),
    "that is forked in a loop": (
        """
loader = ours(Numbers(50), batch_size=5, num_workers=2)
batches = iter(loader)
next(batches)
if (child := os.fork()) == 0:
    signal.alarm(60)  # ends one that waits for ever
    try:
        next(batches)
    except mmapds.Error as error:
        assert "which began this loop, found process" in str(error), error
        sys.exit(len(list(loader)))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
assert len(list(batches)) == 9
""",
        (0, "0 left\n0 left\n"),
    ),
}


@pytest.mark.parametrize(("script", "ended"), SCRIPTS.values(), ids=SCRIPTS)
def test_a_script_ends_with_its_loops(script, ended):
    piped = {"capture_output": False, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    ran = run("-W", "ignore::DeprecationWarning", "-c", BEFORE + script, cwd=ROOT, **piped)
    said = re.sub(r"^Traceback .*?\n(?=\w)", "", ran.stdout, flags=re.DOTALL | re.MULTILINE)
    assert (ran.returncode, said) == ended
