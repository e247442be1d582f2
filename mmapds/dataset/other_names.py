"""Names that datasets of other libraries have: asking for one says what it is here."""

from typing import Any, NoReturn

_REMEDIES = {
    "add_column": "run: python -m mmapds.index SOURCE --column NAME=EXPRESSION (or call mmapds.add_column)",
    "batch": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "batched": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "cast": "use ds.map(function), which calls it when a sample is read",
    "cast_column": "use ds.map(function), which calls it when a sample is read",
    "column_names": "use ds.columns for columns of numbers, or ds[0].keys() for fields of samples",
    "decode": "open it with mmapds.open(path, decode='pil') or another decoder",
    "features": "use ds[0].keys() for fields of samples",
    "filter": "use a view, ds[mask], as ds[ds.column('length') <= 2048]",
    "iter": "use mmapds.DataLoader(ds, batch_size=32), or ds.take(positions)",
    "map_dict": "use ds.map(function), which is given the whole sample",
    "num_rows": "use len(ds)",
    "push_to_hub": "copy the files ds.sources, and ds.indexes beside them",
    "remove_columns": "use ds.map(function), which calls it when a sample is read",
    "rename_column": "use ds.map(function), which calls it when a sample is read",
    "rename_columns": "use ds.map(function), which calls it when a sample is read",
    "repeat": "use mmapds.concat([ds] * 3), or more epochs of a sampler",
    "save_to_disk": "use ds.save(path) for a view; a whole dataset stays in its files, ds.sources and ds.indexes",
    "select": "use a view, ds[indices]",
    "select_columns": "use ds.map(function), which calls it when a sample is read",
    "set_format": "open it with mmapds.open(path, decode='torch') for arrays, or collate with mmapds.pad_collate",
    "set_transform": "use ds.map(function), which calls it when a sample is read",
    "shape": "use len(ds)",
    "shard": "use a view, ds[index::num_shards]",
    "shuffle": "use a sampler, mmapds.DistributedSampler(ds, seed=0), or a shuffled view, ds.split([1.0], seed=0)[0]",
    "skip": "use a view, ds[n:]",
    "sort": "use a view, ds[ds.column('length').argsort(kind='stable')]",
    "to_csv": "use pandas.DataFrame(list(ds)).to_csv(path)",
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
