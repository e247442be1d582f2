"""How the columns of an index are asked for, on a command line and in Python: what messages tell users to give."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from .sources import word


def alike(one: Any, other: Any) -> bool:
    """Whether two things that `Measuring.describe` says are the same; NaN in the place of missing numbers is NaN."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def rebuilt_with(expressions: Mapping[str, str], computed: Iterable[str]) -> str:
    """Return how to build an index with more columns where others were computed in Python, which then are again."""
    columns = {**{name: repr(text) for name, text in expressions.items()}, **dict.fromkeys(computed, "FUNCTION")}
    return f"pass {column_arguments(columns)} to mmapds.build"


def column_arguments(columns: Mapping[str, str], *, length: bool = True) -> str:
    """Return the arguments of `mmapds.build` for columns, each by its name with what it is made of as Python has it.

    Args:
      length: name the argument of that name for the column `length`.
    """
    others = {name: code for name, code in columns.items() if not length or name != "length"}
    alone = [f"length={columns['length']}"] if len(others) < len(columns) else []
    pairs = ", ".join(f"{name!r}: {code}" for name, code in others.items())
    return ", ".join(alone + ([f"columns={{{pairs}}}"] if pairs else []))


def column_option(name: str, expression: str) -> str:
    """Return the option of the command that measures a column."""
    return f"--length {word(expression)}" if name == "length" else f"--column {word(f'{name}={expression}')}"


def measuring_options(measured: Mapping[str, Any]) -> list[str]:
    """Return the options of a command that measures the same again; see `Measuring.describe`."""
    options = [column_option(name, text) for name, text in measured["expressions"].items()]
    options += [f"--missing {measured['missing']}"] * (measured["missing"] != "error")
    return options + ["--validate"] * measured["validate"] + ["--bad skip"] * (measured.get("bad") == "skip")
