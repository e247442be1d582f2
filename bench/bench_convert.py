"""Conversion: how fast, and how much memory whatever the size of the source."""

import multiprocessing
import statistics
from concurrent.futures import Executor, Future
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import mmapds
from bench.support.memory import anonymous
from bench.support.timing import timed
from mmapds import executors
from mmapds.convert import convert

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


@pytest.fixture(scope="module")
def arrow(parquet):
    path = parquet.with_suffix(".arrow")
    rows = table(ROWS)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=20_000)
    return path


def batches(path, rows=65_536):
    """The batches of a file, as pyarrow decodes it."""
    if path.suffix == ".parquet":
        yield from pq.ParquetFile(path).iter_batches(rows)
    else:
        opened = pa.ipc.open_file(pa.memory_map(str(path)))
        yield from (opened.get_batch(number) for number in range(opened.num_record_batches))


def by_objects(path, out):
    """Convert as one does without convert: a list of Python's integers becomes an array, row by row."""
    with mmapds.Writer(out, {"id": "int64", "text": "str", "tokens": ("int32", (None,))}, length="tokens") as writer:
        for batch in batches(path, 1024):
            for record in batch.to_pylist():
                record["tokens"] = np.array(record["tokens"], np.int32)
                writer.write(record)


@pytest.mark.parametrize("name", ["parquet", "arrow"])
def test_tables(compare, row, request, name):
    path = request.getfixturevalue(name)
    ours, theirs = path.with_suffix(".ours.mma"), path.with_suffix(".theirs.mma")

    def converted():
        convert(path, ours, length="tokens")

    converted(), by_objects(path, theirs)
    assert ours.read_bytes() == theirs.read_bytes()
    size = f"{ROWS:,} rows of a text and 50 to 450 tokens"
    rival = "a `Writer` of the rows of `to_pylist`"
    compare(f"convert {name}, {size}", converted, rival, lambda: by_objects(path, theirs), "0.125x", rounds=3)
    seconds = statistics.median(timed(converted) for _ in range(3))
    row(f"convert {name}, {size}", "", f"{ROWS / seconds:,.0f} records/s", "")
    ours.unlink(), theirs.unlink()


def decoded(path, rows):
    """Decode a file, and make nothing of it."""
    assert sum(batch.num_rows for batch in batches(path, rows)) == ROWS


def test_the_limit(compare, parquet):
    compare(
        f"convert parquet, {ROWS:,} rows of a text and 50 to 450 tokens",
        lambda: convert(parquet, length="tokens"),
        "pyarrow's `iter_batches` of 4,096 rows, nothing made of them",
        lambda: decoded(parquet, 4096),
        "the limit",
        rounds=5,
    )


def test_batches(compare, parquet):
    compare(
        "`iter_batches` of 4,096 rows",
        lambda: decoded(parquet, 4096),
        "of 65,536, its default",
        lambda: decoded(parquet, 65_536),
        "",
        rounds=7,
    )


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
        with patch.object(executors, "GROUP", 1):
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
