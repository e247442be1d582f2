"""Arguments by the names that other libraries have for them: an error for one names what it is here."""

from collections.abc import Collection

_NAMES = {
    "batch_size": "batch bs batch_sz device_batch_size global_batch_size micro_batch_size per_device_train_batch_size",
    "num_workers workers": "max_workers n_jobs n_workers num_proc num_processes num_threads num_workers threads",
    "collate_fn": "collate collator data_collator",
    "packs_per_batch": "batch_size",
    "dataset datasets dataset_or_lengths": "data_source dataset dataset_or_lengths",
    "prefetch": "num_prefetch predownload prefetch_batches prefetch_buffer_size prefetch_size",
    "drop_last": "drop_last_batch drop_remainder drop_uneven",
    "num_replicas": "data_parallel_size dp_world_size num_ranks num_shards shard_count world_size",
    "rank": "data_parallel_rank dp_rank process_index shard_id shard_index",
    "seed": "generator random_seed random_state rng shuffle_seed",
    "chunk_size": "shard_size shuffle_block_size",
    "mix_chunks": "buffer_size shuffle_buffer shuffle_buffer_size shuffle_size",
    "epoch_size": "num_samples samples_per_epoch",
    "weights": "probabilities probs proportions sampling_weights",
    "stop": "stopping_strategy",
    "max_tokens pack_length": "batch_tokens max_batch_tokens max_duration max_num_tokens token_budget tokens_per_batch",
    "pack_length": "max_tokens",
    "max_batch_size": "max_cuts max_samples max_sentences max_sequences",
    "pack_length max_length pad_to": "block_size context_length max_seq_len max_seq_length model_max_length seq_len "
    "seq_length sequence_length",
    "pad_value": "fill_value label_pad_token_id pad_token_id padding_value",
    "truncate": "padding_side truncation truncation_side",
    "mask": "attention_mask return_attention_mask return_mask",
    "lengths": "return_length return_lengths",
    "source_or_index sources source": "data_files filenames files local path paths remote shards source sources "
    "source_or_index urls",
    "out": "dest dst output output_path",
    "fields": "column_names columns include_columns select_columns usecols",
    "schema fields": "features",
    "types schema": "dtype dtypes",
    "defaults": "default_values fill_null fillna",
    "function": "f fn func map_fn transform",
    "fractions dataset_or_lengths": "lengths",
    "fractions": "ratios sizes test_size train_size",
    "on_error bad": "errors handler ignore_errors on_bad_lines",
    "force": "exist_ok overwrite",
    "level": "compression_level",
}
"""What torch, `datasets`, WebDataset, Streaming, NeMo and pandas call an argument, by its own name; where there are
several own names, the first that a function has counts."""
OWN = {other: own.split() for own, others in _NAMES.items() for other in others.split()}

_ARGUMENTS = {  # start-up time: to ask the functions, torch has to be imported
    "mmapds.DataLoader": "dataset batch_size shuffle sampler batch_sampler num_workers collate_fn pin_memory drop_last "
    "timeout worker_init_fn multiprocessing_context generator prefetch_factor persistent_workers in_order workers "
    "prefetch stall_after",
    "mmapds.DistributedSampler": "dataset num_replicas rank shuffle seed drop_last order epoch_size start_step exclude "
    "pad",
    "mmapds.DistributedBatchSampler": "dataset batch_size num_replicas rank shuffle seed drop_last order epoch_size "
    "start_step exclude pad sampler",
    "mmapds.ChunkedSampler": "dataset chunk_size num_replicas rank shuffle seed drop_last mix_chunks cross_sources "
    "epoch_size start_step exclude",
    "mmapds.MixtureSampler": "datasets weights num_replicas rank shuffle seed drop_last stop epoch_size start_step "
    "exclude",
    "mmapds.TokenBudgetBatchSampler": "dataset_or_lengths max_tokens target_lengths max_batch_size batch_size_multiple "
    "cost quadratic_length round_to min_length max_length oversize planner sort_window group_size num_replicas rank "
    "shuffle seed drop_last start_step order exclude order_cache sampler",
    "mmapds.PackingBatchSampler": "dataset_or_lengths pack_length max_sequences round_to min_length max_length "
    "oversize packs_per_batch planner group_size num_replicas rank shuffle seed drop_last start_step order exclude "
    "order_cache sampler",
    "mmapds.pad_collate": "samples pad_value pad_to_multiple_of max_length truncate lengths mask lists",
    "mmapds.pack_collate": "samples layout pad_to packs max_sequences round_to max_length truncate pad_value labels "
    "lists flash_attn_kwargs seq_idx",
    "mmapds.open": "source_or_index decode access check io block_cache on_error build roots",
    "mmapds.build": "sources out format length columns missing validate bad hash workers force roots executor parts",
}
OWNERS: dict[str, list[str]] = {}
"""The functions that have an argument, by its name, of those whose arguments are taken for those of others."""
for _function, _arguments in _ARGUMENTS.items():
    for _name in _arguments.split():
        OWNERS.setdefault(_name, []).append(_function)

_MOST_OWNERS = 3  # that a message names

_SINGLE = "it yields single samples: give batch_size to mmapds.DataLoader, or "
_SAMPLERS = "it belongs to a sampler, as in mmapds.DistributedSampler(ds, {}=...)"
_BUFFER = "an order is shuffled as a whole, and needs no buffer: give shuffle=True"
REMEDIES = {
    "mmapds.open": {
        "batch_size": "it belongs to mmapds.DataLoader",
        "cache_dir": "nothing is copied: records are read where they lie",
        "collate_fn": "it belongs to mmapds.DataLoader",
        "columns": "'columns' is an argument of mmapds.build; for some fields of records give "
        "decode=mmapds.Fields(schema)",
        "num_proc": "mmapds.build takes workers=, and mmapds.DataLoader num_workers=",
        "num_replicas": _SAMPLERS.format("num_replicas"),
        "num_workers": "mmapds.build takes workers=, and mmapds.DataLoader num_workers=",
        "predownload": "nothing is downloaded: records are read where they lie",
        "rank": _SAMPLERS.format("rank"),
        "seed": _SAMPLERS.format("seed"),
        "shardshuffle": "it belongs to mmapds.DataLoader or a sampler, as shuffle=True, which needs no buffer",
        "shuffle": "it belongs to mmapds.DataLoader or a sampler",
        "shuffle_buffer": "it belongs to mmapds.DataLoader or a sampler, as shuffle=True, which needs no buffer",
        "split": "give the files of that split, or cut a dataset into views with ds.split([0.9, 0.1])",
        "streaming": "records are read where they lie, when they are asked for; ds.stream() is an IterableDataset",
        "transform": "use ds.map(function)",
        "transforms": "use ds.map(function)",
    },
    "mmapds.ChunkedSampler": {
        "batch_size": f"{_SINGLE}order=mmapds.orders.Chunked(...) to mmapds.DistributedBatchSampler",
    },
    "mmapds.DistributedSampler": {"batch_size": f"{_SINGLE}to mmapds.DistributedBatchSampler"},
    "mmapds.MixtureSampler": {
        "batch_size": f"{_SINGLE}order=mmapds.orders.Mixture(...) to mmapds.DistributedBatchSampler",
    },
    "mmapds.TokenBudgetBatchSampler": {
        "batch_size": "'max_tokens' limits a batch, and 'max_batch_size' how many samples it has",
        "pack_length": "'max_tokens' is the size of a batch; 'pack_length' is an argument of "
        "mmapds.PackingBatchSampler",
    },
    "mmapds.DataLoader": {
        "buffer_size": _BUFFER,
        "max_tokens": "give batch_sampler=mmapds.TokenBudgetBatchSampler(ds, max_tokens=...)",
        "num_replicas": _SAMPLERS.format("num_replicas"),
        "pad_value": "give collate_fn=functools.partial(mmapds.pad_collate, pad_value=...)",
        "rank": _SAMPLERS.format("rank"),
        "seed": _SAMPLERS.format("seed"),
        "shuffle_buffer": _BUFFER,
        "shuffle_buffer_size": _BUFFER,
    },
    "Dataset.map": {
        "batch_size": "a batch is what mmapds.DataLoader, or ds.take, asks for",
        "num_proc": "it is called by the workers of mmapds.DataLoader, when a sample is read",
        "num_workers": "it is called by the workers of mmapds.DataLoader, when a sample is read",
        "remove_columns": "a sample is what the function returns: leave fields out there",
    },
}
"""What to do about arguments that have no other name in a function, by the name of the function."""


def remark_on(function: str, name: str, known: Collection[str]) -> str:
    """Return what an argument that a function does not have is called there, or is for; "" if nobody knows it.

    Args:
      known: the arguments that it has.
    """
    meanings = (name, *OWN.get(name, ()))
    if own := next((each for each in meanings if each in known), None):
        return f"did you mean {own!r}"
    remedies = REMEDIES.get(function, {})
    if remedy := next((remedies[each] for each in meanings if each in remedies), ""):
        return remedy
    if owned := next((each for each in meanings if each in OWNERS), None):
        owners = OWNERS[owned]
        others = " and others" if len(owners) > _MOST_OWNERS else ""
        return f"{owned!r} is an argument of {', '.join(owners[:_MOST_OWNERS])}{others}"
    return ""
