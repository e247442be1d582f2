"""What the package shows, and what it costs to import; docs/api.md has every name."""

import os

import pytest

import mmapds
from tests.support.api import MODULES
from tests.support.commands import python


def test_public_names():
    """`open` and `zip` would take the place of Python's own after `import *`."""
    assert mmapds.__all__ == sorted(mmapds.__all__)
    assert {"open", "zip"}.isdisjoint(mmapds.__all__)
    for name in (*mmapds.__all__, "open", "zip"):
        assert callable(getattr(mmapds, name))
        assert name in dir(mmapds)
    assert not hasattr(mmapds, "unknown")
    code = "from mmapds import *\nimport builtins\nprint(open is builtins.open, zip is builtins.zip, build.__name__)"
    assert python(code).stdout == "True True build\n"


@pytest.mark.parametrize("module", ["executors", "index", "integrations", *(name[7:] for name in MODULES)])
def test_public_modules_need_no_import_of_their_own(module):
    """`from mmapds.convert import convert` stays what it was."""
    full = "index.executors" if module == "executors" else module
    names = MODULES.get(f"mmapds.{module}", [])
    uses = "".join(f"\nfrom mmapds.{module} import {name}\nassert mmapds.{module}.{name} is {name}" for name in names)
    code = f"import mmapds, sys\nassert 'mmapds.{full}' not in sys.modules\nassert '{module}' in dir(mmapds)\n"
    assert python(f"{code}print(mmapds.{module}.__name__){uses}").stdout == f"mmapds.{full}\n"
    assert module not in mmapds.__all__


@pytest.mark.parametrize(
    ("code", "unneeded"),
    [
        ("import mmapds", {"torch", "numpy", "orjson", "rich"}),
        ("from mmapds.cli.commands import main; main(['index', '--help'])", {"torch", "numpy", "orjson", "rich"}),
        ("from mmapds.index.__main__ import main; main([path, '--quiet'])", {"torch", "numpy", "orjson", "rich"}),
        ("import mmapds; mmapds.open(path, build=True)[0]", {"torch"}),
    ],
    ids=["importing", "helping", "indexing", "reading"],
)
def test_what_is_not_needed_is_not_loaded(write, code, unneeded):
    loaded = python(f"import sys\npath = {write([1])!r}\n{code}\nprint(*sys.modules)").stdout.split()
    assert unneeded.isdisjoint(loaded)


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
    message = "mmapds.DistributedSampler needs torch; run: pip install torch\n"
    assert python(code).stdout.endswith(message)


def test_a_forced_variant_that_is_missing_is_said():
    result = python("import mmapds; mmapds.build", env={**os.environ, "MMAPDS_SIMD": "sse9"}, check=False)
    assert "MMAPDS_SIMD = 'sse9', expected a variant that this machine has: [" in result.stderr
