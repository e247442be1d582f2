"""What many write: shuffle, sort windows of 8,192 records, cut greedily, in Python."""

from bench.bench_plan import by_the_book

from .planner import Planner as _Planner


class Planner(_Planner):
    title = "windows, in Python"

    def batches(self):
        return iter(by_the_book(self.lengths))
