"""Arguments that a function does not have: the message names those it has, and the one that the user may mean."""

import inspect
import json
from importlib import import_module

import numpy as np
import pytest

import mmapds
from mmapds.convert import convert
from mmapds.dataset.other_names import OTHER_NAMES
from mmapds.errors import arguments_of, unknown_argument
from mmapds.integrations.grain import OrderSampler
from mmapds.other_arguments import OWN, OWNERS, REMEDIES, remark_on
from mmapds.storage.index_file import Index
from tests.support import commands
from tests.support.api import MODULES, members, public_names
from tests.support.commands import command
from tests.support.messages import check

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
    "num_proc = 4, expected an argument of Dataset.map: function, batched (it is called by * when a sample is read)": (
        lambda path: mmapds.open(path, build=True).map(str, num_proc=4)
    ),
    "num_proc = 4, expected an argument of mmapds.build: * (did you mean 'workers')": (
        lambda path: mmapds.build(path, num_proc=4)
    ),
    "columns = ['n'], expected an argument of mmapds.open: * for some fields of records give "
    "decode=mmapds.Fields(schema))": lambda path: mmapds.open(path, columns=["n"]),
    "columns = ['n'], expected an argument of convert: * (did you mean 'fields')": (
        lambda path: convert(path, columns=["n"])
    ),
    "num_proc = 2, expected an argument of mmapds.open: * (mmapds.build takes workers=, and mmapds.DataLoader "
    "num_workers=)": lambda path: mmapds.open(path, num_proc=2),
    "path = 'x', expected an argument of mmapds.open: * (did you mean 'source_or_index')": (
        lambda _: mmapds.open(path="x")
    ),
    "split = 'train', expected an argument of mmapds.open: * or cut a dataset into views with ds.split([0.9, 0.1]))": (
        lambda path: mmapds.open(path, split="train")
    ),
    "bs = 4, expected an argument of mmapds.DataLoader: * (did you mean 'batch_size')": (
        lambda _: mmapds.DataLoader([1], bs=4)
    ),
    "drop_remainder = True, expected an argument of mmapds.DataLoader: * (did you mean 'drop_last')": (
        lambda _: mmapds.DataLoader([1], drop_remainder=True)
    ),
    "predownload = 9, expected an argument of mmapds.DataLoader: * (did you mean 'prefetch')": (
        lambda _: mmapds.DataLoader([1], predownload=9)
    ),
    "shuffle_buffer = 9, expected an argument of mmapds.DataLoader: * needs no buffer: give shuffle=True)": (
        lambda _: mmapds.DataLoader([1], shuffle_buffer=9)
    ),
    "shuffle_buffer = 9, expected an argument of mmapds.ChunkedSampler: * (did you mean 'mix_chunks')": (
        lambda _: mmapds.ChunkedSampler(range(9), 3, shuffle_buffer=9)
    ),
    "world_size = 2, expected an argument of mmapds.DistributedSampler: * (did you mean 'num_replicas')": (
        lambda _: mmapds.DistributedSampler([1], world_size=2)
    ),
    "pad_token_id = 2, expected an argument of mmapds.pad_collate: samples, * (did you mean 'pad_value')": (
        lambda _: mmapds.pad_collate([[1]], pad_token_id=2)
    ),
    "pack_len = 3, expected an argument of mmapds.PackingBatchSampler: * (did you mean 'pack_length')": (
        lambda _: mmapds.PackingBatchSampler([1], pack_len=3)
    ),
    "mix_chunk = 3, expected an argument of orders.Chunked: n, * (did you mean 'mix_chunks')": (
        lambda _: mmapds.orders.Chunked(9, 3, mix_chunk=3)
    ),
    "fraction = [1], expected an argument of Dataset.split: fractions, seed (did you mean 'fractions')": (
        lambda path: mmapds.open(path, build=True).split(fraction=[1])
    ),
    "outt = 'x', expected an argument of mmapds.merge: indexes, out, workers, roots (did you mean 'out')": (
        lambda path: mmapds.merge([path], outt="x")
    ),
    "max_tokens = 4096, expected an argument of mmapds.PackingBatchSampler: * (did you mean 'pack_length')": (
        lambda _: mmapds.PackingBatchSampler([1], max_tokens=4096)
    ),
    "batch_size = 32, expected an argument of mmapds.ChunkedSampler: * (it yields single samples: give batch_size to "
    "mmapds.DataLoader, or order=mmapds.orders.Chunked(...) to mmapds.DistributedBatchSampler)": (
        lambda _: mmapds.ChunkedSampler(range(9), 100, batch_size=32)
    ),
    "bs = 32, expected an argument of mmapds.DistributedSampler: * or to mmapds.DistributedBatchSampler)": (
        lambda _: mmapds.DistributedSampler(range(9), bs=32)
    ),
    "group_size = 8, expected an argument of mmapds.DistributedSampler: * ('group_size' is an argument of "
    "mmapds.TokenBudgetBatchSampler, mmapds.PackingBatchSampler)": (
        lambda _: mmapds.DistributedSampler(range(9), group_size=8)
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


def test_every_other_name_leads_to_an_argument_there_is():
    taken = {each for thing in public().values() for each in inspect.signature(thing).parameters}
    assert {own for names in OWN.values() for own in names} <= taken
    functions = {name.removeprefix("mmapds.") for name in public()}
    for function, remedies in REMEDIES.items():
        assert function.removeprefix("mmapds.") in functions
        for name, remedy in remedies.items():
            assert remark_on(function, name, ()) == remedy
            check(f"{name} = 1, expected an argument of {function}: zzz ({remedy})")


def sibling_arguments():
    """The arguments of each function that users take for one of its siblings, by the name of the function."""
    named = {owner for owners in OWNERS.values() for owner in owners}
    return {
        name: arguments_of(thing.__init__ if isinstance(thing, type) else thing)
        for name, thing in public().items()
        if name in named
    }


SAME = {  # arguments of other functions that have the same meaning
    "dataset": {"dataset_or_lengths", "datasets"},
    "dataset_or_lengths": {"dataset", "datasets"},
    "lengths": {"dataset_or_lengths", "fractions"},
    "source_or_index": {"sources"},
    "sources": {"source_or_index"},
    "batch_size": {"packs_per_batch"},
    "generator": {"seed"},
    "max_sequences": {"max_batch_size"},
    "max_tokens": {"pack_length"},
    "num_workers": {"workers"},
}


def test_an_argument_of_a_sibling_is_not_taken_for_one_that_is_spelt_alike():
    siblings = sibling_arguments()
    samplers = {f"mmapds.{name}" for name in public_names() if name.endswith("Sampler")}
    assert samplers | {"mmapds.DataLoader", "mmapds.pad_collate", "mmapds.pack_collate"} <= set(siblings)
    for function, known in siblings.items():
        for name in OWNERS.keys() - set(known):
            message = str(unknown_argument(function, name, 1, known))
            _, meant, near = message.partition(" (did you mean ")
            assert not meant or near.strip("')") in SAME[name], message
            assert message.endswith(")"), message
            check(message)


def test_whose_an_argument_is_said_to_be():
    siblings = sibling_arguments()
    for name, owners in OWNERS.items():
        assert set(owners) == {owner for owner in siblings if name in siblings[owner]}, name


@pytest.mark.parametrize(
    ("name", "code", "wanted"),
    [
        ("head", "ds[:5]", [*range(5)]),
        ("tail", "ds[-5:]", [*range(5, 10)]),
        ("slice", "ds[a:b]", [2, 3]),
        ("flatten_indices", "ds.save(path)", None),
        ("prefetch", "mmapds.DataLoader(ds, num_workers=2, prefetch=8)", 10),
        ("padded_batch", "mmapds.DataLoader(ds, batch_size=32, collate_fn=mmapds.pad_collate)", 1),
        ("random_split", "ds.split([0.9, 0.1], seed=0)", 2),
        ("sample", "ds[numpy.random.default_rng(0).choice(len(ds), 5)]", 5),
        ("mix", "mmapds.MixtureSampler([a, b], weights=[1, 1])", 19),
    ],
)
def test_what_is_said_of_names_of_datasets_works(write, tmp_path, name, code, wanted):
    ds = mmapds.open(write([{"n": n} for n in range(10)]), build=True)
    assert code in OTHER_NAMES[name]._remedy
    names = {"ds": ds[:3] if name == "flatten_indices" else ds, "mmapds": mmapds, "numpy": np, "a": 2, "b": 4}
    if name == "mix":
        names |= {"a": ds, "b": ds}
    found = eval(code, {**names, "path": tmp_path / "view.mmx"})
    if isinstance(wanted, list):
        assert [sample["n"] for sample in found] == wanted
    elif wanted is not None:
        assert len(found) == wanted


def public():
    """What users call, by name, and what they call it with, methods without `self`."""
    named = {f"mmapds.{name}": getattr(mmapds, name) for name in public_names() if not name.endswith("Error")}
    for module, names in MODULES.items():
        named |= {f"{module}.{name}": getattr(import_module(module), name) for name in names}
    named["OrderSampler"] = OrderSampler
    for name, thing in list(named.items()):
        if isinstance(thing, type):
            named |= {f"{name}.{each}": getattr(thing, each) for each in members(thing) if each[0] != "_"}
    return {name: thing for name, thing in named.items() if callable(thing)}


def has_options(function):
    """Whether a function has arguments that are given by name, and does not take any name there is."""
    found = inspect.signature(function).parameters.values()
    return any(each.kind is each.KEYWORD_ONLY or each.default is not each.empty for each in found)


def test_all_that_has_options_names_them():
    exceptions = {"mmapds.Location", "mmapds.orders.Order", "mmapds.convert.Converted"}  # not made by users
    found = {name: thing for name, thing in public().items() if name not in exceptions and has_options(thing)}
    assert {"mmapds.merge", "mmapds.PackingBatchSampler", "mmapds.orders.Chunked", "mmapds.Dataset.split"} <= set(found)
    assert "mmapds.Dataset.save" not in found, "it has no options"
    for name, thing in {**found, "mmapds.Dataset.save": mmapds.Dataset.save}.items():
        given = ["x"] if isinstance(thing, type) or "." not in name.partition("mmapds.")[2] else [None, "x"]
        with pytest.raises(TypeError) as error:
            thing(*given, zzz=1)
        assert str(error.value).startswith("zzz = 1, expected an argument of "), name
        assert f"{name.rpartition('.')[2]}: " in str(error.value)
        check(str(error.value))


def flags():
    """The flags that public functions take: the name of a function, that of a flag, and what it cannot be."""
    for name, thing in public().items():
        for each in inspect.signature(thing).parameters.values():
            if each.annotation in (bool, "bool"):
                yield name, each.name, ("no", "", 2, 0.0, [], None)
            elif each.annotation in (bool | None, "bool | None"):
                yield name, each.name, ("no", "", 2, 0.0, [])


@pytest.mark.parametrize(("name", "argument", "wrong"), list(flags()))
def test_a_flag_is_true_or_false(name, argument, wrong):
    function = public()[name]
    found = inspect.signature(function).parameters.values()
    needed = [None for each in found if each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD]
    for given in wrong:
        with pytest.raises(mmapds.Error) as error:
            function(*needed, **{argument: given})
        assert str(error.value) == f"{argument} = {given!r}, expected True or False"
        check(str(error.value))


def test_which_flags_there_are():
    found = {f"{name}({argument})" for name, argument, _ in flags()}
    assert {
        "mmapds.build(validate)",
        "mmapds.convert.convert(index)",
        "mmapds.open(build)",
        "mmapds.report.report(loader)",
        "mmapds.seekable(force)",
        "mmapds.DataLoader(pin_memory)",
        "mmapds.Dataset.map(batched)",
        "mmapds.Dataset.stream(shuffle)",
        "mmapds.Writer(index)",
    } <= found


def test_flags_given_by_position():
    with pytest.raises(mmapds.OrderError, match=r"^shuffle = 'no', expected True or False$"):
        mmapds.DistributedSampler(range(4), 1, 0, "no")
    with pytest.raises(mmapds.OrderError, match=r"^drop_last = 'no', expected True or False$"):
        mmapds.Dataset.stream(range(4), drop_last="no")


@pytest.mark.parametrize(("yes", "no"), [(True, False), (1, 0), (np.True_, np.False_)])
def test_a_flag_may_be_a_number_or_a_bool_of_numpy(write, tmp_path, yes, no):
    path = write([{"n": 1}, {"n": 2}])
    mmapds.build(path, validate=yes, hash=yes, force=no)
    assert Index(f"{path}.mmx").sources[0].xxh3_128
    with pytest.raises(mmapds.ColumnError, match="expected True with bad"):
        mmapds.build(path, validate=no, bad="skip", force=yes)
    ds = mmapds.open(path, build=no)
    assert list(ds.stream(shuffle=no)) == list(ds.map(list, batched=yes)) == [{"n": 1}, {"n": 2}]
    convert(path, tmp_path / "a.mma", index=no)
    assert not (tmp_path / "a.mma.mmx").exists()
    sampler = mmapds.DistributedSampler(ds, shuffle=no, drop_last=yes, pad=yes)
    assert (sampler.shuffle, sampler.drop_last) == (False, True)
    json.dumps(sampler.state_dict())
    loader = mmapds.DataLoader(ds, shuffle=no, drop_last=yes, pin_memory=no)
    assert [batch["n"].tolist() for batch in loader] == [[1], [2]]


def test_streams_name_the_arguments_of_streams(write):
    ds = mmapds.open(write([{"n": 1}]), build=True)
    with pytest.raises(TypeError) as error:
        ds.stream(batchsize=4)
    assert str(error.value) == (
        "batchsize = 4, expected an argument of Dataset.stream: sampler, batch_size, shuffle, num_replicas, rank, "
        "seed, drop_last, order, epoch_size, start_step, exclude, pad (did you mean 'batch_size')"
    )
    with pytest.raises(TypeError, match=r"\(did you mean 'seed'\)"):
        ds.stream(mmapds.DistributedSampler(ds), sead=4)
    assert len(ds.stream(seed=1, pad=False, drop_last=False, epoch_size=1)) == 1


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
    ran = commands.mmapds("index", path, "--verify")
    assert ran.stderr.endswith("unrecognized arguments: --verify\n")
