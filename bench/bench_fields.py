"""`Fields`: from JSON to padded tensors, against orjson and against array files, on one core with warm files."""

import json
import threading

import numpy as np
import orjson
import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

import mmapds
from bench.support.data import DATA, once
from bench.support.timing import timed
from mmapds import Fields, pad_collate

pytestmark = pytest.mark.usefixtures("one_thread")

BATCH = 64
BATCHES = 40
VOCABULARY = 256_000  # numbers of up to 6 digits
TOKENS = {"tokens": "int32"}
ROUNDS = 9


def records():
    """Lists of 100 to 1,500 tokens, and a number."""
    generator = np.random.default_rng(0)
    for number, count in enumerate(generator.integers(100, 1501, BATCH * BATCHES)):
        yield {"id": number, "tokens": generator.integers(0, VOCABULARY, int(count), np.int32)}


def token_lists(separators=None):
    """The records as JSON: with spaces, as Python writes it, or compact."""
    path = DATA / f"token-lists{'' if separators is None else '-compact'}.jsonl"
    if not path.exists():
        with once(path) as file:
            for record in records():
                record["tokens"] = record["tokens"].tolist()
                file.write(json.dumps(record, separators=separators).encode() + b"\n")
    return str(path)


def token_arrays():
    """The same records as an array file."""
    path = DATA / "token-lists.mma"
    if not path.exists():
        with mmapds.Writer(path, {"id": "int64", "tokens": ("int32", (None,))}) as writer:
            for record in records():
                writer.write(record)
    return str(path)


def rows_of(ds):
    order = np.random.default_rng(1).permutation(len(ds)).tolist()
    return [order[k : k + BATCH] for k in range(0, len(order), BATCH)]


def batches(ds, collate=pad_collate):
    """Take and collate all batches."""
    rows = rows_of(ds)

    def work():
        for each in rows:
            collate(ds.take(each))

    return work


def by_hand(records):
    """What people write: of parsed records, tensors, padded."""
    tensors = [torch.tensor(orjson.loads(record)["tokens"], dtype=torch.int32) for record in records]
    lengths = torch.tensor([len(each) for each in tensors])
    return {"tokens": pad_sequence(tensors, batch_first=True), "tokens_lengths": lengths}


def check(ours, theirs):
    """Assert that two batches have the same tokens."""
    for name in ("tokens", "tokens_lengths"):
        assert torch.equal(ours[name], theirs[name].to(ours[name].dtype))


RIVALS = {
    "orjson to dicts, and pad_collate": ("json", pad_collate),
    "orjson, `torch.tensor` and `pad_sequence`": ("bytes", by_hand),
}


@pytest.mark.parametrize("rival", RIVALS)
@pytest.mark.parametrize("kind", ["with spaces", "compact"])
def test_token_lists(compare, kind, rival):
    path = token_lists(None if kind == "with spaces" else (",", ":"))
    ours = mmapds.open(path, decode=Fields(TOKENS), build=True)
    decode, collate = RIVALS[rival]
    theirs = mmapds.open(path, decode=decode)
    check(pad_collate(ours.take(range(BATCH))), collate(theirs.take(range(BATCH))))
    what = f"`take` and pad_collate, {BATCH} lists of 100 to 1,500 tokens, JSON {kind}"
    target = "<= 1/12" if rival == next(iter(RIVALS)) else ""
    compare(what, batches(ours), rival, batches(theirs, collate), target, ROUNDS)


@pytest.mark.parametrize("kind", ["with spaces", "compact"])
def test_speed(row, kind):
    path = token_lists(None if kind == "with spaces" else (",", ":"))
    ds = mmapds.open(path, decode=Fields(TOKENS), build=True)
    work, taking = batches(ds), batches(ds, len)
    seconds, alone = (min(timed(each) for _ in range(ROUNDS)) for each in (work, taking))
    size = sum(ds.where(i).size for i in range(len(ds)))
    tokens = sum(len(sample["tokens"]) for sample in ds)
    row(f"`take` and pad_collate, JSON {kind}", "", f"{size / seconds / 1e9:.2f} GB/s of JSON", ">= 0.5 GB/s")
    row(f"the same, JSON {kind}", "", f"{tokens / seconds / 1e6:.0f} M tokens/s", "")
    row(f"pad_collate alone, JSON {kind}", "`take` and pad_collate", f"{1 - alone / seconds:.1%}", "")


def test_against_array_files(compare):
    fields = Fields({"id": "int64", **TOKENS})
    ours = mmapds.open(token_lists(), decode=fields, build=True)
    theirs = mmapds.open(token_arrays(), decode=fields, build=True)
    check(pad_collate(ours.take(range(BATCH))), pad_collate(theirs.take(range(BATCH))))
    compare("`take` and pad_collate, from JSON", batches(ours), "from an array file", batches(theirs), "<= 2x", ROUNDS)


def test_floats(compare):
    path = DATA / "features-lists.jsonl"
    generator = np.random.default_rng(0)
    if not path.exists():
        with once(path) as file:
            for number in range(BATCH * 10):
                features = generator.standard_normal((int(generator.integers(20, 161)), 16)).astype(np.float32)
                file.write(json.dumps({"id": number, "feats": features.tolist()}).encode() + b"\n")
    ours = mmapds.open(str(path), decode=Fields({"feats": ("float32", (None, 16))}), build=True)
    theirs = mmapds.open(str(path), decode="bytes")

    def arrays(records):
        return pad_collate([{"feats": np.array(orjson.loads(record)["feats"], np.float32)} for record in records])

    found, wanted = pad_collate(ours.take(range(BATCH))), arrays(theirs.take(range(BATCH)))
    assert torch.equal(found["feats"], wanted["feats"])
    what = f"{BATCH} arrays of (20 to 160, 16) float32, written with 17 digits"
    compare(what, batches(ours), "orjson, `np.array` and pad_collate", batches(theirs, arrays), "", ROUNDS)


def test_one_record(compare):
    ours = mmapds.open(token_lists(), decode=Fields(TOKENS), build=True)
    theirs = mmapds.open(token_lists())
    order = np.random.default_rng(0).permutation(len(ours)).tolist()

    def read(ds):
        return lambda: [ds[i] for i in order]

    compare("`ds[i]`, warm, random", read(ours), "orjson to dicts", read(theirs), "", ROUNDS)


def test_two_threads(compare):
    """Whether threads wait for one another: as much as two processes would, where there are two cores."""
    ds = mmapds.open(token_lists(), decode=Fields(TOKENS), build=True)
    work = batches(ds)

    def twice():
        for _ in range(2):
            work()

    def in_threads():
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    compare("all batches twice, in two threads", in_threads, "one after the other", twice, "", ROUNDS)
