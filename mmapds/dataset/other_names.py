"""Names that datasets of other libraries have: asking for one says what it is here."""

from typing import Any, NoReturn

_REMEDIES = {
    "add_column": "run: python -m mmapds.index SOURCE --column NAME=EXPRESSION (or call mmapds.add_column)",
    "add_item": "use mmapds.concat([a, b]) for datasets of files",
    "apply": "use ds.map(function)",
    "as_numpy_iterator": "iterate over the dataset",
    "batch": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "batched": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "cache": "open it as it is: the system keeps what it reads in memory",
    "cast": "use ds.map(function), which calls it when a sample is read",
    "cast_column": "use ds.map(function), which calls it when a sample is read",
    "class_encode_column": "use ds.map(function), which calls it when a sample is read",
    "column_names": "use ds.columns for columns of numbers, or ds[0].keys() for fields of samples",
    "compose": "use ds.map(function), once for each step",
    "concatenate": "use mmapds.concat([a, b]), or a + b",
    "data": "use ds.take(positions) for samples, or ds.raw(i) for the bytes of a record",
    "decode": "open it with mmapds.open(path, decode='pil') or another decoder",
    "enumerate": "use enumerate(ds)",
    "features": "use ds[0].keys() for fields of samples",
    "filter": "use a view, ds[mask], as ds[ds.column('length') <= 2048]",
    "flatten": "use ds.map(function), which calls it when a sample is read",
    "flatten_indices": "use ds.save(path) for a view, which keeps it",
    "head": "use ds[:5]",
    "iloc": "use ds[i] for a sample, or ds[a:b] for a view",
    "interleave": "use mmapds.MixtureSampler([a, b], weights=[1, 1]) over a + b",
    "iter": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "loc": "use ds[i] for a sample, or ds.find(key) for its position",
    "map_dict": "use ds.map(function), which is given the whole sample",
    "map_tuple": "use ds.map(function), which is given the whole sample",
    "mix": "use mmapds.MixtureSampler([a, b], weights=[1, 1]) over a + b",
    "num_rows": "use len(ds)",
    "num_samples": "use len(ds)",
    "padded_batch": "use mmapds.DataLoader(ds, batch_size=32, collate_fn=mmapds.pad_collate)",
    "prefetch": "use mmapds.DataLoader(ds, num_workers=2, prefetch=8)",
    "push_to_hub": "copy the files ds.sources, and ds.indexes beside them",
    "random_split": "use ds.split([0.9, 0.1], seed=0)",
    "remove_columns": "use ds.map(function), which calls it when a sample is read",
    "rename": "use ds.map(function), which calls it when a sample is read",
    "rename_column": "use ds.map(function), which calls it when a sample is read",
    "rename_columns": "use ds.map(function), which calls it when a sample is read",
    "repeat": "use mmapds.concat([ds] * 3), or more epochs of a sampler",
    "reset_format": "open it with mmapds.open(path) for samples as they are stored",
    "sample": "use ds[numpy.random.default_rng(0).choice(len(ds), 5)]",
    "save_to_disk": "use ds.save(path) for a view; a whole dataset stays in its files, ds.sources and ds.indexes",
    "select": "use a view, ds[indices]",
    "select_columns": "use ds.map(function), which calls it when a sample is read",
    "set_format": "open it with mmapds.open(path, decode='torch') for arrays, or collate with mmapds.pad_collate",
    "set_transform": "use ds.map(function), which calls it when a sample is read",
    "shape": "use len(ds)",
    "shard": "use a view, ds[index::num_shards]",
    "shuffle": "use a sampler, mmapds.DistributedSampler(ds, seed=0), or a shuffled view, ds.split([1.0], seed=0)[0]",
    "size": "use len(ds)",
    "skip": "use a view, ds[n:]",
    "slice": "use a view, ds[a:b]",
    "sort": "use a view, ds[ds.column('length').argsort(kind='stable')]",
    "tail": "use ds[-5:]",
    "to_csv": "use pandas.DataFrame(list(ds)).to_csv(path)",
    "to_dict": "use list(ds)",
    "to_iter_dataset": "use ds.stream()",
    "to_iterable_dataset": "use ds.stream()",
    "to_json": "use pandas.DataFrame(list(ds)).to_json(path)",
    "to_list": "use list(ds)",
    "to_pandas": "use pandas.DataFrame(list(ds))",
    "to_parquet": "use pandas.DataFrame(list(ds)).to_parquet(path)",
    "to_tuple": "use ds.map(function), as one that returns sample['jpg'], sample['cls']",
    "train_test_split": "use ds.split([0.9, 0.1], seed=0)",
    "unique": "use numpy.unique(ds.column('length'))",
    "with_epoch": "use mmapds.DistributedSampler(ds, order=mmapds.orders.Resampled(len(ds), epoch_size))",
    "with_format": "open it with mmapds.open(path, decode='torch') for arrays, or collate with mmapds.pad_collate",
    "with_length": "use mmapds.DistributedSampler(ds, epoch_size=...)",
    "with_transform": "use ds.map(function), which calls it when a sample is read",
}


class OtherName:
    """An attribute that does not exist, as `hasattr` knows, whose error says what to use.

    A descriptor for each name, because a `__getattr__` would slow down every other attribute.
    """

    def __init__(self, name: str, remedy: str) -> None:
        self._name = name
        self._remedy = remedy

    def __get__(self, instance: Any, owner: type) -> NoReturn:
        message = f"Dataset.{self._name}: not an attribute of mmapds datasets; {self._remedy}"
        raise AttributeError(message, name=self._name, obj=owner if instance is None else instance)


OTHER_NAMES = {name: OtherName(name, remedy) for name, remedy in _REMEDIES.items()}
