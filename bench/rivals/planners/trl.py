"""TRL: tokens copied into packs, best-fit decreasing within each batch of `Dataset.map`."""

import numpy as np
import pyarrow as pa
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter
from trl import pack_dataset

from .planner import PACK
from .planner import Planner as _Planner

AT_ONCE = 50_000  # records that are written at a time: their tokens take some 100 MB


class Planner(_Planner):
    title = "TRL pack_dataset, bfd"
    package = "trl"
    cannot = {"resume": "its packs are rows of a dataset, which is written before training"}

    @property
    def _path(self):
        return str(self.folder / "tokens.arrow")

    def prepare(self):
        """Write records of tokens, each of which is the number of the record."""
        with ArrowWriter(path=self._path) as writer:
            for first in range(0, len(self.lengths), AT_ONCE):
                lengths = self.lengths[first : first + AT_ONCE]
                ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
                tokens = np.repeat(np.arange(first, first + len(lengths), dtype=np.int32), lengths)
                writer.write_table(pa.table({"input_ids": pa.LargeListArray.from_arrays(ends, tokens)}))
            writer.finalize()

    def batches(self):
        packed = pack_dataset(Dataset.from_file(self._path), PACK, "bfd", {"keep_in_memory": True})
        for row in packed.with_format("numpy"):
            yield np.unique(row["input_ids"]).tolist()
