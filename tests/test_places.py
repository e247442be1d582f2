"""Places: what lies elsewhere than on the disk is indexed, opened, read and stale, as files are."""

import itertools

import pytest

import mmapds
from mmapds.storage import places
from tests.support.memory import Memory


@pytest.fixture
def memory(tmp_path, monkeypatch):
    found = Memory(tmp_path)
    monkeypatch.setitem(places.MORE, "memory", found)
    for shard in range(3):
        lines = (b'{"id": %d, "n": %d}\n' % (100 * shard + i, 1 + i % 7) for i in range(50))
        found.data[f"memory://data/{shard}.jsonl"] = b"".join(lines)
    return found


IDS = [100 * shard + i for shard in range(3) for i in range(50)]


@pytest.mark.parametrize("out", ["memory://data/all.mmx", "all.mmx"])
def test_sources_of_a_third_place_are_indexed_and_read(memory, tmp_path, monkeypatch, out):
    monkeypatch.chdir(tmp_path)
    if out == "all.mmx":
        monkeypatch.setattr(memory, "check", lambda *_: None)
    assert str(mmapds.build("memory://data/*.jsonl", out=out, length="n")) == out
    ds = mmapds.open(out)
    assert [sample["id"] for sample in ds] == IDS
    assert ds.sources == [f"memory://data/{shard}.jsonl" for shard in range(3)]
    assert ds.where(60).source == "memory://data/1.jsonl"
    loader = mmapds.DataLoader(ds[::-1], batch_sampler=mmapds.TokenBudgetBatchSampler(ds[::-1], 40), collate_fn=list)
    assert sorted(sample["id"] for batch in loader for sample in batch) == IDS
    assert loader.stats()["asked"] == len(memory.asked) > 0


def test_what_is_known_is_kept_and_what_changed_is_stale(memory):
    index = mmapds.build("memory://data/*.jsonl", out="memory://data/all.mmx")
    memory.data["memory://data/3.jsonl"] = b'{"id": 7}\n'
    memory.asked.clear()
    mmapds.build("memory://data/*.jsonl", out=index)
    assert memory.asked == ["memory://data/3.jsonl"]
    ds = mmapds.open(index)
    memory.data["memory://data/1.jsonl"] = memory.data["memory://data/0.jsonl"]
    assert ds[0]["id"] == 0
    with pytest.raises(mmapds.StaleIndexError, match=r"^memory://data/1\.jsonl: STALE"):
        ds[60]


@pytest.mark.usefixtures("memory")
def test_an_index_of_a_third_place_names_nothing_outside_it():
    index = mmapds.build("memory://data/*.jsonl", out="memory://other/all.mmx")
    with pytest.raises(
        mmapds.SourceError, match=r"^memory://other/all\.mmx: expected names below its own, found memory"
    ):
        mmapds.open(index)[0]


def test_one_index_may_have_sources_of_several_places(memory, write, monkeypatch):
    monkeypatch.setattr(memory, "check", lambda *_: None)
    path = write([{"id": 1000 + i, "n": 1} for i in range(5)], "disk.jsonl")
    index = mmapds.build([path, "memory://data/1.jsonl"], out=f"{path}.both.mmx", length="n")
    ds = mmapds.open(index)
    assert [sample["id"] for sample in ds] == [*range(1000, 1005), *range(100, 150)]
    assert ds.lengths.tolist() == [1] * 5 + list(itertools.islice(itertools.cycle(range(1, 8)), 50))
    with pytest.raises(mmapds.SourceError, match=r"^nowhere://x: .*"):
        places.Places().of("nowhere://x")
