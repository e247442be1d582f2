"""What the package shows, and what it costs to import."""

import inspect
import os

import pytest

import mmapds
from tests.support.api import MODULES, public_names
from tests.support.commands import python


def test_public_names():
    assert mmapds.__all__ == [
        "ChunkedSampler",
        "CollateError",
        "ColumnError",
        "DataLoader",
        "Dataset",
        "DecodeError",
        "DistributedBatchSampler",
        "DistributedSampler",
        "Error",
        "Fields",
        "FormatError",
        "IndexMissingError",
        "KeyMissingError",
        "Location",
        "MixtureSampler",
        "OrderError",
        "PackingBatchSampler",
        "Permutation",
        "SourceError",
        "StaleIndexError",
        "StateError",
        "TokenBudgetBatchSampler",
        "Writer",
        "add_column",
        "build",
        "check_ranks",
        "concat",
        "merge",
        "pack_collate",
        "pad_collate",
        "seekable",
        "takes_location",
        "takes_view",
    ]
    for name in mmapds.__all__:
        assert getattr(mmapds, name) is not None
        assert name in dir(mmapds)


@pytest.mark.parametrize("name", ["open", "zip"])
def test_some_names_are_public_but_not_for_import_star(name):
    """They would take the place of Python's own."""
    assert callable(getattr(mmapds, name))
    assert name in dir(mmapds)
    assert name not in mmapds.__all__
    assert python(f"from mmapds import *\nimport builtins\nprint({name} is builtins.{name})").stdout == "True\n"


def loaded_by(code):
    """Modules in memory after running `code` in a fresh interpreter."""
    return set(python(f"import sys\n{code}\nprint(*sys.modules)").stdout.split())


def test_importing_loads_neither_torch_nor_numpy():
    assert not {"torch", "numpy", "orjson", "rich"} & loaded_by("import mmapds")


def test_datasets_do_not_load_torch(write):
    path = write([1])
    assert "torch" not in loaded_by(f"import mmapds; mmapds.open({path!r}, build=True)[0]")


def test_indexing_loads_neither_torch_nor_numpy(write):
    code = f"from mmapds.index.__main__ import main; main([{write([1])!r}, '--quiet'])"
    assert not {"torch", "numpy", "orjson", "rich"} & loaded_by(code)


@pytest.mark.parametrize("name", [name for name in public_names() if not name.endswith("Error")])
def test_help_begins_with_words(name):
    """Not with what type aliases, such as NumPy's ArrayLike, stand for."""
    text = str(inspect.signature(getattr(mmapds, name)))
    assert "._" not in text
    assert len(text) < 1000


@pytest.mark.parametrize("module", ["executors", "index", "integrations", *(name[7:] for name in MODULES)])
def test_public_modules_need_no_import_of_their_own(module):
    """`from mmapds.convert import convert` stays what it was."""
    names = MODULES.get(f"mmapds.{module}", [])
    uses = "".join(f"\nfrom mmapds.{module} import {name}\nassert mmapds.{module}.{name} is {name}" for name in names)
    code = f"import mmapds, sys\nassert 'mmapds.{module}' not in sys.modules\nassert '{module}' in dir(mmapds)\n"
    assert python(f"{code}print(mmapds.{module}.__name__){uses}").stdout == f"mmapds.{module}\n"
    assert module not in mmapds.__all__


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(mmapds, "unknown")


def test_a_forced_variant_that_is_missing_is_said():
    result = python("import mmapds; mmapds.build", env={**os.environ, "MMAPDS_SIMD": "sse9"}, check=False)
    assert "MMAPDS_SIMD = 'sse9', expected a variant that this machine has: [" in result.stderr


def test_without_torch_everything_else_works():
    code = """
import sys
sys.modules["torch"] = None
from mmapds import *
import mmapds
assert hasattr(mmapds, "DistributedSampler")
help(mmapds)
try:
    DistributedSampler(range(3))
except ModuleNotFoundError as error:
    print(error)
"""
    ran = python(code)
    assert ran.stdout.endswith("mmapds.DistributedSampler needs torch; run: pip install 'mmapds[torch]'\n")
