"""Many indexes behave as one: the same columns, length order, plans and batches as one index of all their sources."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import TokenBudgetBatchSampler, orders
from mmapds.errors import FormatError
from mmapds.index.lengths import FileOrder, LengthOrder, Numbers
from tests.support.index_file import arrays, forge_section


def write(folder, name, *columns):
    """Sources with an index each: a number of each record by this name."""
    paths = [str(folder / f"part{number:02}.jsonl") for number in range(len(columns))]
    for path, numbers in zip(paths, columns, strict=True):
        Path(path).write_text("".join(f"{json.dumps({name: number})}\n" for number in numbers))
    mmapds.build(paths, columns={name: name})
    return paths


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sources of different sizes, one of them empty, one of lengths that no other has."""
    random = np.random.default_rng(0)
    lengths = [random.integers(1, 90, size) for size in (700, 1, 300, 0, 450, 60)]
    lengths[5] += 1000
    folder = tmp_path_factory.mktemp("corpus")
    paths = write(folder, "length", *(each.tolist() for each in lengths))
    return mmapds.open(paths), mmapds.open(mmapds.build(paths, out=folder / "all.mmx", length="length"))


def falling(lengths):
    """Records by falling length, equally long ones ascending."""
    return np.argsort(np.iinfo(np.uint64).max - np.asarray(lengths, np.uint64), kind="stable")


def same_order(found, lengths):
    order, values, counts = arrays(found)
    assert order.tolist() == falling(lengths).tolist()
    expected, numbers = np.unique(lengths, return_counts=True)
    assert (values.tolist(), counts.tolist()) == (expected[::-1].tolist(), numbers[::-1].tolist())
    assert found.lengths.array.tolist() == list(lengths)


@pytest.mark.parametrize("options", [{}, {"planner": "window", "sort_window": 50, "num_replicas": 3, "rank": 2}])
def test_plans_and_batches_of_many_are_those_of_one(corpus, options):
    options = {**options, "max_length": 1050, "min_length": 3}
    many, one = (TokenBudgetBatchSampler(ds, 2000, exclude=[17, (500, 900)], **options) for ds in corpus)
    for epoch in range(2):
        many.set_epoch(epoch)
        one.set_epoch(epoch)
        assert list(many) == list(one)
    many.load_state_dict(one.state_dict(step=7))
    one.load_state_dict(one.state_dict(step=7))
    assert list(many) == list(one)
    assert (many.state_dict(), many.summary()) == (one.state_dict(), one.summary())
    order = orders.Chunked(corpus[1].source_starts, 40, seed=3)
    first, second = (list(TokenBudgetBatchSampler(ds, 2000, planner="window", order=order)) for ds in corpus)
    assert first == second


def test_neighbours_have_the_order_of_their_records_and_other_views_are_sorted(corpus):
    many, one = corpus
    assert (many.lengths.dtype, many.lengths.flags.writeable) == (one.lengths.dtype, False)
    for ds in corpus:
        assert ds.lengths.tolist() == one.lengths.tolist()
        for begin, end in ((0, 1511), (0, 700), (3, 1400), (650, 1200), (1005, 1006), (20, 1511)):
            cut = ds[begin:end]
            same_order(cut.length_order, ds.lengths[begin:end])
            assert list(TokenBudgetBatchSampler(cut, 5000)) == list(TokenBudgetBatchSampler(cut.lengths, 5000))
        cuts = mmapds.concat([ds[k : k + 3] for k in range(0, 300, 5)])
        assert cuts.lengths.tolist() == [int(n) for k in range(0, 300, 5) for n in ds.lengths[k : k + 3]]
        for view in (ds[::2], ds[::-1], ds[[5, 3, 900]], ds[ds.lengths > 30], ds.split([0.5, 0.5])[0], cuts):
            assert view.length_order is None
            batches = TokenBudgetBatchSampler(view, 3000)
            assert sorted(itertools.chain(*batches)) == list(range(len(view)))
    for parts in ([one, many], [many[100:900], one[:3], many[800:], one[5:5]], one.split([0.3, 0.5, 0.2], seed=None)):
        joined = mmapds.concat(parts)
        same_order(joined.length_order, np.concatenate([part.lengths for part in parts]))
        same_order(joined[50:1400].length_order, joined.lengths[50:1400])
    same_order(one.map(str)[20:90].length_order, one.lengths[20:90])


def test_an_index_without_lengths_or_records_among_others(tmp_path):
    paths = write(tmp_path, "length", [1, 2], [3], [])
    Path(f"{paths[1]}.mmx").unlink()
    mmapds.build(paths[1])
    many = mmapds.open(paths)
    assert many.length_order is None
    with pytest.raises(mmapds.ColumnError, match=r"part01.jsonl.mmx: expected column 'length', found none"):
        TokenBudgetBatchSampler(many, 100)
    assert len(mmapds.open(paths[2]).lengths) == 0
    for sampler in (mmapds.TokenBudgetBatchSampler, mmapds.PackingBatchSampler):
        with pytest.raises(mmapds.OrderError, match="expected one sample or more, found 0"):
            sampler(mmapds.open(paths[2]), 8)


lengths = st.integers(0, 6) | st.sampled_from([2**32, 2**63, 2**64 - 1])
files = st.lists(st.lists(lengths, max_size=12), min_size=1, max_size=6)


@given(files, st.data())
def test_any_parts_of_any_orders(lengths_of_files, data):
    parts, expected = [], []
    for given_lengths in lengths_of_files:
        own = np.array(given_lengths, np.uint64)
        values, counts = (each[::-1].astype(np.uint64) for each in np.unique(own, return_counts=True))
        order = falling(own).astype(data.draw(st.sampled_from(["<u4", "<u8"])))
        begin = data.draw(st.integers(0, len(own)))
        end = data.draw(st.integers(begin, len(own)))
        parts.append(FileOrder(order, values, counts, begin, end, ValueError))
        expected.append(own[begin:end])
    column = Numbers(expected)
    total = np.concatenate(expected)
    if not len(total):
        return
    found = LengthOrder(parts, column)
    wanted = falling(total)
    assert arrays(found)[0].tolist() == wanted.tolist()
    assert np.repeat(found.values, found.counts.astype(np.int64)).tolist() == total[wanted].tolist()
    assert column.at(wanted).tolist() == total[wanted].tolist()


@pytest.mark.parametrize(
    ("section", "numbers", "message"),
    [
        ("length_values", [1, 2, 3], "expected numbers that fall, found others"),
        ("length_counts", [2, 2, 2], "expected counts that add up to 4, found others"),
        ("length_counts", [2**63, 2**63 + 2, 2], ""),
        ("length_order", [0, 2, 2**31, 1], "expected record numbers below 4, found others"),
    ],
)
def test_lengths_of_one_of_many_that_are_damaged(tmp_path, section, numbers, message):
    paths = write(tmp_path, "length", [5, 6], [3, 1, 2, 2], [7])
    forge_section(paths[1] + ".mmx", section, np.array(numbers, np.uint32 if len(numbers) == 4 else np.uint64))
    expected = f"part01.jsonl.mmx: DAMAGED: section '{section}': {message}.*; run: .*part01.jsonl --force"
    for ds in (mmapds.open(paths), mmapds.open(paths)[1:6]):
        with pytest.raises(FormatError, match=expected):
            list(TokenBudgetBatchSampler(ds, 100))
