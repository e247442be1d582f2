"""docs/long-records.md: windows of records, blocks of tokens over records, records around others."""

import json
import os
import pickle
import re
from collections import Counter

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mmapds
from mmapds import DataLoader, DistributedBatchSampler, Error, PackingBatchSampler, TokenBudgetBatchSampler, Writer
from mmapds._native import json_cut
from tests.support.messages import check
from tests.support.samples import write_documents, write_pair
from tests.support.sanitizers import raises_sigbus

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


def tokens_of(sizes):
    """Tokens of each record; every one has a number of its own."""
    ends = np.cumsum(sizes)
    return [list(range(int(end - size), int(end))) for end, size in zip(ends, sizes, strict=True)]


def cut(tokens, length, stride, short):
    found, begin = [], 0
    while begin < len(tokens):
        part = tokens[begin : begin + length]
        if short != "drop" or len(part) == length:
            found.append(part + [0] * (length - len(part)) * (short == "pad"))
        if begin + length >= len(tokens):
            break
        begin += stride
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Datasets of the same tokens, in each format that has a sequence a record, and the field of the tokens."""

    def made(sizes):
        folder, records = tmp_path_factory.mktemp("parts"), tokens_of(sizes)
        lines = [{"id": i, "tokens": each} for i, each in enumerate(records)]
        (folder / "a.jsonl").write_text("".join(f"{line}\n".replace("'", '"') for line in lines))
        mmapds.build(folder / "a.jsonl", length="items(tokens)")
        with Writer(folder / "a.mma", {"id": "int64", "tokens": ("uint16", (None,))}, length="tokens") as writer:
            for line in lines:
                writer.write({"id": line["id"], "tokens": np.array(line["tokens"], np.uint16)})
        write_pair(folder / "a", records)
        mmapds.build(folder / "a.bin")
        mmapds.add_column(folder / "a.bin", "length", np.array(sizes, np.uint32))
        write_documents(folder / "a.ds", records)
        mmapds.build(folder / "a.ds", length="items()")
        rows = {"id": range(len(records)), "tokens": pa.array(records, pa.list_(pa.int64()))}
        pq.write_table(pa.table(rows), folder / "a.parquet", row_group_size=5)
        mmapds.build(folder / "a.parquet", length="items(tokens)")
        return {
            "json": (mmapds.open(folder / "a.jsonl"), "tokens"),
            "fields": (mmapds.open(folder / "a.jsonl", decode=mmapds.Fields({"tokens": "int64"})), "tokens"),
            "mma": (mmapds.open(folder / "a.mma"), "tokens"),
            "torch": (mmapds.open(folder / "a.mma", decode="torch"), "tokens"),
            "megatron": (mmapds.open(folder / "a.bin"), None),
            "datatrove": (mmapds.open(folder / "a.ds"), None),
            "parquet": (mmapds.open(folder / "a.parquet"), "tokens"),
        }

    return made


def listed(value):
    return value.tolist() if hasattr(value, "tolist") else list(value)


@given(SIZES, st.integers(1, 15), st.integers(1, 20), st.sampled_from(["keep", "drop", "pad"]))
def test_windows_are_slices_of_records_in_every_format(made, sizes, length, stride, short):
    records = tokens_of(sizes)
    expected = [(r, part) for r, tokens in enumerate(records) for part in cut(tokens, length, stride, short)]
    for kind, (ds, field) in made(sizes).items():
        windows = ds.windows(length, stride, short=short, fields=field or ())
        assert len(windows) == len(expected), kind
        found = [each if field is None else each[field] for each in windows.take(range(len(windows)))]
        assert [*map(listed, found)] == [part for _, part in expected], kind
        assert windows.lengths.tolist() == [len(part) for _, part in expected]
        if field and kind != "fields":
            assert [int(windows[place]["id"]) for place in range(len(windows))] == [r for r, _ in expected]
        view = pickle.loads(pickle.dumps(windows[::-2]))
        assert [listed(each if field is None else each[field]) for each in view] == [p for _, p in expected[::-2]]
        assert view.lengths.tolist() == [len(part) for _, part in expected[::-2]]
        for place, (r, _) in enumerate(expected[:3]):
            assert windows.raw(place) == ds.raw(r)


@given(SIZES, st.integers(1, 30), st.integers(0, 3))
def test_blocks_are_runs_of_all_tokens_in_every_format(made, sizes, size, shift):
    whole = np.concatenate([np.array(each, np.int64) for each in tokens_of(sizes)])
    starts = set(np.cumsum(sizes).tolist())
    count = max(len(whole) - shift, 0) // size
    for kind, (ds, field) in made(sizes).items():
        if not count:
            with pytest.raises(Error, match=f"size = {size}, expected up to "):
                ds.blocks(size, field=field, shift=shift)
            continue
        blocks = ds.blocks(size, field=field, shift=shift, position_ids=True)
        assert len(blocks) == count, kind
        for number, block in enumerate(blocks.take(range(count))):
            begin = number * size
            assert listed(block["tokens"]) == whole[begin : begin + size].tolist()
            assert "labels" not in block or listed(block["labels"]) == whole[begin + shift :][:size].tolist()
            place, expected = 0, []
            for at in range(begin, begin + size):
                place = 0 if at in starts or at == begin else place + 1
                expected.append(place)
            assert listed(block["position_ids"]) == expected
        view = pickle.loads(pickle.dumps(blocks[::-2]))
        assert [listed(each["tokens"]) for each in view] == [listed(blocks[k]["tokens"]) for k in range(count)][::-2]
        assert set(blocks.lengths.tolist()) == {size}
        assert list(blocks.take([])) == []


@given(SIZES, st.lists(st.integers(-3, 3), min_size=1, max_size=4), st.integers(1, 4))
def test_records_around_others_stay_in_their_group(made, sizes, offsets, group):
    (ds, _), (json, _) = (made(sizes)[kind] for kind in ("mma", "json"))
    groups = np.arange(len(sizes)) // group
    for each in (ds, json):
        around = each.around({"id": offsets}, group=groups)
        assert len(around) == len(sizes)
        for place, sample in enumerate(around.take(range(len(sizes)))):
            first, last = np.flatnonzero(groups == groups[place])[[0, -1]]
            wanted = [place + offset for offset in offsets]
            assert listed(np.array(sample["id"])) == [min(max(each, first), last) for each in wanted]
            assert sample["id_is_pad"].tolist() == [not first <= each <= last for each in wanted]
            assert listed(sample["tokens"]) == tokens_of(sizes)[place]
        view = pickle.loads(pickle.dumps(around[::-1]))
        assert [listed(np.array(s["id"])) for s in view] == [listed(np.array(s["id"])) for s in around][::-1]
        both = mmapds.concat([around, around[1:]])
        assert [listed(np.array(s["id"])) for s in both] == [
            listed(np.array(s["id"])) for s in [*around, *list(around)[1:]]
        ]


# ---- samplers --------------------------------------------------------------------------------------------------


def read_with_kills(make, read):
    """Read an epoch in worlds of 1, 2 and 3 ranks, killed twice; `read` gives the tokens of a record."""
    state, found = None, []
    for number, world in enumerate((1, 2, 3)):
        samplers = [make(num_replicas=world, rank=rank) for rank in range(world)]
        for sampler in samplers:
            if state is not None:
                sampler.load_state_dict(state)
        first, last = samplers[0].first_step, len(samplers[0])
        stop = min(first + 6 // world, last) if number < 2 else last
        for step in range(first, stop):
            for batch in samplers[0].indices_at(step):
                found += [token for record in batch.tolist() for token in read(record)]
        state = samplers[0].state_dict(step=stop)
    return found


def test_every_token_once_an_epoch_in_blocks_and_in_packs_of_windows(made):
    sizes = np.random.default_rng(0).integers(0, 120, 300).tolist()
    ds, field = made(sizes)["mma"]
    total = sum(sizes)
    windows = ds.windows(32, fields=field)
    packs = PackingBatchSampler(windows, 64, group_size=6, num_replicas=1, rank=0)
    assert packs.summary().tokens == total == sum(packs.total_at(step) for step in range(len(packs)))
    for make in (
        lambda **own: PackingBatchSampler(windows, 64, group_size=6, **own),
        lambda **own: TokenBudgetBatchSampler(windows, 128, group_size=6, **own),
    ):
        read = read_with_kills(make, lambda record: listed(windows[record][field]))
        assert Counter(read) == dict.fromkeys(range(total), 1)
    blocks = ds.blocks(16, field=field, shift=0)
    read = read_with_kills(
        lambda **own: DistributedBatchSampler(blocks, 1, pad=False, **own),
        lambda record: listed(blocks[record]["tokens"]),
    )
    assert Counter(read) == dict.fromkeys(range(total // 16 * 16), 1)


def test_parts_go_through_loaders_collate_functions_and_other_views(made):
    sizes = np.random.default_rng(1).integers(1, 90, 60).tolist()
    ds, field = made(sizes)["mma"]
    windows = ds.windows(16, fields=field)
    mixed = windows.map(lambda sample: {"n": len(sample[field])})
    assert [each["n"] for each in mixed] == windows.lengths.tolist()
    assert len(windows.repeat(2)) == 2 * len(windows)
    long = windows[windows.lengths == 16]
    assert set(long.lengths.tolist()) == {16}
    both = mmapds.concat([ds[:30].windows(16, fields=field), ds[30:].windows(16, fields=field)])
    assert [listed(each[field]) for each in both] == [listed(each[field]) for each in windows]
    side = mmapds.zip(a=windows, b=windows)
    assert listed(side[3]["a"][field]) == listed(windows[3][field])
    for workers in ({}, {"num_workers": 2}, {"num_workers": 1, "workers": "processes"}):
        loader = DataLoader(windows, 4, collate_fn=mmapds.pad_collate, **workers)
        tokens = torch.cat([batch[field].ravel() for batch in loader])
        assert (tokens.numpy() > 0).sum() == sum(sizes) - 1, "all but token 0"
        blocks = ds.blocks(16, field=field)
        batch = next(iter(DataLoader(blocks, 4, collate_fn=mmapds.pad_collate, **workers)))
        assert batch["tokens"].shape == batch["labels"].shape == (4, 16)
        assert (batch["labels"][:, :-1] == batch["tokens"][:, 1:]).all()
    assert windows.fingerprint != ds.windows(16, 8, fields=field).fingerprint != ds.fingerprint
    sampler, other = (DistributedBatchSampler(ds.windows(n, fields=field), 4, 1, 0) for n in (16, 17))
    with pytest.raises(mmapds.StateError):
        other.load_state_dict(sampler.state_dict())


def test_blocks_of_a_file_that_is_only_tokens(tmp_path):
    """The index of records of one size has no table; blocks may be longer than its records."""
    tokens = np.random.default_rng(0).integers(0, 50_000, 64 * 100).astype(np.uint16)
    (tmp_path / "tokens.bin").write_bytes(b"#" * 1024 + tokens.tobytes())
    mmapds.build(tmp_path / "tokens.bin", format="fixed", dtype="uint16", shape=64, header=1024)
    ds = mmapds.open(tmp_path / "tokens.bin")
    assert (tmp_path / "tokens.bin.mmx").stat().st_size < 4096
    for size in (17, 64, 1000):
        blocks = ds.blocks(size, column=None)
        assert len(blocks) == (len(tokens) - 1) // size
        for k in (0, len(blocks) // 2, len(blocks) - 1):
            assert (blocks[k]["tokens"] == tokens[k * size : (k + 1) * size]).all()
            assert (blocks[k]["labels"] == tokens[k * size + 1 : (k + 1) * size + 1]).all()


ITEMS = st.lists(
    st.one_of(
        st.integers(-(10**6), 10**6),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([None, True, "a,]", 'q"', "\\", [1, [2]], {"t": [3]}, [], "é"]),
    ),
    max_size=60,
)
SPACES = st.sampled_from(["", " ", "\n\t "])


@given(
    ITEMS | st.lists(st.integers(0, 99_999), max_size=200), st.integers(0, 70), st.integers(0, 70), SPACES, st.data()
)
def test_items_of_json_are_cut_without_the_others(items, begin, size, space, data):
    separators = (f"{space},{space}", f":{space}")
    others = {"a": items, "\\u": {"t": 1}, "b": "x"}
    key = data.draw(st.sampled_from(["t", "tö", 'a"b', ""]))
    sample = {**others, key: items, "z": [1]} if data.draw(st.booleans()) else {key: items, **others}
    ascii_only = data.draw(st.booleans())
    text = json.dumps(sample, separators=separators, ensure_ascii=ascii_only).replace("[", f"[{space}").encode()
    shorter, count = json_cut(text, key.encode(), begin, begin + size)
    assert count == len(items)
    assert orjson.loads(shorter) == {**orjson.loads(text), key: items[begin : begin + size]}
    for place in range(min(len(items), 9)):  # also none at all
        assert orjson.loads(json_cut(text, key.encode(), place, place)[0])[key] == []
    for end in {*range(0, len(text), 7), len(text) - 1}:
        assert json_cut(text[:end], key.encode(), begin, begin + size) is None
    assert json_cut(text, b"nothing", begin, begin + size) is None


@pytest.mark.parametrize("text", [b"", b"[1]", b'{"t":1}', b'{"t":[1],"t":"x"}', b'{"t"[1]}', b'{"t":[1] 2}', b"{}"])
def test_texts_without_an_array_are_not_cut(text):
    assert json_cut(text, b"t", 0, 1) is None
    assert json_cut(b'{"t":"x","t":[7,8]}', b"t", 1, 2) == (b'{"t":"x","t":[8]}', 2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lengths": False},
        {"max_length": 5},
        {"max_length": 5, "truncate": "left"},
        {"pad_to_multiple_of": 16},
        {"mask": {"tokens": "mask"}},
        {"pad_value": {"labels": -1}},
        {"lists": ["labels"]},
    ],
)
def test_blocks_are_collated_as_the_list_of_them_is(made, options):
    ds, field = made([5, 0, 40, 31])["mma"]
    blocks = ds.blocks(12, field=field, position_ids=True).take([3, 0, 4])
    found, expected = (mmapds.pad_collate(each, **options) for each in (blocks, list(blocks)))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert str(found[name]) == str(tensor), name
        assert not isinstance(tensor, torch.Tensor) or found[name].dtype == tensor.dtype


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1, "workers": "processes"}])
def test_a_loader_stacks_blocks_without_a_collate_function(made, workers):
    ds, field = made([5, 0, 40, 31])["mma"]
    blocks = ds.blocks(12, field=field, position_ids=True)
    for found, expected in zip(DataLoader(blocks, 4, **workers), torch.utils.data.DataLoader(blocks, 4), strict=True):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_running_sums_are_kept_in_a_directory(made, tmp_path):
    """They are made once, for these lengths and this cut, and a pickled view maps them again."""
    sizes, kept = [5, 0, 9, 30], tmp_path / "sums"
    ds, field = made(sizes)["mma"]
    views = {
        "windows": lambda **own: ds.windows(4, fields=field, **own),
        "stride": lambda **own: ds.windows(4, 2, fields=field, **own),
        "blocks": lambda **own: ds.blocks(7, field=field, position_ids=True, **own),
        "repeat": lambda **own: ds.repeat([2, 0, 1, 3], **own),
    }
    for number, make in enumerate(views.values(), 1):
        for _ in range(2):
            found, expected = make(sums=kept), make()
            assert [*map(str, found)] == [*map(str, expected)]
            assert len(list(kept.glob("*.npy"))) == number
        text = pickle.dumps(found)
        assert [*map(str, pickle.loads(text))] == [*map(str, expected)]
    other, _ = made([4, 1, 9, 30])["mma"]
    assert other.windows(4, fields=field, sums=kept).lengths.tolist() == other.windows(4, fields=field).lengths.tolist()
    (tmp_path / "file").touch()
    with pytest.raises(Error, match="cannot keep running sums here"):
        ds.windows(4, fields=field, sums=tmp_path / "file" / "below")


def test_records_of_one_length_need_no_table(made, tmp_path):
    rows = np.arange(60, dtype=np.int32).reshape(6, 10)
    np.save(tmp_path / "a.npy", rows)
    windows = mmapds.open(tmp_path / "a.npy", build=True).windows(4, column=None)
    assert [each.tolist() for each in windows] == [row[k : k + 4].tolist() for row in rows for k in (0, 4, 8)]
    ds, field = made([10] * 40)["json"]
    for length, stride, short in ((4, 4, "keep"), (4, 2, "drop"), (16, 16, "pad"), (16, 16, "drop")):
        with_column = ds.windows(length, stride, fields=field, short=short)
        windows = ds.windows(length, stride, fields=field, short=short, column=None)
        assert [*windows] == [*with_column]
        assert windows.lengths.tolist() == with_column.lengths.tolist()
        assert len(pickle.dumps(windows)) < len(pickle.dumps(with_column))
    assert [each["id"] for each in ds.repeat(3)] == np.repeat(np.arange(40), 3).tolist()


def test_tokens_may_have_axes_and_documents_may_be_empty(tmp_path):
    """Of several codebooks, for one; an empty list of JSON has no type that others would be widened to."""
    rows = [np.arange(k * 3, dtype=np.int16).reshape(k, 3) for k in (4, 0, 9, 5)]
    with Writer(tmp_path / "a.mma", {"codes": ("int16", (None, 3))}, length="codes") as writer:
        for row in rows:
            writer.write({"codes": row})
    whole = np.concatenate(rows)
    batch = mmapds.open(tmp_path / "a.mma").blocks(5, field="codes").take([0, 2, 1])
    for k, block in zip((0, 2, 1), batch, strict=True):
        assert (block["tokens"] == whole[k * 5 : k * 5 + 5]).all()
        assert (block["labels"] == whole[k * 5 + 1 : k * 5 + 6]).all()
    assert mmapds.pad_collate(batch)["tokens"].shape == (3, 5, 3)
    large = [2**60 + 1, 2**60 + 3]
    (tmp_path / "a.jsonl").write_text(json.dumps({"t": large}) + '\n{"t": []}\n' + json.dumps({"t": large}) + "\n")
    mmapds.build(tmp_path / "a.jsonl", length="items(t)")
    assert mmapds.open(tmp_path / "a.jsonl").blocks(4, field="t", shift=0)[0]["tokens"].tolist() == large * 2


def test_blocks_of_several_files_cross_them(tmp_path):
    tokens = np.arange(64 * 9, dtype=np.uint16)
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(tokens[number * 192 : (number + 1) * 192].tobytes())
    mmapds.build(sorted(tmp_path.glob("*.bin")), out=tmp_path / "a.mmx", format="fixed", dtype="uint16", shape=64)
    blocks = mmapds.open(tmp_path / "a.mmx").blocks(50, column=None)
    order = np.random.default_rng(0).permutation(len(blocks))
    for positions in (order, order[:1], [3], [9, 0, 5, 1], range(len(blocks))):
        for k, block in zip(positions, blocks.take(positions), strict=True):
            assert (block["tokens"] == tokens[k * 50 : k * 50 + 50]).all()
            assert (block["labels"] == tokens[k * 50 + 1 : k * 50 + 51]).all()


@raises_sigbus
def test_a_file_of_tokens_that_is_cut_short_meanwhile(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(np.ones(1 << 20, np.uint16).tobytes())
    mmapds.build(path, format="fixed", dtype="uint16", shape=64)
    blocks = mmapds.open(path).blocks(1000, column=None)
    assert blocks[0]["tokens"].all()
    os.truncate(path, 1 << 16)
    with pytest.raises(mmapds.StaleIndexError, match=r"a.bin was 2097152 bytes when indexed and is 65536 now"):
        blocks.take([0, 900])


# ---- bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda ds: ds.windows(0), "length = 0, expected an integer of 1 or more"),
        (lambda ds: ds.windows(3, 0), "stride = 0, expected an integer of 1 or more"),
        (lambda ds: ds.windows(3, short="cut"), "short = 'cut', expected 'keep', 'drop' or 'pad'"),
        (lambda ds: ds.windows(3, column=None), "fields = (), expected some with items, found None"),
        (lambda ds: ds.windows(3, column="nothing"), "expected column 'nothing'"),
        (lambda ds: ds.windows(3)[0], "fields = (), expected those to cut, found a sample with ['id', 'tokens']"),
        (lambda ds: ds.windows(3, fields="x")[0], "fields: expected some of ['id', 'tokens'], found 'x'"),
        (lambda ds: ds.windows(3, fields="id")[0], "windows: expected field 'id' with 5 items, its length, found int"),
        (lambda ds: ds.blocks(0, field="tokens"), "size = 0, expected an integer of 1 or more"),
        (lambda ds: ds.blocks(3, shift=-1, field="tokens"), "shift = -1, expected an integer of 0 or more"),
        (lambda ds: ds.blocks(100, field="tokens"), "size = 100, expected up to 13, the tokens of all records"),
        (lambda ds: ds.blocks(3)[0], "field = None, expected that of the tokens, found a sample with ['id', 'tokens']"),
        (lambda ds: ds.blocks(3, field="x")[0], "field = 'x', expected a field of the samples, found ['id', 'tokens']"),
        (lambda ds: mmapds.concat([ds.blocks(3, field="tokens")]), "datasets: expected none of blocks, found 1; make"),
        (lambda ds: ds.around([], group=[0, 0]), "offsets: expected one or more, found 0"),
        (lambda ds: ds.around([0], group=[0]), "group: expected one number for each of 2 records, found shape (1,)"),
        (
            lambda ds: ds.around({"x": [0]}, group=[0, 0])[0],
            "offsets['x']: expected one of the fields ['id', 'tokens']",
        ),
        (lambda ds: ds.around([0.5], group=[0, 0]), "offsets[None] = 0.5, expected an integer"),
        (lambda ds: ds.around(0, group=[0, 0]), "offsets = 0, expected integers, or a dict of them by field"),
    ],
)
def test_bad_arguments_are_named(made, make, expected):
    with pytest.raises(Error, match=re.escape(expected)) as error:
        make(made([5, 9])["json"][0])
    check(str(error.value).partition(" (")[0] if "fields = ()" not in str(error.value) else str(error.value))
    with pytest.raises(IndexError):
        _ = made([5, 9])["json"][0].blocks(3, field="tokens")[4]
