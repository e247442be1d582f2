"""TRL: tokens copied into packs, best-fit decreasing within each batch of `Dataset.map`."""

import numpy as np
import pyarrow as pa
from datasets import Dataset
from trl import pack_dataset

from .planner import PACK
from .planner import Planner as _Planner


class Planner(_Planner):
    title = "TRL pack_dataset, bfd"
    package = "trl"
    cannot = {"resume": "its packs are rows of a dataset, which is written before training"}

    @property
    def _path(self):
        return str(self.folder / "tokens")

    def prepare(self):
        """Write records of tokens, each of which is the number of the record."""
        ends = np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])
        tokens = np.repeat(np.arange(len(self.lengths), dtype=np.int32), self.lengths)
        table = pa.table({"input_ids": pa.LargeListArray.from_arrays(ends, tokens)})
        Dataset(table).save_to_disk(self._path)

    def batches(self):
        packed = pack_dataset(Dataset.load_from_disk(self._path), PACK, "bfd", {"keep_in_memory": True})
        for row in packed.with_format("numpy"):
            yield np.unique(row["input_ids"]).tolist()
