"""What tests of training stacks share: processes as torchrun starts them, a small task, and checks of what was read.

A job is a module of `tests/trainers` that every process runs. It goes through many scenarios, because starting
processes takes longest, and writes what its rank read; each test looks at one scenario.
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress

import pytest
import torch
import torch.distributed as dist

import mmapds
from tests.support.files import ROOT

N = 203  # odd, and nothing here divides it but 7
BATCH = 4
MAX_TOKENS = 60
EPOCHS = 3
KINDS = ("sampler", "batch", "tokens")
PROCESSES, LAUNCHED = 2, 3  # in most scenarios, and in all
SECONDS = 600  # in which a job ends, or is ended


# ---- processes -----------------------------------------------------------------------------------------------


def launch(job, world, folder):
    """Run a job in some processes, and wait until all of them have succeeded."""
    # The processes connect to this store, as to that of torchrun, so that no other program can take the port meanwhile.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    logs = [folder / f"{job}-{rank}.log" for rank in range(world)]
    command, processes = [sys.executable, "-m", f"tests.trainers.{job}", str(folder)], []
    with ThreadPoolExecutor(world) as pool:
        try:
            for rank, log in enumerate(logs):
                env = os.environ | {name: str(value) for name, value in _environment(rank, world, store.port, folder)}
                with log.open("wb") as file:
                    options = {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": subprocess.STDOUT}
                    processes.append(subprocess.Popen(command, cwd=ROOT, env=env, start_new_session=True, **options))
            ends = {pool.submit(process.wait, SECONDS): rank for rank, process in enumerate(processes)}
            for end in as_completed(ends):
                assert end.result() == 0, f"{job}: rank {ends[end]} failed\n{_tails(logs)}"
        except subprocess.TimeoutExpired:
            _end(processes, signal.SIGABRT)  # at which they write where each thread is
            raise AssertionError(f"{job}: not finished after {SECONDS} s\n{_tails(logs)}") from None
        finally:
            _end(processes)  # those that wait for one that failed


def _environment(rank, world, port, folder):
    """Yield the variables that torchrun sets, and those that keep libraries off the network and to one core."""
    yield from {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}.items()
    yield from {"GROUP_RANK": 0, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": world, "OMP_NUM_THREADS": 1}.items()
    yield from {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}.items()
    yield from {"TORCHELASTIC_RUN_ID": "tests", "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}.items()
    yield from {"TORCHELASTIC_USE_AGENT_STORE": True, "ACCELERATE_USE_CPU": True, "CUDA_VISIBLE_DEVICES": ""}.items()
    yield "PYTHONFAULTHANDLER", 1
    yield from {"HF_HUB_OFFLINE": 1, "TRANSFORMERS_OFFLINE": 1, "HF_HOME": folder, "DO_NOT_TRACK": 1}.items()


def _end(processes, by=signal.SIGKILL):
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, by)  # the workers of its loaders too: they outlive a killed process
        process.wait()


def _tails(logs):
    return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-12000:]}" for log in logs)


# ---- a job ---------------------------------------------------------------------------------------------------


class Job:
    """One process of a job: its place in the world, and what it read."""

    def __init__(self, folder):
        warnings.filterwarnings("error", message="(epoch|num_replicas|sampler)( =|:)")  # ours are errors
        # A process that is forked while a thread of gloo enters Python can hang before it runs a line, in CPython 3.11.
        multiprocessing.set_start_method("forkserver")
        multiprocessing.set_forkserver_preload([sys.modules["__main__"].__spec__.name])
        self.folder, port = folder, int(os.environ["MASTER_PORT"])
        self.launched, self.rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
        self._store = dist.TCPStore(os.environ["MASTER_ADDR"], port, world_size=None, is_master=False)
        self._groups, self._read, self._said = 0, {}, {}
        self.ds = mmapds.open(os.path.join(folder, "train.jsonl"))

    def join(self, world):
        """Make the first processes a world of their own; return whether this one is in it."""
        self._leave()
        self._groups += 1
        if "accelerate.state" in sys.modules:
            state = sys.modules["accelerate.state"]
            state.GradientState._reset_state()
            state.AcceleratorState._reset_state(reset_partial_state=True)
        os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(world)
        if self.rank >= world:
            return False
        store = dist.PrefixStore(f"group {self._groups}", self._store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=world)
        return True

    def parts(self, name, worlds, stops):
        """Go through the parts of a scenario that is interrupted after some steps, each in a world of its own.

        Yields:
          The number of a part, its world, the step that ends it, the checkpoint that it begins with and the one that it
          leaves: for those parts that this process is in.
        """
        paths = [None, *(os.path.join(self.folder, f"{name}-{part}.checkpoint") for part in range(len(worlds)))]
        for part, (world, stop) in enumerate(zip(worlds, [*stops, None], strict=True)):
            if self.join(world):
                yield part, world, stop, paths[part], paths[part + 1]

    def _leave(self):
        """Leave the world, when all launched processes do: one that leaves early breaks connections of the others."""
        if self._store.add(f"leaving {self._groups}", 1) == self.launched:
            self._store.set(f"left {self._groups}", "")
        self._store.get(f"left {self._groups}")
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def refused(self, scenario, *errors):
        """Record the message of an error of some classes."""
        try:
            yield
        except errors as error:
            self.say(scenario, str(error))

    def read(self, scenario, epoch, ids, part=0):
        """Record a batch: ids of samples, the epoch, and how many times the scenario was interrupted before."""
        self._read.setdefault(scenario, []).append((part, int(epoch), [int(each) for each in ids]))

    def say(self, scenario, value):
        """Record anything else of a scenario."""
        self._said[scenario] = value

    def write(self, name):
        """Write all that was recorded, under the name of the job and the rank."""
        with open(os.path.join(self.folder, f"{name}-{self.rank}.json"), "w") as file:
            json.dump({"read": self._read, "said": self._said}, file)
        self._leave()


def loader_options(kind, ds, *, batch=BATCH, **world):
    """Return a sampler of a kind, and the arguments by which a DataLoader takes it."""
    if kind == "sampler":
        sampler = mmapds.DistributedSampler(ds, **world)
        return sampler, {"sampler": sampler, "batch_size": batch}
    if kind == "batch":
        sampler = mmapds.DistributedBatchSampler(ds, batch, **world)
    else:
        sampler = mmapds.TokenBudgetBatchSampler(ds, MAX_TOKENS, **world)
    return sampler, {"batch_sampler": sampler}


def ids_of(samples):
    """Collate samples into the tensor of their ids."""
    return torch.tensor([each["id"] for each in samples])


def train(job, name, model, optimizer, loader, sampler, *, backward, part=0, stop=None, first=None, after=None):
    """Train in an own loop, from the sampler's epoch on; return after `stop` steps, if that is given.

    Args:
      first: what the first epoch is read from, if it is not the loader.
      after: called after each step, with the epoch and its ids.
    """
    step, begun = 0, sampler.epoch
    for epoch in range(begun, EPOCHS):
        # A prepared loader counts epochs, and tells the sampler: where it is not told, it begins with epoch 0.
        (loader if hasattr(loader, "set_epoch") else sampler).set_epoch(epoch)
        for ids in loader if first is None or epoch > begun else first:
            optimizer.zero_grad()
            backward(model(ids))  # the ranks wait for each other
            optimizer.step()
            job.read(name, epoch, ids, part)
            step += 1
            if after is not None:
                after(epoch, ids)
            if step == stop:
                return


class Model(torch.nn.Module):
    """Learns something from ids, so that ranks have gradients to exchange."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, ids):
        return ((self.weight - ids.float() / N) ** 2).mean()


# ---- what tests ask ------------------------------------------------------------------------------------------


def write_data(folder):
    """Write and index the records that every job reads."""
    path = folder / "train.jsonl"
    records = ({"id": i, "tokens": [0] * (1 + i * 7919 % 23)} for i in range(N))
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    mmapds.build(str(path), length="items(tokens)")


def results_of(job):
    """A fixture: what all ranks of a job read, after it has run."""

    @pytest.fixture(scope="module")
    def results(folder):
        launch(job, LAUNCHED, folder)
        return Results(folder, job, LAUNCHED)

    return results


class Results:
    """What all ranks of a job read, by scenario."""

    def __init__(self, folder, job, world):
        self.ranks = [json.loads((folder / f"{job}-{rank}.json").read_text()) for rank in range(world)]

    def said(self, scenario):
        """Return what each rank said of a scenario, without those that said nothing."""
        return [rank["said"][scenario] for rank in self.ranks if scenario in rank["said"]]

    def batches(self, scenario):
        """Return what each rank read: a list of (part, epoch, ids) for each that took part."""
        return [rank["read"][scenario] for rank in self.ranks if scenario in rank["read"]]

    def counts(self, scenario):
        """Return how often each sample came, a counter for each epoch."""
        counts = {}
        for batches in self.batches(scenario):
            for _, epoch, ids in batches:
                counts.setdefault(epoch, Counter()).update(ids)
        return counts

    def check(self, scenario, *, padding=None, parts=1):
        """Hold that every epoch has every sample once, in another order than the others, in equal steps.

        Args:
          padding: how many samples may come again at the end of an epoch; one less than there are ranks by default.
          parts: how many parts there were.
        """
        ranks, counts = self.batches(scenario), self.counts(scenario)
        assert set(counts) == set(range(EPOCHS))
        for epoch, found in counts.items():
            assert sorted(set(range(N)) - set(found)) == [], f"lost in epoch {epoch}"
            assert found.total() - N <= (len(ranks) - 1 if padding is None else padding), f"repeated in epoch {epoch}"
        orders = [[ids for _, e, ids in ranks[0] if e == epoch] for epoch in range(EPOCHS)]
        assert all(a != b for i, a in enumerate(orders) for b in orders[:i]), "an order comes again"
        assert {part for part, _, _ in ranks[0]} == set(range(parts))
        steps = [Counter((part, epoch) for part, epoch, _ in batches) for batches in ranks]
        for step in set().union(*steps):
            assert len({each[step] for each in steps if step in each}) == 1, f"part and epoch {step}: unequal steps"

    def check_refused(self, scenario, *texts, ranks=PROCESSES):
        """Hold that every rank was refused, in a message that has one of some texts, before it read a batch."""
        assert self.batches(scenario) == []
        said = self.said(scenario)
        assert len(said) == ranks
        assert all(any(text in each for text in texts) for each in said), said
