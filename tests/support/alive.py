"""Samples that know how many of them there are at once."""

import json


class Counted(dict):
    """A decoded sample; `most` is the largest number of them that were alive."""

    alive = most = 0

    def __init__(self, record):
        super().__init__(json.loads(record))
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self):
        Counted.alive -= 1

    @classmethod
    def begin(cls):
        """Forget what was alive before."""
        cls.most = cls.alive
