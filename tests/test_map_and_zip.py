"""Mapped and zipped datasets: samples through a function, several datasets side by side, and all else as it was."""

import json
import pickle
from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

import mmapds
from mmapds import DataLoader, DistributedBatchSampler, StateError, TokenBudgetBatchSampler, pad_collate
from tests.support.array_files import store, utterances
from tests.support.index_file import arrays
from tests.support.json_records import equal
from tests.support.loading import as_list, every_kind

N = 103


def numbers(folder, name, count=N, **options):
    """An indexed file of records {"id": ..., "n": ...}."""
    path = folder / f"{name}.jsonl"
    path.write_bytes(b"".join(b'{"id": %d, "n": %d}\n' % (i, 1 + i * 7919 % 50) for i in range(count)))
    mmapds.build(path, **options)
    return mmapds.open(path)


def identifier(sample):
    return sample["id"]


def identifiers(samples):
    return [sample["id"] for sample in samples]


def doubled(sample):
    return {**sample, "id": 2 * sample["id"]}


def total(sample):
    return sum(each["id"] for each in sample.values())


def fails_at_11(sample):
    if sample["id"] == 11:
        raise KeyError("no such label") from ZeroDivisionError("the cause")
    return sample["id"]


@pytest.fixture(scope="module")
def a(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("a"), "a", length="n")


@pytest.fixture(scope="module")
def b(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("b"), "b")[::-1]


@pytest.fixture(scope="module")
def pairs(a, b):
    return mmapds.zip(a=a, b=b)


def found(samples):
    return [(sample["a"]["id"], sample["b"]["id"]) for sample in samples]


# ---- mapped --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "batched"), [(identifier, False), (identifiers, True)])
def test_samples_are_what_the_function_makes_of_them(a, function, batched):
    mapped = a.map(function, batched=batched)
    assert isinstance(mapped, mmapds.Dataset)
    assert [mapped[0], mapped[-1], mapped[np.int64(5)], mapped[torch.tensor(7)]] == [0, N - 1, 5, 7]
    assert list(mapped) == list(pickle.loads(pickle.dumps(mapped))) == list(mapped.stream()) == list(range(N))
    for given in ([3, -1, 3], np.array([4, 2]), torch.tensor([4, 2]), range(4, 0, -2), []):
        assert mapped.take(given) == mapped.__getitems__(given) == [int(position) % N for position in given]
    assert [len(mapped), 50 in mapped, mapped.index(50)] == [N, True, 50]


def test_everything_else_is_that_of_the_dataset(a):
    mapped = a.map(identifier)
    for plain, view in [(a, mapped), (a[20:60:3], mapped[20:60:3])]:
        for name in ("sources", "indexes", "columns", "fingerprint", "skipped"):
            assert getattr(view, name) == getattr(plain, name)
        assert [view.raw(3), view.where(3), view.place(3)] == [plain.raw(3), plain.where(3), plain.place(3)]
        assert view.source_starts.tolist() == plain.source_starts.tolist()
        assert view.lengths.tolist() == view.column("length").tolist() == plain.lengths.tolist()
    assert np.array_equal(arrays(mapped.length_order)[0], arrays(a.length_order)[0])


def test_maps_of_maps_compose_and_a_view_may_stand_between(a, b):
    twice = a.map(doubled)[10:20].map(identifier)
    assert list(twice) == [2 * i for i in range(10, 20)]
    assert list(twice.map(str)[::-1]) == [str(2 * i) for i in range(19, 9, -1)]
    assert list(a.map(lambda samples: [*map(doubled, samples)], batched=True).map(identifier)[:3]) == [0, 2, 4]
    assert list(a.map(identifier).map(lambda numbers: np.array(numbers) + 1, batched=True)[:3]) == [1, 2, 3]
    assert list(a[:3].map(doubled) + a[5:7].map(doubled)) == [doubled(a[i]) for i in (0, 1, 2, 5, 6)]
    assert (a.map(partial(dict, x=1)) + b.map(partial(dict, x=1)))[N] == {**b[0], "x": 1}


def test_array_files_are_mapped_too_though_plain_batches_are_filled_without_samples(tmp_path):
    def clipped(record):
        return {**record, "feats": record["feats"][:3]}

    records = utterances(30, shortest=1)
    ds, wanted = mmapds.open(store(tmp_path, records)), [clipped(record) for record in records]
    for mapped in (ds.map(clipped), ds.map(lambda batch: [*map(clipped, batch)], batched=True)):
        assert all(map(equal, mapped.take(range(30)), wanted))
        assert torch.equal(pad_collate(mapped.take(range(30)))["feats"], pad_collate(wanted)["feats"])


# ---- zipped --------------------------------------------------------------------------------------------------------


def test_samples_are_dicts_of_the_samples(pairs, a, b):
    assert (isinstance(pairs, mmapds.Dataset), len(pairs)) == (True, N)
    assert pairs[3] == pairs[3 - N] == {"a": a[3], "b": b[3]}
    for each in (pairs, pickle.loads(pickle.dumps(pairs)), pairs.stream(), pairs[:50] + pairs[50:]):
        assert found(each) == [(i, N - 1 - i) for i in range(N)]
    assert found(pairs.take([1, -1])) == found(pairs.take(torch.tensor([1, N - 1]))) == [(1, N - 2), (N - 1, 0)]
    assert pairs.take([]) == []
    assert pairs.map(total)[:2].take([0, 1]) == [N - 1, N - 1]


def test_records_and_places_are_those_of_all(pairs, a, b):
    assert pairs.raw(3) == {"a": a.raw(3), "b": b.raw(3)}
    assert pairs.where(3) == {"a": a.where(3), "b": b.where(3)}
    assert mmapds.zip(both=a + a, again=b + b).source_starts.tolist() == [0, N, 2 * N]  # of the first dataset
    assert pairs.place(3) == f"{a.place(3)} and {b.place(3)}"
    assert (pairs.sources, pairs.indexes) == ([*a.sources, *b.sources], [*a.indexes, *b.indexes])
    assert repr(pairs.map(total)) == f"<mmapds.zip a={a!r}, b={b!r}, map=total>"
    assert len(pairs.fingerprint) == 16
    assert pairs.fingerprint == mmapds.zip(a=a, b=b).fingerprint == pairs.map(total).fingerprint
    others = [mmapds.zip(a=a, c=b), mmapds.zip(a=a, b=b[::-1]), mmapds.zip(b=b, a=a), pairs[::-1], pairs[1:]]
    assert len({pairs.fingerprint, *(other.fingerprint for other in others)}) == 6


def test_columns_have_the_names_of_their_datasets(pairs, a, tmp_path):
    other = numbers(tmp_path, "c", columns={"of.length": "n", "of.n": "n"})
    nested, both = mmapds.zip(p=pairs.map(dict), c=other), mmapds.zip(x=a, y=a[::-1])
    assert nested[2] == nested.take([2])[0] == {"p": pairs[2], "c": a[2]}
    assert (pairs.columns, both.columns) == (["a.length"], ["x.length", "y.length"])
    assert nested.columns == ["p.a.length", "c.of.length", "c.of.n"]
    for zipped, name in [(pairs, "a.length"), (pairs, "length"), (nested, "a.length"), (nested, "of.n")]:
        assert zipped.column(name).tolist() == zipped.lengths.tolist() == a.lengths.tolist()
    assert both.column("y.length").tolist() == a.lengths.tolist()[::-1]
    assert np.array_equal(arrays(pairs.length_order)[0], arrays(a.length_order)[0])
    assert [pairs[::2].length_order, both.length_order] == [None, None]
    for zipped, name, expected, count in [
        (pairs, "b.length", "'a.length'", 0),
        (nested, "n", "'p.a.length', 'c.of.length', 'c.of.n'", 0),  # not the end of a name
        (both, "length", "'x.length', 'y.length'", 2),
    ]:
        with pytest.raises(mmapds.ColumnError) as error:
            zipped.column(name)
        found = f"column {name!r}: expected one of [{expected}], found {count} of that name; "
        assert str(error.value).startswith(found)


def test_array_files_are_batched_without_making_samples(tmp_path, monkeypatch):
    path = store(tmp_path, utterances(30, shortest=1), length="feats")
    spoken = mmapds.zip(audio=mmapds.open(path), label=numbers(tmp_path, "labels", 30))
    positions = [3, 0, 29, -5]
    batch = spoken.take(positions)
    assert isinstance(batch, Sequence)
    with monkeypatch.context() as patched:
        patched.setattr(type(batch), "__getitem__", None)
        patched.setattr(type(batch.parts["audio"]), "__getitem__", None)
        padded = pad_collate(batch)
    wanted = pad_collate([spoken[i] for i in positions])
    assert (padded.keys(), padded["audio"].keys()) == (wanted.keys(), wanted["audio"].keys())
    assert torch.equal(padded["audio"]["feats"], wanted["audio"]["feats"])
    assert padded["audio"]["text"] == wanted["audio"]["text"]
    assert padded["label"]["id"].tolist() == [3, 0, 29, 25]
    for each in (batch, pickle.loads(pickle.dumps(batch))):
        assert [sample["label"]["id"] for sample in each] == [3, 0, 29, 25]
        assert [sample["label"]["id"] for sample in each[1:3]] == [0, 29]
        assert (len(each), each[-1]["audio"]["text"]) == (4, spoken[25]["audio"]["text"])
    assert pad_collate(mmapds.zip(deep=spoken).take([1]))["deep"]["label"]["id"].tolist() == [1]


# ---- errors of functions -------------------------------------------------------------------------------------------


def test_a_function_of_batches_returns_as_many_samples(a):
    for returned, message in (
        (lambda samples: samples[1:], r"list of 3 \(the first at .*:9 \("),
        (lambda _: np.zeros((2, 9)), "ndarray of 2"),
        (lambda _: "abcd", "str of 4"),
        (lambda samples: (sample for sample in samples), "generator"),
        (lambda _: {1, 2, 3, 4}, "set of 4"),
    ):
        with pytest.raises(mmapds.Error, match=f"<lambda>': expected a list of 4 samples for a batch, found {message}"):
            a.map(returned, batched=True).take([8, 1, 2, 3])


def test_an_error_keeps_its_type_and_names_the_record(a, b, tmp_path):
    place = a.place(11)
    mapped, batches = a.map(fails_at_11), a.map(lambda samples: [*map(fails_at_11, samples)], batched=True)
    zipped = mmapds.zip(a=a, b=b).map(lambda sample: fails_at_11(sample["a"]))
    for read, where in [
        (lambda: mapped[11], place),
        (lambda: mapped.take([3, 11, 4]), place),
        (lambda: mapped[::-1].take([0, N - 12]), place),
        (lambda: batches[11], f"a batch of 1, the first at {place}"),
        (lambda: batches.take([5, 11]), f"a batch of 2, the first at {a.place(5)}"),
        (lambda: mmapds.zip(a=mapped, b=b)[11], place),
        (lambda: zipped[11], f"{place} and {b.place(11)}"),
    ]:
        with pytest.raises(KeyError) as caught:
            read()
        assert caught.value.args == ("no such label",)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        assert caught.value.__notes__ == [f"while mapping {where}"]
    path = tmp_path / "broken.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i if i != 5 else b"{oops}\n" for i in range(N)))
    broken = mmapds.zip(a=a, b=mmapds.open(path, build=True)).map(total)
    skipping = mmapds.open(path, on_error="skip")
    with pytest.warns(RuntimeWarning, match="; skipped"), pytest.raises(KeyError) as caught:
        skipping.map(fails_at_11).take([4, 5, 11])
    assert caught.value.__notes__ == [f"while mapping {skipping.place(11)}"]
    nothing, stopping = a.map(lambda _: None), a.map(lambda _: next(iter([])))
    for read, kind, message in (
        (lambda: broken[5], mmapds.DecodeError, r"broken.jsonl:6 \(byte \d+\): not JSON"),
        (lambda: broken.take([4, 5]), mmapds.DecodeError, r"broken.jsonl:6 \(byte \d+\): not JSON"),
        (lambda: nothing[1], mmapds.Error, r"<lambda>': expected a sample, found None \(of .*:2 \(byte "),
        (lambda: nothing.take([1]), mmapds.Error, r"<lambda>': expected a sample, found None \(of .*:2 \(byte "),
        (lambda: list(stopping), RuntimeError, r"<lambda>' raised StopIteration, of .*a\.jsonl:1 \(byte 0\)"),
    ):
        with pytest.raises(kind, match=message):
            read()


# ---- workers, samplers and states ----------------------------------------------------------------------------------


@every_kind
def test_an_error_in_a_worker_reaches_the_trainer_with_its_place(a, b, options):
    batches = iter(DataLoader(mmapds.zip(x=a.map(fails_at_11), y=b), batch_size=5, collate_fn=as_list, **options))
    assert [each["x"] for each in (*next(batches), *next(batches))] == list(range(10))
    with pytest.raises(KeyError) as caught:
        next(batches)
    said = str(caught.value) + "".join(getattr(caught.value, "__notes__", []))
    assert "no such label" in said
    assert f"while mapping {a.place(11)}" in said
    assert [each["x"] for each in next(batches)] == list(range(15, 20))


@pytest.mark.parametrize(
    ("kind", "options"),
    [(DistributedBatchSampler, {"batch_size": 6}), (TokenBudgetBatchSampler, {"max_tokens": 200})],
)
def test_a_state_of_the_plain_dataset_is_one_of_the_mapped_one_and_not_of_a_zip(a, pairs, kind, options):
    how = {"num_replicas": 2, "rank": 0, "seed": 1, **options}
    plain, mapped, joined = (kind(each, **how) for each in (a, a.map(identifier), pairs))
    whole = list(plain)
    assert list(mapped) == list(joined) == whole
    state = json.loads(json.dumps(mapped.state_dict(step=3)))
    plain.load_state_dict(state)
    loader = DataLoader(pairs, batch_sampler=plain, collate_fn=as_list)
    assert [[sample["a"]["id"] for sample in batch] for batch in loader] == whole[3:]
    with pytest.raises(StateError, match=r"of another dataset: expected .*a\.jsonl, b\.jsonl.*, found .*'a\.jsonl'"):
        joined.load_state_dict(state)
