"""Work that threads share: its results in order, and no failure that passes for the end."""

import threading

import pytest

from mmapds.storage.threads import in_order


def tasks(count, failure=None):
    yield from range(count)
    if failure is not None:
        raise failure


def run(source, workers, found, work=lambda task, slot: (task, slot)):
    """Append every result to a list, as it comes."""
    for task, _ in in_order(work, source, workers=workers, slots=[object() for _ in range(workers + 2)]):
        found.append(task)


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 100])
def test_results_come_in_the_order_of_the_tasks(workers, count):
    found = []
    run(tasks(count), workers, found)
    assert found == list(range(count))


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 100])
def test_tasks_that_fail_to_come_are_an_error_in_their_turn(workers, count):
    seen = []
    with pytest.raises(OSError, match="went away"):
        run(tasks(count, OSError("went away")), workers, seen)
    assert seen == list(range(count))


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_work_that_fails_is_an_error_in_its_turn(workers):
    def work(task, slot):
        if task == 7:
            raise ValueError("seven")
        return task, slot

    seen, before = [], set(threading.enumerate())  # libraries of other tests may have some
    with pytest.raises(ValueError, match="seven"):
        run(tasks(100), workers, seen, work)
    assert seen == list(range(7))
    assert set(threading.enumerate()) <= before
