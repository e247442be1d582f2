"""How records are framed in a source: one module a format, each with the same face.

NAME          the format's name, as `--format` takes it
SUFFIXES      file names it is chosen for
TEXT          whether records stand on lines that people count
OPTIONS       what it can be told, by name: (type, placeholder, help), for the command line
parameters()  the options given, checked and completed: what an index says of how its sources are framed
layout()      how the core finds a payload
decoder()     what makes a sample of a payload unless the user says so
scan()        the bounds of every record of every source, in order, and its columns

and, where it has need of them:

DECODERS      the names of decoders that its records can be given to, where these are not those of any bytes
recognises()  whether a file is of this format, by its first bytes, where its name says nothing
claims()      whether a file is of this format, by its name and what lies beside it
verify()      what `--verify` checks in the sources beyond what a scan does
key()         the key of a record, in formats whose scan tells the hashes of keys
"""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ..errors import FormatError
from ..storage.sources import named, quoted, unreadable
from . import fixed, jsonl, megatron, mma, npy, prefixed, tar, tfrecord

_FORMATS: dict[str, ModuleType] = {
    module.NAME: module for module in (jsonl, mma, fixed, megatron, npy, prefixed, tar, tfrecord)
}

SUFFIXES: tuple[str, ...] = tuple(suffix for module in _FORMATS.values() for suffix in module.SUFFIXES)

_HEAD = 4096  # bytes by which a file is known

_DECODERS = ("json", "text", "bytes", "tf_example")
_ALL_DECODERS = {*_DECODERS, *(name for module in _FORMATS.values() for name in getattr(module, "DECODERS", ()))}

CONVERTIBLE: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "parquet": (b"PAR1", (".parquet", ".pq")),
    "arrow": (b"ARROW1", (".arrow", ".arrows", ".feather", ".ipc")),
    "hdf5": (b"\x89HDF\r\n\x1a\n", (".h5", ".hdf5", ".hdf", ".he5")),
}
"""What must be converted: the first bytes of such files, and what their names end in."""

OPTIONS: dict[str, tuple[type, str, str]] = {
    name: option for module in _FORMATS.values() for name, option in module.OPTIONS.items()
}


def by_name(name: str | ModuleType) -> ModuleType:
    """Return the module of a format; a module that has the face of a format stands for itself.

    Raises:
      FormatError: there is no such format.
    """
    if isinstance(name, ModuleType):
        return name
    if name in CONVERTIBLE:
        raise FormatError(f"{name} cannot be read in place; run: python -m mmapds.convert SOURCE")
    if name not in _FORMATS:
        raise FormatError(f"format {name!r} is unknown; known formats: {', '.join(sorted(_FORMATS))}")
    return _FORMATS[name]


def for_path(path: str) -> ModuleType:
    """Return the format that a file's name stands for, or else its first bytes; JSONL where they are text.

    Raises:
      FormatError: nothing says what the file is.
      SourceError: it cannot be read.
    """
    head = _head(path)
    _check_in_place(path, head)
    for module in _FORMATS.values():
        if named(path, module.SUFFIXES) or (hasattr(module, "claims") and module.claims(path)):
            return module
    for module in _FORMATS.values():
        if hasattr(module, "recognises") and module.recognises(head):
            return module
    if b"\0" in head:
        hint = " (as one of Megatron's it would need an .idx beside it)" if path.endswith(".bin") else ""
        raise FormatError(f"{path}: neither its name nor its first bytes say what it is; choose with --format{hint}")
    return jsonl


def check_decoder(name: str, decode: Any, path: str) -> None:
    """Raise FormatError for a decoder, given by name, that is none of a format's."""
    known = getattr(by_name(name), "DECODERS", _DECODERS)
    if isinstance(decode, str) and decode not in (*known, "torch") and decode in _ALL_DECODERS:
        expected = ", ".join(map(repr, known))
        raise FormatError(
            f"{path}: decode={decode!r}, but its records are of format {name!r}; leave it out, or choose of {expected}"
        )


def convertible(path: str) -> str | None:
    """Return what `mmapds.convert` calls a file that cannot be indexed, by its name or first bytes; None for others."""
    return _convertible(path, _head(path))


def check_in_place(path: str) -> None:
    """Raise FormatError for a file that must be converted.

    Raises:
      SourceError: it cannot be read.
    """
    _check_in_place(path, _head(path))


def _convertible(path: str, head: bytes) -> str | None:
    for name, (mark, suffixes) in CONVERTIBLE.items():
        if head.startswith(mark) or named(path, suffixes):
            return name
    return None


def _check_in_place(path: str, head: bytes) -> None:
    if name := _convertible(path, head):
        command = f"python -m mmapds.convert {quoted(path)}"
        raise FormatError(f"{path}: {name}, whose records cannot be read in place; run: {command}")


def _head(path: str) -> bytes:
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(_HEAD)
    except OSError as error:
        raise unreadable(path, error) from None


def check_options(module: ModuleType, given: Mapping[str, Any]) -> None:
    """Raise FormatError for an option that a format does not have."""
    for name in given:
        if name not in module.OPTIONS:
            known = ", ".join(module.OPTIONS) or "none"
            raise FormatError(f"format {module.NAME!r} has no option {name!r}; its options: {known}")
