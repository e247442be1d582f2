"""What is converted, and what it becomes."""

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mmapds


def save(table, path, way="parquet", rows=700):
    """Write a table in some batches."""
    if way == "parquet":
        pq.write_table(table, path, row_group_size=rows)
        return str(path)
    new = pa.ipc.new_file if way == "arrow" else pa.ipc.new_stream
    with pa.OSFile(str(path), "wb") as file, new(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=rows)
    return str(path)


def samples(path):
    """All samples of an array file, arrays as lists."""
    return [
        {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()}
        for sample in mmapds.open(path)
    ]


def utterances(path, count=200):
    """Write an HDF5 file of groups, one for each utterance; return their features: 0 to 8 rows of 4 numbers."""
    rng = np.random.default_rng(0)
    feats = [rng.random((int(n), 4)).astype(np.float32) for n in rng.integers(0, 9, count)]
    with h5py.File(path, "w") as file:
        for i in range(count):
            group = file.create_group(f"speaker{i % 3}/{i:04}")
            group["feats"], group["id"], group["text"] = feats[i], i, f"grüße {i}"
            group.attrs["dialect"], group.attrs["gain"] = "north" if i % 2 else "south", np.float32(i / 2)
    return feats
