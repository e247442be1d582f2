"""Views, orders, batches and sources in every combination: it works, or the error says what to do, and that works."""

import gzip
import io
import itertools
import json
import re
import shlex
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from torch.utils.data import ConcatDataset

import mmapds
from mmapds import ChunkedSampler, MixtureSampler, PackingBatchSampler, TokenBudgetBatchSampler, orders
from mmapds.cli.commands import main
from mmapds.convert import convert
from tests.support.compressed import frames, one_frame
from tests.support.tars import archive

N, FIRST = 60, 35  # records in all, and in the first of two files
BUDGET, PACK, DRAWN = 60, 40, 50
RANDOM = np.random.default_rng(0)
SAMPLES = [{"id": i, "tokens": RANDOM.integers(999, size=RANDOM.integers(1, 25)).tolist()} for i in range(N)]
IDS, SOME = np.arange(N), np.flatnonzero(np.arange(N) % 3 != 1)


def lines(samples):
    return b"".join(json.dumps(sample).encode() + b"\n" for sample in samples)


def row_groups(samples, size):
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(samples), out, row_group_size=size)
    return out.getvalue()


SOURCES = {
    "jsonl": lines,
    "jsonl.zst": lambda samples: b"".join(frames(lines(samples), 500)),
    "one.jsonl.zst": lambda samples: one_frame(lines(samples)),
    "jsonl.gz": lambda samples: b"".join(gzip.compress(lines([sample])) for sample in samples),
    "tar": lambda samples: archive([(f"{sample['id']:03}.json", json.dumps(sample).encode()) for sample in samples]),
    "parquet": lambda samples: row_groups(samples, 9),
    "mma": None,
}
VIEWS = {  # with the ids that it has; `others` are records without lengths
    "whole": lambda ds, _: (ds, IDS),
    "slice": lambda ds, _: (ds[50:7:-1], IDS[50:7:-1]),
    "mask": lambda ds, _: (ds[np.isin(IDS, SOME)], SOME),
    "saved view": lambda ds, _: (saved(ds[SOME] + ds[:3]), [*SOME, 0, 1, 2]),
    "concat": lambda ds, _: (mmapds.concat([ds[FIRST:], ds[SOME][5:]]), [*IDS[FIRST:], *SOME[5:]]),
    "repeat": lambda ds, _: (ds.repeat(IDS % 3), np.repeat(IDS, IDS % 3)),
    "positions": lambda ds, _: (ds[IDS[:45] * 7 % N], IDS[:45] * 7 % N),
    "zip": lambda ds, others: (mmapds.zip(a=ds, b=others)[SOME], SOME),
    "map": lambda ds, _: (ds[3:].map(dict), IDS[3:]),
    "map with seed": lambda ds, _: (ds.map(lambda one, rng: {**one, "drawn": rng.random()}, seed=5)[::-1], IDS[::-1]),
}
ORDERS = {
    "shuffled": lambda ds: orders.Shuffled(len(ds), 3),
    "chunks": lambda ds: orders.Chunked(ds, 7, mix_chunks=3, seed=3),
    "blocks": lambda ds: orders.Chunked(ds, "block", mix_chunks=3, seed=3),
    "mixture": lambda ds: orders.Mixture([20, len(ds) - 20], [0.7, 0.3], seed=3, stop="longest"),
    "resampled": lambda ds: orders.Resampled(len(ds), DRAWN, seed=3),
    "weighted": lambda ds: orders.Weighted(np.arange(len(ds)) + 1, DRAWN, seed=3),
    "drawn chunks": lambda ds: orders.ResampledChunks(ds, 7, mix_chunks=3, epoch_size=DRAWN, seed=3),
    "parts": lambda ds: orders.Parts(orders.Shuffled(len(ds), 3), DRAWN),
    "sorted": lambda ds: orders.Sorted(np.arange(len(ds)) % 5, 9, seed=3),
}
DRAWING = ("resampled", "weighted", "drawn chunks", "parts")
BATCHES = {
    "single": lambda ds, order: mmapds.DistributedSampler(ds, order=order),
    "fixed": lambda ds, order: mmapds.DistributedBatchSampler(ds, 8, order=order),
    "bucket": lambda ds, order: TokenBudgetBatchSampler(ds, BUDGET, order=order),
    "window": lambda ds, order: TokenBudgetBatchSampler(ds, BUDGET, planner="window", sort_window=16, order=order),
    "packs": lambda ds, order: PackingBatchSampler(ds, PACK, order=order),
    "packs in windows": lambda ds, order: PackingBatchSampler(ds, PACK, planner="window", order=order),
}
IN_WINDOWS = {"bucket": "window", "packs": "packs in windows", "window": "window"}
WAYS_OUT = {  # what an error says, and the order and the batches that it says to take instead
    "give a number of records as chunk_size": lambda _, batches: ("chunks", batches),
    "give planner='window' too": lambda order, batches: (order, IN_WINDOWS[batches]),
    "give order=mmapds.orders.Chunked(ds, 4096": lambda _, batches: ("chunks", batches),
    "give mmapds.orders.Chunked and planner='window', or mix batches with MixtureBatchSampler": lambda order, batches: (
        ("mixed batches", batches) if order == "mixture" else ("chunks", IN_WINDOWS.get(batches, batches))
    ),
}


def opened(path, **options):
    return mmapds.open(path, **({"decode": "wds"} if "tar" in str(path) else {}), **options)


def measured(path, samples):
    mmapds.build(path)
    mmapds.add_column(path, "length", np.array([len(sample["tokens"]) for sample in samples]))
    return path


def saved(view):
    path = f"{view.sources[0]}.view.mmx"
    view.save(path)
    return opened(path)


@pytest.fixture
def files(tmp_path, write):
    def files(kind):
        paths = [str(tmp_path / f"{part}.{kind}") for part in "ab"]
        for path, samples in zip(paths, (SAMPLES[:FIRST], SAMPLES[FIRST:]), strict=True):
            if kind == "mma":
                convert(write(lines(samples), f"{path}.jsonl"), path, length="tokens")
            else:
                measured(write(SOURCES[kind](samples), path), samples)
        return opened(paths)

    return files


def read(sample):
    """The id and the tokens of a sample, which may be zipped or of a tar, and a number that was drawn."""
    inner = sample.get("a", sample)
    inner = inner.get("json", inner)
    return int(inner["id"]), [int(token) for token in inner["tokens"]], sample.get("drawn")


def sampler_of(ds, order, batches):
    make = BATCHES[batches]
    if order == "mixed batches":
        parts = [make(part, ORDERS["chunks"](part) if "window" in batches else None) for part in (ds[:20], ds[20:])]
        return mmapds.MixtureBatchSampler(parts, [0.7, 0.3], stop="longest")
    return make(ds, None if order == "shuffled" and batches in ("bucket", "packs") else ORDERS[order](ds))


def check(ds, ids, order, batches):
    """Read two epochs; or do what the error says, until they can be read."""
    try:
        sampler = sampler_of(ds, order, batches)
    except mmapds.Error as error:
        (what,) = [what for what in WAYS_OUT if what in str(error)]
        check(ds, ids, *WAYS_OUT[what](order, batches))
        return
    how = {"sampler": sampler, "batch_size": None} if batches == "single" else {"batch_sampler": sampler}
    epochs = [check_epoch(ds, ids, sampler, epoch, {**how, "num_workers": 2 * epoch}) for epoch in (0, 1)]
    assert epochs[0] != epochs[1]
    for steps in epochs:
        check_promises(ds, order, batches, [np.array(step) for step in steps])


def check_epoch(ds, ids, sampler, epoch, how):
    """A loader gives ds[i] for each index, also after a resume in the middle. Return the indices of each step."""
    loader = mmapds.DataLoader(ds, collate_fn=lambda found: found, **how)
    loader.set_epoch(epoch)
    ds.set_epoch(epoch)  # of what it is compared with; a loader has its own
    indices = list(sampler)
    loader.set_epoch(epoch)  # again
    steps, states = zip(*((found, json.dumps(loader.state_dict())) for found in loader), strict=True)
    samples, indices = ([each if "sampler" not in how else [each] for each in every] for every in (steps, indices))
    assert [[*map(read, step)] for step in samples] == [[read(ds[index]) for index in step] for step in indices]
    for index, sample in zip(itertools.chain(*indices), itertools.chain(*samples), strict=True):
        number, tokens, _ = read(sample)
        assert (number, tokens) == (ids[index], SAMPLES[number]["tokens"])
    loader.load_state_dict(json.loads(states[len(states) // 2]))
    rest = [found if "sampler" not in how else [found] for found in loader]
    assert [[*map(read, step)] for step in rest] == [[*map(read, step)] for step in samples[len(states) // 2 + 1 :]]
    return indices


def check_promises(ds, order, batches, steps):
    records = np.concatenate(steps)
    counts = Counter(records.tolist())
    assert (counts.keys() == set(range(len(ds)))) or (order in DRAWING and len(records) == DRAWN)
    if order == "mixture":
        assert abs((records < 20).sum() - 0.7 * len(records)) <= 1
    elif order == "mixed batches":
        assert all(len(set(step < 20)) == 1 for step in steps)
    elif order not in DRAWING:
        assert set(counts.values()) == {1}
    if batches in ("bucket", "window"):
        assert all(ds.lengths[step].max() * len(step) <= BUDGET for step in steps)
    elif "packs" in batches:
        assert all(ds.lengths[step].sum() <= PACK for step in steps)


@pytest.mark.parametrize("kind", SOURCES)
def test_every_view_is_read_in_every_order_and_batch_or_says_why_not(kind, files, write):
    """Each source has a part of the product, so that all pairs come, and all of views, orders and batches."""
    ds, others = files(kind), mmapds.open(write([{"n": int(i)} for i in IDS], "others.jsonl"), build=True)
    for (v, view), (o, order), (b, batches) in itertools.product(*map(enumerate, (VIEWS, ORDERS, BATCHES))):
        if (v + o + b) % len(SOURCES) == list(SOURCES).index(kind):
            check(*VIEWS[view](ds, others), order, batches)


def test_what_cannot_be_combined_says_what_can_be_done(files, write):
    ds, packed, tars = (files(kind) for kind in ("jsonl", "jsonl.zst", "tar"))
    bare = mmapds.open(write([{"n": int(i)} for i in IDS], "others.jsonl"), build=True)
    (index,), both = bare.indexes, mmapds.zip(a=ds, b=packed)
    budget = partial(TokenBudgetBatchSampler, max_tokens=BUDGET)
    add = partial(mmapds.add_column, index, "length", len)
    for refused, hint, done in (
        (lambda: budget(both), "as ds.column('a.length')", lambda: budget(both.column("a.length"))),
        (lambda: budget(mmapds.zip(a=bare)), "with mmapds.add_column", lambda: budget(mmapds.zip(a=bare, b=ds))),
        (lambda: budget(bare.map(dict)), f"('{index}', 'length', F", lambda: [add(), budget(opened(index))][1]),
        (lambda: budget(MixtureSampler([ds], [1])), "give the dataset and an order=", lambda: budget(ds)),
        (lambda: MixtureSampler(ds[1:], [1, 1]), "a list of datasets", lambda: MixtureSampler([ds[1:], ds], [1, 1])),
        (lambda: ChunkedSampler(packed + ds, "block"), "(ds, 1000)", lambda: ChunkedSampler(packed + ds, 1000)),
        (lambda: ds.map(dict).save("v.mmx"), "before map", lambda: saved(ds[1:]).map(dict)),
        (lambda: ds + ds.map(dict), "use concat before map or zip", lambda: (ds + packed).map(dict)),
        (lambda: ds + tars, "ConcatDataset", lambda: mmapds.DataLoader(ConcatDataset([ds, tars]), collate_fn=list)),
    ):
        with pytest.raises(mmapds.Error, match=re.escape(hint)):
            refused()
        assert len(list(done()))


@pytest.mark.filterwarnings("ignore:.*a block of over 8 MiB is read in file order only")
def test_a_large_frame_is_read_in_order_or_made_seekable(write):
    """Of other orders, the first step says what to run, before anything is decoded."""
    texts = ({**sample, "text": " " * (160_000 if sample["id"] else 1 << 20)} for sample in SAMPLES)
    path = write(one_frame(lines(texts)), "large.jsonl.zst")
    ds, bare = opened(measured(path, SAMPLES), block_cache=0), mmapds.open(write(lines([{}] * N)), build=True)
    in_order = mmapds.DataLoader(ds[::2], 8, collate_fn=list)
    assert [read(sample)[0] for batch in in_order for sample in batch] == IDS[::2].tolist()
    decoded = ds._indexed._catalog.blocks.decoded
    for order, batches in [("chunks", "window"), ("blocks", "fixed"), ("shuffled", "packs"), ("shuffled", "single")]:
        with pytest.raises(mmapds.Error, match="expected records in the order of the file") as error:
            next(iter(sampler_of(ds if order == "blocks" else mmapds.zip(b=bare, a=ds), order, batches)))
    assert ds._indexed._catalog.blocks.decoded == decoded
    assert main(shlex.split(str(error.value).partition("; run: python -m mmapds ")[2])) == 0
    check(opened(measured(path.replace(".jsonl", ".seekable.jsonl"), SAMPLES)), IDS, "shuffled", "window")
