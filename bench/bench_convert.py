"""Conversion: how fast, and how much memory whatever the size of the source."""

import multiprocessing
import statistics
from concurrent.futures import Executor, Future
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.support.memory import anonymous
from bench.support.timing import timed
from mmapds.convert import convert, distributed

ROWS = 200_000


def table(rows):
    """An integer, a text and some hundred tokens in every row, as data sets for language models have."""
    generator = np.random.default_rng(0)
    ends = np.cumsum(generator.integers(50, 450, rows))
    tokens = pa.array(generator.integers(0, 50_000, ends[-1], np.int32))
    offsets = pa.array(np.concatenate([[0], ends]).astype(np.int64))
    text = [f"some text of which every row has its own, {number}" for number in range(rows)]
    return pa.table({"id": range(rows), "text": text, "tokens": pa.LargeListArray.from_arrays(offsets, tokens)})


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    path = tmp_path_factory.mktemp("convert") / "a.parquet"
    pq.write_table(table(ROWS), path, row_group_size=20_000)
    return path


def test_parquet(compare, row, parquet):
    def by_hand():
        count = 0
        for batch in pq.ParquetFile(parquet).iter_batches(1024):
            for record in batch.to_pylist():
                record["tokens"] = np.array(record["tokens"], np.int32)
                count += 1
        assert count == ROWS

    size = f"{ROWS:,} rows of a text and 50 to 450 tokens"
    compare(
        f"convert Parquet, {size}, with their index",
        lambda: convert(parquet, length="tokens"),
        "`to_pylist` of its batches and an array of each list, nothing written",
        by_hand,
        "",
        rounds=3,
    )
    compare(
        f"convert Parquet, {size}, with their index",
        lambda: convert(parquet, length="tokens"),
        "pyarrow's `iter_batches`, nothing made of them",
        lambda: sum(batch.num_rows for batch in pq.ParquetFile(parquet).iter_batches()) == ROWS,
        "",
        rounds=3,
    )
    seconds = statistics.median(timed(lambda: convert(parquet, length="tokens")) for _ in range(3))
    row(f"convert Parquet, {size}", "", f"{ROWS / seconds:,.0f} records/s", "")


class Inline(Executor):
    """Runs a task when it is submitted: what parts cost, and nothing that they gain."""

    def submit(self, function, *arguments):
        future = Future()
        future.set_result(function(*arguments))
        return future


def test_parts(compare, tmp_path):
    paths = [tmp_path / f"{number}.parquet" for number in range(4)]
    for path in paths:
        pq.write_table(table(ROWS // 4), path, row_group_size=20_000)

    def by_parts():
        with patch.object(distributed, "GROUP", 1):
            convert(paths, tmp_path / "parts.mma", length="tokens", executor=Inline())

    def at_once():
        convert(paths, tmp_path / "all.mma", length="tokens")

    by_parts(), at_once()
    assert (tmp_path / "parts.mma").read_bytes() == (tmp_path / "all.mma").read_bytes()
    compare(
        f"convert {len(paths)} Parquet files of {ROWS // 4:,} rows each, by tasks that run one after another",
        by_parts,
        "convert them as one",
        at_once,
        "",
        rounds=3,
    )


def peak(path, out):
    """Convert, and tell what anonymous memory that took at most."""
    most = [anonymous()]
    convert(path, progress=lambda *_: most.append(max(most.pop(), anonymous())))
    out.put(most[0])


def test_memory(row, parquet, tmp_path):
    large = tmp_path / "large.parquet"
    with pq.ParquetWriter(large, pq.read_schema(parquet)) as writer:
        for _ in range(8):
            writer.write_table(pq.read_table(parquet), row_group_size=20_000)
    peaks = []
    for path in (parquet, large):
        context = multiprocessing.get_context("spawn")
        out = context.SimpleQueue()
        process = context.Process(target=peak, args=(str(path), out))
        process.start()
        peaks.append(out.get() / 1e6)
        process.join()
    row(
        f"most anonymous memory, {8 * ROWS:,} rows, {large.stat().st_size / 1e6:.0f} MB, in row groups of 20,000",
        f"{ROWS:,} of these rows",
        f"{peaks[1]:.0f} MB against {peaks[0]:.0f} MB",
        "alike",
    )
