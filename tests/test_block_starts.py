"""Chunks of blocks: which records share one, and that an epoch decodes each about once."""

import numpy as np
import pytest

import mmapds
from mmapds import orders
from mmapds.compression.reader import BlockReader
from mmapds.errors import OrderError
from tests.support.compressed import WRITERS, text
from tests.support.messages import check


@pytest.fixture
def packed(write):
    """Two sources of many blocks."""
    paths = [write(WRITERS["many"][1](text(3000, k)), f"{k}.jsonl.zst") for k in range(2)]
    return mmapds.open(paths, build=True)


def test_a_block_starts_with_the_first_record_that_begins_in_it(packed):
    places = [packed.where(i) for i in range(len(packed))]
    blocks = [(place.source, place.block) for place in places]
    expected = [i for i in range(len(packed)) if i == 0 or blocks[i] != blocks[i - 1]]
    assert packed.block_starts.tolist() == [*expected, len(packed)]
    assert packed.map(len).block_starts.tolist() == packed.block_starts.tolist()


def test_a_record_over_several_blocks_leaves_some_without_records(write):
    data = text(500) + b'"' + b"x" * 400_000 + b'"\n' + text(500)
    ds = mmapds.open(write(WRITERS["many"][1](data), "a.jsonl.zst"), build=True)
    starts = ds.block_starts
    assert (np.diff(starts) >= 0).all()
    assert (np.diff(starts) == 0).sum() >= 4
    assert (starts[0], starts[-1]) == (0, 1001)


def test_slices_have_blocks_and_other_views_have_none(packed):
    starts = packed.block_starts
    inside = starts[(starts > 100) & (starts < 4000)] - 100
    assert packed[100:4000].block_starts.tolist() == [0, *inside.tolist(), 3900]
    for view in (packed[::2], packed[np.arange(10)], packed.split([0.5, 0.5])[0]):
        with pytest.raises(mmapds.Error, match="expected all records or a slice of neighbours, found another view"):
            view.block_starts  # noqa: B018


def test_plain_sources_have_none_and_zipped_datasets_those_of_the_first(packed, write):
    plain = mmapds.open(write(text(10)), build=True)
    with pytest.raises(mmapds.Error, match=r"train.jsonl: expected a compressed source, .*, found another"):
        mmapds.ChunkedSampler(plain, "block")
    assert mmapds.zip(a=packed, b=packed).block_starts.tolist() == packed.block_starts.tolist()
    for make in (mmapds.ChunkedSampler, orders.Chunked):
        with pytest.raises(OrderError, match=r"chunk_size = 'block', expected a dataset .*, found list") as error:
            make([1, 2, 3], "block")
        check(str(error.value))


def test_orders_take_what_the_sampler_takes(packed):
    everything = np.arange(len(packed))
    for size in ("block", 100):
        order = orders.Chunked(packed, size, mix_chunks=4, seed=3)
        sampler = mmapds.ChunkedSampler(packed, size, num_replicas=1, rank=0, mix_chunks=4, seed=3)
        assert order.at(0, everything).tolist() == list(sampler)
        assert set(packed.source_starts.tolist()) <= set(order.chunk_starts.tolist())
    assert orders.Chunked(packed, "block").chunk_starts.tolist() == np.unique(packed.block_starts).tolist()
    inside = orders.Chunked(packed.block_starts, 100).chunk_starts
    assert set(packed.block_starts.tolist()) < set(inside.tolist())
    assert np.diff(inside).max() == 100
    assert orders.Chunked(len(packed), 1000).chunk_starts.tolist() == list(range(0, 6001, 1000))
    view = packed[100:4000]
    assert sorted(orders.Chunked(view, "block").at(0, np.arange(3900)).tolist()) == list(range(3900))


@pytest.mark.parametrize("mix_chunks", [1, 4])
def test_an_epoch_in_chunks_of_blocks_has_every_record_and_decodes_a_block_about_once(packed, monkeypatch, mix_chunks):
    blocks = len(packed.block_starts) - 1
    ds = mmapds.open(packed.sources, block_cache=(mix_chunks + 2) * 100_000)
    decoded, decode = [], BlockReader._decode
    monkeypatch.setattr(BlockReader, "_decode", lambda *given: (decoded.append(1), decode(*given))[1])
    sampler = mmapds.ChunkedSampler(ds, "block", num_replicas=1, rank=0, mix_chunks=mix_chunks, seed=3)
    rows = list(sampler)
    assert sorted(rows) == list(range(len(ds)))
    assert rows != sorted(rows)
    for at in range(0, len(rows), 64):
        assert [sample["id"] for sample in ds.take(rows[at : at + 64])] == [row % 3000 for row in rows[at : at + 64]]
    assert len(decoded) <= 2 * blocks, "a record over two blocks has both decoded"
