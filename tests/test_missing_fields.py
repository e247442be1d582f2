"""Fields that are null in some records, or that some records lack: what the messages say, and that it works."""

import pytest

import mmapds
from tests.support.messages import check

SCHEMA = {"id": "int64", "tokens": "int32"}


@pytest.fixture
def ds(write):
    """A dataset whose record 1 has null for its tokens, and whose record 2 has none."""
    return mmapds.open(write([{"id": 0, "tokens": [1, 2]}, {"id": 1, "tokens": None}, {"id": 2}]), build=True)


def refused(samples, **options):
    with pytest.raises(mmapds.CollateError) as error:
        mmapds.pad_collate(samples, **options)
    check(str(error.value))
    return str(error.value)


def test_both_ways_out_of_null_among_lists(ds):
    refused(ds.take([0, 1]))
    assert mmapds.pad_collate(ds.take([0, 1]), lists=["tokens"])["tokens"] == [[1, 2], None]
    fields = mmapds.Fields(SCHEMA, defaults={"tokens": []})
    batch = mmapds.pad_collate(mmapds.open(ds.sources, decode=fields).take([0, 1, 2]))
    assert batch["tokens"].tolist() == [[1, 2], [0, 0], [0, 0]]
    assert batch["tokens_lengths"].tolist() == [2, 0, 0]


def test_null_among_numbers(write):
    ds = mmapds.open(write([{"a": {"b.c": 1}}, {"a": {"b.c": None}}]), build=True)
    message = refused(ds.take([1, 0]))
    assert message.startswith("samples[0]['a']['b.c']: expected a number, as in samples[1]['a']['b.c'], found None; ")
    assert r"found None; give lists=['a.b\\.c'] for a list of the values, or what " in message
    assert message.endswith(r"defaults={'a.b\\.c': 0})")
    assert mmapds.pad_collate(ds.take([0, 1]), lists=["a.b\\.c"]) == {"a": {"b.c": [1, None]}}
    fields = mmapds.Fields({"a.b\\.c": "int64"}, defaults={"a.b\\.c": 0})
    assert mmapds.pad_collate(mmapds.open(ds.sources, decode=fields).take([0, 1]))["a.b\\.c"].tolist() == [1, 0]


@pytest.mark.parametrize(
    "samples", [[{"a": {"b": 1}}, {"a": None}], [([1],), (None,)], [[1], None], [{"": 1}, {"": None}]]
)
def test_null_where_a_default_of_fields_does_not_do(samples):
    assert refused(samples).endswith("ds.map(function)")


def test_null_among_dicts_can_become_a_list():
    assert "; give lists=['a'] for a list of the values, or another with " in refused([{"a": {"b": 1}}, {"a": None}])


def test_a_function_can_add_a_field_that_some_samples_lack(ds):
    refused(ds.take([0, 2]))
    added = ds.map(lambda sample: {"tokens": [], **sample})
    assert mmapds.pad_collate(added.take([0, 2]))["tokens_lengths"].tolist() == [2, 0]


@pytest.mark.parametrize(("position", "found"), [(1, "null"), (2, "nothing")])
def test_a_field_that_a_record_lacks_names_the_default_of_fields(ds, position, found):
    fielded = mmapds.open(ds.sources, decode=mmapds.Fields(SCHEMA))
    with pytest.raises(mmapds.DecodeError) as error:
        fielded[position]
    expected = "expected int32 at `tokens`, which has no default (Fields takes defaults={'tokens': ...})"
    assert f"{expected}, found {found} (ds[{position}])" in str(error.value)
    check(str(error.value))


def test_torchs_collating_names_the_defaults_too(write):
    ds = mmapds.open(write([{"id": 0, "n": 1}, {"id": 1}]), build=True)
    with pytest.raises(KeyError) as error:
        list(mmapds.DataLoader(ds, batch_size=2))
    assert error.value.__notes__[0].endswith("with ds.map(function), or with the defaults of mmapds.Fields")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_names_the_records_that_do_not_fit(ds, workers):
    loader = mmapds.DataLoader(ds, 2, sampler=[0, 0, 2, 0], num_workers=workers, collate_fn=mmapds.pad_collate)
    batches = iter(loader)
    assert next(batches)["id"].tolist() == [0, 0]
    with pytest.raises(mmapds.CollateError, match=r"^samples\[0\]: .* as in samples\[1\]") as error:
        next(batches)
    assert error.value.__notes__ == [
        f"samples[0] is at position 2: {ds.place(2)}",
        f"samples[1] is at position 0: {ds.place(0)}",
    ]


def test_a_loader_names_them_where_records_are_left_out(write):
    path = write([{"n": 0}, {"n": [1]}])
    with open(path) as file:
        lines = file.readlines()
    with open(path, "w") as file:
        file.writelines([lines[0], "not JSON\n", lines[1]])
    ds = mmapds.open(path, build=True, on_error="skip")[::-1]
    with pytest.raises(mmapds.CollateError) as error, pytest.warns(RuntimeWarning, match="; left out; "):
        list(mmapds.DataLoader(ds, 3, collate_fn=mmapds.pad_collate))
    assert error.value.__notes__ == [
        f"samples[1] is at position 2: {ds.place(2)}",
        f"samples[0] is at position 0: {ds.place(0)}",
    ]


@pytest.mark.parametrize("data", [[{"n": 0}, {"n": [1]}], [{"n": [1]}, {"n": [None]}]])
def test_other_datasets_and_errors_have_no_places(data):
    def refuse(_):
        raise mmapds.CollateError("these samples do not fit")

    with pytest.raises(mmapds.CollateError) as error:
        list(mmapds.DataLoader(data, 2, collate_fn=mmapds.pad_collate))
    assert not hasattr(error.value, "__notes__")
    with pytest.raises(mmapds.CollateError) as error:
        list(mmapds.DataLoader(data, 2, collate_fn=refuse))
    assert not hasattr(error.value, "__notes__")


@pytest.mark.parametrize("key", ["k" * 10**5, "k\n" * 50])
def test_long_keys_and_those_of_several_lines_are_cut_and_quoted(write, key):
    path = write([{key: {"id": 1}, "n": 5}])
    ds = mmapds.open(path, build=True)
    lacking = mmapds.open(path, decode=mmapds.Fields({"id": "int32"}))
    nested = mmapds.open(path, decode=mmapds.Fields({"n.id": "int32"}))
    for refuse in (
        lambda: lacking[0],
        lambda: lacking.take([0]),
        lambda: nested[0],
        lambda: mmapds.build(path, length="id", force=True),
        lambda: mmapds.build(path, columns={"a": "items(id)"}, missing="skip", force=True),
        lambda: mmapds.pad_collate([*ds.take([0]), {"n": 1}]),
        lambda: mmapds.pad_collate([{"n": 1}, *ds.take([0])]),
        lambda: mmapds.pack_collate(ds.map(lambda _: {key: 1}).take([0])),
        lambda: mmapds.pad_collate([{str(n): n for n in range(10**5)}, {}]),
    ):
        with pytest.raises(mmapds.Error) as error:
            refuse()
        message = str(error.value)
        check(message)
        assert len(message) < 1000
