"""Samples in packs: every token where a plain loop puts it, and what keeps attention inside each sample."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import mmapds
from mmapds import CollateError, PackingBatchSampler, pack_collate
from tests.support.budgets import log_normal
from tests.support.messages import check

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=12)


def made(lengths, tail=(), dtype=np.int64):
    """Samples whose numbers are all different."""
    size = int(np.prod(tail))
    firsts = np.cumsum([0, *lengths])
    return [
        {"input_ids": (np.arange(n * size) + 1 + first * size).astype(dtype).reshape(n, *tail), "id": i}
        for i, (n, first) in enumerate(zip(lengths, firsts, strict=False))
    ]


def places(lengths, row, rows, most=2**31):
    """Where each sample begins, by a plain loop."""
    found, at, used, count = [], 0, 0, 0
    for n in lengths:
        if used + n > row or count == most:
            at, used, count = at + 1, 0, 0
        found.append(at * row + used)
        used, count = used + n, count + 1
    return found if at < rows else None


@given(
    lengths=LENGTHS,
    layout=st.sampled_from(["flash", "hf", "segments"]),
    spare=st.sampled_from([None, 0, 1, 5]),
    rows=st.sampled_from([None, 1, 2, 5]),
    most=st.sampled_from([None, 1, 3, 12, 20]),
    tail=st.sampled_from([(), (2,), (3, 2)]),
    kind=st.sampled_from(["array", "tensor", "list"]),
)
def test_every_token_stands_where_a_plain_loop_puts_it(lengths, layout, spare, rows, most, tail, kind):
    samples = made(lengths, () if kind == "list" else tail)
    tail = samples[0]["input_ids"].shape[1:]
    flat = np.concatenate([sample["input_ids"] for sample in samples])
    if kind != "array":
        change = torch.from_numpy if kind == "tensor" else np.ndarray.tolist
        samples = [{**sample, "input_ids": change(sample["input_ids"])} for sample in samples]
    total = sum(lengths)
    pad_to = None if spare is None else total + spare
    if rows is not None and (layout == "flash" or not pad_to):
        rows = None
    if rows is not None:
        pad_to = max(pad_to // 2, *lengths, 1)
    row = total if pad_to is None else pad_to
    begins = places(lengths, row, rows or 1, most or 2**31)
    options = {"layout": layout, "pad_to": pad_to, "packs": rows, "max_sequences": most, "pad_value": 77}
    if pad_to == 0 or begins is None:
        with pytest.raises(CollateError, match=r"(pad_to = 0|packs = \d+|max_sequences = \d+), expected"):
            pack_collate(samples, **options)
        return
    batch = pack_collate(samples, **options, **({"flash_attn_kwargs": True} if layout == "hf" else {}))
    whole = row * (rows or 1)
    owner = np.full(whole, -1)
    for i, (begin, n) in enumerate(zip(begins, lengths, strict=True)):
        owner[begin : begin + n] = i
    tokens = batch["input_ids"].numpy().reshape(whole, *tail)
    assert np.array_equal(tokens[owner >= 0], flat)
    assert (tokens[owner < 0] == 77).all()
    lead = (rows or 1, row) if layout == "hf" or rows else (whole,)
    assert batch["input_ids"].shape == (*lead, *tail)
    assert batch["id"].tolist() == list(range(len(lengths)))
    check_beside(batch, layout, owner, lead, row)
    if layout == "hf":
        first = np.zeros(whole, bool)
        first[[begin for begin, n in zip(begins, lengths, strict=True) if n]] = True
        wanted = tokens.copy()
        wanted[first | (owner < 0)] = -100
        assert np.array_equal(batch["labels"].numpy().reshape(whole, *tail), wanted)


def check_beside(batch, layout, owner, lead, row):
    """What stands beside the fields follows from the sample of each token, -1 for padding."""
    edges = [k for k in range(len(owner)) if k == 0 or k % row == 0 or owner[k] != owner[k - 1]]
    bounds = [*edges, len(owner)]
    counted = np.array([k for begin, end in pairwise(bounds) for k in range(end - begin)], int)
    if layout == "segments":
        assert batch["segment_ids"].dtype == batch["positions"].dtype == torch.int32
        assert batch["segment_ids"].shape == lead
        assert batch["segment_ids"].flatten().tolist() == [i + 1 for i in owner]
        assert batch["positions"].flatten().tolist() == counted.tolist()
        return
    if layout == "hf":
        assert batch["position_ids"].shape == lead
        assert batch["position_ids"].flatten().tolist() == counted.tolist()
        found, longest = batch["cu_seq_lens_q"], batch["max_length_q"]
        assert torch.equal(found, batch["cu_seq_lens_k"])
    else:
        found, longest = batch["cu_seqlens"], batch["max_seqlen"]
    assert found.dtype == torch.int32
    assert sorted(set(found.tolist())) == sorted(set(bounds))
    assert found.tolist() == sorted(found.tolist())
    assert type(longest) is int
    assert longest == found.diff().max()


@given(LENGTHS, st.sampled_from([1, 2, 8]), st.sampled_from([0, 3]), st.booleans())
def test_megatron_pads_each_sample(lengths, round_to, spare, is_static):
    samples = made(lengths)
    taken = [-(-n // round_to) * round_to for n in lengths]
    static = {"pad_to": max(sum(taken) + spare, 1), "max_sequences": 15} if is_static else {}
    batch = pack_collate(samples, layout="megatron", round_to=round_to, **static)
    real, padded = batch["cu_seqlens"].tolist(), batch["cu_seqlens_padded"].tolist()
    assert real[: len(lengths) + 1] == np.cumsum([0, *lengths]).tolist()
    assert padded[: len(lengths) + 1] == np.cumsum([0, *taken]).tolist()
    assert len(real) == len(padded) == (17 if is_static else len(lengths) + 1)
    assert padded[-1] == len(batch["input_ids"]) == static.get("pad_to", sum(taken))
    for i, sample in enumerate(samples):
        own = batch["input_ids"][padded[i] : padded[i] + taken[i]].tolist()
        assert own == sample["input_ids"].tolist() + [0] * (taken[i] - lengths[i])
        assert batch["position_ids"][padded[i] : padded[i] + lengths[i]].tolist() == list(range(lengths[i]))


def test_fields_of_a_sample_share_their_places():
    samples = [{**each, "labels": -each["input_ids"].astype(np.int32), "text": "a"} for each in made([2, 4])]
    samples = [{**each, "weight": np.float32(each["id"]), "mask": each["input_ids"] > 2} for each in samples]
    batch = pack_collate(samples)
    assert torch.equal(batch["labels"], -batch["input_ids"].to(torch.int32))
    assert (batch["mask"].dtype, batch["weight"].tolist(), batch["text"]) == (torch.bool, [0.0, 1.0], ["a", "a"])
    hf = pack_collate([{**each, "attention_mask": each["mask"]} for each in samples], layout="hf", seq_idx=True)
    assert hf["labels"].tolist() == [[-100, -2, -100, -4, -5, -6]]
    assert hf["labels"].dtype == torch.int64
    assert hf["seq_idx"].tolist() == [[0, 0, 1, 1, 1, 1]]
    assert "attention_mask" not in hf
    shifted = pack_collate(samples, labels="labels", pad_to=8)
    assert shifted["labels"].tolist() == [-100, -2, -100, -4, -5, -6, -100, -100]
    with pytest.raises(CollateError) as uneven:
        pack_collate([samples[0], {**samples[1], "labels": np.arange(3)}])
    assert str(uneven.value).startswith(
        "samples[1]['labels']: expected 4 entries, as in samples[1]['input_ids'], found 3; give lists=[...] "
    )
    check(str(uneven.value))


def test_labels_never_overwrite_the_inputs():
    for samples, options in (
        ([{"tokens": [1, 2], "length": 2}], {"labels": "tokens"}),
        ([{"tokens": [1, 2], "labels": [1, 2]}], {"labels": "tokens"}),
        ([{"input_ids": [1, 2]}], {"labels": "input_ids", "layout": "hf"}),
        ([{"text_ids": [1, 2], "n": 1}], {"labels": "text_ids", "layout": "segments"}),
        ([np.arange(3)], {"labels": "tokens"}),
    ):
        name = options["labels"]
        with pytest.raises(CollateError) as error:
            pack_collate(samples, **options)
        assert str(error.value) == f"labels = {name!r}, expected a field beside the inputs, found the inputs"
        batch = pack_collate([{name: [1, 2], "labels": [1, 2]}], **{**options, "labels": "labels"})
        assert batch[name].ravel().tolist() == [1, 2]
        assert batch["labels"].ravel().tolist() == [-100, 2]


def test_a_pack_of_empty_lists_alone_is_padding():
    for pad, dtype in (0, torch.int64), (-100, torch.int64), (0.5, torch.float32):
        batch = pack_collate([{"tokens": []}, {"tokens": []}], pad_to=4, pad_value=pad)
        assert batch["tokens"].tolist() == [pad] * 4
        assert batch["tokens"].dtype == dtype


def test_unsigned_tokens_become_labels():
    batch = pack_collate(made([2, 3], dtype=np.uint16), layout="hf")
    assert batch["input_ids"].dtype == torch.uint16
    assert batch["labels"].tolist() == [[-100, 2, -100, 4, 5]]
    samples = [{"input_ids": each} for each in ([], [1, 2], [])]  # one without tokens has no first
    assert pack_collate(samples, layout="hf")["labels"].tolist() == [[-100, 2]]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("packs") / "train.mma"
    rng = np.random.default_rng(0)
    with mmapds.Writer(path, length="input_ids") as writer:
        for i, n in enumerate(log_normal(400, 300, middle=3.5)):
            tokens = rng.integers(0, 60_000, n).astype(np.uint16)
            frames = rng.normal(size=(n, 3)).astype(np.float32)
            writer.write({"input_ids": tokens, "frames": frames, "id": i, "text": f"t{i}"})
    return mmapds.open(path)


def test_a_loader_of_packs(stored):
    sampler = PackingBatchSampler(stored, 300, num_replicas=1, rank=0)
    loader = DataLoader(stored, batch_sampler=sampler, collate_fn=Static(), num_workers=2)
    seen = []
    for batch in loader:
        assert batch["input_ids"].shape == (300,)
        assert batch["frames"].shape == (300, 3)
        seen += batch["id"].tolist()
        for i, number in enumerate(batch["id"].tolist()):
            begin, end = batch["cu_seqlens"][i : i + 2].tolist()
            assert batch["input_ids"][begin:end].tolist() == stored[number]["input_ids"].tolist()
    assert sorted(seen) == list(range(400))


class Static:
    def __call__(self, samples):
        return pack_collate(samples, pad_to=300)


def test_several_packs_in_a_batch_fit_as_many_rows():
    batch = pack_collate([np.ones(2)] * 4, layout="segments", pad_to=6, packs=2, max_sequences=2)
    assert batch["segment_ids"].tolist() == [[1, 1, 2, 2, 0, 0], [3, 3, 4, 4, 0, 0]]
    lengths = log_normal(1000, 256, middle=4.0)
    options = {"packs_per_batch": 4, "num_replicas": 1, "rank": 0}
    for layout, exclude in ("hf", None), ("segments", [(0, 500)]):
        for batch in PackingBatchSampler(lengths, 256, exclude=exclude, **options):
            samples = [np.full(lengths[i], i) for i in batch]
            packed = pack_collate(samples, layout=layout, pad_to=256, packs=4)
            tokens = packed["input_ids" if layout == "hf" else "tokens"]
            assert tokens.shape == (4, 256)
            assert packed["position_ids" if layout == "hf" else "positions"].shape == (4, 256)


def test_zipped_datasets_are_packed_side_by_side(stored):
    zipped = mmapds.zip(a=stored, b=stored[:])
    batch = pack_collate(zipped.take([3, 1, 4]), pad_to=1000)
    assert torch.equal(batch["a"]["input_ids"], batch["b"]["input_ids"])
    assert batch["a"]["input_ids"].shape == (1000,)
    assert batch["a"]["id"].tolist() == [3, 1, 4]


# ---- bad input -----------------------------------------------------------------------------------------------

TWO = made([2, 3])


BAD = [
    ({}, {}, "samples: expected a list of samples, found dict"),
    (["a"], {}, r"samples\[0\]: expected a dict of fields, or an array, found str"),
    ([TWO[0], {"id": 3}], {}, r"samples\[1\]: expected a field 'input_ids', as in samples\[0\], found 'id'"),
    ([{"id": 3}], {}, r"samples\[0\]: expected a field of arrays to pack, found 'id'"),
    (TWO, {"layout": "xla"}, "layout = 'xla', expected 'flash' or 'hf' or 'megatron' or 'segments'"),
    (TWO, {"pad_to": 0}, "pad_to = 0, expected an integer of 1 or more"),
    (TWO, {"pad_to": 4}, "pad_to = 4, expected 5 or more, the tokens of the samples"),
    (TWO, {"max_sequences": 1}, "max_sequences = 1, expected 2 or more, the number of samples"),
    (TWO, {"packs": 2}, "layout = 'flash', expected 'hf' or 'segments' for packs"),
    (
        TWO,
        {"packs": 2, "layout": "hf"},
        "packs = 2, expected pad_to beside it, the length of a pack",
    ),
    (TWO, {"packs": 2, "layout": "hf", "pad_to": 2}, r"samples\[1\]: expected up to pad_to = 2 tokens, found 3"),
    (TWO, {"round_to": 2}, "layout = 'flash', expected 'megatron' for round_to"),
    (TWO, {"flash_attn_kwargs": True}, "layout = 'flash', expected 'hf' for flash_attn_kwargs"),
    ([{"x": np.arange(2)}], {"layout": "hf"}, "expected arrays of integers as field 'input_ids', found 'x'"),
    ([np.ones(2)], {"layout": "hf"}, "expected arrays of integers as field 'input_ids', found 'input_ids'"),
    (
        [{**TWO[0], "max_seqlen": 1}],
        {},
        r"samples\[0\]: expected another name than 'max_seqlen', which layout='flash'",
    ),
    (TWO, {"pad_value": {"x": 1}}, "pad_value: expected fields among 'input_ids', 'id', found 'x'"),
    (TWO, {"pad_value": 0.5, "pad_to": 9}, "pad_value = 0.5, expected an integer"),
]


def test_bad_input_is_named():
    for samples, options, message in BAD:
        with pytest.raises(CollateError, match=message) as error:
            pack_collate(samples, **options)
        check(str(error.value))
