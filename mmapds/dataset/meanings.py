"""Whether columns of one name mean the same in all indexes of a dataset."""

from collections.abc import Sequence

from ..storage.hints import column_option, rebuilt_with
from ..storage.index_file import Index


def differing(indexes: Sequence[Index]) -> str | None:
    """Return a warning of the first index whose column another index measured or computed in another way, if any."""
    if len(indexes) < 2:
        return None
    firsts: dict[str, Index] = {}
    alike = None
    for index in indexes:
        made = index.expressions, index.functions, index.columns.keys()
        if made == alike:  # as of most datasets, which have indexes by the thousands
            continue
        alike = made
        for name in index.columns:
            first = firsts.setdefault(name, index)
            if _is_unknown(first, name) and name in index.functions:
                firsts[name] = index
            elif not (_is_unknown(index, name) and name in first.functions) and _made(first, name) != _made(
                index, name
            ):
                return _warning(name, first, index)
    return None


def _made(index: Index, name: str) -> str:
    return index.expressions.get(name) or index.functions.get(name, "")


def _is_unknown(index: Index, name: str) -> bool:
    """Whether the numbers of a column were given, so that they may be those of any function."""
    return name not in index.expressions and name not in index.functions


def _warning(name: str, first: Index, second: Index) -> str:
    expected, found = first.meaning(name), second.meaning(name)
    if expected == found:  # two functions of one name
        expected, found = (f"function {index.functions[name]}" for index in (first, second))
    return (
        f"{second.path}: column {name!r}: expected {expected or _NUMBERS}, as in {first.path}, found "
        f"{found or _NUMBERS}; {_remedy(name, first, second)}"
    )


_NUMBERS = "numbers that Python computed"


def _remedy(name: str, first: Index, second: Index) -> str:
    """Return how to make a column of two indexes alike."""
    computed = second.computed_columns
    functions = rebuilt_with({}, dict.fromkeys([name, *first.computed_columns, *computed]))
    if name not in first.expressions or not {name}.issuperset(computed):
        return f"{functions} for both"
    command = second.rebuild_command(column_option(name, first.expressions[name]), *["--force"] * bool(computed))
    return f"run: {command}{f' (or {functions} for both)' if computed else ''}"
