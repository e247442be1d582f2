"""`Fields` in batches, in threads and processes, and over array files."""

import pickle
import sys
import threading

import numpy as np
import orjson
import pytest
import torch

import mmapds
from mmapds import DecodeError, Fields, pad_collate
from mmapds.convert import convert
from tests.support.json_records import BATCHED, dataset, equal, records


@pytest.fixture
def both(tmp_path):
    return dataset(tmp_path / "a.jsonl", records(50), Fields(BATCHED)), Fields(BATCHED)


def same_batch(one, other):
    rows, others = one.pop("rows"), other.pop("rows")
    return equal(
        [[r.tolist() for r in each] for each in rows], [[r.tolist() for r in each] for each in others]
    ) and equal(one, other)


def test_numbers_beyond_int64_are_collated_as_samples_are(tmp_path):
    ds = dataset(tmp_path / "a.jsonl", [{"x": 2**63}, {"x": 1}], Fields({"x": "uint64"}))
    with pytest.raises(mmapds.CollateError) as of_batch:
        pad_collate(ds.take([0, 1]))
    with pytest.raises(mmapds.CollateError) as of_samples:
        pad_collate(list(ds.take([0, 1])))
    assert str(of_batch.value) == str(of_samples.value)


def test_samples_of_different_axes_do_not_become_one_batch(tmp_path):
    ds = dataset(tmp_path / "a.jsonl", [{"x": [1]}, {"x": [[1]]}, {"x": 1}], Fields({"x": "int32"}))
    with pytest.raises(mmapds.CollateError, match=r"samples\[1\]\['x'\]: expected shape"):
        pad_collate(ds.take([0, 1]))
    with pytest.raises(mmapds.CollateError, match=r"samples\[1\]\['x'\]: expected an array"):
        pad_collate(ds.take([0, 2]))


def test_batches_are_sequences(both):
    batch = both[0].take([4, 5, 6])
    assert len(batch) == 3
    assert equal(batch[-1], both[0][6])
    assert equal(batch[1:], [both[0][5], both[0][6]])
    assert list(batch.names) == list(BATCHED)
    assert equal(pickle.loads(pickle.dumps(batch)), list(batch))
    with pytest.raises(IndexError):
        batch[3]
    assert both[0].take([])[:] == []
    with pytest.raises(IndexError):
        both[0].take([50])


def test_views_maps_zips_and_loaders(both):
    ds, _ = both
    assert equal(ds[10:20][3], ds[13])
    assert ds[::-1].map(lambda sample: sample["n"]).take([0, 1]) == [49, 48]
    zipped = mmapds.zip(a=ds, b=ds)
    assert pad_collate(zipped.take([1, 2]))["a"]["n"].tolist() == [1, 2]
    for workers in ("threads", "processes"):
        loader = mmapds.DataLoader(ds, batch_size=10, num_workers=2, collate_fn=pad_collate, workers=workers)
        assert [n for batch in loader for n in batch["n"].tolist()] == list(range(50))
    again = pickle.loads(pickle.dumps(ds))
    assert equal(again[7], ds[7])
    assert repr(again).endswith("decode=Fields(ids, feats, n, exact, flag, text, bf, rows, big)>")


def test_it_compares_by_schema_and_defaults(tmp_path):
    one, other = Fields({"x": "int32", "y": "str"}), Fields({"x": "int32", "y": "str"})
    assert one == other == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(other)
    assert one != Fields({"x": "int64", "y": "str"})
    assert one != Fields({"y": "str", "x": "int32"})
    assert one != Fields({"x": "int32", "y": "str"}, defaults={"x": 1})
    a = dataset(tmp_path / "a.jsonl", [{"x": 1, "y": "a"}], one)
    b = dataset(tmp_path / "b.jsonl", [{"x": 2, "y": "b"}], other)
    assert [sample["x"] for sample in (a + b).take([0, 1])] == [1, 2]


def test_a_million_numbers_in_one_record(tmp_path):
    numbers = np.random.default_rng(0).integers(0, 10**6, 10**6)
    text = b'{"x":[' + b",".join(b"%d" % number for number in numbers.tolist()) + b"]}"
    ds = dataset(tmp_path / "a.jsonl", [text, b'{"x":[1]}'], Fields({"x": "int32"}))
    assert np.array_equal(ds[0]["x"], numbers)
    batch = pad_collate(ds.take([1, 0, 1]))
    assert batch["x_lengths"].tolist() == [1, 10**6, 1]
    assert np.array_equal(batch["x"][1].numpy(), numbers)


def test_threads_read_different_batches_at_once(both):
    ds, _ = both
    wanted = pad_collate(list(ds.take(range(50))))
    wanted.pop("rows")
    failures = []

    def read():
        for _ in range(30):
            found = pad_collate(ds.take(range(50)))
            found.pop("rows")
            if not equal(found, wanted):
                failures.append(found)

    threads = [threading.Thread(target=read) for _ in range(4)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


def test_a_file_that_was_cut_short_is_an_error(tmp_path):
    ds = dataset(tmp_path / "a.jsonl", [{"x": list(range(2000))} for _ in range(20)], Fields({"x": "int32"}))
    assert len(ds.take([0])) == 1
    with open(tmp_path / "a.jsonl", "r+b") as file:
        file.truncate(9000)
    with pytest.raises(mmapds.StaleIndexError):
        ds.take([19])


def test_other_formats_that_hold_json(tmp_path):
    lines = [orjson.dumps({"x": [1, 2, n]}) for n in range(5)]
    path = tmp_path / "a.bin"
    path.write_bytes(b"".join(len(line).to_bytes(4, "little") + line for line in lines))
    mmapds.build(path, format="prefixed")
    ds = mmapds.open(path, decode=Fields({"x": "int32"}))
    assert pad_collate(ds.take([4, 0]))["x"].tolist() == [[1, 2, 4], [1, 2, 0]]
    np.save(tmp_path / "a.npy", np.zeros((3, 4)))
    with pytest.raises(mmapds.DecodeError, match=r"a\.npy: record 0 \(byte 128\): not JSON"):
        mmapds.open(tmp_path / "a.npy", decode=Fields({"x": "int32"}), build=True).take([0, 1])


# ---- array files -----------------------------------------------------------------------------------------------


def test_the_same_schema_reads_an_array_file_that_was_converted(tmp_path):
    fields = Fields(BATCHED)
    ds = dataset(tmp_path / "a.jsonl", records(30), fields)
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "inferred.mma"))
    schema = {name: Fields(BATCHED).wanted[name].dtype for name in ("n", "flag", "text", "big")}
    schema |= {
        "ids": ("int32", (None,)),
        "feats": ("float32", (None, 3)),
        "exact": "float32",
        "rows": "json",
        "bf": "json",
    }
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "given.mma"), schema=schema)
    for name in ("inferred", "given"):
        stored = mmapds.open(tmp_path / f"{name}.mma", decode=fields, build=True)
        assert equal(
            [plain(sample) for sample in stored.take(range(30))], [plain(sample) for sample in ds.take(range(30))]
        )
        assert equal([plain(stored[k]) for k in (0, 29)], [plain(ds[k]) for k in (0, 29)])
        assert same_batch(pad_collate(stored.take([3, 1, 2])), pad_collate(ds.take([3, 1, 2])))
        assert equal(pickle.loads(pickle.dumps(stored))[3]["n"], 3)
        assert repr(stored).endswith(f"decode={fields!r}>")


def plain(sample):
    """A sample with its bfloat16 as integers, which compare."""
    return {name: np.asarray(value).view(np.int16) if name == "bf" else value for name, value in sample.items()}


def test_an_array_file_gives_fields_by_the_rules_of_paths(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"meta": "json", "a.b": "int64", "x": ("int64", (None,))}) as writer:
        writer.write({"meta": {"seconds": 1.5, "name": "é"}, "a.b": 3, "x": np.arange(3)})
        writer.write({"meta": {"seconds": None, "name": "f"}, "a.b": 4, "x": np.arange(2)})
    schema = {"meta.seconds": "float32", "meta.name": "str", r"a\.b": "int8", "x": "int16", "none": "int32"}
    fields = Fields(schema, defaults={"meta.seconds": 9, "none": [5]})
    ds = mmapds.open(tmp_path / "a.mma", decode=fields, build=True)
    first, second = ds.take([0, 1])
    assert (first["meta.seconds"], first["meta.name"], first[r"a\.b"]) == (1.5, "é", 3)
    assert (second["meta.seconds"], second["meta.name"]) == (9.0, "f")
    assert (first["x"].dtype, first["x"].tolist(), first["none"].tolist()) == (np.int16, [0, 1, 2], [5])
    assert list(first) == list(schema)
    batch = pad_collate(ds.take([0, 1]))
    assert batch["x"].tolist() == [[0, 1, 2], [0, 1, 0]]
    assert batch["none"].tolist() == [[5], [5]]


def test_stored_arrays_of_bfloat16_in_every_shape_that_is_wanted(tmp_path, monkeypatch):
    rows = torch.tensor([[1.5, 2], [3, 4]], dtype=torch.bfloat16)
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("bfloat16", (None, 2)), "y": "float64"}) as writer:
        for _ in range(2):
            writer.write({"x": rows, "y": 1.501})
    for shape in ((None, 2), (2, 2), (2, None)):
        batch = mmapds.open(tmp_path / "a.mma", decode=Fields({"x": ("bfloat16", shape), "y": "bfloat16"})).take([0, 1])
        assert (batch[0]["x"].shape, batch[0]["y"]) == ((2, 2), 1.5)
        assert torch.equal(pad_collate(batch)["x"], torch.stack([rows] * 2))
    ds = mmapds.open(tmp_path / "a.mma", decode=Fields({"x": ("bfloat16", "ragged")}))
    assert [[float(number) for number in row] for row in ds[1]["x"]] == rows.tolist()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(mmapds.Error, match=r"^arrays of bfloat16 need ml_dtypes; run: pip install ml_dtypes$"):
        Fields({"y": "bfloat16"})


def test_a_default_that_a_sample_changes_stays_as_it_is_in_others(tmp_path):
    schema = {"a": ("int32", (None,)), "r": ("int32", "ragged"), "b": "bfloat16"}
    fields = Fields(schema, defaults={"a": [5], "r": [[1, 2]], "b": [1.5]})
    dataset(tmp_path / "a.jsonl", [{"n": number} for number in range(3)], fields)
    with mmapds.Writer(tmp_path / "a.mma", {"n": "int64"}) as writer:
        for number in range(3):
            writer.write({"n": number})
    for name in ("a.jsonl", "a.mma"):
        ds = mmapds.open(tmp_path / name, decode=fields)
        batch = ds.take([1, 2])
        for sample in (ds[0], batch[0], {field: batch.values(field)[0] for field in batch.names}):
            sample["a"][0] = sample["b"][0] = sample["r"][0][0] = 99
            sample["r"].append("more")
        for sample in (ds[0], batch[0], batch[1], {field: batch.values(field)[1] for field in batch.names}):
            assert (sample["a"].tolist(), sample["b"].tolist()) == ([5], [1.5])
            assert [row.tolist() for row in sample["r"]] == [[1, 2]]


def test_arrays_of_an_array_file_are_views_of_it_unless_they_are_converted(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("int64", (None,)), "y": ("int64", (None,))}) as writer:
        for number in range(2):
            writer.write({"x": np.arange(number), "y": np.arange(number)})
    fields = Fields({"x": "int64", "y": ("int16", (None,))})
    ds = mmapds.open(tmp_path / "a.mma", decode=fields)
    one, other = ds[1], ds.take([1])[0]
    assert np.shares_memory(one["x"], other["x"])
    assert not np.shares_memory(one["y"], other["y"])
    batch = ds.take([1, 0])
    assert equal([batch.values(name) for name in batch.names], [[s[name] for s in batch] for name in batch.names])


def test_stored_numbers_that_do_not_fit_are_errors_with_their_place(tmp_path):
    with mmapds.Writer(tmp_path / "a.mma", {"x": ("int64", (None,)), "f": "float64"}) as writer:
        writer.write({"x": np.arange(3), "f": 0.5})
        writer.write({"x": np.array([1, 40_000]), "f": 1e300})
    for schema, found in (
        ({"x": "int16"}, "int64 from 1 to 40000"),
        ({"f": "float32"}, r"float64 from 1e\+300 to 1e\+300"),
        ({"x": ("int64", (3,))}, r"int64 of shape \(2,\)"),
    ):
        ds = mmapds.open(tmp_path / "a.mma", decode=Fields(schema), build=True)
        ds.take([0])[0]
        for read in (lambda ds=ds: ds[1], lambda ds=ds: pad_collate(ds.take([0, 1]))):
            with pytest.raises(DecodeError, match=rf"a\.mma: record 1 \(byte \d+\): expected .*, found {found}"):
                read()
        skipping = mmapds.open(tmp_path / "a.mma", decode=Fields(schema), on_error="skip")
        with pytest.warns(RuntimeWarning, match="left out"):
            assert len(skipping.take([0, 1])) == 1


def test_json_and_array_files_are_not_opened_together(tmp_path):
    fields = Fields({"x": "int32"})
    dataset(tmp_path / "a.jsonl", [{"x": [1]}], fields)
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "a.mma"))
    with pytest.raises(mmapds.Error, match=r"expected records of JSON, as in .*, found records of the fields "):
        mmapds.open([tmp_path / "a.jsonl", tmp_path / "a.mma"], decode=fields, build=True)


def test_convert_with_fields_stores_what_they_are(tmp_path):
    fields = Fields({"ids": "int32", "text": "str"})
    ds = dataset(tmp_path / "a.jsonl", records(5), fields)
    convert(str(tmp_path / "a.jsonl"), str(tmp_path / "a.mma"), decode=fields)
    stored = mmapds.open(tmp_path / "a.mma", decode=fields)
    assert stored[2]["ids"].dtype == np.int32
    assert equal(list(stored.take(range(5))), list(ds.take(range(5))))


@pytest.mark.parametrize("rows", [1, 7, 400])
@pytest.mark.parametrize("size", [2, 300, 5000])
def test_rows_without_items_have_room(write, rows, size):
    """There may be more of them than items, of which there are none."""
    ragged = [[number % 5] * (number % 31 == 0) for number in range(rows)]
    fields = mmapds.Fields({"n": "int32", "x": ("int16", "ragged")}, defaults={"x": [[]] * rows})
    path = write([{"n": number, "x": ragged} if number % 3 else {"n": number} for number in range(size)])
    found = mmapds.open(path, build=True, decode=fields).take(range(size))
    for number, sample in enumerate(found):
        assert [row.tolist() for row in sample["x"]] == (ragged if number % 3 else [[]] * rows)
