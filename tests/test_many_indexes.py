"""Many indexes behave as one: the same columns, length order, plans and batches as one index of all their sources."""

import copy
import itertools
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import TokenBudgetBatchSampler, orders
from mmapds.dataset.saving import examine_view
from mmapds.errors import FormatError
from mmapds.index.lengths import FileOrder, LengthOrder, Numbers
from mmapds.storage.index_file import SavedView
from tests.support.index_file import arrays, forge_section
from tests.support.sanitizers import counts_memory


def write(folder, lengths_of_sources):
    """Sources with an index each, and one index of all: their paths."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, lengths in enumerate(lengths_of_sources):
        path = folder / f"part{number:02}.jsonl"
        path.write_text("".join(f"{json.dumps({'n': int(n), 'id': [number, i]})}\n" for i, n in enumerate(lengths)))
        paths.append(str(path))
    mmapds.build(paths, length="n")
    mmapds.build(paths, out=folder / "all.mmx", length="n")
    return paths, str(folder / "all.mmx")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Sources of different sizes, one of them empty, one of lengths that no other has."""
    random = np.random.default_rng(0)
    sizes = [700, 1, 300, 0, 450, 60]
    lengths = [random.integers(1, 90, size) for size in sizes]
    lengths[5] += 1000
    paths, whole = write(tmp_path_factory.mktemp("corpus"), lengths)
    return mmapds.open(paths), mmapds.open(whole)


def falling(lengths):
    """Records by falling length, equally long ones ascending."""
    return np.argsort(np.iinfo(np.uint64).max - np.asarray(lengths, np.uint64), kind="stable")


def same_order(found, lengths):
    order, values, counts = arrays(found)
    assert order.tolist() == falling(lengths).tolist()
    expected, numbers = np.unique(lengths, return_counts=True)
    assert (values.tolist(), counts.tolist()) == (expected[::-1].tolist(), numbers[::-1].tolist())
    assert found.lengths.array.tolist() == list(lengths)


def test_the_order_of_many_is_that_of_one(corpus):
    many, one = corpus
    assert all(np.array_equal(*pair) for pair in zip(arrays(many.length_order), arrays(one.length_order), strict=True))
    same_order(many.length_order, one.lengths)
    assert np.array_equal(many.lengths, one.lengths)
    assert many.lengths.dtype == one.lengths.dtype
    assert not many.lengths.flags.writeable


@pytest.mark.parametrize("options", [{}, {"planner": "window", "sort_window": 50}], ids=["bucket", "window"])
@pytest.mark.parametrize(("replicas", "rank"), [(1, 0), (3, 2)])
def test_plans_and_batches_of_many_are_those_of_one(corpus, options, replicas, rank):
    options = {**options, "num_replicas": replicas, "rank": rank, "max_length": 1050, "min_length": 3}
    many, one = (TokenBudgetBatchSampler(ds, 2000, exclude=[17, (500, 900)], **options) for ds in corpus)
    for epoch in range(3):
        for sampler in (many, one):
            sampler.set_epoch(epoch)
        assert [many.indices_at(5)[0].tolist(), list(many)] == [one.indices_at(5)[0].tolist(), list(one)]
    assert many.state_dict() == one.state_dict()
    many.load_state_dict(one.state_dict(step=7))
    one.load_state_dict(one.state_dict(step=7))
    assert list(many) == list(one)
    assert many.summary() == one.summary()


def test_a_window_follows_a_chunked_order_over_many(corpus):
    many, one = corpus
    made = [
        TokenBudgetBatchSampler(ds, 2000, planner="window", order=orders.Chunked(one.source_starts, 40, seed=3))
        for ds in (many, one)
    ]
    assert list(made[0]) == list(made[1])


@pytest.mark.parametrize("cut", [slice(0, 700), slice(3, 1400), slice(650, 1200), slice(1005, 1006), slice(20, 1511)])
def test_a_slice_of_neighbours_has_the_order_of_its_records(corpus, cut):
    for ds in corpus:
        same_order(ds[cut].length_order, ds.lengths[cut])
        assert list(TokenBudgetBatchSampler(ds[cut], 5000)) == list(TokenBudgetBatchSampler(ds.lengths[cut], 5000))


def test_parts_one_after_another_have_the_order_of_their_records(corpus):
    many, one = corpus
    for parts in ([one, many], [many[100:900], one[:3], many[800:], one[5:5]], one.split([0.3, 0.5, 0.2], seed=None)):
        joined = mmapds.concat(parts)
        same_order(joined.length_order, np.concatenate([part.lengths for part in parts]))
    joined = mmapds.concat([many[100:900], many[800:]])
    same_order(joined[50:1400].length_order, joined.lengths[50:1400])
    same_order(one.map(str)[20:90].length_order, one.lengths[20:90])


def test_other_views_are_sorted(corpus):
    for ds in corpus:
        for view in (ds[::2], ds[::-1], ds[[5, 3, 900]], ds[ds.lengths > 30], ds.split([0.5, 0.5])[0], ds[5:5]):
            assert view.length_order is None or not len(view)
        many_cuts = mmapds.concat([ds[k : k + 3] for k in range(0, 300, 5)])
        assert many_cuts.length_order is None
        assert many_cuts.lengths.tolist() == [int(n) for k in range(0, 300, 5) for n in ds.lengths[k : k + 3]]
        batches = list(TokenBudgetBatchSampler(ds[ds.lengths > 30], 3000))
        assert sorted(itertools.chain(*batches)) == list(range(int((ds.lengths > 30).sum())))


def test_columns_of_many_of_any_type(tmp_path):
    paths, _ = write(tmp_path / "c", [[1, 2, 3], [2**33, 5]])
    numbers = {0: [1, 2, 3], 1: [-1, 2.5]}
    for number, path in enumerate(paths):
        mmapds.add_column(path, "x", lambda sample, own=numbers[number]: own[sample["id"][1]], workers=1)
    many = mmapds.open(paths)
    assert (many.column("x").tolist(), many.column("x").dtype) == ([1, 2, 3, -1, 2.5], np.float64)
    assert (many.lengths.tolist(), many.lengths.dtype) == ([1, 2, 3, 2**33, 5], np.uint64)
    assert many[[4, 0, 3]].column("x").tolist() == [2.5, 1, -1]
    assert many[::-2].lengths.tolist() == [5, 3, 1]
    same_order(many.length_order, [1, 2, 3, 2**33, 5])
    with pytest.raises(mmapds.ColumnError, match="expected column 'y'"):
        many.column("y")


def test_an_index_without_lengths_among_others(tmp_path):
    paths, _ = write(tmp_path / "c", [[1, 2], [3]])
    mmapds.build(paths[1], force=True, columns={"other": "n"})
    (tmp_path / "c" / "part01.jsonl.mmx").unlink()
    mmapds.build(paths[1])
    many = mmapds.open(paths)
    assert many.length_order is None
    with pytest.raises(mmapds.ColumnError, match=r"part01.jsonl.mmx: expected column 'length', found none"):
        TokenBudgetBatchSampler(many, 100)


lengths = st.integers(0, 6) | st.sampled_from([2**32, 2**63, 2**64 - 1])
files = st.lists(st.lists(lengths, max_size=12), min_size=1, max_size=6)


@settings(max_examples=200)
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
        (
            "length_values",
            [1, 2, 3],
            "length_values': expected numbers that fall, found others",
        ),
        (
            "length_counts",
            [2, 2, 2],
            "length_counts': expected counts that add up to 4, found others",
        ),
        ("length_counts", [4, 0, 0], "length_counts': .* add up to 4, found"),
        ("length_counts", [2**63, 2**63 + 2, 2], "length_counts': "),
    ],
)
def test_lengths_of_one_of_many_that_are_damaged(tmp_path, section, numbers, message):
    paths, _ = write(tmp_path / "c", [[5, 6], [3, 1, 2, 2], [7]])
    forge_section(paths[1] + ".mmx", section, np.array(numbers, np.uint64))
    for ds in (mmapds.open(paths), mmapds.open(paths)[1:4]):
        with pytest.raises(
            FormatError, match=f"part01.jsonl.mmx: DAMAGED: section '{message}.*; run: .*part01.jsonl --force"
        ):
            TokenBudgetBatchSampler(ds, 100)


def test_an_order_of_one_of_many_that_is_damaged(tmp_path):
    paths, _ = write(tmp_path / "c", [[5, 6], [3, 1, 2, 2], [7]])
    forge_section(paths[1] + ".mmx", "length_order", np.array([0, 2, 2**31, 1], np.uint32))
    message = r"part01.jsonl.mmx: DAMAGED: section 'length_order': expected record numbers below 4, found others; run: "
    for ds in (mmapds.open(paths), mmapds.open(paths)[1:]):
        with pytest.raises(FormatError, match=message):
            list(TokenBudgetBatchSampler(ds, 100))


def test_a_sampler_of_many_pickles_without_its_records(corpus):
    many, _ = corpus
    for ds in (many, many[100:1300]):
        sampler = TokenBudgetBatchSampler(ds, 2000)
        text = pickle.dumps(ds.length_order)
        assert len(text) < 4000
        assert list(pickle.loads(pickle.dumps(sampler))) == list(copy.deepcopy(sampler)) == list(sampler)
    by_array = TokenBudgetBatchSampler(many.lengths, 2000)
    assert list(pickle.loads(pickle.dumps(by_array))) == list(by_array)


@counts_memory
def test_a_sampler_of_many_takes_little_memory(tmp_path):
    """2^20 records in 8 indexes: neither the lengths nor their order are copied."""
    random = np.random.default_rng(1)
    paths, _ = write(tmp_path / "c", [random.integers(1, 200, 131_072)] * 8)
    script = (
        "import mmapds, sys\n"
        "from mmapds import TokenBudgetBatchSampler\n"
        "from bench.support.memory import anonymous\n"
        "next(iter(TokenBudgetBatchSampler(mmapds.open(sys.argv[1]), 9999)))\n"
        "before = anonymous()\n"
        "sampler = TokenBudgetBatchSampler(mmapds.open(sys.argv[1:]), 9999)\n"
        "next(iter(sampler))\n"
        "print(anonymous() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, *paths], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4_000_000  # lengths alone are as many bytes, and so is their order


@pytest.mark.parametrize("files", [1, 2])
def test_indexes_without_records_have_nothing_to_sample(write, files):
    paths = [write(b"", f"{number}.jsonl") for number in range(files)]
    for path in paths:
        mmapds.build(path, length="n")
    assert len(mmapds.open(paths).lengths) == 0
    for sampler in (mmapds.TokenBudgetBatchSampler, mmapds.PackingBatchSampler):
        with pytest.raises(mmapds.OrderError, match="expected one sample or more, found 0"):
            sampler(mmapds.open(paths), 8)


def joint_of(folder, *columns):
    """A dataset of one index for each list of numbers, its column `x`."""
    for number, numbers in enumerate(columns):
        path = folder / f"{number}.jsonl"
        path.write_text("".join(f"{json.dumps({'x': number})}\n" for number in numbers))
        mmapds.build(path, columns={"x": "x"})
    return mmapds.open([folder / f"{number}.jsonl" for number in range(len(columns))])


@pytest.mark.parametrize("columns", [[[7, 2**33], [], [-1, 5]], [[0.5], [1.5, 2.0]]], ids=["integers", "floats"])
def test_numbers_of_a_view_are_read_without_the_whole_column(tmp_path, monkeypatch, columns):
    view = joint_of(tmp_path, *columns)[::-1]
    monkeypatch.delattr(Numbers, "array")
    assert view.column("x").tolist() == [number for column in columns for number in column][::-1]
    view.save(tmp_path / "view.mmx")
    assert not examine_view(SavedView(str(tmp_path / "view.mmx"))).problems


HUGE = 2**53 + 1  # float64 does not hold it


@pytest.mark.parametrize(
    ("columns", "dtype"),
    [
        ([[1], [2**32]], "u8"),
        ([[HUGE], [-1]], "i8"),
        ([[HUGE, 2**63 - 1], [3], [-1, 5]], "i8"),
        ([[2**53], [0.5], [-1]], "f8"),
        ([[2**63], [-1]], "f8"),
    ],
)
def test_columns_of_several_types_are_what_one_index_of_all_has(tmp_path, columns, dtype):
    joint = joint_of(tmp_path, *columns)
    merged = mmapds.open(mmapds.merge(joint.indexes, out=tmp_path / "all.mmx"))
    expected = [number for column in columns for number in column]
    for ds in (joint, merged):
        assert (ds.column("x").dtype, ds.column("x").tolist()) == (np.dtype(dtype), expected)
    joint[::-1].save(tmp_path / "view.mmx")
    assert mmapds.open(tmp_path / "view.mmx").column("x").tolist() == expected[::-1]


@pytest.mark.parametrize(
    "columns", [[[4], [HUGE], [0.5]], [[4], [HUGE, 2**63], [-1]], [[4], [-HUGE], [2**63]]], ids=["f8", "u8", "i8"]
)
def test_no_integer_is_rounded_where_columns_have_several_types(tmp_path, columns):
    joint = joint_of(tmp_path, *columns)
    message = rf"column 'x': expected an integer .* found -?{HUGE} "
    for action in (
        lambda: joint.column("x"),
        lambda: joint[::-1].column("x"),
        lambda: joint[::-1].save(tmp_path / "view.mmx"),
        lambda: mmapds.merge(joint.indexes, out=tmp_path / "all.mmx"),
    ):
        with pytest.raises(mmapds.ColumnError, match=message):
            action()
    assert not list(tmp_path.glob("*.tmp"))
