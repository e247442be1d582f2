"""The keys of views and batches: positions of any type, masks of bools, and what is neither."""

import numpy as np
import pytest
import torch

import mmapds
from mmapds.errors import OrderError

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


def kinds(ds):
    skipping = mmapds.open(ds.sources[0], on_error="skip")
    return ds, skipping, ds[::-1], ds.map(dict), ds.map(list, batched=True), mmapds.zip(a=ds, b=ds), ds[:9] + ds[9:]


@pytest.mark.parametrize("given", [True, np.False_, np.array(True), torch.tensor(False)], ids=repr)
def test_a_bool_is_not_a_position(ds, given):
    for dataset in kinds(ds):
        for read in (dataset.__getitem__, dataset.raw, dataset.where, dataset.place):
            with pytest.raises(IndexError, match=f"^index = {bool(given)}, expected an integer, found a bool$"):
                read(given)
        for read in (dataset.take, dataset.take_kept, dataset.__getitem__):
            with pytest.raises(IndexError, match=r"expected integers, found bools|mask: expected"):
                read([bool(given)])


@pytest.mark.parametrize("given", [1, np.uint8(1), np.array(1), torch.tensor(1)], ids=repr)
def test_an_integer_of_any_type_is_a_position(ds, given):
    for dataset in (ds, ds[::1], ds.map(dict), ds + ds):
        assert dataset[given] == {"id": 1}
        assert dataset.raw(given) == b'{"id": 1}'


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([1.0]),
        np.array([[1]]),
        {1: 2},
        {1},
        5.5,
        "ab",
        b"ab",
        [[1], [1, 2]],
        (np.array([0, 1]), np.array([1])),
        np.ma.array([0, 1, 2], mask=[0, 1, 0]),
        np.ma.array(np.ones(N, bool), mask=[1] + [0] * (N - 1)),
        np.full(3, 2**64 - 1, np.uint64),
        [0, N],
        [0, -N - 1],
    ],
    ids=lambda given: str(given)[:30],
)
def test_what_is_not_an_array_of_positions_is_refused(ds, given):
    for dataset in kinds(ds):
        for read in (dataset.take, dataset.__getitem__):
            with pytest.raises((IndexError, TypeError)):
                read(given)


def test_masks_are_of_bools(ds):
    """Zeros and ones, which a column of bools has, would select two records again and again."""
    ok = ds.column("ok")
    assert ids(ds[ok == 1]) == ids(ds[ok.astype(bool)]) == ids(ds[(ok == 1).tolist()]) == list(range(0, N, 3))
    for dataset in kinds(ds):
        inverted = [~ok.astype(dtype) for dtype in (np.int8, np.uint8, ">u2")]
        for mask in (ok, torch.tensor(ok.astype(np.int64)), np.ones(N, int), *inverted):
            for read in (dataset.__getitem__, dataset.take, dataset.take_kept):
                with pytest.raises(IndexError, match="expected positions, or a mask of bools, found 300 zeros and one"):
                    read(mask)
        with pytest.raises(IndexError, match="zeros and ones"):
            dataset[ok.tolist()]
        for mask in (ok == 1, [True, False]):
            with pytest.raises(IndexError, match="positions: expected integers"):
                dataset.take(mask)
    with pytest.raises(IndexError, match="mask: expected 300 items, one for each record, found 299"):
        ds[(ok == 1)[1:]]
    for mask in ([True, False], np.array([False, True])):
        with pytest.raises(
            OrderError, match=r"exclude(\[0\] = True, expected a number| = .*, expected record numbers)"
        ):
            mmapds.DistributedSampler(range(50), exclude=mask)


def test_zeros_and_ones_are_positions_where_they_can_be_meant(ds):
    ones = np.array([0, 1, 1, 0])
    assert ids(ds[ones]) == ids(ds[:2][np.tile(ones, 75)][:4]) == [0, 1, 1, 0]  # fewer than records; of two records
    assert ids(ds[:2][[1, 0]]) == [1, 0]
    for few in (ds[:4], ds[:4][::-1][::-1]):
        assert ids(few.take([0, 1, 1, 0])) == [0, 1, 1, 0]  # a batch of a sampler that draws with replacement
        assert ids(few.take_kept([0, 1, 1, 0])[0]) == [0, 1, 1, 0]
