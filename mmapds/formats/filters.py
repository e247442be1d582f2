"""Parse filters of columns, such as `length <= 4096 and not score == 0`: comparisons as in Python."""

import ast
from collections.abc import Callable
from functools import cache, reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import Error

_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
Column = Callable[[str], NDArray[Any]]


class Filter:
    """Masks the records for which a filter holds.

    Args:
      text: comparisons of columns and numbers, joined by and, or, not and parentheses.
      column: returns a column by name.
    """

    def __init__(self, text: str, column: Column) -> None:
        self._text, self._column = text, cache(column)
        try:
            self._parsed: ast.expr = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # the last two: too many parentheses
            self._parsed = ast.Constant(None)

    def __call__(self, piece: slice) -> Any:
        """Return the mask of some consecutive records; raise Error for a filter with anything else."""
        try:
            return _holds(self._parsed, self._column, piece)
        except (TypeError, OverflowError, RecursionError):
            expected = "expected comparisons of columns with numbers, such as 'length <= 4096', joined by and, or, not"
            raise Error(f"where = {self._text!r}, {expected}") from None


def _holds(node: ast.expr, column: Column, piece: slice) -> Any:
    """Return a mask of a piece by a filter; raise TypeError for a node that filters do not allow."""
    if isinstance(node, ast.BoolOp):
        join = np.logical_and if isinstance(node.op, ast.And) else np.logical_or
        return reduce(join, [_holds(each, column, piece) for each in node.values])
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return np.logical_not(_holds(node.operand, column, piece))
    if not isinstance(node, ast.Compare) or not _COMPARISONS.keys() >= set(map(type, node.ops)):
        raise TypeError
    sides = pairwise([_compared(each, column, piece) for each in (node.left, *node.comparators)])
    return reduce(np.logical_and, [_COMPARISONS[type(by)](*pair) for by, pair in zip(node.ops, sides, strict=True)])


def _compared(node: ast.expr, column: Column, piece: slice) -> Any:
    """Return a side of a comparison: a column or a number."""
    if isinstance(node, ast.Name | ast.Attribute):
        return column(ast.unparse(node))[piece]
    sign = 1
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node, sign = node.operand, -1
    number = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(number, int | float) or isinstance(number, bool):
        raise TypeError
    is_whole = float(number).is_integer()
    return sign * (int(number) if is_whole else number)  # an int compares exactly with integers of columns
