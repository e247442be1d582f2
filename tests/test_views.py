"""Views: selections of records in little memory."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.dataset.views import ArrayRows, BitRows, RangeRows, composed, held, of_mask, positions_of

RECORDS = 300_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "a.jsonl"
    path.write_text("".join(f'{{"n":{n % 97}}}\n' for n in range(RECORDS)))
    mmapds.build(path, length="n")
    return mmapds.open(path)


def bits(numbers, limit):
    words = np.zeros(-(-limit // 64), np.uint64)
    _native.bits_set(words, limit, np.array(numbers, np.int64))
    before = np.empty(-(-limit // 2048) + 1, np.uint64)
    _native.bits_count(words, before)
    return words, before


@pytest.mark.parametrize("limit", [0, 1, 63, 64, 65, 130, 2047, 2048, 2049, 70_001])
@pytest.mark.parametrize("part", [0.0, 0.03, 1.0])
def test_bits_find_numbers(limit, part):
    numbers = np.flatnonzero(np.random.default_rng(limit).random(limit) < part)
    words, before = bits(numbers, limit)
    found = _native.Bits(words, before, limit)
    ranks = np.arange(len(numbers))
    for order in (ranks, ranks[::-1].copy(), np.random.default_rng(0).permutation(ranks)):
        out = np.empty(len(order), np.int64)
        found.select(order, out)
        assert out.tolist() == numbers[order].tolist()
    assert int(before[-1]) == len(numbers)


@pytest.mark.parametrize(
    ("change", "ranks", "message"),
    [
        ({"before": [0, 9, 9]}, [5], "expected a directory that fits the bits, found another"),  # one too many
        ({"before": [3, 5, 5]}, [0], "expected a directory that fits"),
        ({"before": [0, 0, 0]}, [0], "expected a directory that fits"),
        ({"limit": 2051, "words": [2**63] * 33}, [32], "expected a directory that fits"),  # a bit beyond the limit
        ({"before": [0, 5]}, [0], "before: expected 3 entries, found 2"),
        ({"words": [1]}, [0], "words: expected 33 entries, found 1"),
    ],
)
def test_bits_that_are_damaged_lead_nowhere(change, ranks, message):
    given_words = change.get("words", [0b11111] + [0] * 32)
    before = change.get("before", [0, 32, 33] if "words" in change and len(given_words) == 33 else [0, 5, 5])
    arguments = np.array(given_words, np.uint64), np.array(before, np.uint64), change.get("limit", 2060)
    with pytest.raises(ValueError, match=message):
        _native.Bits(*arguments).select(np.array(ranks), np.empty(len(ranks), np.int64))


def test_numbers_of_a_file_are_taken_from_its_map_alone(tmp_path):
    (tmp_path / "a").write_bytes(
        np.array([3, 2**63 + 1, 5], np.uint64).tobytes() + np.array([7, 2**32 - 1], np.uint32).tobytes()
    )
    file, out = _native.Map(str(tmp_path / "a")), np.empty(3, np.int64)
    file.take(0, 8, 3, np.array([2, 1, 0]), out)
    assert out.view(np.uint64).tolist() == [5, 2**63 + 1, 3]
    file.take(24, 4, 2, np.array([1, 0, 1]), out)
    assert out.tolist() == [2**32 - 1, 7, 2**32 - 1]
    with pytest.raises(IndexError, match="position 2 is out of range for an array of 2"):
        file.take(24, 4, 2, np.array([0, 1, 2]), out)
    with pytest.raises(IndexError, match="position -1 is out of range"):
        file.take(24, 4, 2, np.array([0, 1, -1]), out)
    for begin, width, count in ((24, 4, 3), (25, 4, 2), (0, 2, 3), (0, 8, 2**61), (2**63, 8, 0)):
        with pytest.raises(ValueError, match="expected numbers of 4 or 8 bytes within 32 that are mapped"):
            file.take(begin, width, count, np.array([0, 0, 0]), out)
    with pytest.raises(ValueError, match="within 0 that are mapped"):
        _native.Map(str(tmp_path / "a"), _native.IO_PREAD).take(0, 8, 1, np.array([0]), np.empty(1, np.int64))
    with pytest.raises(TypeError, match="file: expected a Map or None, found 'a'"):
        _native.Bits(*bits([1], 70), 70, "a")


def test_bits_are_set_within_their_limit():
    with pytest.raises(IndexError, match="number 70 is out of range for a set of numbers below 70"):
        _native.bits_set(np.zeros(2, np.uint64), 70, np.array([3, 70]))
    with pytest.raises(IndexError, match="rank 70 is out of range"):
        _native.Bits(*bits([1], 70), 70).select(np.array([70]), np.empty(1, np.int64))


@settings(max_examples=150)
@given(st.integers(1, 400), st.data())
def test_views_of_views_select_what_numpy_selects(records, data):
    rows, expected = None, np.arange(records)
    for _ in range(data.draw(st.integers(1, 4))):
        size = len(expected)
        kind = data.draw(st.sampled_from(["mask", "array", "slice", "rising"]))
        if kind == "mask":
            mask = np.array(data.draw(st.lists(st.booleans(), min_size=size, max_size=size)), bool)
            inner, expected = of_mask(mask), expected[mask]
        elif kind == "slice":
            begin, end = data.draw(st.integers(0, size)), data.draw(st.integers(0, size))
            cut = range(size)[begin : end : data.draw(st.sampled_from([1, 2, -1]))]
            inner, expected = RangeRows(cut), expected[list(cut)]
        else:
            most = max(size - 1, 0)
            chosen = data.draw(st.lists(st.integers(0, most), max_size=30 if size else 0, unique=kind == "rising"))
            chosen = np.array(sorted(chosen) if kind == "rising" else chosen, np.int64)
            inner, expected = held(ArrayRows(chosen), size), expected[chosen]
        rows = composed(rows, inner, records)
        assert len(rows) == len(expected)
        assert rows.many(np.arange(len(expected))).tolist() == expected.tolist()
        assert [rows.one(k) for k in range(min(len(expected), 5))] == expected[:5].tolist()
        for record in {0, records - 1, *expected[:3].tolist()}:
            assert list(positions_of(rows, [record])) == np.flatnonzero(expected == record).tolist()
        again = pickle.loads(pickle.dumps(rows))
        assert again.many(np.arange(len(expected))).tolist() == expected.tolist()


@pytest.mark.parametrize("step", [2**62, 2**63 - 1, 2**63, 2**64, -(2**63) - 1])
def test_a_step_may_be_of_any_size(write, tmp_path, step):
    ds = mmapds.open(write(list(range(9))), build=True)
    for whole in (ds, ds[::2], ds[[5, 3, 0]], ds.split([1.0], seed=1)[0]):
        views = [whole[::step], whole[1::2][::step], whole[::step][::step], whole[::step][::2]]
        for view in views:
            assert list(view) == list(view.take(range(len(view)))) == [view[0]]
            view.save(tmp_path / "a.mmx")
            assert list(mmapds.open(tmp_path / "a.mmx")) == list(view)
        for view in (whole[2**70 :: step] if step > 0 else whole[: 2**70 : step], whole[::step][1:]):
            assert list(view) == list(view.take([]) if not len(view) else view)


def test_a_mask_holds_a_bit_a_record(corpus):
    mask = corpus.lengths < 50
    view = corpus[mask]
    held = view._rows
    assert held.words.nbytes + held.before.nbytes < RECORDS / 8 * 1.04
    mask[:] = False  # the caller's own
    assert len(view) == len(np.flatnonzero(corpus.lengths < 50))
    assert (view.lengths < 50).all()
    assert view[-1] == {"n": int(view.lengths[-1])}


@pytest.mark.parametrize(
    ("numbers", "records", "kind", "dtype"),
    [
        (np.arange(40_000), 64_000, BitRows, None),
        (np.arange(40_000)[::-1], 64_000, ArrayRows, np.uint16),
        (np.repeat(np.arange(20_000), 2), 64_000, ArrayRows, np.uint16),
        (np.array([3, 1]), 200, ArrayRows, np.uint8),
        (np.array([3, 1]), 2**33, ArrayRows, np.uint64),
    ],
)
def test_the_smaller_of_bits_and_arrays_is_held(numbers, records, kind, dtype):
    found = held(ArrayRows(numbers), records)
    assert (type(found), getattr(getattr(found, "array", None), "dtype", None)) == (kind, dtype)
