"""mmapds: a plan of packs over sorted lengths."""

import mmapds

from .mmapds import Planner as _Planner
from .planner import PACK


class Planner(_Planner):
    title = "mmapds PackingBatchSampler"

    def _sampler(self):
        return mmapds.PackingBatchSampler(self.lengths, PACK, num_replicas=1, rank=0)
