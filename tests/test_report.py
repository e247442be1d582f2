"""Facts of reports: batches, shuffles, lengths and reads are what plain loops over all records find."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import mmapds
from mmapds.dataset.catalog import Location
from mmapds.errors import OrderError
from mmapds.orders.basic import Chunked
from mmapds.report import numbers as computed
from mmapds.report import report
from mmapds.report.numbers import Wanted, plan_epoch
from tests.support.reports import all_batches, distance_of_gaps, quantile, words

LENGTHS = np.clip(np.exp(np.random.default_rng(1).normal(4, 0.7, 1500)), 1, 600).astype(int)
COMMON = {"num_replicas": 4, "rank": 0, "seed": 3}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return words(tmp_path_factory.mktemp("report") / "train.jsonl", LENGTHS)


def chunked(ds):
    return {"order": Chunked(ds, 64, seed=3), "planner": "window"}


BUDGET, PACKS, FIXED = mmapds.TokenBudgetBatchSampler, mmapds.PackingBatchSampler, mmapds.DistributedBatchSampler
CHUNKS = {"chunk_size": 64}
PLANS = {
    "budget": ({"max_tokens": 2048}, lambda ds: BUDGET(ds, 2048, **COMMON)),
    "budget, some dropped": ({"max_tokens": 200}, lambda ds: BUDGET(ds, 200, oversize="drop", **COMMON)),
    "budget by chunks": ({"max_tokens": 2048, **CHUNKS}, lambda ds: BUDGET(ds, 2048, **chunked(ds), **COMMON)),
    "packs, some dropped": ({"pack": 128}, lambda ds: PACKS(ds, 128, oversize="drop", **COMMON)),
    "packs by chunks": ({"pack": 1024, **CHUNKS}, lambda ds: PACKS(ds, 1024, **chunked(ds), **COMMON)),
    "fixed": ({"batch_size": 24}, lambda ds: FIXED(ds, 24, **COMMON)),
    "fixed, larger than the dataset": ({"batch_size": 2**63 - 1}, lambda ds: FIXED(ds, 375, **COMMON)),
    "fixed by chunks": (
        {"batch_size": 24, **CHUNKS},
        lambda ds: FIXED(mmapds.ChunkedSampler(ds, 64, **COMMON), 24),
    ),
}
"""The arguments of each kind of plan, and the sampler that it describes."""


@pytest.mark.parametrize("kind", PLANS)
def test_batches_are_those_of_the_sampler(path, kind):
    ds = mmapds.open(path)
    wanted, make = PLANS[kind]
    facts = report(path, ranks=4, seed=3, samples=False, **wanted)["plans"][0]["batches"]
    sampler = make(ds)
    steps = all_batches(sampler)
    assert (facts["steps"], facts["ranks"]) == (len(sampler), 4)
    steps = steps[: facts["batches"] // 4 if facts["kind"] != "fixed" else len(LENGTHS) // (4 * len(steps[0][0]))]
    used = list(itertools.chain.from_iterable(steps))
    assert facts["measured"] == {"batches": len(used), "is_whole": True}
    sizes = [len(batch) for batch in used]
    found = facts["sizes"]["quantiles"]
    assert (found["min"], found["50 %"], found["max"]) == (min(sizes), quantile(sizes, 0.5), max(sizes))
    assert found["mean"] == pytest.approx(np.mean(sizes))
    assert sum(facts["sizes"]["batches"]) == len(used)
    limit, is_pack = wanted.get("max_tokens", wanted.get("pack")), "pack" in wanted

    def cost(batch):
        own = [int(LENGTHS[i]) for i in batch]
        return sum(each * each for each in own) if is_pack else max(own) * len(own)

    costs = [[cost(batch) for batch in step] for step in steps]
    most = [max(step) / np.mean(step) for step in costs]
    assert facts["cost"]["waiting"] == pytest.approx(1 - sum(map(sum, costs)) / sum(4 * max(step) for step in costs))
    assert facts["cost"]["imbalance"]["mean"] == pytest.approx(np.mean(most))
    assert facts["cost"]["imbalance"]["max"] == pytest.approx(max(most))
    kept = [int(each) for each in LENGTHS if limit is None or each <= limit]
    assert (facts["records"], facts["tokens"]) == (len(kept), sum(kept))
    assert sum(facts["left_out"].values()) == len(LENGTHS) - len(kept)
    if limit is not None:
        assert facts["fill"] == pytest.approx(sum(kept) / (facts["batches"] * limit))
    if not is_pack:
        padded = sum(max(LENGTHS[batch]) * len(batch) for batch in used)
        assert facts["padding"] == pytest.approx(1 - sum(LENGTHS[batch].sum() for batch in used) / padded)


@pytest.mark.parametrize("kind", ["max_tokens", "pack", "batch_size"])
def test_a_mixture_has_the_batches_of_its_sampler(tmp_path, kind):
    sizes = {"a.jsonl": LENGTHS[:500], "b.jsonl": LENGTHS[500:]}
    paths = [words(tmp_path / name, lengths) for name, lengths in sizes.items()]
    parts = [mmapds.open(path) for path in paths]
    if kind == "batch_size":
        samples = mmapds.MixtureSampler(parts, [3, 1], **COMMON)
        sampler = mmapds.DistributedBatchSampler(samples, 24)
    else:
        make = BUDGET if kind == "max_tokens" else PACKS
        own = [make(part, 512, oversize="drop", seed=3, num_replicas=1, rank=0) for part in parts]
        sampler = mmapds.MixtureBatchSampler(own, [3, 1], num_replicas=4, rank=0)
    found = report(paths, mix=[3, 1], ranks=4, seed=3, samples=False, **{kind: 24 if kind == "batch_size" else 512})
    facts, shares = found["plans"][0]["batches"], found["plans"][0]["mixture"]
    steps = all_batches(sampler)
    used = [batch for step in steps for batch in step]
    assert facts["steps"] == len(steps)
    assert abs(facts["records"] - sum(map(len, used))) <= max(map(len, used))
    tokens = sum(int(LENGTHS[batch].sum()) for batch in used)
    assert facts["tokens"] == pytest.approx(tokens, rel=0.02)
    drawn = [
        sum(record < 500 for batch in used for record in batch),
        sum(record >= 500 for batch in used for record in batch),
    ]
    fit = [sum(each <= 512) for each in sizes.values()] if kind != "batch_size" else [500, len(LENGTHS) - 500]
    assert [each["passes"] for each in shares] == pytest.approx(
        [n / of for n, of in zip(drawn, fit, strict=True)], rel=0.1
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": [1, 2]}, "mix = .*, expected one number for each of 1 datasets"),
        ({"mix": [1], "chunk_size": 64}, "chunk_size = 64, expected None beside mix"),
        ({"mix": [-1], "pack": 64}, "mix = .*, expected finite numbers of 0 or more"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(path, options, message):
    with pytest.raises(OrderError, match=message):
        report(path, samples=False, **options)


@pytest.mark.parametrize("options", [{"mix_chunks": 4}, {"compare": "pack=512,mix_chunks=4"}])
def test_mixed_chunks_without_chunks_are_refused(path, options):
    with pytest.raises(OrderError, match="mix_chunks = 4, expected chunk_size with it"):
        report(path, **options)


def test_a_long_epoch_is_read_in_blocks_that_have_its_ends_and_its_middle():
    records = 40_000_000
    read = plan_epoch(range(records), None, Wanted.of(batch_size=16, ranks=8))
    assert not read.is_whole
    assert len(read.blocks) == 201
    counts = [len(each) // 8 for each in read.sizes]
    firsts, steps = read.steps[np.cumsum([0, *counts[:-1]]) * 8].tolist(), counts[77]
    assert firsts[0] == 0
    assert firsts[100] == pytest.approx(read.whole_steps / 2, abs=steps)
    assert firsts[-1] + counts[-1] == read.whole_steps == records // 128
    sampler = mmapds.DistributedBatchSampler(range(records), 16, num_replicas=8, rank=0)
    expected = np.concatenate([sampler.indices_at(firsts[77] + step).ravel() for step in range(steps)])
    assert np.array_equal(read.blocks[77], expected)


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=200), st.integers(1, 4500))
@example([2], 1)
def test_lengths_are_what_loops_find(numbers, limit):
    values, counts = np.unique(np.array(numbers, np.uint64), return_counts=True)
    facts = computed.length_facts(values, counts, "tokens", [limit])
    assert (facts["records"], facts["total"]) == (len(numbers), sum(numbers))
    for share in computed.QUANTILES:
        assert facts["quantiles"][f"{share * 100:g} %"] == quantile(numbers, share)
    assert facts["quantiles"]["mean"] == pytest.approx(np.mean(numbers))
    edges, bins = facts["histogram"]["edges"], facts["histogram"]["records"]
    assert edges == sorted(set(edges))
    pairs = list(itertools.pairwise(edges))
    assert bins == [sum(low <= each < high for each in numbers) for low, high in pairs]
    held = [sum(each for each in numbers if low <= each < high) / sum(numbers) for low, high in pairs]
    assert facts["histogram"]["share_of_total"] == pytest.approx(held)
    (row,) = [row for row in facts["budgets"] if row["budget"] == limit]
    over = [each for each in numbers if each > limit]
    assert (row["over"], row["over_share"]) == (len(over), pytest.approx(len(over) / len(numbers)))
    assert row["dropped_share"] == pytest.approx(sum(over) / sum(numbers))
    assert row["truncated_share"] == pytest.approx(sum(each - limit for each in over) / sum(numbers))
    powers = [each["budget"] for each in facts["budgets"] if each["budget"] != limit]
    assert facts["budgets"][-1]["over"] == 0  # the table ends where nothing is cut off
    assert max(powers, default=0) < 2 * max(*numbers, 2)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 4))
def test_the_padding_of_random_batches_is_that_of_all_draws(numbers, size):
    values, counts = np.unique(numbers, return_counts=True)
    longest = np.mean([max(draw) for draw in itertools.product(numbers, repeat=size)])
    assert computed.random_padding(values, counts, size) == pytest.approx(1 - np.mean(numbers) / longest)


@given(st.permutations(range(300)), st.integers(3, 60), st.integers(301, 500))
def test_gaps_are_compared_with_random_ones_at_every_number(order, size, records):
    window = order[:size]
    found = computed.gaps(np.array(window), records)
    assert (found["records"], found["distance"]) == (size, pytest.approx(distance_of_gaps(window, records)))


def test_gaps_of_a_shuffle_are_as_random_as_chance_and_those_of_chunks_are_not():
    orders = mmapds.orders.Shuffled(1_000_000, 5), Chunked(1_000_000, 256, seed=5)
    one, chunks = (computed.gaps(order.at(0, np.arange(4096)), 1_000_000) for order in orders)
    assert one["distance"] < one["bound"] < chunks["distance"] / 10
    assert dict(map(tuple, one["curve"]))[1.0] == pytest.approx(np.exp(-1), abs=0.03)


def test_density_counts_what_each_part_of_an_epoch_has_of_each_part_of_the_dataset():
    generator = np.random.default_rng(0)
    positions, records = generator.random(5000), generator.random(5000) ** 2
    found = computed.density(positions, records, 10)
    at, parts = (positions * 10).astype(int).tolist(), (records * 32).astype(int).tolist()
    counts, columns, rows = Counter(zip(at, parts, strict=True)), Counter(at), Counter(parts)
    for column, row in itertools.product(range(10), range(32)):
        expected = columns[column] * rows[row] / 5000
        assert found["cells"][column][row] == pytest.approx(counts[column, row] / expected if expected else 0, abs=1e-3)
    assert found["dispersion"] == pytest.approx(1, abs=0.25)
    assert computed.density(positions, positions, 10)["dispersion"] > 10


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 50_000), st.integers(0, 20_000)), min_size=1, max_size=30)
)
def test_steps_touch_the_pages_of_their_bytes(records):
    pages = {
        (source, page)
        for source, offset, size in records
        for page in range(offset // 4096, (offset + max(size, 1) - 1) // 4096 + 1)
    }
    assert computed.step_facts([Location(*each) for each in records]) == {
        "records": len(records),
        "bytes": sum(size for _, _, size in records),
        "pages": len(pages),
        "sources": len({source for source, _, _ in records}),
    }


def test_reads_are_those_of_the_records_of_steps(tmp_path):
    paths = [words(tmp_path / f"{part}.jsonl", LENGTHS[:300]) for part in "abc"]
    ds = mmapds.open(paths)
    facts = report(paths, max_tokens=2048, ranks=4, samples=False)["plans"][0]["reads"]
    sampler = BUDGET(ds, 2048, num_replicas=4, rank=0)
    steps = [[ds.where(int(record)) for batch in step for record in batch] for step in all_batches(sampler)]
    assert facts["sources"] == 3
    assert facts["steps"] == [computed.step_facts(step) for step in steps[: facts["measured"]["steps"]]]
    assert facts["mean"]["records"] == pytest.approx(900 / len(sampler))
    of_a_record = [sum(step[name] for step in facts["steps"]) for name in ("bytes", "records")]
    assert facts["mean"]["bytes"] == pytest.approx(of_a_record[0] / of_a_record[1] * 900 / len(sampler))


def test_sizes_of_records_stand_for_lengths_where_there_are_none(write):
    path, empty = write([{"text": "x" * (i % 40)} for i in range(500)]), write(b"", "empty.jsonl")
    mmapds.build([path, empty])
    facts = report(path, samples=False)
    sizes = [len(line) + 1 for line in Path(path).read_text().splitlines()]
    assert (facts["lengths"]["unit"], facts["lengths"]["total"]) == ("bytes", sum(sizes))
    assert facts["lengths"]["quantiles"]["50 %"] == quantile(sizes, 0.5)
    assert "padding" not in facts["plans"][0]["batches"]
    with pytest.raises(mmapds.ColumnError, match="expected column 'length', found none"):
        report(path, max_tokens=100)
    facts = report(empty)
    assert (facts["coverage"]["records"], facts["plans"], facts["lengths"], facts["samples"]) == (0, [], None, None)


def test_a_view_is_reported_as_a_dataset(path, tmp_path):
    ds = mmapds.open(path)
    ds[ds.lengths <= 60].save(tmp_path / "short.mmx")
    facts = report(tmp_path / "short.mmx", max_tokens=1024, roots=[str(tmp_path.parent)], ranks=2)
    kept = [int(each) for each in LENGTHS if each <= 60]
    assert facts["coverage"]["records"] == len(kept) < facts["coverage"]["records_of_indexes"]
    assert facts["lengths"]["total"] == sum(kept) == facts["plans"][0]["batches"]["tokens"]


def test_samples_are_random_longest_shortest_and_undecodable(write):
    path = write([{"n": n} for n in (5, 1, 9, 3, 7, 2, 8)])
    mmapds.build(path, length="n")
    samples = report(path, ranks=1)["samples"]
    assert [each["length"] for each in samples["longest"]] == [9, 8, 7]
    assert [each["length"] for each in samples["shortest"]] == [1, 2, 3]
    assert len({each["position"] for each in samples["random"]}) == 6
    assert samples["longest"][0]["lines"] == ["{", '  "n": 9', "}"]
    assert (samples["undecodable"], samples["tried"]) == ([], 7)
    bad = write(b'{"n": 1}\n{"n": oops}\n{"n": 2}\n', "bad.jsonl")
    mmapds.build(bad)
    (found,) = report(bad, ranks=1)["samples"]["undecodable"]
    assert (found["position"], found["lines"]) == (1, ['{"n": oops}'])
    assert f"{bad}:2 (byte 9): not JSON" in found["error"]
