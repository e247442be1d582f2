"""Workers: errors come where they belong, and nothing is left behind, however a loop ends."""

import contextlib
import gc
import os
import random
import select
import signal
import subprocess
import sys
from itertools import islice

import numpy as np
import pytest
import torch

import mmapds
from mmapds import DataLoader, DecodeError, DistributedBatchSampler
from tests.support.commands import SECONDS, run
from tests.support.files import ROOT
from tests.support.loading import (
    KINDS,
    Blocking,
    Failing,
    Numbers,
    as_list,
    every_kind,
    expect_no_threads,
    loader_threads,
    ours,
)


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    expect_no_threads()


@pytest.fixture
def no_collector():
    """What is freed is freed by the last reference to it, not by the collector of cycles."""
    gc.disable()
    yield
    gc.enable()


# ---- errors --------------------------------------------------------------------------------------------------


@every_kind
def test_an_error_is_raised_at_its_batch_and_names_record_and_source(write, options):
    path = write(b"".join(b'{"id": %d}\n' % i if i != 11 else b"{oops}\n" for i in range(30)))
    ds = mmapds.open(path, build=True)
    batches = iter(DataLoader(ds, batch_size=5, collate_fn=as_list, **options))
    assert [next(batches)[0]["id"], next(batches)[0]["id"]] == [0, 5]
    with pytest.raises(DecodeError, match=r"train.jsonl:12 \(byte \d+\): not JSON"):
        next(batches)
    assert next(batches)[0]["id"] == 15, "the next batch can still be asked for"
    assert [batch[0]["id"] for batch in batches] == [20, 25]


@every_kind
def test_an_error_of_the_users_keeps_its_type(options):
    batches = iter(ours(Failing(9, 4, ZeroDivisionError), batch_size=3, **options))
    assert next(batches) == [0, 1, 2]
    with pytest.raises(ZeroDivisionError, match="record 4"):
        next(batches)
    assert list(batches) == [[6, 7, 8]]


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_of_different_shape_name_the_function_that_pads_them(workers):
    ragged = [[1, 2], [3]]
    with pytest.raises(RuntimeError) as raised:
        list(DataLoader(ragged, batch_size=2, num_workers=workers))
    assert "give collate_fn=mmapds.pad_collate for samples whose first axes differ" in raised.value.__notes__[0]
    (batch,) = DataLoader(ragged, batch_size=2, num_workers=workers, collate_fn=mmapds.pad_collate)
    assert batch[0].tolist() == [[1, 2], [3, 0]]


def test_the_traceback_leads_into_the_thread():
    with pytest.raises(ZeroDivisionError) as raised:
        list(ours(Failing(9, 4, ZeroDivisionError), num_workers=1))
    assert raised.traceback[-1].name == "__getitem__"


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_an_end_of_iteration_in_a_dataset_does_not_end_the_epoch(kind):
    with pytest.raises(RuntimeError, match="a dataset or a collate_fn raised StopIteration"):
        list(ours(Failing(9, 4, StopIteration), **KINDS[kind]))


def end_early(_):
    raise StopIteration


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_end_of_iteration_in_worker_init_fn_does_not_end_the_epoch(kind):
    with pytest.raises(RuntimeError, match="worker_init_fn raised StopIteration"):
        list(ours(Numbers(), **KINDS[kind], worker_init_fn=end_early))


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_an_exit_in_a_dataset_is_the_trainers(kind):
    with pytest.raises(SystemExit):
        list(ours(Failing(9, 4, SystemExit), **KINDS[kind]))


@pytest.mark.parametrize("kind", ["alone", "threads"])
def test_an_error_of_the_sampler_comes_in_its_turn(kind):
    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            yield from ([0], [1], [2])
            raise ZeroDivisionError

        def __len__(self):
            return 9

    batches = iter(ours(Numbers(), batch_sampler=Sampler(), **KINDS[kind]))
    assert list(islice(batches, 3)) == [[0], [1], [2]]
    with pytest.raises(ZeroDivisionError):
        next(batches)
    with pytest.raises(mmapds.Error, match="expected a loop that can go on"):  # and not the end of the epoch
        next(batches)


@pytest.mark.usefixtures("no_collector")
def test_an_error_frees_the_threads():
    loader = ours(Failing(900, 4, ZeroDivisionError), num_workers=2)
    with contextlib.suppress(ZeroDivisionError):
        list(loader)
    expect_no_threads()


def test_a_batch_that_takes_too_long_is_an_error_and_can_be_waited_for_again():
    ds = Blocking(20, at=6)
    batches = iter(ours(ds, batch_size=5, num_workers=1, timeout=0.05))
    assert next(batches) == [0, 1, 2, 3, 4]
    message = r"timeout = 0.05, expected batch 1 within 0.05 s, found it not ready: records 5, 6, 7, 8, 9$"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=message):
            next(batches)
    ds.free.set()
    found = None
    while found is None:  # the machine may be slow
        with contextlib.suppress(RuntimeError):
            found = next(batches)
    assert found == [5, 6, 7, 8, 9]


def test_a_process_that_dies_is_an_error():
    batches = iter(ours(Dying(20), num_workers=2, workers="processes"))
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* exited unexpectedly"):
        list(batches)
    with pytest.raises(mmapds.Error, match="expected a loop that can go on"):  # what it had is lost to this loop
        next(batches)


class Dying(Numbers):
    """Ends the process that reads record 7."""

    def __getitem__(self, i):
        if i == 7:
            os._exit(3)
        return i


# ---- the first thing that workers do -------------------------------------------------------------------------


def test_threads_begin_with_the_function_that_they_are_given():
    numbers = []
    loader = ours(Numbers(9), num_workers=3, worker_init_fn=numbers.append)
    assert [index for (index,) in loader] == list(range(9))
    assert sorted(numbers) == [0, 1, 2]


def test_seeding_in_a_thread_leaves_the_trainers_random_numbers():
    def seed(number):
        random.seed(number), np.random.seed(number), torch.manual_seed(number)

    def drawn():
        return random.random(), np.random.random(), torch.rand(1).item()

    def after(seed):
        random.seed(9), np.random.seed(9), torch.manual_seed(9)
        assert len(list(ours(Numbers(5), num_workers=2, worker_init_fn=seed))) == 5
        return drawn()

    assert after(seed) == after(None)


def test_an_error_at_the_start_of_a_thread_is_raised():
    with pytest.raises(ZeroDivisionError):
        list(ours(Numbers(9), num_workers=2, worker_init_fn=lambda _: 1 // 0))


def test_torchs_own_threads_stay_as_many():
    threads = torch.get_num_threads()
    found = list(DataLoader(Numbers(4), num_workers=2, collate_fn=lambda _: torch.get_num_threads()))
    assert found == [1] * 4
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_start_by_any_method(opened, method):
    ds = opened([{"id": i} for i in range(20)])
    batches = list(DistributedBatchSampler(ds, 6, seed=2))
    options = {"workers": "processes", "num_workers": 1, "multiprocessing_context": method}
    found = list(DataLoader(ds, batch_sampler=batches, collate_fn=as_list, persistent_workers=True, **options))
    assert [[sample["id"] for sample in batch] for batch in found] == batches


def test_persistent_processes_go_on_with_the_next_epoch():
    loader = ours(Numbers(9), batch_size=2, num_workers=1, workers="processes", persistent_workers=True)
    whole = [[0, 1], [2, 3], [4, 5], [6, 7], [8]]
    assert list(islice(loader, 2)) == whole[:2]
    assert list(loader) == list(loader) == whole


# ---- the end of a loop ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_collector")
def test_leaving_a_loop_frees_the_threads():
    for batch in ours(Numbers(900), num_workers=2):
        if batch == [3]:
            break
    expect_no_threads()


@pytest.mark.usefixtures("no_collector")
def test_an_iterator_that_nobody_has_any_more_frees_its_threads():
    loader = ours(Numbers(900), num_workers=2)
    batches = iter(loader)
    next(batches)
    assert len(loader_threads()) == 2
    del batches
    expect_no_threads()
    assert [index for (index,) in loader] == list(range(900)), "the loader goes on"


def test_the_end_of_an_epoch_ends_the_threads():
    batches = iter(ours(Numbers(20), num_workers=2))
    assert len(list(batches)) == 20
    assert not loader_threads()
    assert next(batches, None) is None


def test_a_thread_at_work_ends_after_its_batch():
    ds = Blocking(900, at=1)
    batches = iter(ours(ds, num_workers=1))
    next(batches)
    assert ds.reached.wait(60)
    del batches
    (thread,) = loader_threads()
    ds.free.set()
    thread.join(60)
    assert not thread.is_alive()


# ---- the end of the process ----------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
import torch
from tests.support.loading import Blocking, Numbers, loader_threads, ours

options = {"num_workers": 2, **eval(sys.argv[2])}
"""

ENDS = {
    "the end of the script": "batches = iter(ours(Numbers(900), **options)); next(batches)",
    "an error of the trainer": "for _ in ours(Numbers(900), **options): 1 / 0",
    "sys.exit in a function": "def main():\n    for _ in ours(Numbers(900), **options): sys.exit(1)\nmain()",
    "a cycle that holds the loop": "box = [iter(ours(Numbers(900), **options))]; box.append(box); next(box[0])",
    "a decoder of Python": (
        "class Slow(Numbers):\n"
        "    def __getitem__(self, i): return sum(range(10**6))\n"
        "batches = iter(ours(Slow(900), batch_size=4, prefetch=50, **options)); next(batches)"
    ),
}


@pytest.mark.parametrize(
    ("end", "kind"), [*((end, "threads") for end in ENDS), ("an error of the trainer", "processes")]
)
def test_a_process_ends_with_its_loops(end, kind):
    script = SCRIPT + ENDS[end]
    ran = run("-c", script, ROOT, {"workers": kind}, cwd=ROOT)
    wrong = end in ("an error of the trainer", "sys.exit in a function")
    assert ran.returncode == wrong, ran.stderr
    assert ("ZeroDivisionError" in ran.stderr) == (end == "an error of the trainer")
    assert "Fatal" not in ran.stderr


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_a_script_ends_without_a_word_in_the_middle_of_a_loop(kind):
    script = """
import sys
import mmapds

if __name__ == "__main__":
    loop = iter(mmapds.DataLoader(list(range(100)), batch_size=4, num_workers=2, workers=sys.argv[1]))
    next(loop)
"""
    ran = run("-c", script, kind)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


# What is registered before the loader's own runs after it.
LEFT = (
    "import atexit\natexit.register(lambda: print(len(loader_threads()), 'left'))\n"
    + SCRIPT
    + """
import threading

leaving = threading.Event()
class Slow(Numbers):
    def __getitem__(self, i):
        if i >= 4:
            leaving.wait(60)
            sum(range(10**6))
        return i
for batch in ours(Slow(900), batch_size=4, **options):
    break
atexit.register(leaving.set)
"""
)


def test_a_process_waits_for_the_threads_of_a_loop_that_was_left():
    ran = run("-c", LEFT, ROOT, {}, cwd=ROOT)
    assert (ran.returncode, ran.stdout) == (0, "0 left\n"), ran.stderr


INTERRUPTED = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background of a shell ignore it
ds = Blocking(900, at=40)
def read(i, of=ds.__getitem__):
    if i == 40:
        print("reading", flush=True)
    return of(i)
Blocking.__getitem__ = lambda self, i: read(i)
for batch in ours(ds, batch_size=4, **options):
    pass
"""


def test_ctrl_c_ends_a_trainer_that_waits_for_a_batch():
    command = [sys.executable, "-c", SCRIPT + INTERRUPTED, str(ROOT), "{}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert "Fatal" not in errors


KILLED = """
from multiprocessing import active_children

batches = iter(ours(Numbers(10**7), batch_size=50_000, **options))  # more than a pipe holds, so that workers wait
next(batches)
print(*(child.pid for child in active_children()), flush=True)
signal.pause()
"""


def test_processes_end_with_a_trainer_that_is_killed():
    command = [sys.executable, "-c", SCRIPT + KILLED, str(ROOT), "{'workers': 'processes'}"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        workers = [os.pidfd_open(int(pid)) for pid in process.stdout.readline().split()]
        process.kill()
    assert len(workers) == 2
    for worker in workers:
        assert select.select([worker], [], [], SECONDS)[0], "it has ended"
        os.close(worker)


FORKED = """
loader = ours(Numbers(50), batch_size=5, **options)
batches = iter(loader)
assert next(batches) == [0, 1, 2, 3, 4]
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that waits for ever
    try:
        next(batches)
    except Exception as error:
        assert "which began this loop, found process" in str(error), error
    assert len(list(loader)) == 10
    del batches
    assert not loader_threads()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(batches)) == 9
"""


def test_a_forked_process_begins_loops_of_its_own():
    ran = run("-W", "ignore::DeprecationWarning", "-c", SCRIPT + FORKED, ROOT, {}, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
