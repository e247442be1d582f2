"""lhotse: a buffer of cuts that are read as they come, in buckets; a token is 0.01 seconds."""

import json

from lhotse import CutSet
from lhotse.dataset import DynamicBucketingSampler

from .planner import BUDGET
from .planner import Planner as _Planner

SECONDS = 0.01  # of a token


class Planner(_Planner):
    title = "lhotse DynamicBucketingSampler"
    package = "lhotse"

    @property
    def _path(self):
        return self.folder / "cuts.jsonl"

    def prepare(self):
        with open(self._path, "w") as file:
            for number, length in enumerate(self.lengths.tolist()):
                cut = {"id": str(number), "start": 0, "duration": round(length * SECONDS, 2), "channel": 0}
                file.write(json.dumps({**cut, "supervisions": [], "type": "MonoCut"}) + "\n")

    def _sampler(self):
        cuts = CutSet.from_jsonl_lazy(self._path)
        return DynamicBucketingSampler(cuts, max_duration=BUDGET * SECONDS, shuffle=True, world_size=1, rank=0)

    def batches(self):
        return map(_numbers, self._sampler())

    def state(self, step):
        sampler = self._sampler()
        batches = iter(sampler)
        for _ in range(step):
            next(batches)
        return sampler.state_dict()

    def resumed(self, state):
        sampler = self._sampler()
        sampler.load_state_dict(state)
        return map(_numbers, sampler)


def _numbers(batch):
    return [int(cut.id) for cut in batch]
