"""Facts of reports: what they say of batches, shuffles, lengths and reads is what plain loops over all records find."""

import itertools
import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds.dataset.location import Location
from mmapds.errors import OrderError
from mmapds.orders import Chunked
from mmapds.report import batches, blocks, lengths, numbers, reads, report, shuffle
from mmapds.report.plans import Wanted, plan_epoch
from tests.support.commands import python
from tests.support.reports import all_batches, distance_of_gaps, padding, quantile, waiting, words

LENGTHS = np.clip(np.exp(np.random.default_rng(1).normal(4, 0.7, 1500)), 1, 600).astype(int)
COMMON = {"num_replicas": 4, "rank": 0, "seed": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return words(tmp_path_factory.mktemp("report") / "train.jsonl", LENGTHS)


def samplers(ds):
    """The sampler that each plan is that of."""
    budget = mmapds.TokenBudgetBatchSampler
    return {
        "max_tokens": ({"max_tokens": 2048}, budget(ds, 2048, **COMMON)),
        "max_tokens, some dropped": ({"max_tokens": 200}, budget(ds, 200, oversize="drop", **COMMON)),
        "chunks under a budget": (
            {"max_tokens": 2048, "chunk_size": 64},
            budget(ds, 2048, planner="window", order=Chunked(ds.source_starts, 64, seed=3), **COMMON),
        ),
        "pack": ({"pack": 1024}, mmapds.PackingBatchSampler(ds, 1024, **COMMON)),
        "pack, some dropped": ({"pack": 128}, mmapds.PackingBatchSampler(ds, 128, oversize="drop", **COMMON)),
        "pack by chunks": (
            {"pack": 1024, "chunk_size": 64},
            mmapds.PackingBatchSampler(ds, 1024, planner="window", order=Chunked(ds, 64, seed=3), **COMMON),
        ),
        "batch_size": ({"batch_size": 24}, mmapds.DistributedBatchSampler(ds, 24, **COMMON)),
        "chunks": (
            {"batch_size": 24, "chunk_size": 64},
            mmapds.DistributedBatchSampler(mmapds.ChunkedSampler(ds, 64, **COMMON), 24),
        ),
    }


KINDS = (
    "max_tokens",
    "max_tokens, some dropped",
    "chunks under a budget",
    "pack",
    "pack, some dropped",
    "pack by chunks",
    "batch_size",
    "chunks",
)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_the_sampler(path, kind):
    """Every number of the section on batches, and the order that the shuffle is judged by."""
    ds = mmapds.open(path)
    wanted, sampler = samplers(ds)[kind]
    facts = report(path, ranks=4, seed=3, samples=False, **wanted)["plans"][0]["batches"]
    steps = all_batches(sampler)
    assert (facts["steps"], facts["ranks"]) == (len(sampler), 4)
    whole = len(plan_epoch(ds, Wanted.of(ranks=4, seed=3, **wanted)).batches) // 4
    steps, used = steps[:whole], list(itertools.chain.from_iterable(steps[:whole]))
    assert facts["measured"] == {"batches": len(used), "is_whole": True}
    sizes = [len(batch) for batch in used]
    found = facts["sizes"]["quantiles"]
    assert (found["min"], found["50 %"], found["max"]) == (min(sizes), quantile(sizes, 0.5), max(sizes))
    assert found["mean"] == pytest.approx(np.mean(sizes))
    assert sum(facts["sizes"]["batches"]) == len(used)
    is_pack = wanted.get("pack") is not None

    def cost(batch):
        own = [int(LENGTHS[i]) for i in batch]
        return sum(each * each for each in own) if is_pack else max(own) * len(own)

    costs = [[cost(batch) for batch in step] for step in steps]
    assert facts["cost"]["waiting"] == pytest.approx(waiting(costs))
    most = [max(step) / np.mean(step) for step in costs]
    assert facts["cost"]["imbalance"]["mean"] == pytest.approx(np.mean(most))
    assert facts["cost"]["imbalance"]["max"] == pytest.approx(max(most))
    assert facts["cost"]["by_rank"] == pytest.approx([np.mean([s[r] / np.mean(s) for s in costs]) for r in range(4)])
    if not is_pack:
        assert facts["padding"] == pytest.approx(padding(LENGTHS, used))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "max_tokens" in kind or "pack" in kind])
def test_batches_are_what_the_summary_of_the_sampler_says(path, kind, capsys):
    wanted, sampler = samplers(mmapds.open(path))[kind]
    facts = report(path, ranks=4, seed=3, samples=False, **wanted)["plans"][0]["batches"]
    summary = sampler.summary()
    capsys.readouterr()
    assert facts["steps"] == summary.steps
    assert facts["records"] == summary.samples
    assert facts["fill"] == pytest.approx(summary.fill)
    assert facts["cost"]["imbalance"]["mean"] == pytest.approx(summary.imbalance)
    assert sum(facts["left_out"].values()) == summary.too_short + summary.too_long
    if "padding" in facts:
        assert facts["padding"] == pytest.approx(summary.padding)


def test_a_long_epoch_is_read_in_blocks_that_have_its_ends_and_its_middle():
    ds = _Numbers(40_000_000)
    plan = plan_epoch(ds, Wanted.of(batch_size=16, ranks=8))
    read = blocks.read_blocks(plan)
    assert not read.is_whole
    assert len(read.blocks) == 201
    firsts = [block.first_step for block in read.blocks]
    steps = len(read.blocks[0].ends) // 8
    assert firsts[0] == 0
    assert firsts[100] == pytest.approx(read.steps / 2, abs=steps)
    assert firsts[-1] + steps == read.steps == 40_000_000 // 128
    sampler = mmapds.DistributedBatchSampler(range(40_000_000), 16, num_replicas=8, rank=0)
    block = read.blocks[77]
    expected = np.concatenate([sampler.indices_at(block.first_step + step).ravel() for step in range(steps)])
    assert np.array_equal(block.records, expected)


class _Numbers:
    """A dataset of so many records, as far as a plan of batches of one size asks."""

    columns = ()

    def __init__(self, records):
        self.records = records
        self.source_starts = np.array([0, records])

    def __len__(self):
        return self.records


TOKENS = st.integers(1, 4000) | st.integers(2**53 - 2, 2**53 + 2) | st.integers(2**64 - 3, 2**64 - 1)
"""Lengths, large ones too: of these, float64 has not all."""


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=200) | st.lists(TOKENS, min_size=1), st.integers(1, 4500))
def test_lengths_are_what_loops_find(numbers_, budget):
    values, counts = np.unique(np.array(numbers_, np.uint64), return_counts=True)
    facts = lengths.length_facts(values, counts, "tokens", [budget])
    assert (facts["records"], facts["total"], facts["distinct"]) == (len(numbers_), sum(numbers_), len(set(numbers_)))
    for share in numbers.QUANTILES:
        assert facts["quantiles"][f"{share * 100:g} %"] == quantile(numbers_, share)
    assert facts["quantiles"]["mean"] == pytest.approx(np.mean(numbers_))
    edges, bins = facts["histogram"]["edges"], facts["histogram"]["records"]
    assert edges == sorted(set(edges))
    pairs = list(itertools.pairwise(edges))
    assert bins == [sum(low <= each < high for each in numbers_) for low, high in pairs]
    held = [sum(each for each in numbers_ if low <= each < high) / sum(numbers_) for low, high in pairs]
    assert facts["histogram"]["share_of_total"] == pytest.approx(held)
    (row,) = [row for row in facts["budgets"] if row["budget"] == budget]
    over = [each for each in numbers_ if each > budget]
    assert row["over"] == len(over)
    assert row["over_share"] == pytest.approx(len(over) / len(numbers_))
    assert row["dropped_share"] == pytest.approx(sum(over) / sum(numbers_))
    assert row["truncated_share"] == pytest.approx(sum(each - budget for each in over) / sum(numbers_))
    assert facts["budgets"][-1]["over"] == 0  # the table ends where nothing is cut off


def test_batches_of_large_lengths_are_what_loops_find(write):
    """A batch of them has more tokens than 64 bits hold."""
    tokens = [2**64 - 1, 2**63, *range(5, 35)]
    path = write([{"n": n} for n in tokens])
    mmapds.build(path, length="n")
    found = report(path, ranks=1, samples=False)["plans"][0]["batches"]
    assert found["padding"] == pytest.approx(1 - sum(tokens) / (max(tokens) * len(tokens)))
    assert found["tokens_of_batches"]["quantiles"]["max"] == sum(tokens)
    assert found["padded_of_batches"]["edges"] == [max(tokens) * len(tokens), max(tokens) * len(tokens) + 1]


@settings(max_examples=30)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_the_padding_of_random_batches_is_that_of_all_draws(numbers_, size):
    values, counts = np.unique(np.array(numbers_), return_counts=True)
    draws = list(itertools.product(numbers_, repeat=size))
    longest = np.mean([max(draw) for draw in draws])
    assert batches.random_padding(values, counts, size) == pytest.approx(1 - np.mean(numbers_) / longest)


@pytest.mark.parametrize(
    ("lengths", "plan"), [([10] * 100 + [10**6, 0], {"max_tokens": 100}), ([0] * 100, {"batch_size": 4})]
)
def test_random_batches_are_of_the_records_that_are_planned(tmp_path, lengths, plan):
    """Where these are of one length, no batch has padding, whatever is left out."""
    path = words(tmp_path / "train.jsonl", lengths)
    found = report(path, ranks=1, samples=False, **plan)["plans"][0]["batches"]
    assert (found["records"], found["padding"], found["random_padding"]) == (100, 0.0, 0.0)


@given(st.sets(st.integers(0, 300), min_size=3, max_size=60), st.integers(301, 500))
def test_gaps_are_compared_with_random_ones_at_every_number(window, records):
    order = list(window)
    random.Random(0).shuffle(order)
    found = shuffle.gaps(np.array(order), records)
    assert found["records"] == len(window)
    assert found["distance"] == pytest.approx(distance_of_gaps(window, records))


def test_gaps_tell_orders_apart():
    """A shuffle is as random as chance has it; neighbours, and chunks of them, are far from it."""
    records = 1_000_000
    shuffled = mmapds.orders.Shuffled(records, 5).at(0, np.arange(4096))
    chunked = Chunked(records, 256, seed=5).at(0, np.arange(4096))
    one = shuffle.gaps(shuffled, records)
    assert one["distance"] < one["bound"]
    assert shuffle.gaps(chunked, records)["distance"] > 10 * one["bound"]
    assert shuffle.gaps(np.arange(4096), records)["distance"] > 0.9
    curve = dict(map(tuple, one["curve"]))
    assert curve[1.0] == pytest.approx(np.exp(-1), abs=0.03)
    assert shuffle.gaps(np.array([7, 7]), records)["distance"] is None


def test_density_counts_what_each_part_of_an_epoch_has_of_each_part_of_the_dataset():
    generator = np.random.default_rng(0)
    positions, records = generator.random(5000), generator.random(5000) ** 2
    found = shuffle.density(positions, records, 10)
    at, parts = (positions * 10).astype(int).tolist(), (records * 32).astype(int).tolist()
    counts, columns, rows = Counter(zip(at, parts, strict=True)), Counter(at), Counter(parts)
    for column, row in itertools.product(range(10), range(32)):
        expected = columns[column] * rows[row] / 5000
        assert found["cells"][column][row] == pytest.approx(counts[column, row] / expected if expected else 0, abs=1e-3)
    assert found["dispersion"] == pytest.approx(1, abs=0.25)
    assert shuffle.density(positions, positions, 10)["dispersion"] > 10


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50_000), st.integers(0, 20_000)), min_size=1, max_size=30)
)
def test_steps_touch_the_pages_that_their_bytes_lie_on(given_):
    locations = [Location(*each) for each in given_]
    pages = {
        (source, page)
        for source, offset, size in given_
        for page in range(offset // 4096, (offset + max(size, 1) - 1) // 4096 + 1)
    }
    assert reads.step_facts(locations) == {
        "records": len(given_),
        "bytes": sum(size for _, _, size in given_),
        "pages": len(pages),
        "sources": len({source for source, _, _ in given_}),
    }


def test_pages_of_records_of_any_size_are_counted():
    """As an index may claim them; an entry for each page would not fit into memory."""
    size = 1 << 50
    found = reads.step_facts([Location("a", 0, size), Location("a", size // 2, size), Location("b", 5, 2 * size)])
    assert (found["bytes"], found["pages"]) == (4 * size, 3 * size // 2 // 4096 + 2 * size // 4096 + 1)


def test_reads_are_those_of_the_records_of_steps(tmp_path):
    paths = [words(tmp_path / f"{part}.jsonl", LENGTHS[:300]) for part in "abc"]
    ds = mmapds.open(paths)
    facts = report(paths, max_tokens=2048, ranks=4, samples=False)["plans"][0]["reads"]
    sampler = mmapds.TokenBudgetBatchSampler(ds, 2048, num_replicas=4, rank=0)
    steps = [np.concatenate(sampler.indices_at(step)) for step in range(len(sampler))]
    assert facts["sources"] == 3
    first = facts["steps"][0]
    where = [ds.where(int(record)) for record in steps[0]]
    assert first == reads.step_facts(where)
    assert facts["mean"]["bytes"] == pytest.approx(np.mean([step["bytes"] for step in facts["steps"]]))


def test_sizes_of_records_stand_for_lengths_where_there_are_none(write):
    path = write([{"text": "x" * (i % 40)} for i in range(500)])
    mmapds.build(path)
    facts = report(path, samples=False)
    sizes = [len(line) + 1 for line in Path(path).read_text().splitlines()]
    assert facts["lengths"]["unit"] == "bytes"
    assert facts["lengths"]["total"] == sum(sizes)
    assert facts["lengths"]["quantiles"]["50 %"] == quantile(sizes, 0.5)
    plan = facts["plans"][0]
    assert "padding" not in plan["batches"]
    assert plan["batches"]["sizes"]["quantiles"]["max"] == 32
    with pytest.raises(mmapds.ColumnError, match="--length"):
        report(path, max_tokens=100)


def test_coverage_says_what_the_index_covers_and_what_changed(tmp_path):
    paths = [words(tmp_path / f"{part}.jsonl", range(1, 31)) for part in "ab"]
    facts = report(paths, batch_size=4, ranks=2)
    coverage = facts["coverage"]
    assert (coverage["records"], coverage["sources"], coverage["is_current"]) == (60, 2, True)
    column = {each["name"]: each for each in coverage["columns"]}["length"]
    assert (column["min"], column["median"], column["max"], column["mean"]) == (1, 15, 30, 15.5)
    assert facts["samples"]["tried"] == 60
    with open(paths[1], "a") as file:
        file.write("{}\n")
    changed = report(paths, batch_size=4, ranks=2)
    assert changed["coverage"]["states"] == {"stale": 1, "unchanged": 1}
    assert changed["coverage"]["listed"][0]["path"] == paths[1]
    assert "run: python -m mmapds.index" in changed["coverage"]["listed"][0]["message"]
    # What the index has is there; what lies in the sources is not.
    assert changed["plans"][0]["reads"] is changed["samples"] is None
    assert changed["lengths"] == facts["lengths"]


def test_facts_are_json_where_a_total_is_too_large_for_it(write):
    path = write([1, 2, 3])
    mmapds.build(path)
    mmapds.add_column(path, "x", np.array([1.7e308] * 3))
    facts = json.loads(json.dumps(report(path, ranks=1), allow_nan=False))
    column = {each["name"]: each for each in facts["coverage"]["columns"]}["x"]
    assert (column["mean"], column["total"]) == (1.7e308, None)


def test_views_are_looked_at_as_datasets_are(path, tmp_path):
    ds = mmapds.open(path)
    ds[ds.lengths <= 60].save(tmp_path / "short.mmx")
    facts = report(tmp_path / "short.mmx", max_tokens=1024, roots=[str(tmp_path.parent)], ranks=2)
    kept = [int(each) for each in LENGTHS if each <= 60]
    assert facts["coverage"]["records"] == len(kept) < facts["coverage"]["records_of_indexes"]
    assert facts["lengths"]["total"] == sum(kept) == facts["plans"][0]["batches"]["tokens"]


def test_samples_are_random_longest_shortest_and_undecodable(write):
    lines = [json.dumps({"n": n}) for n in (5, 1, 9, 3, 7, 2, 8)]
    path = write(("\n".join(lines) + "\n").encode())
    mmapds.build(path, length="n")
    samples = report(path, ranks=1)["samples"]
    assert [each["length"] for each in samples["longest"]] == [9, 8, 7]
    assert [each["length"] for each in samples["shortest"]] == [1, 2, 3]
    assert len({each["position"] for each in samples["random"]}) == 6
    assert samples["undecodable"] == []
    assert samples["longest"][0]["lines"] == ["{", '  "n": 9', "}"]
    bad = write(b'{"n": 1}\n{"n": oops}\n{"n": 2}\n', "bad.jsonl")
    mmapds.build(bad)
    found = report(bad, ranks=1)["samples"]["undecodable"]
    assert [each["position"] for each in found] == [1]
    assert f"{bad}:2 (byte 9): not JSON" in found[0]["error"]
    assert found[0]["lines"] == ['{"n": oops}']


def test_what_a_killed_report_left_behind_goes(path, tmp_path):
    (tmp_path / "page.html.01234567.tmp").touch()
    report(path, out=tmp_path / "page.html")
    assert [each.name for each in tmp_path.iterdir()] == ["page.html"]


def test_an_empty_dataset_has_a_report_without_plans(write):
    path = write(b"")
    mmapds.build(path)
    facts = report(path)
    assert (facts["coverage"]["records"], facts["plans"], facts["lengths"], facts["samples"]) == (0, [], None, None)


def test_the_facts_are_json_and_the_same_each_time(path):
    first, second = (report(path, max_tokens=2048, compare="pack=1024") for _ in range(2))
    assert json.loads(json.dumps(first)) == first == second
    assert [plan["title"] for plan in first["plans"]] == ["token budget 2,048", "packs of 1,024"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens = 0, expected an integer of 1 or more"),
        ({"pack": 5, "max_tokens": 7}, "pack = 5, expected None beside max_tokens; give one of the two"),
        ({"ranks": 5000}, "ranks = 5000, expected 1 to 1500, the number of records"),
        ({"compare": "pick=8"}, f"compare: expected {', '.join(Wanted._fields)}, found 'pick' (did you mean 'pack')"),
        ({"compare": "pack=many"}, "compare: pack: expected an integer below 2**63, found 'many'"),
        ({"compare": "pack=" + "9" * 5000}, "compare: pack: expected an integer below 2**63, found '99"),
        ({"compare": [5]}, "compare = 5, expected a plan such as 'pack=4096,ranks=16'"),
        ({"compare": 5}, "compare = 5, expected a plan such as 'pack=4096,ranks=16'"),
    ],
)
def test_arguments_that_mean_no_plan_are_errors(path, options, message):
    with pytest.raises(OrderError) as raised:
        report(path, **options)
    assert str(raised.value).startswith(message)


@pytest.mark.parametrize("size", [1500, 2**60, 2**63 - 1])
def test_a_batch_may_be_larger_than_the_dataset(path, size):
    found, wanted = (report(path, batch_size=each, samples=False)["plans"][0]["batches"] for each in (size, 188))
    assert found == {**wanted, "limit": size}


@pytest.mark.parametrize("waits", ["a\0b", ["\ud800"]])
def test_a_path_of_waits_that_no_file_can_have_is_an_error(path, waits):
    with pytest.raises(mmapds.FormatError, match=r"waits = '.*', expected the path of a file"):
        report(path, waits=waits)


def test_facts_load_neither_matplotlib_nor_torch(path):
    code = f"import sys; from mmapds.report import report; report({path!r}, max_tokens=2048); print(*sys.modules)"
    loaded = set(python(code).stdout.split())
    assert "mmapds.report" in loaded
    assert not {"matplotlib", "torch"} & loaded
