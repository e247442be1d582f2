"""How workers share a pass of a stream, against a list of its steps that are dealt out to them."""

from hypothesis import given
from hypothesis import strategies as st

from mmapds.samplers.stream_shares import Share, has_more, last_read, read_by_all


def dealt(steps, workers, size):
    """The steps of each worker, in its order."""
    blocks = [range(begin, min(begin + size, steps)) for begin in range(0, steps, size)]
    return [[step for block in blocks[worker::workers] for step in block] for worker in range(workers)]


@given(steps=st.integers(0, 200), workers=st.integers(1, 5), size=st.integers(1, 9), data=st.data())
def test_what_workers_have_read(steps, workers, size, data):
    all_of_them = dealt(steps, workers, size)
    counts = [data.draw(st.integers(0, len(own))) for own in all_of_them]
    first, later = read_by_all(counts, size)
    read = {*range(min(first, steps))} | {step for begin, end in later for step in range(begin, end)}
    assert read == {step for own, count in zip(all_of_them, counts, strict=True) for step in own[:count]}
    assert last_read(counts, size) == max(read, default=-1)
    assert has_more(counts, size, steps) == (len(read) < steps)
    assert all(begin < end <= steps for begin, end in later)
    assert list(later) == sorted(later)
    for worker, (own, count) in enumerate(zip(all_of_them, counts, strict=True)):
        share = Share(worker, workers, size)
        assert [share.step_of(item) for item in range(len(own))] == own
        assert share.step_of(count) >= (own[count] if count < len(own) else steps)


@given(steps=st.integers(0, 200), workers=st.integers(1, 5), size=st.integers(1, 9))
def test_how_many_steps_are_of_a_worker(steps, workers, size):
    counts = [Share(worker, workers, size).steps_of(steps) for worker in range(workers)]
    assert counts == [len(own) for own in dealt(steps, workers, size)]


def test_forged_counts_take_no_time():
    assert read_by_all([0, 2**60], 1) == (0, ())
    assert read_by_all([0, 2**60], 64) == (0, ())
