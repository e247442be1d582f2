"""Arguments that a function does not have: the message names those it has, and the one that the user may mean."""

import inspect

import pytest

import mmapds
from mmapds.convert import convert
from tests.support.commands import command

UNKNOWN = {
    "lenght = 'n', expected an argument of mmapds.build: sources, out, format, * (did you mean 'length')": (
        lambda path: mmapds.build(path, lenght="n")
    ),
    "decode = 'json', expected an argument of mmapds.build: * ('decode' is an argument of mmapds.open)": (
        lambda path: mmapds.build(path, decode="json")
    ),
    "zzz = 1, expected an argument of mmapds.build: *, prefix": lambda path: mmapds.build(path, zzz=1),
    "bild = True, expected an argument of mmapds.open: source_or_index, decode, * (did you mean 'build')": (
        lambda path: mmapds.open(path, bild=True)
    ),
    "length = 'n', expected an argument of mmapds.open: * ('length' is an argument of mmapds.build)": (
        lambda path: mmapds.open(path, length="n")
    ),
    "worker = 1, expected an argument of mmapds.add_column: * (did you mean 'workers')": (
        lambda path: mmapds.add_column(path, "x", [1], worker=1)
    ),
    "padvalue = 1, expected an argument of mmapds.pad_collate: samples, * (did you mean 'pad_value')": (
        lambda _: mmapds.pad_collate([[1]], padvalue=1)
    ),
    "pad_too = 1, expected an argument of mmapds.pack_collate: samples, * (did you mean 'pad_to')": (
        lambda _: mmapds.pack_collate([[1]], pad_too=1)
    ),
    "default = {}, expected an argument of mmapds.Fields: schema, defaults (did you mean 'defaults')": (
        lambda _: mmapds.Fields({"n": "int64"}, default={})
    ),
    "num_proc = 4, expected an argument of Dataset.map: function, batched": (
        lambda path: mmapds.open(path, build=True).map(str, num_proc=4)
    ),
    "feilds = ['x'], expected an argument of convert: * (did you mean 'fields')": (
        lambda path: convert(path, feilds=["x"])
    ),
}


@pytest.mark.parametrize("message", UNKNOWN)
def test_an_unknown_argument_is_told_from_those_there_are(write, message):
    path = write([{"n": 1}])
    with pytest.raises(TypeError) as error:
        UNKNOWN[message](path)
    begin, _, end = message.partition("*")
    assert str(error.value).startswith(begin)
    assert str(error.value).endswith(end)


def test_functions_show_their_own_arguments():
    assert list(inspect.signature(mmapds.open).parameters)[:3] == ["source_or_index", "decode", "access"]
    assert "roots" in inspect.signature(mmapds.add_column).parameters


def test_a_mistyped_option_of_the_command(write):
    path = write([{"n": 1}])
    for given, meant in (("--lenght", "--length"), ("--colunm", "--column"), ("--Validate", "--validate")):
        ran = command(path, given, "n")
        assert ran.returncode == 2
        assert ran.stderr.endswith(f"unrecognized arguments: {given} n (did you mean {meant})\n")
    assert command(path, "--zzz").stderr.endswith("unrecognized arguments: --zzz\n")
