"""Indexes whose metadata are odd and whose checksums are right: an error of mmapds's, and never another exception."""

import numpy as np
import pytest

import mmapds
from mmapds.dataset.decode import RecordArray
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.forged import COMPRESSED, KINDS, OBJECTS, ODD, changed, make_source, places, plain, small_blocks
from tests.support.index_file import rewrite


def use(path, thoroughly):
    """What is done with an index."""
    index = f"{path}.mmx"

    def read():
        ds = mmapds.open(path)
        ds.columns, [ds.column(name) for name in ds.columns], ds.length_order, ds.sources, ds.fingerprint, repr(ds)
        return plain(list(ds)), [ds.where(i) for i in range(len(ds))], plain(list(ds.take(range(len(ds))))), ds[::2]

    yield read
    yield lambda: verify(Index(index))
    if thoroughly:
        yield lambda: mmapds.open(path).find("k1")
        yield lambda: list(mmapds.TokenBudgetBatchSampler(mmapds.open(path), 1000, min_length=1))
        yield lambda: mmapds.build(path)
        yield lambda: mmapds.build(path, force=True)


def is_of_format(kind, place):
    """Whether a place in metadata is one that this format adds or uses."""
    if kind in COMPRESSED:
        return "compression" in place
    return place[0] != "builder" and len(place) <= 4 and (kind == "jsonl" or place[0] not in ("sources", "sections"))


@pytest.mark.parametrize("kind", [*KINDS, "jsonl.zst", "jsonl.gz"])
def test_odd_metadata_are_errors_of_mmapds(tmp_path, kind):
    """Every value in every place that this format adds or uses; make torture has them in any combination."""
    with small_blocks():
        path = make_source(tmp_path, kind)
        raw = list(raw_errors(kind, path))
    assert not raw


def raw_errors(kind, path):
    """Yield what raises something else for odd metadata: the place, the value, the error."""
    index = path.with_name(f"{path.name}.mmx")
    good = index.read_bytes()
    metadata = Index(str(index)).metadata
    for number, place in enumerate(list(places(metadata))[1:]):
        if not is_of_format(kind, place):
            continue
        for which, value in enumerate(("gone", *ODD)):
            forged = changed(metadata, place, value)
            for action in use(path, thoroughly=(number + which) % 4 == 0):
                index.write_bytes(good)
                rewrite(index, metadata=lambda _, forged=forged: forged)
                try:
                    action()
                except mmapds.Error:
                    pass
                except Exception as error:
                    yield place, value, repr(error)[:100]


@pytest.mark.parametrize("kind", ["fixed", "npy", "megatron"])
@pytest.mark.parametrize("dtype", OBJECTS)
@pytest.mark.parametrize("shape", [[], [1], [2], [2, 2], [4]])
def test_an_index_that_says_objects_is_damaged_whatever_their_shape(tmp_path, kind, dtype, shape):
    """NumPy would take the bytes of the source for pointers."""
    path = make_source(tmp_path, kind)
    given = {"dtype": dtype} if kind == "megatron" else {"dtype": dtype, "shape": shape}
    rewrite(f"{path}.mmx", metadata=lambda found: found | {"parameters": found["parameters"] | given})
    for decode in (None, "bytes"):
        with pytest.raises(mmapds.FormatError, match=r"\.mmx: DAMAGED: .*expected plain numbers, or strings"):
            mmapds.open(path, decode=decode)


def test_an_index_whose_arrays_are_not_as_large_as_its_records_is_damaged(tmp_path):
    path = make_source(tmp_path, "fixed")
    for shape in ([1, 2], [1, 4], [-1, -3], [1.5, 2], []):
        rewrite(f"{path}.mmx", metadata=lambda found, shape=shape: changed(found, ("parameters", "shape"), shape))
        with pytest.raises(mmapds.FormatError, match=r"\.mmx: DAMAGED: "):
            mmapds.open(path)


@pytest.mark.parametrize("shape", [None, (), (2,)])
@pytest.mark.parametrize("dtype", OBJECTS)
def test_no_decoder_makes_objects_of_bytes(dtype, shape):
    with pytest.raises(ValueError, match="expected plain numbers, or strings of one size"):
        RecordArray(np.dtype(dtype), shape)
