"""Streams: what a trainer reads of `ds.stream` in a second, against the map-style dataset and a plain reader."""

from itertools import islice

import orjson
import pytest
import torch.utils.data

import mmapds
from bench.support.data import jsonl

BATCH = 256
RECORDS = 100_000 // BATCH * BATCH
SIZE = 200_000_000


def as_it_is(samples):
    """Collate to the samples themselves."""
    return samples


@pytest.fixture(scope="module")
def ds():
    return mmapds.open(str(jsonl(SIZE)), build=True)[:RECORDS]


def count(batches):
    """Read all batches; return how many samples they have."""
    return sum(map(len, batches))


def stream(ds, **options):
    """Our batches, in file order or shuffled, by the DataLoader that code for iterables has."""
    workers = options.pop("num_workers", 0)
    made = ds.stream(batch_size=BATCH, **options)
    return torch.utils.data.DataLoader(made, batch_size=None, collate_fn=as_it_is, num_workers=workers)


def map_style(ds, **options):
    return torch.utils.data.DataLoader(ds, BATCH, collate_fn=as_it_is, **options)


def plain_reader():
    """Batches of a file that is read line by line, and decoded by the same parser."""
    with open(jsonl(SIZE), "rb") as file:
        lines = islice(file, RECORDS)
        while batch := [orjson.loads(line) for line in islice(lines, BATCH)]:
            yield batch


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_against_the_map_style_dataset(compare, ds, workers, shuffle):
    options = {"shuffle": shuffle, "num_workers": workers}
    assert count(stream(ds, **options)) == count(map_style(ds, **options)) == RECORDS
    how = f"{'shuffled' if shuffle else 'in file order'}, {workers or 'no'} worker processes"
    what = f"JSON dicts, batches of {BATCH}, {how}: seconds"
    against = "torch's DataLoader over the dataset"
    compare(what, lambda: count(stream(ds, **options)), against, lambda: count(map_style(ds, **options)), "<= 1.1x")


def test_against_a_plain_reader(compare, ds):
    assert list(islice(stream(ds), 3)) == list(islice(plain_reader(), 3))
    assert count(plain_reader()) == RECORDS
    what = f"JSON dicts, batches of {BATCH}, in file order: seconds"
    compare(what, lambda: count(stream(ds)), "`orjson.loads` of the file's lines", lambda: count(plain_reader()), "")


def test_samples_one_by_one(compare, ds):
    def samples():
        return sum(1 for _ in ds.stream())

    def read():
        return sum(1 for _ in ds)

    assert samples() == read() == RECORDS
    compare("JSON dicts, one by one, in file order: seconds", samples, "`for sample in ds`", read, "<= 1x")


@pytest.mark.parametrize("shuffle", [False, True])
def test_raw_lines(compare, shuffle):
    """What the stream itself costs, without decoding."""
    raw = mmapds.open(str(jsonl(SIZE)), decode="bytes")[:RECORDS]

    def lines():
        with open(jsonl(SIZE), "rb") as file:
            return sum(map(len, islice(file, RECORDS))) - RECORDS  # line ends

    def read():
        return sum(sum(map(len, batch)) for batch in stream(raw, shuffle=shuffle))

    assert read() == lines()
    what = f"raw records, batches of {BATCH}, {'shuffled' if shuffle else 'in file order'}: seconds"
    compare(what, read, "the lines of the file, one by one", lines, "")
