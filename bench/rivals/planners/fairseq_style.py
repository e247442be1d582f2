"""fairseq's way, written anew from its description: sort by length, equal ones at random, cut, shuffle the batches.

A batch takes records while its longest, times their number, stays within the budget; its size is then rounded down to a
multiple of 8, if it has so many. Where fairseq looks at each record in Cython, this looks at each batch in NumPy.
"""

import numpy as np

from .planner import BUDGET
from .planner import Planner as _Planner

MULTIPLE = 8


class Planner(_Planner):
    title = "fairseq-style, in NumPy"
    package = "numpy"

    def batches(self):
        generator = np.random.default_rng(1)
        order = generator.permutation(len(self.lengths))
        order = order[np.argsort(self.lengths[order], kind="stable")]
        sizes = self.lengths[order].astype(np.int64)
        bounds = list(cuts(sizes, BUDGET, MULTIPLE))
        for number in generator.permutation(len(bounds)).tolist():
            yield order[slice(*bounds[number])].tolist()


def cuts(sizes, budget, multiple):
    """Yield the bounds of batches of ascending lengths."""
    begin = 0
    while begin < len(sizes):
        part = sizes[begin : begin + max(budget // max(int(sizes[begin]), 1), 1)]
        fitting = int(np.searchsorted(part * np.arange(1, len(part) + 1), budget, "right"))
        taken = max(fitting, 1)
        if begin + taken < len(sizes):
            taken = max(taken // multiple * multiple, taken % multiple)
        yield begin, begin + taken
        begin += taken
