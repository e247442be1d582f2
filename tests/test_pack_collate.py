"""Samples in packs: every token where a plain loop puts it, and what keeps attention inside each sample."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import CollateError, PackingBatchSampler, pack_collate
from tests.support.array_files import store
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
    dtype=st.sampled_from([np.int64, np.uint16, np.int32]),
    cut=st.sampled_from([{}, {"max_length": 4}, {"max_length": 3, "truncate": "left"}]),
)
def test_every_token_stands_where_a_plain_loop_puts_it(lengths, layout, spare, rows, most, tail, kind, dtype, cut):
    samples = made(lengths, () if kind == "list" else tail, dtype)
    tail = samples[0]["input_ids"].shape[1:]
    kept = slice(-3, None) if "truncate" in cut else slice(cut.get("max_length"))
    flat = np.concatenate([sample["input_ids"][kept] for sample in samples])
    lengths = [len(sample["input_ids"][kept]) for sample in samples]
    if kind != "array":
        change = torch.from_numpy if kind == "tensor" else np.ndarray.tolist
        samples = [{**sample, "input_ids": change(sample["input_ids"])} for sample in samples]
    total = sum(lengths)
    pad_to = None if spare is None else total + spare
    rows = None if layout == "flash" or not pad_to else rows
    if rows is not None:
        pad_to = max(pad_to // 2, *lengths, 1)
    row = total if pad_to is None else pad_to
    begins = places(lengths, row, rows or 1, most or 2**31)
    options = {"layout": layout, "pad_to": pad_to, "packs": rows, "max_sequences": most, "pad_value": 77, **cut}
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
    if layout == "flash" and most is not None:
        assert len(batch["cu_seqlens"]) == most + 1 + (pad_to is not None)
    if layout == "hf":
        first = np.zeros(whole, bool)
        first[[begin for begin, n in zip(begins, lengths, strict=True) if n]] = True
        wanted = tokens.astype(np.int64)
        wanted[first | (owner < 0)] = -100
        assert np.array_equal(batch["labels"].numpy().reshape(whole, *tail), wanted)


def check_beside(batch, layout, owner, lead, row):
    """What stands beside the fields follows from the sample of each token, -1 for padding."""
    edges = [k for k in range(len(owner)) if k == 0 or k % row == 0 or owner[k] != owner[k - 1]]
    bounds = [*edges, len(owner)]
    counted = np.array([k for begin, end in pairwise(bounds) for k in range(end - begin)], int)
    if layout != "flash":
        positions = batch["position_ids" if layout == "hf" else "positions"]
        assert positions.dtype == (torch.int64 if layout == "hf" else torch.int32)
        assert positions.shape == lead
        assert positions.flatten().tolist() == counted.tolist()
    if layout == "segments":
        assert (batch["segment_ids"].dtype, batch["segment_ids"].shape) == (torch.int32, lead)
        assert batch["segment_ids"].flatten().tolist() == [i + 1 for i in owner]
        return
    found, longest = batch["cu_seqlens" if layout == "flash" else "cu_seq_lens_q"], batch.get("max_seqlen")
    if layout == "hf":
        longest = batch["max_length_q"]
        assert torch.equal(found, batch["cu_seq_lens_k"])
        assert longest == batch["max_length_k"]
    assert found.dtype == torch.int32
    assert sorted(set(found.tolist())) == sorted(set(bounds))
    assert found.tolist() == sorted(found.tolist())
    assert (type(longest), longest) == (int, found.diff().max())


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
    assert (real[-1], batch["max_seqlen"]) == (sum(lengths), max(taken))
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


@pytest.mark.parametrize(("name", "layout"), [("tokens", "flash"), ("input_ids", "hf")])
def test_labels_never_overwrite_the_inputs(name, layout):
    samples = [{name: [1, 2], "labels": [1, 2]}]
    with pytest.raises(CollateError, match=f"^labels = '{name}', expected a field beside the inputs, found the inputs"):
        pack_collate(samples, labels=name, layout=layout)
    batch = pack_collate(samples, labels="labels", layout=layout)
    assert (batch[name].ravel().tolist(), batch["labels"].ravel().tolist()) == ([1, 2], [-100, 2])


def test_empty_lists_beside_tokens_stay_as_they_are_and_alone_are_padding():
    batch = pack_collate([{"tokens": [1, 2], "tags": [], "meta": {"tags": []}}] * 2)
    assert (batch["tags"], batch["meta"]["tags"], batch["tokens"].tolist()) == ([[], []], [[], []], [1, 2, 1, 2])
    for pad, dtype in (-100, torch.int64), (0.5, torch.float32):
        batch = pack_collate([{"tokens": []}, {"tokens": []}], pad_to=4, pad_value=pad)
        assert (batch["tokens"].tolist(), batch["tokens"].dtype) == ([pad] * 4, dtype)


def test_zipped_samples_are_packed_side_by_side(tmp_path):
    ds = mmapds.open(store(tmp_path, made([4, 0, 7], (3,))))
    batch = pack_collate(mmapds.zip(a=ds, b=ds[:]).take([2, 0, 1]), pad_to=20)
    assert batch["a"]["input_ids"].tolist() == batch["b"]["input_ids"].tolist()
    assert (batch["a"]["input_ids"].shape, batch["a"]["id"].tolist()) == ((20, 3), [2, 0, 1])


@pytest.mark.parametrize(("layout", "exclude"), [("hf", None), ("segments", [(0, 500)])])
def test_several_packs_in_a_batch_fit_as_many_rows(layout, exclude):
    lengths = log_normal(1000, 256, middle=4.0)
    sampler = PackingBatchSampler(lengths, 256, packs_per_batch=4, num_replicas=1, rank=0, exclude=exclude)
    for batch in sampler:
        packed = pack_collate([np.full(lengths[i], i) for i in batch], layout=layout, pad_to=256, packs=4)
        assert packed["input_ids" if layout == "hf" else "tokens"].shape == (4, 256)


# ---- bad input -----------------------------------------------------------------------------------------------

TWO = made([2, 3])
UNEVEN = [{"input_ids": np.arange(4), "labels": np.arange(3)}]


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([{"id": 3}], {}, r"samples\[0\]: expected a field of arrays to pack, found 'id'"),
        (TWO, {"layout": "xla"}, "layout = 'xla', expected 'flash' or 'hf' or 'megatron' or 'segments'"),
        (TWO, {"pad_to": 4}, "pad_to = 4, expected 5 or more, the tokens of the samples"),
        (TWO, {"max_sequences": 1}, "max_sequences = 1, expected 2 or more, the number of samples"),
        (TWO, {"packs": 2, "layout": "hf"}, "packs = 2, expected pad_to beside it, the length of a pack"),
        (TWO, {"packs": 2, "layout": "hf", "pad_to": 2}, r"samples\[1\]: expected up to pad_to = 2 tokens, found 3"),
        (TWO, {"flash_attn_kwargs": True}, "layout = 'flash', expected 'hf' for flash_attn_kwargs and seq_idx"),
        ([np.ones(2)], {"layout": "hf"}, "expected arrays of integers as field 'input_ids', found 'input_ids'"),
        ([{**TWO[0], "max_seqlen": 1}], {}, r"samples\[0\]: expected another name than 'max_seqlen', which layout="),
        (TWO, {"pad_value": {"x": 1}}, "pad_value: expected fields among 'input_ids', 'id', found 'x'"),
        (
            UNEVEN,
            {},
            r"samples\[0\]\['labels'\]: expected 4 entries, as in samples\[0\]\['input_ids'\], found 3; give li",
        ),
    ],
)
def test_bad_input_is_named(samples, options, message):
    with pytest.raises(CollateError, match=message) as error:
        pack_collate(samples, **options)
    check(str(error.value))
