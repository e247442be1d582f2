"""mmapds: a plan over sorted lengths that says at once which batch comes at which step."""

import mmapds

from .planner import BUDGET
from .planner import Planner as _Planner


class Planner(_Planner):
    title = "mmapds TokenBudgetBatchSampler"
    package = "mmap-datasets"

    def _sampler(self):
        return mmapds.TokenBudgetBatchSampler(self.lengths, BUDGET, num_replicas=1, rank=0)

    def batches(self):
        return iter(self._sampler())

    def state(self, step):
        return self._sampler().state_dict(step=step)

    def resumed(self, state):
        sampler = self._sampler()
        sampler.load_state_dict(state)
        return iter(sampler)
