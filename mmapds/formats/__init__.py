"""How records are framed in a source: one module a format, each with the same face.

NAME      the format's name, as `--format` takes it
SUFFIXES  file names it is chosen for
framing() how the core finds the payload between two bounds
scan()    the bounds of every record of every source, in order, and its columns
"""

from types import ModuleType

from ..errors import FormatError
from . import jsonl

_FORMATS: dict[str, ModuleType] = {module.NAME: module for module in (jsonl,)}

SUFFIXES: tuple[str, ...] = tuple(suffix for module in _FORMATS.values() for suffix in module.SUFFIXES)


def by_name(name: str) -> ModuleType:
    """Return the module of a format.

    Raises:
      FormatError: there is no such format.
    """
    if name not in _FORMATS:
        raise FormatError(f"format {name!r} is unknown; known formats: {', '.join(sorted(_FORMATS))}")
    return _FORMATS[name]


def for_path(path: str) -> ModuleType:
    """Return the format that a file's name stands for; JSONL where the name says nothing."""
    for module in _FORMATS.values():
        if path.endswith(module.SUFFIXES):
            return module
    return jsonl
