"""Best-fit decreasing, sample by sample in Python, with a bisect each."""

from tests.support.packs import best_fit_decreasing

from .planner import PACK
from .planner import Planner as _Planner


class Planner(_Planner):
    title = "best-fit decreasing, in Python"

    def batches(self):
        return iter(best_fit_decreasing(self.lengths.tolist(), PACK))
