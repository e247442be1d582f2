"""Whether columns of one name mean the same in all indexes of a dataset."""

from collections.abc import Sequence

from ..storage.index_file import Index


def differing(indexes: Sequence[Index]) -> str | None:
    """Return a warning of the first column that two indexes measured or computed in different ways, if any.

    Numbers that were given may be those of any function, and are not compared.
    """
    firsts: dict[str, tuple[str, Index]] = {}
    known = None
    for index in indexes:
        made = {**index.expressions, **index.functions}
        if made == known:  # as of most datasets, which have indexes by the thousands
            continue
        known = made
        for name, found in made.items():
            expected, first = firsts.setdefault(name, (found, index))
            if expected != found:
                expected, found = expected.removesuffix(":"), found.removesuffix(":")  # without a version
                return (
                    f"{index.path}: column {name!r}: expected {expected}, as in {first.path}, found {found}; build "
                    "both alike"
                )
    return None
