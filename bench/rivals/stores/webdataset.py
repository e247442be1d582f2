"""WebDataset: shards of tar, read as a stream through a buffer."""

import orjson
import webdataset

from bench.support.memory import stream_memory

from .store import Store as _Store

SHARD = 10_000  # records
BUFFER = 1_000


def decoded(samples):
    """Yield the records of samples; `map` would add their keys."""
    for sample in samples:
        yield orjson.loads(sample["json"])


class Store(_Store):
    title = "WebDataset"
    how = f"tars of {SHARD:,} records; shards and a buffer of {BUFFER:,} are shuffled, not all records"
    package = "webdataset"
    cannot = dict.fromkeys(("read", "batch"), "it is a stream, in which no record has a number")

    def prepare(self):
        with (
            webdataset.ShardWriter(str(self.folder / "%06d.tar"), maxcount=SHARD, verbose=0) as writer,
            open(self.source, "rb") as file,
        ):
            for number, line in enumerate(file):
                writer.write({"__key__": f"{number:09}", "json": line.rstrip(b"\n")})

    def open(self):
        self._shards = sorted(map(str, self.folder.glob("*.tar")))

    def __len__(self):
        raise TypeError(self.cannot["read"])

    def _stream(self, seed):
        stream = webdataset.WebDataset(self._shards, shardshuffle=len(self._shards), seed=seed, empty_check=False)
        return stream.shuffle(BUFFER, seed=seed).compose(decoded)

    def epoch(self, seed):
        yield from self._stream(seed)

    def memory_of_workers(self, workers):
        return stream_memory(self._stream(0), workers)
