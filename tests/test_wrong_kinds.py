"""Arguments and data of the wrong kind: messages say which kind is right, and what they advise works."""

import warnings

import numpy as np
import pytest
import torch

import mmapds
from mmapds.bench import bench
from mmapds.convert import convert
from mmapds.report import report
from tests.support.messages import check


def refused(call, kind=mmapds.Error):
    """The message of the error that a call raises, which has a form."""
    with pytest.raises(kind) as error:
        call()
    check(str(error.value))
    return str(error.value)


# ---- paths ------------------------------------------------------------------------------------------------------

TAKE_PATHS = {
    "open": mmapds.open,
    "build": mmapds.build,
    "merge": lambda paths: mmapds.merge(paths, out="x.mmx"),
    "convert": lambda paths: convert(paths, "x.mma"),
    "report": report,
    "bench": bench,
}


@pytest.mark.parametrize("take", TAKE_PATHS.values(), ids=TAKE_PATHS)
def test_what_is_not_a_path(take):
    for given in (5, None, b"a.jsonl", [{"n": 1}], [5]):
        with pytest.raises(TypeError):
            take(given)


# ---- decoders ---------------------------------------------------------------------------------------------------


def test_a_dict_in_the_place_of_a_decoder(opened):
    path = opened([{"tokens": [1, 2]}]).sources[0]
    message = refused(lambda: mmapds.open(path, decode={"tokens": "int32"}))
    assert message.startswith("decode = {'tokens': 'int32'}, expected 'json', 'text', ")
    assert mmapds.open(path, decode=mmapds.Fields({"tokens": "int32"}))[0]["tokens"].tolist() == [1, 2]


def test_a_decoder_that_is_misspelt_or_of_another_kind(opened):
    path = opened([{"tokens": [1, 2]}]).sources[0]
    assert refused(lambda: mmapds.open(path, decode="jsn")).endswith("'torch' or a callable")
    assert refused(lambda: mmapds.open(path, decode=5)).startswith("decode = 5, expected 'json', 'text', ")
    assert refused(lambda: mmapds.open(path, decode=["json"])).startswith(
        "decode = ['json'], expected 'json', 'text', "
    )


@pytest.mark.parametrize("given", [-1, "1GB", None, 1.5])
def test_a_cache_of_no_number_of_bytes(opened, given):
    path = opened([{"n": 1}]).sources[0]
    message = refused(lambda: mmapds.open(path, block_cache=given))
    assert message == f"block_cache = {given!r}, expected a number of bytes, 0 or more"


# ---- positions --------------------------------------------------------------------------------------------------


def test_one_in_the_place_of_several(opened):
    ds = opened([{"n": n} for n in range(6)])
    for call, message in (
        (lambda: mmapds.concat(ds), "datasets: expected a list of datasets, found one dataset"),
        (lambda: ds.split([0.5, 0.5], seed=1.5), "seed = 1.5, expected an integer"),
        (lambda: mmapds.build(ds.sources[0], workers="4", force=True), "workers = '4', expected 1 or more"),
    ):
        assert refused(call) == message


# ---- columns ----------------------------------------------------------------------------------------------------


def test_a_field_that_is_null(write):
    path = write(b'{"tokens": null}\n{"tokens": [1]}\n')
    message = refused(lambda: mmapds.build(path, length="items(tokens)"))
    assert "expected an array at `tokens`, found null or nothing; leave such records out with " in message


def test_a_field_of_bools_has_no_lengths(tmp_path):
    schema = {"ok": "bool", "n": "int8", "x": ("bool", (None,))}
    message = refused(lambda: mmapds.Writer(tmp_path / "a.mma", schema, length="ok"))
    assert message.endswith("length = 'ok', expected an integer field or one with a ragged first axis")
    for name in ("n", "x"):
        with mmapds.Writer(tmp_path / f"{name}.mma", schema, length=name) as writer:
            writer.write({"ok": True, "n": 2, "x": [True, False]})
        assert mmapds.open(tmp_path / f"{name}.mma").lengths.tolist() == [2]


# ---- text -------------------------------------------------------------------------------------------------------

LATIN_1 = b'{"text": "a"}\n{"text": "caf\xe9"}\n'
NOT_UTF_8 = {
    "all of it": (LATIN_1, 2, 14),
    "UTF-8 in a line before": ('{"text": "é"}\n'.encode() + LATIN_1, 3, 29),
    "UTF-8 in the line itself": (b'{"text": "a"}\n{"text": "' + "é".encode() + b"caf\xe9" + b'"}\n', 2, 14),
}


@pytest.mark.parametrize(("text", "line", "byte"), NOT_UTF_8.values(), ids=NOT_UTF_8)
def test_a_byte_that_is_not_utf_8_is_said_to_be(write, text, line, byte):
    path = write(text)
    expected = f"{path}:{line} (byte {byte}): not JSON: "
    message = refused(lambda: mmapds.build(path, validate=True))
    assert message.startswith(expected)
    assert "can't decode byte 0xe9" in message
    assert "; leave such lines out with bad='skip' (record" in message
    mmapds.build(path)
    assert refused(lambda: mmapds.open(path)[line - 1]).startswith(expected)
    with pytest.warns(UserWarning, match="expected JSON"):
        mmapds.build(path, bad="skip")
    assert len(mmapds.open(path)) == line - 1


# ---- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "workers": "processes"}])
def test_arrays_of_a_file_are_collated_without_a_warning(tmp_path, workers):
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float32).reshape(6, 2))
    ds = mmapds.open(tmp_path / "x.npy", build=True)
    assert not ds[0].flags.writeable
    loader = mmapds.DataLoader(ds, batch_size=3, **workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(loader)
    assert torch.equal(torch.cat(batches), torch.arange(12.0).reshape(6, 2))
    batches[0][:] = -1
    assert ds[0].tolist() == [0, 1], "a batch is a copy"
    pairs = mmapds.DataLoader(ds.map(pair), batch_size=2, **workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arrays, numbers = next(iter(pairs))["x"], next(iter(pairs))["n"]
    assert arrays.tolist() == [[0, 1], [2, 3]]
    assert numbers.tolist() == [1, 1]


def pair(array):
    """A sample with an array that is read-only."""
    return {"x": array, "n": 1}


# ---- what is shown ----------------------------------------------------------------------------------------------


def test_the_outcome_of_a_conversion_shows_its_schema(write, tmp_path):
    done = convert(write([{"tokens": [1, 2], "text": "a"}]), tmp_path / "a.mma")
    assert " at 0x" not in repr(done)
    assert "Schema({'tokens': ['int64', [None]], 'text': 'str'})" in repr(done)


# ---- options ----------------------------------------------------------------------------------------------------

COLUMN = "expected an expression or a function of a sample"
OPTIONS = {
    "build": [
        ({"length": 5}, f"length = 5, {COLUMN}"),
        ({"length": b"n"}, f"length = b'n', {COLUMN}"),
        ({"columns": {"length": [1, 2]}}, f"columns['length'] = [1, 2], {COLUMN}"),
        ({"columns": {"q": 5}, "length": "n"}, f"columns['q'] = 5, {COLUMN}"),
        ({"columns": 5}, "columns = 5, expected a dict of names"),
        ({"columns": ["q"]}, "columns = ['q'], expected a dict of names"),
        ({"columns": {5: "n"}}, "columns = {5: 'n'}, expected a dict of names"),
    ],
    "convert": [
        ({"fields": 5}, "fields = 5, expected a list of names"),
        ({"infer": "5"}, "infer = '5', expected 1 or more"),
        ({"max_bytes": "5"}, "max_bytes = '5', expected 1 or more"),
    ],
}
TAKE_OPTIONS = {"build": mmapds.build, "convert": convert}


@pytest.mark.parametrize(
    ("name", "given", "message"), [(name, *case) for name, cases in OPTIONS.items() for case in cases]
)
def test_what_an_option_cannot_be(write, tmp_path, name, given, message):
    path = write([{"n": 1}, {"n": 2}])
    assert refused(lambda: TAKE_OPTIONS[name](path, **given)) == message
    assert [each.name for each in tmp_path.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize("function", [mmapds.build, convert])
def test_an_option_that_no_format_has_is_pythons_own_error(write, function):
    with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got an unexpected keyword argument 'lenght'$"):
        function(write([{"n": 1}]), lenght="n")


def test_an_expression_is_an_option_of_build(opened):
    path = opened([{"n": 1}]).sources[0]
    said = refused(lambda: mmapds.add_column(path, "q", "n"))
    assert said == "values = 'n', expected a function of a sample, or an array of numbers"
    mmapds.build(path, columns={"q": "n"})
    assert list(mmapds.open(path).column("q")) == [1]


# ---- numbers of other kinds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        [[1], [1, 2]],
        torch.ones(2, requires_grad=True),
        torch.ones(2, dtype=torch.bfloat16),
        np.ma.array([1, 2], mask=[0, 1]),
        ["a", "b"],
        [1, None],
        [1, 2j],
    ],
    ids=str,
)
def test_columns_of_other_than_numbers(opened, values):
    path = opened([{"n": 1}, {"n": 2}]).sources[0]
    message = refused(lambda: mmapds.add_column(path, "q", values), mmapds.ColumnError)
    assert message.startswith("column 'q': expected ")
    mmapds.add_column(path, "q", np.ma.array([1, 2]))  # nothing is masked
    assert mmapds.open(path).column("q").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame": "256K"}, "frame = '256K', expected 4096 to 268435456"),
        ({"frame": 5e5}, "frame = 500000.0, expected 4096 to 268435456"),
        ({"level": "3"}, "level = '3', expected 1 to 22"),
        ({"window_log": 27.0}, "window_log = 27.0, expected 10 to 31"),
        ({"workers": 1.5}, "workers = 1.5, expected 1 or more"),
    ],
)
def test_options_of_seekable(opened, options, message):
    assert refused(lambda: mmapds.seekable(opened([{"n": 1}]).sources[0], **options)) == message


def test_decoders_that_no_other_process_can_load(opened):
    message = refused(lambda: bench(opened([{"n": 1}]).sources[0], decode=lambda record: record))
    assert ", expected a function of a module (" in message
