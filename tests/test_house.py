"""Limits that keep the code readable: sizes of files and functions, arguments of the core, and private names."""

import ast
import inspect
from importlib import import_module

import pytest

from mmapds import _native
from tests.support.files import ROOT

PYTHON = sorted((ROOT / "mmapds").rglob("*.py"))
C = sorted([*(ROOT / "csrc").rglob("*.[ch]"), *(ROOT / "tests" / "fuzz").glob("*.[ch]")])


def relative(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*PYTHON, *C], ids=relative)
def test_no_file_has_more_than_600_lines(path):
    assert len(path.read_text().splitlines()) <= 600


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_no_function_has_more_than_60_lines_of_code(path):
    functions = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    texts = {
        node: len(ast.get_docstring(node, clean=False).splitlines()) for node in functions if ast.get_docstring(node)
    }
    assert not [node.name for node in functions if node.end_lineno - node.lineno - texts.get(node, 0) >= 60]


@pytest.mark.parametrize("path", PYTHON, ids=relative)
def test_no_private_name_is_imported_from_another_module(path):
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    names = [name.name for node in imports if node.level for name in node.names]
    assert not [name for name in names if name.startswith("_") and name not in ("__version__", "_native")]


@pytest.mark.parametrize("path", sorted((ROOT / "bench").glob("bench_*.py")), ids=relative)
def test_every_benchmark_can_be_imported(path):
    """They are run by hand, long after what they use has moved."""
    assert import_module(f"bench.{path.stem}")


def entry_points():
    for name, value in vars(_native).items():
        if isinstance(value, type):
            yield from ((f"{name}.{each}", method) for each, method in vars(value).items() if callable(method))
            yield name, value
        elif callable(value):
            yield name, value


def test_no_entry_point_of_the_core_has_more_than_six_positional_arguments():
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    counted = {}
    for name, function in entry_points():
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError:  # what every Python object has, such as __new__
            continue
        counted[name] = len([each for each in parameters if each.kind in positional and each.name != "self"])
    assert len(counted) > 60
    assert not {name: count for name, count in counted.items() if count > 6}
