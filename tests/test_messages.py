"""Messages follow the forms of CONTRIBUTING.md: a place, what was expected, what was found, and what to do."""

import re

import numpy as np
import pytest
import torch

import mmapds
from mmapds import orders
from tests.support.commands import command
from tests.support.messages import ROOT, banned, check, forms, literals, raised_in_c
from tests.support.mistakes import (
    Twice,
    arrays,
    collate,
    dataset,
    distributed,
    file,
    floats,
    jsonl,
    message,
    pack,
    packs,
    state,
    tokens,
    zipped,
)


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


WITH_NUMBERS = {
    # Orders and samplers
    "permutation of none": lambda: mmapds.Permutation(0),
    "permutation position": lambda: mmapds.Permutation(5)[5],
    "permutation positions": lambda: mmapds.Permutation(5)[np.array([1, 7])],
    "chunk size": lambda: orders.Chunked(10, 0),
    "chunk starts": lambda: orders.Chunked([1, 5], 2),
    "mixture counts": lambda: orders.Mixture([5, 5], [1]),
    "mixture weights": lambda: orders.Mixture([5, 5], [0, 0]),
    "mixture negative weight": lambda: orders.Mixture([5, 5], [-1, 2]),
    "mixture empty member": lambda: orders.Mixture([0, 5], [1, 1]),
    "num_replicas": lambda: distributed(0, 0),
    "rank": lambda: distributed(2, 2),
    "rank below": lambda: distributed(2, -1),
    "no rank": lambda: distributed(2),
    "start step": lambda: distributed(1, 0, start_step=11),
    "epoch size": lambda: distributed(1, 0, epoch_size=11),
    "exclusion that ends first": lambda: distributed(1, 0, exclude=[(5, 2)]),
    "step of the epoch": lambda: distributed(1, 0).indices_at(10),
    "empty dataset": lambda: mmapds.DistributedSampler([]),
    "empty dataset in chunks": lambda: mmapds.ChunkedSampler([], 3),
    "step of a pass": lambda: distributed(1, 0).state_dict(step=11),
    "batch size": lambda: mmapds.DistributedBatchSampler(range(10), 0, num_replicas=1, rank=0),
    "state of a version": lambda: state(version=99),
    "state's position": lambda: state(position=11),
    "state of another size": lambda: state(epoch_size=11),
    # Token budgets
    "max_tokens": lambda: tokens(max_tokens=0),
    "no lengths": lambda: tokens([]),
    "length 0": lambda: tokens([0, 3]),
    "length below 0": lambda: tokens([1, -3]),
    "length NaN": lambda: tokens([1.0, float("nan")]),
    "lengths of two axes": lambda: tokens(np.ones((2, 2), int)),
    "over the budget": lambda: tokens([3, 50]),
    "nothing left": lambda: tokens(min_length=100),
    "fewer samples than ranks": lambda: tokens(num_replicas=9, rank=0),
    "pack_length": lambda: packs(pack_length=0),
    "longer than a pack": lambda: packs([3, 50]),
    "nothing to pack": lambda: packs(min_length=100),
    "packs of one": lambda: packs(max_sequences=1),
    "rounding that does not divide": lambda: packs(round_to=3),
    "fewer packs than ranks": lambda: packs(pack_length=100, num_replicas=4, rank=0, drop_last=True),
    "no step is left": lambda: tokens(max_tokens=100, num_replicas=4, rank=0, drop_last=True),
    "target lengths": lambda: tokens(target_lengths=[1]),
    "group size of windows": lambda: tokens(planner="window", group_size=2),
    "order of another size": lambda: tokens(planner="window", order=orders.Shuffled(7)),
    "order that repeats": lambda: tokens(planner="window", order=Twice(4)),
    # Datasets and views
    "index": lambda: dataset()[3],
    "index of a view": lambda: dataset()[1:][2],
    "indices": lambda: dataset()[[0, 7]],
    "batch": lambda: dataset().__getitems__([0, -9]),
    "stream of nothing": lambda: dataset()[:0].stream(),
    "state of another worker of a stream": lambda: (
        dataset()
        .stream()
        .load_state_dict(dict.fromkeys(["sampler", "worker", "num_workers", "num_replicas", "batch_size", "given"], 1))
    ),
    "mask": lambda: dataset()[np.array([True, False])],
    "fractions": lambda: dataset().split([0.5, 0.6]),
    "two indices": lambda: dataset()[np.zeros((2, 2), int)],
    # Collate
    "no samples": lambda: collate(),
    "more tokens than a row": lambda: pack([1, 2], pad_to=1),
    "more samples than a pack": lambda: pack([1], [2], max_sequences=1),
    "more rows than packs": lambda: pack([1, 2], [3, 4], layout="hf", pad_to=2, packs=1),
    "a sample longer than its row": lambda: pack([1, 2], layout="hf", pad_to=1, packs=1),
    "packs without a length": lambda: pack([1], layout="hf", packs=2),
    "fields of other lengths": lambda: pack({"a": [1], "b": [1, 2]}),
    "pad value": lambda: collate([1], [2], pad_value=2**70),
    "pad value of a type": lambda: collate(floats(2).to(torch.int8), floats(3).to(torch.int8), pad_value=300),
    "max_length": lambda: collate([1], max_length=0),
    "items of tuples": lambda: collate(([1], 2), ([1], 2, 3)),
    "shapes": lambda: collate(np.ones((2, 3)), np.ones((2, 4))),
    "a large integer": lambda: collate([1, 2**70]),
}

WITHOUT_NUMBERS = {
    "on_error": lambda: dataset(on_error="ignore"),
    "misspelt column": lambda: dataset().column("lenght"),
    "access": lambda: dataset(access="fast"),
    "decode": lambda: dataset(decode="xml"),
    "fields in a list": lambda: mmapds.Fields(["x"]),
    "fields' type": lambda: mmapds.Fields({"x": "int33"}),
    "fields' shape": lambda: mmapds.Fields({"x": ("int32", "rows")}),
    "fields' axes": lambda: mmapds.Fields({"x": ("int32", (-1,))}),
    "fields' path": lambda: mmapds.Fields({"x..y": "int32"}),
    "fields inside one another": lambda: mmapds.Fields({"x": "int32", "x.y": "int32"}),
    "fields' default": lambda: mmapds.Fields({"x": "int32"}, defaults={"x": "one"}),
    "fields' default of a type": lambda: mmapds.Fields({"x": "int32"}, defaults={"x": {1}}),
    "fields' default of no field": lambda: mmapds.Fields({"xy": "int32"}, defaults={"x": 1}),
    "fields that are not stored": lambda: mmapds.open(arrays(), build=True, decode=mmapds.Fields({"y": "int32"})),
    "fields of another stored type": lambda: mmapds.open(arrays(), build=True, decode=mmapds.Fields({"x": "int32"})),
    "decode of another format": lambda: dataset(decode="wds"),
    "decode torch": lambda: dataset(decode="torch"),
    "no column": lambda: mmapds.open(jsonl()).lengths,
    "no keys": lambda: dataset().find("x"),
    "index of floats": lambda: dataset()[[0.5]],
    "index of a name": lambda: dataset()["length"],
    "stream by no sampler": lambda: dataset().stream(range(3)),
    "stream by a sampler and more": lambda: dataset().stream(distributed(1, 0), seed=1),
    "concat nothing": lambda: mmapds.concat([]),
    "concat what is not of mmapds": lambda: mmapds.concat([dataset(), [1]]),
    "concat what is mapped otherwise": lambda: mmapds.concat([dataset().map(len), dataset().map(repr)]),
    "concat what is mapped and what is not": lambda: mmapds.concat([dataset(), dataset().map(len)]),
    "map what is no function": lambda: dataset().map("upper"),
    "concat zips of other names": lambda: zipped() + mmapds.zip(a=dataset()),
    "zip what is not of mmapds": lambda: mmapds.zip(a=dataset(), b=[1, 2, 3]),
    "column of no zipped dataset": lambda: zipped().column("n"),
    "column that a zipped dataset lacks": lambda: zipped().column("b.n"),
    "concat what differs": lambda: mmapds.concat([dataset(), dataset(decode="bytes")]),
    "stop": lambda: orders.Mixture([5, 5], [1, 1], stop="never"),
    "seed": lambda: orders.Shuffled(5, seed="a"),
    "not an order": lambda: distributed(1, 0, order=[1, 2]),
    "exclude": lambda: distributed(1, 0, exclude={"records": [1]}),
    "drop_last without padding": lambda: distributed(1, 0, drop_last=True, pad=False),
    "sampler of a trainer": lambda: mmapds.DistributedBatchSampler(range(10), 2, sampler=distributed(1, 0)),
    "what a batch sampler decides": lambda: mmapds.DistributedBatchSampler(distributed(1, 0, drop_last=True), 2),
    "subset": lambda: mmapds.TokenBudgetBatchSampler(torch.utils.data.Subset(mmapds.open(jsonl(length="n")), [0]), 10),
    "not a state": lambda: distributed(1, 0).load_state_dict([1]),
    "state without keys": lambda: distributed(1, 0).load_state_dict({"epoch": 0}),
    "state's order": lambda: state(order=None),
    "positions of floats": lambda: mmapds.Permutation(5)[np.array([0.5])],
    "datasets": lambda: mmapds.MixtureSampler({1, 2}, [1, 1]),
    "cost": lambda: tokens(cost="mean"),
    "planner": lambda: tokens(planner="greedy"),
    "order with buckets": lambda: tokens(order=orders.Sequential(4)),
    "lengths": lambda: mmapds.TokenBudgetBatchSampler("abc", 10),
    "lengths of text": lambda: tokens(["a", "b"]),
    "order cache": lambda: tokens(np.arange(1, 9), order_cache=file("cache", b"hello")),
    "order cache of no file": lambda: tokens(np.arange(1, 9), order_cache="."),
    "order cache in nowhere": lambda: tokens(np.arange(1, 9), order_cache="absent/cache"),
    "samples": lambda: mmapds.pad_collate({"a": 1}),
    "truncate": lambda: collate([1], truncate="middle"),
    "kinds": lambda: collate([1, 2], 3),
    "fields": lambda: collate({"a": 1}, {"b": 1}),
    "layout": lambda: pack([1], layout="thd"),
    "labels that are text": lambda: pack({"a": [1], "t": "x"}, labels="t"),
    "a field with a name of the layout": lambda: pack({"cu_seqlens": [1]}),
    "nothing to pack in samples": lambda: pack({"a": "x"}),
    "an option of another layout": lambda: pack([1], seq_idx=True),
    "pad value of a field": lambda: collate({"a": [1]}, {"a": [2]}, pad_value={"b": 1}),
    "pad value that is text": lambda: collate([1], [2], pad_value="x"),
    "pad value of no fields": lambda: collate({"a": [1]}, {"a": [2]}, pad_value={"a": {"b": 1}}),
    "mask of no field": lambda: collate({"a": 1}, mask="m"),
    "masks that differ": lambda: collate({"a": [1], "b": [1, 2]}, mask="m"),
    "mask that is a field": lambda: collate({"a": [1]}, mask="a"),
    "field of lengths": lambda: collate({"a": [1], "a_lengths": 1}),
    "complex": lambda: collate(np.ones(2, complex)),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_an_error_about_sizes_and_places_has_a_number(name):
    found = message(WITH_NUMBERS[name])
    check(found)
    assert re.search(r"\d", found), found


@pytest.mark.parametrize("name", WITHOUT_NUMBERS)
def test_an_error_has_a_form(name):
    check(message(WITHOUT_NUMBERS[name]))


# ---- what stands in CONTRIBUTING.md, and in the code ------------------------------------------------------------


def test_every_example_has_its_form():
    assert len(forms()) > 10
    for form, found, example in forms():
        assert found.fullmatch(example), form
        check(example)


def test_no_literal_has_a_phrase_that_readers_stumble_over():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "mmapds").rglob("*.py"))
        for line, text in literals(path)
        if banned(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_the_binding_says_what_it_expected():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for path in sorted((ROOT / "csrc").rglob("*.c"))
        for line, text in raised_in_c(path)
        if banned(text) or not re.search(r"\bexpected |out of range for |^%s: %s$|became shorter", text)
    ]
    assert not offenders, "\n".join(offenders)


def test_one_of_a_thing_is_not_counted_as_several(opened, tmp_path):
    ds = opened([{"n": 5}])
    mmapds.build(ds.sources[0], length="n")
    ds = mmapds.open(ds.sources[0])
    sampler = mmapds.TokenBudgetBatchSampler(ds, max_tokens=8)
    assert str(sampler.summary()).startswith("1 sample in 1 batch, 1 step\n")
    assert " 1 sample, " in f" {repr(sampler).partition(': ')[2]}"
    assert repr(sampler).endswith(" 1 step>")
    ds[:1].save(tmp_path / "one.mmx")
    assert "a saved view, 1 of the 1 record of 1 index" in command("--info", tmp_path / "one.mmx").stdout
    with open(ds.sources[0], "ab") as file:
        file.write(b"bad\n")
    assert "(1 such line left out" in command(ds.sources[0], "--bad", "skip").stderr
