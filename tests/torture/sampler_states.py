"""States of every sampler in which some values are replaced, deleted or added.

They are refused with StateError, or a pass begins with them that has no record out of range, and none that it excludes.
"""

import json

import numpy as np

import mmapds
from tests.support.forged import NUMBERS, ODD, changed, places, value_at
from tests.support.samplers import make_samplers
from tests.support.torture import is_refused, repeat

RECORDS = 100  # of every sampler
STEPS = 400
"""At most so many are read of a pass."""
STATES = 50
"""In a case, of one sampler."""
LENGTHS = np.random.default_rng(0).integers(1, 60, RECORDS)


def make(kind, **options):
    """A new sampler of a kind."""
    if kind < 4:
        return make_samplers(**options)[kind]
    if kind == 6:
        return mmapds.PackingBatchSampler(LENGTHS, 200, **options)
    return mmapds.TokenBudgetBatchSampler(LENGTHS, 200, planner=("bucket", "window")[kind - 4], **options)


def forged(random, state):
    """A state in which something else stands, and what."""
    found = list(places(state))
    place = random.choice(found[1:])
    now = value_at(state, place)
    choices = [
        *ODD,
        "gone",
        *NUMBERS,
        [[0, 5]],
        [[5, 0]],
        [[-3, 2]],
        [[0, 2**63]],
        [[1]],
        [[0, 2], [1, 3]],
        [["a", "b"]],
    ]
    if isinstance(now, int):
        choices += [now + 1, now - 1, -now, float(now), str(now)] * 4
    choices += [value_at(state, random.choice(found))] * 4
    if isinstance(now, dict) and random.random() < 0.5:
        place = (*place, random.choice(["", "extra", "records", "steps", "seed"]))
        holder = value_at(state, place[:-1])
        state = changed(state, place[:-1], holder | {place[-1]: random.choice(choices)})
    else:
        state = changed(state, place, random.choice(choices))
    return state, place


def load_and_read(kind, options, state):
    """Begin a pass with a state; see above."""
    sampler = make(kind, **options)
    if is_refused(lambda: sampler.load_state_dict(state)):
        return
    excluded = sampler.state_dict()["exclude"]
    records = []

    def read():
        for step, item in enumerate(sampler):
            records.extend(item if isinstance(item, list) else [item])
            if step == STEPS:
                break

    is_refused(read)
    is_refused(lambda: json.dumps(sampler.state_dict()))
    assert all(0 <= record < RECORDS for record in records), "records out of range"
    ranges = excluded.get("records", [])
    assert not {*records} & {each for begin, end in ranges for each in range(begin, min(end, RECORDS))}, "excluded ones"


def one(random):
    kind = random.randrange(7)
    options = {"seed": random.randrange(3), "num_replicas": random.choice([1, 2, 3]), "rank": 0}
    exclude = random.choice([None, {"records": [(3, 9), (50, 60)]}, {"steps": [(2, 4)]}])
    if exclude:
        options["exclude"] = exclude
    sampler = make(kind, **options)
    for _, _ in zip(range(random.randrange(len(sampler) + 1)), sampler, strict=False):
        pass
    state = json.loads(json.dumps(sampler.state_dict()))
    options.pop("exclude", None)
    for _ in range(STATES):
        other, place = forged(random, state)
        try:
            load_and_read(kind, options, other)
        except Exception as error:
            raise AssertionError(f"{type(sampler).__name__}: {place} in {other}: {error!r}") from error


def run(seconds, seed):
    """Forge until the time is over; see tests/support/torture.py."""
    return f"{repeat(one, seconds, seed) * STATES:,} forged states: refused, or no record that they exclude"
