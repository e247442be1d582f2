"""Views: selections of records in little memory, which are cut, chained, saved and pickled again and again."""

import itertools
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mmapds
from mmapds import _native
from mmapds.dataset import views
from mmapds.dataset.saving import examine_view
from mmapds.dataset.views import positions_of
from mmapds.storage.index_file import SavedView
from tests.support.index_file import arrays

RECORDS = 70_000


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("views") / "a.jsonl"
    path.write_text("".join(f'{{"n":{n % 97}}}\n' for n in range(RECORDS)))
    mmapds.build(path, length="n")
    return mmapds.open(path)


# ---- any views of any views ----------------------------------------------------------------------------------------

NUMBERS = itertools.count()  # of saved views
LENGTHS = np.arange(2000) * 7919 % 60 + 1  # by id


@pytest.fixture(scope="module")
def datasets(tmp_path_factory):
    """Two datasets of three sources with an index each, of which one is empty, and the ids of their records."""
    folder, found = tmp_path_factory.mktemp("several"), []
    for ids in (np.arange(340), np.arange(1000, 1100)):
        paths = [folder / f"{ids[0]}-{number}.jsonl" for number in range(3)]
        for path, each in zip(paths, (ids[:60], [], ids[60:]), strict=True):
            path.write_text("".join(f'{{"id":{i},"n":{LENGTHS[i]}}}\n' for i in each))
            mmapds.build(path, length="n", columns={"c": "id"})
        found.append((mmapds.open(paths), ids))
    return found


KINDS = ["mask", "array", "rising", "slice", "reversed", "split", "concat", "save", "pickle"]


def a_view(kind, draw, other, ds, expected):
    """Return a view of a dataset, and the ids of its records as NumPy selects them."""
    size = len(expected)
    if kind == "mask":
        mask = np.random.default_rng(draw(st.integers(0, 9))).random(size) < draw(st.sampled_from([0.02, 0.95]))
        return ds[mask], expected[mask]
    if kind in ("array", "rising"):
        chosen = draw(st.lists(st.integers(-size, size - 1), min_size=5, max_size=30)) if size else []
        chosen = np.array(sorted({k % size for k in chosen}) if kind == "rising" else chosen, np.int64)
        chosen = chosen[len(chosen) == size :]  # zeros and ones, one for each record, are refused
        assert [sample["id"] for sample in ds[chosen][3:0:-1]] == expected[chosen][3:0:-1].tolist()
        return ds[chosen], expected[chosen]
    if kind == "slice":
        ends = st.none() | st.integers(-size - 2, size + 2)
        cut = slice(draw(ends), draw(ends), draw(st.sampled_from([None, 1, 2, -1, -3])))
        return ds[cut], expected[list(range(size)[cut])]
    if kind == "reversed":
        return ds[::-1], expected[::-1]
    if kind == "split":
        seed, k = draw(st.sampled_from([None, 0, 5])), draw(st.integers(0, 2))
        parts = ds.split([0.3, 0.5, 0.2], seed=seed)
        found = [np.array([sample["id"] for sample in part], np.int64) for part in parts]
        assert sorted(np.concatenate(found)) == sorted(expected)
        assert seed is not None or np.array_equal(np.concatenate(found), expected)
        return parts[k], found[k]
    if kind == "concat":
        more, ids = a_view(draw(st.sampled_from(KINDS)), draw, other, *other)
        return ds[5:] + more + ds[:2], np.concatenate([expected[5:], ids, expected[:2]])
    if kind == "save":
        ds.save(path := Path(other[0].sources[0]).with_name(f"{next(NUMBERS)}.mmx"))
        saved = mmapds.open(path)
        assert (saved.columns, saved.fingerprint, saved.source_starts.tolist()) == (
            ds.columns,
            ds.fingerprint,
            [0, size],
        )
        assert [saved.column(name).dtype for name in ds.columns] == [ds.column(name).dtype for name in ds.columns]
        assert saved.length_order is not None
        assert not examine_view(SavedView(str(path))).problems
        return saved, expected
    return pickle.loads(pickle.dumps(ds)), expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_views_of_views_select_what_numpy_selects(datasets, monkeypatch, data):
    monkeypatch.setattr(views, "_PIECE", 16)  # records that are looked at at a time
    (view, expected), other = datasets
    for kind in data.draw(st.permutations(KINDS)):
        view, expected = a_view(kind, data.draw, other, view, expected)
        assert [sample["id"] for sample in view] == expected.tolist()
        assert view.lengths.tolist() == LENGTHS[expected].tolist()
    positions = np.random.default_rng(0).permutation(len(expected))[:50]
    assert [sample["id"] for sample in view.take(positions)] == expected[positions].tolist()
    for step in (-1, 2**62, -(2**63) - 1):
        assert [sample["id"] for sample in view[::step][::1][::step][:3]] == expected.tolist()[::step][::step][:3]
    assert [view[-1 - k]["id"] for k in range(min(len(view), 3))] == expected[::-1][:3].tolist()
    for k in range(0, len(view), 97):
        source, offset, length = view.where(k)
        assert Path(source).read_bytes()[offset : offset + length] == view.raw(k)
        assert view.place(k).startswith(source)
    assert view.column("c").tolist() == expected.tolist()
    assert view.lengths.flags.writeable is False
    if view.length_order is not None:
        assert arrays(view.length_order)[0].tolist() == np.argsort(-view.lengths.astype(int), kind="stable").tolist()
    assert view.map(len).fingerprint == pickle.loads(pickle.dumps(view)).fingerprint == view.fingerprint
    numbers = view._selection.many(np.arange(len(view)))
    for record in (0, *numbers[:3].tolist()):
        assert list(positions_of(view._selection, [record])) == np.flatnonzero(numbers == record).tolist()


# ---- splits, and one after another ---------------------------------------------------------------------------------


def test_a_split_depends_on_its_seed_alone(corpus):
    parts = corpus.split([0.8, 0.15, 0.05], seed=3)
    assert [len(part) for part in parts] == [56_000, 10_500, 3_500]
    first = parts[0].take(range(20))
    assert first == corpus.split([0.8, 0.15, 0.05], seed=3)[0].take(range(20))
    assert first != corpus.split([0.8, 0.15, 0.05], seed=4)[0].take(range(20))
    for fractions in ([], [0.5], [1.5, -0.5], [float("nan"), 1], [[0.5, 0.5]], 0.9):
        with pytest.raises(mmapds.Error, match=r"^fractions = .*, expected numbers from 0 to 1 that add up to 1$"):
            corpus.split(fractions)


def test_plus_is_concat(datasets, opened):
    several, other = datasets[0][0], opened([{"id": -1}, {"id": -2}], "other.jsonl")
    both = other + several[:2] + other
    assert isinstance(both, mmapds.Dataset)
    assert [sample["id"] for sample in both] == [-1, -2, 0, 1, -1, -2]
    assert (other + several).source_starts.tolist() == [0, 2, 62, 62, 342]
    assert both.where(5).source.endswith("other.jsonl")
    assert [sample["id"] for sample in torch.utils.data.TensorDataset(torch.zeros(0)) + other] == [-1, -2]
    for options in ({"decode": "text"}, {"on_error": "skip"}, {"check": "none"}, {"io": "pread"}):
        with pytest.raises(mmapds.Error, match=r"datasets\[1\]: expected \w+ = .* as of datasets\[0\], found "):
            several + mmapds.open(other.sources, **options)


# ---- little memory -------------------------------------------------------------------------------------------------


def test_a_view_holds_a_bit_a_record_at_most_and_nothing_where_a_range_says_it_all(corpus, monkeypatch):
    mask = corpus.lengths < 50
    corpus[mask].save(saved := Path(corpus.sources[0]).with_name("v.mmx"))
    for view in (corpus[10:900:3][5:], corpus[::-1], corpus.split([0.5, 0.5], seed=1)[0][3:40], mmapds.open(saved)):
        assert len(pickle.dumps(view)) < 1024
    for chosen in (mask.copy(), corpus.lengths % 20 == 0, np.ones(RECORDS, bool), corpus.lengths > 0):
        view, expected = corpus[chosen], np.flatnonzero(chosen)
        assert view._rows.words.nbytes + view._rows.before.nbytes < RECORDS / 8 * 1.04
        chosen[:] = False  # the caller's own
        for order in (np.arange(len(view)), np.random.default_rng(0).permutation(len(view))):
            assert view._rows.many(order).tolist() == expected[order].tolist()
    monkeypatch.setattr(views, "_PIECE", 16)
    repeated = np.concatenate([np.arange(16), np.arange(15, 40_000)])  # a bit says once, so it needs an array
    assert np.array_equal(corpus[repeated]._rows.many(np.arange(len(repeated))), repeated)
    assert [corpus[[3, 1]]._rows.array.dtype, corpus[:200][[3, 1]]._rows.array.dtype] == [np.uint32, np.uint32]


# ---- the core ------------------------------------------------------------------------------------------------------


def test_bits_that_are_damaged_lead_nowhere():
    full, fits = [0b11111] + [0] * 32, "expected a directory that fits the bits, found another"
    for words, before, rank, message in (
        (full, [0, 9, 9], 5, fits),  # one too many
        (full, [3, 5, 5], 0, fits),
        ([2**63] * 33, [0, 32, 33], 32, fits),  # a bit beyond the limit
        (full, [0, 5], 0, "before: expected 3 entries, found 2"),
        ([1], [0, 5, 5], 0, "words: expected 33 entries, found 1"),
        (full, [0, 5, 5], 2051, "rank 2051 is out of range"),
    ):
        with pytest.raises((ValueError, IndexError), match=message):
            _native.Bits(np.uint64(words), np.uint64(before), 2051).select(np.array([rank]), np.empty(1, np.int64))
