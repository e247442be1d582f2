"""Workers: errors come where they belong, and nothing is left behind, however a loop ends."""

import gc
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children

import numpy as np
import pytest
import torch

import mmapds
from mmapds import DataLoader, DecodeError, DistributedBatchSampler
from tests.support.commands import run
from tests.support.files import ROOT
from tests.support.loading import KINDS, Blocking, Failing, Numbers, every_kind, expect_no_threads, loader_threads, ours


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    gc.enable()
    expect_no_threads()


# ---- errors --------------------------------------------------------------------------------------------------


@every_kind
def test_an_error_is_raised_in_its_turn_and_the_loop_goes_on(opened, options):
    broken = opened(b"".join(b"%d\n" % i if i != 11 else b"{oops}\n" for i in range(30)))
    for dataset, error, message in [
        (broken, DecodeError, r"train.jsonl:12 \(byte \d+\): not JSON"),
        (Failing(30, 11, ZeroDivisionError), ZeroDivisionError, "record 11"),
    ]:
        loader = ours(dataset, batch_size=5, **options)
        batches = iter(loader)
        assert [next(batches), next(batches)] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
        with pytest.raises(error, match=message) as raised:
            next(batches)
        if dataset is not broken and "workers" not in options:
            assert raised.traceback[-1].name == "happen", "it leads into the thread"
        assert (loader.state_dict()["position"], next(batches)[0], loader.state_dict()["position"]) == (10, 15, 20)
        assert [batch[0] for batch in batches] == [20, 25]


def end_early(_):
    raise StopIteration


@pytest.mark.parametrize(
    ("kinds", "dataset", "options", "error", "message"),
    [
        ("alone threads", Failing(9, 4, StopIteration), {}, RuntimeError, "a dataset or a collate_fn raised StopIt"),
        ("alone threads", Failing(9, 4, SystemExit), {}, SystemExit, "record 4"),
        ("alone threads processes", Numbers(), {"sampler": Failing(9, 4, OSError)}, OSError, "record 4"),
        ("threads", Numbers(), {"worker_init_fn": end_early}, RuntimeError, "worker_init_fn raised StopIteration"),
        ("threads", Numbers(), {"worker_init_fn": lambda _: 1 // 0}, ZeroDivisionError, "integer division"),
    ],
)
def test_what_a_dataset_or_a_sampler_or_a_function_raises_reaches_the_trainer(kinds, dataset, options, error, message):
    for kind in kinds.split():
        with pytest.raises(error, match=message):
            list(ours(dataset, **options, **KINDS[kind]))


def test_an_end_of_iteration_in_worker_init_fn_does_not_end_the_epoch_of_a_process():
    batches = iter(ours(Numbers(1), num_workers=1, workers="processes", worker_init_fn=end_early))
    with pytest.raises(RuntimeError, match="worker_init_fn raised StopIteration"):
        next(batches)
    assert list(batches) == []


def test_a_batch_that_takes_too_long_is_an_error_and_can_be_waited_for_again():
    ds = Blocking(20, at=6)
    batches = iter(ours(ds, batch_size=5, num_workers=2, timeout=0.05))
    assert next(batches) == [0, 1, 2, 3, 4]
    message = r"timeout = 0.05, expected batch 1 within 0.05 s, found it not ready: records 5, 6, 7, 8, 9 \(5 in all\)$"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            next(batches)
    ds.free.set()
    found = None
    while found is None:  # the machine may be slow
        with suppress(RuntimeError):
            found = next(batches)
    assert found == [5, 6, 7, 8, 9]
    assert list(batches) == [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]], "they were made meanwhile"


DEATHS = {"ended with exit code 3": lambda _: os._exit(3), "was ended by SIGKILL": lambda _: os.kill(os.getpid(), 9)}


@pytest.mark.parametrize("how", DEATHS)
def test_a_process_that_dies_is_an_error_that_names_its_signal(how):
    sampler, again = (DistributedBatchSampler(range(20), 1, shuffle=False) for _ in range(2))
    had = []
    with pytest.raises(mmapds.Error, match=rf"num_workers: expected worker process \d+ to make .* that it {how}; make"):
        had.extend(batch for batch in ours(Failing(20, 7, DEATHS[how]), batch_sampler=sampler, **KINDS["processes"]))
    again.load_state_dict(sampler.state_dict())
    assert next(iter(again)) == [len(had)], "the state goes on after the last batch that the trainer has"


# ---- the first thing that workers do -------------------------------------------------------------------------


def test_threads_begin_with_a_function_whose_seeds_are_not_the_trainers():
    def seed(number):
        random.seed(number), np.random.seed(number), torch.manual_seed(number)
        numbers.append(number)

    def drawn_after(function):
        random.seed(9), np.random.seed(9), torch.manual_seed(9)
        assert list(ours(Numbers(9), num_workers=3, worker_init_fn=function)) == [[i] for i in range(9)]
        return random.random(), np.random.random(), torch.rand(1).item()

    numbers = []
    assert drawn_after(seed) == drawn_after(None)
    assert sorted(numbers) == [0, 1, 2]


def test_torchs_own_threads_stay_as_many():
    threads = torch.get_num_threads()
    assert list(DataLoader(Numbers(4), num_workers=2, collate_fn=lambda _: torch.get_num_threads())) == [1] * 4
    assert [torch.get_num_threads(), ThreadPoolExecutor(1).submit(torch.get_num_threads).result()] == [threads] * 2


def test_spawned_processes_stay_for_the_next_epoch(opened):
    options = {"workers": "processes", "multiprocessing_context": "spawn", "persistent_workers": True}
    loader = ours(opened(range(9)), batch_size=2, num_workers=1, **options)
    whole = [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert list(islice(loader, 2)) == whole[:2]
    processes = set(active_children())
    assert list(loader) == list(loader) == whole
    assert set() < processes <= set(active_children())


# ---- the end of a loop ---------------------------------------------------------------------------------------


def test_threads_end_with_their_loop_however_it_ends():
    gc.disable()  # the last reference frees them, not the collector of cycles
    loader = ours(Failing(900, 850, ZeroDivisionError), num_workers=2)
    with suppress(ZeroDivisionError):
        list(loader)
    expect_no_threads()
    batches = iter(loader)
    next(batches)
    assert len(loader_threads()) == 2
    del batches
    expect_no_threads()
    batches = iter(ours(Numbers(20), num_workers=2))
    assert len(list(batches)) == 20
    assert not loader_threads()
    assert next(batches, None) is None


# ---- the end of the process ----------------------------------------------------------------------------------

SCRIPT = """
import torch  # first, as trainers do: weak references that it has are finalized last
import atexit, gc, json, os, select, signal, sys, tempfile, threading, time
atexit.register(lambda: print(len(loader_threads()), "left"))  # runs after what the loader registers
from multiprocessing import active_children
import mmapds.storage.workers
from tests.support.loading import Blocking, Numbers, loader_threads, ours

class Slow(Numbers):
    def __getitem__(self, i):
        if i >= 4:
            leaving.wait(60)
            sum(range(10**6))
        return i

leaving = threading.Event()
mmapds.storage.workers._AT_EXIT = 3
ended = {}
gc.freeze()  # children end faster
for name, code in json.loads(sys.argv[1]).items():
    output = tempfile.TemporaryFile("w+")
    if (child := os.fork()) == 0:
        signal.alarm(60)  # ends a child that waits for ever
        os.dup2(output.fileno(), 1), os.dup2(output.fileno(), 2)
        break
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    output.seek(0)
    ended[name] = code, output.read()
else:
    print(json.dumps(ended), flush=True)
    os._exit(0)
exec(code)  # as a script that ends with it
"""
BEGIN = "batches = iter(ours(Numbers(900), num_workers=2, workers='threads')); next(batches)"
FAIL = "for _ in ours(Numbers(900), num_workers=2, workers='threads'): 1 / 0"
SCRIPTS = {
    "that ends": BEGIN,
    "that ends beside processes": BEGIN.replace("threads", "processes"),
    "that fails": FAIL,
    "that fails beside processes": FAIL.replace("threads", "processes"),
    "that exits in a function": f"def main():\n    {FAIL.replace('1 / 0', 'sys.exit(1)')}\nmain()",
    "with a cycle that holds the loop": f"{BEGIN}; box = [batches]; box.append(box); del batches",
    "with a decoder of Python": f"leaving.set(); {BEGIN.replace('Numbers(900)', 'Slow(900), 4, prefetch=50')}",
    "that left a loop whose threads are at work": f"{BEGIN.replace('Numbers', 'Slow')}; del batches; leaving.set()",
    "that is interrupted as it waits for a batch": """
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
ds = Blocking(900, at=40)
threading.Thread(target=lambda: (ds.reached.wait(60), time.sleep(0.2), os.kill(os.getpid(), signal.SIGINT))).start()
for batch in ours(ds, batch_size=4, num_workers=2):
    pass
""",
    "that is forked in a loop": """
loader = ours(Numbers(50), batch_size=5, num_workers=2)
batches = iter(loader)
assert next(batches) == [0, 1, 2, 3, 4]
if (child := os.fork()) == 0:
    signal.alarm(60)
    try:
        sys.exit(next(batches))
    except mmapds.Error as error:
        assert "which began this loop, found process" in str(error), error
    assert len(list(loader)) == 10
    del batches
    assert not loader_threads()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(batches)) == 9
""",
    "that is killed with its processes": """
reads, writes = os.pipe()
if (trainer := os.fork()) == 0:
    options = {"workers": "processes", "batch_size": 50_000}  # more than a pipe holds, so that workers wait
    batches = iter(ours(Numbers(10**7), num_workers=2, **options))
    next(batches)
    os.write(writes, b" ".join(b"%d" % child.pid for child in active_children()))
    signal.pause()
workers = [os.pidfd_open(int(worker)) for worker in os.read(reads, 99).split()]
os.kill(trainer, signal.SIGKILL)
print(sum(select.select([worker], [], [], 25)[0] == [worker] for worker in workers), "ended")
""",
}
ENDS = {  # exit code, and output without the places of a traceback; (0, "0 left\n") of the others
    "that fails": (1, "ZeroDivisionError: division by zero\n0 left\n"),
    "that fails beside processes": (1, "ZeroDivisionError: division by zero\n0 left\n"),
    "that exits in a function": (1, "0 left\n"),
    "that is interrupted as it waits for a batch": (-2, "KeyboardInterrupt\n1 left\n"),
    "that is forked in a loop": (0, "0 left\n0 left\n"),
    "that is killed with its processes": (0, "2 ended\n0 left\n"),
}


@pytest.fixture(scope="module")
def ended():
    """What became of each script: children of one process, as it takes longest to import torch."""
    ran = run("-W", "ignore::DeprecationWarning", "-c", SCRIPT, json.dumps(SCRIPTS), cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_ends_with_its_loops(ended, name):
    code, output = ended[name]
    said = re.sub(r"^Traceback .*?\n(?=\w)", "", output, flags=re.DOTALL | re.MULTILINE)
    assert (code, said) == ENDS.get(name, (0, "0 left\n")), output
