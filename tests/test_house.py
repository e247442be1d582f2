"""Limits that keep the code readable: sizes of files and functions, arguments of the core, and private names."""

import ast
import re
from importlib import import_module

from mmapds import _native
from tests.support.files import ROOT

PYTHON = sorted((ROOT / "mmapds").rglob("*.py"))
C = sorted([*(ROOT / "csrc").rglob("*.[ch]"), *(ROOT / "tests" / "fuzz").glob("*.[ch]")])


def nodes(path, kind):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kind)]


def lines_of_code(function):
    return function.end_lineno - function.lineno - len((ast.get_docstring(function, clean=False) or "").splitlines())


def test_files_and_functions_are_short():
    assert not [path for path in [*PYTHON, *C] if len(path.read_text().splitlines()) > 600]
    functions = [(path, node) for path in PYTHON for node in nodes(path, ast.FunctionDef)]
    assert not [(path, node.name) for path, node in functions if lines_of_code(node) >= 60]


def test_no_private_name_is_imported_from_another_module():
    imports = [(path, node) for path in PYTHON for node in nodes(path, ast.ImportFrom) if node.level]
    names = [(path, each.name) for path, node in imports for each in node.names]
    assert not [(path, name) for path, name in names if name.startswith("_") and name not in ("__version__", "_native")]


def test_every_benchmark_can_be_imported():
    """They are run by hand, long after what they use has moved."""
    for path in sorted((ROOT / "bench").glob("bench_*.py")):
        assert import_module(f"bench.{path.stem}")


def test_no_entry_point_of_the_core_has_more_than_six_positional_arguments():
    found = [each for each in vars(_native).values() if callable(each)]
    found += [each for cls in found if isinstance(cls, type) for each in vars(cls).values() if callable(each)]
    signatures = [each.__text_signature__ for each in found if getattr(each, "__text_signature__", None)]
    counted = {each: len(re.findall(r"[(,] *\w", each.partition("*")[0])) for each in signatures}
    assert len(counted) > 60
    assert not [each for each, count in counted.items() if count > 6]
