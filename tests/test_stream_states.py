"""States of StatefulDataLoader over streams: a chain of jobs reads each record of an epoch once, at any stop."""

import copy
import time
from functools import partial
from itertools import islice

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import mmapds
from mmapds import StateError
from mmapds.samplers import notice
from mmapds.samplers.stream import Stream
from tests.support.streams import KINDS, PROCESSES, N, loader_of, streamed


@pytest.fixture
def ds(write):
    return streamed(write)


def stateful(ds, workers, **options):
    """A stream of batches, and a StatefulDataLoader over it."""
    stream = ds.stream(batch_size=10, **options)
    return stream, loader_of(stream, "batches", workers, StatefulDataLoader)


def loops(stream, loader, epochs):
    """The batches of a loop over each of some epochs."""
    found = []
    for epoch in epochs:
        stream.set_epoch(epoch)
        found.append(list(loader))
    return found


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_stateful_loaders_go_on_within_an_epoch(ds, kind, workers):
    def make():
        stream = ds.stream(shuffle=True, seed=3, **KINDS[kind])
        return stream, loader_of(stream, kind, workers, StatefulDataLoader)

    stream, loader = make()
    epochs = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        epochs.append(list(loader))
    assert sorted(each for batch in epochs[1] for each in batch) == list(range(N))
    assert epochs[0] != epochs[1] != epochs[2]
    for stop in (2, 33):
        stream, loader = make()
        iterator = iter(loader)
        head = [next(iterator) for _ in range(stop)]
        state = copy.deepcopy(loader.state_dict())
        stream, loader = make()
        loader.load_state_dict(state)
        assert head + list(loader) == epochs[0]
        stream.set_epoch(1)
        assert list(loader) == epochs[1]
    stream, loader = make()
    list(loader)  # to the end
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make()
    loader.load_state_dict(state)
    for epoch in (1, 2):
        stream.set_epoch(epoch)
        assert list(loader) == epochs[epoch]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_a_stateful_loader_leaves_out_of_one_pass_is_in_the_next(ds, workers):
    def make(**options):
        stream = ds.stream(batch_size=10, shuffle=True, **options)
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    stream, loader = make()
    iterator = iter(loader)
    head = [next(iterator) for _ in range(4)]
    state = copy.deepcopy(loader.state_dict())
    rest = list(iterator)
    stream.set_epoch(1)
    second = list(loader)
    stream, loader = make(exclude={"steps": [(6, 8)]})
    loader.load_state_dict(state)
    stream.set_epoch(0)
    assert list(loader) == (head + rest)[4:6] + (head + rest)[8:]
    stream.set_epoch(1)
    assert list(loader) == second


@pytest.mark.parametrize("later", ["the same", "nothing"])
@pytest.mark.parametrize("exclude", [{"steps": [(6, 8)]}, {"records": [*range(60, 80)]}], ids=["steps", "records"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_a_pass_left_out_stays_left_out_in_the_third_job(ds, workers, exclude, later):
    def resumed(state, **options):
        loader = loader_of(ds.stream(batch_size=10, **options), "batches", workers, StatefulDataLoader)
        loader.load_state_dict(state)
        return loader

    def read(loader, count):
        iterator = iter(loader)
        return [next(iterator) for _ in range(count)], copy.deepcopy(loader.state_dict())

    whole = list(loader_of(ds.stream(batch_size=10), "batches", 0))
    first, state = read(loader_of(ds.stream(batch_size=10), "batches", workers, StatefulDataLoader), 4)
    second, state = read(resumed(state, exclude=exclude), 5)
    third = list(resumed(state, **({"exclude": exclude} if later == "the same" else {})))
    assert first + second + third == [batch for batch in whole if batch[0] not in range(60, 80)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_records_of_a_finished_epoch_may_be_left_out_of_the_next_one(ds, workers):
    loader = loader_of(ds.stream(batch_size=10), "batches", workers, StatefulDataLoader)
    list(loader)
    state = copy.deepcopy(loader.state_dict())
    stream = ds.stream(batch_size=10, exclude={"records": [15]})
    loader = loader_of(stream, "batches", workers, StatefulDataLoader)
    loader.load_state_dict(state)
    stream.set_epoch(1)
    assert [record for batch in loader for record in batch] == [i for i in range(N) if i != 15]


@pytest.mark.parametrize("workers", [0, 1])
def test_new_steps_wait_while_a_worker_finds_its_epoch_finished(ds, workers):
    make = partial(stateful, ds, workers)
    stream, loader = make()
    iterator = iter(loader)
    list(islice(iterator, 21))  # to the last batch, not to the end
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make(exclude={"steps": [(2, 4)]})
    loader.load_state_dict(state)
    assert [len(each) for each in loops(stream, loader, range(3))] == [0, 19, 21]


@pytest.mark.parametrize(("workers", "context"), PROCESSES)
@pytest.mark.parametrize("is_over", [True, False], ids=["after the loop", "at its last batch"])
def test_new_steps_are_left_out_once_through_jobs_that_end_with_an_epoch(ds, workers, context, is_over):
    def make(**options):
        stream = ds.stream(batch_size=10, **options)
        options = {"multiprocessing_context": context}
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader, **options)

    def read(stream, loader, epoch):
        stream.set_epoch(epoch)
        found = list(islice(loader, None if is_over else 21 - 2 * (epoch == 1)))
        return len(found), copy.deepcopy(loader.state_dict())

    exclude = {"steps": [(2, 4)]}
    _, state = read(*make(), 0)
    for epoch in (1, 2, 3):
        stream, loader = make(exclude=exclude)
        loader.load_state_dict(state)
        if not is_over:
            stream.set_epoch(epoch - 1)
            assert list(loader) == [], "the empty rest"
        found, state = read(stream, loader, epoch)
        assert found == (19 if epoch == 1 else 21)


@pytest.mark.parametrize("snapshots", [1, 2, 8])
@pytest.mark.parametrize(("workers", "context"), PROCESSES)
def test_an_epoch_follows_one_that_was_saved_after_its_loop(ds, workers, context, snapshots):
    def make():
        stream = ds.stream(batch_size=10, shuffle=True)
        options = {"multiprocessing_context": context, "snapshot_every_n_steps": snapshots}
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader, **options)

    stream, loader = make()
    expected = []
    for epoch in range(3):
        stream.set_epoch(epoch)
        expected.append(list(loader))
        if epoch == 0:
            state = copy.deepcopy(loader.state_dict())
    stream, loader = make()
    loader.load_state_dict(state)
    assert loops(stream, loader, (1, 2)) == expected[1:]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_rank_without_a_share_of_the_last_step_goes_on_with_the_next_epoch(ds, workers):
    def make():
        stream = ds[:61].stream(batch_size=5, num_replicas=2, rank=1, pad=False)
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    _, loader = make()
    list(loader)
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make()
    loader.load_state_dict(state)
    assert [len(each) for each in loops(stream, loader, (1, 2))] == [6, 6]


@pytest.mark.parametrize("chosen", [(0, 1, 2), (1, 2)], ids=["the finished epoch first", "the next one first"])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_steps_wait_through_a_job_that_finds_its_epoch_finished(ds, workers, chosen):
    make = partial(stateful, ds, workers)
    _, loader = make()
    list(islice(loader, 21))  # to the last batch, not to the end
    state = copy.deepcopy(loader.state_dict())
    exclude = {"steps": [(7, 9)]}
    if chosen[0] == 0:
        stream, loader = make(exclude=exclude)
        loader.load_state_dict(state)
        stream.set_epoch(0)
        assert list(loader) == []
        state = copy.deepcopy(loader.state_dict())
    stream, loader = make(exclude=exclude)
    loader.load_state_dict(state)
    found = {}
    for epoch in chosen:
        stream.set_epoch(epoch)
        found[epoch] = len(list(loader))
    assert {0: 0, **found} == {0: 0, 1: 19, 2: 21}


class Late(Stream):
    """A stream of which one worker loads its state long after the other."""

    def load_state_dict(self, state):
        if torch.utils.data.get_worker_info().id == self.late:
            time.sleep(1)
        super().load_state_dict(state)


@pytest.mark.parametrize("late", [0, 1])
def test_workers_wait_for_one_another_to_know_of_which_epoch_new_steps_are(ds, late):
    _, loader = stateful(ds, 2)
    list(islice(loader, 21))
    state = copy.deepcopy(loader.state_dict())
    for who, epochs in ((late, (0,)), (1 - late, (0, 1))):
        stream, loader = stateful(ds, 2, exclude={"steps": [(7, 9)]})
        stream.__class__, stream.late = Late, who
        loader.load_state_dict(state)
        assert [len(each) for each in loops(stream, loader, epochs)] == [0, 19][: len(epochs)]
        state = copy.deepcopy(loader.state_dict())


@pytest.mark.filterwarnings("ignore:epoch = 0, expected a new one after workers have begun")
@pytest.mark.parametrize("late", [0, 1])
def test_what_workers_of_an_earlier_loop_had_read_is_not_taken_for_that_of_this_one(ds, late):
    """A state goes on with the seed of the loop that saved it, so the seeds of workers are the same ones."""

    def make(**options):
        stream = ds[:7].stream(batch_size=2, **options)
        return stream, loader_of(stream, "batches", 2, StatefulDataLoader)

    _, loader = make()
    batches, states = iter(loader), []
    for _ in range(4):
        next(batches)
        states.append(copy.deepcopy(loader.state_dict()))
    stream, loader = make()
    stream.__class__, stream.late = Late, late
    loader.load_state_dict(states[3])
    stream.set_epoch(0)
    assert list(loader) == []
    loader.load_state_dict(states[2])
    state = copy.deepcopy(loader.state_dict())  # nothing of it was read yet
    _, loader = make(exclude={"records": [4]})
    loader.load_state_dict(state)
    with pytest.raises(StateError, match="found something before that; give it from the next epoch on"):
        next(iter(loader))
    stream, loader = make(exclude={"records": [6]})
    for saved in (states[3], states[2]):
        loader.load_state_dict(saved)
        stream.set_epoch(0)
        assert list(loader) == []
    _, loader = make()
    loader.load_state_dict(state)
    assert list(loader) == [[6]]


class Loops(torch.utils.data.IterableDataset):
    """What each worker has in common with those of its loop."""

    def __iter__(self):
        yield notice._loop()


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("make", [DataLoader, StatefulDataLoader])
def test_workers_know_those_of_their_own_loop(make, start):
    """Whatever other processes are made between them, and while the workers of another loop live."""
    loaders = [make(Loops(), num_workers=2, batch_size=None, multiprocessing_context=start) for _ in range(2)]
    batches = [iter(loader) for loader in loaders]
    (one, same), (other, others) = map(list, batches)
    assert one == same != other == others
    assert next(iter(loaders[0])) not in (one, other, 0)


@pytest.mark.filterwarnings("ignore:state. expected up to 65536 bytes of JSON, found")
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("is_over", [True, False], ids=["after the loop", "at its last batch"])
def test_new_steps_are_left_out_of_the_epoch_after_a_state_too_long_to_hand_on(tmp_path_factory, is_over, workers):
    path = tmp_path_factory.mktemp("long") / "train.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(24_000)))
    many = mmapds.open(path, build=True)
    records = [*range(12_000, 24_000, 2)]

    def make(steps=()):
        stream = many.stream(batch_size=1000, exclude={"records": records, "steps": steps})
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    _, loader = make()
    list(islice(loader, None if is_over else 18))
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make([(2, 3)])
    loader.load_state_dict(state)
    found = {0: 0}
    for epoch in range(is_over, 3):
        stream.set_epoch(epoch)
        found[epoch] = len(list(loader))
    assert found == {0: 0, 1: 17, 2: 18}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_rank_without_a_share_of_the_last_step_takes_new_records_after_an_epoch(ds, workers):
    def make(**options):
        stream = ds[:61].stream(batch_size=3, num_replicas=2, rank=1, pad=False, **options)
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    _, loader = make()
    list(loader)
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make(exclude={"records": [38]})
    loader.load_state_dict(state)
    stream.set_epoch(1)
    assert sum(map(len, loader)) == 30


def saved_by_a_worker(ds):
    """The state of a StatefulDataLoader with one worker after four batches, and that of the stream in it."""
    loader = loader_of(ds.stream(batch_size=10), "batches", 1, StatefulDataLoader)
    list(islice(loader, 4))
    state = copy.deepcopy(loader.state_dict())
    return state, state["_snapshot"]["_worker_snapshots"]["worker_0"]["dataset_state"]


def test_a_state_that_is_refused_changes_nothing_of_what_workers_have_loaded(ds):
    stream = ds.stream(batch_size=10)
    loader = loader_of(stream, "batches", 1, StatefulDataLoader)
    loader.load_state_dict(saved_by_a_worker(ds)[0])
    next(iter(loader))
    with pytest.raises(StateError):
        stream.load_state_dict({})
    stream.set_epoch(0)
    assert (stream.first_step, len(list(loader))) == (4, 17)


@pytest.mark.filterwarnings("ignore:state. expected up to 65536 bytes of JSON, found")
@pytest.mark.parametrize(("ranges", "known"), [(1, True), (9000, False)], ids=["NumPy's integers", "long"])
def test_workers_take_states_that_are_no_json_or_too_long_to_hand_on(ds, ranges, known):
    state, inner = saved_by_a_worker(ds)
    inner["position"] = np.int64(inner["position"])
    inner["exclude"]["records"] = [[2 * k, 2 * k + 1] for k in range(N, N + ranges)]
    stream = ds.stream(batch_size=10)
    loader = loader_of(stream, "batches", 1, StatefulDataLoader)
    loader.load_state_dict(state)
    assert len(list(loader)) == 17
    stream.set_epoch(0)
    assert stream.first_step == (4 if known else 0)


@pytest.mark.filterwarnings("ignore:epoch = 0, expected a new one after workers have begun")
@pytest.mark.parametrize("is_look", [True, False], ids=["a look", "a loop given up"])
@pytest.mark.parametrize("later", [{}, {"exclude": {"records": [190, 199]}}], ids=["nothing", "records"])
@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_not_used_up_by_a_loop_that_is_given_up(ds, kind, workers, is_look, later):
    def make(**options):
        stream = ds.stream(**KINDS[kind], **options)
        return stream, loader_of(stream, kind, workers, StatefulDataLoader)

    for had in (7, 21) if later else (7, 21, 45):
        _, loader = make()
        read = [*islice(loader, had)]
        state = copy.deepcopy(loader.state_dict())
        stream, loader = make(**later)
        loader.load_state_dict(state)
        if not is_look:
            stream.set_epoch(0)
        first = next(iter(loader))
        stream.set_epoch(0)
        rest = list(loader)
        assert sorted(first) == sorted(rest[0]) or kind == "samples", "where the loop that was given up began"
        left_out = {190, 199} if later else set()
        assert sorted(each for batch in read + rest for each in batch if each not in left_out) == sorted(
            {*range(N)} - left_out
        )
        stream.set_epoch(1)
        assert sum(map(len, loader)) == N - len(left_out)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_share_a_pass_refuse_to_leave_out_what_they_have_read(ds, kind):
    def make(**options):
        stream = ds.stream(shuffle=True, **KINDS[kind], **options)
        return loader_of(stream, kind, 2, StatefulDataLoader)

    loader = make()
    iterator = iter(loader)
    read = [record for _ in range(5) for record in next(iterator)]
    state = copy.deepcopy(loader.state_dict())
    rest = [record for batch in iterator for record in batch]
    loader = make(exclude={"records": [read[0]]})
    loader.load_state_dict(state)
    with pytest.raises(StateError, match=r"found something before that; give it from"):
        next(iter(loader))
    loader = make(exclude={"records": rest[-2:]})
    loader.load_state_dict(state)
    assert {record for batch in loader for record in batch} == {*rest[:-2]}


@pytest.mark.parametrize("exclude", [{"records": [4, 5]}, {"records": [4]}, {"steps": [2]}], ids=str)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_a_worker_with_nothing_left_has_read_is_not_left_out_of_the_pass(ds, workers, exclude):
    """The batches after it would be those of other workers, each of which would skip one."""

    def make(**options):
        stream = ds[:7].stream(batch_size=2, **options)
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    _, loader = make()
    list(islice(loader, 3))
    state = copy.deepcopy(loader.state_dict())
    stream, loader = make(exclude=exclude)
    loader.load_state_dict(state)
    stream.set_epoch(0)
    if workers > 1:
        with pytest.raises(StateError, match=r"found something before that; give it from"):
            next(iter(loader))
    else:
        assert list(loader) == [[6]]


@pytest.mark.parametrize("kind", KINDS)
def test_workers_refuse_a_state_of_other_steps(ds, kind):
    def make(batch_size=4, world=1):
        batches = {"batch_size": batch_size} if kind == "batches" else {}
        stream = ds.stream(num_replicas=world, rank=0, **batches)
        return loader_of(stream, kind, 2, StatefulDataLoader)

    loader = make()
    list(islice(loader, 4))
    state = copy.deepcopy(loader.state_dict())
    for other in ({"batch_size": 8}, {"world": 2}) if kind == "batches" else ({"world": 2},):
        loader = make(**other)
        loader.load_state_dict(state)
        with pytest.raises(StateError, match=r"with num_replicas = 1 .*; make stream and load"):
            next(iter(loader))


@pytest.mark.filterwarnings("ignore:epoch = 0, expected a new one")  # which persistent workers do not learn of
@pytest.mark.parametrize("snapshots", [1, 8])
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("case", ["whole", "steps left out", "within an epoch", "the epoch after"])
def test_states_of_persistent_workers_are_of_the_pass_that_they_read(ds, case, workers, snapshots):
    options = {"persistent_workers": True, "snapshot_every_n_steps": snapshots}

    def make(state=None):
        exclude = {"steps": [(2, 5)]} if case == "steps left out" else None
        stream = ds.stream(shuffle=True, batch_size=10, exclude=exclude)
        if case == "within an epoch":
            stream.load_state_dict(mmapds.DistributedBatchSampler(ds, 10).state_dict(step=4))
        loader = loader_of(stream, "batches", workers, StatefulDataLoader, **options)
        if state is not None:
            loader.load_state_dict(state)
        return stream, loader

    for stop in (0, 3, 10):
        stream, loader = make()
        list(loader)
        if case == "the epoch after":  # of the rest of the first one, nothing is left
            stream, loader = make(copy.deepcopy(loader.state_dict()))
            stream.set_epoch(1)
        iterator = iter(loader)
        for _ in range(stop):
            next(iterator)
        state = copy.deepcopy(loader.state_dict())
        rest = list(iterator)
        assert len(rest) == 21 - stop
        stream, loader = make(state)
        stream.set_epoch(int(case == "the epoch after"))
        assert list(loader) == rest


@pytest.mark.parametrize("had", [18, 19, 20])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_steps_that_one_of_the_workers_has_passed_are_left_out_once(ds, workers, had):
    """Near the end of an epoch some workers have nothing left to read, and all of them have the new steps."""

    make = partial(stateful, ds, workers)
    _, loader = make()
    list(islice(loader, had))
    state, found = copy.deepcopy(loader.state_dict()), []
    for epoch in range(3):
        stream, loader = make(exclude={"steps": [(20, 21)]})
        loader.load_state_dict(state)
        stream.set_epoch(epoch)
        found.append(len(list(loader)))
        state = copy.deepcopy(loader.state_dict())
    assert found == [20 - had, 21, 21]


@pytest.mark.filterwarnings("ignore:epoch = 0, expected a new one after workers have begun")
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_ranks_agree_on_a_rest_of_which_one_has_no_share(ds, workers):
    def make(rank, **options):
        stream = ds[:5].stream(batch_size=1, num_replicas=2, rank=rank, pad=False, **options)
        return stream, loader_of(stream, "batches", workers, StatefulDataLoader)

    again, later = [], []
    for rank in (0, 1):
        _, loader = make(rank)
        list(islice(loader, 2))
        state = copy.deepcopy(loader.state_dict())
        stream, loader = make(rank)
        loader.load_state_dict(state)
        for _ in range(2):
            stream.set_epoch(0)
            again += islice(loader, 1 - rank)
        stream, loader = make(rank, exclude={"steps": [2], "records": [4]})
        loader.load_state_dict(state)
        for epoch in (0, 1):
            stream.set_epoch(epoch)
            later += loader
    assert again == [[4], [4] if workers else [0]]
    assert later == [[0], [2], [1], [3]], "the step was the last one of the first epoch"
