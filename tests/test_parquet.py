"""Parquet in place: values, columns, row groups as blocks, many files, and what is refused."""

import base64
import itertools
import os
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest
import torch

import mmapds
from mmapds.formats import row_groups
from mmapds.index.build import Request
from mmapds.index.each import build_each
from mmapds.storage.index_file import Index
from tests.support.index_file import verify
from tests.support.messages import check
from tests.test_convert_tables import EVERY, SHAPES, N

WITH_NULLS = {
    "n": pa.array([None if i % 5 == 0 else i for i in range(N)]),
    "text": pa.array([None if i % 7 == 0 else f"t{i}" for i in range(N)]),
    "nothing": pa.nulls(N),
}
OTHERS = {  # type: how samples have the values of Arrow
    "when": (pa.array(range(N), pa.timestamp("ms")), int),
    "day": (pa.array(range(N), pa.date32()), int),
    "price": (pa.array([Decimal(i) / 4 for i in range(N)], pa.decimal128(9, 2)), lambda i: f"{i / 4:.2f}"),
    "odd": (pa.array([[[i], [i] * 2] for i in range(N)]), lambda i: [[i], [i, i]]),
    "pairs": (pa.array([[("a", i)] for i in range(N)], pa.map_(pa.string(), pa.int64())), lambda i: [["a", i]]),
    "part": (
        pa.array([{"w": i, "h": None} for i in range(N)], pa.struct([("w", pa.int32()), ("h", pa.string())])),
        None,
    ),
}


def rows(count, first=0):
    """Rows whose texts and lists tell where they come from."""
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "text": [f"é{i}" * (i % 4) for i in range(first, first + count)],
            "tokens": [list(range(i % 9)) for i in range(first, first + count)],
        }
    )


@pytest.fixture
def path(tmp_path):
    pq.write_table(rows(1000), tmp_path / "a.parquet", row_group_size=130)
    return tmp_path / "a.parquet"


def test_values_of_every_type_are_those_of_pyarrow(tmp_path):
    table = pa.table({**EVERY, **{name: array for name, (array, _) in OTHERS.items()}})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=77)
    mmapds.build(tmp_path / "a.parquet", as_json=["odd"])
    ds, wanted = mmapds.open(tmp_path / "a.parquet"), table.select(list(EVERY)).to_pylist()
    for order in (np.arange(N), np.random.default_rng(0).permutation(N)):
        for found, i in zip(ds.take(order), order.tolist(), strict=True):
            for name, value in wanted[i].items():
                got = found[name]
                if isinstance(value, list) and name != "tags":
                    shape = SHAPES.get(name, lambda value: (len(value),))(value)
                    assert got.shape == shape
                    assert got.tolist() == value
                else:
                    assert got == value or (got != got and value != value), name
            for name, (_, make) in OTHERS.items():
                if make is not None:
                    assert found[name] == make(i), name
            assert (found["part.w"], found["part.h"]) == (i, None)
    verify(Index(str(tmp_path / "a.parquet.mmx")))


def test_public_files_have_the_values_of_pyarrow(tmp_path):
    """Those that pyarrow is tested with; times are counts of their unit."""
    files = sorted((Path(pa.__file__).parent / "tests" / "data" / "parquet").glob("*.parquet"))
    assert files
    for file in files:
        table = pq.read_table(shutil.copy(file, tmp_path))
        times = [field.name for field in table.schema if pa.types.is_timestamp(field.type)]
        for name in times:
            place = table.schema.get_field_index(name)
            table = table.set_column(place, name, table[name].cast(pa.int64()))
        assert list(mmapds.open(tmp_path / file.name, build=True)) == table.to_pylist()


def test_a_column_with_nulls_has_values_as_in_json(tmp_path):
    table = pa.table(WITH_NULLS)
    for groups in (N, 60):
        pq.write_table(table, tmp_path / "a.parquet", row_group_size=groups)
        assert list(mmapds.open(tmp_path / "a.parquet", build=True)) == table.to_pylist()
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)
    with pytest.raises(mmapds.FormatError, match="field 'n': expected int64, found a null; give as_json='n'") as error:
        mmapds.build(tmp_path / "a.parquet")
    check(str(error.value))
    mmapds.build(tmp_path / "a.parquet", as_json="n,text")
    assert list(mmapds.open(tmp_path / "a.parquet")) == table.to_pylist()


def test_chosen_fields_alone_are_read(path, index):
    mmapds.build(path, select="tokens,id")
    assert [*mmapds.open(path)[7]] == ["tokens", "id"]
    assert index(path, "--select", "text", "--force").returncode == 0
    assert mmapds.open(path)[7] == {"text": "é7" * 3}
    for select, message in (("x", "select = 'x', expected fields among 'id', 'text', 'tokens'"), ("", "select = ''")):
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build(path, select=select, force=True)


@pytest.mark.parametrize(
    ("expression", "measure"),
    [
        ("items(tokens)", lambda row: len(row["tokens"])),
        ("id", lambda row: row["id"]),
        ("chars(text)", lambda row: len(row["text"])),
        ("bytes(text)", lambda row: len(row["text"].encode())),
    ],
)
def test_lengths_are_measured_while_indexing(path, expression, measure):
    mmapds.build(path, length=expression, missing=0)
    assert mmapds.open(path).lengths.tolist() == [measure(row) for row in rows(1000).to_pylist()]


def test_a_column_that_no_field_has_is_refused(path):
    known = r"bytes\(\), id, bytes\(text\), chars\(text\), items\(tokens\)"
    with pytest.raises(mmapds.ColumnError, match=f"column 'length': expected one of {known}, found 'tokens'$"):
        mmapds.build(path, length="tokens")
    with pytest.raises(mmapds.ColumnError, match=r"found 'id', which has nulls or .*; compute it by mmapds.add_column"):
        mmapds.build(path, length="id", as_json="id")
    with pytest.raises(mmapds.FormatError, match="as_json = 'x', expected fields among 'id', 'text', 'tokens'"):
        mmapds.build(path, as_json="x")


@pytest.mark.parametrize("cache", [0, 1 << 20, 64 << 20])
def test_row_groups_are_blocks(tmp_path, cache, monkeypatch):
    """Small ones, and one larger than what is decoded at once, which is read in pieces."""
    monkeypatch.setattr(row_groups, "_ROWS", 64)
    wide = rows(3000).append_column("raw", pa.array([bytes([i % 256]) * 5000 for i in range(3000)]))
    pq.write_table(wide, tmp_path / "a.parquet", row_group_size=2500)
    with pytest.warns(UserWarning, match="a block of over 8 MiB .*; to shuffle, write smaller row groups, or run: "):
        mmapds.build(tmp_path / "a.parquet")
    ds = mmapds.open(tmp_path / "a.parquet", block_cache=cache)
    assert len(ds.block_starts) == 3
    for i, sample in enumerate(ds):
        assert (sample["id"], sample["raw"]) == (i, bytes([i % 256]) * 5000)
    order = np.random.default_rng(0).permutation(3000)[:40]
    if cache < 13 << 20:
        with pytest.raises(mmapds.Error, match=r"expected records in the order of the file, .*; give block_cache="):
            _ = [ds[i] for i in order.tolist()]
    else:
        assert [sample["id"] for sample in ds.take(order)] == order.tolist()
    chunks = mmapds.ChunkedSampler(ds[2500:], "block", num_replicas=1, rank=0)
    assert sorted(chunks) == list(range(500))


def test_an_epoch_over_many_files_with_kills(tmp_path):
    for number in range(20):
        pq.write_table(rows(50 + number, 1000 * number), tmp_path / f"{number:02}.parquet", row_group_size=16)
    ds = mmapds.open(mmapds.build(tmp_path, out=tmp_path / "all.mmx", length="items(tokens)"))
    kept = [i for i, length in enumerate(ds.lengths.tolist()) if length]
    want = {"max_tokens": 60, "num_replicas": 2, "min_length": 1, "seed": 3}
    seen: list[int] = []
    state, steps = None, len(mmapds.TokenBudgetBatchSampler(ds, rank=0, **want))
    for begin, end in itertools.pairwise([0, steps // 3, steps // 2, steps]):
        states = []
        for rank in range(2):  # each with nothing of the job before but its state
            sampler = mmapds.TokenBudgetBatchSampler(mmapds.open(tmp_path / "all.mmx"), rank=rank, **want)
            loader = mmapds.DataLoader(sampler.sampled, batch_sampler=sampler, num_workers=2, collate_fn=list)
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            for _ in range(end - begin):
                seen += [sample["id"] for sample in next(batches)]
            states.append(loader.state_dict())
        assert states[0] == states[1]
        state = states[0]
    assert Counter(seen) == Counter(int(ds[i]["id"]) for i in kept)


def test_batches_become_tensors_and_views_combine(path):
    mmapds.build(path, length="items(tokens)")
    ds = mmapds.open(path)
    for workers in ("threads", "processes"):
        loader = mmapds.DataLoader(ds, 16, num_workers=2, workers=workers, collate_fn=mmapds.pad_collate)
        batches = list(loader)
        assert torch.cat([batch["id"] for batch in batches]).tolist() == list(range(1000))
        assert batches[1]["tokens"].shape == (16, 8)
    windows = ds.windows(4, fields="tokens")
    assert [len(each["tokens"]) for each in windows.take(range(50))] == windows.lengths[:50].tolist()
    both = mmapds.concat([ds[:10].repeat(2), ds[ds.lengths == 3]])
    assert [sample["id"] for sample in both][:4] == [0, 0, 1, 1]
    assert ds.map(len)[0] == 3
    assert [*mmapds.open(path, decode="torch")[8]["tokens"].shape] == [8]


def test_files_of_two_schemas_are_told_apart(tmp_path):
    pq.write_table(rows(3), tmp_path / "a.parquet")
    others = {
        "type": (
            pa.table({"id": ["x"], "text": ["y"], "tokens": [[1]]}),
            "field 'id': expected int64, as in .*a.parquet, found str",
        ),
        "less": (
            pa.table({"id": [1], "text": ["y"]}),
            "b.parquet: expected a field 'tokens', as in .*a.parquet",
        ),
        "more": (
            rows(2).append_column("z", pa.array([1, 2])),
            "a.parquet: expected a field 'z', as in .*b.parquet",
        ),
    }
    for name, (table, message) in others.items():
        pq.write_table(table, tmp_path / "b.parquet")
        both = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
        chosen = mmapds.open(mmapds.build(both, out=tmp_path / f"{name}-text.mmx", select="text"))
        assert [sample["text"] for sample in chosen] == rows(3)["text"].to_pylist() + table["text"].to_pylist()
        with pytest.raises(mmapds.FormatError, match=message):
            mmapds.build([tmp_path / "a.parquet", tmp_path / "b.parquet"], out=tmp_path / f"{name}.mmx")


def test_files_without_rows_and_with_many_row_groups(tmp_path):
    pq.write_table(rows(0), tmp_path / "a.parquet")
    pq.write_table(rows(2000), tmp_path / "b.parquet", row_group_size=1)
    pq.write_table(rows(5, 2000), tmp_path / "c.parquet")
    ds = mmapds.open(mmapds.build(sorted(tmp_path.glob("*.parquet")), out=tmp_path / "all.mmx"))
    assert [sample["id"] for sample in ds] == list(range(2005))
    assert ds[1999]["tokens"].tolist() == list(range(1999 % 9))


def test_workers_index_files_and_a_new_file_is_added(tmp_path):
    for number in range(4):
        pq.write_table(rows(50, 50 * number), tmp_path / f"{number}.parquet", row_group_size=20)
    with ThreadPoolExecutor(2) as pool:
        for count in (4, 5):
            index = mmapds.build(
                tmp_path, out=tmp_path / "all.mmx", executor=pool, parts=tmp_path / "parts", length="items(tokens)"
            )
            assert [sample["id"] for sample in mmapds.open(index)] == list(range(50 * count))
            pq.write_table(rows(50, 50 * count), tmp_path / f"{count}.parquet")
    (done,) = build_each(sorted(map(str, tmp_path.glob("*.parquet"))), Request(), str(tmp_path / "all.mmx"))
    assert "kept 5 sources" in done.reused
    assert len(mmapds.open(tmp_path / "all.mmx")) == 300


def test_a_file_that_is_replaced_while_it_is_read(path, tmp_path):
    ds = mmapds.open(mmapds.build(path), block_cache=0)
    assert ds[0]["id"] == 0
    pq.write_table(rows(1000, 5000), tmp_path / "b.parquet", row_group_size=130)
    os.replace(tmp_path / "b.parquet", path)
    assert ds[999]["id"] == 999  # the file that was opened
    with pytest.raises(mmapds.StaleIndexError):
        mmapds.open(path)


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_file_that_is_cut_short_while_it_is_read(path, io):
    ds = mmapds.open(mmapds.build(path), block_cache=0, io=io)
    assert ds[0]["id"] == 0
    os.truncate(path, 4096)
    with pytest.raises(mmapds.StaleIndexError, match=r"a.parquet was \d+ bytes when indexed and is 4096 now"):
        _ = ds[999]


def test_many_files_keep_few_footers(tmp_path):
    for number in range(40):
        pq.write_table(rows(3, 3 * number), tmp_path / f"{number:02}.parquet")
    ds = mmapds.open(mmapds.build(tmp_path, out=tmp_path / "all.mmx"))
    for order in (range(120), range(119, -1, -1)):
        assert [ds[i]["id"] for i in order] == [*order]
    assert len(row_groups._parsed) <= 16


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[: len(data) // 2], "not a readable Parquet file: "),
        (lambda _: b"PAR1" + bytes(20), "not a readable Parquet file: "),
        (lambda data: data[:8] + bytes(600) + data[608:], "a.parquet: "),
    ],
)
def test_damage_is_named(path, damage, message):
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(mmapds.FormatError, match=message) as error:
        list(mmapds.open(path, build=True))
    assert str(path) in str(error.value)


def test_a_row_group_that_is_damaged_after_indexing_is_named(path):
    mmapds.build(path)
    data = path.read_bytes()
    before = os.stat(path)
    path.write_bytes(data[:8] + bytes(300) + data[308:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    ds = mmapds.open(path, check="none")
    with pytest.raises(
        mmapds.FormatError, match=r"a.parquet: block 0 \(byte .*\): not parquet: .*; copy the file again"
    ):
        _ = ds[0]
    assert ds[999]["id"] == 999


def test_parquet_is_refused_as_another_format_and_others_as_parquet(path, write):
    with pytest.raises(mmapds.FormatError, match="expected a file of format 'jsonl', found parquet"):
        mmapds.build(path, format="jsonl")
    with pytest.raises(mmapds.FormatError, match="expected a file of format 'parquet', found another"):
        mmapds.build(write([1]), format="parquet")
    shutil.copy(path, path.with_suffix(".bin"))
    assert len(mmapds.open(path.with_suffix(".bin"), build=True)) == 1000


class Kms(encryption.KmsClient):
    """Wraps keys in nothing."""

    def __init__(self, _):
        encryption.KmsClient.__init__(self)

    def wrap_key(self, key, _):
        return base64.b64encode(key)

    def unwrap_key(self, key, _):
        return base64.b64decode(key)


def test_an_encrypted_file_is_named(tmp_path):
    factory, connection = encryption.CryptoFactory(Kms), encryption.KmsConnectionConfig()
    chosen = encryption.EncryptionConfiguration(footer_key="f", column_keys={"c": ["text"]})
    properties = factory.file_encryption_properties(connection, chosen)
    with pq.ParquetWriter(tmp_path / "a.parquet", rows(3).schema, encryption_properties=properties) as writer:
        writer.write_table(rows(3))
    with pytest.raises(mmapds.FormatError, match=r"a.parquet: .*(encrypted|decrypt)"):
        mmapds.build(tmp_path / "a.parquet", format="parquet")
