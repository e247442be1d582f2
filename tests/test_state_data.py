"""States know the records they are of: as many other records are refused, the same ones elsewhere go on."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
import torch.utils.data

import mmapds
from mmapds import (
    ChunkedSampler,
    DataLoader,
    DistributedBatchSampler,
    DistributedSampler,
    MixtureSampler,
    PackingBatchSampler,
    StateError,
    TokenBudgetBatchSampler,
)
from tests.support.messages import check

N = 40
SAMPLERS = {
    "records": lambda ds: DistributedSampler(ds, 2, 0),
    "batches": lambda ds: DistributedBatchSampler(ds, 4, 2, 0),
    "chunks": lambda ds: ChunkedSampler(ds, 4, 2, 0),
    "mixture": lambda ds: MixtureSampler([ds, ds], [1, 2], 2, 0),
    "budget": lambda ds: TokenBudgetBatchSampler(ds, 60, num_replicas=2, rank=0),
    "windows": lambda ds: TokenBudgetBatchSampler(ds, 60, num_replicas=2, rank=0, planner="window"),
    "packs": lambda ds: PackingBatchSampler(ds, 60, num_replicas=2, rank=0),
    "packs in windows": lambda ds: PackingBatchSampler(
        ds, 60, planner="window", order=mmapds.orders.Chunked(len(ds), 8, mix_chunks=2), num_replicas=2, rank=0
    ),
    "stream": lambda ds: ds.stream(shuffle=True, num_replicas=2, rank=0),
    "loader": lambda ds: DataLoader(ds, batch_size=4, sampler=DistributedSampler(ds, 2, 0)),
    "loader of torch's sampler": lambda ds: DataLoader(ds, batch_size=4, shuffle=True),
}


def saved(state):
    """A state as a checkpoint gives it back."""
    return json.loads(json.dumps(state))


def refusal(sampler, state):
    with pytest.raises(StateError) as error:
        sampler.load_state_dict(state)
    check(str(error.value))
    return str(error.value)


@pytest.fixture
def ds(write):
    """Records with equal lengths at positions of equal remainder, so that every other one is as long in both halves."""
    return made(write, "a.jsonl")


def made(write, name, first=0):
    path = write([{"id": first + i, "n": 1 + i % 4} for i in range(N)], name)
    mmapds.build(path, length="n")
    return mmapds.open(path)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_as_many_other_records_are_refused(write, ds, kind):
    make = SAMPLERS[kind]
    state = saved(make(ds).state_dict())
    assert refusal(make(made(write, "b.jsonl", first=100)), state) == (
        f"state: of other records: expected those of {', '.join(['b.jsonl'] * (1 + (kind == 'mixture')))}, found those "
        f"of {', '.join(['a.jsonl'] * (1 + (kind == 'mixture')))}; make the sampler of the files, in the order, and of "
        "the view that it was of when the state was saved"
    )
    for view in (ds[::-1], ds[np.roll(np.arange(N), 1)]):
        assert "found others of the same names" in refusal(make(view), state)
    make(ds).load_state_dict(state)
    os.utime(ds.sources[0], (1, 1))
    make(mmapds.open(ds.sources[0])).load_state_dict(state)
    made(write, "a.jsonl", first=7)
    assert "other content" in refusal(make(mmapds.open(ds.sources[0])), state)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_same_records_go_on_wherever_they_are(tmp_path, ds, kind):
    make = SAMPLERS[kind]
    state = saved(make(ds).state_dict())
    for same in (
        ds[:],
        ds[np.arange(N)],
        ds[np.ones(N, bool)],
        ds.map(str),
        mmapds.open(ds.sources[0], decode="bytes"),
    ):
        make(same).load_state_dict(state)
    shutil.copytree(os.path.dirname(ds.sources[0]), tmp_path / "moved")
    moved = tmp_path / "moved" / "renamed.jsonl"
    os.rename(tmp_path / "moved" / "a.jsonl", moved)
    os.remove(tmp_path / "moved" / "a.jsonl.mmx")
    mmapds.build(moved, length="n")
    make(mmapds.open(moved)).load_state_dict(state)


def scribble(state):
    """Change every dict and list of a state in place."""
    for value in state.values() if isinstance(state, dict) else state:
        if isinstance(value, dict | list):
            scribble(value)
    if isinstance(state, dict):
        state |= dict.fromkeys(state, 0)
    else:
        state.append(0)


@pytest.mark.parametrize("kind", SAMPLERS)
def test_a_state_is_a_copy_of_what_the_sampler_has(ds, kind):
    sampler = SAMPLERS[kind](ds)
    taken = sampler.state_dict()
    first = saved(taken)
    scribble(taken)
    assert saved(sampler.state_dict()) == first
    batches = iter(sampler)
    next(batches)
    loaded = saved(sampler.state_dict())
    sampler.load_state_dict(loaded)
    second = saved(sampler.state_dict())
    scribble(loaded)
    scribble(sampler.state_dict())
    assert saved(sampler.state_dict()) == second


@pytest.mark.parametrize("kind", ["records", "batches", "chunks", "mixture", "budget", "windows"])
def test_a_file_that_grew_is_gone_on_with_as_the_message_says(write, ds, kind):
    """A sampler of the lengths or the range of the records of before has the rest of the epoch."""
    make = SAMPLERS[kind]
    sampler = make(ds)
    steps = list(sampler)
    state = saved(sampler.state_dict(step=1))
    path = write([{"id": i, "n": 1 + i % 4} for i in range(N + 7)], "a.jsonl")
    mmapds.build(path, length="n")
    grown = mmapds.open(path)
    for view in (grown, grown[:N]):
        message = refusal(make(view), state)
        assert "where a file grew at its end, finish the epoch over ds[:n]" in message
    rest = make(grown[:N].lengths if kind in ("budget", "windows") else range(N))
    rest.load_state_dict(state)
    assert list(rest) == steps[1:]


def test_files_in_another_order_are_refused(write):
    a, b = made(write, "a.jsonl"), made(write, "b.jsonl", first=100)
    state = saved(DistributedSampler(mmapds.concat([a, b])).state_dict())
    message = refusal(DistributedSampler(mmapds.concat([b, a])), state)
    assert message.startswith(
        "state: of other records: expected those of b.jsonl, a.jsonl, found those of a.jsonl, b.j"
    )
    together = mmapds.build([a.sources[0], b.sources[0]], out=os.path.dirname(a.sources[0]) + "/all.mmx")
    DistributedSampler(mmapds.open(together)).load_state_dict(state)


def test_other_records_left_out_of_the_same_file_are_other_records(write):
    path = write([{"a": 1}, {"a": 1, "b": 1}, {"b": 1}, {"a": 1, "b": 1}])
    states = []
    for column in "ab":
        mmapds.build(path, length=column, missing="skip")
        states.append(DistributedSampler(mmapds.open(path)).state_dict())
    assert states[0]["epoch_size"] == states[1]["epoch_size"] == 3
    assert "found others of the same names" in refusal(DistributedSampler(mmapds.open(path)), states[0])


def test_a_view_that_differs_in_few_records_is_another_view(write):
    path = write(b"".join(b"%d\n" % i for i in range(300_000)))
    ds = mmapds.open(path, build=True)
    without_two, without_four = ds[np.delete(np.arange(300_000), 2)], ds[np.delete(np.arange(300_000), 40)]
    state = DistributedSampler(without_two).state_dict()
    assert "another view" in refusal(DistributedSampler(without_four), state)


def test_zipped_datasets_and_lists_of_datasets(write, ds):
    other = made(write, "b.jsonl", first=100)
    state = saved(DistributedSampler(mmapds.zip(x=ds, y=other)).state_dict())
    DistributedSampler(mmapds.zip(x=ds, y=other)[:]).load_state_dict(state)
    for wrong in (mmapds.zip(x=other, y=ds), mmapds.zip(x=ds, y=ds), ds):
        refusal(DistributedSampler(wrong), state)
    state = saved(MixtureSampler([ds, other], [1, 1]).state_dict())
    refusal(MixtureSampler([other, ds], [1, 1]), state)
    MixtureSampler([ds[:], other], [1, 1]).load_state_dict(state)
    MixtureSampler([N, N], [1, 1]).load_state_dict(state)


def test_samplers_of_a_length_alone_tell_nothing_apart(ds):
    state = saved(DistributedSampler(range(N)).state_dict())
    assert state["dataset"] is None
    for dataset in (range(N), [0] * N, ds, torch.utils.data.Subset(ds, range(N))):
        DistributedSampler(dataset).load_state_dict(state)
        DistributedSampler(range(N)).load_state_dict(saved(DistributedSampler(dataset).state_dict()))


def test_lengths_are_compared_where_they_are_given(ds):
    lengths = np.asarray(ds.lengths)
    for make in (
        lambda lengths: TokenBudgetBatchSampler(lengths, 60),
        lambda lengths: TokenBudgetBatchSampler(ds, 60, target_lengths=lengths),
    ):
        state = saved(make(lengths).state_dict())
        make(lengths.astype(np.int64).copy()).load_state_dict(state)
        make(lengths.tolist()).load_state_dict(state)
        assert "of other lengths" in refusal(make(np.roll(lengths, 1)), state)
    TokenBudgetBatchSampler(lengths, 60).load_state_dict(TokenBudgetBatchSampler(ds, 60).state_dict())
    TokenBudgetBatchSampler(ds, 60).load_state_dict(TokenBudgetBatchSampler(lengths, 60).state_dict())


@pytest.mark.parametrize("damage", [3, "a", [], {"fingerprint": 3}, {"fingerprint": None, "sources": None}])
def test_a_damaged_identity_is_refused(ds, damage):
    state = DistributedSampler(ds).state_dict()
    refusal(DistributedSampler(ds), {**state, "dataset": damage})


def test_a_state_names_few_sources(write):
    parts = [made(write, f"{name}.jsonl", first=100 * i) for i, name in enumerate("abcdef")]
    state = DistributedSampler(mmapds.concat(parts)).state_dict()
    assert state["dataset"]["sources"] == "a.jsonl, b.jsonl, c.jsonl and 3 more"


@pytest.mark.parametrize("odd", [np.int64(3), 3, None, "given", [1]])
def test_what_a_state_excludes_may_be_odd(odd):
    sampler = DistributedSampler(range(100), 1, 0)
    with pytest.raises(mmapds.StateError, match="found a malformed one"):
        sampler.load_state_dict(sampler.state_dict() | {"exclude": odd})


@pytest.mark.parametrize("key", ["version", "epoch", "position", "epoch_size", "order", "seed", "n"])
@pytest.mark.parametrize("odd", [np.array([1, 2]), torch.ones(2), [np.array([1, 2])], np.array(3), {}])
def test_arrays_in_a_state_are_refused(key, odd):
    sampler = DistributedSampler(range(100), 1, 0)
    state = sampler.state_dict()
    (state["order"] if key in ("seed", "n") else state)[key] = odd
    if key in ("epoch", "position") and isinstance(odd, np.ndarray) and not odd.ndim:
        sampler.load_state_dict(state)  # as good as the number
        return
    with pytest.raises(mmapds.StateError):
        sampler.load_state_dict(state)


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    "key", ["version", "epoch", "position", "epoch_size", "order", "seed", "n", "dataset", "exclude"]
)
@pytest.mark.parametrize("odd", [nested(100_000), {"a": nested(100_000)}, int, {nested.__name__}, [10**5000]])
def test_what_no_message_can_show_is_refused_in_a_state(ds, key, odd):
    if key == "dataset" and isinstance(odd, dict):
        odd = {"fingerprint": odd}
    sampler = DistributedSampler(ds, 1, 0)
    state = sampler.state_dict()
    (state["order"] if key in ("seed", "n") else state)[key] = odd
    with pytest.raises(mmapds.StateError) as error:
        sampler.load_state_dict(state)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("key", ["fingerprint", "sources"])
@pytest.mark.parametrize("odd", [np.array(["a", "b"]), np.array([]), torch.ones(2), 5, nested(100_000)])
def test_an_identity_that_is_no_text_is_refused(ds, key, odd):
    sampler = DistributedSampler(ds, 1, 0)
    state = sampler.state_dict()
    state["dataset"] |= {"fingerprint": "0" * 16} | {key: odd}
    with pytest.raises(mmapds.StateError, match="of other records"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize("key", ["sources", "lengths"])
@pytest.mark.parametrize("odd", ["x\ny\x1b[31m", "z" * 10**6, ["a"] * 10**5, nested(3_000), [10**5000], 5])
def test_what_an_identity_has_is_shown_on_one_line_and_cut(ds, key, odd):
    sampler = TokenBudgetBatchSampler(ds, 60) if key == "sources" else TokenBudgetBatchSampler(np.array(ds.lengths), 60)
    state = sampler.state_dict()
    state["dataset"] |= {"fingerprint": "0" * 16, key: odd}
    message = refusal(sampler, state)
    assert len(message) < 400
    assert message.isprintable()
