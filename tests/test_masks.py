"""Masks: of bools; zeros and ones, which a column of them has, are not taken for positions."""

import numpy as np
import pytest
import torch

import mmapds
from mmapds.errors import OrderError
from tests.support.messages import check

N = 300  # more than uint8 can count


@pytest.fixture(scope="module")
def ds(tmp_path_factory):
    path = tmp_path_factory.mktemp("masks") / "t.jsonl"
    path.write_text("".join(f'{{"id": {i}}}\n' for i in range(N)))
    mmapds.build(path)
    mmapds.add_column(path, "ok", lambda sample: sample["id"] % 3 == 0)
    return mmapds.open(path)


def ids(dataset):
    return [sample["id"] for sample in dataset]


def test_a_column_of_bools_is_no_mask_until_it_is_compared(ds):
    ok = ds.column("ok")
    assert ids(ds[ok == 1]) == ids(ds[ok.astype(bool)]) == list(range(0, N, 3))
    message = (
        r"^index: expected positions, or a mask of bools, found 300 zeros and ones, one for each record; use "
        r"ds\[np\.asarray\(mask\) == 1\] \(to repeat the records 0 and 1, use ds\[:2\]\[index\]\)$"
    )
    for mask in (ok, (ok < 2) & ok, torch.tensor(ok.astype(np.int64)), ok.tolist(), np.ones(N, int), np.zeros(N, int)):
        with pytest.raises(IndexError, match=message):
            ds[np.asarray(mask)]


BOOLS = [True, False, np.True_, np.array(True), torch.tensor(False)]


@pytest.mark.parametrize("given", BOOLS, ids=repr)
def test_a_bool_is_not_a_position(ds, given):
    skipping = mmapds.open(ds.sources[0], on_error="skip")
    for dataset in (ds, ds[::-1], ds.map(str), ds.map(list, batched=True), mmapds.zip(a=ds, b=ds), ds + ds, skipping):
        for read in (dataset.__getitem__, dataset.raw, dataset.where, dataset.place):
            with pytest.raises(IndexError) as error:
                read(given)
            check(str(error.value))
            assert str(error.value) == (
                f"index = {bool(given)}, expected an integer, found a bool; give {int(given)} for that record, or "
                "ds[mask] a bool for each record"
            )
        for read in (dataset.take, dataset.take_kept, dataset.__getitem__):
            with pytest.raises(IndexError, match=r"expected integers, found bools|mask: expected"):
                read([bool(given)])
    for read in (mmapds.Permutation(5).__getitem__, mmapds.Permutation(5).inverse):
        with pytest.raises(IndexError, match=f" = {bool(given)}, expected an integer, found a bool; give {int(given)}"):
            read(given)


@pytest.mark.parametrize("given", [1, np.int64(1), np.uint8(1), np.array(1), torch.tensor(1)], ids=repr)
def test_an_integer_of_any_type_is_a_position(ds, given):
    for dataset in (ds, ds[::1], ds.map(dict), ds + ds):
        assert dataset[given] == {"id": 1}
        assert dataset.raw(given) == b'{"id": 1}'
    assert mmapds.Permutation(5)[given] == mmapds.Permutation(5)[1]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64, np.int8, np.int64])
def test_an_inverted_column_of_bools_is_no_mask(ds, dtype):
    ok = ds.column("ok").astype(dtype)
    with pytest.raises(
        IndexError, match=r"found 300 zeros and ones that ~ inverted, .*; use ds\[np\.asarray\(mask\) == 0\] "
    ):
        ds[~ok]
    assert ids(ds[ok == 0]) == [i for i in range(N) if i % 3]


def test_every_kind_of_dataset_refuses_it(ds):
    ok = ds.column("ok")
    skipping = mmapds.open(ds.sources[0], on_error="skip")
    for dataset in (
        skipping,
        skipping.map(str),
        ds[:],
        ds[::-1],
        ds.map(str),
        mmapds.zip(a=ds, b=ds),
        ds[:150] + ds[150:],
    ):
        with pytest.raises(IndexError, match="zeros and ones"):
            dataset[ok]
        with pytest.raises(IndexError, match="zeros and ones"):
            dataset.take(ok)
        with pytest.raises(IndexError, match="zeros and ones"):
            dataset.take_kept(ok)
        with pytest.raises(IndexError, match="positions: expected integers, found bools; use ds\\[mask\\]"):
            dataset.take(ok == 1)
        with pytest.raises(IndexError, match="positions: expected integers, found bools; use ds\\[mask\\]"):
            dataset.take([True, False])


@pytest.mark.parametrize("batch_size", [None, 1, 2])
def test_a_sampler_of_batches_in_the_place_of_one_of_positions_is_told(ds, batch_size):
    batches = mmapds.DistributedBatchSampler(ds, 4, num_replicas=1, rank=0)
    expected = "a DataLoader takes a sampler of batches as batch_sampler=, not as sampler="
    for dataset in (ds, ds[::-1], ds.map(str), ds.map(list, batched=True), mmapds.zip(a=ds, b=ds)):
        if batch_size is None:  # torch gives a list to ds[...] then
            assert len(next(iter(torch.utils.data.DataLoader(dataset, None, sampler=batches, collate_fn=list)))) == 4
            continue
        with pytest.raises(IndexError, match=expected):
            next(iter(torch.utils.data.DataLoader(dataset, batch_size, sampler=batches)))


def test_zeros_and_ones_are_positions_where_they_can_be_meant(ds):
    ones = np.array([0, 1, 1, 0])
    assert ids(ds[ones]) == ids(ds[:2][np.tile(ones, 75)][:4]) == [0, 1, 1, 0]  # fewer than records; of two records
    assert ids(ds[:2][[1, 0]]) == [1, 0]
    for few in (ds[:4], ds[:4][::-1][::-1]):
        assert ids(few.take([0, 1, 1, 0])) == [0, 1, 1, 0]  # a batch of a sampler that draws with replacement
        assert ids(few.take_kept([0, 1, 1, 0])[0]) == [0, 1, 1, 0]


@pytest.mark.parametrize("given", [[True, False], np.array([False, True])])
def test_a_mask_says_no_records_to_exclude(given):
    with pytest.raises(OrderError, match=r"exclude(\[0\] = True, expected a number|: .*, found a mask)"):
        mmapds.DistributedSampler(range(50), exclude=given)
    assert mmapds.DistributedSampler(range(50), exclude=[0, 1])


def test_positions_behind_a_mask_of_numpy_are_no_positions(ds):
    masked = np.ma.array([0, 1, 2], mask=[0, 1, 0])
    of_bools = np.ma.array(np.ones(len(ds), bool), mask=[1] + [0] * (len(ds) - 1))
    for view in (ds, ds[::-1]):
        for read in (
            lambda view=view: view[masked],
            lambda view=view: view[of_bools],
            lambda view=view: view.take(masked),
        ):
            with pytest.raises(
                IndexError, match=r"no entries behind a mask, found a masked array; give array\.compressed"
            ):
                read()
        assert list(view[masked.compressed()]) == [view[0], view[2]] == list(view.take(masked.compressed()))
        assert list(view[np.ma.array([0, 2])]) == [view[0], view[2]]  # nothing is masked
