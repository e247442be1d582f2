"""The records of objects by several libraries, each in a process of its own: seconds and answers of two epochs."""

import multiprocessing
import os
import shutil
import signal
import time

from torch.utils.data import DataLoader
from xxhash import xxh3_64_intdigest

import mmapds

from .process import family

BATCH, MIX = 32, 4
LIMIT = 30  # seconds
WORKERS = {"num_workers": 1, "multiprocessing_context": "fork"}  # torch's default, except in a process that was spawned
TITLES = {"mmapds": "mmapds", "streaming": "MosaicML Streaming", "litdata": "LitData"}


def records(path):
    """Yield the records of a file, as all libraries store them."""
    yield from map(bytes, mmapds.open(path, decode="bytes", build="memory"))


def _streaming():
    from .mds import streaming

    return streaming


def _litdata():
    import litdata
    from litdata.streaming import downloader

    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # an option that storage_options do not reach
    return litdata


def prepare(library, store, shard_records):
    """Write the records of the bucket `limited` as another bucket, in the library's own format."""
    sources, out = sorted((store / "limited").glob("*.jsonl")), store / library
    if library == "streaming":
        size = sources[0].stat().st_size + 16 * shard_records  # offsets, and what each record has beside its bytes
        with _streaming().MDSWriter(out=str(out), columns={"record": "bytes"}, size_limit=size) as writer:
            for source in sources:
                for record in records(source):
                    writer.write({"record": record})
    if library == "litdata":
        given = list(map(str, sources))
        _litdata().optimize(records, given, output_dir=str(out), chunk_size=shard_records, num_workers=1)


def epochs(library, options, folder, limit, shard_records):
    """Yield the seconds of each of two epochs, and its answer: how many records, and the sum of their hashes.

    An epoch that takes longer than LIMIT ends it.
    """
    ours, theirs = multiprocessing.Pipe()
    shutil.rmtree(folder / f"{library}-cache", ignore_errors=True)
    given = theirs, library, options, str(folder), limit, shard_records
    process = multiprocessing.get_context("spawn").Process(target=_run, args=given)
    process.start()
    theirs.close()
    for _ in range(2):
        if not ours.poll(LIMIT):
            break
        yield ours.recv()
        ours.send("next")
    process.join(5)
    for each in reversed(family(process.pid)) if process.is_alive() else ():
        os.kill(each, signal.SIGKILL)


def _run(pipe, library, options, folder, limit, shard_records):
    os.environ |= {
        "AWS_ACCESS_KEY_ID": options["access_key_id"],
        "AWS_SECRET_ACCESS_KEY": options["secret_access_key"],
        "AWS_DEFAULT_REGION": options["region"],
        "AWS_ENDPOINT_URL": options["endpoint"],
        "S3_ENDPOINT_URL": options["endpoint"],
        "HF_HUB_OFFLINE": "1",
    }
    loader, record_of = READERS[library](
        options=options, folder=folder, cache=f"{folder}/{library}-cache", limit=limit, shard_records=shard_records
    )
    for epoch in range(2):
        begin, count, total = time.perf_counter(), 0, 0
        if library == "mmapds":
            loader.set_epoch(epoch)
        for batch in loader:
            count += len(batch)
            total += sum(xxh3_64_intdigest(record_of(sample)) for sample in batch)
        pipe.send((time.perf_counter() - begin, (count, total)))
        pipe.recv()


def _read_mmapds(*, options, folder, cache, limit, shard_records):
    given = {"roots": "s3://limited/", "cache": cache, "cache_bytes": limit, "storage_options": options}
    ds = mmapds.open(f"{folder}/limited.mmx", decode="bytes", **given)
    sampler = mmapds.ChunkedSampler(ds, shard_records, mix_chunks=MIX, seed=3)
    return mmapds.DataLoader(ds, BATCH, sampler=sampler, num_workers=1, collate_fn=list), bytes


def _read_streaming(*, cache, limit, shard_records, **_):
    ahead = MIX * shard_records  # as many shards as ours mixes, and fetches ahead
    given = {"shuffle": True, "shuffle_block_size": ahead, "predownload": ahead, "cache_limit": limit}
    _streaming().base.util.clean_stale_shared_memory()
    dataset = _streaming().StreamingDataset(remote="s3://streaming", local=cache, batch_size=BATCH, **given)
    return DataLoader(dataset, BATCH, collate_fn=list, **WORKERS), lambda sample: sample["record"]


def _read_litdata(*, options, cache, limit, **_):
    litdata = _litdata()
    given = {"shuffle": True, "max_pre_download": MIX, "max_cache_size": limit}
    stored = {"endpoint_url": options["endpoint"], "region_name": options["region"]}
    dataset = litdata.StreamingDataset("s3://litdata", cache_dir=cache, storage_options=stored, **given)
    return litdata.StreamingDataLoader(dataset, batch_size=BATCH, collate_fn=_copied, **WORKERS), bytes


def _copied(samples):
    """Copy records of LitData, which are memoryviews, for the queue of a worker."""
    return list(map(bytes, samples))


READERS = {"mmapds": _read_mmapds, "streaming": _read_streaming, "litdata": _read_litdata}
