"""Datasets of objects: built, opened, read by any number of processes, and refused where they must be."""

import json
import os
import pickle
import re
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import chdir
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import mmapds
from mmapds import IndexMissingError, SourceError, StaleIndexError
from tests.support import golden
from tests.support.commands import command, python
from tests.support.index_file import rewrite
from tests.support.objects import SECRET, Fault, Server

PARTS, RECORDS = 8, 50


@pytest.fixture(scope="module")
def store():
    with Server() as server:
        yield server


@pytest.fixture
def server(store):
    """A server without objects and faults."""
    for each in (store.data, store.etags, store.faults, store.requests):
        each.clear()
    return store


@pytest.fixture
def bucket(server, tmp_path):
    """A server that has a copy of a directory of sources and their index; options of `mmapds.open`; the records."""
    local = tmp_path / "local"
    local.mkdir()
    records = [{"n": number, "text": f"{number} " * (number % 37)} for number in range(PARTS * RECORDS)]
    for part in range(PARTS):
        lines = (json.dumps(record) for record in records[part * RECORDS :][:RECORDS])
        (local / f"part-{part}.jsonl").write_text("\n".join(lines))
    mmapds.build(str(local / "part-*.jsonl"), out=str(local / "corpus.mmx"), length="chars(text)")
    server.data.update({f"b/{path.name}": path.read_bytes() for path in local.iterdir()})
    return server, {"cache": str(tmp_path / "cache"), "storage_options": server.options}, records


def once(server, *names):
    """Each of these was downloaded once, and nothing else."""
    assert {name: count for name, count in server.downloads().items() if name != "b"} == dict.fromkeys(
        (f"b/{name}" for name in names), 1
    )


SOURCES = [f"part-{part}.jsonl" for part in range(PARTS)]


# ---- reading -------------------------------------------------------------------------------------------------------


def test_an_index_is_opened_without_data_and_each_object_is_downloaded_once(bucket):
    server, options, records = bucket
    ds = mmapds.open("s3://b/corpus.mmx", **options)
    assert (len(ds), ds.lengths[7]) == (len(records), len(records[7]["text"]))
    once(server, "corpus.mmx")
    assert ds[60] == records[60]
    once(server, "corpus.mmx", "part-1.jsonl")
    assert list(ds) == records
    assert ds.take([399, 0, 7]) == [records[399], records[0], records[7]]
    assert list(mmapds.open("s3://b/corpus.mmx", **options)) == records
    once(server, "corpus.mmx", *SOURCES)
    assert "obstore" not in sys.modules


@pytest.fixture(scope="module")
def formats(tmp_path_factory):
    """A directory with sources of every format and their indexes."""
    folder = tmp_path_factory.mktemp("formats")
    golden.prepare(folder)
    with chdir(folder):
        for name, build in golden.BUILDS.items():
            build(golden.built(name))
    return folder


@pytest.mark.parametrize("name", golden.BUILDS)
def test_every_format_gives_the_records_of_local_files(server, formats, tmp_path, name):
    server.data.update({f"b/{path.name}": path.read_bytes() for path in formats.iterdir() if path.is_file()})
    local = mmapds.open(formats / golden.built(name))
    ds = mmapds.open(f"s3://b/{golden.built(name)}", cache=tmp_path, storage_options=server.options)
    assert [ds.raw(k) for k in range(len(ds))] == [local.raw(k) for k in range(len(ds))]
    assert (len(ds), ds.fingerprint, ds.columns) == (len(local), local.fingerprint, local.columns)
    assert repr(list(ds)).replace("s3://b", str(formats)) == repr(list(local))
    assert {ds.where(k).source.rpartition("/")[0] for k in range(len(ds))} <= {"s3://b"}


def test_a_list_may_mix_objects_and_files(bucket, write):
    _, options, records = bucket
    given = [write(records[:3]), "s3://b/corpus.mmx"]
    mmapds.build(given[0])
    assert list(mmapds.open(given, **options)) == records[:3] + records


def test_forked_workers_of_torch_share_one_download(bucket):
    """The parent reads first, so that the process of its downloads is there."""
    server, options, records = bucket
    ds = mmapds.open("s3://b/corpus.mmx", **options)
    assert ds[0] == records[0]
    server.faults.update({f"b/{name}": Fault(delay=0.05) for name in SOURCES})
    loader = torch.utils.data.DataLoader(
        ds, 20, shuffle=True, num_workers=2, multiprocessing_context="fork", collate_fn=list
    )
    for _ in range(2):
        assert sorted(record["n"] for batch in loader for record in batch) == list(range(len(records)))
    assert ds[399] == records[399]
    once(server, "corpus.mmx", *SOURCES)


def test_a_pickled_dataset_is_read_in_other_processes(bucket, tmp_path):
    server, options, records = bucket
    (tmp_path / "ds").write_bytes(pickle.dumps(mmapds.open("s3://b/corpus.mmx", **options)))
    script = f"import pickle; print([each['n'] for each in pickle.load(open({str(tmp_path / 'ds')!r}, 'rb'))])"
    with ThreadPoolExecutor(2) as pool:
        for found in pool.map(python, [script] * 2):
            assert json.loads(found.stdout) == list(range(len(records)))
    once(server, "corpus.mmx", *SOURCES)


@pytest.mark.parametrize("workers", ["threads", "processes"])
def test_our_loader_downloads_each_object_once_and_resumes(bucket, workers):
    server, options, records = bucket
    ds = mmapds.open("s3://b/corpus.mmx", **options)

    first, second = (
        mmapds.DataLoader(ds, 20, shuffle=True, num_workers=2, workers=workers, collate_fn=list) for _ in range(2)
    )
    batches = iter(first)
    seen = [record["n"] for _ in range(9) for record in next(batches)]
    second.load_state_dict(first.state_dict())
    del batches
    seen += [record["n"] for batch in second for record in batch]
    assert sorted(seen) == list(range(len(records)))
    once(server, "corpus.mmx", *SOURCES)


def misses(uses, capacity, *, is_lru=False):
    """Count the misses of a cache of so many objects, by LRU or by Belady: evict the farthest next use."""
    cached, count = OrderedDict(), 0
    for position, name in enumerate(uses):
        if name not in cached:
            count += 1
            if len(cached) == capacity:
                later = uses[position:]
                far = next(iter(cached)) if is_lru else max(cached, key=lambda each: (*later, each).index(each))
                del cached[far]
        cached[name] = None
        cached.move_to_end(name)
    return count


COUNT, SIZE = 40, 40
"""Objects of `shards`, and records of each."""


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """An indexed directory of shards of one size; the first digits of a record are those of its shard."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(COUNT):
        (folder / f"{shard:02}.jsonl").write_text("".join(f"{shard + 10}{each:02}\n" for each in range(SIZE)))
    mmapds.build(str(folder / "*.jsonl"), out=str(folder / "corpus.mmx"))
    return {f"b/{path.name}": path.read_bytes() for path in folder.iterdir()}


def shards_of(loader, epochs):
    """Read epochs; return the shards in the order in which they were read."""
    found = []
    for epoch in range(epochs):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            found += [shard for shard in dict.fromkeys(record // 100 - 10 for record in batch) if found[-1:] != [shard]]
    return found


@pytest.mark.parametrize("capacity", [10, 20, 30, 40])
def test_the_loader_downloads_as_little_as_can_be(server, shards, tmp_path, capacity):
    """Objects fetched ahead take places. So the optimum of a cache that is smaller by two is the upper bound."""
    server.data |= shards
    limit = len(shards["b/corpus.mmx"]) + capacity * len(shards["b/00.jsonl"])
    ds = mmapds.open("s3://b/corpus.mmx", cache=tmp_path, cache_bytes=limit, storage_options=server.options)
    sampler = mmapds.ChunkedSampler(ds, SIZE, num_replicas=1, rank=0, mix_chunks=1, seed=3)
    loader = mmapds.DataLoader(ds, 4, sampler=sampler, collate_fn=list)
    uses = shards_of(loader, epochs=3)
    assert sorted(uses) == sorted([*range(COUNT)] * 3)
    found = server.downloads().total() - server.downloads()["b/corpus.mmx"]
    assert misses(uses, capacity) <= found <= misses(uses, max(capacity - 2, 1))
    assert capacity == COUNT or found < misses(uses, capacity, is_lru=True)
    while ahead := [each for each in threading.enumerate() if each.name == "mmapds-ahead"]:  # one starts the next
        ahead[0].join()
    stats = loader.stats()
    assert stats["fetched_bytes"] == sum(server.sent().values())
    assert stats["fetch_rate"] > 0
    assert stats["fetch_wait"] >= 0


@pytest.mark.parametrize(("lanes", "copies"), [(4, 1), (1, 4)])
def test_nodes_with_lanes_download_each_object_once_in_all(server, shards, tmp_path, lanes, copies):
    """Four nodes of two ranks, each with a cache of its own. At its end, a node begins with the next epoch."""
    server.data |= shards
    seen, read = [], [set() for _ in range(4)]
    for rank in range(8):
        cache = tmp_path / str(rank // 2)
        ds = mmapds.open("s3://b/corpus.mmx", cache=cache, storage_options=server.options)
        sampler = mmapds.ChunkedSampler(ds, SIZE, num_replicas=8, rank=rank, mix_chunks=2, lanes=lanes)
        for batch in mmapds.DataLoader(ds, 5, sampler=sampler, collate_fn=list):
            seen += batch
            read[rank // 2] |= {record // 100 for record in batch}
    assert len(set(seen)) == COUNT * SIZE
    assert sum(map(len, read)) == copies * COUNT
    downloads = server.downloads().total() - server.downloads()["b/corpus.mmx"]
    assert copies * COUNT <= downloads <= copies * COUNT + 4 * 4


def test_a_small_cache_is_enough_and_its_limit_holds(bucket, tmp_path):
    server, options, records = bucket
    sizes = {name: len(data) for name, data in server.data.items()}
    limit = sizes["b/corpus.mmx"] + 2 * max(sizes[f"b/{name}"] for name in SOURCES)
    ds, largest = mmapds.open("s3://b/corpus.mmx", **options, cache_bytes=limit), 0
    sampler = mmapds.ChunkedSampler(ds, 10, num_replicas=1, rank=0, mix_chunks=1)
    for record in sampler:
        assert ds[record] == records[record]
        largest = max(largest, sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()))
    assert largest <= limit
    mapped = Path("/proc/self/maps").read_text()
    assert f"{tmp_path / 'cache'}" in mapped
    assert len(re.findall(rf"{tmp_path / 'cache'}/\S+\.jsonl \(deleted\)", mapped)) <= 2, "maps of evicted objects"


def test_maps_stay_readable_when_the_cache_is_cleared(bucket, ran, tmp_path):
    _, options, records = bucket
    ds = mmapds.open("s3://b/corpus.mmx", **options)
    assert list(ds) == records
    status, shown, _ = ran("cache", tmp_path / "cache")
    assert (status, shown.count("part-")) == (0, PARTS)
    assert ran("cache", tmp_path / "cache", "--clear")[0] == 0
    assert os.listdir(tmp_path / "cache") == [".lock"]
    assert list(ds) == records


def test_a_worker_needs_little_more_memory_than_with_local_files(bucket, tmp_path):
    _, options, _ = bucket
    sizes = {}
    for name, given in {
        "local": (str(tmp_path / "local" / "corpus.mmx"), {}),
        "remote": ("s3://b/corpus.mmx", options),
    }.items():
        found = python(
            "import sys, mmapds\n"
            f"assert len(list(mmapds.open({given[0]!r}, **{given[1]!r}))) == {PARTS * RECORDS}\n"
            "[line] = [line for line in open('/proc/self/smaps_rollup') if line.startswith('Anonymous:')]\n"
            "print(line.split()[1])"
        )
        sizes[name] = int(found.stdout)
    assert sizes["remote"] - sizes["local"] < 5_000, sizes  # KB


# ---- building ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_cache", [True, False])
@pytest.mark.parametrize("out", ["s3://b/new.mmx", "new.mmx"])
def test_a_build_reads_each_object_once_and_keeps_it_in_the_cache(bucket, tmp_path, out, has_cache):
    server, options, records = bucket
    out = out if "//" in out else str(tmp_path / out)
    kept = options if has_cache else {"storage_options": server.options}
    assert os.fspath(mmapds.build("s3://b/part-*.jsonl", out=out, length="chars(text)", **kept)) == out
    once(server, *SOURCES)
    index = server.data["b/new.mmx"] if "//" in out else Path(out).read_bytes()
    assert not re.search(f"{SECRET}|a-user|127.0.0.1".encode(), index)
    server.requests.clear()
    ds = mmapds.open(out, **options, **({} if "//" in out else {"roots": "s3://b/"}))
    assert list(ds) == records
    assert ds.lengths.tolist() == [len(record["text"]) for record in records]
    once(server, *(["new.mmx"] if "//" in out else []), *([] if has_cache else SOURCES))


def test_an_executor_builds_the_same_index(bucket, tmp_path):
    server, _, _ = bucket
    given = {"storage_options": server.options, "length": "chars(text)"}
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        out = mmapds.build("s3://b/part-*.jsonl", out=tmp_path / "new.mmx", executor=pool, **given)
        once(server, *SOURCES)
        with pytest.raises(mmapds.Error, match=r"expected a directory for the parts .*; give parts='DIR'"):
            mmapds.build("s3://b/part-*.jsonl", out="s3://b/new.mmx", executor=pool, **given)
    assert out.read_bytes() == mmapds.build("s3://b/part-*.jsonl", out=tmp_path / "same.mmx", **given).read_bytes()


def test_the_command_indexes_objects_and_others_read_them_by_the_environment(bucket, tmp_path):
    server, _, records = bucket
    environment = os.environ | server.environment
    cache = tmp_path / "cache"
    ran = command("s3://b/part-*.jsonl", "-o", "s3://b/new.mmx", "--cache", cache, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert SECRET not in ran.stdout + ran.stderr
    script = f"import mmapds; print(len(list(mmapds.open('s3://b/new.mmx', cache={str(cache)!r}))))"
    assert int(python(script, env=environment).stdout) == len(records)
    once(server, *SOURCES, "new.mmx")


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".jsonl.zst", ".tar", ".mma", ".npy", ".parquet"])
def test_other_formats_are_built_as_local_files_are(server, formats, tmp_path, suffix):
    pq.write_table(pa.table({"n": range(100), "t": ["x" * i for i in range(100)]}), formats / "a.parquet", 30)
    name = next(path.name for path in sorted(formats.iterdir()) if path.name.endswith(suffix))
    server.data[f"b/{name}"] = (formats / name).read_bytes()
    options = {"cache": tmp_path / "cache", "storage_options": server.options}
    mmapds.build(f"s3://b/{name}", out="s3://b/new.mmx", **options)
    mmapds.build(str(formats / name), out=str(tmp_path / "local.mmx"))
    ds, local = mmapds.open("s3://b/new.mmx", **options), mmapds.open(tmp_path / "local.mmx", roots=formats)
    assert [ds.raw(k) for k in range(len(ds))] == [local.raw(k) for k in range(len(local))]


def test_a_second_build_reads_only_what_changed(bucket):
    server, options, _ = bucket
    mmapds.build("s3://b/part-*.jsonl", out="s3://b/new.mmx", **options)
    server.requests.clear()
    server.data["b/part-3.jsonl"] = server.data["b/part-3.jsonl"].replace(b"150", b"999")
    mmapds.build("s3://b/part-*.jsonl", out="s3://b/new.mmx", **options)
    assert server.downloads()["b/part-3.jsonl"] == 1
    assert not [name for name in SOURCES if name != "part-3.jsonl" and server.downloads()[f"b/{name}"]]
    assert mmapds.open("s3://b/new.mmx", **options)[150]["n"] == 999


# ---- refused -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_built_there", [True, False])
def test_an_object_that_changed_is_stale_though_its_size_is_the_same(bucket, is_built_there):
    """An index that was copied with its sources has no ETags; their fingerprints tell."""
    server, options, _ = bucket
    if is_built_there:
        mmapds.build("s3://b/part-*.jsonl", out="s3://b/corpus.mmx", storage_options=server.options)
    server.data["b/part-1.jsonl"] = server.data["b/part-1.jsonl"].replace(b"50", b"99")
    ds = mmapds.open("s3://b/corpus.mmx", **options)
    with pytest.raises(StaleIndexError, match=r"STALE: .*s3://b/part-1\.jsonl|s3://b/part-1\.jsonl: STALE: "):
        ds[50]
    assert ds[0]["n"] == 0
    assert not [name for name in os.listdir(options["cache"]) if "part-1" in name]


@pytest.mark.parametrize(
    "path",
    ["file:///etc/passwd", "/etc/passwd", "../b/part-0.jsonl", "../../x", "s3://other/part-0.jsonl", "http://127.0.0.1/x",
     "s3://b/../other/x", "s3://b.evil/part-0.jsonl", ".hidden", "s3://key:pass-word@b/part-0.jsonl", "a\nb", "s3://b"],
)  # fmt: skip
def test_an_index_may_not_name_what_is_outside_its_url_and_the_roots(bucket, tmp_path, path):
    server, options, _ = bucket
    index = tmp_path / "local" / "corpus.mmx"
    rewrite(index, metadata=lambda found: renamed(found, path))
    server.data |= {"b/corpus.mmx": index.read_bytes(), "other/part-0.jsonl": server.data["b/part-0.jsonl"]}
    with pytest.raises(mmapds.Error) as error:
        mmapds.open("s3://b/corpus.mmx", **options)[0]
    assert "pass-word" not in str(error.value)
    assert str(error.value).isprintable()
    once(server, "corpus.mmx")


def renamed(metadata, path):
    metadata["sources"][0]["path"] = path
    return metadata


def test_links_that_only_an_index_names_lead_out_of_no_directory(bucket, tmp_path):
    """Files of another disk are objects, too, by file:// URLs."""
    _, options, records = bucket
    shared, outside = tmp_path / "shared", tmp_path / "outside"
    shared.mkdir()
    outside.mkdir()
    for path in (tmp_path / "local").iterdir():
        (shared / path.name).write_bytes(path.read_bytes())
    given = {"cache": options["cache"]}
    assert mmapds.open(f"file://{shared}/corpus.mmx", **given)[0] == records[0]
    (shared / "part-1.jsonl").rename(outside / "part-1.jsonl")
    (shared / "part-1.jsonl").symlink_to(outside / "part-1.jsonl")
    ds = mmapds.open(f"file://{shared}/corpus.mmx", cache=tmp_path / "another")
    with pytest.raises(SourceError, match="expected objects below its own URL"):
        ds[50]
    (shared / "part-1.jsonl.mmx").write_bytes(mmapds.build(outside / "part-1.jsonl").read_bytes())
    ds = mmapds.open(f"file://{shared}/corpus.mmx", roots=f"file://{outside}/", cache=tmp_path / "another")
    assert ds[50] == records[50]


@pytest.mark.parametrize("has_time", [True, False])
def test_objects_without_etags_are_read_from_what_indexing_kept(bucket, monkeypatch, has_time):
    """Those without Last-Modified too are fetched anew by each build, as nothing tells whether they changed."""
    server, options, records = bucket
    server.etags.update(dict.fromkeys((f"b/{name}" for name in SOURCES), None))
    monkeypatch.setattr(server, "has_time", has_time)
    names = [f"{server.endpoint}/b/{name}" for name in SOURCES]
    given = {"cache": options["cache"], "out": options["cache"] + ".mmx"}
    mmapds.build(names, **given)
    ds = mmapds.open(given["out"], roots=f"{server.endpoint}/b/", cache=options["cache"])
    assert list(ds) == records
    once(server, *SOURCES) if has_time else None
    server.data["b/part-1.jsonl"] = server.data["b/part-1.jsonl"].replace(b"50", b"99")
    mmapds.build(names, **given, force=True)
    ds = mmapds.open(given["out"], roots=f"{server.endpoint}/b/", cache=options["cache"])
    assert ds[50]["n"] == 99
    assert ds[0] == records[0]


def test_an_index_that_is_built_again_and_again_does_not_fill_the_cache(bucket):
    server, options, records = bucket
    limit = 3 * len(server.data["b/corpus.mmx"]) + sum(len(server.data[f"b/{name}"]) for name in SOURCES[:3])
    given = {"force": True, "length": "n", "storage_options": server.options}
    for number in range(15):
        mmapds.build("s3://b/part-*.jsonl", out="s3://b/corpus.mmx", columns={f"c{number}": "n"}, **given)
        ds = mmapds.open("s3://b/corpus.mmx", **options, cache_bytes=limit)
        assert ds[number] == records[number]


def test_a_key_that_no_path_can_name_is_an_error_at_once(bucket):
    server, options, _ = bucket
    server.data["b/d//x"] = b""
    with pytest.raises(SourceError, match=r"s3://b/: .*remove that object, or name the others"):
        mmapds.build("s3://b/part-*.jsonl", out="s3://b/new.mmx", **options)
    assert server.downloads()["b"] == 1


def test_two_loops_at_a_time_fetch_ahead_each_for_itself(server, shards, tmp_path):
    """A validation of three shards comes every hundred batches of training. Each loop has what it needs kept."""
    server.data |= shards
    size = len(shards["b/00.jsonl"])
    limit = len(shards["b/corpus.mmx"]) + 20 * size
    ds = mmapds.open("s3://b/corpus.mmx", cache=tmp_path, cache_bytes=limit, storage_options=server.options)
    train, validation = ds[: 36 * SIZE], ds[37 * SIZE :]
    sampler = mmapds.ChunkedSampler(train, SIZE, num_replicas=1, rank=0, mix_chunks=1, seed=3, cross_sources=True)
    loader = mmapds.DataLoader(train, 4, sampler=sampler, collate_fn=list)
    checks = mmapds.DataLoader(validation, 4, collate_fn=list)
    uses = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for step, batch in enumerate(loader):
            uses += [shard for shard in dict.fromkeys(each // 100 - 10 for each in batch) if uses[-1:] != [shard]]
            if step % 100 == 50:
                assert len([each for some in checks for each in some]) == 3 * SIZE
    downloads = {int(name[2:4]): count for name, count in server.downloads().items() if name.endswith("jsonl")}
    assert sum(count for shard, count in downloads.items() if shard >= 37) <= 18, "half of the times at most"
    found = sum(count for shard, count in downloads.items() if shard < 37)
    assert found <= misses(uses, 20 - 3 - 2), "what training needs is kept as well as can be"


def test_roots_allow_another_bucket(bucket, tmp_path):
    server, options, records = bucket
    index = tmp_path / "local" / "corpus.mmx"
    rewrite(index, metadata=lambda found: renamed(found, "s3://other/d/part-0.jsonl"))
    server.data |= {"b/corpus.mmx": index.read_bytes(), "other/d/part-0.jsonl": server.data["b/part-0.jsonl"]}
    for roots in ("s3://other", "s3://other/", ["s3://x", "s3://other/d/"]):
        assert mmapds.open("s3://b/corpus.mmx", roots=roots, **options)[0] == records[0]
    with pytest.raises(SourceError, match=r"s3://other/d/part-0\.jsonl"):
        mmapds.open("s3://b/corpus.mmx", roots="s3://other/e", **options)[0]


WRONG = {
    "no index": ("s3://b/none.mmx", {}, IndexMissingError, "s3://b/none.mmx: no such index"),
    "no bucket": ("s3://none/a.mmx", {}, IndexMissingError, "s3://none/a.mmx: "),
    "no match": (
        "s3://b/none-*.jsonl",
        {},
        SourceError,
        "s3://b/none-*.jsonl: expected one object or more, found none",
    ),
    "no cache": ("s3://b/corpus.mmx", {"cache": None}, SourceError, "give cache=DIRECTORY"),
    "a limit without a cache": ("s3://b/corpus.mmx", {"cache": None, "cache_bytes": 9}, mmapds.Error, "give cache="),
    "a limit in words": ("s3://b/corpus.mmx", {"cache_bytes": "much"}, mmapds.Error, "cache_bytes = 'much', expected"),
    "a cache that is a file": ("s3://b/corpus.mmx", {"cache": __file__}, SourceError, "cache = "),
    "a limit below one object": ("s3://b/corpus.mmx", {"cache_bytes": 10}, mmapds.Error, "cache_bytes = 10, expected "),
    "an option that is unknown": ("s3://b/corpus.mmx", {"storage_options": {"colour": 1}}, SourceError, "colour"),
    "credentials": ("s3://a:pass-word@b/corpus.mmx", {}, SourceError, "credentials"),
    "a format of an object that is not an index": ("s3://b/part-0.jsonl", {}, IndexMissingError, "part-0.jsonl"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_an_error_of_one_line(bucket, case):
    _, options, _ = bucket
    url, given, kind, text = WRONG[case]
    with pytest.raises(kind) as error:
        mmapds.open(url, **{**options, **given})[0]
    assert text in str(error.value)
    assert str(error.value).isprintable()
    assert not re.search(f"{SECRET}|pass-word", str(error.value))


def test_a_directory_of_a_bucket_may_have_a_marker(bucket):
    """Consoles of stores make an empty object for a directory."""
    server, options, records = bucket
    server.data |= {"b/d/": b"", "b/d/part-0.jsonl": server.data["b/part-0.jsonl"], "b/part-x.jsonl/": b""}
    mmapds.build("s3://b/d/*", out="s3://b/d.mmx", **options)
    assert list(mmapds.open("s3://b/d.mmx", **options)) == records[:RECORDS]


def test_an_error_of_the_store_comes_where_the_record_is_read(bucket):
    server, options, records = bucket
    ds = mmapds.open("s3://b/corpus.mmx", **options)
    server.faults["b/part-1.jsonl"] = Fault(403, times=1)
    with pytest.raises(SourceError, match=r"s3://b/part-1\.jsonl: .*403"):
        ds[50]
    assert list(ds) == records
