"""Indexes whose metadata are odd and whose checksums are right: an error of mmapds's, and never another exception."""

import pytest

import mmapds
from mmapds.index.verify import verify
from mmapds.storage.index_file import Index
from tests.support.forged import COMPRESSED, KINDS, ODD, changed, make_source, places, small_blocks
from tests.support.index_file import rewrite


def use(path, thoroughly):
    """What is done with an index."""
    index = f"{path}.mmx"

    def read():
        ds = mmapds.open(path)
        ds.columns, [ds.column(name) for name in ds.columns], ds.length_order, ds.sources, ds.fingerprint, repr(ds)
        return list(ds), [ds.where(i) for i in range(len(ds))], ds.take(range(len(ds))), ds[::2]

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
