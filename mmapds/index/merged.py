"""One index from the records of several others, which must have one format, the same columns and the same options."""

import json
from collections.abc import Sequence
from typing import Any

from .. import formats
from ..errors import ColumnError, FormatError
from ..formats.expressions import Measuring
from ..storage.index_file import SECTIONS, Index
from ..storage.sections import COLUMN
from .write import Job, Stored


def merged_job(parts: Sequence[Stored], target: str) -> Job:
    """Return the job that writes parts as one index, without its sources; raise an error unless parts are alike."""
    first = parts[0].base
    chosen = formats.of_index(first)
    for part in parts:
        _check_alike(first, part.base)
    functions = [part.base.functions.items() for part in parts]
    return Job(
        target,
        [],
        chosen,
        {**first.parameters, **{name: _in_turn(parts, name) for name in chosen.per_source}},
        Measuring.of(first.measuring),
        hashes=any(part.base.sources[number].xxh3_128 for part in parts for number in part.sources),
        computed=[name for name in first.columns if name not in first.expressions],
        functions=dict(each for each in functions[0] if all(each in others for others in functions)),
    )


def _check_alike(first: Index, other: Index) -> None:
    """Raise an error unless both indexes can be merged into one."""
    chosen = formats.of_index(first)
    for name in other.sections:
        if name not in SECTIONS and not name.startswith(COLUMN):
            raise FormatError(
                f"{other.path}: VERSION: expected sections that this mmapds knows, found {name!r}; upgrade mmapds"
            )
    shared = sorted(first.functions.keys() & other.functions)
    expected, found = (
        {
            ("format", FormatError): index.format,
            **{(name, FormatError): each for name, each in index.parameters.items() if name not in chosen.per_source},
            ("columns", ColumnError): list(index.columns),
            **{(name, ColumnError): each for name, each in index.measuring.items()},
            ("functions", ColumnError): {name: index.functions[name] for name in shared},
        }
        for index in (first, other)
    )
    for name, kind in [*expected, *found]:
        one, another = expected.get((name, kind)), found.get((name, kind))
        if json.dumps(one) != json.dumps(another):  # as JSON, NaN equals NaN, and the order of fields counts
            raise kind(f"{other.path}: {name}: expected {one!r}, as in {first.path}, found {another!r}")
    if other.has_bounds != first.has_bounds:
        raise other.damaged("expected bounds of records in both indexes or in neither")


def _in_turn(parts: Sequence[Stored], name: str) -> list[Any]:
    """Return the value of a parameter for each source."""
    values: list[Any] = []
    for part in parts:
        index, numbers = part.base, part.sources
        found = index.parameters.get(name)
        if not isinstance(found, list) or len(found) != len(index.sources):
            raise index.damaged(f"{name} = {found!r}, expected one for each of {len(index.sources)} sources")
        values += found[numbers.start : numbers.stop]
    return values
