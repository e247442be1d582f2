"""What `exclude` leaves out, of which epoch, through interruptions: records for ever, steps once."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmapds import DistributedBatchSampler
from tests.support.sampler_kinds import KINDS, N, batches_of, epochs_of, every_kind, every_pair, loader_over


@every_pair
def test_what_is_new_in_exclude_is_left_out_of_the_epoch_after_an_end(make, load):
    records = [7, (20, 30)]
    exclude = {"steps": [3, (5, 7)], "records": records}
    expected = {0: []}
    for epoch, left_out in ((1, exclude), (2, {"records": records})):
        whole = make(exclude=left_out)
        whole.set_epoch(epoch)
        expected[epoch] = list(loader_over(whole, torch.utils.data.DataLoader))
    finished = load(make())
    list(finished)
    rare = getattr(finished, "snapshot_every_n_steps", 1) > 1  # the state is then one from within the epoch
    for first in (1,) if rare else (0, 1):
        sampler = make(exclude=exclude)
        resumed = load(sampler)
        resumed.load_state_dict(finished.state_dict())
        read = {}
        for epoch in range(first, 3):
            sampler.set_epoch(epoch)
            read[epoch] = list(resumed)
        assert {0: [], **read} == expected


def records_in(steps):
    return np.concatenate([np.ravel(step) for step in steps]).tolist() if steps else []


@every_kind
@pytest.mark.parametrize("chosen", [None, 2, 4])
@pytest.mark.parametrize("chooses_again", [True, False])
def test_what_is_new_in_exclude_is_left_out_of_the_rest_whichever_epoch_was_chosen(make, chosen, chooses_again):
    before = make()
    before.set_epoch(2)
    steps = iter(before)
    shown = [next(steps) for _ in range(3)]
    state = before.state_dict()
    rest = list(steps)
    bad = records_in(rest)[5]
    sampler = make(exclude={"steps": [before.first_step + len(shown) + 1], "records": [bad]})
    if chosen is not None:
        sampler.set_epoch(chosen)
    sampler.load_state_dict(state)
    if chooses_again:
        sampler.set_epoch(sampler.epoch)
    assert sampler.epoch == 2
    read = list(sampler)
    assert set(records_in(read)) <= set(records_in(rest)) - {bad}
    if chooses_again or chosen != 4:
        assert not set(records_in(read)) & set(records_in(rest[1:2]))
    for epoch in (3, 4, 5):
        sampler.set_epoch(epoch)
        assert bad not in records_in(list(sampler))


@every_kind
@pytest.mark.parametrize("chosen_first", [True, False])
def test_what_waits_for_the_next_epoch_is_not_lost_where_the_end_is_saved_again(make, chosen_first):
    exclude = {"steps": [(2, 4)], "records": [7]}
    ended = make()
    list(ended)
    (whole,) = epochs_of(make, [1], exclude=exclude)
    state = ended.state_dict()
    for _ in range(3):
        sampler = make(exclude=exclude)
        if chosen_first:
            sampler.set_epoch(0)
        sampler.load_state_dict(state)
        sampler.set_epoch(0)
        assert list(sampler) == []
        state = json.loads(json.dumps(sampler.state_dict()))
    sampler.set_epoch(1)
    assert list(sampler) == whole


@settings(max_examples=60)
@given(st.data())
def test_a_job_that_is_interrupted_leaves_out_what_one_does_that_is_not(data):
    make = KINDS[data.draw(st.sampled_from(sorted(KINDS)), "kind")]
    before = make()
    steps = len(list(before))
    before.set_epoch(1)
    list(islice(iter(before), data.draw(st.one_of(st.integers(0, steps), st.just(steps)), "read before")))
    numbers = {"steps": st.integers(2, steps - 1), "records": st.integers(2, N - 1)}
    exclude = {kind: data.draw(st.lists(each, max_size=4), kind) for kind, each in numbers.items()}

    def job(state, chosen=None, look=0):
        sampler = make(exclude=exclude)
        if chosen is not None:
            sampler.set_epoch(chosen)
        sampler.load_state_dict(json.loads(json.dumps(state)))
        if look:
            list(islice(iter(sampler), look))
        return sampler

    whole = job(before.state_dict())
    expected, found = {}, {}
    for epoch in range(whole.epoch, 8):
        whole.set_epoch(epoch)
        expected[epoch] = list(whole)
    sampler = job(before.state_dict())
    while (epoch := job(sampler.state_dict()).epoch) < 4:
        how = data.draw(st.sampled_from(["never", "after the load", "after a look", "before the load"]), "chosen")
        look = data.draw(st.integers(1, 2 * steps), "drawn ahead") if how == "after a look" else 0
        sampler = job(sampler.state_dict(), epoch if how == "before the load" else None, look)
        if how.startswith("after"):
            for _ in range(data.draw(st.integers(1, 3), "times")):
                sampler.set_epoch(epoch)
        if data.draw(st.booleans(), "begins again"):
            list(islice(iter(sampler), data.draw(st.integers(0, sampler.current_pass.steps - 1), "drawn")))
            sampler.set_epoch(epoch)
        found.setdefault(epoch, []).extend(islice(iter(sampler), data.draw(st.integers(1, 2 * steps), "steps")))
    assert found == {epoch: expected[epoch] for epoch in found}
    assert all(epoch in found or not read for epoch, read in expected.items() if epoch < 4)
    assert not {record for read in expected.values() for record in records_in(read)} & set(exclude["records"])


@every_kind
def test_nothing_is_left_of_an_epoch_of_which_all_is_left_out(make):
    before = make()
    steps = len(list(before))
    before.set_epoch(1)
    list(islice(iter(before), 3))
    sampler = make(exclude={"steps": [(3, steps)]})
    sampler.set_epoch(1)
    sampler.load_state_dict(before.state_dict())
    assert list(sampler) == list(sampler) == [], "StatefulDataLoader begins two passes"
    sampler.set_epoch(2)
    assert list(sampler) == epochs_of(make, [2])[0]


@every_kind
def test_a_loop_without_epochs_goes_on_where_all_that_was_left_is_left_out(make):
    before, steps = make(), len(make())
    list(islice(iter(before), 3))
    exclude = {"steps": [(3, steps)]}
    sampler, resumed = make(exclude=exclude), make(exclude=exclude)
    sampler.load_state_dict(before.state_dict())
    assert sampler.epoch == 1
    resumed.load_state_dict(sampler.state_dict())
    assert list(sampler) == list(resumed) == epochs_of(make, [1])[0]


@every_kind
def test_a_loop_without_epochs_goes_on_where_all_of_the_next_epoch_is_left_out(make):
    before = make()
    steps = len(list(before))
    sampler = make(exclude={"steps": [(0, steps)]})
    sampler.load_state_dict(before.state_dict())
    assert list(sampler) == list(sampler) == [], "StatefulDataLoader begins two passes"
    assert list(sampler) == epochs_of(make, [1])[0]


def test_excluded_records_count_where_a_state_comes_to_more_ranks():
    def make(replicas):
        return DistributedBatchSampler(range(40), 4, replicas, 0, False, drop_last=True, exclude={"records": [38]})

    before = make(1)
    list(islice(iter(before), 8))
    after = make(2)
    after.load_state_dict(before.state_dict())
    assert after.epoch == 1, "7 records are left, and a step takes 8"
    assert len(list(after)) == 4


@every_kind
@pytest.mark.parametrize("is_end", [False, True])
def test_new_steps_wait_for_the_next_epoch_that_is_chosen(make, is_end):
    before, exclude = make(), {"steps": [(2, 5)]}
    before.set_epoch(2)
    list(before if is_end else islice(iter(before), 3))
    sampler, resumed = make(exclude=exclude), make(exclude=exclude)
    sampler.set_epoch(2 if is_end else 3)
    sampler.load_state_dict(before.state_dict())
    list(sampler)
    sampler.set_epoch(7)
    sampler.set_epoch(5)
    whole = epochs_of(make, [5])[0]
    resumed.load_state_dict(sampler.state_dict())
    assert list(sampler) == list(resumed) == whole[:2] + whole[5:]
    sampler.set_epoch(6)
    assert list(sampler) == epochs_of(make, [6])[0]


@every_kind
def test_a_step_may_be_left_out_repeatedly_however_its_range_is_written(make):
    before, whole = make(), list(make())
    for first, then in [
        ([(3, 5)], [(3, 5), 4]),
        ([3, 4], [(3, 5), 4]),
        ([(3, 5)], [3, 4, 4]),
        ([4, 3], [(4, 5), (3, 5)]),
    ]:
        once = make(exclude={"steps": first})
        twice, directly = make(exclude={"steps": then}), make(exclude={"steps": then})
        once.load_state_dict(before.state_dict())
        twice.load_state_dict(once.state_dict())
        directly.load_state_dict(before.state_dict())
        assert list(once) == whole[:3] + whole[5:]
        assert list(twice) == list(directly) == [*whole[:3], whole[5], *whole[7:]], (first, then)


@every_kind
def test_the_first_step_may_be_left_out_repeatedly(make):
    exclude = {"steps": [(0, 1), (0, 1), (1, 2)]}
    before, whole = make(exclude=exclude), list(make())
    resumed = make(exclude=exclude)
    resumed.load_state_dict(before.state_dict())
    assert list(before) == list(resumed) == whole[3:]


@every_pair
def test_epochs_after_a_first_pass_without_a_step_are_whole(make, load):
    steps = len(make())
    for options in [
        {"start_step": steps},
        {"exclude": {"steps": [(0, steps)]}},
        {"start_step": 3, "exclude": {"steps": [(3, steps)]}},
    ]:
        sampler = make(**options)
        loader, found = load(sampler), []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            found.append([list(map(int, batch)) for batch in loader])
        assert found == [[], *batches_of(make, [1, 2])], options


@every_kind
def test_a_first_pass_without_a_step_is_the_end_of_its_epoch(make):
    steps = len(make())
    for options in [{"start_step": steps}, {"exclude": {"steps": [(0, steps)]}}]:
        before = make(**options)
        assert list(before) == []
        resumed = make()
        resumed.load_state_dict(before.state_dict())
        assert (resumed.epoch, list(resumed)) == (1, epochs_of(make, [1])[0]), options
        assert list(before) == epochs_of(make, [0])[0], "start_step and the steps of exclude are of the first pass"


def test_nothing_is_left_of_an_excluded_rest_for_fewer_ranks_that_have_a_step_in_its_tail():
    def make(replicas, **options):
        return DistributedBatchSampler(range(20), 4, replicas, 0, drop_last=True, **options)

    before = make(2)
    next(iter(before))
    excluding = make(2, exclude={"steps": [(1, 2)]})
    excluding.set_epoch(0)
    excluding.load_state_dict(before.state_dict())
    assert list(excluding) == []
    fewer = make(1)
    fewer.load_state_dict(excluding.state_dict())
    assert fewer.epoch == 1, "steps of 8 of 20 samples leave 4, which drop_last left out"


@every_kind
def test_steps_before_a_resume_are_shown_as_they_were_read(make):
    exclude = {"records": [*range(0, N, 5)]}
    sampler = make(exclude=exclude)
    sampler.set_epoch(2)
    steps = iter(sampler)
    read = [records_in([next(steps)]) for _ in range(6)]
    resumed = make(exclude=exclude)
    resumed.load_state_dict(sampler.state_dict())
    assert [records_in([resumed.indices_at(step)[0]]) for step in range(6)] == read


@every_kind
def test_steps_wait_while_a_loader_looks_at_the_epoch_that_they_wait_for(make):
    before, exclude = make(), {"steps": [(2, 5)]}
    before.set_epoch(3)
    for chosen in (None, 4):
        sampler = make(exclude=exclude)
        if chosen is not None:
            sampler.set_epoch(chosen)
        sampler.load_state_dict(before.state_dict(step=len(before)))
        next(iter(sampler))
        sampler.set_epoch(6)
        assert len(list(sampler)) == len(before) - (3 if chosen is None else 0), "of a chosen epoch it was no look"


@every_kind
def test_steps_are_left_out_once_of_an_epoch_chosen_before_the_load(make):
    before = make()
    whole, (fifth,) = epochs_of(make, [0])[0], epochs_of(make, [5])
    sampler = make(exclude={"steps": [(2, 5)]})
    sampler.set_epoch(5)
    sampler.load_state_dict(before.state_dict(step=4))
    assert list(sampler) == whole[4:]
    assert list(sampler) == fifth[:2] + fifth[5:]
    sampler.set_epoch(5)
    assert list(sampler) == fifth
